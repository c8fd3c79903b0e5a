//! The handle: append, settle, read, checkpoint.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use crate::layout::{BLOCK, KIND_BARRIER, KIND_USER};
use crate::pool::{Found, Pool};
use crate::recovery::{Damage, Note, SEQ_GAP, read_all};
use crate::shared::{Shared, State};
use crate::storage::{FileStorage, SEGMENT, Storage};
use crate::writer::{Pending, Writer};
use crate::{Append, AppendError, StatsSnapshot};

/// Names a record for as long as it is live: the sequence number under which it was first appended.
pub type RecordId = u64;

/// Sizes and bounds. Every field can be changed from one opening to the next.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes of a segment file: rounded down to a multiple of 4 KiB, and at least 64 KiB. Records are at most this long, less about 4 KiB.
    ///
    /// 64 MiB by default. Measured (bench `choices`, 64 callers, 10 KiB, 2 cores that others used too, ext4, thousand records a second, making the first ones
    /// included): 16 MiB 67, 64 MiB 63, 256 MiB 28. Smaller ones end more often, larger ones take long to be made and to be freed.
    pub segment_bytes: u64,
    /// Segment files at most; when all hold live records, appends fail with [`AppendError::Full`].
    pub max_segments: usize,
    /// Records in one commit at most, and at least 1.
    ///
    /// 1024 by default. Measured as above, thousand records a second at 64 / 256 / 1024 callers: 32: 57 / 71 / 59; 128: 57 / 126 / 79; 1024: 63 / 135 / 115.
    pub max_batch: usize,
    /// How long a commit may wait for company. Zero: it starts at once, and what arrives meanwhile forms the next.
    ///
    /// Zero by default. Measured as above, records a second at 1 / 64 callers: 0: 4,967 / 63,845; 200 us: 1,624 / 58,892; 1 ms: 618 / 29,733.
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

impl Config {
    /// Commits are written in whole blocks, and a segment must hold a checkpoint beside some records.
    fn within_bounds(self) -> Self {
        let block = BLOCK as u64;
        let segment_bytes = self.segment_bytes.max(SEGMENT_BLOCKS_MIN * block) / block * block;
        Config { segment_bytes, max_batch: self.max_batch.max(1), ..self }
    }
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

impl Journal {
    /// Opens the journal in `dir`, creating it if there is none, and recovers what a crash left.
    ///
    /// Reads only the segments behind the last checkpoint, and takes no space. Whatever is appended belongs to a new epoch,
    /// which is durable before the first of it.
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
        let config = config.within_bounds();
        let contents = read_all(&*storage)?;
        contents.make_durable()?;
        let epoch = contents.max_epoch + 1;
        let (free, unusable): (Vec<_>, Vec<_>) = contents.free.into_iter().partition(|name| {
            storage.open(name).and_then(|file| file.len()).is_ok_and(|len| len == config.segment_bytes)
        });
        // Of another size. Nothing in them is needed: what has a name and is neither finished nor zeros counts as damaged.
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
        // A record that was written but torn away may have had a number above any that was found.
        let next_seq = contents.max_seq + 1 + SEQ_GAP;
        let state =
            State { live: contents.live, settled: HashMap::new(), segments: contents.segments, last_seq: next_seq - 1 };
        let shared = Arc::new(Shared::new(config, pool, state));
        // No segment is taken before the first append: opening a full journal takes no space.
        let writer = Writer::new(shared.clone(), next_seq, contents.found);
        let journal = Journal { threads: Arc::new(Threads::start(shared, writer)?) };
        Ok((journal, recovery))
    }

    /// Appends a record; [`Append::wait`] returns once it is on stable storage. `kind` is at least [`KIND_USER`]. Who must not block
    /// calls [`Journal::append_then`].
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
    /// As [`Append::wait`].
    pub fn flush(&self) -> Result<(), AppendError> {
        self.submit(Pending::new(KIND_BARRIER, Vec::new())).wait().map(drop)
    }

    /// Appends a new version of a live record under its old id: recovery will find this one alone.
    ///
    /// Not to be called for the same id from several places at once.
    ///
    /// [`Append::wait`] tells [`AppendError::Closed`] when no live record has this id.
    pub fn replace(&self, id: RecordId, kind: u8, parts: Vec<Bytes>) -> Append {
        assert!(kind >= KIND_USER, "kind {kind} is the journal's own");
        let Some(version) = self.shared().state().live.get(&id).map(|live| live.version + 1) else {
            return Append::pending().0;
        };
        self.submit(Pending { id: Some(id), version, ..Pending::new(kind, parts) })
    }

