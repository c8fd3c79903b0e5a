//! Reads needed batches of a closed spool: their entries and bodies.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Lsn;
use bytes::Bytes;
use posthaste_ring::SegmentReader;
use posthaste_ring::layout::RecordHeader;
use serde::{Deserialize, Serialize};

use super::file_spool::ClosedFileSpool;
use super::records::ClosedRecords;
use crate::batch::{BodyPlace, Head, HeadEntry};
use crate::bodies;
use crate::checkpoint::{SnapshotRow, StreamRow};
use crate::pack::{IndexEntry, PackError, PackReader};
use crate::snapshots::{SnapshotError, SnapshotName, SnapshotReader};
use crate::store::RecordError;

/// A batch that some stream needs.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedBatch {
    /// LSN of the batch.
    pub lsn: Lsn,
    /// Entries for streams that need any part of the batch.
    pub entries: Vec<ExportedEntry>,
    /// Length of the front fields at the start of the body, in bytes.
    pub front_len: u32,
    /// The body, or the error of reading it; `None` if no stream needs it.
    pub body: Option<Result<ExportedBody, String>>,
}

/// One entry of an exported batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedEntry {
    /// Name of the stream.
    pub stream: String,
    /// Content of the entry; hex in JSON.
    #[serde(with = "hex")]
    pub payload: Bytes,
    /// True if it was appended as needing the body.
    pub needs_body: bool,
    /// True if the stream has not passed it.
    pub is_waiting: bool,
    /// True if the stream has not released the body.
    pub holds_body: bool,
}

/// The streams of a spool, from which a new spool can continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportedStreams {
    /// LSN of the last batch: new ones follow it.
    pub last: Lsn,
    /// Lowest id for new streams: lower ids are never reused.
    pub next_id: u16,
    /// All streams of the spool.
    pub streams: Vec<ExportedStream>,
}

/// A stream, according to the last checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportedStream {
    /// Id of the stream.
    pub id: u16,
    /// Name of the stream.
    pub name: String,
    /// Position of the stream: it needs no entry up to this LSN.
    pub position: Lsn,
    /// LSN up to which entries are unknown; 0 if all are known.
    pub uncertain: Lsn,
    /// Entries between the position and this LSN may be lost; 0 if none.
    pub lost: Lsn,
    /// Snapshots of the stream, last first.
    pub snapshots: Vec<ExportedSnapshot>,
}

/// A snapshot or a cursor of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportedSnapshot {
    /// The stream's position at the snapshot.
    pub position: Lsn,
    /// Name of the snapshot, or the text of a cursor.
    pub name: String,
    /// False for a cursor.
    pub is_file: bool,
}

impl ExportedSnapshot {
    /// The checked name; `None` if it is invalid.
    pub fn name(&self) -> Option<SnapshotName> {
        if self.is_file { SnapshotName::new(&self.name) } else { SnapshotName::cursor(&self.name) }
    }
}

/// Payloads as hex in JSON.
mod hex {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        let byte = |pair: &[u8]| {
            std::str::from_utf8(pair)
                .ok()
                .filter(|pair| !pair.starts_with('+'))
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
        };
        let bytes: Option<Vec<u8>> =
            text.as_bytes().chunks(2).map(|pair| byte(pair).filter(|_| pair.len() == 2)).collect();
        bytes.map(Bytes::from).ok_or_else(|| D::Error::custom("these are not bytes in hex"))
    }
}

/// The body of an exported batch.
#[derive(Debug)]
pub enum ExportedBody {
    /// Complete, in memory.
    Memory(Bytes),
    /// In a file, whose checksums were verified.
    File {
        /// Front fields of the batch, which are not in the file.
        front: Bytes,
        /// Path of the file.
        path: PathBuf,
        /// Length of the body, from the start of the file.
        len: u64,
    },
}

impl ExportedBody {
    /// The whole body, front fields first.
    ///
    /// # Errors
    /// Errors of opening its file.
    pub fn reader(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(match self {
            ExportedBody::Memory(bytes) => Box::new(&bytes[..]),
            ExportedBody::File { front, path, len } => Box::new(front.chain(File::open(path)?.take(*len))),
        })
    }

    /// The whole body, in memory.
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

    pub(super) fn each_batch(&self, each: &mut dyn FnMut(ExportedBatch) -> ControlFlow<()>) -> io::Result<Vec<Lsn>> {
        let mut lost = Vec::new();
        for (lsn, is_body_needed) in self.state.needed(0..=u64::MAX) {
            let Some((head, place)) = self.find(lsn)? else {
                lost.push(Lsn::new(lsn));
                continue;
            };
            let entries = head.entries.iter().filter_map(|entry| self.exported_entry(lsn, entry)).collect();
            let body = if is_body_needed { self.body_of(&head, &place)? } else { None };
            let front_len = head.front().len;
            if each(ExportedBatch { lsn: Lsn::new(lsn), entries, front_len, body }).is_break() {
                break;
            }
        }
        Ok(lost)
    }

