//! The stream `mailstore` at work: entries become durable in the spool, and rows of the table a little later.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{
    AppendError, Batch, Body, Consumer, Entry, Lsn, Published, Released, ReplayError, Replayed, Spool, StreamError,
    StreamId,
};

use crate::entry::{MailEntry, STREAM};
use crate::table::{
    Applier, FixedMessage, MailboxHead, MetaError, MetaTable, RowChanges, StateMessage, StoreNumbers, TableName,
    key_of, rows_of, second_of,
};

/// The table is brought up to the stream at least this often.
const COMMIT_EVERY: Duration = Duration::from_secs(30);
/// And once so many bytes of entries wait for it.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Memory of an entry beside its payload.
const ENTRY_BYTES: usize = 128;

/// The mailboxes of a server: the table, and the stream that it is the snapshot of.
///
/// Entries that [`append`](Self::append) has acknowledged survive a power cut. The table follows: entries that it lacks are kept in memory, and in the spool.
#[derive(Debug)]
pub struct MailLedger {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    spool: Arc<dyn Spool>,
    stream: StreamId,
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

/// Entries that the table may lack, in the order of their LSNs. It holds no spool, which holds it.
#[derive(Default)]
struct Waiting {
    state: Mutex<WaitingState>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingState {
    entries: Vec<(u64, Bytes)>,
    bytes: usize,
    /// All entries of batches up to this LSN are there.
    complete: u64,
    is_advance_wanted: bool,
    is_ending: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, WaitingState> {
        // The ring's thread takes it: a bug of ours must not end it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a reason for a commit; `false` at the end.
    fn wait(&self) -> bool {
        let due = Instant::now() + COMMIT_EVERY;
        let mut state = self.lock();
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if state.is_ending {
                return false;
            }
            let is_due = left.is_zero() || state.bytes >= WAITING_BYTES_MAX || state.is_advance_wanted;
            if is_due {
                state.is_advance_wanted = false;
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Consumer for Waiting {
    fn published(&self, entry: Published) {
        let mut state = self.lock();
        state.bytes += entry.payload.len() + ENTRY_BYTES;
        state.entries.push((entry.lsn.get(), entry.payload));
        if state.bytes >= WAITING_BYTES_MAX {
            self.changed.notify_all();
        }
    }

    fn advance_wanted(&self, _: Lsn) {
        self.lock().is_advance_wanted = true;
        self.changed.notify_all();
    }
}

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
    /// The thread that commits could not be started.
    #[error("a thread for the table of mailboxes: {0}")]
    Thread(std::io::Error),
}

/// The findings of an opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerReport {
    /// Entries that the table lacked.
    pub replayed: usize,
    /// Batches that cannot be read any more.
    pub damaged: Vec<Lsn>,
    /// The last LSN of the table and the stream's position beyond it: a commit of the table was lost, and with it what lies between.
    pub lost: Option<(u64, u64)>,
    /// Batches that a later version has written.
    pub unknown: Vec<u64>,
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
    /// Opens the table in `dir`, reads what it lacks from the spool, and makes an entry *opening* durable.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn open(
        spool: Arc<dyn Spool>,
        dir: &Path,
        host: &str,
        nonce: u32,
    ) -> Result<(Self, LedgerReport), LedgerError> {
        let table = MetaTable::open(dir)?;
        let stream = spool.stream(STREAM)?;
        let applied = StoreNumbers::read(&table.reader()?)?.applied;
        let mut report = LedgerReport::default();
        let position = spool.position(stream).0.get();
        report.lost = (applied < position).then_some((applied, position));
        let waiting = Arc::<Waiting>::default();
        let shared = Shared { spool, stream, table, waiting, committing: Mutex::default() };
        let shown = shared.replay(applied, &mut report)?;
        shared.spool.attach(stream, shown, Arc::clone(&shared.waiting) as _)?;
        let mut ledger = Self { shared: Arc::new(shared), thread: None };
        ledger.append(&[MailEntry::Opening { nonce, host: Bytes::copy_from_slice(host.as_bytes()) }])?;
        let shared = Arc::clone(&ledger.shared);
        let thread = std::thread::Builder::new().name("mailstore".to_owned());
        ledger.thread = Some(thread.spawn(move || shared.run()).map_err(LedgerError::Thread)?);
        Ok((ledger, report))
    }

    /// Makes entries durable, all or none, and returns the LSN of their batch. Blocks for a sync of the spool.
    ///
    /// # Errors
    /// [`LedgerError::Append`].
    pub fn append(&self, entries: &[MailEntry]) -> Result<u64, LedgerError> {
        let Shared { spool, stream, .. } = &*self.shared;
        let entry = |entry: &MailEntry| Entry { stream: *stream, needs_body: false, payload: entry.encode() };
        let (done, outcome) = sync_channel(1);
        let batch = Batch { entries: entries.iter().map(entry).collect(), body: Body::None };
        // There is room for the one answer, and nobody else sends.
        spool.append(batch, Box::new(move |result| drop(done.send(result))));
        let lsn = outcome.recv().expect("`then` is called exactly once")?.get();
        let mut state = self.shared.waiting.lock();
        state.complete = state.complete.max(lsn);
        Ok(lsn)
    }

    /// Brings the table up to what is durable now.
    ///
    /// # Errors
    /// [`LedgerError::Table`]: entries wait in memory and in the spool.
    pub fn commit(&self) -> Result<(), LedgerError> {
        Ok(self.shared.commit()?)
    }

    /// Ids that the next account and the next mailbox have.
    ///
    /// # Errors
    /// [`LedgerError::Table`].
    pub fn next_ids(&self) -> Result<(u32, u32), LedgerError> {
        self.read(|_, _, numbers| Ok((numbers.next_account, numbers.next_mailbox)))
    }

    /// A mailbox with all its messages; `None` if there is none of that id.
    ///
    /// # Errors
    /// [`LedgerError::Table`].
    pub fn mailbox(&self, id: u32) -> Result<Option<StoredMailbox>, LedgerError> {
        self.read(|reader, changes, _| {
            let rows = |table| rows_of(reader, changes, table, &key_of(id));
            let head = rows(TableName::Mailboxes)?.into_values().find_map(|value| MailboxHead::decode(&value));
            let Some(head) = head.filter(|head| head.account != 0) else { return Ok(None) };
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
            Ok(Some(StoredMailbox {
                head,
                messages: fixed.filter_map(message).collect(),
                keywords: keywords.collect(),
            }))
        })
    }

    /// Reads the table with the entries that it lacks.
    fn read<T>(
        &self,
        read: impl FnOnce(&crate::table::TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
    ) -> Result<T, LedgerError> {
        // Entries first: those that a commit takes meanwhile are applied twice, and none is missed.
        let entries = self.shared.waiting.lock().entries.clone();
        let reader = self.shared.table.reader()?;
        let mut unknown = Vec::new();
        let (changes, numbers) = applied(&reader, &entries, &mut unknown)?;
        Ok(read(&reader, &changes, numbers)?)
    }
}

impl Drop for MailLedger {
    fn drop(&mut self) {
        let Shared { spool, stream, waiting, .. } = &*self.shared;
        waiting.lock().is_ending = true;
        waiting.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        spool.detach(*stream);
        // Nothing more comes, and what came was whole.
        waiting.lock().complete = u64::MAX;
        // What it cannot write is replayed.
        let _ = self.shared.commit();
    }
}

impl Shared {
    /// Collects what the table lacks. Returns the last LSN that was shown.
    fn replay(&self, applied: u64, report: &mut LedgerReport) -> Result<Lsn, LedgerError> {
        let mut failed = None;
        let shown = self.spool.replay(self.stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, payload, .. } if lsn.get() > applied => {
                report.replayed += 1;
                if MailEntry::decode(payload).is_none() {
                    report.unknown.push(lsn.get());
                }
                let mut state = self.waiting.lock();
                state.complete = lsn.get() - 1;
                let is_much = state.bytes >= WAITING_BYTES_MAX;
                drop(state);
                if is_much && failed.is_none() {
                    failed = self.commit_rows().err();
                }
                let mut state = self.waiting.lock();
                state.bytes += payload.len() + ENTRY_BYTES;
                state.entries.push((lsn.get(), payload.clone()));
            }
            Replayed::Damaged { lsn } => report.damaged.push(lsn),
            Replayed::Entry { .. } | Replayed::Uncertain { .. } => {}
        })?;
        self.waiting.lock().complete = shown.get();
        failed.map_or(Ok(shown), |error| Err(error.into()))
    }

    fn run(&self) {
        let mut is_failing = false;
        while self.waiting.wait() {
            let outcome = self.commit();
            match &outcome {
                Err(error) if !is_failing => {
                    let error = error.to_string();
                    tracing::error!(error, "the table of mailboxes cannot be written: changes wait in the spool");
                }
                Ok(()) if is_failing => tracing::info!("the table of mailboxes is written again"),
                _ => {}
            }
            is_failing = outcome.is_err();
        }
    }

    fn commit(&self) -> Result<(), MetaError> {
        // After a failed sync on the spool's device nothing may count as durable.
        if let Some(why) = self.spool.poisoned() {
            return Err(MetaError::Disk(why.to_string()));
        }
        let Some(applied) = self.commit_rows()? else { return Ok(()) };
        self.spool.advance(self.stream, Lsn::new(applied), None, Released::default());
        Ok(())
    }

    /// Commits what waits now; `None` if nothing does.
    fn commit_rows(&self) -> Result<Option<u64>, MetaError> {
        let _one = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        // The ring's thread may be handing over the entries of the last batch one by one.
        let before_last = self.spool.stats().published.get().saturating_sub(1);
        let entries = {
            let state = self.waiting.lock();
            let complete = state.complete.max(before_last);
            state.entries[..state.entries.partition_point(|(lsn, _)| *lsn <= complete)].to_vec()
        };
        let Some((last, _)) = entries.last() else { return Ok(None) };
        let reader = self.table.reader()?;
        let mut unknown = Vec::new();
        let (changes, _) = applied(&reader, &entries, &mut unknown)?;
        drop(reader);
        if let Some(lsn) = unknown.first() {
            tracing::error!(batch = lsn, "an entry of mailboxes that a later version wrote is passed over");
        }
        self.table.commit(&changes)?;
        let mut state = self.waiting.lock();
        state.entries.drain(..entries.len());
        state.bytes -= entries.iter().map(|(_, payload)| payload.len() + ENTRY_BYTES).sum::<usize>();
        Ok(Some(*last))
    }
}

/// The changes that entries make.
fn applied(
    reader: &crate::table::TableReader,
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
