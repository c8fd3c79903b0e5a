//! One file for each record: for comparison, for file systems unsuitable for the ring, and for reading a spool with
//! `ls`.
//!
//! A file is named after its bytes are synced, so a named file is complete. A record counts once its directory is
//! synced, too.

mod crew;
mod draft;
mod record;
mod writer;

use std::io;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD};

use self::record::{PER_DIR, RecordFile, dir_number, dir_of, path_of};
use self::writer::FilesWriter;
use super::RecordError;
use super::groups::{GroupWriter, Medium, OpenedMedium, StoredHeader};
use crate::lsn_set::LsnSet;
use crate::{Lsn, OpenError, files};

pub(crate) struct FilesMedium {
    dir: PathBuf,
    /// Number of the highest directory with written records.
    writes_in: Arc<AtomicU64>,
}

/// Opens the files of records, and finds them. Names above `through` that the last process left unsynced are durable when this returns.
///
/// # Errors
/// Errors of reading and writing.
pub(crate) fn open(dir: &Path, through: u64) -> Result<OpenedMedium, OpenError> {
    let (held, unfinished) = record::list(dir)?;
    unfinished.iter().try_for_each(|path| files::remove(path))?;
    let mut synced = None;
    for lsn in held.iter(through + 1..=u64::MAX) {
        if synced.replace(dir_number(lsn)) != Some(dir_number(lsn)) {
            posthaste_fsops::make_dir(&dir_of(dir, dir_number(lsn)))?;
        }
    }
    Ok((FilesMedium::at(dir), held))
}

/// Like [`open`], but changes nothing.
///
/// # Errors
/// Errors of reading.
pub(crate) fn look(dir: &Path) -> Result<OpenedMedium, OpenError> {
    let (held, _) = record::list(dir)?;
    Ok((FilesMedium::at(dir), held))
}

/// True if any directory of records exists.
///
/// # Errors
/// An error of reading.
pub(crate) fn has_dirs(dir: &Path) -> io::Result<bool> {
    Ok(!record::numbers(dir)?.is_empty())
}

impl FilesMedium {
    fn at(dir: &Path) -> Arc<dyn Medium> {
        Arc::new(FilesMedium { dir: dir.to_owned(), writes_in: Arc::default() })
    }

    fn record(&self, lsn: Lsn) -> Result<RecordFile, RecordError> {
        RecordFile::open(&self.dir, lsn)
    }

    /// Removes an empty directory that gets no more records.
    fn remove_empty(&self, number: u64, is_held: &dyn Fn(RangeInclusive<u64>) -> bool) {
        // A group may have files in the last two directories.
        let is_written = number + 1 >= self.writes_in.load(Ordering::Acquire);
        if is_written || is_held(number * PER_DIR..=number * PER_DIR + (PER_DIR - 1)) {
            return;
        }
        let dir = dir_of(&self.dir, number);
        // A directory that is not empty stays, and so does its parent.
        if posthaste_fsops::unlinkat(CWD, &*dir, AtFlags::REMOVEDIR).is_ok()
            && let Some(above) = dir.parent()
        {
            let _ = posthaste_fsops::unlinkat(CWD, above, AtFlags::REMOVEDIR);
        }
    }
}

impl Medium for FilesMedium {
    fn writer(self: Arc<Self>, next: u64) -> Box<dyn GroupWriter> {
        self.writes_in.store(dir_number(next), Ordering::Release);
        Box::new(FilesWriter::new(self.dir.clone(), self.writes_in.clone()))
    }

    fn header(&self, lsn: Lsn) -> Result<StoredHeader, RecordError> {
        Ok(self.record(lsn)?.header)
    }

    fn head(&self, lsn: Lsn) -> Result<(StoredHeader, Bytes), RecordError> {
        let record = self.record(lsn)?;
        Ok((record.header, record.head()?))
    }

    fn body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError> {
        self.record(lsn)?.body(range)
    }

    fn body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError> {
        self.record(lsn)?.body_again()
    }

    fn remove(&self, lsns: &LsnSet, is_held: &dyn Fn(RangeInclusive<u64>) -> bool) {
        let mut dirs = Vec::new();
        for lsn in lsns.iter(0..=u64::MAX) {
            if dirs.last() != Some(&dir_number(lsn)) {
                dirs.push(dir_number(lsn));
            }
            // The next opening removes what cannot be removed now.
            let _ = files::remove(&path_of(&self.dir, lsn));
        }
        dirs.into_iter().for_each(|number| self.remove_empty(number, is_held));
    }

    fn bytes(&self, held: &LsnSet) -> u64 {
        let len = |lsn| std::fs::metadata(path_of(&self.dir, lsn)).map_or(0, |file| file.len());
        held.iter(0..=u64::MAX).map(len).sum()
    }
}
