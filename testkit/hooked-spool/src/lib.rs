//! A spool with test hooks before its calls: they count, refuse or panic.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::{
    AppendError, Batch, CheckpointError, Consumer, FileSpool, Lsn, Pressure, ReadError, Released, ReplayError,
    Replayed, RestoreError, Restored, SetAside, SnapshotError, SnapshotName, SnapshotReader, Spool, Stats, StreamError,
    StreamId, StreamStats, Then, Ticket, Upload,
};
use posthaste_watch::{StuckWorker, Watch};

/// Hooks that are called before the spool.
pub trait Hooks: Send + Sync {
    /// Refuses the batch on an error.
    ///
    /// # Errors
    /// The error for the caller of [`Spool::append`].
    fn append(&self, _batch: &Batch) -> Result<(), AppendError> {
        Ok(())
    }

    /// Replaces the spool's callback `then`. The replacement has to call it, as nothing else does.
    fn then(&self, then: Then) -> Then {
        then
    }

    /// Reason for which the spool pretends to be poisoned.
    fn poisoned(&self) -> Option<Arc<str>> {
        None
    }

    /// Refuses a large body on an error.
    ///
    /// # Errors
    /// The error for the caller of [`Spool::upload`].
    fn upload(&self) -> io::Result<()> {
        Ok(())
    }

    /// Fails the replay of a stream on an error.
    ///
    /// # Errors
    /// The error for the caller of [`Spool::replay`].
    fn replay(&self, _stream: StreamId) -> Result<(), ReplayError> {
        Ok(())
    }

    /// Called when this many octets of a body are read.
    fn read(&self, _octets: u64) {}

    /// Called when the entries of a batch are read.
    fn entries(&self) {}

    /// Called when a stream advances.
    fn advance(&self) {}
}

/// See the crate's description.
pub struct HookedSpool<H> {
    /// The spool itself.
    pub spool: FileSpool,
    /// The hooks.
    pub hooks: H,
}

impl<H> HookedSpool<H> {
    /// A spool with hooks.
    pub fn new(spool: FileSpool, hooks: H) -> Self {
        Self { spool, hooks }
    }
}

impl<H: Hooks> Spool for HookedSpool<H> {
    fn append(&self, batch: Batch, then: Then) -> Ticket {
        let refused = self.hooks.append(&batch);
        let then = self.hooks.then(then);
        match refused {
            Ok(()) => self.spool.append(batch, then),
            // Nobody is asked whether a batch without an entry is durable.
            Err(error) => self.spool.append(Batch::default(), Box::new(move |_| then(Err(error)))),
        }
    }

    fn read(&self, body: Lsn, range: Range<u64>) -> Result<Bytes, ReadError> {
        self.hooks.read(range.end - range.start);
        self.spool.read(body, range)
    }

    fn advance(&self, stream: StreamId, position: Lsn, snapshot: Option<SnapshotName>, released: Released) {
        self.hooks.advance();
        self.spool.advance(stream, position, snapshot, released);
    }

    fn stream(&self, name: &str) -> Result<StreamId, StreamError> {
        self.spool.stream(name)
    }

    fn position(&self, stream: StreamId) -> (Lsn, Option<SnapshotName>) {
        self.spool.position(stream)
    }

    fn upload(&self, announced: u64) -> io::Result<Upload> {
        self.hooks.upload()?;
        self.spool.upload(announced)
    }

    fn check_room(&self, octets: u64) -> io::Result<()> {
        self.spool.check_room(octets)
    }

    fn room(&self) -> io::Result<u64> {
        self.spool.room()
    }

    fn entries(&self, stream: StreamId, batch: Lsn) -> Result<Vec<Bytes>, ReadError> {
        self.hooks.entries();
        self.spool.entries(stream, batch)
    }

    fn write_snapshot(
        &self,
        name: &SnapshotName,
        content: &mut dyn FnMut(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.spool.write_snapshot(name, content)
    }

    fn read_snapshot(&self, name: &SnapshotName) -> Result<SnapshotReader, SnapshotError> {
        self.spool.read_snapshot(name)
    }

    fn restore(&self, stream: StreamId) -> Result<Restored, RestoreError> {
        self.spool.restore(stream)
    }

    fn wants_snapshot(&self, stream: StreamId) -> bool {
        self.spool.wants_snapshot(stream)
    }

    fn needs_body(&self, stream: StreamId, body: Lsn) -> bool {
        self.spool.needs_body(stream, body)
    }

    fn set_aside(&self, body: Lsn) -> io::Result<SetAside> {
        self.spool.set_aside(body)
    }

    fn replay(&self, stream: StreamId, visitor: &mut dyn FnMut(Replayed<'_>)) -> Result<Lsn, ReplayError> {
        self.hooks.replay(stream)?;
        self.spool.replay(stream, visitor)
    }

    fn attach(&self, stream: StreamId, after: Lsn, consumer: Arc<dyn Consumer>) -> Result<(), ReplayError> {
        self.spool.attach(stream, after, consumer)
    }

    fn detach(&self, stream: StreamId) {
        self.spool.detach(stream);
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        self.hooks.poisoned().or_else(|| self.spool.poisoned())
    }

    fn pressure(&self) -> &Pressure {
        self.spool.pressure()
    }

    fn watch(&self) -> &Watch {
        self.spool.watch()
    }

    fn look_for_stuck(&self, now: std::time::Instant) -> Vec<StuckWorker> {
        self.spool.look_for_stuck(now)
    }

    fn stats(&self) -> Stats {
        self.spool.stats()
    }

    fn streams(&self) -> Vec<StreamStats> {
        self.spool.streams()
    }

    fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.spool.checkpoint()
    }
}
