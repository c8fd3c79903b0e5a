//! Batches on their way to the log: several small ones in one record, a large one in parts.

use std::io::{self, Read};

use bytes::Bytes;
use posthaste_spool::{Batch, Body, Entry, Then};

use crate::batch::{LoggedBatch, LoggedBody, LoggedEntry};

/// Maximum bytes of batches in a record; a larger batch is sent in parts.
pub(crate) const BUNDLE_BYTES: u64 = 1 << 20;
/// Batches in a record.
pub(crate) const BUNDLE_BATCHES: usize = 256;
/// Bytes of a part.
pub(crate) const PART_BYTES: usize = 512 << 10;

/// A batch with its encoded head.
pub(crate) struct Prepared {
    pub own: Own,
    head: Bytes,
    /// Size in the log, in bytes.
    pub bytes: u64,
}

/// A batch of this owner, until it is in the local spool.
pub(crate) struct Own {
    pub entries: Vec<Entry>,
    pub body: Body,
    pub then: Then,
    /// Units of room reserved for it.
    pub room: u64,
}

impl Prepared {
    /// `number_of`: number of each stream, by its index among the entries.
    pub fn new(batch: Batch, then: Then, room: u64, numbers: &[u16]) -> Self {
        let Batch { entries, body } = batch;
        let entry = |(entry, number): (&Entry, &u16)| LoggedEntry {
            stream: *number,
            needs_body: entry.needs_body,
            payload: entry.payload.clone(),
        };
        let (kind, front) = match &body {
            Body::None => (LoggedBody::None, None),
            Body::Inline(front, _) => (LoggedBody::Inline, Some(front)),
            Body::File(front, _) => (LoggedBody::File, Some(front)),
        };
        let front = front.cloned().unwrap_or_default();
        let body_len = body.len() - front.len() as u64;
        let entries_logged = entries.iter().zip(numbers).map(entry).collect();
        let head = LoggedBatch { entries: entries_logged, front, body: kind, body_len }.encode_head();
        let bytes = head.len() as u64 + body_len;
        Prepared { own: Own { entries, body, then, room }, head: head.into(), bytes }
    }

    pub fn is_large(&self) -> bool {
        self.bytes > BUNDLE_BYTES
    }

    /// The octets of the batch, for a bundle.
    pub fn octets(&self) -> io::Result<Bytes> {
        let mut out = Vec::with_capacity(self.bytes as usize);
        self.reader()?.read_to_end(&mut out)?;
        if out.len() as u64 == self.bytes {
            Ok(out.into())
        } else {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the body's file is too short"))
        }
    }

    /// Head, then body.
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        let head = io::Cursor::new(self.head.clone());
        Ok(match &self.own.body {
            Body::None => Box::new(head),
            Body::Inline(_, parts) => parts.iter().fold(Box::new(head), |before: Box<dyn Read + Send>, part| {
                Box::new(before.chain(io::Cursor::new(part.clone())))
            }),
            Body::File(_, upload) => Box::new(head.chain(upload.reader()?)),
        })
    }
}

/// A large batch that is being sent in parts.
pub(crate) struct Large {
    pub upload: u64,
    own: Own,
    reader: Box<dyn Read + Send>,
    bytes: u64,
    /// Bytes already sent.
    pub sent: u64,
    pub crc: u32,
}

impl Large {
    pub fn new(upload: u64, prepared: Prepared) -> Result<Self, Box<(Own, io::Error)>> {
        match prepared.reader() {
            Ok(reader) => Ok(Large { upload, own: prepared.own, reader, bytes: prepared.bytes, sent: 0, crc: 0 }),
            Err(error) => Err(Box::new((prepared.own, error))),
        }
    }

    /// The next part; `None` after the last one.
    pub fn part(&mut self) -> io::Result<Option<(u64, Bytes)>> {
        let len = (self.bytes - self.sent).min(PART_BYTES as u64) as usize;
        if len == 0 {
            return Ok(None);
        }
        let mut part = vec![0; len];
        self.reader.read_exact(&mut part)?;
        let offset = self.sent;
        self.sent += len as u64;
        self.crc = crc32c::crc32c_append(self.crc, &part);
        Ok(Some((offset, part.into())))
    }

    pub fn into_own(self) -> Own {
        self.own
    }
}
