//! Reads short parts of a file, mostly sequentially.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use bytes::Bytes;

/// The piece of a file that was read last, and its offset.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Mutex<(u64, Bytes)>);

impl Pieces {
    /// A part of the file: from the last piece read, or from a new one that begins with it. Shorter than `len` at the
    /// end of the file.
    pub fn read(&self, file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
        let within = |at: u64, piece: &Bytes| {
            let start = usize::try_from(offset.checked_sub(at)?).ok()?;
            let end = start.checked_add(len).filter(|end| *end <= piece.len())?;
            // A copy, so that a small part does not keep the whole piece in memory.
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

/// Bytes of one read for adjacent parts.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Bytes of one read for a distant part.
const SINGLE_BYTES: usize = 4 << 10;