    /// Appends a note, which nobody waits for: it is written with the next commit and is found after a crash of the
    /// process, but perhaps not after a power cut. A checkpoint forgets it. A full journal, which refuses all else, has room for
    /// notes of a quarter of a segment between two checkpoints that free something.
    pub fn append_note(&self, kind: u8, parts: Vec<Bytes>) {
        assert!(kind >= KIND_USER, "kind {kind} is the journal's own");
        let pending = Pending { note: true, ..Pending::new(kind, parts) };
        // A note that finds no room is one that a crash would have taken: the user has to do without it anyway.
        let _ = self.shared().push(pending);
    }

    /// Appends a note that is durable when [`Append::wait`] returns. It may take the room that a full journal keeps for
    /// checkpoints: for what must be on record before a checkpoint makes anything durable. A checkpoint forgets it.
    pub fn append_note_durably(&self, kind: u8, parts: Vec<Bytes>) -> Append {
        assert!(kind >= KIND_USER, "kind {kind} is the journal's own");
        self.submit(Pending { note: true, ..Pending::new(kind, parts) })
    }

    /// Declares that what the record says has been done, visibly though perhaps not durably: the next checkpoint makes
    /// it durable, and only then is the record forgotten.
    pub fn settle(&self, id: RecordId) {
        self.settle_all([id]);
    }

    /// As [`Journal::settle`], for many at once.
    pub fn settle_all(&self, ids: impl IntoIterator<Item = RecordId>) {
        let mut state = self.shared().state();
        for id in ids {
            if let Some(live) = state.live.remove(&id) {
                state.settled.insert(id, live);
            }
        }
    }

    /// The kind and payload of a live record, from disk.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&self, id: RecordId) -> Result<(u8, Bytes), ReadError> {
        match self.shared().read(id) {
            Ok(Some((live, payload))) => Ok((live.kind, payload.into())),
            Ok(None) => Err(ReadError::NotFound(id)),
            Err(error) => Err(ReadError::Io(id, error)),
        }
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
            bytes_used: of(&shared.stats.bytes_used),
            commits: of(&shared.stats.commits),
            syncs: of(&shared.stats.syncs),
            sync_ns: of(&shared.stats.sync_ns),
            sync_ns_max: of(&shared.stats.sync_ns_max),
            live_records,
            segments_in_service,
            segments: shared.pool.total(),
        }
    }

    /// [`StatsSnapshot::bytes_used`], without a lock.
    pub fn bytes_used(&self) -> u64 {
        self.shared().stats.bytes_used.load(Ordering::Relaxed)
    }

    /// How many more bytes may be used before a checkpoint should begin: half of what mail can still take, so that the checkpoint
    /// ends before the journal is full; and at least a quarter of a segment, because checkpoints free whole ones.
    pub fn checkpoint_after(&self) -> u64 {
        let (config, in_service) = (&self.shared().config, self.shared().state().segments.len());
        // One segment is the checkpoints' own.
        let free = config.max_segments.saturating_sub(in_service + 1) as u64;
        (free.saturating_mul(config.segment_bytes) / 2).max(config.segment_bytes / 4)
    }

    /// Why the journal takes no more records, if it does not.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.shared().poison()
    }

    /// Payload bytes of the largest record that fits.
    pub fn max_record_bytes(&self) -> usize {
        self.shared().max_record_bytes()
    }

    pub(crate) fn submit(&self, pending: Pending) -> Append {
        let (append, tell) = Append::pending();
        // Nobody may wait any more.
        let done = move |outcome| {
            let _ = tell.try_send(outcome);
        };
        let pending = Pending { done: Some(Box::new(done)), ..pending };
        if let Err((pending, error)) = self.shared().push(pending) {
            pending.fail(&error);
        }
        append
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.threads.shared
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
        self.shared.close();
        for thread in self.running.get_mut().expect("thread list").drain(..) {
            // The last handle may go with something that the writer calls back.
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            // A panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

fn next_file(names: &[String]) -> u64 {
    let number = |name: &String| u64::from_str_radix(name.strip_suffix(SEGMENT)?, 16).ok();
    names.iter().filter_map(number).max().map_or(0, |highest| highest + 1)
}

const SEGMENT_BLOCKS_MIN: u64 = 16;
