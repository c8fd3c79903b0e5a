//! Notices: of expired and late recipients, found by a scan of all recipients once a minute, and those owed.

use posthaste_spool::Lsn;

use super::change::{DueNotice, RecipientKey};
use super::clock::Secs;
use super::owed::OwedRecipient;
use super::queue::Queue;
use super::recipient::{BUSY, HELD, Id, Recipient, TOLD};

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
                // A table without recipients ends the loop, too.
                if self.sweep_at == RecipientKey::FIRST {
                    break;
                }
                self.sweep_at = RecipientKey::FIRST;
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

    /// Recipients of a message with an owed notice, by number. Put [`What::Told`](super::What::Told) into the batch of the notice.
    pub fn owed(&self, message: Lsn) -> Vec<OwedRecipient> {
        self.owed.of(message).collect()
    }

    /// True if a notice is owed for a recipient.
    pub fn is_owed(&self, key: RecipientKey) -> bool {
        self.owed.contains(key)
    }

    /// Number of owed notices.
    pub fn owed_notices(&self) -> u64 {
        self.owed.len() as u64
    }

    /// Messages with new debts since the last call, or whose last recipient was settled. The first call returns all
    /// with debts.
    pub fn take_owing(&mut self) -> Vec<Lsn> {
        self.owed.take_news()
    }

    /// True if [`take_owing`](Self::take_owing) would return any.
    pub fn has_owing(&self) -> bool {
        self.owed.has_news()
    }

    /// Late recipients of a message without an applied [`What::DelayTold`](super::What::DelayTold).
    pub fn delayed(&self, message: Lsn) -> Vec<u16> {
        let keys = RecipientKey { message, number: 0 }..=RecipientKey { message, number: u16::MAX };
        self.delays.range(keys).map(|key| key.number).collect()
    }
}
