//! Reads a message from memory or from the spool.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::{FrontFields, Lsn, ReadError, SetAside, Spool};

/// The octets of a message for one target: its prefix, then the front fields and the body of its batch. Clones share
/// them. Offsets begin at the prefix; without a prefix they equal the offsets of [`Spool::read`].
#[derive(Clone)]
pub struct MessageReader {
    prefix: Bytes,
    /// Octets of front fields and body.
    batch_len: u64,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Memory(Arc<[Bytes]>),
    Spool { spool: Arc<dyn Spool>, batch: Lsn },
}

/// A message that can never be read completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostMessage {
    /// Text of the read error.
    pub why: String,
    /// File with the readable rest; `None` if nothing was kept.
    pub kept: Option<PathBuf>,
}

impl MessageReader {
    /// A message in memory, as passed by the caller: front fields first.
    pub fn in_memory(parts: Arc<[Bytes]>) -> Self {
        let batch_len = parts.iter().map(|part| part.len() as u64).sum();
        MessageReader { prefix: Bytes::new(), batch_len, source: Source::Memory(parts) }
    }

    /// A message not appended yet.
    pub fn of_draft(front: &FrontFields, parts: &[Bytes]) -> Self {
        Self::in_memory(std::iter::once(front.bytes()).chain(parts).cloned().collect())
    }

    /// A message in the spool. `len` includes front fields and body, like every length in the spool.
    pub fn in_spool(spool: Arc<dyn Spool>, batch: Lsn, len: u64) -> Self {
        MessageReader { prefix: Bytes::new(), batch_len: len, source: Source::Spool { spool, batch } }
    }

    /// Like [`in_spool`](Self::in_spool), for a caller that does not know the length. Blocks.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn open(spool: Arc<dyn Spool>, batch: Lsn) -> Result<Self, ReadError> {
        // The spool reports the length when a reader asks for more.
        match spool.read(batch, u64::MAX - 1..u64::MAX) {
            Err(ReadError::OutOfRange { len, .. }) => Ok(Self::in_spool(spool, batch, len)),
            Err(error) => Err(error),
            Ok(_) => Err(ReadError::OutOfRange { lsn: batch, len: u64::MAX }),
        }
    }

    /// Adds octets in front, such as Return-Path and Delivered-To of a target.
    #[must_use]
    pub fn with_prefix(self, prefix: Bytes) -> Self {
        MessageReader { prefix, ..self }
    }

    /// Octets of prefix, front fields and body together.
    pub fn len(&self) -> u64 {
        self.prefix.len() as u64 + self.batch_len
    }

    /// True if the message has no octets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if reading needs no disk.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.source, Source::Memory(_))
    }

    /// The next octets from `from` on: at most `len_max`, and empty only at the end of the message. Data in memory are
    /// not copied, so a piece may end at a part's end. Blocks if the message is in the spool.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn piece(&self, from: u64, len_max: u64) -> Result<Bytes, ReadError> {
        let prefix_len = self.prefix.len() as u64;
        if from < prefix_len {
            return Ok(part_of(&self.prefix, from, len_max));
        }
        let from = from - prefix_len;
        let to = from.saturating_add(len_max).min(self.batch_len);
        if from >= to {
            return Ok(Bytes::new());
        }
        match &self.source {
            Source::Memory(parts) => {
                let mut at = from;
                for part in parts.iter() {
                    match part.len() as u64 {
                        len if at < len => return Ok(part_of(part, at, len_max)),
                        len => at -= len,
                    }
                }
                Ok(Bytes::new())
            }
            Source::Spool { spool, batch } => {
                let piece = spool.read(*batch, from..to)?;
                if piece.len() as u64 == to - from {
                    Ok(piece)
                } else {
                    Err(ReadError::OutOfRange { lsn: *batch, len: from + piece.len() as u64 })
                }
            }
        }
    }

    /// The first `len_max` octets, in pieces of at most 1 MiB, or of the parts in memory. Blocks if the message is in
    /// the spool.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn pieces(&self, len_max: u64) -> Result<Vec<Bytes>, ReadError> {
        let mut pieces = Vec::with_capacity(match &self.source {
            Source::Memory(parts) => parts.len() + 1,
            Source::Spool { .. } => 2,
        });
        if let (Source::Memory(parts), true) = (&self.source, len_max >= self.len()) {
            pieces.extend(std::iter::once(&self.prefix).chain(parts.iter()).filter(|part| !part.is_empty()).cloned());
            return Ok(pieces);
        }
        let mut at = 0;
        let end = self.len().min(len_max);
        while at < end {
            let piece = self.piece(at, PIECE_BYTES.min(end - at))?;
            at += piece.len() as u64;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Decides if an attempt failed for good, because the message is damaged or gone. First copies the readable rest
    /// into a file. Blocks.
    ///
    /// # Errors
    /// The reason to retry: the failure may be temporary, or the rest could not be copied.
    pub fn give_up(&self, failed: io::Error) -> io::Result<LostMessage> {
        let unreadable = failed.get_ref().and_then(|error| error.downcast_ref());
        let (Some(Unreadable(error)), Source::Spool { spool, batch }) = (unreadable, &self.source) else {
            return Err(failed);
        };
        let lost = |kept| Ok(LostMessage { why: error.to_string(), kept });
        match error {
            ReadError::NotFound(_) => return lost(None),
            ReadError::Damaged { .. } => {}
            // All other failures can be repaired: a file put back, an index repaired, a disk replaced.
            _ => return Err(failed),
        }
        match spool.set_aside(*batch) {
            Ok(SetAside::Kept(path)) => lost(Some(path)),
            Ok(SetAside::Whole) => Err(failed),
            Ok(SetAside::Gone { why }) => Err(io::Error::other(format!("{failed}; {why}"))),
            Err(kept) => {
                Err(io::Error::new(kept.kind(), format!("{failed}; what is left of it cannot be kept: {kept}")))
            }
        }
    }
}

