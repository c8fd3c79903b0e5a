//! The life of a stream, from registration to the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{
    AppendError, Batch, Body, Consumer, Entry, Lsn, Released, ReplayError, Replayed, SnapshotName, Spool, StreamError,
    StreamId,
};

/// A stream of a spool, for its owner. Clones refer to the same stream.
#[derive(Clone)]
pub struct StreamHandle {
    spool: Arc<dyn Spool>,
    id: StreamId,
}

impl std::fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StreamHandle").field(&self.id).finish()
    }
}

/// The state of a stream. It depends on entries only: no clock, no quota, no configuration.
pub trait StreamState {
    /// Why its entries cannot be applied.
    type Error: From<ReplayError>;

    /// Applies an entry.
    ///
    /// # Errors
    /// The stream cannot be opened; the replay stops.
    fn apply(&mut self, entry: ReplayedEntry<'_>) -> Result<(), Self::Error>;

    /// A batch with an entry for the stream is unreadable. It is also in [`ReplayedStream::damaged`].
    ///
    /// # Errors
    /// Like [`apply`](Self::apply).
    fn damaged(&mut self, lsn: Lsn) -> Result<(), Self::Error> {
        let _ = lsn;
        Ok(())
    }

    /// Entries up to `through` are missing, with unknown content: see [`Replayed::Uncertain`]. Also called after
    /// [`damaged`](Self::damaged) of an entry without a body.
    fn uncertain(&mut self, stream: &StreamHandle, through: Lsn) {
        let _ = (stream, through);
    }
}

/// An entry that is applied to a state.
#[derive(Debug, Clone, Copy)]
pub struct ReplayedEntry<'a> {
    /// LSN of the entry's batch.
    pub lsn: Lsn,
    /// Content, in the stream's own format.
    pub payload: &'a Bytes,
    /// Bytes of the batch's body.
    pub body_len: u64,
}

/// A stream after the replay: its state is up to date.
#[derive(Debug)]
#[must_use = "the owner is shown what comes once it is attached"]
pub struct ReplayedStream {
    stream: StreamHandle,
    through: Lsn,
    /// Unreadable batches.
    pub damaged: Vec<Lsn>,
}

/// A stream whose owner receives new entries. It is detached on drop.
#[derive(Debug)]
pub struct AttachedStream {
    stream: StreamHandle,
    is_detached: AtomicBool,
}

impl StreamHandle {
    /// The stream with this name, registered if it is new: that blocks for a checkpoint.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn register(spool: Arc<dyn Spool>, name: &str) -> Result<Self, StreamError> {
        let id = spool.stream(name)?;
        Ok(StreamHandle { spool, id })
    }

    /// The spool of the stream.
    pub fn spool(&self) -> &Arc<dyn Spool> {
        &self.spool
    }

    /// Id of the stream.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The stream's position and its snapshot there.
    pub fn position(&self) -> (Lsn, Option<SnapshotName>) {
        self.spool.position(self.id)
    }

    /// An entry of the stream that needs no body.
    pub fn entry(&self, payload: impl Into<Bytes>) -> Entry {
        Entry { stream: self.id, needs_body: false, payload: payload.into() }
    }

    /// An entry of the stream that needs its batch's body until the stream releases the body.
    pub fn entry_of_body(&self, payload: impl Into<Bytes>) -> Entry {
        Entry { needs_body: true, ..self.entry(payload) }
    }

    /// Appends entries as one batch without a body; does not block.
    pub fn append(
        &self,
        payloads: impl IntoIterator<Item: Into<Bytes>>,
        then: impl FnOnce(Result<Lsn, AppendError>) + Send + 'static,
    ) {
        let entries = payloads.into_iter().map(|payload| self.entry(payload)).collect();
        self.spool.append(Batch { entries, body: Body::None }, Box::new(then));
    }

    /// Like [`append`](Self::append), and waits until the batch is durable. Blocks.
    ///
    /// # Errors
    /// The batch was refused.
    pub fn append_durably(&self, payloads: impl IntoIterator<Item: Into<Bytes>>) -> Result<Lsn, AppendError> {
        let entries = payloads.into_iter().map(|payload| self.entry(payload)).collect();
        append_within(&self.spool, entries, Duration::ZERO)
    }

    /// Like [`append_durably`](Self::append_durably), for a command with a waiting sender: retries for
    /// [`ROOM_PATIENCE`] while the ring is full.
    ///
    /// # Errors
    /// The batch was refused.
    pub fn append_command(&self, payload: impl Into<Bytes>) -> Result<Lsn, AppendError> {
        append_within(&self.spool, vec![self.entry(payload)], ROOM_PATIENCE)
    }

    /// Everything up to `position` is processed: see [`Spool::advance`].
    pub fn advance(&self, position: Lsn, snapshot: Option<SnapshotName>, released: Released) {
        self.spool.advance(self.id, position, snapshot, released);
    }

    /// Applies every entry after the stream's position to `state`.
    ///
    /// # Errors
    /// The spool cannot be read, or the state refuses an entry. Some entries may have been applied.
    pub fn replay<S: StreamState>(self, state: &mut S) -> Result<ReplayedStream, S::Error> {
        let mut damaged = Vec::new();
        let mut applied = Ok(());
        let through = self.spool.replay(self.id, &mut |replayed| {
            if applied.is_err() {
                return;
            }
            match replayed {
                Replayed::Entry { lsn, payload, body_len, .. } => {
                    applied = state.apply(ReplayedEntry { lsn, payload, body_len });
                }
                Replayed::Damaged { lsn } => {
                    damaged.push(lsn);
                    applied = state.damaged(lsn);
                    // No message: it said what became of others.
                    if !self.spool.needs_body(self.id, lsn) {
                        state.uncertain(&self, lsn);
                    }
                }
                Replayed::Uncertain { through } => state.uncertain(&self, through),
            }
        });
        applied?;
        Ok(ReplayedStream { through: through?, stream: self, damaged })
    }
}

