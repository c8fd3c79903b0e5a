//! The storage of batches. A kind of spool is a store; streams, needs, checkpoints, bodies and snapshots are built on
//! it, once for all kinds.

mod commit;
mod files;
pub(crate) mod groups;
mod kind;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod lsm;
mod ring;

use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use posthaste_ring::{Proof, Ring, SegmentInfo};

pub(crate) use commit::Commit;
pub use kind::StoreKind;
pub(crate) use ring::damage_of;

use self::groups::{GroupStore, NEXT, OpenedMedium, RecordImport};
use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::events::Damage;
use crate::lsn_set::LsnSet;
use crate::room::Room;
use crate::{Config, Lsn, OpenError, Stats, Ticket};

/// Durable records with a head and a body, under increasing numbers that are never reused.
pub(crate) trait Store: Send + Sync {
    /// Its directory in the spool.
    fn name(&self) -> &'static str;

    /// Appends a record; does not block. `then` is called on the store's own thread, in LSN order, once the record is
    /// on stable storage. A refusal is reported at once, on the caller's thread. A record cancelled in time drops
    /// `then`.
    fn append(&self, head: Bytes, body: Vec<Bytes>, then: Commit) -> Ticket;

    /// Like [`append`](Self::append), for a record owed by the store's own thread: it is part of the next write.
    fn append_first(&self, head: Bytes, then: Commit) {
        drop(self.append(head, Vec::new(), then));
    }

    /// Waits until all that was appended before is durable or refused.
    fn flush(&self);

    /// Visits the published records from `from` on, in order, including cancelled ones. Skips records that are
    /// forgotten meanwhile.
    ///
    /// # Errors
    /// See [`VisitError`].
    fn visit(&self, from: Lsn, each: &mut dyn FnMut(Visited) -> ControlFlow<()>) -> Result<(), VisitError>;

    /// The head of a record.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn read_head(&self, lsn: Lsn) -> Result<Bytes, RecordError>;

    /// A part of the body of a record, cut at its end. The checksum of the whole body is verified first.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn read_body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError>;

    /// The body on the disk, bypassing the page cache, and true if it is intact.
    ///
    /// # Errors
    /// See [`RecordError`]; a damaged body is no error.
    fn read_body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError>;

    /// The checksum (CRC-32C) that the body was written with.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn body_crc(&self, lsn: Lsn) -> Result<u32, RecordError>;

    /// The extent as a checkpoint begins.
    fn extent(&self) -> Extent;

    /// Removes records that a durable checkpoint no longer needs.
    fn forget(&self, unneeded: &Unneeded);

    /// Accepts nothing more until it is reopened, because a sync has failed on its device.
    fn poison(&self, why: String);

    /// The reason, if it accepts nothing more. Takes no lock.
    fn poisoned(&self) -> Option<Arc<str>>;

    /// Counters of commits, and its space. The rest is zero.
    fn stats(&self) -> Stats;

    /// The ring, if it is one: only the ring has segments, which become packs.
    fn ring(&self) -> Option<&Ring> {
        None
    }
}

/// A record, for [`Store::visit`].
pub(crate) struct Visited {
    pub lsn: Lsn,
    /// Its checksum was right.
    pub head: Bytes,
    /// Bytes of its body, which is not read.
    pub body_len: u32,
}

/// Why a visit was incomplete.
#[derive(Debug)]
pub(crate) enum VisitError {
    /// Records are damaged; all others were visited.
    Damaged(Vec<Damage>),
    /// An error of reading.
    Io(io::Error),
}

/// The records of a store at one moment.
#[derive(Default)]
pub(crate) struct Extent {
    /// Their durable part, if a checkpoint records it.
    pub proof: Proof,
    /// Segments in service, if records are forgotten by these.
    pub segments: Vec<SegmentInfo>,
    /// The records themselves, if single ones are forgotten.
    pub held: Option<LsnSet>,
}

/// Records to forget.
#[derive(Default)]
pub(crate) struct Unneeded {
    /// All in segments below this number.
    pub segments_below: u64,
    /// And these, for a store that forgets single ones.
    pub lsns: LsnSet,
}

