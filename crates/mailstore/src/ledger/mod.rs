//! The stream `mailstore` at work: entries become durable in the spool, and rows of the table a little later.

mod opening;
mod skip_file;
mod waiting;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use posthaste_consumer::{AttachedStream, StreamHandle};
use posthaste_spool::{AppendError, Damage, Lsn, Released, ReplayError, Spool, StreamError};
use posthaste_units::BackOff;

use self::opening::Beginning;
pub use self::opening::{LedgerReport, applied_in};
use self::waiting::{ENTRY_BYTES, REFUSED_BYTES, WAITING_BYTES_MAX, Waiting};
use crate::entry::{EntryKind, MailEntry};
use crate::table::{
    AccountRow, Applier, FixedMessage, MailboxHead, MetaError, MetaTable, NameRow, RowChanges, StateMessage,
    StoreNumbers, TableName, TableReader, key_of, rows_of, second_of,
};

/// The mailboxes of a server: the table, and the stream that it is the snapshot of.
///
/// Entries that [`append`](Self::append) has acknowledged survive a power cut. The table follows: entries that it lacks are kept in memory, and in the spool.
#[derive(Debug)]
pub struct MailLedger {
    shared: Arc<Shared>,
    attached: AttachedStream,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The UID lock: the next UID to give, by mailbox, of those that were followed in this opening. Held until the append returns, so UIDs are in the order of LSNs.
    uids: Mutex<HashMap<u32, u32>>,
    /// The entry *opening*, until it is durable. It comes before all others of this opening.
    opening: Mutex<Option<MailEntry>>,
    /// The table's `skip` in this opening.
    skip: u32,
    next_account: AtomicU32,
    next_mailbox: AtomicU32,
}

struct Shared {
    stream: StreamHandle,
    table: MetaTable,
    waiting: Arc<Waiting>,
    /// Held by the one commit at work.
    committing: Mutex<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// After a commit that failed.
const RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Why the mailboxes cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The table.
    #[error(transparent)]
    Table(#[from] MetaError),
    /// The stream could not be registered.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream could not be read.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The batch was refused: nothing has changed.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The table cannot be written for long, and no more changes are kept in memory.
    #[error("too many changes wait for the table of mailboxes")]
    TooMuchWaits,
    /// The mailbox has given all its UIDs.
    #[error("the mailbox has no UIDs left")]
    OutOfUids,
    /// The file beside the table that counts losses.
    #[error("the file of skipped UIDs: {0}")]
    SkipFile(std::io::Error),
    /// The thread that commits could not be started.
    #[error("a thread for the table of mailboxes: {0}")]
    Thread(std::io::Error),
}

/// A mailbox as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMailbox {
    /// Its numbers.
    pub head: MailboxHead,
    /// Messages by UID, with the names of their files. One whose row is damaged is missing.
    pub messages: BTreeMap<u32, StoredMessage>,
    /// Keywords by bit.
    pub keywords: BTreeMap<u8, Bytes>,
}

/// A message as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Facts that never change.
    pub fixed: FixedMessage,
    /// Facts that change.
    pub state: StateMessage,
    /// Its file's name, where it does not follow from the row.
    pub name: Option<Bytes>,
}

