//! The handle: append, settle, read, checkpoint.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::layout::{BLOCK, Checkpoint, KIND_BARRIER, KIND_CHECKPOINT, KIND_OPEN, KIND_USER, record_span};
use crate::pool::{Found, Need, Pool};
use crate::recovery::{Damage, InService, Live, Note, read_all};
use crate::storage::{FileStorage, Storage};
use crate::writer::{Pending, Writer};

/// Names a record for as long as it is live: the sequence number under which it was first appended.
pub type RecordId = u64;

/// Sizes and bounds. Every field can be changed from one opening to the next.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes of a segment file. Records are at most this long, less about 4 KiB.
    pub segment_bytes: u64,
    /// Segment files at most; when all hold live records, appends fail with [`AppendError::Full`].
    pub max_segments: usize,
    /// Records in one commit at most.
    pub max_batch: usize,
    /// How long a commit may wait for company. Zero: it starts at once, and what arrives meanwhile forms the next.
    pub max_wait: Duration,
    /// Bytes that may wait for a commit; beyond, appends fail with [`AppendError::Busy`].
    pub max_pending_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            segment_bytes: 64 << 20,
            max_segments: 64,
            max_batch: 1024,
            max_wait: Duration::ZERO,
            max_pending_bytes: 256 << 20,
        }
    }
}

/// Why an append was refused. In every case nothing of the record will be found by a later recovery, except after
/// [`AppendError::Poisoned`], when it may or may not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// No space for it now, and nothing was written. A checkpoint or the operator may make some: reply 452.
    #[error("no space in the journal: {0}")]
    Full(Arc<str>),
    /// An earlier write or sync failed; nothing is accepted until the journal is opened again.
    #[error("the journal is closed to writing after a failure: {0}")]
    Poisoned(Arc<str>),
    /// Longer than a segment can hold; keep the bytes in a file of their own.
    #[error("a record of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Payload bytes of the record.
        bytes: usize,
        /// Payload bytes that fit.
        limit: usize,
    },
    /// More bytes wait than [`Config::max_pending_bytes`]: come back when some are written.
    #[error("too many bytes wait to be written")]
    Busy,
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// Why a journal could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("the journal is in use by another process")]
    Locked,
    /// The file system failed; the journal is unchanged.
    #[error("cannot open the journal: {0}")]
    Io(#[from] io::Error),
}

/// Why a record could not be read back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No live record has this id.
    #[error("record {0} is not in the journal")]
    NotFound(RecordId),
    /// The disk failed, or gave back other bytes than were written.
    #[error("cannot read record {0}: {1}")]
    Io(RecordId, io::Error),
}

/// Why a checkpoint freed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The caller could not make durable what the checkpoint would have covered.
    #[error("what the checkpoint covers could not be made durable: {error}")]
    MakeDurable {
        /// What went wrong.
        error: io::Error,
        /// The records that had been settled since the last checkpoint that succeeded, up to the moment of the failure. They
        /// are live again: what they led to may be damaged and has to be looked at, made anew and settled once more.
        records: Vec<RecordId>,
    },
    /// The journal itself could not write it.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// What a checkpoint did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointStats {
    /// Everything up to this sequence number is finished or listed as live.
    pub through: u64,
    /// Segments that can be used again.
    pub recycled: usize,
    /// Live records that were copied out of them first.
    pub copied: usize,
    /// Live records that remain.
    pub live: usize,
}

/// What opening found.
#[derive(Debug)]
pub struct Recovery {
    /// Live records in the order in which they were first appended.
    pub records: Vec<Recovered>,
    /// Notes appended since the last checkpoint, in order.
    pub notes: Vec<Note>,
    /// Damaged places. Those that are not `promised` are what a power cut leaves of an unfinished write.
    pub damage: Vec<Damage>,
    /// Bytes of segments that were read.
    pub bytes_read: u64,
    /// The number of this opening; grows with each.
    pub epoch: u64,
}

/// A live record found by opening; [`Journal::read`] has its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Its id.
    pub id: RecordId,
    /// Its kind, as given to [`Journal::append`].
    pub kind: u8,
    /// Payload bytes.
    pub len: u32,
}

