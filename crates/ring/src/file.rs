//! One segment file: written with direct I/O (`O_DIRECT`) where the file system supports it; scans read with direct I/O, too.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use posthaste_fsops::write_all_parts;
use rustix::fs::{Advice, IFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::layout::BLOCK;

/// A segment file. Writes go through an aligned buffer directly to the device: they bypass the page cache, and a sync
/// has nothing to write back (measured in bench-results/segments).
pub(crate) struct SegmentFile {
    file: File,
    direct: Option<File>,
    staging: Arc<Mutex<Staging>>,
}

impl SegmentFile {
    /// Opens a file for reading and writing; `how`: additional flags to create it.
    pub fn open(path: &Path, how: OFlags, staging: Arc<Mutex<Staging>>) -> io::Result<Self> {
        let open = |how: OFlags| posthaste_fsops::open(path, how | OFlags::RDWR | OFlags::CLOEXEC, OWNER);
        let file = File::from(open(how)?);
        let direct = match open(OFlags::DIRECT) {
            Ok(direct) => Some(File::from(direct)),
            // Without direct I/O the page cache works as well, only slower.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(SegmentFile { file, direct, staging })
    }

    /// Opens the file read-only.
    pub fn open_to_read(path: &Path) -> io::Result<Self> {
        Ok(SegmentFile { file: File::open(path)?, direct: None, staging: Arc::default() })
    }

    pub fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// True if it has a second name: then it is also a pack.
    pub fn is_linked_elsewhere(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 1)
    }

    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match read_to_end(&self.file, bytes, offset)? {
            read if read == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Drops a range from the page cache, except dirty pages: the next read asks the disk.
    pub fn forget_cached(&self, offset: u64, len: u64) {
        let first = offset / BLOCK as u64 * BLOCK as u64;
        let end = (offset + len).next_multiple_of(BLOCK as u64);
        // Without this call the next read sees the same cached bytes.
        let _ = rustix::fs::fadvise(&self.file, first, NonZeroU64::new(end - first), Advice::DontNeed);
    }

    /// Fills `bytes`, whole blocks of a [`Staging`], from the block-aligned `offset` up to the end of the file. Returns
    /// the number of bytes, and the unreadable blocks, which are filled with zeros.
    pub fn read_blocks(&self, source: Source, bytes: &mut [u8], offset: u64) -> io::Result<(usize, Vec<Range<u64>>)> {
        let is_bad_sector = |error: &io::Error| error.raw_os_error() == Some(Errno::IO.raw_os_error());
        match self.read_to_end(source, bytes, offset) {
            Err(error) if is_bad_sector(&error) => {}
            read => return Ok((read?, Vec::new())),
        }
        let (mut total, mut unreadable): (_, Vec<Range<u64>>) = (0, Vec::new());
        for (at, block) in (offset..).step_by(BLOCK).zip(bytes.chunks_mut(BLOCK)) {
            match self.read_to_end(source, block, at) {
                Err(error) if is_bad_sector(&error) => {
                    block.fill(0);
                    total += block.len();
                    let end = at + block.len() as u64;
                    match unreadable.last_mut().filter(|last| last.end == at) {
                        Some(last) => last.end = end,
                        None => unreadable.push(at..end),
                    }
                }
                read => total += read?,
            }
        }
        Ok((total, unreadable))
    }

    fn read_to_end(&self, source: Source, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(direct) = self.direct.as_ref().filter(|_| source == Source::Disk) {
            match read_to_end(direct, bytes, offset) {
                // The device has larger blocks, or the file ends within a block.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                read => return read,
            }
        }
        read_to_end(&self.file, bytes, offset)
    }

    /// Writes all parts in sequence, from `offset` on.
    pub fn write_all_at(&self, parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let is_aligned = total.is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
        // The writer and the preparer share the buffer. If it is in use, the other writes through the cache instead of waiting for a device.
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

    /// Writes block-aligned bytes at a block-aligned offset.
    pub fn write_aligned(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            match write_all_parts(direct, &mut [IoSlice::new(bytes)], Some(offset)) {
                // The device has larger blocks, or a similar reason.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                written => return written,
            }
        }
        write_all_parts(&self.file, &mut [IoSlice::new(bytes)], Some(offset))
    }

    /// Writes zeros, as `fallocate` is not enough: only blocks written once make a later `fdatasync` free of a
    /// file-system journal commit (ext4 and XFS; measured in bench-results/segments).
    pub fn fill_with_zeros(&self, len: u64, between_pieces: &mut dyn FnMut()) -> io::Result<()> {
        // On btrfs copy-on-write would undo the point of overwriting in place. It can be turned off only while the file is
        // empty, and other file systems do not know the flag: not an error.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&self.file) {
            let _ = rustix::fs::ioctl_setflags(&self.file, flags | IFlags::NOCOW);
        }
        // A buffer of its own: commits need the other one meanwhile.
        let mut zeros = Staging::default();
        let zeros = zeros.aligned(len.min(PIECE_BYTES) as usize);
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

    /// Makes every write that has returned durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fdatasync(&self.file)?)
    }

    /// Like [`sync`](Self::sync), and with the size of the file.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fsync(&self.file)?)
    }
}

fn read_to_end(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut total = 0;
    while total < bytes.len() {
        match posthaste_fsops::pread(file, &mut bytes[total..], offset + total as u64) {
            Ok(0) => break,
            Err(Errno::INTR) => {}
            read => total += read?,
        }
    }
    Ok(total)
}

/// The source of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Through the page cache: for single records, which may be read again soon.
    Cache,
    /// From the disk, if direct I/O is supported: for data read once. It uses no page cache, which otherwise takes most
    /// of the time of an opening (measured in bench-results/spool). Dirty pages are written first.
    Disk,
}

/// Aligned memory for direct I/O, reused between writes.
#[derive(Default)]
pub(crate) struct Staging(Vec<u8>);

impl Staging {
    /// `len` bytes, a multiple of a block, block-aligned; with their previous content.
    pub fn aligned(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + BLOCK {
            self.0 = vec![0; len + BLOCK];
        }
        let start = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[start..start + len]
    }
}

/// Mode of new files: owner only.
pub(crate) const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// Bytes of one write to the device; a larger commit takes several.
const STAGING_BYTES: usize = 4 << 20;

/// Bytes of zeros that are written between two pauses.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
