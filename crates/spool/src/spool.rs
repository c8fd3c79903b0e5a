//! A spool in a directory: writing and reading.

use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use posthaste_watch::{StuckWorker, Watch};

use crate::ScrubReport;
use crate::SetAside;
use crate::batch::{BodyPlace, ENTRIES_MAX, Head, HeadEntry};
use crate::core::{Appended, AppendedBody, Core, FileOfBatch, Wanted};
use crate::front::FrontRegion;
use crate::keeper::Keeper;
use crate::names::Names;
use crate::replay;
use crate::scrub::Scrubber;
use crate::set_aside;
use crate::shared::Shared;
use crate::snapshots::{SnapshotError, SnapshotName, SnapshotReader};
use crate::state::Stream;
use crate::store::Commit;
use crate::{
    AppendError, Batch, Body, CheckpointError, Consumer, FinishedUpload, FrontFields, Lsn, Pressure, ReadError,
    Released, ReplayError, Replayed, RestoreError, Restored, Spool, SpoolAdmin, Stats, StreamError, StreamId,
    StreamStats, Then, Ticket, Upload,
};

/// A spool in a directory of a file system.
///
/// Dropping it makes a last checkpoint. Acknowledged data are safe without it, too.
pub struct FileSpool {
    pub(crate) shared: Arc<Shared>,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) scrubber: Option<Scrubber>,
    pub(crate) is_abandoned: bool,
}

impl FileSpool {
    /// The directory of saved damaged bodies.
    pub fn kept_dir(spool: &Path) -> PathBuf {
        set_aside::kept_dir(spool)
    }

    /// Closes the spool without a last checkpoint, like a kill: advances since the previous one are forgotten.
    pub fn abandon(mut self) {
        drop((self.scrubber.take(), self.keeper.take()));
        self.is_abandoned = true;
    }

    /// Makes a checkpoint: advances and releases take effect, and space is freed.
    ///
    /// # Errors
    /// See [`CheckpointError`]; then nothing is freed.
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.shared.checkpoint()
    }

    /// After a large body was refused: a checkpoint may free files of bodies, packs and segments.
    fn ask_for_room(&self, refused: &std::io::Error) {
        if refused.kind() == std::io::ErrorKind::StorageFull {
            self.shared.core.bell.ring(Wanted::Room);
        }
    }

    /// Figures of the ring and the packs.
    pub fn file_stats(&self) -> FileStats {
        let ring = self.shared.store.ring().map(posthaste_ring::Ring::stats).unwrap_or_default();
        let state = self.shared.core.state();
        FileStats { ring, packs: state.packs.len(), pack_bytes: state.packs.iter().map(|pack| pack.bytes).sum() }
    }

    /// Moves the needed data of up to `segments` of the oldest ring segments into packs. Returns their number. They can
    /// be reused after the next checkpoint.
    ///
    /// # Errors
    /// See [`CheckpointError`]; then nothing is moved.
    pub fn pack_oldest(&self, segments: usize) -> Result<usize, CheckpointError> {
        self.shared.pack_oldest(segments)
    }

    /// Merges packs with few needed batches, and drops packs with none. Returns the reduction of the number of packs;
    /// files are removed after the next checkpoint.
    ///
    /// # Errors
    /// See [`CheckpointError`]; then nothing is moved.
    pub fn clean_packs(&self) -> Result<usize, CheckpointError> {
        self.shared.clean_packs()
    }
}

/// Figures of a spool in a directory, in addition to [`Stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Figures of the ring.
    pub ring: posthaste_ring::RingStats,
    /// Number of packs.
    pub packs: usize,
    /// Total bytes of the packs.
    pub pack_bytes: u64,
}

