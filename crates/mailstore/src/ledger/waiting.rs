//! Entries that the table may lack, and the tails of followed mailboxes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{Consumer, Lsn, Published};
use tokio::sync::Notify;

use crate::entry::{EntryKind, MailEntry};
use crate::table::FileNote;

/// Longest interval between commits of the table.
const COMMIT_EVERY: Duration = Duration::from_secs(30);
/// Bytes of waiting entries that start a commit.
pub(super) const WAITING_BYTES_MAX: usize = 32 << 20;
/// Waiting entries of accounts and mailboxes that start a commit: each look-up reads all of them.
const OTHERS_MAX: usize = 512;
/// Bytes of waiting entries beyond which changes are refused: the table cannot be written for a long time.
pub(super) const REFUSED_BYTES: usize = 128 << 20;
/// Memory of an entry besides its payload.
const ENTRY_BYTES: usize = 128;
/// Maximum entries of a tail. A longer one is dropped: followers read the mailbox from the table again.
const TAIL_ENTRIES_MAX: usize = 16_384;

/// Entries in LSN order. Holds no reference to the spool, which refers to it.
#[derive(Default)]
pub(super) struct Waiting {
    state: Mutex<WaitingState>,
    changed: Condvar,
    /// True while [`REFUSED_BYTES`] or more wait.
    is_full: AtomicBool,
    /// Notified when a tail grows, and at the end.
    grown: Notify,
}

#[derive(Default)]
pub(super) struct WaitingState {
    pub entries: Vec<(u64, Bytes)>,
    pub bytes: usize,
    /// Changes of files since the last commit.
    pub notes: Vec<FileNote>,
    /// All entries of batches up to this LSN are present.
    pub complete: u64,
    pub is_advance_wanted: bool,
    pub is_ending: bool,
    /// Commits of the table since the opening.
    pub commits: u64,
    /// The entries among `entries` that concern accounts or mailboxes, not messages; few.
    others: Vec<(u64, Bytes)>,
    /// Entries kept for followers, by mailbox.
    tails: HashMap<u32, Vec<(u64, Bytes)>>,
    /// Mailboxes whose tails have grown since the last query.
    grown: Vec<u32>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

impl Waiting {
    pub fn lock(&self) -> MutexGuard<'_, WaitingState> {
        // The ring's thread takes it: a bug of ours must not end it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while [`REFUSED_BYTES`] or more wait. Takes no lock.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Removes the first entries and notes: the table has them now.
    pub fn committed(&self, count: usize, notes: usize) {
        let mut state = self.lock();
        state.committed(count);
        state.notes.drain(..notes);
        self.is_full.store(state.bytes >= REFUSED_BYTES, Ordering::Relaxed);
    }

    /// Ends all waits. True if they had already ended.
    pub fn end(&self) -> bool {
        let had_ended = std::mem::replace(&mut self.lock().is_ending, true);
        self.changed.notify_all();
        self.grown.notify_one();
        had_ended
    }

    /// Waits for grown tails and returns their mailboxes; `None` at the end.
    pub async fn grown(&self) -> Option<Vec<u32>> {
        loop {
            {
                let mut state = self.lock();
                if state.is_ending {
                    return None;
                }
                if !state.grown.is_empty() {
                    return Some(std::mem::take(&mut state.grown));
                }
            }
            self.grown.notified().await;
        }
    }

    /// Waits for a reason to commit, or for `back_off` after a failed commit; `false` at the end.
    pub fn wait(&self, back_off: Option<Duration>) -> bool {
        let due = Instant::now() + back_off.unwrap_or(COMMIT_EVERY);
        let mut state = self.lock();
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if state.is_ending {
                return false;
            }
            let is_wanted = state.is_long() || state.is_advance_wanted;
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
        if !matches!(MailEntry::kind(&payload), Some(EntryKind::OfMailbox(_))) {
            self.others.push((lsn, payload.clone()));
        }
        self.entries.push((lsn, payload));
    }

    /// True if a commit is due.
    fn is_long(&self) -> bool {
        self.bytes >= WAITING_BYTES_MAX || self.others.len() >= OTHERS_MAX
    }

    /// True if notes wait, or entries of batches up to an LSN.
    pub fn has_any(&self, lsn: u64) -> bool {
        !self.notes.is_empty() || self.entries.first().is_some_and(|(first, _)| *first <= lsn)
    }

    /// Entries of batches up to an LSN.
    pub fn up_to(&self, lsn: u64) -> Vec<(u64, Bytes)> {
        self.entries[..self.entries.partition_point(|(of, _)| *of <= lsn)].to_vec()
    }

    /// Removes the first entries: the table has them now.
    fn committed(&mut self, count: usize) {
        let last = count.checked_sub(1).map_or(0, |last| self.entries[last].0);
        self.commits += 1;
        self.bytes -= self.entries.drain(..count).map(|(_, payload)| payload.len() + ENTRY_BYTES).sum::<usize>();
        self.others.retain(|(lsn, _)| *lsn > last);
    }

    /// Waiting entries of a mailbox. Reads all of them.
    pub fn of_mailbox(&self, mailbox: u32) -> Vec<(u64, Bytes)> {
        let is_wanted = |payload: &[u8]| MailEntry::kind(payload).and_then(EntryKind::mailbox) == Some(mailbox);
        self.entries.iter().filter(|(_, payload)| is_wanted(payload)).cloned().collect()
    }

    /// Entries of accounts and mailboxes, after the first `from`.
    pub fn others_from(&self, from: usize) -> Vec<(u64, Bytes)> {
        self.others[from..].to_vec()
    }

    /// Starts keeping entries of a mailbox for [`take_tail`](Self::take_tail).
    pub fn follow(&mut self, mailbox: u32) {
        self.tails.insert(mailbox, Vec::new());
    }

    pub fn unfollow(&mut self, mailbox: u32) {
        self.tails.remove(&mailbox);
    }

    /// True if [`take_tail`](Self::take_tail) would return entries or `None`.
    pub fn has_tail(&self, mailbox: u32) -> bool {
        self.tails.get(&mailbox).is_none_or(|tail| !tail.is_empty())
    }

    /// Entries since the last call; `None` if the tail was dropped for its length.
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
            let (is_first, is_long) = (tail.len() == 1, tail.len() > TAIL_ENTRIES_MAX);
            if is_long {
                state.tails.remove(&mailbox);
            }
            if is_first {
                state.grown.push(mailbox);
                self.grown.notify_one();
            }
        }
        state.push(lsn, payload);
        if state.is_long() {
            self.is_full.store(state.bytes >= REFUSED_BYTES, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    fn advance_wanted(&self, _: Lsn) {
        self.lock().is_advance_wanted = true;
        self.changed.notify_all();
    }
}