/// The findings of an opening.
pub(crate) struct Reopened {
    /// Damage to records that had been acknowledged.
    pub damage: Vec<Damage>,
    /// Unfinished writes of the last process.
    pub cut_off: Vec<Damage>,
    /// The last record.
    pub last: Lsn,
    /// Acknowledged records up to here are lost.
    pub lost_through: Lsn,
    /// Batches up to here can only be in packs. `None` if the store does not record it.
    pub packed_through: Option<u64>,
    /// Bytes of records, and the limit for mail, which determine the pressure on intake. Read without a lock.
    pub bytes_used: Arc<AtomicU64>,
    /// See `bytes_used`.
    pub usable_bytes: u64,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// It was never published, or was forgotten.
    #[error("record {0} is not in the log")]
    NotFound(Lsn),
    /// Its header or head has other bytes than were written: it is lost.
    #[error("record {0} is damaged")]
    HeadDamaged(Lsn),
    /// Its head is whole, its body has other bytes than were written.
    #[error("the body of record {0} is damaged")]
    BodyDamaged(Lsn),
    /// The disk failed.
    #[error("cannot read record {0}: {1}")]
    Io(Lsn, io::Error),
}

/// Opens or creates the store of a spool.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn open(
    dir: &Path,
    config: &Config,
    core: &Arc<Core>,
    room: &Arc<Room>,
    checkpoint: &Checkpoint,
) -> Result<(Arc<dyn Store>, Reopened), OpenError> {
    let open_medium = |dir: &Path, through| open_medium(dir, config, through);
    match config.kind {
        StoreKind::Ring => ring::open(dir, config, core, room, checkpoint),
        _ => GroupStore::open(dir, config, core, checkpoint, open_medium),
    }
}

/// Opens or creates the medium of a kind that writes in groups, and finds the records. Unsynced records of the last
/// process above `through` are durable on return.
fn open_medium(dir: &Path, config: &Config, through: u64) -> Result<OpenedMedium, OpenError> {
    match config.kind {
        StoreKind::Ring => unreachable!("the ring writes by itself"),
        StoreKind::Files => files::open(dir, through),
        #[cfg(feature = "fjall")]
        StoreKind::Fjall => lsm::open::<lsm::fjall::FjallTree>(dir, config.lsm_durability),
        #[cfg(feature = "rocksdb")]
        StoreKind::Rocksdb => lsm::open::<posthaste_rocksdb::RocksDb>(dir, config.lsm_durability),
        #[cfg(not(all(feature = "fjall", feature = "rocksdb")))]
        kind => Err(OpenError::NotBuilt { kind }),
    }
}

/// Finds the records of a spool of this kind, in its directory `dir`, read-only. `None`: the kind does not write in
/// groups.
///
/// # Errors
/// [`OpenError::Locked`] if the medium allows one opening, and is open; errors of reading.
pub(crate) fn look(kind: StoreKind, dir: &Path) -> Result<Option<OpenedMedium>, OpenError> {
    let at = dir.join(kind.dir());
    match kind {
        StoreKind::Ring => Ok(None),
        StoreKind::Files => files::look(&at).map(Some),
        // Opening makes a tree where there is none.
        kind if !has_records(kind, &at)? => files::look(&at).map(Some),
        kind => open_medium(&at, &Config { kind, ..Config::default() }, u64::MAX).map(Some),
    }
}

/// False if the directory of records was never used, or its content is lost. The ring detects that itself.
///
/// # Errors
/// Errors of reading.
pub(crate) fn has_records(kind: StoreKind, dir: &Path) -> io::Result<bool> {
    match kind {
        StoreKind::Ring => Ok(true),
        // The file of numbers alone may be lost.
        StoreKind::Files => Ok(dir.join(NEXT).try_exists()? || files::has_dirs(dir)?),
        StoreKind::Fjall | StoreKind::Rocksdb => dir.join(DATABASE).try_exists(),
    }
}

/// The tree of an LSM kind, in the directory of its records.
const DATABASE: &str = "database";

/// Begins the records of a new spool of this kind in `dir`. `None`: the kind does not write in groups.
///
/// # Errors
/// Errors of writing.
pub(crate) fn import(kind: StoreKind, dir: &Path) -> Result<Option<RecordImport>, OpenError> {
    if kind == StoreKind::Ring {
        return Ok(None);
    }
    let dir = dir.join(kind.dir());
    posthaste_fsops::make_dir(&dir)?;
    let (medium, _) = open_medium(&dir, &Config { kind, ..Config::default() }, 0)?;
    Ok(Some(RecordImport::begin(&dir, medium)?))
}
