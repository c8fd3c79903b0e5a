//! Content of a message's Maildir file. A large body is copied from the spool piece by piece.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_intake::LargeBody;
use posthaste_maildir::line_ends::{LineEndScan, crlf_to_lf, wire_size_as_stored};
use posthaste_spool::MessageReader;

use super::message::{LineEnds, MailboxTarget};

/// The octets of a message, and the time spent on them.
pub(crate) struct Source<'a> {
    /// The message without the target's prefix.
    pub reader: &'a MessageReader,
    pub large: Option<LargeBody>,
    /// Called before each step that may be slow.
    pub step: &'a dyn Fn(),
}

/// A message ready to be written.
pub(crate) struct Content<'a> {
    /// Bytes of the file: `S=` in its name.
    pub disk_size: u64,
    /// Bytes with CRLF line ends: `W=` in the file name.
    pub wire_size: u64,
    /// INTERNALDATE: the file's modification time.
    pub modified: SystemTime,
    /// The first part of the message, or all of it.
    head: Vec<u8>,
    /// Present if a large body follows; true if its CRs are removed.
    tail: Option<bool>,
    source: Source<'a>,
}

impl<'a> Content<'a> {
    /// # Errors
    /// The body cannot be read from the spool.
    pub fn new(
        target: &MailboxTarget,
        line_ends: LineEnds,
        internal_date: u32,
        source: Source<'a>,
    ) -> io::Result<Self> {
        let modified = UNIX_EPOCH + Duration::from_secs(internal_date.into());
        if let Some(large) = source.large {
            return Ok(Self::large(target, line_ends, modified, source, large));
        }
        if !source.reader.is_in_memory() {
            (source.step)();
        }
        let pieces = source.reader.clone().with_prefix(target.prefix.clone()).pieces(u64::MAX)?;
        let mut head = Vec::new();
        let (disk_size, wire_size) = match line_ends {
            LineEnds::ToLf => {
                let sizes = crlf_to_lf(&pieces, &mut head);
                (sizes.disk_size, sizes.wire_size)
            }
            LineEnds::AsGiven => {
                head = pieces.concat();
                (head.len() as u64, wire_size_as_stored(&head))
            }
        };
        Ok(Content { disk_size, wire_size, modified, head, tail: None, source })
    }

    fn large(
        target: &MailboxTarget,
        line_ends: LineEnds,
        modified: SystemTime,
        source: Source<'a>,
        large: LargeBody,
    ) -> Self {
        let strip_cr = line_ends == LineEnds::ToLf && large.is_lossless;
        let mut head = Vec::new();
        let mut disk_size = source.reader.len();
        if strip_cr {
            crlf_to_lf(&[&target.prefix], &mut head);
            disk_size -= large.crlfs;
        } else {
            head.extend_from_slice(&target.prefix);
        }
        disk_size += head.len() as u64;
        let wire_size = match line_ends {
            LineEnds::ToLf => target.prefix.len() as u64 + source.reader.len(),
            LineEnds::AsGiven => disk_size + large.lone_lfs,
        };
        Content { disk_size, wire_size, modified, head, tail: Some(strip_cr), source }
    }

    /// Writes the whole message, without a sync.
    pub fn write_to(&self, file: &mut dyn Write) -> io::Result<()> {
        file.write_all(&self.head)?;
        let mut written = self.head.len() as u64;
        self.for_each_of_tail(|piece| {
            written += piece.len() as u64;
            file.write_all(piece)
        })?;
        if written == self.disk_size {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the large body does not match its entry"))
        }
    }

    /// True if the file holds exactly this message.
    pub fn is_in(&self, file: File) -> io::Result<bool> {
        if file.metadata()?.len() != self.disk_size {
            return Ok(false);
        }
        let mut file = io::BufReader::new(file);
        let mut same = true;
        let mut buffer = Vec::new();
        let mut compare = |piece: &[u8]| {
            buffer.resize(piece.len(), 0);
            file.read_exact(&mut buffer)?;
            same &= buffer == piece;
            Ok(())
        };
        compare(&self.head)?;
        self.for_each_of_tail(compare)?;
        Ok(same)
    }

    fn for_each_of_tail(&self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Some(strip_cr) = self.tail else { return Ok(()) };
        let mut stripped = Vec::new();
        let mut at = 0;
        loop {
            (self.source.step)();
            let piece = self.source.reader.piece(at, PIECE_BYTES)?;
            if piece.is_empty() {
                return Ok(());
            }
            at += piece.len() as u64;
            if !strip_cr {
                each(&piece)?;
                continue;
            }
            // Every CR of a lossless body ends a line, so each can be removed wherever the pieces are cut.
            stripped.clear();
            LineEndScan::default().push(&piece, |run| stripped.extend_from_slice(run));
            each(&stripped)?;
        }
    }
}

/// Bytes of a large body in memory at a time, per thread.
const PIECE_BYTES: u64 = 1 << 20;
