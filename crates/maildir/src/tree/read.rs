//! Reads whole files in batches: one batch is read while the one before is being processed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::facts::{BODY_BYTES_MAX, Contents, FileFacts};
use super::method::IoMethod;
#[cfg(feature = "io-uring")]
use super::stat::bytes_read;

/// Reads files in batches. It can be sent to another thread, but is used by one thread at a time.
///
/// With [`IoMethod::Best`], cached files are read by ordinary calls, which is cheaper. Once a sample of files had to be
/// read from a disk, files are read in batches.
///
/// Memory: the largest file, and when batched 32 KiB for each file of two batches.
pub struct FileReader {
    /// Files requested and not delivered yet.
    waiting: Option<Vec<PathBuf>>,
    buffer: Vec<u8>,
    #[cfg(feature = "io-uring")]
    ring: Option<super::uring::ReadRing>,
    /// Batches read so far, while it is undecided if a ring is worth it.
    #[cfg(feature = "io-uring")]
    undecided: Option<usize>,
}

/// Asserts that a reader can be sent to another thread in every build, even with a ring and memory that the kernel
/// writes to.
const _: () = {
    const fn can_go_to_another_thread<T: Send>() {}
    can_go_to_another_thread::<FileReader>();
};

impl FileReader {
    /// Maximum files of one batch.
    pub const BATCH: usize = 32;

    /// A reader with a given method, if it is available.
    #[cfg_attr(not(feature = "io-uring"), expect(unused_variables, reason = "there is one way"))]
    pub fn new(method: IoMethod) -> Self {
        Self {
            waiting: None,
            buffer: Vec::new(),
            #[cfg(feature = "io-uring")]
            ring: if method == IoMethod::Batched { super::uring::ReadRing::new(Self::BATCH) } else { None },
            #[cfg(feature = "io-uring")]
            undecided: (method == IoMethod::Best).then_some(0),
        }
    }

    /// True if files are read in batches through io_uring.
    pub fn is_batched(&self) -> bool {
        #[cfg(feature = "io-uring")]
        return self.ring.is_some();
        #[cfg(not(feature = "io-uring"))]
        return false;
    }

    /// Begins to read `next`, at most [`BATCH`](Self::BATCH) files, and passes the files of the previous call to
    /// `each`, each with its index in that batch. An empty `next` returns the last batch.
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
        #[cfg(feature = "io-uring")]
        let bytes_before = self.takes_a_sample(before.is_empty()).then(bytes_read);
        for (place, path) in before.iter().enumerate() {
            each(place, read_file(path, &mut self.buffer));
        }
        #[cfg(feature = "io-uring")]
        if bytes_before.is_some_and(|bytes| bytes_read() != bytes) {
            self.read_batched();
        }
    }

    /// True if this batch is a sample that decides how later files are read. One batch does not settle it: some files
    /// may be cached while others are not.
    #[cfg(feature = "io-uring")]
    fn takes_a_sample(&mut self, is_empty: bool) -> bool {
        let Some(batches) = self.undecided.as_mut().filter(|_| !is_empty) else { return false };
        *batches += 1;
        *batches % SAMPLE_EVERY == 1
    }

    /// Switches to reading in batches, from the waiting files on, if io_uring is available.
    #[cfg(feature = "io-uring")]
    fn read_batched(&mut self) {
        self.undecided = None;
        self.ring = super::uring::ReadRing::new(Self::BATCH);
        if let Some(ring) = &mut self.ring {
            ring.turn(self.waiting.as_deref().unwrap_or_default(), |_, _| ());
        }
    }
}

/// One batch in this many is a sample.
#[cfg(feature = "io-uring")]
const SAMPLE_EVERY: usize = 8;

fn read_file<'a>(path: &Path, buffer: &'a mut Vec<u8>) -> io::Result<Contents<'a>> {
    let mut file = File::open(path)?;
    let stat = file.metadata()?;
    buffer.clear();
    buffer.reserve(usize::try_from(stat.len().min(BODY_BYTES_MAX)).unwrap_or(0) + 1);
    io::Read::by_ref(&mut file).take(BODY_BYTES_MAX).read_to_end(buffer)?;
    let mtime_ns = stat.mtime().saturating_mul(1_000_000_000).saturating_add(stat.mtime_nsec());
    Ok(Contents { bytes: buffer, facts: FileFacts { inode: stat.ino(), size: stat.len(), mtime_ns } })
}

#[cfg(all(test, feature = "io-uring"))]
mod tests {
    use super::*;

    #[test]
    fn what_waits_when_the_way_changes_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..9).map(|n| dir.path().join(n.to_string())).collect();
        paths.iter().for_each(|path| std::fs::write(path, path.to_str().unwrap()).unwrap());
        for change_at in 0..5 {
            let mut reader = FileReader::new(IoMethod::Best);
            let mut seen = Vec::new();
            let mut before: &[PathBuf] = &[];
            for (number, next) in paths.chunks(2).chain([&[][..]]).enumerate() {
                reader.turn(next.to_vec(), |place, read| {
                    assert_eq!(read.unwrap().bytes, before[place].to_str().unwrap().as_bytes());
                    seen.push(before[place].clone());
                });
                if number == change_at && !reader.is_batched() {
                    reader.read_batched();
                }
                before = next;
            }
            assert_eq!(seen, paths, "{change_at}");
        }
    }
}