    pub(super) fn lost_heads(&self) -> io::Result<Vec<Lsn>> {
        let mut all = Vec::new();
        for (lsn, _) in self.state.needed(0..=u64::MAX).into_iter().filter(|(_, is_body_needed)| !*is_body_needed) {
            match self.find(lsn) {
                Ok(Some(_)) => {}
                Ok(None) => all.push(Lsn::new(lsn)),
                Err(error) if is_bad_sector(&error) => all.push(Lsn::new(lsn)),
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    pub(super) fn lost_bodies(&self) -> io::Result<Vec<(Lsn, String)>> {
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

    /// The needed entries of a batch, and all entries for streams that hold its body: the stream's name, and the
    /// payload.
    fn needed_entries<'a>(&'a self, lsn: u64, head: &'a Head) -> impl Iterator<Item = (&'a str, &'a Bytes)> {
        head.entries.iter().filter_map(move |entry| {
            let stream = self.state.streams.get(&entry.stream)?;
            let is_needed = stream.entries.contains(lsn) || stream.bodies.contains(lsn);
            is_needed.then_some((&*stream.name, &entry.payload))
        })
    }

    fn exported_entry(&self, lsn: u64, entry: &HeadEntry) -> Option<ExportedEntry> {
        let stream = self.state.streams.get(&entry.stream)?;
        let is_waiting = stream.entries.contains(lsn);
        let holds_body = stream.bodies.contains(lsn);
        (is_waiting || holds_body).then(|| ExportedEntry {
            stream: stream.name.clone(),
            payload: entry.payload.clone(),
            needs_body: entry.needs_body,
            is_waiting,
            holds_body,
        })
    }

    /// Positions and snapshots of all streams, for a complete export.
    pub fn streams(&self) -> ExportedStreams {
        let snapshot = |row: &SnapshotRow| ExportedSnapshot {
            position: Lsn::new(row.position),
            name: row.name.as_str().to_owned(),
            is_file: row.name.is_file(),
        };
        let rows = self.state.rows();
        let stream = |row: &StreamRow| ExportedStream {
            id: row.id,
            name: row.name.clone(),
            position: Lsn::new(row.position),
            uncertain: Lsn::new(row.uncertain),
            lost: Lsn::new(row.lost),
            snapshots: row.snapshots.iter().map(snapshot).collect(),
        };
        ExportedStreams {
            last: Lsn::new(rows.through),
            next_id: rows.next_stream,
            streams: rows.streams.iter().map(stream).collect(),
        }
    }

    /// Opens a snapshot of a stream, after verifying all of it.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn snapshot(&self, name: &SnapshotName) -> Result<SnapshotReader, SnapshotError> {
        self.snapshots.read(name)
    }

    fn body_of(&self, head: &Head, place: &Located<'_>) -> io::Result<Option<Result<ExportedBody, String>>> {
        Ok(Some(match head.body {
            BodyPlace::None => return Ok(None),
            BodyPlace::Record { .. } => record_body(head, place)?.map(ExportedBody::Memory),
            BodyPlace::File(file) => match self.bodies.verify(file) {
                Ok(()) => {
                    // A message is exported even if its front fields are lost.
                    let front = record_body(head, place)?.unwrap_or_else(|_| file.front.substitute());
                    let path = bodies::dir_of(&self.dir).join(self.bodies.name(file.upload));
                    Ok(ExportedBody::File { front, path, len: file.len })
                }
                Err(error) => Err(error.what().map_or_else(|error| error.to_string(), str::to_owned)),
            },
        }))
    }

    /// A batch's head, and the place of its body; `None` if its head is lost.
    fn find(&self, lsn: u64) -> io::Result<Option<(Head, Located<'_>)>> {
        if let Some((at, offset, header)) = self.places.get(&lsn) {
            let reader = &self.ring[*at].reader;
            let head = reader.head(*offset, header).ok().and_then(Head::decode);
            return Ok(head.map(|head| (head, Located::Ring(reader, *offset, *header))));
        }
        if let Some(records) = &self.records {
            return match records.medium.head(Lsn::new(lsn)) {
                Ok((_, head)) => Ok(Head::decode(head).map(|head| (head, Located::Record(records, lsn)))),
                Err(RecordError::Io(_, error)) => Err(error),
                Err(_) => Ok(None),
            };
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

fn is_bad_sector(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// The front fields and the body, or the reason why they cannot be read. For a large body: only the front fields.
fn record_body(head: &Head, place: &Located<'_>) -> io::Result<Result<Bytes, String>> {
    Ok(match place {
        Located::Ring(reader, offset, header) => match reader.body(*offset, header, 0..u32::MAX) {
            Ok(body) => Ok(body),
            Err(error) => mended(reader, *offset, header, head).ok_or_else(|| error.to_string()),
        },
        Located::Record(records, lsn) => match records.medium.body(Lsn::new(*lsn), 0..u32::MAX) {
            Ok(body) => Ok(body),
            Err(RecordError::Io(_, error)) => return Err(error),
            Err(error) => records.mended(*lsn, head).ok_or_else(|| error.to_string()),
        },
        Located::Pack(reader, entry) => match reader.body(entry) {
            Ok(body) => Ok(body),
            Err(PackError::Io(error)) => return Err(error),
            Err(PackError::Damaged(what)) => reader.mended(entry).ok_or_else(|| what.to_owned()),
        },
    })
}

/// The body region of a record, with placeholders if only its front fields are damaged.
pub(super) fn mended(reader: &SegmentReader, offset: u32, header: &RecordHeader, head: &Head) -> Option<Bytes> {
    let (raw, _) = reader.body_again(offset, header).ok()?;
    head.front().mended(&raw, header.body_crc)
}

/// Place where a batch was found.
enum Located<'a> {
    Ring(&'a SegmentReader, u32, RecordHeader),
    Pack(Arc<PackReader>, IndexEntry),
    Record(&'a ClosedRecords, u64),
}
