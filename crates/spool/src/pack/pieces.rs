//! Reads short parts of a file, most of them one after the other.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use bytes::Bytes;

/// The piece of a file that was read last, and its offset.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Mutex<(u64, Bytes)>);

impl Pieces {
    /// A part of the file: out of the piece that was read last, or of the next one, which begins with it. Less than `len` where the file ends.
    pub fn read(&self, file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
        let within = |at: u64, piece: &Bytes| {
            let start = usize::try_from(offset.checked_sub(at)?).ok()?;
            let end = start.checked_add(len).filter(|end| *end <= piece.len())?;
            // A copy, so that a part that is kept does not keep the whole piece in memory.
            Some(Bytes::copy_from_slice(&piece[start..end]))
        };
        let mut last = self.0.lock().expect("nothing panics while it is held");
        if let Some(found) = within(last.0, &last.1) {
            return Ok(found);
        }
        // A single look-up is not worth a large read.
        let is_next = offset >= last.0 && offset - last.0 <= (last.1.len() + PIECE_BYTES) as u64;
        let mut bytes = vec![0; if is_next { PIECE_BYTES } else { SINGLE_BYTES }.max(len)];
        let read = file.read_at(&mut bytes, offset)?;
        bytes.truncate(read);
        let piece = Bytes::from(bytes);
        if piece.len() > PIECE_BYTES {
            return Ok(piece.slice(..len.min(piece.len())));
        }
        *last = (offset, piece);
        Ok(within(last.0, &last.1).unwrap_or_else(|| last.1.clone()))
    }
}

/// Read at once for parts that lie close together.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Read at once for a part that is far from the last one.
const SINGLE_BYTES: usize = 4 << 10;
