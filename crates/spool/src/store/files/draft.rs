//! A record's file before it gets its name.

use std::fs::File;
use std::io::{self, IoSlice};

use bytes::Bytes;
use posthaste_fsops::{LinkOutcome, NamelessFile, NamelessFiles};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::record::HIDDEN;
use crate::files::OWNER;
use crate::store::groups::WriteError;

/// A synced file that is not a record yet. If it is dropped without a name, it vanishes, or the next opening removes
/// it.
pub(crate) enum RecordDraft {
    Nameless(NamelessFile),
    /// On a file system without unnamed files it has a temporary name.
    Hidden(File, String),
}

impl RecordDraft {
    /// Writes all octets and makes them durable.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(
        dir: &File,
        name: &str,
        header: &[u8],
        parts: &[Bytes],
        nameless: &NamelessFiles,
    ) -> Result<Self, WriteError> {
        let draft = Self::create(dir, name, nameless).map_err(WriteError::Write)?;
        let mut slices: Vec<_> =
            std::iter::once(header).chain(parts.iter().map(|part| &part[..])).map(IoSlice::new).collect();
        let written = posthaste_fsops::write_all_parts(draft.file(), &mut slices, Some(0));
        let outcome = written
            .map_err(WriteError::Write)
            .and_then(|()| posthaste_fsops::fdatasync(draft.file()).map_err(|error| WriteError::Sync(error.into())));
        match outcome {
            Ok(()) => Ok(draft),
            Err(error) => {
                draft.remove(dir);
                Err(error)
            }
        }
    }

    fn create(dir: &File, name: &str, nameless: &NamelessFiles) -> io::Result<Self> {
        if let Some(file) = nameless.create(dir, OWNER)? {
            return Ok(RecordDraft::Nameless(file));
        }
        let hidden = format!("{HIDDEN}{name}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = posthaste_fsops::openat(dir, &*hidden, flags, OWNER)?;
        Ok(RecordDraft::Hidden(file.into(), hidden))
    }

    fn file(&self) -> &File {
        match self {
            RecordDraft::Nameless(nameless) => nameless.file(),
            RecordDraft::Hidden(file, _) => file,
        }
    }

    /// Gives the file its name; durable after a sync of the directory.
    ///
    /// # Errors
    /// Errors of `linkat` and `rename`. Without /proc, and without the right to name a file by its descriptor, this
    /// record fails and later ones get a temporary name.
    pub fn publish(self, dir: &File, name: &str) -> io::Result<()> {
        match self {
            RecordDraft::Nameless(nameless) => match nameless.link(dir, name)? {
                LinkOutcome::Named => Ok(()),
                LinkOutcome::Impossible(_) => Err(Errno::PERM.into()),
            },
            RecordDraft::Hidden(_, hidden) => Ok(posthaste_fsops::renameat(dir, &*hidden, dir, name)?),
        }
    }

    fn remove(self, dir: &File) {
        if let RecordDraft::Hidden(_, hidden) = self {
            let _ = posthaste_fsops::unlinkat(dir, &*hidden, AtFlags::empty());
        }
    }
}