impl std::fmt::Debug for MessageReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageReader").field("prefix", &self.prefix.len()).field("batch_len", &self.batch_len).finish()
    }
}

/// A failed read as an [`io::Error`], for code that writes files. [`MessageReader::give_up`] finds it there.
#[derive(Debug, thiserror::Error)]
#[error("its body cannot be read: {0}")]
struct Unreadable(ReadError);

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match error {
            ReadError::Damaged { .. } | ReadError::NotFound(_) => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, Unreadable(error))
    }
}

fn part_of(part: &Bytes, from: u64, len_max: u64) -> Bytes {
    let to = from.saturating_add(len_max).min(part.len() as u64);
    part.slice(from as usize..to as usize)
}

/// Octets read from the spool at a time.
const PIECE_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Body, Config, Entry, FileSpool};

    const FRONT: &str = "Received: x\r\n";

    /// A message of several parts, once in memory and once in the spool.
    fn readers(dir: &std::path::Path) -> [MessageReader; 2] {
        let (spool, _) = FileSpool::open(dir, Config { keeper: false, ..Config::default() }).unwrap();
        let spool: Arc<dyn Spool> = Arc::new(spool);
        let parts: Vec<Bytes> = vec![Bytes::from_static(b"Subject: y\r\n\r\n"), Bytes::new(), vec![7; 3000].into()];
        let (tell, told) = std::sync::mpsc::channel();
        let entry = Entry { stream: spool.stream("one").unwrap(), needs_body: true, payload: Bytes::new() };
        let front = FrontFields::new(FRONT).unwrap();
        let body = Body::Inline(front.clone(), parts.clone());
        spool.append(Batch { entries: vec![entry], body }, Box::new(move |outcome| tell.send(outcome).unwrap()));
        let batch = told.recv().unwrap().unwrap();
        [MessageReader::of_draft(&front, &parts), MessageReader::open(spool, batch).unwrap()]
    }

    #[test]
    fn prefix_front_fields_and_body_are_one_run_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        for prefix in ["", "Return-Path: <>\r\n"] {
            let whole = [prefix.as_bytes(), FRONT.as_bytes(), b"Subject: y\r\n\r\n", &[7; 3000]].concat();
            for reader in readers(&dir.path().join(prefix.len().to_string())) {
                let reader = reader.with_prefix(prefix.into());
                assert_eq!(reader.len(), whole.len() as u64);
                for len_max in [1, 7, 5000] {
                    let mut read = Vec::new();
                    loop {
                        let piece = reader.piece(read.len() as u64, len_max).unwrap();
                        assert!(piece.len() as u64 <= len_max);
                        if piece.is_empty() {
                            break;
                        }
                        read.extend_from_slice(&piece);
                    }
                    assert!(read == whole, "{reader:?} {len_max}");
                }
                for len_max in [0, 1, prefix.len(), prefix.len() + 3, whole.len() - 1, whole.len(), usize::MAX] {
                    let read = reader.pieces(len_max as u64).unwrap().concat();
                    assert!(read == whole[..len_max.min(whole.len())], "{reader:?} {len_max}");
                }
            }
        }
    }

    #[test]
    fn a_message_in_memory_is_not_copied() {
        let part = Bytes::from(vec![7; 3000]);
        let reader = MessageReader::in_memory([part.clone()].into());
        assert_eq!(reader.piece(0, u64::MAX).unwrap().as_ptr(), part.as_ptr());
        assert_eq!(reader.pieces(u64::MAX).unwrap()[0].as_ptr(), part.as_ptr());
    }

    #[test]
    fn a_length_beyond_the_batch_is_an_error_and_no_loss() {
        let dir = tempfile::tempdir().unwrap();
        let [_, reader] = readers(dir.path());
        let reader = MessageReader { batch_len: reader.batch_len + 1, ..reader };
        let error = reader.pieces(u64::MAX).unwrap_err();
        assert!(matches!(error, ReadError::OutOfRange { .. }), "{error}");
        assert!(reader.give_up(error.into()).is_err());
    }

    #[test]
    fn a_message_that_is_gone_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let [memory, stored] = readers(dir.path());
        let gone = || io::Error::from(ReadError::NotFound(Lsn::new(9)));
        let lost = stored.give_up(gone()).unwrap();
        assert_eq!((lost.why, lost.kept), ("no stream needs batch 9".to_owned(), None));
        assert_eq!(memory.give_up(gone()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(stored.give_up(io::ErrorKind::StorageFull.into()).is_err());
    }
}
