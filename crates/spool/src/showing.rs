//! Watches the calls of the ring's thread: a hanging consumer there stops everything.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use posthaste_watch::{StuckWorker, Watch, Watcher, Worker};

/// Progress of the ring's thread as it publishes durable batches.
#[derive(Debug)]
pub(crate) struct Showing {
    worker: Worker,
    /// The stream whose consumer is being called; 0 for none.
    stream: AtomicU16,
    watcher: Watcher,
}

impl Default for Showing {
    fn default() -> Self {
        Showing::new(Watch::default())
    }
}

impl Showing {
    pub fn new(watch: Watch) -> Self {
        let worker = watch.worker("commits of the spool", STEPS, PATIENCE);
        Showing { worker, stream: AtomicU16::new(0), watcher: Watcher::of(watch) }
    }

    /// The thread waits until consumers may be called.
    pub fn begins(&self) {
        self.step(0, 1);
    }

    /// The thread calls the consumer of a stream.
    pub fn shows(&self, stream: u16) {
        self.step(stream, 2);
    }

    /// The thread calls the callbacks of waiting appends.
    pub fn answers(&self) {
        self.step(0, 3);
    }

    /// The thread is done with this batch.
    pub fn ends(&self) {
        self.step(0, 0);
    }

    fn step(&self, stream: u16, step: u8) {
        self.stream.store(stream, Ordering::Relaxed);
        self.worker.pulse().step(step);
    }

    /// Newly stuck calls. `name` returns a stream's name.
    pub fn look(&self, now: Instant, name: impl FnOnce(u16) -> Option<String>) -> Vec<StuckWorker> {
        let stream = Some(self.stream.load(Ordering::Relaxed)).filter(|stream| *stream != 0);
        let name = stream.and_then(name).map_or_else(String::new, |name| format!("stream {name}"));
        self.worker.within(name);
        self.watcher.look(now)
    }
}

const STEPS: &[&str] = &[
    "",
    "waiting until consumers may be called",
    "showing a batch to its consumer",
    "calling those who wait for the batch",
];
/// Time limit of a call: none of them may block.
const PATIENCE: Duration = Duration::from_secs(30);
