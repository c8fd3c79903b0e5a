//! The interface of any spool: the trait and its types. Names no kind of spool.

use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_units::histogram::HistogramRead;
use posthaste_watch::{StuckWorker, Watch};

use crate::events::Damage;
use crate::pressure::Pressure;
use crate::snapshots::{SnapshotError, SnapshotName, SnapshotReader};
use crate::{
    AppendError, Batch, CheckpointError, Lsn, ReadError, ReplayError, RestoreError, StreamError, StreamId, Ticket,
    Upload,
};

/// The result of an append. Called on the ring's thread, in LSN order, once the batch is durable and its consumers have
/// seen it. Must not block, and must not hold the spool, whose last handle cannot be dropped on its own thread. If the
/// batch is refused at once, it is called on the caller's thread, before `append` returns.
pub type Then = Box<dyn FnOnce(Result<Lsn, AppendError>) + Send>;

/// Bodies that a stream no longer needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Released {
    /// All bodies of batches below this LSN.
    pub below: Lsn,
    /// More released batches, at or above `below`.
    pub also: Vec<Lsn>,
}

/// Durable batches for several ordered consumers. Users of this trait do not see segments or packs.
///
/// A stream's life: [`stream`](Self::stream) gives its id; [`position`](Self::position) names the snapshot to start
/// from; [`replay`](Self::replay) passes every entry after it; [`attach`](Self::attach) passes those that came
/// meanwhile, then each new one. Only then may the stream have effects outside.
pub trait Spool: Send + Sync {
    /// The id of the stream with this name, registered if it is new, which blocks for a checkpoint. Durable on return,
    /// and never reused for another name.
    ///
    /// # Errors
    /// See [`StreamError`].
    fn stream(&self, name: &str) -> Result<StreamId, StreamError>;

    /// The position of a stream, and its snapshot at that position.
    fn position(&self, stream: StreamId) -> (Lsn, Option<SnapshotName>);

    /// Appends a batch; does not block, and asks no file system. `then` is called exactly once, except when the ticket cancels the batch.
    fn append(&self, batch: Batch, then: Then) -> Ticket;

    /// Begins a large body, in its own file. `announced` is its size in bytes, 0 if unknown: the file system must have
    /// that much free in addition to reservations of other uploads. Blocks while it queries the file system.
    ///
    /// # Errors
    /// [`StorageFull`](std::io::ErrorKind::StorageFull) if there is no room, or those of creating a file.
    fn upload(&self, announced: u64) -> std::io::Result<Upload>;

    /// Free bytes for large bodies now: above the floor, minus reservations of other uploads. Blocks like
    /// [`upload`](Self::upload).
    ///
    /// # Errors
    /// An error of the file system.
    fn room(&self) -> std::io::Result<u64>;

    /// Checks if a large body of that many bytes would find room now. Creates and reserves nothing; blocks like
    /// [`upload`](Self::upload). After batches were refused for lack of space, it also updates the space for batches,
    /// for the next [`append`](Self::append).
    ///
    /// # Errors
    /// Like [`upload`](Self::upload).
    fn check_room(&self, bytes: u64) -> std::io::Result<()>;