/// An open journal. Clones share it; when the last one is dropped, what was appended is written and the files are closed.
#[derive(Clone)]
pub struct Journal {
    threads: Arc<Threads>,
}

/// Resolves when the record is durable: `Ok` carries its id, and from then on a power cut cannot lose it.
pub struct Append(Arc<Slot>);

impl Append {
    /// Blocks the thread until the record is durable or refused.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn wait(self) -> Result<RecordId, AppendError> {
        let mut state = self.0.state.lock().expect("slot lock");
        loop {
            match &state.outcome {
                Some(outcome) => return outcome.clone(),
                None => state = self.0.filled.wait(state).expect("slot lock"),
            }
        }
    }
}

impl Future for Append {
    type Output = Result<RecordId, AppendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock().expect("slot lock");
        match &state.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Where an outcome is put for whoever waits, be it a task or a thread.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    filled: Condvar,
}

#[derive(Default)]
struct SlotState {
    outcome: Option<Result<RecordId, AppendError>>,
    waker: Option<Waker>,
}

/// Fills a slot; with [`AppendError::Closed`] if it is dropped before it was told anything.
struct Fill(Arc<Slot>);

impl Fill {
    fn with(self, outcome: Result<RecordId, AppendError>) {
        self.put(outcome);
    }

    fn put(&self, outcome: Result<RecordId, AppendError>) {
        let mut state = self.0.state.lock().expect("slot lock");
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
            self.0.filled.notify_all();
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.put(Err(AppendError::Closed));
    }
}

