//! The digest of the queue: a sum over the open recipients that is equal on all members of a shard that have applied
//! the same entries.
//!
//! It covers only state set by entries, and not a member's own: lists, and attempts in progress, which a start counts
//! as crashes without an entry.

use posthaste_random::mix;
use posthaste_spool::Lsn;

use super::recipient::{HELD, Recipient, TOLD};

/// The sum, kept while recipients change.
#[derive(Debug, Default)]
pub(super) struct DigestSum(u64);

/// The part of a recipient's state set by entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordedState {
    when: u64,
    status: u64,
}

impl RecordedState {
    pub fn of(recipient: &Recipient) -> Self {
        let bits = recipient.bits & (HELD | TOLD);
        let status = recipient.status;
        RecordedState {
            when: u64::from(recipient.due) | u64::from(recipient.attempts) << 32 | u64::from(bits) << 40,
            status: u64::from(status.code) | u64::from(status.enhanced) << 16,
        }
    }

    fn hash(self, message: Lsn, number: u16) -> u64 {
        let place = mix(message.get()).wrapping_add(number.into());
        mix(mix(mix(place) ^ self.when) ^ self.status)
    }
}

impl DigestSum {
    pub fn get(&self) -> u64 {
        self.0
    }

    pub fn add(&mut self, message: Lsn, recipient: &Recipient) {
        self.0 = self.0.wrapping_add(RecordedState::of(recipient).hash(message, recipient.number));
    }

    pub fn remove(&mut self, message: Lsn, recipient: &Recipient) {
        self.0 = self.0.wrapping_sub(RecordedState::of(recipient).hash(message, recipient.number));
    }
}
