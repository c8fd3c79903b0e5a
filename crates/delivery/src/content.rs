//! The bytes of a message as they lie in a Maildir file.

use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, Write};

use bytes::Bytes;
use posthaste_maildir::Draft;
use posthaste_maildir::line_ends::{LineEndScan, crlf_to_lf, wire_size_as_stored};

use crate::record::{Body, LineEnds, Target};
use crate::spool::Spool;

/// A message ready to be written: its sizes, and where its bytes come from.
pub(crate) struct Content {
    /// Bytes of the file: `S=`.
    pub disk_size: u64,
    /// Bytes on the wire: `W=`.
    pub wire_size: u64,
    // What stands in front, or everything.
    head: Vec<u8>,
    // The rest, if the body is large.
    tail: Option<Tail>,
}

struct Tail {
    file: File,
    strip_cr: bool,
}

impl Content {
    pub fn new(target: &Target, body: &Body, line_ends: LineEnds, spool: &Spool) -> io::Result<Self> {
        match body {
            Body::Memory(parts) => Ok(Self::in_memory(target, parts, line_ends)),
            Body::Spooled(spooled) => {
                let file = spool.open_body(spooled)?;
                let strip_cr = line_ends == LineEnds::ToLf && spooled.lossless;
                let mut head = Vec::new();
                let mut disk_size = spooled.len;
                if strip_cr {
                    crlf_to_lf(&[&target.prefix], &mut head);
                    disk_size -= spooled.line_ends;
                } else {
                    head.extend_from_slice(&target.prefix);
                }
                disk_size += head.len() as u64;
                let wire_size = match line_ends {
                    LineEnds::ToLf => target.prefix.len() as u64 + spooled.len,
                    LineEnds::AsGiven => disk_size + spooled.lone_lfs,
                };
                Ok(Content { disk_size, wire_size, head, tail: Some(Tail { file, strip_cr }) })
            }
        }
    }

    fn in_memory(target: &Target, parts: &[Bytes], line_ends: LineEnds) -> Self {
        let mut all: Vec<&[u8]> = Vec::with_capacity(parts.len() + 1);
        all.push(&target.prefix);
        all.extend(parts.iter().map(|part| &part[..]));
        let mut head = Vec::new();
        let (disk_size, wire_size) = match line_ends {
            LineEnds::ToLf => {
                let sizes = crlf_to_lf(&all, &mut head);
                (sizes.disk_size, sizes.wire_size)
            }
            LineEnds::AsGiven => {
                head = all.concat();
                (head.len() as u64, wire_size_as_stored(&head))
            }
        };
        Content { disk_size, wire_size, head, tail: None }
    }

    /// Writes the whole message. Not synced.
    pub fn write_to(&mut self, draft: &mut Draft<'_>) -> io::Result<()> {
        draft.write_parts(&[IoSlice::new(&self.head)])?;
        if self.tail.is_none() {
            return Ok(());
        }
        let mut written = self.head.len() as u64;
        self.for_each_of_tail(|piece| {
            written += piece.len() as u64;
            draft.write_all(piece)
        })?;
        match written == self.disk_size {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "the spooled body is not what its record says")),
        }
    }

    /// Whether the file holds exactly this message.
    pub fn is_in(&mut self, file: File) -> io::Result<bool> {
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

    /// The whole message in memory, for mending a damaged file.
    pub fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut all = self.head.clone();
        self.for_each_of_tail(|piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(all)
    }

    fn for_each_of_tail(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Some(tail) = &mut self.tail else { return Ok(()) };
        tail.file.rewind()?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut stripped = Vec::with_capacity(PIECE_BYTES);
        loop {
            let n = tail.file.read(&mut piece)?;
            if n == 0 {
                return Ok(());
            }
            if !tail.strip_cr {
                each(&piece[..n])?;
                continue;
            }
            // Every CR of a lossless body belongs to a line end, so that each can go wherever the pieces are cut.
            stripped.clear();
            LineEndScan::default().push(&piece[..n], |run| stripped.extend_from_slice(run));
            each(&stripped)?;
        }
    }
}

const PIECE_BYTES: usize = 256 << 10;
