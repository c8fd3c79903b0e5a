//! Whole files, many after each other: one batch is read while the one before is being worked on.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{FileFacts, Way};

/// Bytes of one file that are read; a larger one is cut there.
pub const BODY_BYTES_MAX: u64 = 256 << 20;

/// A file that was read.
#[derive(Debug)]
pub struct Contents<'a> {
    /// Up to [`BODY_BYTES_MAX`] bytes.
    pub bytes: &'a [u8],
    /// Size and time when it was read.
    pub facts: FileFacts,
}

/// Reads files in batches. Not shared between threads: each has its own, which may be made by another.
///
/// Memory: the largest file, and when batched 64 KiB for each file of two batches.
pub struct FileReader {
    /// Asked for and not handed out.
    waiting: Option<Vec<PathBuf>>,
    buffer: Vec<u8>,
    #[cfg(feature = "io-uring")]
    ring: Option<super::uring::ReadRing>,
}

/// In every build, also with rings and memory that the kernel writes to.
const _: () = {
    const fn can_go_to_another_thread<T: Send>() {}
    can_go_to_another_thread::<FileReader>();
};

impl FileReader {
    /// Files of one batch at most.
    pub const BATCH: usize = 32;

    /// A reader that goes about it in a given way, if that is possible.
    #[cfg_attr(not(feature = "io-uring"), expect(unused_variables, reason = "there is one way"))]
    pub fn new(way: Way) -> Self {
        Self {
            waiting: None,
            buffer: Vec::new(),
            #[cfg(feature = "io-uring")]
            ring: if way == Way::OneByOne { None } else { super::uring::ReadRing::new(Self::BATCH) },
        }
    }

    /// Whether files are read many at once.
    pub fn is_batched(&self) -> bool {
        #[cfg(feature = "io-uring")]
        return self.ring.is_some();
        #[cfg(not(feature = "io-uring"))]
        return false;
    }

    /// Begins to read `next`, at most [`BATCH`](Self::BATCH) files, and hands out those of the call before, each with its place in that
    /// batch. The last batch comes with an empty `next`.
    pub fn turn(&mut self, next: Vec<PathBuf>, mut each: impl FnMut(usize, io::Result<Contents<'_>>)) {
        assert!(next.len() <= Self::BATCH, "{} files in a batch", next.len());
        let before = self.waiting.replace(next).unwrap_or_default();
        #[cfg(feature = "io-uring")]
        if let Some(ring) = &mut self.ring {
            let next = self.waiting.as_deref().unwrap_or_default();
            ring.turn(next, |place, read| match read {
                Some(contents) => each(place, Ok(contents)),
                // Larger than a buffer, or the ring met with trouble, which an ordinary call can name.
                None => each(place, read_file(&before[place], &mut self.buffer)),
            });
            return;
        }
        for (place, path) in before.iter().enumerate() {
            each(place, read_file(path, &mut self.buffer));
        }
    }
}

fn read_file<'a>(path: &Path, buffer: &'a mut Vec<u8>) -> io::Result<Contents<'a>> {
    let mut file = File::open(path)?;
    let stat = file.metadata()?;
    buffer.clear();
    buffer.reserve(usize::try_from(stat.len().min(BODY_BYTES_MAX)).unwrap_or(0) + 1);
    io::Read::by_ref(&mut file).take(BODY_BYTES_MAX).read_to_end(buffer)?;
    let mtime_ns = stat.mtime().saturating_mul(1_000_000_000).saturating_add(stat.mtime_nsec());
    Ok(Contents { bytes: buffer, facts: FileFacts { inode: stat.ino(), size: stat.len(), mtime_ns } })
}
