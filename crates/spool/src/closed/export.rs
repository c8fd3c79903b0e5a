//! Reads needed batches out of a closed spool: their entries and bodies.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_ring::layout::RecordHeader;
use posthaste_ring::{Lsn, SegmentReader};

use super::ClosedSpool;
use crate::batch::{BodyPlace, Head};
use crate::bodies::{self, BodyFile};
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
    /// In a file: its first so many bytes. It was read, and its checksums are right.
    File(PathBuf, u64),
}

impl ClosedSpool {
    /// Shows every entry that its stream needs, in order: the stream's name, the batch, what it says, and bytes of the batch's body, which is not read.
    ///
    /// # Errors
    /// Those of reading; an entry whose batch's head is lost is left out.
    pub fn entries(&self, each: &mut dyn FnMut(&str, Lsn, &Bytes, u64)) -> io::Result<()> {
        for (lsn, _) in self.state.needed(0..=u64::MAX) {
            let Some((head, _)) = self.find(lsn)? else { continue };
            for (stream, payload) in self.needed_entries(lsn, &head) {
                each(stream, Lsn::new(lsn), payload, head.body_len());
            }
        }
        Ok(())
    }

    /// The body of a batch, or why it cannot be read; `None` if there is none, or its batch is lost.
    ///
    /// # Errors
    /// Those of reading.
    pub fn body(&self, lsn: Lsn) -> io::Result<Option<Result<ExportedBody, String>>> {
        let Some((head, place)) = self.find(lsn.get())? else { return Ok(None) };
        self.body_of(&head, &place)
    }

    /// Shows every batch that is needed, in order, with what is needed of it, until `each` says no.
    ///
    /// # Errors
    /// Those of reading; what is damaged is told in the batch, or left out if its head is.
    pub fn export(&self, each: &mut dyn FnMut(ExportedBatch) -> ControlFlow<()>) -> io::Result<()> {
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

    /// The bodies that some stream needs and nobody can read, in order, each with why.
    ///
    /// # Errors
    /// Those of reading, but for sectors that cannot be read.
    pub fn unreadable_bodies(&self) -> io::Result<Vec<(Lsn, String)>> {
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

    /// Those that are needed of a batch, or go with a body that is: the stream's name, and what the entry says.
    fn needed_entries<'a>(&'a self, lsn: u64, head: &'a Head) -> impl Iterator<Item = (&'a str, &'a Bytes)> {
        head.entries.iter().filter_map(move |entry| {
            let stream = self.state.streams.get(&entry.stream)?;
            let is_needed = stream.entries.contains(lsn) || stream.bodies.contains(lsn);
            is_needed.then_some((&*stream.name, &entry.payload))
        })
    }

    fn body_of(&self, head: &Head, place: &Located<'_>) -> io::Result<Option<Result<ExportedBody, String>>> {
        let body = match (head.body, place) {
            (BodyPlace::None, _) => return Ok(None),
            (BodyPlace::File(file), _) => self.exported(file),
            (BodyPlace::Record { .. }, Located::Ring(reader, offset, header)) => {
                let body = reader.body(*offset, header, 0..u32::MAX).map_err(|error| error.to_string());
                body.map(ExportedBody::Memory)
            }
            (BodyPlace::Record { .. }, Located::Pack(reader, entry)) => match reader.body(entry) {
                Err(PackError::Io(error)) => return Err(error),
                Err(PackError::Damaged(what)) => Err(what.to_owned()),
                Ok(body) => Ok(ExportedBody::Memory(body)),
            },
        };
        Ok(Some(body))
    }

    fn exported(&self, file: BodyFile) -> Result<ExportedBody, String> {
        match self.bodies.verify(file) {
            Ok(()) => Ok(ExportedBody::File(bodies::dir_of(&self.dir).join(self.bodies.name(file.upload)), file.len)),
            Err(error) => Err(error.what().map_or_else(|error| error.to_string(), str::to_owned)),
        }
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

/// Where a batch was found.
enum Located<'a> {
    Ring(&'a SegmentReader, u32, RecordHeader),
    Pack(Arc<PackReader>, IndexEntry),
}
