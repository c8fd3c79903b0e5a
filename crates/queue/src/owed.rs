//! Owed notices: settled recipients whose sender is still to be notified.
//!
//! The entry that settles a recipient records the debt, and the batch of the notice clears it. So an outcome is
//! recorded without waiting for its notice, and a restart makes those still owed. The message stays until its last
//! notice is made.

use std::collections::BTreeMap;

use posthaste_intake::notify;
use posthaste_spool::Lsn;

use super::Queue;
use super::change::{Change, RecipientKey, Status, What};
use super::codec::QueueDecodeError;
use super::queued::QueuedRecipient;

/// The kind of notice owed for a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwedNotice {
    /// It was given up.
    Failed,
    /// A next hop accepted it that does not report success itself.
    Relayed,
    /// It was delivered to a mailbox here.
    Delivered,
}

impl OwedNotice {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Failed => 0,
            Self::Relayed => 1,
            Self::Delivered => 2,
        }
    }

    pub(super) fn of(number: u8) -> Result<Self, QueueDecodeError> {
        match number {
            0 => Ok(Self::Failed),
            1 => Ok(Self::Relayed),
            2 => Ok(Self::Delivered),
            _ => Err(QueueDecodeError::Unknown("notice")),
        }
    }
}

impl QueuedRecipient {
    /// The notice owed from the beginning, if the message was already delivered here.
    pub(super) fn owed(&self) -> Option<(OwedNotice, Status)> {
        let status = |enhanced| Status { code: 250, enhanced };
        match self.notify & (notify::IN_MAILBOX | notify::HANDED_ON) {
            0 => None,
            notify::IN_MAILBOX => Some((OwedNotice::Delivered, status(1005))),
            _ => Some((OwedNotice::Relayed, status(0))),
        }
    }
}

impl Change {
    /// This change with an owed notice if it gives a recipient up or delivers to it; else unchanged.
    #[must_use]
    pub fn with_notice(self) -> Self {
        let what = match self.what {
            What::Failed(status) => What::Owed(OwedNotice::Failed, status),
            What::Delivered(status) => What::Owed(OwedNotice::Relayed, status),
            what => what,
        };
        Change { what, ..self }
    }
}

/// A recipient with an owed notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwedRecipient {
    /// Its number.
    pub number: u16,
    /// The notice.
    pub notice: OwedNotice,
    /// Result of its last attempt.
    pub status: Status,
}

#[derive(Debug, Default)]
pub(super) struct OwedNotices {
    by_key: BTreeMap<RecipientKey, (OwedNotice, Status)>,
    /// Messages that owe more than before, or whose last recipient was settled.
    news: Vec<Lsn>,
}

impl OwedNotices {
    pub fn insert(&mut self, key: RecipientKey, notice: OwedNotice, status: Status) {
        self.by_key.insert(key, (notice, status));
    }

    /// True if it was owed.
    pub fn remove(&mut self, key: RecipientKey) -> bool {
        self.by_key.remove(&key).is_some()
    }

    pub fn has(&self, message: Lsn) -> bool {
        !self.by_key.is_empty() && self.of(message).next().is_some()
    }

    fn of(&self, message: Lsn) -> impl Iterator<Item = OwedRecipient> {
        let keys = RecipientKey { message, number: 0 }..=RecipientKey { message, number: u16::MAX };
        let recipient = |(key, (notice, status)): (&RecipientKey, &(OwedNotice, Status))| OwedRecipient {
            number: key.number,
            notice: *notice,
            status: *status,
        };
        self.by_key.range(keys).map(recipient)
    }

    /// Drops the debts of other messages.
    pub fn retain(&mut self, is_kept: impl Fn(Lsn) -> bool) {
        self.by_key.retain(|key, _| is_kept(key.message));
    }

    pub fn first_message(&self) -> Option<Lsn> {
        self.by_key.first_key_value().map(|(key, _)| key.message)
    }

    pub fn last_message(&self) -> Option<Lsn> {
        self.by_key.last_key_value().map(|(key, _)| key.message)
    }

    pub fn note(&mut self, message: Lsn) {
        if self.news.last() != Some(&message) {
            self.news.push(message);
        }
    }

    /// Marks all as news, at the end of a replay.
    pub fn note_all(&mut self) {
        let mut messages: Vec<Lsn> = self.by_key.keys().map(|key| key.message).collect();
        messages.dedup();
        self.news = messages;
    }

    /// A part of the debts from a key on, for a snapshot.
    pub fn part(&self, from: RecipientKey) -> impl Iterator<Item = (RecipientKey, OwedNotice, Status)> {
        self.by_key.range(from..).take(PART).map(|(key, (notice, status))| (*key, *notice, *status))
    }
}

impl Queue {
    /// Recipients of a message with an owed notice, by number. Put [`What::Told`] into the batch of the notice.
    pub fn owed(&self, message: Lsn) -> Vec<OwedRecipient> {
        self.owed.of(message).collect()
    }

    /// True if a notice is owed for a recipient.
    pub fn is_owed(&self, key: RecipientKey) -> bool {
        self.owed.by_key.contains_key(&key)
    }

    /// Number of owed notices.
    pub fn owed_notices(&self) -> u64 {
        self.owed.by_key.len() as u64
    }

    /// Messages with new debts since the last call, or whose last recipient was settled. The first call returns all
    /// with debts.
    pub fn take_owing(&mut self) -> Vec<Lsn> {
        std::mem::take(&mut self.owed.news)
    }

    /// True if [`take_owing`](Self::take_owing) would return any.
    pub fn has_owing(&self) -> bool {
        !self.owed.news.is_empty()
    }

    /// Late recipients of a message without an applied [`What::DelayTold`].
    pub fn delayed(&self, message: Lsn) -> Vec<u16> {
        let keys = RecipientKey { message, number: 0 }..=RecipientKey { message, number: u16::MAX };
        self.delays.range(keys).map(|key| key.number).collect()
    }
}

/// Debts in one part of a snapshot.
const PART: usize = 2000;