impl SpoolAdmin for FileSpool {
    fn forget_stream(&self, name: &str) -> Result<StreamStats, StreamError> {
        let stats = {
            let mut state = self.shared.core.state();
            let found = state.streams.iter().find(|(_, stream)| stream.name == name);
            let (id, stream) = found.ok_or_else(|| StreamError::Unknown(name.to_owned()))?;
            let (id, stats) = (*id, stream.stats(StreamId(*id)));
            if stream.consumer.is_some() {
                return Err(StreamError::Attached(name.to_owned()));
            }
            state.forget_stream(id);
            stats
        };
        self.shared.checkpoint()?;
        self.shared.write_names()?;
        Ok(stats)
    }

    fn give_up_bodies(&self, bodies: &[Lsn]) -> Result<(), CheckpointError> {
        for lsn in bodies.iter().map(|lsn| lsn.get()) {
            let is_lost = matches!(self.shared.find(lsn), Ok(replay::Found::Damaged(_)));
            let mut state = self.shared.core.state();
            if is_lost { state.give_up_batch(lsn) } else { state.give_up_body(lsn) }
        }
        self.shared.checkpoint()?;
        self.shared.end_loss()
    }

    fn scrub(&self, pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> std::io::Result<ScrubReport> {
        self.shared.scrub(pause)
    }
}

impl Drop for FileSpool {
    fn drop(&mut self) {
        // All batches with an LSN get their outcome first.
        self.shared.store.flush();
        drop((self.scrubber.take(), self.keeper.take()));
        if self.is_abandoned {
            return;
        }
        // The owner may have made a checkpoint a moment ago, with a time limit.
        if self.shared.core.state().is_changed() {
            // It fails where others would have failed, and was told about then.
            let _ = self.shared.checkpoint();
        }
    }
}

impl Spool for FileSpool {
    fn stream(&self, name: &str) -> Result<StreamId, StreamError> {
        if name.is_empty() || name.len() > 200 || name.contains(char::is_control) {
            return Err(StreamError::Name(name.to_owned()));
        }
        let (id, is_new) = {
            let mut state = self.shared.core.state();
            let known = state.streams.iter().find(|(_, stream)| stream.name == name).map(|(id, _)| *id);
            let id = known.unwrap_or(state.next_stream);
            if known.is_none() {
                state.next_stream = id.checked_add(1).ok_or(StreamError::TooMany)?;
                let position = state.published;
                state.streams.insert(id, Stream::new(name, position));
                state.undurable_streams.insert(id);
            }
            // A second caller with the same new name must wait for a checkpoint, too.
            (id, state.undurable_streams.contains(&id))
        };
        if is_new {
            self.shared.write_names()?;
            self.shared.checkpoint()?;
            self.shared.core.state().undurable_streams.remove(&id);
        }
        Ok(StreamId(id))
    }

    fn position(&self, stream: StreamId) -> (Lsn, Option<SnapshotName>) {
        let state = self.shared.core.state();
        let found = state.streams.get(&stream.0);
        found.map(|it| (Lsn::new(it.position), it.snapshot.as_ref().map(|row| row.name.clone()))).unwrap_or_default()
    }

    fn append(&self, batch: Batch, then: Then) -> Ticket {
        let shared = &self.shared;
        let entries = batch.entries;
        let (place, body, parts) = match batch.body {
            Body::None => (BodyPlace::None, AppendedBody::None, Vec::new()),
            Body::Inline(front, parts) => inline(front, parts),
            Body::File(front, upload) => in_file(front, upload, &shared.core),
        };
        if let Err(error) = shared.may_append(&entries, place) {
            body.refused(&error);
            then(Err(error));
            return Ticket::refused();
        }
        let head = |entry: &crate::Entry| HeadEntry {
            stream: entry.stream.0,
            needs_body: entry.needs_body,
            payload: entry.payload.clone(),
        };
        let head = Head { entries: entries.iter().map(head).collect(), body: place }.encode();
        let bytes = (head.len() + parts.iter().map(Bytes::len).sum::<usize>()) as u64;
        let core = shared.core.clone();
        let appended = Appended { entries, body, bytes };
        shared.store.append(head.into(), parts, Commit::Batch { core, appended, then })
    }

    fn upload(&self, announced: u64) -> std::io::Result<Upload> {
        self.shared.bodies.upload(announced).inspect_err(|error| self.ask_for_room(error))
    }

