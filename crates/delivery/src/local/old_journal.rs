//! The directory of a journal of the first format: what a takeover leaves of it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use posthaste_journal::segments;
use rustix::fs::{Mode, OFlags};

use super::old_record::bodies;

/// The directory of a journal of the first format.
pub(super) struct OldJournal {
    pub dir: PathBuf,
}

impl OldJournal {
    pub fn has_segments(&self) -> io::Result<bool> {
        match segments(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            names => names.map(|names| !names.is_empty()),
        }
    }

    pub fn bodies(&self) -> PathBuf {
        bodies(&self.dir)
    }

    /// Where files go that could not be read.
    pub fn kept(&self) -> PathBuf {
        self.dir.join("kept")
    }

    /// Called like a segment: a program that reads the first format cannot open it and ends.
    pub fn sign(&self) -> PathBuf {
        self.dir.join(SIGN)
    }

    pub fn put_sign(&self, spool_dir: &Path) -> io::Result<()> {
        posthaste_fsops::make_dir(&self.sign())?;
        let text = SIGN_TEXT.replace("SPOOL", &spool_dir.display().to_string());
        let text = text.replace("SIGN", &self.sign().display().to_string());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = posthaste_fsops::open(self.sign().join("README"), flags, Mode::RUSR | Mode::WUSR)?;
        posthaste_fsops::write_all(&file, text.as_bytes())?;
        posthaste_fsops::fsync(&file)?;
        sync_dir(&self.sign())?;
        sync_dir(&self.dir)
    }

    /// Lets go of the journal's files, or keeps them elsewhere if not all of them could be read.
    pub fn retire(&self) -> io::Result<()> {
        let kept = Some(self.kept()).filter(|kept| kept.is_dir());
        let let_go = |path: PathBuf| match &kept {
            Some(kept) => posthaste_fsops::rename(&path, kept.join(path.file_name().expect("it was listed"))),
            None => posthaste_fsops::unlink(&path),
        };
        let sync_kept = || kept.as_deref().map_or(Ok(()), sync_dir);
        // As long as there is a segment the next start comes here again: so the bodies are gone for good before the first of them goes.
        if self.bodies().is_dir() {
            body_files(&self.bodies())?.into_iter().try_for_each(let_go)?;
            sync_kept()?;
            sync_dir(&self.bodies())?;
        }
        segments(&self.dir)?.into_iter().map(|name| self.dir.join(name)).try_for_each(let_go)?;
        sync_kept()?;
        sync_dir(&self.dir)
    }
}

/// Files alone: what was moved to `orphans/` is not ours to remove.
fn body_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    Ok(posthaste_fsops::fsync(File::open(dir)?)?)
}

const SIGN: &str = "taken-over-by-a-newer-version--see-README.seg";

const SIGN_TEXT: &str = "\
The mail that was here has been taken over into SPOOL by a newer version of Posthaste.
An older version cannot open this directory, because it would not see that mail.

To go back to the older version:
  1. Let the newer version deliver what waits; `posthaste spool inspect SPOOL` shows it.
  2. Stop it. What still waits is written out by `posthaste spool export SPOOL --to NEW`.
  3. Move SPOOL away and remove SIGN.
The older version then begins with an empty journal. The mailboxes are the same for both.
";
