//! Reading through a segment file: a part at a time, whatever the disk cannot read left as zeros.

use std::io;
use std::ops::Range;

use crate::file::SegmentFile;
use crate::layout::BLOCK;

/// A part of a segment file in memory, moved along as it is read.
pub(crate) struct Window<'a> {
    file: &'a SegmentFile,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
    ahead: usize,
    /// Blocks that could not be read so far.
    pub unreadable: Vec<Range<u64>>,
    /// Bytes read so far.
    pub bytes_read: u64,
}

impl<'a> Window<'a> {
    /// Reads at least `ahead` bytes at a time.
    pub fn new(file: &'a SegmentFile, ahead: usize) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Window { file, len, start: 0, bytes: Vec::new(), ahead, unreadable: Vec::new(), bytes_read: 0 })
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// From now on the file ends here, at the latest.
    pub fn end_at(&mut self, end: u64) {
        self.len = self.len.min(end);
    }

    /// Changes how much is read at a time from now on.
    pub fn set_ahead(&mut self, ahead: usize) {
        self.ahead = ahead;
    }

    /// `len` bytes from `at`, or fewer at the end of the file.
    pub fn get(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let at = at.min(self.len);
        let end = at.saturating_add(len as u64).min(self.len);
        if at < self.start || end > self.start + self.bytes.len() as u64 {
            let start = at / BLOCK as u64 * BLOCK as u64;
            let until = end.max(start.saturating_add(self.ahead as u64)).min(self.len);
            self.bytes.resize((until - start) as usize, 0);
            self.start = start;
            let read = self.file.read_what_can_be_read(&mut self.bytes, start);
            if read.is_err() {
                // What is left of it must not be taken for the file's.
                self.bytes.clear();
            }
            self.bytes_read += self.bytes.len() as u64;
            self.unreadable.extend(read?);
        }
        Ok(&self.bytes[(at - self.start) as usize..(end - self.start) as usize])
    }
}
