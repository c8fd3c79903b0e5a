//! The stream `mailstore`: entries become durable in the spool, and rows of the table a little later.

mod damage;
mod error;
mod handles;
mod opening;
mod openings;
mod others;
mod reads;
mod shared;
mod skip_file;
mod stored;
mod usage;
mod waiting;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use posthaste_consumer::{AttachedStream, StreamThread};
use posthaste_spool::{AppendError, Damage, Lsn, Spool, StreamId};

pub use self::error::MailLedgerError;
pub use self::handles::{GrownMailboxes, UidLock};
use self::opening::Beginning;
pub use self::opening::{LedgerReport, applied_in};
use self::openings::Openings;
use self::shared::{STEPS, Shared};
pub use self::stored::{CountedMailbox, PendingDirectory, StoredMailbox, StoredMessage};
use self::stored::{counted, head_of, stored};
use self::waiting::{WAITING_BYTES_MAX, Waiting};
use crate::entry::MailEntry;
use crate::table::{FileNote, MailboxHead, MetaTable, TableName, rows_of};

/// Minimum free UIDs. A mailbox with fewer needs a new UIDVALIDITY.
pub(crate) const UIDS_KEPT_MIN: u32 = 1 << 16;

/// UIDs and flags of a server's mailboxes: a stream of entries, with a table as its snapshot.
///
/// Entries acknowledged by [`append`](Self::append) survive a power cut. The table lags: entries that it lacks are in
/// memory and in the spool.
#[derive(Debug)]
pub struct MailLedger {
    shared: Arc<Shared>,
    attached: AttachedStream,
    thread: Mutex<Option<StreamThread>>,
    /// The UID lock: the next UID of each mailbox followed in this opening. Held until the append returns, so UIDs are
    /// in the order of LSNs.
    uids: Mutex<HashMap<u32, u32>>,
    /// The entry *opening*, until it is durable. It precedes all others of this opening, and the first of them writes
    /// it: an opening without changes writes nothing.
    opening: Mutex<Option<MailEntry>>,
    /// True once the entry *opening* is durable. No UID is assigned before: file names contain its nonce.
    has_begun: AtomicBool,
    openings: Openings,
    /// True if replayed entries are not in the table yet.
    is_behind: bool,
    /// The table's `skip` in this opening.
    skip: u32,
    next_account: AtomicU32,
    next_mailbox: AtomicU32,
}

impl MailLedger {
    /// Opens the table in `dir`, and reads missing entries from the spool. `damage`: as reported when the spool was
    /// opened. UIDs that damage or a lost commit may have used are skipped.
    ///
    /// A spool that cannot be written now is no error: the entry *opening* becomes durable with the first change.
    ///
    /// # Errors
    /// See [`MailLedgerError`].
    pub fn open(
        spool: Arc<dyn Spool>,
        damage: &[Damage],
        dir: &Path,
        host: &str,
        nonce: u32,
    ) -> Result<(Self, LedgerReport), MailLedgerError> {
        Self::open_bounded(spool, damage, dir, (host, nonce), WAITING_BYTES_MAX)
    }

    fn open_bounded(
        spool: Arc<dyn Spool>,
        damage: &[Damage],
        dir: &Path,
        (host, nonce): (&str, u32),
        bytes_max: usize,
    ) -> Result<(Self, LedgerReport), MailLedgerError> {
        let table = MetaTable::open(dir)?;
        let beginning = Beginning::new(spool, &table, dir)?;
        let (stream, waiting) = (beginning.stream.clone(), Arc::<Waiting>::default());
        let shared = Arc::new(Shared {
            stream,
            table,
            waiting,
            committing: Mutex::default(),
            others: Mutex::default(),
            #[cfg(test)]
            applied: Default::default(),
        });
        let mut report = LedgerReport::default();
        let replayed = shared.restore(dir, &beginning, damage, bytes_max, &mut report)?;
        let (numbers, openings) = shared.read(
            |state| state.entries.clone(),
            |reader, changes, numbers| Ok((numbers, rows_of(reader, changes, TableName::Openings, &[])?)),
        )?;
        let attached = replayed.attach(Arc::clone(&shared.waiting) as _)?;
        // If the table cannot be written now, the thread tries again and tells it.
        let is_behind = report.replayed > 0 && shared.commit().is_err();
        let ledger = Self {
            shared: Arc::clone(&shared),
            attached,
            thread: Mutex::default(),
            uids: Mutex::default(),
            opening: Mutex::new(Some(MailEntry::Opening { nonce, host: Bytes::copy_from_slice(host.as_bytes()) })),
            has_begun: AtomicBool::new(false),
            openings: Openings::of(openings),
            is_behind,
            skip: numbers.skip,
            next_account: AtomicU32::new(numbers.next_account),
            next_mailbox: AtomicU32::new(numbers.next_mailbox),
        };
        // The LSN of a spool in another one's place is above the table's from now on: the same loss is not found twice.
        if report.has_skipped
            && let Err(error) = ledger.begin()
        {
            let error = error.to_string();
            tracing::warn!(error, "mailboxes are read-only: the spool accepts no writes now");
        }
        let stream = shared.stream.clone();
        let thread = stream.start_thread("mailstore", STEPS, move |pulse| shared.run(pulse));
        *lock(&ledger.thread) = Some(thread.map_err(MailLedgerError::Thread)?);
        Ok((ledger, report))
    }

