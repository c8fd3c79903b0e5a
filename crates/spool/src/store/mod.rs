//! Where batches lie. A kind of spool is a store; streams, needs, checkpoints, bodies and snapshots stand above it and are written once.

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

/// Durable records, each with a head and a body, under numbers that grow and are never used again.
pub(crate) trait Store: Send + Sync {
    /// The directory in the spool that holds it.
    fn name(&self) -> &'static str;

    /// Appends a record; does not block. `then` is told on the store's own thread, in the order of the LSNs, once the record is on stable storage. A refusal is
    /// told at once, on the caller's thread. A record that is cancelled in time drops it.
    fn append(&self, head: Bytes, body: Vec<Bytes>, then: Commit) -> Ticket;

    /// Like [`append`](Self::append), for a record that the store's own thread owes: it goes out with the next write.
    fn append_first(&self, head: Bytes, then: Commit) {
        drop(self.append(head, Vec::new(), then));
    }

    /// Waits until all that was appended before is durable or refused.
    fn flush(&self);

    /// Shows the records from `from` on that are published, in order, cancelled ones too. What is forgotten meanwhile is left out.
    ///
    /// # Errors
    /// See [`VisitError`].
    fn visit(&self, from: Lsn, each: &mut dyn FnMut(Visited) -> ControlFlow<()>) -> Result<(), VisitError>;

    /// The head of a record.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn read_head(&self, lsn: Lsn) -> Result<Bytes, RecordError>;

    /// A part of the body of a record, which ends with it. The checksum of all of it is compared before any of it is returned.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn read_body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError>;

    /// The body as it is on the disk and not in the page cache, and whether it is whole.
    ///
    /// # Errors
    /// See [`RecordError`]; a damaged body is none.
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

    /// Accepts nothing more until it is opened again, because a sync has failed on its device.
    fn poison(&self, why: String);

    /// The reason, if it accepts nothing more. Takes no lock.
    fn poisoned(&self) -> Option<Arc<str>>;

    /// Counters of commits, and its space. The rest is zero.
    fn stats(&self) -> Stats;

    /// The ring, if it is one: it alone has segments, which become packs.
    fn ring(&self) -> Option<&Ring> {
        None
    }
}

/// A record as [`Store::visit`] shows it.
pub(crate) struct Visited {
    pub lsn: Lsn,
    /// Its checksum was right.
    pub head: Bytes,
    /// Bytes of its body, which was not read.
    pub body_len: u32,
}

/// Why a visit has not shown every record.
#[derive(Debug)]
pub(crate) enum VisitError {
    /// Records are damaged; all others were shown.
    Damaged(Vec<Damage>),
    /// An error of reading.
    Io(io::Error),
}

/// The records of a store at one moment.
#[derive(Default)]
pub(crate) struct Extent {
    /// Up to where they are durable, if a checkpoint is to say so.
    pub proof: Proof,
    /// Segments in service, if records are forgotten by these.
    pub segments: Vec<SegmentInfo>,
    /// The records themselves, if each is forgotten by itself.
    pub held: Option<LsnSet>,
}

/// Records to forget.
#[derive(Default)]
pub(crate) struct Unneeded {
    /// All in segments below this number.
    pub segments_below: u64,
    /// And these, of a store that forgets each by itself.
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
    /// Batches up to here are in packs, if they are anywhere. `None`: the store has no record that says so.
    pub packed_through: Option<u64>,
    /// Bytes of records, and those that mail may use: what presses on intake. To be read without a lock.
    pub bytes_used: Arc<AtomicU64>,
    /// See `bytes_used`.
    pub usable_bytes: u64,
}

/// Why a record could not be read back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// It never was published, or was forgotten.
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

/// Opens the store of a spool, or makes it.
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

/// Opens the medium of a kind that writes in groups, or makes it, and finds the records. What the last process left unsynced above `through` is durable when this
/// returns.
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

/// Finds the records of a spool of this kind, in its directory `dir`, without opening it as a store. `None`: the kind does not write in groups.
///
/// # Errors
/// [`OpenError::Locked`] if the medium can be open only once, and is; errors of reading.
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

/// False if the directory of records has never been a spool's, or what it held is gone. The ring tells that by itself.
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