    fn check_room(&self, bytes: u64) -> std::io::Result<()> {
        if self.shared.is_short_of_space.load(Ordering::Relaxed) {
            self.shared.look_at_space();
        }
        self.shared.bodies.room().check(bytes).inspect_err(|error| self.ask_for_room(error))
    }

    fn room(&self) -> std::io::Result<u64> {
        self.shared.bodies.room().free()
    }

    fn read(&self, body: Lsn, range: Range<u64>) -> Result<Bytes, ReadError> {
        self.shared.read(body, range)
    }

    fn entries(&self, stream: StreamId, batch: Lsn) -> Result<Vec<Bytes>, ReadError> {
        self.shared.entries(stream, batch)
    }

    fn write_snapshot(
        &self,
        name: &SnapshotName,
        content: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        self.shared.snapshots.write(name, content)
    }

    fn read_snapshot(&self, name: &SnapshotName) -> Result<SnapshotReader, SnapshotError> {
        self.shared.snapshots.read(name)
    }

    fn restore(&self, stream: StreamId) -> Result<Restored, RestoreError> {
        self.shared.restore(stream)
    }

    fn wants_snapshot(&self, stream: StreamId) -> bool {
        self.shared.core.state().streams.get(&stream.0).is_some_and(Stream::wants_snapshot)
    }

    fn needs_body(&self, stream: StreamId, body: Lsn) -> bool {
        self.shared.core.state().streams.get(&stream.0).is_some_and(|stream| stream.bodies.contains(body.get()))
    }

    fn set_aside(&self, body: Lsn) -> std::io::Result<SetAside> {
        self.shared.set_aside(body)
    }

    fn advance(&self, stream: StreamId, position: Lsn, snapshot: Option<SnapshotName>, released: Released) {
        self.shared.core.state().advance(stream.0, position.get(), snapshot, &released);
    }

    fn replay(&self, stream: StreamId, visitor: &mut dyn FnMut(Replayed<'_>)) -> Result<Lsn, ReplayError> {
        self.shared.replay(stream, visitor)
    }

    fn attach(&self, stream: StreamId, after: Lsn, consumer: Arc<dyn Consumer>) -> Result<(), ReplayError> {
        self.shared.attach(stream, after, consumer)
    }

    fn detach(&self, stream: StreamId) {
        self.shared.core.detach(stream.0);
    }

    fn streams(&self) -> Vec<StreamStats> {
        self.shared.streams()
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        self.shared.store.poisoned()
    }

    fn pressure(&self) -> &Pressure {
        &self.shared.pressure
    }

    fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.shared.checkpoint()
    }

    fn watch(&self) -> &Watch {
        &self.shared.config.watch
    }

    fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker> {
        let core = &self.shared.core;
        core.showing.look(now, |stream| core.state().streams.get(&stream).map(|stream| stream.name.clone()))
    }

