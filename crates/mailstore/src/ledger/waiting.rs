//! Entries that the table may lack, and the tails of mailboxes that somebody follows.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{Consumer, Lsn, Published};

use crate::entry::{EntryKind, MailEntry};

/// The table is brought up to the stream at least this often.
const COMMIT_EVERY: Duration = Duration::from_secs(30);
/// And once so many bytes of entries wait for it.
pub(super) const WAITING_BYTES_MAX: usize = 32 << 20;
/// With so many, changes are refused: the table has not been written for long.
pub(super) const REFUSED_BYTES: usize = 128 << 20;
/// Memory of an entry beside its payload.
pub(super) const ENTRY_BYTES: usize = 128;
/// Entries of a tail. A longer one is dropped: who follows the mailbox reads it from the table again.
const TAIL_ENTRIES_MAX: usize = 16_384;

/// Entries in the order of their LSNs. It holds no spool, which holds it.
#[derive(Default)]
pub(super) struct Waiting {
    state: Mutex<WaitingState>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct WaitingState {
    pub entries: Vec<(u64, Bytes)>,
    pub bytes: usize,
    /// All entries of batches up to this LSN are there.
    pub complete: u64,
    pub is_advance_wanted: bool,
    pub is_ending: bool,
    /// By mailbox.
    tails: HashMap<u32, Vec<(u64, Bytes)>>,
}

impl Waiting {
    pub fn lock(&self) -> MutexGuard<'_, WaitingState> {
        // The ring's thread takes it: a bug of ours must not end it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all waits. True if they had ended before.
    pub fn end(&self) -> bool {
        let had_ended = std::mem::replace(&mut self.lock().is_ending, true);
        self.changed.notify_all();
        had_ended
    }

    /// Waits until there is a reason for a commit, or for all of `back_off` after one that failed; `false` at the end.
    pub fn wait(&self, back_off: Option<Duration>) -> bool {
        let due = Instant::now() + back_off.unwrap_or(COMMIT_EVERY);
        let mut state = self.lock();
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if state.is_ending {
                return false;
            }
            let is_wanted = state.bytes >= WAITING_BYTES_MAX || state.is_advance_wanted;
            if left.is_zero() || back_off.is_none() && is_wanted {
                state.is_advance_wanted = false;
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl WaitingState {
    pub fn push(&mut self, lsn: u64, payload: Bytes) {
        self.bytes += payload.len() + ENTRY_BYTES;
        self.entries.push((lsn, payload));
    }

    /// Entries of batches up to an LSN.
    pub fn up_to(&self, lsn: u64) -> Vec<(u64, Bytes)> {
        self.entries[..self.entries.partition_point(|(of, _)| *of <= lsn)].to_vec()
    }

    /// Entries that wait and concern an account or a mailbox.
    pub fn of(&self, is_wanted: impl Fn(EntryKind) -> bool) -> Vec<(u64, Bytes)> {
        let wanted = self.entries.iter().filter(|(_, payload)| MailEntry::kind(payload).is_some_and(&is_wanted));
        wanted.cloned().collect()
    }

    /// From now on the entries of a mailbox are kept for [`take_tail`](Self::take_tail).
    pub fn follow(&mut self, mailbox: u32) {
        self.tails.insert(mailbox, Vec::new());
    }

    pub fn unfollow(&mut self, mailbox: u32) {
        self.tails.remove(&mailbox);
    }

    /// `None`: nobody follows it any more, as its tail had become too long.
    pub fn take_tail(&mut self, mailbox: u32) -> Option<Vec<(u64, Bytes)>> {
        self.tails.get_mut(&mailbox).map(std::mem::take)
    }
}

impl Consumer for Waiting {
    fn published(&self, entry: Published) {
        let (lsn, payload) = (entry.lsn.get(), entry.payload);
        let mut state = self.lock();
        if let Some(EntryKind::OfMailbox(mailbox)) = MailEntry::kind(&payload)
            && let Some(tail) = state.tails.get_mut(&mailbox)
        {
            tail.push((lsn, payload.clone()));
            if tail.len() > TAIL_ENTRIES_MAX {
                state.tails.remove(&mailbox);
            }
        }
        state.push(lsn, payload);
        if state.bytes >= WAITING_BYTES_MAX {
            self.changed.notify_all();
        }
    }

    fn advance_wanted(&self, _: Lsn) {
        self.lock().is_advance_wanted = true;
        self.changed.notify_all();
    }
}
