//! Owed notices: settled recipients whose sender is still to be notified.
//!
//! The entry that settles a recipient records the debt, and the batch of the notice clears it. So an outcome is
//! recorded without waiting for its notice, and a restart makes those still owed. The message stays until its last
//! notice is made.

use std::collections::BTreeMap;

use posthaste_spool::Lsn;

use super::change::{OwedNotice, RecipientKey, Status};

/// A recipient with an owed notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwedRecipient {
    /// Number of the recipient in its message.
    pub number: u16,
    /// The notice.
    pub notice: OwedNotice,
    /// Result of the last attempt.
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

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn contains(&self, key: RecipientKey) -> bool {
        self.by_key.contains_key(&key)
    }

    /// True if it was owed.
    pub fn remove(&mut self, key: RecipientKey) -> bool {
        self.by_key.remove(&key).is_some()
    }

    pub fn has(&self, message: Lsn) -> bool {
        !self.by_key.is_empty() && self.of(message).next().is_some()
    }

    pub fn of(&self, message: Lsn) -> impl Iterator<Item = OwedRecipient> {
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

    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// The messages noted since the last call.
    pub fn take_news(&mut self) -> Vec<Lsn> {
        std::mem::take(&mut self.news)
    }

    /// A part of the debts from a key on, for a snapshot.
    pub fn part(&self, from: RecipientKey) -> impl Iterator<Item = (RecipientKey, OwedNotice, Status)> {
        self.by_key.range(from..).take(PART).map(|(key, (notice, status))| (*key, *notice, *status))
    }
}

/// Debts in one part of a snapshot.
const PART: usize = 2000;
