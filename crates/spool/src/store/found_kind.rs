//! Detects the kind of a spool on the disk.

use std::path::Path;

use super::kind::StoreKind;
use crate::OpenError;
use crate::checkpoint::{CheckpointFiles, Found};

impl StoreKind {
    /// The kind of the spool in this directory, from its checkpoint, as the directory of its records may be missing.
    /// Without a checkpoint, the directory of records decides. `None` without a spool.
    pub fn of(spool: &Path) -> Option<Self> {
        let on_record = match CheckpointFiles::open(spool) {
            Ok((_, Found::Valid(checkpoint), _)) => checkpoint.kind,
            _ => None,
        };
        on_record.or_else(|| Self::ALL.into_iter().find(|kind| spool.join(kind.dir()).is_dir()))
    }

    /// Checks that a spool in this directory could be of this kind. Read-only, so the spool may be in use.
    ///
    /// # Errors
    /// [`OpenError::OtherKind`] if the spool in this directory is of another kind; [`OpenError::NotBuilt`].
    pub fn check(self, spool: &Path) -> Result<(), OpenError> {
        match Self::of(spool).filter(|found| *found != self) {
            Some(found) => Err(OpenError::OtherKind { found, wanted: self }),
            None if !self.is_built() => Err(OpenError::NotBuilt { kind: self }),
            None => Ok(()),
        }
    }
}