impl ReplayedStream {
    /// The stream.
    pub fn stream(&self) -> &StreamHandle {
        &self.stream
    }

    /// The last batch that was applied, or passed over.
    pub fn through(&self) -> Lsn {
        self.through
    }

    /// Passes entries since the replay to `consumer` on this thread, then all new ones.
    ///
    /// # Errors
    /// See [`ReplayError`]; nothing is attached then.
    pub fn attach(self, consumer: Arc<dyn Consumer>) -> Result<AttachedStream, ReplayError> {
        self.stream.spool.attach(self.stream.id, self.through, consumer)?;
        Ok(AttachedStream { stream: self.stream, is_detached: AtomicBool::new(false) })
    }
}

impl AttachedStream {
    /// The stream.
    pub fn stream(&self) -> &StreamHandle {
        &self.stream
    }

    /// Stops passing entries to the consumer; later ones wait for the next replay. On return no call to it is in
    /// progress. The consumer must not call this. Only the first call has an effect: another owner may be attached
    /// since.
    pub fn detach(&self) {
        if !self.is_detached.swap(true, Ordering::AcqRel) {
            self.stream.spool.detach(self.stream.id);
        }
    }
}

impl Drop for AttachedStream {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Appends a batch without a body and waits until it is durable. A full ring refuses the batch first and then makes
/// room. So the append is retried for `patience`; otherwise a command that frees space could fail for lack of space.
/// Blocks.
///
/// # Errors
/// The batch was refused.
pub fn append_within(spool: &Arc<dyn Spool>, entries: Vec<Entry>, patience: Duration) -> Result<Lsn, AppendError> {
    let until = Instant::now() + patience;
    loop {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let batch = Batch { entries: entries.clone(), body: Body::None };
        spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        match told.recv().unwrap_or(Err(AppendError::Closed)) {
            Err(AppendError::Full(_)) if Instant::now() < until => std::thread::sleep(ROOM_PAUSE),
            outcome => return outcome,
        }
    }
}

/// Timeout of a command that waits for room in a full ring.
pub const ROOM_PATIENCE: Duration = Duration::from_secs(30);
const ROOM_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use posthaste_spool::{Config, FileSpool, Published};

    use super::*;

    #[derive(Default)]
    struct Shown(Mutex<Vec<Bytes>>);

    impl Consumer for Shown {
        fn published(&self, entry: Published) {
            self.0.lock().unwrap().push(entry.payload);
        }

        fn advance_wanted(&self, _: Lsn) {}
    }

    /// Takes entries until one says "stop".
    #[derive(Default)]
    struct Applied(Vec<Bytes>);

    impl StreamState for Applied {
        type Error = std::io::Error;