    /// Makes the entry *opening* durable, unless it already is.
    fn begin(&self) -> Result<(), MailLedgerError> {
        let mut opening = lock(&self.opening);
        if let Some(entry @ MailEntry::Opening { nonce, .. }) = &*opening {
            let lsn = self.finish_append(&self.begin_append(std::slice::from_ref(entry)))?;
            self.openings.add(lsn, *nonce);
            *opening = None;
            self.has_begun.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Makes the entry *opening* durable first. Refuses changes if that fails, or while the backlog of the table is
    /// full.
    pub(crate) fn check_open(&self) -> Result<(), MailLedgerError> {
        if self.shared.waiting.is_full() {
            return Err(MailLedgerError::TooMuchWaits);
        }
        self.begin()
    }

    /// True while the backlog of the table is full, and no mail may be added.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.waiting.is_full()
    }

    /// Number of times that UIDs were skipped since the table was made. A mailbox with UIDs of another server, or of an
    /// earlier table, skips as often.
    pub(crate) fn skip(&self) -> u32 {
        self.skip
    }

    /// Makes entries durable, all or none, and returns the LSN of their batch. Blocks for a sync of the spool.
    ///
    /// # Errors
    /// [`MailLedgerError::Append`], [`MailLedgerError::TooMuchWaits`].
    pub fn append(&self, entries: &[MailEntry]) -> Result<u64, MailLedgerError> {
        self.check_open()?;
        let outcome = self.begin_append(entries);
        self.finish_append(&outcome)
    }

    /// Like [`append`](Self::append), for entries that assign a mailbox's next `count` UIDs; `entries` gets the first.
    ///
    /// # Errors
    /// [`MailLedgerError::Append`], [`MailLedgerError::TooMuchWaits`], [`MailLedgerError::OutOfUids`]: nothing is
    /// appended. A mailbox must have been followed or pinned before.
    pub fn append_uids(
        &self,
        mailbox: u32,
        count: u32,
        entries: impl FnOnce(u32) -> Vec<MailEntry>,
    ) -> Result<u64, MailLedgerError> {
        self.check_open()?;
        let outcome = {
            let mut uids = self.lock_uids();
            let first = uids.take(mailbox, count).ok_or(MailLedgerError::OutOfUids)?;
            let outcome = self.begin_append(&entries(first));
            match outcome.try_recv() {
                // Nobody has a later one: the lock is held.
                Ok(Err(error)) => {
                    uids.give_back(mailbox, first);
                    return Err(error.into());
                }
                Ok(Ok(lsn)) => return Ok(self.appended(lsn)),
                Err(_) => outcome,
            }
        };
        self.finish_append(&outcome)
    }

    /// Records notes about files for the next commit. After a kill before it, the files are examined again.
    pub(crate) fn note(&self, notes: &[FileNote]) {
        self.shared.waiting.lock().notes.extend_from_slice(notes);
    }

    /// Id of the stream.
    pub fn stream(&self) -> StreamId {
        self.shared.stream.id()
    }

    /// The spool that the stream is in.
    pub fn spool(&self) -> &Arc<dyn Spool> {
        self.shared.stream.spool()
    }

    /// Takes the UID lock, to be held only during an append. UIDs taken under it belong to batches appended before its
    /// drop.
    pub fn lock_uids(&self) -> UidLock<'_> {
        UidLock { next: lock(&self.uids), has_begun: self.has_begun.load(Ordering::Acquire) }
    }

    /// The nonce in the file names of mail accepted in this batch.
    pub fn nonce_of(&self, lsn: u64) -> Option<u32> {
        self.openings.nonce_of(lsn)
    }

    /// A handle that waits for new entries of followed mailboxes. It does not keep the ledger open.
    pub fn grown(&self) -> GrownMailboxes {
        GrownMailboxes(Arc::clone(&self.shared.waiting))
    }

    fn begin_append(&self, entries: &[MailEntry]) -> Receiver<Result<Lsn, AppendError>> {
        let (done, outcome) = sync_channel(1);
        // There is room for the one answer, and nobody else sends.
        self.shared.stream.append(entries.iter().map(MailEntry::encode), move |result| drop(done.send(result)));
        outcome
    }

    fn finish_append(&self, outcome: &Receiver<Result<Lsn, AppendError>>) -> Result<u64, MailLedgerError> {
        Ok(self.appended(outcome.recv().expect("`then` is called exactly once")?))
    }

    /// Callers learn a batch's outcome only after the consumer has seen all its entries.
    fn appended(&self, lsn: Lsn) -> u64 {
        let mut state = self.shared.waiting.lock();
        state.complete = state.complete.max(lsn.get());
        lsn.get()
    }

