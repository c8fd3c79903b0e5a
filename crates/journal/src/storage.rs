//! What the journal asks of the place it writes to: a seam, so that a simulated disk can stand in for a file system.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use posthaste_fsops::write_all_parts;
use rustix::fs::{FlockOperation, IFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::layout::BLOCK;

/// A directory of segment files.
pub trait Storage: Send + Sync + 'static {
    /// The names of all segment files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a segment file full of zeros. When this returns, its bytes, its size and its name are durable. What keeps the device busy for
    /// long writes in pieces of a MiB or so and calls `between_pieces`, which returns when others have had their turn.
    fn create(&self, name: &str, len: u64, between_pieces: &mut dyn FnMut()) -> io::Result<Arc<dyn SegmentFile>>;
    /// Opens a segment file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>>;
    /// Removes a segment file; need not be durable.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Keeps the bytes of a damaged record under `name`, for a person to look at; replaces an older file of that name.
    fn set_aside(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
}

/// One segment file. Writes never reach past its length.
#[expect(clippy::len_without_is_empty, reason = "no segment is empty")]
pub trait SegmentFile: Send + Sync {
    /// Bytes in the file.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all parts one behind the other, from `offset` on.
    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes every write that has returned durable.
    fn sync(&self) -> io::Result<()>;
}

/// Segment files in a directory of a file system, written around the page cache where the file system can (`O_DIRECT`).
pub struct FileStorage {
    dir: PathBuf,
    staging: Arc<Mutex<Staging>>,
    // Held for its lock: a second journal on the same directory must not start.
    _lock: File,
}

impl FileStorage {
    /// Opens `dir`, creating it if needed, and locks it for this process.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another process has the directory; else what the file system said.
    pub fn open(dir: &Path) -> io::Result<Self> {
        make_dir(dir)?;
        let lock = File::from(posthaste_fsops::open(
            dir.join(LOCK),
            OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC,
            OWNER,
        )?);
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == UNFINISHED) {
                posthaste_fsops::unlink(path)?;
            }
        }
        Ok(FileStorage { dir: dir.to_owned(), staging: Arc::default(), _lock: lock })
    }

    fn open_file(&self, name: &str, how: OFlags) -> io::Result<File> {
        Ok(posthaste_fsops::open(self.dir.join(name), how | OFlags::RDWR | OFlags::CLOEXEC, OWNER)?.into())
    }

    fn open_segment(&self, name: &str, how: OFlags) -> io::Result<DiskSegment> {
        let file = self.open_file(name, how)?;
        // Where there is no direct I/O the page cache serves as well, only slower.
        let direct = self.open_file(name, OFlags::DIRECT).ok();
        Ok(DiskSegment { file, direct, staging: self.staging.clone() })
    }
}

impl Storage for FileStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        list_files(&self.dir, SEGMENT)
    }

    fn create(&self, name: &str, len: u64, between_pieces: &mut dyn FnMut()) -> io::Result<Arc<dyn SegmentFile>> {
        // Asked first, so that a full disk is not filled to its last block by every message that is refused.
        let space = rustix::fs::statvfs(&self.dir)?;
        if space.f_bavail.saturating_mul(space.f_frsize) < len {
            return Err(Errno::NOSPC.into());
        }
        // Under another name until it is full of durable zeros: a cut in the midst may leave anything in it, and what is called a
        // segment and has no readable header is damaged.
        let unfinished = format!("{name}.{UNFINISHED}");
        let segment = self.open_segment(&unfinished, OFlags::CREATE | OFlags::TRUNC)?;
        let filled = segment
            .fill_with_zeros(len, between_pieces)
            .and_then(|()| sync(&segment.file))
            .and_then(|()| Ok(posthaste_fsops::rename(self.dir.join(&unfinished), self.dir.join(name))?))
            .and_then(|()| sync(&File::open(&self.dir)?));
        if let Err(error) = filled {
            // A segment that could not be filled would only hold the space that is missing.
            let _ = posthaste_fsops::unlink(self.dir.join(&unfinished));
            let _ = posthaste_fsops::unlink(self.dir.join(name));
            return Err(error);
        }
        Ok(Arc::new(segment))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(self.open_segment(name, OFlags::empty())?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(posthaste_fsops::unlink(self.dir.join(name))?)
    }

    fn set_aside(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        posthaste_fsops::write_all(self.open_file(name, OFlags::CREATE | OFlags::TRUNC)?, bytes)
    }
}

/// Makes a directory (mode 0700) and those above it that are missing, each durable before what lies in it: otherwise a
/// power cut could take a name, and everything below it. One that is there is made durable, too, with the names in it.
///
/// # Errors
/// What `mkdir`, `open` and `fsync` say.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let was_there = dir.is_dir();
    if !was_there {
        make_dir(parent)?;
        match posthaste_fsops::mkdir(dir, Mode::RWXU) {
            Err(Errno::EXIST) if dir.is_dir() => {}
            made => made?,
        }
    }
    // Whoever has made it, or a segment in it, may have been killed before it was synced.
    let this = File::open(dir)?;
    sync(&this)?;
    let parent = match File::open(parent) {
        // Where we may not look we have made nothing.
        Err(error) if was_there && error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    let is_mount = this.metadata()?.dev() != parent.metadata()?.dev();
    if is_mount { Ok(()) } else { sync(&parent) }
}