impl Journal {
    /// Opens the journal in `dir`, creating it if there is none, and recovers what a crash left.
    ///
    /// Reads only the segments behind the last checkpoint. Starts a new epoch, durable before this returns.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if another process has it; [`OpenError::Io`] if the file system fails.
    pub fn open(dir: &Path, config: Config) -> Result<(Self, Recovery), OpenError> {
        let storage = FileStorage::open(dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => OpenError::Locked,
            _ => OpenError::Io(error),
        })?;
        Self::open_on(Arc::new(storage), config)
    }

    /// As [`Journal::open`], on any storage.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_on(storage: Arc<dyn Storage>, config: Config) -> Result<(Self, Recovery), OpenError> {
        let contents = read_all(&*storage)?;
        // After a kill the records may still lie in the page cache alone. What is handed out now will be acted on, so
        // it must not be lost afterwards.
        for entry in contents.segments.values() {
            entry.segment.file.sync()?;
        }
        let epoch = contents.max_epoch + 1;
        let (free, unusable): (Vec<_>, Vec<_>) = contents.free.into_iter().partition(|name| {
            storage.open(name).and_then(|file| file.len()).is_ok_and(|len| len == config.segment_bytes)
        });
        // Of another size, or cut off while it was filled.
        unusable.iter().try_for_each(|name| storage.remove(name))?;
        let found = Found {
            total: contents.names.len() - unusable.len(),
            free,
            next_number: contents.max_number + 1,
            next_file: next_file(&contents.names),
        };
        let pool = Pool::new(storage, (config.segment_bytes, config.max_segments), epoch, found);
        let mut records: Vec<Recovered> =
            contents.live.iter().map(|(&id, live)| Recovered { id, kind: live.kind, len: live.len }).collect();
        records.sort_by_key(|record| record.id);
        let recovery = Recovery {
            records,
            notes: contents.notes,
            damage: contents.damage,
            bytes_read: contents.bytes_read,
            epoch,
        };
        let current = pool.take(Need::Checkpoint)?;
        // A record that was written but torn away may have had a number above any that was found.
        let next_seq = contents.max_seq + 1 + SEQ_GAP;
        let state =
            State { live: contents.live, settled: HashMap::new(), segments: contents.segments, last_seq: next_seq - 1 };
        let shared = Arc::new(Shared {
            config,
            pool,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            state: Mutex::new(state),
            poison: OnceLock::new(),
            stats: Stats::default(),
            segment_wanted: (Mutex::new(false), Condvar::new()),
            closed: AtomicBool::new(false),
            checkpointing: Mutex::new(()),
        });
        let writer = Writer::new(shared.clone(), current, next_seq)?;
        let journal = Journal { threads: Arc::new(Threads::start(shared, writer)?) };
        journal
            .submit(Pending::new(KIND_OPEN, vec![Bytes::copy_from_slice(&epoch.to_le_bytes())]))
            .wait()
            .map_err(|error| io::Error::other(error.to_string()))?;
        Ok((journal, recovery))
    }

    /// Appends a record. The future resolves once it is on stable storage; the record is queued even if the future is
    /// dropped. The bytes of `parts` are written from where they are. `kind` is at least [`KIND_USER`].
    ///
    /// # Errors
    /// See [`AppendError`]; on all of them but `Poisoned` nothing was written.
    pub fn append(&self, kind: u8, parts: Vec<Bytes>) -> Append {
        assert!(kind >= KIND_USER, "kind {kind} is the journal's own");
        self.submit(Pending::new(kind, parts))
    }

    /// As [`Journal::append`], and calls `then` with the outcome on the journal's own thread, in the order of the log and
    /// whether or not anybody still waits. `then` must be quick and must not block: everybody's commits wait for it.
    pub fn append_then(
        &self,
        kind: u8,
        parts: Vec<Bytes>,
        then: impl FnOnce(Result<RecordId, AppendError>) + Send + 'static,
    ) {
        assert!(kind >= KIND_USER, "kind {kind} is the journal's own");
        let pending = Pending { done: Some(Box::new(then)), ..Pending::new(kind, parts) };
        if let Err((pending, error)) = self.shared().push(pending) {
            pending.fail(&error);
        }
    }

    /// Waits until everything that was appended before this call is durable or refused. Blocks.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn flush(&self) -> Result<(), AppendError> {
        self.submit(Pending::new(KIND_BARRIER, Vec::new())).wait().map(drop)
    }

    /// Appends a new version of a live record under its old id: recovery will find this one alone.
    ///
    /// Not to be called for the same id from several places at once.
    ///
    /// # Errors
    /// As [`Journal::append`], and [`AppendError::Closed`] when no live record has this id.
    pub fn replace(&self, id: RecordId, kind: u8, parts: Vec<Bytes>) -> Append {
        assert!(kind >= KIND_USER, "kind {kind} is the journal's own");
        let Some(version) = self.shared().state().live.get(&id).map(|live| live.version + 1) else {
            return Append(Arc::new(Slot {
                state: Mutex::new(SlotState { outcome: Some(Err(AppendError::Closed)), waker: None }),
                ..Slot::default()
            }));
        };
        self.submit(Pending { id: Some(id), version, ..Pending::new(kind, parts) })
    }

    /// Appends a note, which nobody waits for: it is written with the next commit and is found after a crash of the
    /// process, but perhaps not after a power cut. A checkpoint forgets it.
    pub fn append_note(&self, kind: u8, parts: Vec<Bytes>) {
        assert!(kind >= KIND_USER, "kind {kind} is the journal's own");
        let pending = Pending { note: true, ..Pending::new(kind, parts) };
        // A note that finds no room is one that a crash would have taken: the user has to do without it anyway.
        let _ = self.shared().push(pending);
    }

    /// Declares that what the record says has been done, visibly though perhaps not durably: the next checkpoint makes
    /// it durable, and only then is the record forgotten.
    pub fn settle(&self, id: RecordId) {
        let mut state = self.shared().state();
        if let Some(live) = state.live.remove(&id) {
            state.settled.insert(id, live);
        }
    }

    /// The kind and payload of a live record, from disk.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&self, id: RecordId) -> Result<(u8, Bytes), ReadError> {
        let find = || self.shared().state().live.get(&id).cloned().ok_or(ReadError::NotFound(id));
        let live = find()?;
        match live.read() {
            Ok(payload) => Ok((live.kind, payload.into())),
            // A checkpoint may have moved the record while it was read.
            Err(error) => match find()? {
                moved if moved.seq != live.seq => {
                    let payload = moved.read().map_err(|error| ReadError::Io(id, error))?;
                    Ok((moved.kind, payload.into()))
                }
                _ => Err(ReadError::Io(id, error)),
            },
        }
    }

    /// Frees the segments whose records were all settled before this call. `make_durable` must put onto stable storage
    /// whatever the settled records led to. Blocks; one checkpoint runs at a time, appends go on meanwhile.
    ///
    /// Order: note what is settled; `make_durable`; copy live records out of the segments to be freed; append the
    /// checkpoint and sync it; only then are the segments used again.
    ///
    /// # Errors
    /// See [`CheckpointError`]; a failed checkpoint frees nothing.
    pub fn checkpoint(
        &self,
        make_durable: impl FnOnce() -> io::Result<()>,
    ) -> Result<CheckpointStats, CheckpointError> {
        let shared = self.shared();
        let _one_at_a_time = shared.checkpointing.lock().expect("checkpoint lock");
        let (through, unsettled, settled) = {
            let mut state = shared.state();
            let unsettled: Vec<_> = state.live.iter().map(|(&id, live)| (id, live.clone())).collect();
            (state.last_seq, unsettled, std::mem::take(&mut state.settled))
        };
        let mut settled = SettledAgain { shared, settled };
        if let Err(error) = make_durable() {
            let mut state = shared.state();
            let mut again = std::mem::take(&mut settled.settled);
            // What was settled while it ran may be among what has failed, and the next one would not tell.
            again.extend(std::mem::take(&mut state.settled));
            let mut records: Vec<RecordId> = again.keys().copied().collect();
            state.live.extend(again);
            drop(state);
            records.sort_unstable();
            return Err(CheckpointError::MakeDurable { error, records });
        }

        let low = shared.lowest_worth_keeping(through, &unsettled);
        let mut copied = 0;
        let mut waiting = Vec::new();
        for (id, live) in unsettled.iter().filter(|(_, live)| live.segment < low) {
            // The record may have been replaced since: then the newer one is what recovery takes, wherever this goes.
            let payload = live.read().map_err(|error| AppendError::Full(error.to_string().into()))?;
            let copy = Pending::new(live.kind, vec![payload.into()]);
            waiting.push(self.submit(Pending { id: Some(*id), version: live.version, ..copy }));
            copied += 1;
            if waiting.len() == COPIES_IN_FLIGHT {
                waiting.drain(..).try_for_each(|copy| copy.wait().map(drop))?;
            }
        }
        waiting.into_iter().try_for_each(|copy| copy.wait().map(drop))?;

        let live = unsettled.len();
        let ids = unsettled.into_iter().map(|(id, _)| id).collect();
        let checkpoint = Checkpoint { through, low_segment: low, live: ids };
        self.submit(Pending::new(KIND_CHECKPOINT, vec![checkpoint.encode().into()])).wait()?;
        settled.settled.clear();
        let freed = {
            let mut state = shared.state();
            let kept = state.segments.split_off(&low);
            std::mem::replace(&mut state.segments, kept)
        };
        let recycled = freed.len();
        freed.into_values().for_each(|entry| shared.pool.give_back(entry.segment));
        shared.want_segment();
        Ok(CheckpointStats { through, recycled, copied, live })
    }

    /// Counters since opening.
    pub fn stats(&self) -> StatsSnapshot {
        let shared = self.shared();
        let (live_records, segments_in_service) = {
            let state = shared.state();
            (state.live.len(), state.segments.len())
        };
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatsSnapshot {
            records: of(&shared.stats.records),
            bytes: of(&shared.stats.bytes),
            commits: of(&shared.stats.commits),
            syncs: of(&shared.stats.syncs),
            sync_ns: of(&shared.stats.sync_ns),
            sync_ns_max: of(&shared.stats.sync_ns_max),
            live_records,
            segments_in_service,
            segments: shared.pool.total(),
        }
    }

    /// Why the journal takes no more records, if it does not.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.shared().poison()
    }

    /// Closes the journal to appends after the failure that `why` tells: nothing is acknowledged any more.
    pub fn poison(&self, why: &str) {
        self.shared().poison_with(why.to_owned());
    }

    /// Payload bytes of the largest record that fits.
    pub fn max_record_bytes(&self) -> usize {
        self.shared().max_record_bytes()
    }

    fn submit(&self, pending: Pending) -> Append {
        let slot = Arc::new(Slot::default());
        let fill = Fill(slot.clone());
        let pending = Pending { done: Some(Box::new(move |outcome| fill.with(outcome))), ..pending };
        if let Err((pending, error)) = self.shared().push(pending) {
            pending.fail(&error);
        }
        Append(slot)
    }

    fn shared(&self) -> &Shared {
        &self.threads.shared
    }
}

