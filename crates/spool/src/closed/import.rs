//! A new spool from an exported one, of the same or another kind.
//!
//! Batches keep their LSNs, streams their positions and snapshots, so everything that refers to a batch stays valid.
//! Nothing is delivered twice or held back. As a batch can be in a spool only once, an import always makes a new spool.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_fsops::{FileLock, Space};

use super::export::{ExportedEntry, ExportedStream, ExportedStreams};
use crate::batch::{BodyPlace, Head, HeadEntry};
use crate::bodies::{self, Bodies, BodyFile};
use crate::checkpoint::{Checkpoint, CheckpointFiles, PackRow, SnapshotRow, StreamRow};
use crate::front::FrontRegion;
use crate::live::{LiveFiles, window_of};
use crate::names::Names;
use crate::pack::{self, PackWriter};
use crate::place::{IMPORTING, LOCK, lock};
use crate::snapshots::Snapshots;
use crate::state::State;
use crate::store;
use crate::store::groups::RecordImport;
use crate::{FrontFields, Lsn, OpenError, SnapshotName, StoreKind, files};

/// A spool under construction. It cannot be opened before [`finish`](Self::finish) has returned.
pub struct SpoolImport {
    dir: PathBuf,
    kind: StoreKind,
    records: Records,
    bodies: Arc<Bodies>,
    snapshots: Snapshots,
    state: State,
    windows: BTreeSet<u64>,
    last: u64,
    _lock: FileLock,
}

/// One batch to import.
pub struct ImportedBatch<'a> {
    /// LSN, above that of the previous batch.
    pub lsn: Lsn,
    /// Entries of the batch.
    pub entries: Vec<ExportedEntry>,
    /// Bytes of front fields at the start of the body.
    pub front_len: u32,
    /// The body and its length in bytes, if any stream holds it.
    pub body: Option<(&'a mut dyn Read, u64)>,
}

/// Destination of the records, by the kind of the spool.
enum Records {
    Packs { dir: PathBuf, writer: Option<PackWriter> },
    Groups(RecordImport),
}

impl SpoolImport {
    /// Begins a spool in `dir`, which is empty or missing, or contains remains of an interrupted import: these are
    /// removed.
    ///
    /// # Errors
    /// `AlreadyExists` if there is anything else, such as a spool from an earlier import. [`OpenError::Locked`] while
    /// another import works there. `InvalidData` for invalid streams. [`OpenError::NotBuilt`]. Errors of writing.
    pub fn begin(dir: &Path, kind: StoreKind, streams: &ExportedStreams) -> Result<Self, OpenError> {
        if !kind.is_built() {
            return Err(OpenError::NotBuilt { kind });
        }
        posthaste_fsops::make_dir(dir)?;
        may_begin(dir)?;
        let lock = lock(dir)?;
        // Another import may have ended meanwhile.
        may_begin(dir)?;
        files::write_new(&dir.join(IMPORTING), b"")?;
        files::sync_dir(dir)?;
        for name in files::list(dir)?.into_iter().filter(|name| ![LOCK, IMPORTING].contains(&name.as_str())) {
            let path = dir.join(name);
            if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
        }
        let rows = streams.streams.iter().map(row).collect::<Option<Vec<_>>>();
        let rows = rows.ok_or_else(|| invalid("the name of a snapshot is not valid"))?;
        let last = streams.last.get();
        let next_stream = streams.next_id;
        if rows.iter().any(|row| row.id == 0 || row.id >= next_stream || row.position > last) {
            return Err(invalid("a stream has an impossible id or position").into());
        }
        let of_streams = Checkpoint { through: last, next_stream, streams: rows, ..Checkpoint::default() };
        posthaste_fsops::make_dir(&dir.join(kind.dir()))?;
        let records = match store::import(kind, dir)? {
            Some(import) => Records::Groups(import),
            None => {
                posthaste_fsops::make_dir(&pack::dir_of(dir))?;
                Records::Packs { dir: pack::dir_of(dir), writer: None }
            }
        };
        Ok(SpoolImport {
            dir: dir.to_owned(),
            kind,
            records,
            bodies: Arc::new(Bodies::open(bodies::dir_of(dir), Space::default())?),
            snapshots: Snapshots::open(dir)?,
            state: State::of_rows(&of_streams),
            windows: BTreeSet::new(),
            last: 0,
            _lock: lock,
        })
    }

    /// Imports a snapshot of a stream.
    ///
    /// # Errors
    /// Errors of reading and writing.
    pub fn snapshot(&self, name: &SnapshotName, content: &mut dyn Read) -> io::Result<()> {
        self.snapshots.write(name, &mut |out| io::copy(&mut *content, out).map(drop))
    }

