//! The storage of batches. A kind of spool is a store; streams, needs, checkpoints, bodies and snapshots are built on
//! it, once for all kinds.

mod commit;
mod files;
mod found_kind;
pub(crate) mod groups;
mod kind;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod lsm;
mod records;
mod ring;

use std::io;
use std::path::Path;
use std::sync::Arc;

pub(crate) use commit::Commit;
pub(crate) use kind::RING;
pub use kind::StoreKind;
pub(crate) use records::{Extent, RecordError, Reopened, Store, Unneeded, VisitError, Visited};
pub(crate) use ring::damage_of;

use self::groups::{GroupStore, NEXT, OpenedMedium, RecordImport};
use self::kind::DATABASE;
use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::room::Room;
use crate::{Config, OpenError};

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
        kind => {
            // The disk may be unmounted: mail after the checkpoint would leave no trace, and its LSNs would be assigned
            // again.
            let is_lost = checkpoint.kind.is_some() && !has_records(kind, &dir.join(kind.dir()))?;
            GroupStore::open(dir, config, core, checkpoint, is_lost, open_medium)
        }
    }
}

/// Opens or creates the medium of a kind that writes in groups, and finds the records. Records above `through` that the
/// last process left unsynced are durable on return.
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
/// [`OpenError::Locked`] if the medium allows only one opening, and is open; errors of reading.
pub(crate) fn look(kind: StoreKind, dir: &Path) -> Result<Option<OpenedMedium>, OpenError> {
    let at = dir.join(kind.dir());
    match kind {
        StoreKind::Ring => Ok(None),
        StoreKind::Files => files::look(&at).map(Some),
        // Opening would create a missing tree.
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
        // Only the file of numbers may be lost.
        StoreKind::Files => Ok(dir.join(NEXT).try_exists()? || files::has_dirs(dir)?),
        StoreKind::Fjall | StoreKind::Rocksdb => dir.join(DATABASE).try_exists(),
    }
}

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
