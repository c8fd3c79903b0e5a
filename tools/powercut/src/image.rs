//! The bytes of a disk, shared between copies until one is written.

use std::sync::Arc;

/// Unit of sharing and copying, in bytes.
pub const CHUNK: usize = 4096;

type Chunk = Arc<[u8; CHUNK]>;

/// A disk's bytes. A copy costs a pointer for each 4 KiB that ever held anything but zeros.
#[derive(Clone)]
pub struct Image {
    chunks: Vec<Option<Chunk>>,
}

impl Image {
    /// A disk of `bytes` zeros; a multiple of [`CHUNK`].
    pub fn zeros(bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(CHUNK as u64), "{bytes} bytes are not whole chunks");
        Image { chunks: vec![None; (bytes / CHUNK as u64) as usize] }
    }

    /// Bytes of the disk.
    pub fn len(&self) -> u64 {
        (self.chunks.len() * CHUNK) as u64
    }

    /// True if the disk has no bytes.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Copies the bytes at `offset` into `buffer`, as many as fit and exist. Returns their number.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset as usize + done;
            let Some(chunk) = self.chunks.get(at / CHUNK) else { break };
            let within = at % CHUNK;
            let n = (CHUNK - within).min(buffer.len() - done);
            let part = &mut buffer[done..done + n];
            match chunk {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + n]),
                None => part.fill(0),
            }
            done += n;
        }
        done
    }

    /// Writes `data` at `offset`; all of it must lie within the disk.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.each_part(offset, data.len(), |chunk, within, range| {
            let data = &data[range];
            if data.len() == CHUNK && data.iter().all(|byte| *byte == 0) {
                *chunk = None;
                return;
            }
            let bytes = chunk.get_or_insert_with(|| Arc::new([0; CHUNK]));
            Arc::make_mut(bytes)[within..within + data.len()].copy_from_slice(data);
        });
    }

    /// Fills a range with zeros.
    pub fn clear(&mut self, offset: u64, len: u64) {
        self.each_part(offset, len as usize, |chunk, within, range| match chunk {
            _ if range.len() == CHUNK => *chunk = None,
            Some(bytes) => Arc::make_mut(bytes)[within..within + range.len()].fill(0),
            None => {}
        });
    }

    /// Every chunk that is not all zeros, with its offset.
    pub fn occupied(&self) -> impl Iterator<Item = (u64, &[u8; CHUNK])> {
        let all = (0..).step_by(CHUNK).zip(&self.chunks);
        all.filter_map(|(offset, chunk)| Some((offset, &**chunk.as_ref()?))).filter(|(_, bytes)| **bytes != [0; CHUNK])
    }

    fn each_part(
        &mut self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&mut Option<Chunk>, usize, std::ops::Range<usize>),
    ) {
        assert!(offset + len as u64 <= self.len(), "{offset} + {len} is beyond the disk's {}", self.len());
        let mut done = 0;
        while done < len {
            let at = offset as usize + done;
            let within = at % CHUNK;
            let n = (CHUNK - within).min(len - done);
            each(&mut self.chunks[at / CHUNK], within, done..done + n);
            done += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_nothing_however_they_came() {
        let mut image = Image::zeros(2 * CHUNK as u64);
        image.write(100, &[0; 10]);
        image.write(5000, &[7; 10]);
        assert_eq!(image.occupied().map(|(offset, _)| offset).collect::<Vec<_>>(), [4096]);
        image.clear(4990, 30);
        assert_eq!(image.occupied().count(), 0);
    }

    #[test]
    fn a_copy_does_not_see_what_is_written_later() {
        let mut image = Image::zeros(4 * CHUNK as u64);
        image.write(4000, &[7; 5000]);
        let copy = image.clone();
        image.write(4096, &[8; 10]);
        image.clear(8000, 96);
        let at = |image: &Image, offset| {
            let mut byte = [0];
            assert_eq!(image.read(offset, &mut byte), 1);
            byte[0]
        };
        assert_eq!(
            (at(&copy, 3999), at(&copy, 4000), at(&copy, 4096), at(&copy, 8999), at(&copy, 9000)),
            (0, 7, 7, 7, 0)
        );
        assert_eq!((at(&image, 4096), at(&image, 4106), at(&image, 8000), at(&image, 8999)), (8, 7, 0, 7));
        assert_eq!(copy.occupied().count(), 3);
    }
}
