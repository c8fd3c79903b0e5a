//! Handles of a ledger for callers that assign UIDs, or wait.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use super::waiting::Waiting;

/// Guard of the UID lock.
#[derive(Debug)]
pub struct UidLock<'a> {
    pub(super) next: MutexGuard<'a, HashMap<u32, u32>>,
    /// True once the entry *opening* is durable.
    pub(super) has_begun: bool,
}

impl UidLock<'_> {
    /// Takes a mailbox's next UIDs and returns the first; `None` if fewer than `count` are left, the mailbox was never
    /// pinned, or the entry *opening* is not durable.
    pub fn take(&mut self, mailbox: u32, count: u32) -> Option<u32> {
        if !self.has_begun {
            return None;
        }
        let next = self.next.get_mut(&mailbox)?;
        let first = *next;
        // The last number stays free, so that there always is a next UID to tell.
        *next = first.checked_add(count)?;
        Some(first)
    }

    /// Returns UIDs from `first` on, taken under this lock.
    pub(super) fn give_back(&mut self, mailbox: u32, first: u32) {
        self.next.insert(mailbox, first);
    }
}

/// Reports followed mailboxes with new entries.
#[derive(Debug)]
pub struct GrownMailboxes(pub(super) Arc<Waiting>);

impl GrownMailboxes {
    /// Waits for new entries; `None` once the ledger has ended.
    pub async fn next(&self) -> Option<Vec<u32>> {
        self.0.grown().await
    }
}
