//! Messages imported from another queue, with the state of their recipients.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256};
use posthaste_spool::{Lsn, put_text};

use super::change::{HoldReason, Status};
use super::clock::Secs;
use super::codec::{EntryText, Fields, QueueDecodeError};
use super::queued::Queued;
use super::recipient::{HELD, Recipient, TOLD};

/// A message imported from another queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Identity of the message in all queues.
    pub origin: Origin,
    /// Time of the import.
    pub at: Secs,
    /// The message as it was received, in seconds of this queue's clock.
    pub queued: Queued,
    /// The state of each recipient of `queued`, in the same order.
    pub states: Vec<ImportedState>,
}

/// Imported recipients, in the batch of their message. Apart from [`Imported`], because that entry needs the body. With
/// an older snapshot the spool replays that entry only while the body is kept, and this one always.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportNoted {
    /// The message's identity in all queues.
    pub origin: Origin,
    /// Time of the import.
    pub at: Secs,
    /// Numbers of its recipients.
    pub numbers: Vec<u16>,
}

/// The state of an imported recipient.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportedState {
    /// Attempts so far.
    pub attempts: u8,
    /// Time of the next attempt; 0 if it is held.
    pub next: Secs,
    /// Result of the last attempt.
    pub status: Status,
    /// The reason of its hold, if it is held.
    pub held: Option<HoldReason>,
    /// The sender was notified of the delay.
    pub delay_told: bool,
    /// The next hop's last reply; empty if unknown.
    pub reply: EntryText,
}

/// Identity of a message in any queue: a digest of its number and entry in its first queue, and of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(u128);

impl Origin {
    /// The origin of a message that was received here. `content` is the SHA-256 of its body.
    pub fn of(message: Lsn, queued: &[u8], content: &[u8]) -> Self {
        let mut digest = Context::new(&SHA256);
        digest.update(&message.get().to_le_bytes());
        digest.update(&(queued.len() as u64).to_le_bytes());
        [queued, content].iter().for_each(|bytes| digest.update(bytes));
        let digest = digest.finish();
        Origin(u128::from_le_bytes(*digest.as_ref().first_chunk().expect("32 bytes")))
    }

    /// The identity of one recipient. Digests are as good as random, so those of two messages are never close.
    fn recipient(self, number: u16) -> u128 {
        self.0 ^ u128::from(number)
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.0.to_le_bytes());
    }

    fn take(rest: &mut Fields<'_>) -> Result<Self, QueueDecodeError> {
        Ok(Origin(u128::from(rest.u64()?) | u128::from(rest.u64()?) << 64))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Origin {
    type Err = QueueDecodeError;

    fn from_str(text: &str) -> Result<Self, QueueDecodeError> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(text, 16).ok().filter(|_| is_hex).map(Origin).ok_or(QueueDecodeError::Unknown("origin"))
    }
}

impl Imported {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        assert_eq!(self.states.len(), self.queued.recipients.len(), "a state for each recipient");
        self.origin.put(out);
        out.extend(self.at.to_le_bytes());
        self.queued.put(out);
        for state in &self.states {
            let held = if state.held.is_some() { HELD } else { 0 };
            out.extend([state.attempts, held | if state.delay_told { TOLD } else { 0 }]);
            out.extend(state.held.map_or(state.next, HoldReason::number).to_le_bytes());
            out.extend(state.status.code.to_le_bytes());
            out.extend(state.status.enhanced.to_le_bytes());
            put_text(out, &state.reply);
        }
    }

    pub(super) fn take(rest: &mut Fields<'_>) -> Result<Self, QueueDecodeError> {
        let origin = Origin::take(rest)?;
        let at = rest.u32()?;
        let queued = Queued::take(rest)?;
        let mut states = Vec::with_capacity(queued.recipients.len());
        for _ in &queued.recipients {
            let attempts = rest.u8()?;
            let bits = rest.u8()?;
            let due = rest.u32()?;
            if bits & !(HELD | TOLD) != 0 {
                return Err(QueueDecodeError::Unknown("bits"));
            }
            let held = (bits & HELD != 0).then(|| HoldReason::of(due));
            states.push(ImportedState {
                attempts,
                next: if held.is_some() { 0 } else { due },
                status: Status { code: rest.u16()?, enhanced: rest.u16()? },
                held,
                delay_told: bits & TOLD != 0,
                reply: rest.text()?.into(),
            });
        }
        Ok(Imported { origin, at, queued, states })
    }
}

impl ImportNoted {
    /// The note of an import.
    pub fn of(imported: &Imported) -> Self {
        let numbers = imported.queued.recipients.iter().map(|recipient| recipient.number).collect();
        ImportNoted { origin: imported.origin, at: imported.at, numbers }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.origin.put(out);
        out.extend(self.at.to_le_bytes());
        let count = u16::try_from(self.numbers.len()).expect("at most 65,535 recipients");
        out.extend(count.to_le_bytes());
        self.numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
    }

    pub(super) fn take(rest: &mut Fields<'_>) -> Result<Self, QueueDecodeError> {
        let origin = Origin::take(rest)?;
        let at = rest.u32()?;
        let numbers = (0..rest.u16()?).map(|_| rest.u16()).collect::<Result<_, _>>()?;
        Ok(ImportNoted { origin, at, numbers })
    }
}

impl ImportedState {
    pub(super) fn put_into(&self, recipient: &mut Recipient) {
        (recipient.attempts, recipient.status) = (self.attempts, self.status);
        recipient.set(HELD, self.held.is_some());
        recipient.set(TOLD, self.delay_told);
        recipient.due = self.held.map_or(self.next, HoldReason::number);
    }
}

/// Imported recipients, 24 bytes each, to prevent a second import.
#[derive(Debug, Default)]
pub(super) struct Imports {
    known: BTreeMap<u128, Secs>,
    swept: Secs,
}

/// Lifetime of the memory of an import.
pub const IMPORT_KEPT_SECS: Secs = 31 * 86_400;
/// Maximum remembered imports; beyond it imports are refused.
pub const IMPORTS_MAX: usize = 20_000_000;
const SWEEP_SECS: Secs = 86_400;

impl Imports {
    pub fn note(&mut self, noted: &ImportNoted) {
        for number in &noted.numbers {
            self.restore(noted.origin.recipient(*number), noted.at);
        }
        if noted.at.saturating_sub(self.swept) >= SWEEP_SECS {
            self.swept = noted.at;
            self.known.retain(|_, at| at.saturating_add(IMPORT_KEPT_SECS) > noted.at);
        }
    }

    pub fn has(&self, origin: Origin, number: u16) -> bool {
        self.known.contains_key(&origin.recipient(number))
    }

    /// True if `recipients` more fit.
    pub fn has_room(&self, recipients: usize) -> bool {
        self.known.len() + recipients <= IMPORTS_MAX
    }

    pub fn restore(&mut self, recipient: u128, at: Secs) {
        self.known.insert(recipient, at);
    }

    /// A part of the imports, from `from` on.
    pub fn part(&self, from: u128) -> impl Iterator<Item = (u128, Secs)> {
        self.known.range(from..).take(PART).map(|(recipient, at)| (*recipient, *at))
    }
}

/// Imports in one part of a snapshot.
const PART: usize = 1500;
