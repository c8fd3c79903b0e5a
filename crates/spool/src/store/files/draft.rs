//! A record's file before it has its name.

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::record::HIDDEN;
use crate::files::OWNER;
use crate::store::groups::WriteError;

/// A file whose bytes are on stable storage, and that no record has yet. Dropped without a name it is gone, or is removed by the next opening.
pub(crate) struct RecordDraft {
    file: File,
    /// A file system without nameless files gives it one that no record has.
    hidden: Option<String>,
}

/// Set once the file system has shown that it has no nameless files.
#[derive(Default)]
pub(crate) struct NamesNeeded(AtomicBool);

impl RecordDraft {
    /// Writes all and makes it durable.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(
        dir: &File,
        name: &str,
        header: &[u8],
        parts: &[Bytes],
        needed: &NamesNeeded,
    ) -> Result<Self, WriteError> {
        let draft = Self::create(dir, name, needed).map_err(WriteError::Write)?;
        let mut slices: Vec<_> =
            std::iter::once(header).chain(parts.iter().map(|part| &part[..])).map(IoSlice::new).collect();
        let written = posthaste_fsops::write_all_parts(&draft.file, &mut slices, Some(0));
        let outcome = written
            .map_err(WriteError::Write)
            .and_then(|()| posthaste_fsops::fdatasync(&draft.file).map_err(|error| WriteError::Sync(error.into())));
        match outcome {
            Ok(()) => Ok(draft),
            Err(error) => {
                draft.remove(dir);
                Err(error)
            }
        }
    }

    fn create(dir: &File, name: &str, needed: &NamesNeeded) -> io::Result<Self> {
        if !needed.0.load(Ordering::Relaxed) {
            match posthaste_fsops::create_nameless(dir, OWNER)? {
                Some(file) => return Ok(RecordDraft { file, hidden: None }),
                None => needed.0.store(true, Ordering::Relaxed),
            }
        }
        let hidden = format!("{HIDDEN}{name}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = posthaste_fsops::openat(dir, &*hidden, flags, OWNER)?;
        Ok(RecordDraft { file: file.into(), hidden: Some(hidden) })
    }

    /// Gives it its name, which is durable after a sync of the directory.
    ///
    /// # Errors
    /// Errors of `linkat` and `rename`. Without /proc, and without the right to name a file by its descriptor, this record fails and later ones get a hidden name.
    pub fn publish(self, dir: &File, name: &str, needed: &NamesNeeded) -> io::Result<()> {
        if let Some(hidden) = &self.hidden {
            return Ok(posthaste_fsops::renameat(dir, &**hidden, dir, name)?);
        }
        if posthaste_fsops::link_nameless(&self.file, dir, name)? {
            return Ok(());
        }
        needed.0.store(true, Ordering::Relaxed);
        Err(Errno::PERM.into())
    }

    fn remove(self, dir: &File) {
        if let Some(hidden) = &self.hidden {
            let _ = posthaste_fsops::unlinkat(dir, &**hidden, AtFlags::empty());
        }
    }
}