    fn stats(&self) -> Stats {
        let of_store = self.shared.store.stats();
        let state = self.shared.core.state();
        Stats {
            published: Lsn::new(state.published),
            streams: state.streams.len(),
            large_bodies: state.large.len(),
            large_bytes: state.large.values().map(|body| body.len).sum(),
            checkpoints: self.shared.checkpoints.load(Ordering::Relaxed),
            checkpoints_failed: self.shared.checkpoints_failed.load(Ordering::Relaxed),
            checkpoint_running: self.shared.checkpoint_since.lock().expect("a time").map(|since| since.elapsed()),
            ..of_store
        }
    }
}

/// A body written with its batch: its place, its form for publication, and the bytes of the record.
fn inline(front: FrontFields, mut parts: Vec<Bytes>) -> (BodyPlace, AppendedBody, Vec<Bytes>) {
    let len = parts.iter().map(Bytes::len).sum::<usize>();
    // The body is longer than any segment: the ring refuses it.
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let place = BodyPlace::Record { len, front: FrontRegion::of(&front) };
    if !front.is_empty() {
        parts.insert(0, front.bytes().clone());
    }
    (place, AppendedBody::Memory(parts.clone().into()), parts)
}

/// Like [`inline`], for a body in a file: the record has its front fields.
fn in_file(front: FrontFields, upload: FinishedUpload, core: &Arc<Core>) -> (BodyPlace, AppendedBody, Vec<Bytes>) {
    let file = FileOfBatch::new(upload, FrontRegion::of(&front), core.clone());
    let parts = if front.is_empty() { Vec::new() } else { vec![front.bytes().clone()] };
    (BodyPlace::File(file.body()), AppendedBody::File(file), parts)
}

impl Shared {
    fn restore(&self, stream: StreamId) -> Result<Restored, RestoreError> {
        let rows = self.core.state().streams.get(&stream.0).map_or_else(Vec::new, Stream::snapshots);
        let mut snapshot = None;
        let mut unreadable = Vec::new();
        let mut names = Vec::new();
        let mut failed = None;
        for name in rows.into_iter().map(|row| row.name).filter(SnapshotName::is_file) {
            match self.snapshots.read(&name) {
                Ok(reader) => {
                    snapshot = Some(reader);
                    break;
                }
                Err(error) => {
                    unreadable.push(name.damage(&error));
                    if let SnapshotError::Io(error) = error {
                        let of_disk = posthaste_fsops::is_of_disk(&error);
                        let error = RestoreError { name: name.as_str().to_owned(), error };
                        if !of_disk {
                            return Err(error);
                        }
                        failed.get_or_insert(error);
                    }
                    names.push(name);
                }
            }
        }
        // No other snapshot is left to start from: the disk may read this one later.
        if let (None, Some(failed)) = (&snapshot, failed) {
            return Err(failed);
        }
        if !names.is_empty() {
            self.core.state().leave_out_snapshots(stream.0, &names);
        }
        Ok(Restored { snapshot, unreadable })
    }

    fn streams(&self) -> Vec<StreamStats> {
        let stats = |(id, stream): (&u16, &Stream)| stream.stats(StreamId(*id));
        self.core.state().streams.iter().map(stats).collect()
    }

    /// Writes the names of the streams to their own file, readable without a checkpoint.
    fn write_names(&self) -> Result<(), CheckpointError> {
        self.not_poisoned()?;
        let _one_at_a_time = self.work.lock().expect("a checkpoint does not panic");
        let names = {
            let state = self.core.state();
            Names { next: state.next_stream, streams: state.names() }
        };
        names.write(&self.dir).map_err(CheckpointError::io("cannot write the names of the streams"))
    }

    fn may_append(&self, entries: &[crate::Entry], body: BodyPlace) -> Result<(), AppendError> {
        if entries.is_empty() || entries.len() > ENTRIES_MAX {
            return Err(AppendError::Entries(entries.len()));
        }
        let state = self.core.state();
        let is_known = |entry: &&crate::Entry| state.streams.contains_key(&entry.stream.0);
        if let Some(entry) = entries.iter().find(|entry| !is_known(entry)) {
            return Err(AppendError::NoStream(entry.stream));
        }
        drop(state);
        // Only the keeper queries the file system, once a second and on request: callers of append may hold locks.
        if body != BodyPlace::None && self.is_short_of_space.load(Ordering::Relaxed) {
            self.core.bell.ring(Wanted::Room);
            return Err(AppendError::Full("the file system has too little space or too few inodes left".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_large_body_that_is_refused_asks_the_keeper_for_room() {
        let dir = tempfile::tempdir().unwrap();
        let config = crate::Config { keeper: false, free_bytes_min: u64::MAX / 2, ..crate::Config::default() };
        let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
        let asked = || spool.shared.core.bell.wait(Duration::ZERO);
        while asked().is_some() {}
        assert!(spool.upload(1).is_err());
        assert_eq!(asked(), Some(Wanted::Room));
        assert!(spool.check_room(1).is_err());
        assert_eq!((asked(), asked()), (Some(Wanted::Room), None));
    }
}