    /// A new account id, never used before.
    pub fn new_account(&self) -> u32 {
        self.next_account.fetch_add(1, Ordering::Relaxed)
    }

    /// A new mailbox id, never used before.
    pub fn new_mailbox(&self) -> u32 {
        self.next_mailbox.fetch_add(1, Ordering::Relaxed)
    }

    /// Commits all durable entries to the table.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`]: entries wait in memory and in the spool.
    pub fn commit(&self) -> Result<(), MailLedgerError> {
        Ok(self.shared.commit()?)
    }

    /// Returns the present state of a mailbox and keeps its later entries, which [`take_tail`](Self::take_tail) returns
    /// in order. `None` if there is no mailbox with that id.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn follow(&self, mailbox: u32) -> Result<Option<StoredMailbox>, MailLedgerError> {
        self.follow_counted(mailbox, &|_| false, None, |_| ())
    }

    /// Like [`follow`](Self::follow), but first publishes matching counters if they are wanted. See
    /// [`counted`](Self::counted).
    pub(crate) fn follow_counted(
        &self,
        mailbox: u32,
        is_wanted: &dyn Fn(&MailboxHead) -> bool,
        recent_from: Option<u32>,
        show: impl FnOnce(CountedMailbox),
    ) -> Result<Option<StoredMailbox>, MailLedgerError> {
        let found = self.read(
            |state| {
                state.follow(mailbox);
                state.of_mailbox(mailbox)
            },
            |reader, changes, numbers| {
                if let Some(counted) = counted((reader, changes), numbers, mailbox, is_wanted, recent_from)? {
                    show(counted);
                }
                stored(reader, changes, numbers, mailbox)
            },
        );
        match &found {
            // If somebody has given UIDs since, they are in the map already.
            Ok(Some(stored)) => self.pin_at(mailbox, stored.head.next_uid),
            _ => self.unfollow(mailbox),
        }
        found
    }

    /// Enables UIDs of a mailbox; false if there is no mailbox with that id. Cheap, and needs no
    /// [`follow`](Self::follow).
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn pin(&self, mailbox: u32) -> Result<bool, MailLedgerError> {
        if lock(&self.uids).contains_key(&mailbox) {
            return Ok(true);
        }
        // Nobody has given UIDs of it in this opening, so the last ones are in the table, or among what was replayed.
        let replayed = |state: &mut waiting::WaitingState| {
            if self.is_behind { state.of_mailbox(mailbox) } else { Vec::new() }
        };
        let head = self.read(replayed, |reader, changes, numbers| head_of(reader, changes, numbers, mailbox))?;
        head.as_ref().inspect(|head| self.pin_at(mailbox, head.next_uid));
        Ok(head.is_some())
    }

    /// Like [`pin`](Self::pin), for a mailbox with a known next UID. UIDs assigned since then count.
    pub(crate) fn pin_at(&self, mailbox: u32, next_uid: u32) {
        lock(&self.uids).entry(mailbox).or_insert(next_uid);
    }

    /// True if a pinned mailbox has few UIDs left, or none.
    pub(crate) fn are_uids_used_up(&self, mailbox: u32) -> bool {
        lock(&self.uids).get(&mailbox).is_some_and(|next| u32::MAX - next < UIDS_KEPT_MIN)
    }

    /// Stops assigning UIDs of a mailbox. Returns its next UID, if any.
    pub(crate) fn withhold_uids(&self, mailbox: u32) -> Option<u32> {
        // Not removed: whoever pins it again would read one that was given meanwhile.
        lock(&self.uids).insert(mailbox, u32::MAX)
    }

    /// Assigns UIDs of a mailbox again, from `next_uid` on.
    pub(crate) fn give_uids_from(&self, mailbox: u32, next_uid: u32) {
        lock(&self.uids).insert(mailbox, next_uid);
    }

    /// Entries of a mailbox since the last call; `None` after an overflow: follow the mailbox again.
    pub fn take_tail(&self, mailbox: u32) -> Option<Vec<(u64, Bytes)>> {
        self.shared.waiting.lock().take_tail(mailbox)
    }

    /// True if a followed mailbox has new entries, or overflowed.
    pub(crate) fn has_tail(&self, mailbox: u32) -> bool {
        self.shared.waiting.lock().has_tail(mailbox)
    }

    /// Stops keeping entries of a mailbox.
    pub fn unfollow(&self, mailbox: u32) {
        self.shared.waiting.lock().unfollow(mailbox);
    }

    /// Commits, and detaches from the stream. Later entries stay in the spool for the next opening.
    pub fn end(&self) {
        let waiting = &self.shared.waiting;
        if waiting.end() {
            return;
        }
        if let Some(thread) = lock(&self.thread).take() {
            thread.join();
        }
        self.attached.detach();
        // Nothing more comes, and what came was whole.
        waiting.lock().complete = u64::MAX;
        // What it cannot write is replayed.
        let _ = self.shared.commit();
    }
}

impl Drop for MailLedger {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder makes one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

#[cfg(test)]
mod full_tests;

#[cfg(test)]
mod kept_tests;
