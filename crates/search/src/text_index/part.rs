//! A file of the index that is read by calls instead of mapped.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tantivy::HasLen;
use tantivy::directory::{FileHandle, OwnedBytes};

/// Opening a file, the engine reads this much of its end, a few octets at a time.
const END_BYTES: usize = 1024;

/// An open file that is not mapped: mapping and unmapping it costs more than reading the few octets that a search
/// needs.
#[derive(Debug)]
pub(super) struct Part {
    file: File,
    len: usize,
    /// The last octets.
    end: OwnedBytes,
}

impl Part {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let end = read(&file, len.saturating_sub(END_BYTES)..len)?;
        Ok(Self { file, len, end })
    }
}

fn read(file: &File, range: Range<usize>) -> io::Result<OwnedBytes> {
    let mut bytes = vec![0; range.len()];
    file.read_exact_at(&mut bytes, range.start as u64)?;
    Ok(OwnedBytes::new(bytes))
}

impl HasLen for Part {
    fn len(&self) -> usize {
        self.len
    }
}

impl FileHandle for Part {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let end_starts = self.len - self.end.len();
        if (end_starts..=self.len).contains(&range.start) && range.end <= self.len {
            return Ok(self.end.slice(range.start - end_starts..range.end - end_starts));
        }
        read(&self.file, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_reads_as_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        for len in [0, 1, END_BYTES - 1, END_BYTES, END_BYTES + 1, 5000] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let part = Part::open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(part.len(), len);
            for start in (0..=len).step_by(61) {
                for end in [start, (start + 9).min(len), len] {
                    assert_eq!(
                        part.read_bytes(start..end).unwrap().as_slice(),
                        &bytes[start..end],
                        "{start} {end} of {len}"
                    );
                }
            }
            assert!(part.read_bytes(0..len + 1).is_err());
        }
    }
}