        fn apply(&mut self, entry: ReplayedEntry<'_>) -> std::io::Result<()> {
            self.0.push(entry.payload.clone());
            if entry.payload == "stop" { Err(std::io::Error::other("as it says")) } else { Ok(()) }
        }
    }

    fn stream(dir: &std::path::Path) -> StreamHandle {
        let (spool, _) = FileSpool::open(dir, Config { keeper: false, ..Config::default() }).unwrap();
        StreamHandle::register(Arc::new(spool), "one").unwrap()
    }

    #[test]
    fn an_owner_that_has_ended_detaches_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let stream = stream(dir.path());
        let attach =
            |shown: &Arc<Shown>| stream.clone().replay(&mut Applied::default()).unwrap().attach(shown.clone()).unwrap();
        let (before, shown) = (attach(&Arc::default()), Arc::<Shown>::default());
        before.detach();
        let after = attach(&shown);
        drop(before);
        stream.append_durably(["a"]).unwrap();
        while shown.0.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        drop(after);
    }

    #[test]
    fn an_owner_is_shown_each_entry_once() {
        let dir = tempfile::tempdir().unwrap();
        let stream = stream(dir.path());
        stream.append_durably(["a", "b"]).unwrap();
        let mut applied = Applied::default();
        let replayed = stream.clone().replay(&mut applied).unwrap();
        stream.append_durably(["c"]).unwrap();
        let shown = Arc::<Shown>::default();
        let attached = replayed.attach(shown.clone()).unwrap();
        stream.append_durably(["d"]).unwrap();
        assert_eq!(applied.0, ["a", "b"]);
        assert_eq!(*shown.0.lock().unwrap(), ["c", "d"]);
        attached.detach();
        stream.append_durably(["e"]).unwrap();
        assert_eq!(shown.0.lock().unwrap().len(), 2);
    }

    /// Each opening writes into segments of its own, so the entries of a run that was killed may have used up the last segment, which no body gets.
    #[test]
    fn a_command_finds_room_in_a_full_ring_after_two_kills() {
        let dir = tempfile::tempdir().unwrap();
        let open = |keeper: bool| {
            let never = Duration::from_secs(3600);
            let mut config = Config { keeper, checkpoint_every: never, scrub_bytes_per_sec: 0, ..Config::default() };
            (config.ring.segment_bytes, config.ring.max_segments) = (64 << 10, 6);
            let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
            StreamHandle::register(Arc::new(spool), "one").unwrap()
        };
        let stream = open(false);
        let is_taken = || {
            let (tell, told) = std::sync::mpsc::channel();
            let body = Body::inline(vec![Bytes::from(vec![7; 9000])]);
            let batch = Batch { entries: vec![stream.entry_of_body(Bytes::from_static(b"mail"))], body };
            stream.spool.append(batch, Box::new(move |outcome| tell.send(outcome.is_ok()).unwrap()));
            told.recv().unwrap()
        };
        assert!((0..1000).any(|_| !is_taken()), "the ring is full");
        drop(stream);
        let stream = open(false);
        stream.append_durably(["a"]).unwrap();
        drop(stream);
        let stream = open(false);
        let refused = stream.append_durably(["b"]);
        assert!(matches!(refused, Err(AppendError::Full(_))), "{refused:?}");
        drop(stream);
        let stream = open(true);
        stream.append_command(Bytes::from_static(b"c")).unwrap();
    }

    #[test]
    fn an_opening_that_fails_leaves_no_consumer_behind() {
        let dir = tempfile::tempdir().unwrap();
        let stream = stream(dir.path());
        let open = || {
            stream
                .clone()
                .replay(&mut Applied::default())?
                .attach(Arc::<Shown>::default())
                .map_err(std::io::Error::from)
        };
        let attached = open().unwrap();
        assert!(open().is_err(), "one consumer at a time");
        drop(attached);
        open().unwrap();
    }

    #[test]
    fn an_entry_that_cannot_be_applied_ends_the_replay() {
        let dir = tempfile::tempdir().unwrap();
        let stream = stream(dir.path());
        stream.append_durably(["a", "stop", "b"]).unwrap();
        let mut applied = Applied::default();
        assert_eq!(stream.replay(&mut applied).unwrap_err().to_string(), "as it says");
        assert_eq!(applied.0, ["a", "stop"]);
    }
}