    /// Imports a batch.
    ///
    /// # Errors
    /// `InvalidData` for an impossible batch; errors of reading and writing.
    pub fn batch(&mut self, batch: ImportedBatch<'_>) -> io::Result<()> {
        let lsn = batch.lsn.get();
        if lsn <= self.last || lsn > self.state.published || batch.entries.len() > crate::batch::ENTRIES_MAX {
            return Err(invalid("the number of a batch, or of its entries, is impossible"));
        }
        self.last = lsn;
        let (place, body) = match batch.body {
            None => (BodyPlace::None, Bytes::new()),
            Some((body, len)) => self.body(body, len, batch.front_len)?,
        };
        let mut entries = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries {
            let found = self.state.streams.iter_mut().find(|(_, stream)| stream.name == entry.stream);
            let (id, stream) = found.ok_or_else(|| invalid("an entry is of a stream that the export does not have"))?;
            if entry.is_waiting {
                stream.entries.insert(lsn);
            }
            if entry.holds_body {
                stream.bodies.insert(lsn);
            }
            entries.push(HeadEntry { stream: *id, needs_body: entry.needs_body, payload: entry.payload });
        }
        if let BodyPlace::File(file) = place {
            self.state.add_large(lsn, file);
        }
        self.windows.insert(window_of(lsn));
        let head = Head { entries, body: place }.encode();
        self.records.put(lsn, head.into(), body, &mut self.state)
    }

    /// Stores the body; returns its location, and the body region of its record.
    fn body(&self, body: &mut dyn Read, len: u64, front_len: u32) -> io::Result<(BodyPlace, Bytes)> {
        let front_len = u64::from(front_len);
        if front_len > len.min(FrontFields::BYTES_MAX as u64) {
            return Err(invalid("the fields in front of a body are longer than it"));
        }
        let front = FrontFields::new(read_all(body, front_len)?).map_err(|error| invalid(&error.to_string()))?;
        let region = FrontRegion::of(&front);
        let len = len - front_len;
        if len <= INLINE_MAX {
            let rest = read_all(body, len)?;
            let place = BodyPlace::Record { len: len as u32, front: region };
            return Ok((place, [&front.bytes()[..], &rest[..]].concat().into()));
        }
        let mut upload = self.bodies.upload(len)?;
        let mut left = len;
        let mut piece = vec![0; 1 << 20];
        while left > 0 {
            let want = left.min(piece.len() as u64) as usize;
            body.read_exact(&mut piece[..want])?;
            upload.write(&piece[..want])?;
            left -= want as u64;
        }
        let upload = upload.finish()?;
        upload.keep();
        Ok((BodyPlace::File(BodyFile { front: region, ..upload.body }), front.bytes().clone()))
    }

    /// Completes the spool, so that it can be opened. Durable on return.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self) -> io::Result<()> {
        self.records.finish(&mut self.state)?;
        let live = LiveFiles::open(&self.dir)?;
        for window in &self.windows {
            live.write(*window, 1, &self.state.window(*window))?;
        }
        live.sync()?;
        Names { next: self.state.next_stream, streams: self.state.names() }.write(&self.dir)?;
        let windows = self.windows.iter().map(|window| (*window, 1)).collect();
        // The gaps between the batches hold no needed entries.
        let freed = self.state.published;
        let checkpoint = Checkpoint { counter: 1, kind: Some(self.kind), freed, windows, ..self.state.rows() };
        CheckpointFiles::open(&self.dir)?.0.write(&checkpoint)?;
        // Last of all: without it the spool cannot be opened.
        files::remove(&self.dir.join(IMPORTING))?;
        files::sync_dir(&self.dir)
    }
}

/// # Errors
/// `AlreadyExists` unless the directory is missing, empty, or holds an unfinished import.
fn may_begin(dir: &Path) -> io::Result<()> {
    let names = files::list(dir)?;
    if names.iter().any(|name| name == IMPORTING) || names.iter().all(|name| name == LOCK) {
        return Ok(());
    }
    let what = "the directory for the new spool is not empty; an export is imported once, into a spool of its own";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

impl Records {
    fn put(&mut self, lsn: u64, head: Bytes, body: Bytes, state: &mut State) -> io::Result<()> {
        match self {
            Records::Groups(import) => import.put(lsn, head, body),
            Records::Packs { dir, writer } => {
                if let Some(full) = writer.take_if(|writer| writer.bytes() >= PACK_BYTES) {
                    enter(full, state)?;
                }
                let writer = match writer {
                    Some(writer) => writer,
                    none => none.insert(PackWriter::create(dir, state.next_pack)?),
                };
                writer.append(lsn, &head, Some(&body))
            }
        }
    }

    fn finish(&mut self, state: &mut State) -> io::Result<()> {
        match self {
            Records::Packs { writer, .. } => writer.take().map_or(Ok(()), |writer| enter(writer, state)),
            Records::Groups(import) => import.flush(),
        }
    }
}

fn enter(writer: PackWriter, state: &mut State) -> io::Result<()> {
    let id = state.next_pack;
    let first = writer.first();
    let last = writer.last();
    let records = writer.records();
    let bytes = writer.bytes();
    writer.finish()?;
    state.packs.push(PackRow { id, first, last, records, bytes });
    state.next_pack += 1;
    Ok(())
}

fn row(stream: &ExportedStream) -> Option<StreamRow> {
    let snapshot =
        |one: &super::ExportedSnapshot| Some(SnapshotRow { position: one.position.get(), name: one.name()? });
    Some(StreamRow {
        id: stream.id,
        name: stream.name.clone(),
        position: stream.position.get(),
        uncertain: stream.uncertain.get(),
        lost: stream.lost.get(),
        snapshots: stream.snapshots.iter().take(2).map(snapshot).collect::<Option<_>>()?,
    })
}

fn read_all(from: &mut dyn Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Bodies above this length get a file of their own, in bytes.
const INLINE_MAX: u64 = 1 << 20;
const PACK_BYTES: u64 = 256 << 20;
