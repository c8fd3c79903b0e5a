//! Reads needed batches out of a closed spool: their entries and bodies.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Lsn;
use bytes::Bytes;
use posthaste_ring::SegmentReader;
use posthaste_ring::layout::RecordHeader;

use super::ClosedFileSpool;
use crate::batch::{BodyPlace, Head};
use crate::bodies;
use crate::pack::{IndexEntry, PackError, PackReader};

/// A batch that some stream needs.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedBatch {
    /// Its name.
    pub lsn: Lsn,
    /// The entries that are needed: the stream's name, and what the entry says.
    pub entries: Vec<(String, Bytes)>,
    /// The body, if any stream needs it; or why it cannot be read.
    pub body: Option<Result<ExportedBody, String>>,
}

/// The body of an exported batch.
#[derive(Debug)]
pub enum ExportedBody {
    /// All of it.
    Memory(Bytes),
    /// In a file, which was read, and whose checksums are right.
    File {
        /// Its front fields.
        front: Bytes,
        /// The file.
        path: PathBuf,
        /// Bytes of the body in it, from the beginning on.
        len: u64,
    },
}

impl ExportedBody {
    /// All of it, front fields first.
    ///
    /// # Errors
    /// Errors of opening its file.
    pub fn reader(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(match self {
            ExportedBody::Memory(bytes) => Box::new(&bytes[..]),
            ExportedBody::File { front, path, len } => Box::new(front.chain(File::open(path)?.take(*len))),
        })
    }

    /// All of it, in memory.
    ///
    /// # Errors
    /// Errors of reading its file.
    pub fn read(&self) -> io::Result<Bytes> {
        if let ExportedBody::Memory(bytes) = self {
            return Ok(bytes.clone());
        }
        let mut bytes = Vec::new();
        self.reader()?.read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }
}

impl ClosedFileSpool {
    pub(super) fn each_entry(&self, each: &mut dyn FnMut(&str, Lsn, &Bytes, u64)) -> io::Result<()> {
        for (lsn, _) in self.state.needed(0..=u64::MAX) {
            let Some((head, _)) = self.find(lsn)? else { continue };
            for (stream, payload) in self.needed_entries(lsn, &head) {
                each(stream, Lsn::new(lsn), payload, head.body_len());
            }
        }
        Ok(())
    }

    pub(super) fn body_at(&self, lsn: Lsn) -> io::Result<Option<Result<ExportedBody, String>>> {
        let Some((head, place)) = self.find(lsn.get())? else { return Ok(None) };
        self.body_of(&head, &place)
    }

    pub(super) fn each_batch(&self, each: &mut dyn FnMut(ExportedBatch) -> ControlFlow<()>) -> io::Result<()> {
        for (lsn, is_body_needed) in self.state.needed(0..=u64::MAX) {
            let Some((head, place)) = self.find(lsn)? else { continue };
            let entry = |(stream, payload): (&str, &Bytes)| (stream.to_owned(), payload.clone());
            let entries = self.needed_entries(lsn, &head).map(entry).collect();
            let body = if is_body_needed { self.body_of(&head, &place)? } else { None };
            if each(ExportedBatch { lsn: Lsn::new(lsn), entries, body }).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) fn lost_bodies(&self) -> io::Result<Vec<(Lsn, String)>> {
        let is_bad_sector = |error: &io::Error| error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
        let mut all = Vec::new();
        for (lsn, _) in self.state.needed(0..=u64::MAX).into_iter().filter(|(_, is_body_needed)| *is_body_needed) {
            let why = match self.find(lsn) {
                Ok(Some((head, place))) => match self.body_of(&head, &place) {
                    Ok(None | Some(Ok(_))) => continue,
                    Ok(Some(Err(what))) => what,
                    Err(error) if is_bad_sector(&error) => error.to_string(),
                    Err(error) => return Err(error),
                },
                Ok(None) => "its batch is lost".to_owned(),
                Err(error) if is_bad_sector(&error) => error.to_string(),
                Err(error) => return Err(error),
            };
            all.push((Lsn::new(lsn), why));
        }
        Ok(all)
    }

    /// The needed entries of a batch, and those that go with a needed body: the stream's name, and the payload.
    fn needed_entries<'a>(&'a self, lsn: u64, head: &'a Head) -> impl Iterator<Item = (&'a str, &'a Bytes)> {
        head.entries.iter().filter_map(move |entry| {
            let stream = self.state.streams.get(&entry.stream)?;
            let is_needed = stream.entries.contains(lsn) || stream.bodies.contains(lsn);
            is_needed.then_some((&*stream.name, &entry.payload))
        })
    }

    fn body_of(&self, head: &Head, place: &Located<'_>) -> io::Result<Option<Result<ExportedBody, String>>> {
        Ok(Some(match head.body {
            BodyPlace::None => return Ok(None),
            BodyPlace::Record { .. } => record_body(head, place)?.map(ExportedBody::Memory),
            BodyPlace::File(file) => match self.bodies.verify(file) {
                Ok(()) => {
                    // Lost fields are no reason to lose the message.
                    let front = record_body(head, place)?.unwrap_or_else(|_| file.front.substitute());
                    let path = bodies::dir_of(&self.dir).join(self.bodies.name(file.upload));
                    Ok(ExportedBody::File { front, path, len: file.len })
                }
                Err(error) => Err(error.what().map_or_else(|error| error.to_string(), str::to_owned)),
            },
        }))
    }

    /// A batch's head, and where its body would be; `None` if its head is lost.
    fn find(&self, lsn: u64) -> io::Result<Option<(Head, Located<'_>)>> {
        if let Some((at, offset, header)) = self.places.get(&lsn) {
            let reader = &self.ring[*at].reader;
            let head = reader.head(*offset, header).ok().and_then(Head::decode);
            return Ok(head.map(|head| (head, Located::Ring(reader, *offset, *header))));
        }
        let Some(id) = self.state.pack_of(lsn) else { return Ok(None) };
        let read = (|| {
            let reader = self.packs.get(id)?;
            let Some(entry) = reader.find(lsn)? else { return Ok(None) };
            let head = Head::decode(reader.head(&entry)?);
            Ok(head.map(|head| (head, Located::Pack(reader, entry))))
        })();
        match read {
            Err(PackError::Damaged(_)) => Ok(None),
            read => Ok(read?),
        }
    }
}

/// The front fields and the body, or of a large body the front fields; or why they cannot be read.
fn record_body(head: &Head, place: &Located<'_>) -> io::Result<Result<Bytes, String>> {
    Ok(match place {
        Located::Ring(reader, offset, header) => match reader.body(*offset, header, 0..u32::MAX) {
            Ok(body) => Ok(body),
            Err(error) => mended(reader, *offset, header, head).ok_or_else(|| error.to_string()),
        },
        Located::Pack(reader, entry) => match reader.body(entry) {
            Ok(body) => Ok(body),
            Err(PackError::Io(error)) => return Err(error),
            Err(PackError::Damaged(what)) => reader.mended(entry).ok_or_else(|| what.to_owned()),
        },
    })
}

/// The body region of a record, if it is damaged in its front fields alone: something else stands in their place.
pub(super) fn mended(reader: &SegmentReader, offset: u32, header: &RecordHeader, head: &Head) -> Option<Bytes> {
    let (raw, _) = reader.body_again(offset, header).ok()?;
    head.front().mended(&raw, header.body_crc)
}

/// Where a batch was found.
enum Located<'a> {
    Ring(&'a SegmentReader, u32, RecordHeader),
    Pack(Arc<PackReader>, IndexEntry),
}
