//! Expired and late recipients, found by a scan of all recipients once a minute.

use super::Queue;
use super::change::RecipientKey;
use super::table::{BUSY, HELD, Id, Recipient, TOLD};
use super::{FIRST, Secs};

/// A finding that the caller must record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueNotice {
    /// An expired recipient: record [`What::Failed`](super::What::Failed) with its DSN (5.4.7, RFC 3463). Busy until
    /// then.
    Expired(RecipientKey),
    /// A late recipient: record [`What::DelayTold`](super::What::DelayTold), with a DSN if NOTIFY asks.
    Delayed(RecipientKey),
}

impl DueNotice {
    /// The recipient.
    pub fn key(&self) -> RecipientKey {
        match self {
            DueNotice::Expired(key) | DueNotice::Delayed(key) => *key,
        }
    }

    /// True if both have the same kind and message.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.key().message == other.key().message
    }
}

/// Time of one scan of all recipients.
const ROUND_SECS: u64 = 60;
/// Maximum findings that wait to be taken; the scan pauses there.
const NOTICES_MAX: usize = 10_000;

impl Queue {
    /// Takes the findings since the last call. Each is found once: the caller must record it.
    pub fn take_notices(&mut self) -> Vec<DueNotice> {
        std::mem::take(&mut self.notices)
    }

    pub(super) fn sweep(&mut self, secs: Secs) {
        let pages = self.table.pages() as u64;
        let mut left = (pages * u64::from(secs).min(ROUND_SECS)).div_ceil(ROUND_SECS);
        while left > 0 && self.notices.len() < NOTICES_MAX {
            let Some((ids, next)) = self.table.open_from(self.sweep_at) else {
                // A table without recipients ends the walk, too.
                if self.sweep_at == FIRST {
                    break;
                }
                self.sweep_at = FIRST;
                continue;
            };
            ids.into_iter().for_each(|id| self.look_at(id));
            self.sweep_at = next;
            left -= 1;
        }
    }

    fn look_at(&mut self, id: Id) {
        let recipient = self.table.get(id);
        if recipient.is(HELD) || recipient.is(BUSY) {
            return;
        }
        let is_told = recipient.is(TOLD);
        let (message, received) = self.table.message(id);
        let schedule = self.schedule_of(id);
        let own = if self.expires.is_empty() { None } else { self.expires.get(&message).copied() };
        let expires = own.unwrap_or_else(|| schedule.expires(received));
        let delay_secs = schedule.delay_notice_secs;
        if expires <= self.now {
            let key = self.table.key(id);
            self.table.unlink(id);
            self.table.change(id, Recipient::begin_work);
            self.notices.push(DueNotice::Expired(key));
        } else if !is_told && u64::from(received) + delay_secs <= u64::from(self.now) {
            let key = self.table.key(id);
            if self.delays.insert(key) {
                self.notices.push(DueNotice::Delayed(key));
            }
        }
    }
}