/// Counters of a journal; times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Records written, notes and the journal's own included.
    pub records: u64,
    /// Bytes of those records with their headers.
    pub bytes: u64,
    /// Commits written.
    pub commits: u64,
    /// Syncs made.
    pub syncs: u64,
    /// Time spent in them.
    pub sync_ns: u64,
    /// The longest of them.
    pub sync_ns_max: u64,
    /// Records not settled.
    pub live_records: usize,
    /// Segments that hold records.
    pub segments_in_service: usize,
    /// Segment files in all.
    pub segments: usize,
}

#[derive(Default)]
pub(crate) struct Stats {
    records: AtomicU64,
    bytes: AtomicU64,
    commits: AtomicU64,
    syncs: AtomicU64,
    sync_ns: AtomicU64,
    sync_ns_max: AtomicU64,
}

impl Stats {
    pub fn count(&self, records: usize, bytes: usize) {
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_sync(&self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.sync_ns_max.fetch_max(ns, Ordering::Relaxed);
    }
}

/// What the handle, the writer and the preparer share.
pub(crate) struct Shared {
    config: Config,
    pub pool: Pool,
    queue: Mutex<Queue>,
    arrived: Condvar,
    state: Mutex<State>,
    poison: OnceLock<Arc<str>>,
    pub stats: Stats,
    segment_wanted: (Mutex<bool>, Condvar),
    closed: AtomicBool,
    checkpointing: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Pending>,
    bytes: usize,
}

pub(crate) struct State {
    pub live: HashMap<RecordId, Live>,
    // Settled since the last checkpoint that succeeded.
    pub settled: HashMap<RecordId, Live>,
    pub segments: BTreeMap<u64, InService>,
    pub last_seq: u64,
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("state lock")
    }