impl MailLedger {
    /// Opens the table in `dir`, and reads what it lacks from the spool. `damage`: of the spool, as its opening reported it. UIDs that damage or a lost commit may have
    /// taken are left out from now on.
    ///
    /// A spool that takes nothing now is no error: the entry *opening* becomes durable before the first change.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn open(
        spool: Arc<dyn Spool>,
        damage: &[Damage],
        dir: &Path,
        host: &str,
        nonce: u32,
    ) -> Result<(Self, LedgerReport), LedgerError> {
        Self::open_bounded(spool, damage, dir, (host, nonce), WAITING_BYTES_MAX)
    }

    fn open_bounded(
        spool: Arc<dyn Spool>,
        damage: &[Damage],
        dir: &Path,
        (host, nonce): (&str, u32),
        bytes_max: usize,
    ) -> Result<(Self, LedgerReport), LedgerError> {
        let table = MetaTable::open(dir)?;
        let beginning = Beginning::new(spool, &table)?;
        let (stream, waiting) = (beginning.stream.clone(), Arc::<Waiting>::default());
        let shared = Arc::new(Shared { stream, table, waiting, committing: Mutex::default() });
        let mut report = LedgerReport::default();
        let replayed = shared.restore(dir, &beginning, damage, bytes_max, &mut report)?;
        let numbers = read_with(&shared, |state| state.of(|_| true), |_, _, numbers| Ok(numbers))?;
        let attached = replayed.attach(Arc::clone(&shared.waiting) as _)?;
        let ledger = Self {
            shared: Arc::clone(&shared),
            attached,
            thread: Mutex::default(),
            uids: Mutex::default(),
            opening: Mutex::new(Some(MailEntry::Opening { nonce, host: Bytes::copy_from_slice(host.as_bytes()) })),
            skip: numbers.skip,
            next_account: AtomicU32::new(numbers.next_account),
            next_mailbox: AtomicU32::new(numbers.next_mailbox),
        };
        if let Err(error) = ledger.begin() {
            let error = error.to_string();
            tracing::warn!(error, "mailboxes can be read and not changed: the spool takes nothing now");
        }
        let thread = std::thread::Builder::new().name("mailstore".to_owned());
        *lock(&ledger.thread) = Some(thread.spawn(move || shared.run()).map_err(LedgerError::Thread)?);
        Ok((ledger, report))
    }

    /// Makes the entry *opening* durable, if it is not yet.
    fn begin(&self) -> Result<(), LedgerError> {
        let mut opening = lock(&self.opening);
        if let Some(entry) = &*opening {
            self.finish_append(&self.begin_append(std::slice::from_ref(entry)))?;
            *opening = None;
        }
        Ok(())
    }

    /// Refuses changes before the entry *opening* is durable, and while too much waits for the table.
    fn check_open(&self) -> Result<(), LedgerError> {
        if self.shared.waiting.lock().bytes >= REFUSED_BYTES {
            return Err(LedgerError::TooMuchWaits);
        }
        self.begin()
    }

    /// Times that UIDs were left out since the table was made. A mailbox whose UIDs another server gave, or an earlier table, leaves out as many.
    pub(crate) fn skip(&self) -> u32 {
        self.skip
    }

    /// Makes entries durable, all or none, and returns the LSN of their batch. Blocks for a sync of the spool.
    ///
    /// # Errors
    /// [`LedgerError::Append`], [`LedgerError::TooMuchWaits`].
    pub fn append(&self, entries: &[MailEntry]) -> Result<u64, LedgerError> {
        self.check_open()?;
        let outcome = self.begin_append(entries);
        self.finish_append(&outcome)
    }

    /// As [`append`](Self::append), of entries that give a mailbox's next UIDs, `count` of them, from the one that `entries` gets.
    ///
    /// # Errors
    /// [`LedgerError::Append`], [`LedgerError::TooMuchWaits`], [`LedgerError::OutOfUids`]: nothing is appended.
    ///
    /// # Panics
    /// If nobody has followed the mailbox.
    pub fn append_uids(
        &self,
        mailbox: u32,
        count: u32,
        entries: impl FnOnce(u32) -> Vec<MailEntry>,
    ) -> Result<u64, LedgerError> {
        self.check_open()?;
        let outcome = {
            let mut uids = lock(&self.uids);
            let next = uids.get_mut(&mailbox).expect("the mailbox was followed");
            let first = *next;
            // The last number stays free, so that there always is a next UID to tell.
            *next = first.checked_add(count).ok_or(LedgerError::OutOfUids)?;
            let outcome = self.begin_append(&entries(first));
            match outcome.try_recv() {
                // Nobody has a later one: the lock is held.
                Ok(Err(error)) => {
                    *next = first;
                    return Err(error.into());
                }
                Ok(Ok(lsn)) => return Ok(self.appended(lsn)),
                Err(_) => outcome,
            }
        };
        self.finish_append(&outcome)
    }

    fn begin_append(&self, entries: &[MailEntry]) -> Receiver<Result<Lsn, AppendError>> {
        let (done, outcome) = sync_channel(1);
        // There is room for the one answer, and nobody else sends.
        self.shared.stream.append(entries.iter().map(MailEntry::encode), move |result| drop(done.send(result)));
        outcome
    }

    fn finish_append(&self, outcome: &Receiver<Result<Lsn, AppendError>>) -> Result<u64, LedgerError> {
        Ok(self.appended(outcome.recv().expect("`then` is called exactly once")?))
    }

    /// The consumer has seen all entries of a batch before its outcome is told.
    fn appended(&self, lsn: Lsn) -> u64 {
        let mut state = self.shared.waiting.lock();
        state.complete = state.complete.max(lsn.get());
        lsn.get()
    }

    /// An id that no account had.
    pub fn new_account(&self) -> u32 {
        self.next_account.fetch_add(1, Ordering::Relaxed)
    }

    /// An id that no mailbox had.
    pub fn new_mailbox(&self) -> u32 {
        self.next_mailbox.fetch_add(1, Ordering::Relaxed)
    }

    /// Brings the table up to what is durable now.
    ///
    /// # Errors
    /// [`LedgerError::Table`]: entries wait in memory and in the spool.
    pub fn commit(&self) -> Result<(), LedgerError> {
        Ok(self.shared.commit()?)
    }

    /// All accounts by id.
    ///
    /// # Errors
    /// [`LedgerError::Table`].
    pub fn accounts(&self) -> Result<BTreeMap<u32, AccountRow>, LedgerError> {
        let is_wanted = |kind| kind == EntryKind::Other;
        self.read(is_wanted, |reader, changes, _| {
            let rows = rows_of(reader, changes, TableName::Accounts, &[])?.into_iter();
            let account = |(key, value): (Vec<u8>, Vec<u8>)| {
                Some((u32::from_be_bytes(key[..].try_into().ok()?), AccountRow::decode(&value)?))
            };
            Ok(rows.filter_map(account).filter(|(_, row)| !row.is_gone).collect())
        })
    }

    /// The highest UIDVALIDITY that an account has given, and its names with what each stands for.
    ///
    /// # Errors
    /// [`LedgerError::Table`].
    pub fn names(&self, account: u32) -> Result<(u32, BTreeMap<Bytes, NameRow>), LedgerError> {
        let is_wanted = |kind| matches!(kind, EntryKind::Other | EntryKind::Mailbox(_));
        self.read(is_wanted, |reader, changes, _| {
            let rows = rows_of(reader, changes, TableName::Names, &key_of(account))?.into_iter();
            let name = |(key, value): (Vec<u8>, Vec<u8>)| {
                Some((Bytes::copy_from_slice(key.get(4..)?), NameRow::decode(&value)?))
            };
            let row = rows_of(reader, changes, TableName::Accounts, &key_of(account))?.into_values().next();
            let row = row.and_then(|value| AccountRow::decode(&value)).unwrap_or_default();
            Ok((row.last_validity, rows.filter_map(name).collect()))
        })
    }

    /// A mailbox as it is now, whose later entries [`take_tail`](Self::take_tail) gives from here on, in their order; `None` if there is none of that id.
    ///
    /// # Errors
    /// [`LedgerError::Table`].
    pub fn follow(&self, mailbox: u32) -> Result<Option<StoredMailbox>, LedgerError> {
        let found = self.read_with(
            |state| {
                state.follow(mailbox);
                state.of(|kind| kind.mailbox() == Some(mailbox))
            },
            |reader, changes, numbers| stored(reader, changes, numbers, mailbox),
        );
        match &found {
            // If somebody has given UIDs since, they are in the map already.
            Ok(Some(stored)) => drop(lock(&self.uids).entry(mailbox).or_insert(stored.head.next_uid)),
            _ => self.unfollow(mailbox),
        }
        found
    }

    /// Entries of a mailbox since the last call; `None` if they were too many: then the mailbox is to be followed anew.
    pub fn take_tail(&self, mailbox: u32) -> Option<Vec<(u64, Bytes)>> {
        self.shared.waiting.lock().take_tail(mailbox)
    }

    /// Keeps no entries of a mailbox any more.
    pub fn unfollow(&self, mailbox: u32) {
        self.shared.waiting.lock().unfollow(mailbox);
    }

    /// A mailbox with all its messages; `None` if there is none of that id.
    ///
    /// # Errors
    /// [`LedgerError::Table`].
    pub fn mailbox(&self, id: u32) -> Result<Option<StoredMailbox>, LedgerError> {
        self.read(|kind| kind.mailbox() == Some(id), |reader, changes, numbers| stored(reader, changes, numbers, id))
    }

    /// Reads the table with those of the entries that it lacks which are wanted.
    fn read<T>(
        &self,
        is_wanted: impl Fn(EntryKind) -> bool,
        read: impl FnOnce(&TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
    ) -> Result<T, LedgerError> {
        self.read_with(|state| state.of(is_wanted), read)
    }

    fn read_with<T>(
        &self,
        entries: impl FnOnce(&mut waiting::WaitingState) -> Vec<(u64, Bytes)>,
        read: impl FnOnce(&TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
    ) -> Result<T, LedgerError> {
        read_with(&self.shared, entries, read)
    }

    /// Commits, and shows the stream nothing more. What comes later is in the spool, and the next opening finds it there.
    pub fn end(&self) {
        let waiting = &self.shared.waiting;
        if waiting.end() {
            return;
        }
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
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

/// A mailbox of the table, with the changes that it lacks.
fn stored(
    reader: &TableReader,
    changes: &RowChanges,
    numbers: StoreNumbers,
    id: u32,
) -> Result<Option<StoredMailbox>, MetaError> {
    let rows = |table| rows_of(reader, changes, table, &key_of(id));
    let head = rows(TableName::Mailboxes)?.into_values().find_map(|value| MailboxHead::decode(&value));
    let Some(mut head) = head.filter(|head| head.account != 0) else { return Ok(None) };
    head.skip_to(&numbers);
    let row = |(key, value): (Vec<u8>, Vec<u8>)| Some((second_of(&key)?, value));
    let names: BTreeMap<u32, Vec<u8>> = rows(TableName::Foreign)?.into_iter().filter_map(row).collect();
    let state = rows(TableName::State)?.into_iter().filter_map(row);
    let state = state.filter_map(|(first, value)| crate::table::state_row(&value, first)).flatten();
    let state: BTreeMap<u32, StateMessage> = state.map(|message| (message.uid, message)).collect();
    let fixed = rows(TableName::Fixed)?.into_iter().filter_map(row);
    let fixed = fixed.filter_map(|(first, value)| crate::table::fixed_row(&value, first)).flatten();
    let message = |fixed: FixedMessage| {
        let name = names.get(&fixed.uid).map(|name| Bytes::copy_from_slice(name));
        Some((fixed.uid, StoredMessage { fixed, state: *state.get(&fixed.uid)?, name }))
    };
    let keywords = rows(TableName::Keywords)?.into_iter();
    let keywords = keywords.filter_map(|(key, name)| Some((*key.get(4)?, Bytes::from(name))));
    Ok(Some(StoredMailbox { head, messages: fixed.filter_map(message).collect(), keywords: keywords.collect() }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder makes one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn run(&self) {
        let (mut back_off, mut pause) = (RETRY, None);
        while self.waiting.wait(pause) {
            let outcome = self.commit();
            match &outcome {
                Err(error) if pause.is_none() => {
                    let error = error.to_string();
                    tracing::error!(error, "the table of mailboxes cannot be written: changes wait in the spool");
                }
                Ok(()) if pause.is_some() => tracing::info!("the table of mailboxes is written again"),
                _ => {}
            }
            if outcome.is_ok() {
                back_off.succeeded();
            }
            pause = outcome.is_err().then(|| back_off.failed());
        }
    }

    fn commit(&self) -> Result<(), MetaError> {
        // After a failed sync on the spool's device nothing may count as durable.
        if let Some(why) = self.stream.spool().poisoned() {
            return Err(MetaError::Disk(why.to_string()));
        }
        // The ring's thread may be handing over the entries of the last batch one by one.
        let before_last = self.stream.spool().stats().published.get().saturating_sub(1);
        let complete = self.waiting.lock().complete.max(before_last);
        let Some(applied) = self.commit_rows(complete, |_, _| ())? else { return Ok(()) };
        self.stream.advance(Lsn::new(applied), None, Released::default());
        Ok(())
    }

    /// Commits what waits of batches up to `complete`, which must be whole, and what `also` changes. Returns the last batch, if there was one.
    fn commit_rows(
        &self,
        complete: u64,
        also: impl FnOnce(&mut StoreNumbers, &mut RowChanges),
    ) -> Result<Option<u64>, MetaError> {
        let _one = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = self.waiting.lock().up_to(complete);
        let last = entries.last().map(|(lsn, _)| *lsn);
        let reader = self.table.reader()?;
        let mut unknown = Vec::new();
        let (mut changes, mut numbers) = applied(&reader, &entries, &mut unknown)?;
        drop(reader);
        also(&mut numbers, &mut changes);
        numbers.put(&mut changes);
        if let Some(lsn) = unknown.first() {
            tracing::error!(batch = lsn, "an entry of mailboxes that a later version wrote is passed over");
        }
        self.table.commit(&changes)?;
        let mut state = self.waiting.lock();
        state.entries.drain(..entries.len());
        state.bytes -= entries.iter().map(|(_, payload)| payload.len() + ENTRY_BYTES).sum::<usize>();
        Ok(last)
    }
}

/// Reads the table with those of the entries that it lacks which `entries` takes.
fn read_with<T>(
    shared: &Shared,
    entries: impl FnOnce(&mut waiting::WaitingState) -> Vec<(u64, Bytes)>,
    read: impl FnOnce(&TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
) -> Result<T, LedgerError> {
    // Entries first: those that a commit takes meanwhile are applied twice, and none is missed.
    let entries = entries(&mut shared.waiting.lock());
    let reader = shared.table.reader()?;
    let mut unknown = Vec::new();
    let (changes, numbers) = applied(&reader, &entries, &mut unknown)?;
    Ok(read(&reader, &changes, numbers)?)
}

/// The changes that entries make.
fn applied(
    reader: &TableReader,
    entries: &[(u64, Bytes)],
    unknown: &mut Vec<u64>,
) -> Result<(RowChanges, StoreNumbers), MetaError> {
    let mut applier = Applier::new(reader)?;
    for (lsn, payload) in entries {
        match MailEntry::decode(payload) {
            Some(entry) => applier.apply(*lsn, &entry)?,
            None => unknown.push(*lsn),
        }
    }
    unknown.append(&mut applier.unknown);
    let numbers = applier.numbers;
    Ok((applier.finish()?, numbers))
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
