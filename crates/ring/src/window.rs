//! Reads a segment file part by part. Unreadable blocks are zeros.

use std::io;
use std::ops::Range;

use crate::file::{SegmentFile, Source, Staging};
use crate::layout::BLOCK;

/// A window of a segment file in memory, moved during reading.
pub(crate) struct Window<'a> {
    file: &'a SegmentFile,
    source: Source,
    len: u64,
    start: u64,
    buffer: Staging,
    filled: usize,
    ahead: usize,
    /// Blocks that could not be read so far.
    pub unreadable: Vec<Range<u64>>,
    /// Bytes read so far.
    pub bytes_read: u64,
}

impl<'a> Window<'a> {
    /// Reads at least `ahead` bytes at a time.
    pub fn new(file: &'a SegmentFile, source: Source, ahead: usize) -> io::Result<Self> {
        let len = file.len()?;
        let buffer = Staging::default();
        let unreadable = Vec::new();
        Ok(Window { file, source, len, start: 0, buffer, filled: 0, ahead, unreadable, bytes_read: 0 })
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// True if an examined range was readable.
    pub fn could_read(&self, range: Range<u64>) -> bool {
        self.unreadable.iter().all(|bad| bad.end <= range.start || range.end <= bad.start)
    }

    /// Limits the file's end to `end`.
    pub fn end_at(&mut self, end: u64) {
        self.len = self.len.min(end);
    }

    /// Changes the read-ahead.
    pub fn set_ahead(&mut self, ahead: usize) {
        self.ahead = ahead;
    }

    /// `len` bytes from `at`, or fewer at the end of the file.
    pub fn get(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let at = at.min(self.len);
        let end = at.saturating_add(len as u64).min(self.len);
        if at < self.start || end > self.start + self.filled as u64 {
            let start = at / BLOCK as u64 * BLOCK as u64;
            let until = end.max(start.saturating_add(self.ahead as u64)).min(self.len);
            self.fill(start, (until - start) as usize)?;
        }
        let bytes = self.buffer.aligned(self.filled);
        Ok(&bytes[(at - self.start) as usize..(end - self.start) as usize])
    }

    fn fill(&mut self, start: u64, len: usize) -> io::Result<()> {
        // What an error leaves of it must not be taken for the file's.
        (self.start, self.filled) = (start, 0);
        let bytes = self.buffer.aligned(len.next_multiple_of(BLOCK));
        let (read, unreadable) = self.file.read_blocks(self.source, bytes, start)?;
        if read < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.filled = len;
        self.bytes_read += len as u64;
        self.unreadable.extend(unreadable.into_iter().map(|range| range.start..range.end.min(self.len)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use rustix::fs::OFlags;

    use super::*;

    #[test]
    fn a_window_has_the_same_bytes_before_and_after_the_write() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let file = SegmentFile::open(&path, OFlags::empty(), Arc::default()).unwrap();
        let writer = std::fs::File::options().write(true).open(&path).unwrap();
        let mut expected = Vec::new();
        // Each is in the page cache alone when it is read.
        for (round, len) in [5 * BLOCK, 9 * BLOCK + 100, 9 * BLOCK + 101].into_iter().enumerate() {
            let changed = expected.len() / 2;
            expected.resize(len, 0);
            expected[changed..].fill(round as u8 + 1);
            writer.write_all_at(&expected[changed..], changed as u64).unwrap();
            for source in [Source::Disk, Source::Cache] {
                for ahead in [0, 3 * BLOCK, 1 << 20] {
                    let mut window = Window::new(&file, source, ahead).unwrap();
                    for at in (0..len).step_by(1000).chain([0, len - 1, len]) {
                        let end = (at + 1500).min(len);
                        let context = format!("{source:?}, {ahead} ahead, {at} of {len}");
                        assert!(window.get(at as u64, 1500).unwrap() == &expected[at..end], "{context}");
                    }
                    assert!(window.could_read(0..len as u64));
                }
            }
        }
    }
}