/// The files of a journal directory, whoever has it open, whose names end in `ending`; by name.
pub(crate) fn list_files(dir: &Path, ending: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        if let Ok(name) = entry?.file_name().into_string()
            && name.ends_with(ending)
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A segment as a file. What is written goes by way of a buffer of our own straight to the device: no page of the cache is taken and
/// cleaned for it, and a sync has nothing to write (measured in bench-results/journal).
pub(crate) struct DiskSegment {
    file: File,
    direct: Option<File>,
    staging: Arc<Mutex<Staging>>,
}

impl DiskSegment {
    /// For whoever only looks.
    pub fn to_read(file: File) -> Self {
        DiskSegment { file, direct: None, staging: Arc::default() }
    }

    /// Zeros are written, not `fallocate`d: only blocks that were written once make a later `fdatasync` free of a
    /// file-system journal commit (ext4 and XFS; measured in bench-results/journal).
    fn fill_with_zeros(&self, len: u64, between_pieces: &mut dyn FnMut()) -> io::Result<()> {
        // On btrfs copy-on-write would undo the point of overwriting in place. It can be turned off only while the file is
        // empty, and other file systems do not know the flag: not an error.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&self.file) {
            let _ = rustix::fs::ioctl_setflags(&self.file, flags | IFlags::NOCOW);
        }
        // A buffer of its own: commits need the other one meanwhile.
        let mut zeros = Staging::default();
        let zeros = zeros.aligned(len.min(1 << 20) as usize);
        let mut at = 0;
        while at < len {
            let n = zeros.len().min((len - at) as usize);
            if at > 0 {
                between_pieces();
            }
            self.write_aligned(&zeros[..n], at)?;
            at += n as u64;
        }
        Ok(())
    }

    /// Writes bytes that lie and end on a block, as their offset does.
    fn write_aligned(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            match write_all_parts(direct, &mut [IoSlice::new(bytes)], Some(offset)) {
                // Larger blocks than ours, or the like.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                written => return written,
            }
        }
        write_all_parts(&self.file, &mut [IoSlice::new(bytes)], Some(offset))
    }
}

impl SegmentFile for DiskSegment {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(&self.file, buf, offset)
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let is_aligned = total.is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
        // Of the writer and the preparer, whoever finds the buffer in use goes through the cache and need not wait for a device.
        let staging = self.staging.try_lock().ok().filter(|_| self.direct.is_some() && is_aligned);
        let Some(mut staging) = staging else { return write_all_parts(&self.file, parts, Some(offset)) };
        let buffer = staging.aligned(total.min(STAGING_BYTES));
        let mut filled = 0;
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                let n = rest.len().min(buffer.len() - filled);
                buffer[filled..filled + n].copy_from_slice(&rest[..n]);
                (filled, rest) = (filled + n, &rest[n..]);
                if filled == buffer.len() {
                    self.write_aligned(buffer, offset)?;
                    offset += filled as u64;
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            self.write_aligned(&buffer[..filled], offset)?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fdatasync(&self.file)?)
    }
}

/// Memory that direct I/O can be done from, kept from one write to the next.
#[derive(Default)]
struct Staging(Vec<u8>);

impl Staging {
    /// `len` bytes, a multiple of a block, that begin on a block; with whatever was put there last.
    fn aligned(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + BLOCK {
            self.0 = vec![0; len + BLOCK];
        }
        let start = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[start..start + len]
    }
}

/// Makes a file, or the names in a directory, durable.
fn sync(file: &File) -> io::Result<()> {
    Ok(posthaste_fsops::fsync(file)?)
}

/// The file that is locked by whoever has the journal open.
pub(crate) const LOCK: &str = "lock";
/// How the names of segment files end.
pub(crate) const SEGMENT: &str = ".seg";
/// How the names of files end that hold damaged records.
pub(crate) const SET_ASIDE: &str = ".damaged";

/// Last part of the name of a segment file that is being created.
const UNFINISHED: &str = "new";

/// Nobody else reads what is kept here.
const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// Bytes that go to the device at once; a larger commit takes several writes.
const STAGING_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use posthaste_fsops::{Choice, Cut, Machine};

    use super::*;

    #[test]
    fn what_a_start_has_made_that_was_cut_short_is_durable_with_the_next() {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("journal");
        posthaste_fsops::mkdir(&dir, Mode::RWXU).unwrap();
        posthaste_fsops::open(dir.join("segment"), OFlags::CREATE | OFlags::WRONLY, OWNER).unwrap();
        make_dir(&dir).unwrap();
        let recording = machine.recording();
        let left = recording.cut(Cut { position: recording.events.len(), choice: Choice::Bits(0) });
        assert!(left.files().contains_key(Path::new("journal/segment")), "{:?}", left.files());
    }

    #[test]
    fn a_segment_whose_creation_was_cut_off_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let unfinished = dir.path().join(format!("0000000000000000.seg.{UNFINISHED}"));
        // As long as a whole one, and full of what lay on the disk before.
        std::fs::write(&unfinished, [0xDB; 8192]).unwrap();
        let storage = FileStorage::open(dir.path()).unwrap();
        assert!(!unfinished.exists());
        assert_eq!(storage.list().unwrap(), Vec::<String>::new());
        storage.create("0000000000000000.seg", 8192, &mut || ()).unwrap();
        assert_eq!(storage.list().unwrap(), ["0000000000000000.seg"]);
        assert!(!unfinished.exists());
    }
}
