//! Short helpers for tests of a spool.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use posthaste_spool::{AppendError, Batch, Body, Consumer, Entry, Lsn, Published, Released, Replayed, Spool, StreamId};

pub fn start(spool: &dyn Spool, batch: Batch) -> Receiver<Result<Lsn, AppendError>> {
    let (tell, told) = channel();
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told
}

/// Appends a message for these streams.
pub fn append(spool: &dyn Spool, streams: &[StreamId], body: &[u8]) -> Result<Lsn, AppendError> {
    append_body(spool, streams, Body::inline(vec![Bytes::copy_from_slice(body)]))
}

pub fn append_body(spool: &dyn Spool, streams: &[StreamId], body: Body) -> Result<Lsn, AppendError> {
    let entry = |stream: &StreamId| Entry { stream: *stream, needs_body: true, payload: "for you".into() };
    let entries = streams.iter().map(entry).collect();
    start(spool, Batch { entries, body }).recv().unwrap()
}

/// A batch without a body.
pub fn note(stream: StreamId, payload: &str) -> Batch {
    let entry = Entry { stream, needs_body: false, payload: Bytes::copy_from_slice(payload.as_bytes()) };
    Batch { entries: vec![entry], body: Body::None }
}

/// The LSNs of replayed entries; 0 for other items.
pub fn replayed(spool: &dyn Spool, stream: StreamId) -> Vec<u64> {
    let mut seen = Vec::new();
    let show = &mut |replayed: Replayed<'_>| match replayed {
        Replayed::Entry { lsn, .. } => seen.push(lsn.get()),
        _ => seen.push(0),
    };
    spool.replay(stream, show).unwrap();
    seen
}

/// Advances the stream to its end, and releases all bodies.
pub fn release_all(spool: &dyn Spool, stream: StreamId) {
    let last = spool.stats().published;
    spool.advance(stream, last, None, Released { below: Lsn::new(last.get() + 1), also: Vec::new() });
}

/// A consumer that keeps its calls.
#[derive(Default)]
pub struct Keeps {
    pub seen: Mutex<Vec<Published>>,
    /// Positions of durable checkpoints; 0 for the begin of one.
    pub checkpoints: Mutex<Vec<u64>>,
}

impl Keeps {
    pub fn lsns(&self) -> Vec<Lsn> {
        self.seen.lock().unwrap().iter().map(|entry| entry.lsn).collect()
    }
}

impl Consumer for Keeps {
    fn published(&self, entry: Published) {
        self.seen.lock().unwrap().push(entry);
    }

    fn advance_wanted(&self, _: Lsn) {}

    fn checkpoint_begins(&self) {
        self.checkpoints.lock().unwrap().push(0);
    }

    fn checkpoint_durable(&self, through: Lsn) {
        self.checkpoints.lock().unwrap().push(through.get());
    }
}
