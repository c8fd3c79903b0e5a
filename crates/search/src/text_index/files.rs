//! The files of a text index.
//!
//! `meta.json` names all files of the last commit and is replaced by rename. A writer uses other names. So a file left
//! by a kill is either replaced when its name comes up again ([`Output::create`]), or removed when the next writer
//! opens the index ([`remove_leftovers`]). The engine's own list of its files (`.managed.json`) is not kept, as it adds
//! nothing.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, BufWriter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tantivy::directory::error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    Directory, DirectoryLock, FileHandle, Lock, META_LOCK, MmapDirectory, WatchCallback, WatchHandle, WritePtr,
};
use tantivy::index::SegmentComponent;
use tantivy::{Index, SegmentMeta};

use super::part::Part;
use crate::disk::{self, Output};

pub(super) const META: &str = "meta.json";
const ENGINES_LIST: &str = ".managed.json";

/// Open files by name.
type Parts = Mutex<HashMap<PathBuf, Weak<Part>>>;

/// The engine's view of the directory.
#[derive(Debug, Clone)]
pub(super) struct Files {
    mapped: MmapDirectory,
    dir: Arc<Path>,
    /// Files read by calls instead of mapped; `None` if all are mapped.
    parts: Option<Arc<Parts>>,
}

impl Files {
    /// Opens for writing, or for reading whole files.
    pub fn in_dir(dir: &Path) -> Result<Self, OpenDirectoryError> {
        Ok(Self { mapped: MmapDirectory::open(dir)?, dir: dir.into(), parts: None })
    }

    /// Opens the index for searches. Most searches read little or nothing of some files: those are not mapped.
    pub fn to_search(dir: &Path) -> Result<Self, OpenDirectoryError> {
        Ok(Self { parts: Some(Arc::default()), ..Self::in_dir(dir)? })
    }

    /// Opens a file, or returns the open one. An open file stays the same, whatever happens to its name.
    fn part(&self, path: &Path, parts: &Parts) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get(path).and_then(Weak::upgrade) {
            return Ok(part);
        }
        let part = Part::open(&self.dir.join(path)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenReadError::FileDoesNotExist(path.to_owned()),
            _ => OpenReadError::wrap_io_error(error, path.to_owned()),
        })?;
        let part = Arc::new(part);
        parts.insert(path.to_owned(), Arc::downgrade(&part));
        Ok(part)
    }
}

/// Suffixes of files of which a search reads little: positions for phrases, and stored values of shown messages. Norms
/// are never read.
const READ_BY_CALLS: [&str; 3] = ["pos", "store", "fieldnorm"];

impl Directory for Files {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let is_part = path.extension().is_some_and(|end| READ_BY_CALLS.iter().any(|part| end == *part));
        match self.parts.as_ref().filter(|_| is_part) {
            Some(parts) => self.part(path, parts),
            None => self.mapped.get_file_handle(path),
        }
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        let io = |error| DeleteError::IoError { io_error: Arc::new(error), filepath: path.to_owned() };
        disk::remove_file(&self.dir.join(path)).map_err(io)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mapped.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let output = Output::create(self.dir.join(path));
        let output = output.map_err(|error| OpenWriteError::wrap_io_error(error, path.to_owned()))?;
        Ok(BufWriter::new(Box::new(output)))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        if path == Path::new(ENGINES_LIST) {
            return Err(OpenReadError::FileDoesNotExist(path.to_owned()));
        }
        self.mapped.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        if path == Path::new(ENGINES_LIST) {
            return Ok(());
        }
        disk::replace(&self.dir.join(path), data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        disk::sync_dir(&self.dir)
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.mapped.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.mapped.watch(callback)
    }
}

/// Removes every file that the last commit does not name. Only the writer may call this, without an open writer of the
/// engine.
///
/// A file that cannot be removed does no harm; the next call tries again.
pub(super) fn remove_leftovers(index: &Index, dir: &Path) -> tantivy::Result<()> {
    // Held by a reader between reading `meta.json` and opening what it names.
    let _readers_wait = index.directory().acquire_lock(&META_LOCK)?;
    let living = living(&index.searchable_segment_metas()?);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = PathBuf::from(entry.file_name());
        let is_lock = name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(".lock"));
        if !is_lock && name != Path::new(META) && !living.contains(&name) {
            let _ = disk::remove_file(&entry.path());
        }
    }
    Ok(())
}

/// Reads every file of the index in `dir` and verifies its checksum. Returns the damaged files, each with its damage.
pub(crate) fn check_files(dir: &Path) -> Vec<(String, String)> {
    let opened = Files::in_dir(dir).ok().and_then(|files| Index::open(files).ok());
    let segments = opened.as_ref().and_then(|index| index.searchable_segment_metas().ok());
    let (Some(index), Some(segments)) = (opened, segments) else {
        let is_there = dir.join(META).exists();
        return vec![(META.to_owned(), if is_there { "cannot be understood" } else { "is missing" }.to_owned())];
    };
    let damage = |file: &Path| {
        // A file that was altered may lead its reader astray.
        let checked = catch_unwind(AssertUnwindSafe(|| index.directory().validate_checksum(file)));
        match checked {
            Ok(Ok(true)) => None,
            Ok(Err(OpenReadError::FileDoesNotExist(_))) => Some("is missing".to_owned()),
            Ok(Err(OpenReadError::IoError { io_error, .. })) if io_error.raw_os_error().is_some() => {
                Some(format!("cannot be read: {io_error}"))
            }
            _ => Some("checksum is wrong".to_owned()),
        }
    };
    let files = living(&segments);
    files.iter().filter_map(|file| damage(file).map(|what| (file.to_string_lossy().into_owned(), what))).collect()
}

/// The files of these segments.
pub(super) fn living(segments: &[SegmentMeta]) -> BTreeSet<PathBuf> {
    use SegmentComponent::{Delete, FastFields, FieldNorms, Positions, Postings, Store, Terms};
    let of = |segment: &SegmentMeta| {
        let parts = [Postings, Positions, Terms, FastFields, FieldNorms, Store];
        let parts = parts.into_iter().chain(segment.has_deletes().then_some(Delete));
        parts.map(|part| segment.relative_path(part)).collect::<Vec<_>>()
    };
    segments.iter().flat_map(of).collect()
}