    pub fn poison(&self) -> Option<Arc<str>> {
        self.poison.get().cloned()
    }

    pub fn poison_with(&self, why: String) -> Arc<str> {
        self.poison.get_or_init(|| why.into()).clone()
    }

    fn max_record_bytes(&self) -> usize {
        self.config.segment_bytes.min(u64::from(u32::MAX)) as usize - BLOCK - record_span(0)
    }

    fn push(&self, pending: Pending) -> Result<(), (Pending, AppendError)> {
        let limit = self.max_record_bytes();
        let bytes = pending.parts.iter().map(Bytes::len).sum();
        if bytes > limit {
            return Err((pending, AppendError::TooLarge { bytes, limit }));
        }
        if let Some(why) = self.poison() {
            return Err((pending, AppendError::Poisoned(why)));
        }
        let mut queue = self.queue.lock().expect("queue lock");
        if self.closed.load(Ordering::Acquire) {
            return Err((pending, AppendError::Closed));
        }
        if queue.bytes + bytes > self.config.max_pending_bytes && !queue.pending.is_empty() {
            return Err((pending, AppendError::Busy));
        }
        queue.bytes += bytes;
        queue.pending.push_back(pending);
        if queue.pending.len() == 1 {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Everything that waits, up to a batch; `None` when the journal was closed and nothing waits.
    pub fn next_batch(&self) -> Option<Vec<Pending>> {
        let mut queue = self.queue.lock().expect("queue lock");
        while queue.pending.is_empty() {
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            queue = self.arrived.wait(queue).expect("queue lock");
        }
        if !self.config.max_wait.is_zero() {
            let deadline = Instant::now() + self.config.max_wait;
            while queue.pending.len() < self.config.max_batch && !self.closed.load(Ordering::Acquire) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                queue = self.arrived.wait_timeout(queue, left).expect("queue lock").0;
            }
        }
        let count = queue.pending.len().min(self.config.max_batch.max(1));
        let batch: Vec<Pending> = queue.pending.drain(..count).collect();
        queue.bytes -= batch.iter().map(|pending| pending.len as usize).sum::<usize>();
        Some(batch)
    }

    pub fn want_segment(&self) {
        *self.segment_wanted.0.lock().expect("preparer lock") = true;
        self.segment_wanted.1.notify_one();
    }

    /// Keeps segments ready ahead of the writer.
    fn prepare_segments(&self) {
        loop {
            let mut wanted = self.segment_wanted.0.lock().expect("preparer lock");
            while !*wanted && !self.closed.load(Ordering::Acquire) {
                wanted = self.segment_wanted.1.wait(wanted).expect("preparer lock");
            }
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            *wanted = false;
            drop(wanted);
            // One to move on to and one that mail may not take. If there is no space the writer will find out itself
            // and say so.
            while self.pool.prepare(READY_AHEAD).is_ok_and(|()| self.pool.ready() < READY_AHEAD) {}
        }
    }

    /// The lowest segment to keep: the prefix below it is finished, or holds so few live bytes that copying them
    /// forward frees at least twice what it costs.
    fn lowest_worth_keeping(&self, through: u64, unsettled: &[(RecordId, Live)]) -> u64 {
        let mut live_bytes: HashMap<u64, u64> = HashMap::new();
        for (_, live) in unsettled {
            *live_bytes.entry(live.segment).or_default() += record_span(live.len as usize) as u64;
        }
        let state = self.state();
        let active = state.segments.keys().next_back().copied().unwrap_or(0);
        let (mut low, mut freed, mut cost) = (state.segments.keys().next().copied().unwrap_or(0), 0, 0);
        for (&number, entry) in &state.segments {
            if number == active || entry.max_seq > through {
                break;
            }
            freed += self.config.segment_bytes;
            cost += live_bytes.get(&number).copied().unwrap_or(0);
            if cost * 2 <= freed {
                low = number + 1;
            }
        }
        low
    }
}

/// What a checkpoint is about to forget; goes back to the settled ones if it fails before it has.
struct SettledAgain<'a> {
    shared: &'a Shared,
    settled: HashMap<RecordId, Live>,
}