    /// Reads a part of a body that some stream needs, after verifying its checksum. Offsets and lengths of bodies
    /// include the [front fields](crate::FrontFields).
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&self, body: Lsn, range: Range<u64>) -> Result<Bytes, ReadError>;

    /// The entries of a batch for a stream, in order, while any stream needs any part of the batch, even if this stream
    /// has passed it. So a stream that keeps a body need not keep its entries.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn entries(&self, stream: StreamId, batch: Lsn) -> Result<Vec<Bytes>, ReadError>;

    /// Writes a snapshot of a stream; durable on return. It takes effect when [`advance`](Self::advance) names it.
    /// `content` is called once and may be slow: no lock is held meanwhile.
    ///
    /// # Errors
    /// An error of `content`, of writing or of syncing; after EIO of a sync the spool accepts nothing more. An older
    /// snapshot with that name is kept.
    fn write_snapshot(
        &self,
        name: &SnapshotName,
        content: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> std::io::Result<()>;

    /// Opens a snapshot of [`write_snapshot`](Self::write_snapshot), after verifying all of it.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    fn read_snapshot(&self, name: &SnapshotName) -> Result<SnapshotReader, SnapshotError>;

    /// Opens the stream's last snapshot, or the previous one if that is missing or damaged: [`replay`](Self::replay)
    /// then continues from its position. Called before the replay, by a stream whose state is in snapshots.
    ///
    /// # Errors
    /// The disk failed, and no other snapshot can be read: see [`RestoreError`]. Then nothing has changed.
    fn restore(&self, stream: StreamId) -> Result<Restored, RestoreError>;

    /// True if another snapshot at the same position is useful, because the last one has no second copy yet, or was
    /// unreadable.
    fn wants_snapshot(&self, stream: StreamId) -> bool;

    /// True if a stream has not released a body.
    fn needs_body(&self, stream: StreamId, body: Lsn) -> bool;

    /// Call it for a body that [`read`](Self::read) reports as damaged: reads it again from the disk instead of the
    /// page cache. If it is still damaged, copies its bytes into the directory `kept/`, durable on return; then the
    /// stream may release the body. Later calls make no second copy. Blocks.
    ///
    /// # Errors
    /// An error of reading or writing, such as a full disk: keep the body needed until the copy exists.
    fn set_aside(&self, body: Lsn) -> std::io::Result<SetAside>;

    /// The stream has processed everything up to `position`; its state is in the durable `snapshot`, if it has one.
    /// Takes effect with the next checkpoint: after an earlier power cut, the stream starts from its old position. A
    /// release of a body counts once the position has passed its batch.
    fn advance(&self, stream: StreamId, position: Lsn, snapshot: Option<SnapshotName>, released: Released);

    /// Passes every entry after the stream's position to it, in order, and returns the last LSN. Skips cancelled
    /// batches. If the stream starts from an older snapshot or from none, it gets the remaining entries from there on,
    /// without those whose body it has released, and learns if some are missing: see [`Replayed::Uncertain`].
    ///
    /// # Errors
    /// See [`ReplayError`]; the visitor may have seen a part.
    fn replay(&self, stream: StreamId, visitor: &mut dyn FnMut(Replayed<'_>)) -> Result<Lsn, ReplayError>;

    /// Delivers the stream's new entries to `consumer` from now on. Entries after `after` (the result of [`replay`](Self::replay)) are delivered on this thread
    /// before this returns.
    ///
    /// # Errors
    /// See [`ReplayError`]; nothing is attached then.
    fn attach(&self, stream: StreamId, after: Lsn, consumer: Arc<dyn Consumer>) -> Result<(), ReplayError>;

    /// Stops delivering entries: they wait for the next replay. On return no call to the old consumer is in progress,
    /// and the spool does not hold it. A consumer must not call this from its own callbacks.
    fn detach(&self, stream: StreamId);

    /// The reason why nothing is accepted until the spool is reopened, after a failed write or sync; else `None`. Takes
    /// no lock, so it may be called before each use.
    fn poisoned(&self) -> Option<Arc<str>>;

    /// Recommended pauses of intake before each message; the queue adds its own.
    fn pressure(&self) -> &Pressure;

    /// Makes a checkpoint now: on return, earlier advances and releases have taken effect. Blocks for several syncs.
    ///
    /// # Errors
    /// See [`CheckpointError`]; nothing is freed then.
    fn checkpoint(&self) -> Result<(), CheckpointError>;

    /// The workers checked by [`look_for_stuck`](Self::look_for_stuck): the spool's own, and those added by owners of
    /// streams.
    fn watch(&self) -> &Watch;

    /// Checks if calls to consumers and to the callbacks of appends return, and all other workers of
    /// [`watch`](Self::watch). Call it every few seconds.
    fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker>;

    /// Counters and sizes.
    fn stats(&self) -> Stats;

    /// The progress of each stream. Counts needed batches, so do not call it for every message.
    fn streams(&self) -> Vec<StreamStats>;
}

/// Takes a stream's entries.
pub trait Consumer: Send + Sync {
    /// An entry is durable. Called on the ring's thread, in the order of the LSNs; must not block.
    fn published(&self, entry: Published);

    /// The spool is short of room: the stream should soon advance to `through`. Called on the keeper's thread; must not block.
    fn advance_wanted(&self, through: Lsn);

    /// A checkpoint begins, with the stream's last [`advance`](Spool::advance). Called on the thread that makes it;
    /// must not block.
    fn checkpoint_begins(&self) {}

    /// A checkpoint with the stream's position `through` is durable: no power cut undoes releases up to there. Called
    /// like [`checkpoint_begins`](Self::checkpoint_begins).
    fn checkpoint_durable(&self, through: Lsn) {
        let _ = through;
    }
}

/// An operator's acts on an open spool.
pub trait SpoolAdmin: Spool {
    /// Removes a stream for good, with the data that only it needs. Its id is never reused. For a stream whose consumer
    /// will not return: otherwise it keeps its data forever. Export it before. Durable on success. Returns the data
    /// that the stream still needed.
    ///
    /// # Errors
    /// [`StreamError::Unknown`], [`StreamError::Attached`]: nothing has changed. [`StreamError::Checkpoint`]: it is removed with the next checkpoint that succeeds.
    fn forget_stream(&self, name: &str) -> Result<StreamStats, StreamError>;

    /// Releases unreadable bodies for all streams, when the operator gives them up. Reading such a body then fails with
    /// [`ReadError::NotFound`]. Entries stay, unless the head of the batch is lost, too: streams that wait for such
    /// entries without a body are uncertain up to there. Durable on success. After a loss at the end of the log, later
    /// openings know where it ends. [Set aside](Spool::set_aside) the rest of a body before.
    ///
    /// # Errors
    /// See [`CheckpointError`]: they are released with the next successful checkpoint. `StorageFull`: only the end of
    /// the loss is not written; call it again.
    fn give_up_bodies(&self, bodies: &[Lsn]) -> Result<(), CheckpointError>;

    /// Reads and verifies all needed data while the spool is in use. Calls `pause` after each batch with the bytes read
    /// so far. Sleep there to read in the background, or end it.
    ///
    /// # Errors
    /// An error of reading, except for damage.
    fn scrub(&self, pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> std::io::Result<ScrubReport>;
}

/// An entry that has become durable.
#[derive(Debug, Clone)]
pub struct Published {
    /// The entry's batch.
    pub lsn: Lsn,
    /// The entry, in the stream's own format.
    pub payload: Bytes,
    /// The batch's body.
    pub body: PublishedBody,
}

/// The body of a batch that has become durable.
#[derive(Debug, Clone)]
pub enum PublishedBody {
    /// No body.
    None,
    /// In memory, as passed by the caller: front fields first.
    Memory(Arc<[Bytes]>),
    /// In the spool; read it with [`Spool::read`].
    Stored {
        /// Length of the body in bytes.
        len: u64,
    },
}

/// A replayed entry.
#[derive(Debug, Clone, Copy)]
pub enum Replayed<'a> {
    /// An entry, as appended.
    Entry {
        /// The entry's batch.
        lsn: Lsn,
        /// The entry's content, in the stream's own format.
        payload: &'a Bytes,
        /// True if it was appended as needing the body.
        needs_body: bool,
        /// Length of the batch's body in bytes.
        body_len: u64,
    },
    /// A batch with an entry for the stream is unreadable.
    Damaged {
        /// LSN of the damaged batch.
        lsn: Lsn,
    },
    /// Entries up to here are missing, and their number is unknown: the stream's snapshots are unreadable, or the spool
    /// was rebuilt. Entries shown before may be outdated. Messages whose body the stream has not released were shown.
    Uncertain {
        /// LSN of the last batch that may be missing.
        through: Lsn,
    },
}

/// The state from which a stream starts its replay.
#[derive(Debug)]
pub struct Restored {
    /// The last readable snapshot, if any.
    pub snapshot: Option<SnapshotReader>,
    /// Snapshots that are missing or damaged.
    pub unreadable: Vec<Damage>,
}

/// Progress and needs of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Permanent id of the stream.
    pub id: StreamId,
    /// Name under which the stream was registered.
    pub name: String,
    /// Position of its last [`advance`](Spool::advance).
    pub position: Lsn,
    /// True if it has an attached consumer.
    pub is_attached: bool,
    /// Number of batches after the position that have an entry for the stream.
    pub entries: u64,
    /// The lowest of these batches; `None` without any.
    pub first: Option<Lsn>,
    /// Number of bodies that the stream has not released.
    pub bodies: u64,
}

/// Content of a spool of any kind, and its work since its opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Every batch up to this one is published.
    pub published: Lsn,
    /// Batches cancelled too late: their bytes were already on the disk.
    pub cancelled: u64,
    /// Bytes written for batches, including padding.
    pub bytes_written: u64,
    /// Syncs that made batches durable.
    pub syncs: u64,
    /// Total time of these syncs, in nanoseconds.
    pub sync_ns: u64,
    /// Duration of the longest sync, in nanoseconds.
    pub sync_ns_max: u64,
    /// Distribution of sync durations, in microseconds.
    pub sync_us: HistogramRead,
    /// Distribution of records per sync: batches, and the spool's own cancel entries.
    pub commit_records: HistogramRead,
    /// Space in use for new batches, in the same unit as `space_max`: segments for a ring.
    pub space_used: u64,
    /// Space for new batches; intake slows down as `space_used` approaches it.
    pub space_max: u64,
    /// Registered streams.
    pub streams: usize,
    /// Number of bodies in files of their own.
    pub large_bodies: usize,
    /// Total bytes of these files' bodies.
    pub large_bytes: u64,
    /// Checkpoints that succeeded since the opening.
    pub checkpoints: u64,
    /// Checkpoints that failed since the opening.
    pub checkpoints_failed: u64,
    /// Running time of the checkpoint in progress, so that a hanging one is visible; else `None`.
    pub checkpoint_running: Option<Duration>,
}

/// Progress of a scrub.
#[derive(Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Number of batches, large bodies and snapshots read.
    pub read: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damage to data that a stream needs.
    pub damage: Vec<Damage>,
    /// True if `pause` ended the scrub early.
    pub is_partial: bool,
}

impl ScrubReport {
    pub(crate) fn note(&mut self, lsn: Option<u64>, place: impl Into<String>, what: impl Into<String>) {
        self.damage.push(Damage { lsn: lsn.map(Lsn::new), place: place.into(), what: what.into() });
    }

    pub(crate) fn count(&mut self, bytes: u64) {
        self.read += 1;
        self.bytes += bytes;
    }
}

/// The outcome for a damaged body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetAside {
    /// The second read found the body intact: nothing was copied.
    Whole,
    /// The readable bytes were copied into this file.
    Kept(PathBuf),
    /// No byte of the body can be read.
    Gone {
        /// The missing file or index.
        why: String,
    },
}