impl Drop for SettledAgain<'_> {
    fn drop(&mut self) {
        if !self.settled.is_empty() {
            self.shared.state().settled.extend(self.settled.drain());
        }
    }
}

/// The writer and the preparer; dropping this closes the journal.
struct Threads {
    shared: Arc<Shared>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    fn start(shared: Arc<Shared>, writer: Writer) -> io::Result<Self> {
        let preparer = shared.clone();
        let threads = Threads { shared, running: Mutex::default() };
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mut running = threads.running.lock().expect("thread list");
        running.push(named("journal-write").spawn(move || writer.run())?);
        running.push(named("journal-prepare").spawn(move || preparer.prepare_segments())?);
        drop(running);
        threads.shared.want_segment();
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        {
            let _no_more_appends = self.shared.queue.lock().expect("queue lock");
            let _preparer = self.shared.segment_wanted.0.lock().expect("preparer lock");
            self.shared.closed.store(true, Ordering::Release);
        }
        self.shared.arrived.notify_all();
        self.shared.segment_wanted.1.notify_all();
        for thread in self.running.get_mut().expect("thread list").drain(..) {
            // A panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

fn next_file(names: &[String]) -> u64 {
    let number = |name: &String| u64::from_str_radix(name.strip_suffix(".seg")?, 16).ok();
    names.iter().filter_map(number).max().map_or(0, |highest| highest + 1)
}

/// Sequence numbers skipped at each opening: more than a crash can have torn away, so that none is ever used twice.
const SEQ_GAP: u64 = 1 << 20;
/// Segments kept ready.
const READY_AHEAD: usize = 2;
/// Copies that are read into memory before the first is waited for.
const COPIES_IN_FLIGHT: usize = 64;
