//! An open event log: recording events, and ending it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_consumer::{Pulse, StreamHandle, StreamOpenError};
use posthaste_spool::{Entry, Released, Spool, StreamId};

use crate::config::{Config, EventLogStats, Notice};
use crate::entry;
use crate::event::{Event, EventKind};
use crate::inbox::Inbox;
use crate::notes::{Behind, Notes};
use crate::pack::{self, Packer};
use crate::writer::{Figures, STEPS, Writer};

/// The name of the log's stream.
pub const STREAM: &str = "events";

/// An open event log. Dropping it ends it, without waiting long for its disk.
pub struct EventLog {
    recorder: EventRecorder,
    inbox: Arc<Inbox>,
    /// Receives a message, or a disconnect, when each thread has ended.
    noting: Mutex<Option<Receiver<()>>>,
    writing: Mutex<Option<Receiver<()>>>,
    packing: Mutex<Option<Receiver<()>>>,
    stop_packing: Arc<AtomicBool>,
}

impl std::fmt::Debug for EventLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLog").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Records events. Clones share it; it does not keep the spool open, and may outlive its log.
#[derive(Clone)]
pub struct EventRecorder {
    stream: StreamId,
    /// True if its entries are never part of another batch.
    is_apart: bool,
    notes: Arc<Notes>,
    figures: Arc<Figures>,
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventRecorder").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl EventLog {
    /// Registers the log's stream and starts its threads. Does not touch its files: the thread writes entries of an
    /// earlier run.
    ///
    /// # Errors
    /// See [`StreamOpenError`]. File errors are reported as a [`Notice`] instead.
    pub fn open(spool: Arc<dyn Spool>, config: Config) -> Result<Self, StreamOpenError> {
        let stream = StreamHandle::register(spool, STREAM)?;
        let inbox = Arc::new(Inbox::new(config.queue_bytes_max));
        let figures = Arc::new(Figures::default());
        // Until the spool was read nobody knows how much of it waits.
        figures.is_behind.store(true, Ordering::Relaxed);
        let notes = Arc::new(Notes::default());
        let behind = Behind {
            inbox: inbox.clone(),
            figures: figures.clone(),
            pending_max: config.pending_max,
            notice: config.notice.clone(),
        };
        let log = EventLog {
            recorder: EventRecorder {
                stream: stream.id(),
                is_apart: false,
                notes: notes.clone(),
                figures: figures.clone(),
            },
            inbox: inbox.clone(),
            noting: Mutex::default(),
            writing: Mutex::default(),
            packing: Mutex::default(),
            stop_packing: Arc::default(),
        };
        let failed = |thread| {
            let notes = notes.clone();
            let notice = config.notice.clone();
            move || {
                notes.has_failed.store(true, Ordering::Relaxed);
                notice(Notice::Panicked { thread });
            }
        };
        let notes_failed = failed(NOTES_THREAD);
        let log_failed = failed(LOG_THREAD);
        let pack_failed = failed(PACK_THREAD);
        let packer = Packer {
            dir: config.dir.clone(),
            compress: config.compress,
            max_age: config.max_age,
            stop: log.stop_packing.clone(),
        };
        let (closed, told) = channel();
        let packing = spawn(&stream, PACK_THREAD, pack::STEPS, move |pulse| packer.run(&told, pulse), pack_failed);
        *log.packing.lock().expect("a thread's end") = Some(packing?);
        let noted = stream.clone();
        let notes = notes.clone();
        // If the other cannot be started, this one ends with the log.
        let note = move |_: &Pulse| notes.run(&**noted.spool(), noted.id(), &behind);
        // It waits for nothing but the spool, whose own workers are looked at.
        let noting = spawn(&stream, NOTES_THREAD, &[""], note, notes_failed);
        *log.noting.lock().expect("a thread's end") = Some(noting?);
        let of_writer = stream.clone();
        let write = move |pulse: &Pulse| {
            Writer { stream: of_writer, config, inbox, figures, closed, pulse: pulse.clone() }.run();
        };
        let writing = spawn(&stream, LOG_THREAD, STEPS, write, log_failed);
        *log.writing.lock().expect("a thread's end") = Some(writing?);
        Ok(log)
    }

    /// A handle to record events.
    pub fn recorder(&self) -> EventRecorder {
        self.recorder.clone()
    }

    /// Figures since the opening.
    pub fn stats(&self) -> EventLogStats {
        self.recorder.stats()
    }

    /// Appends the last events, writes everything from the spool, and ends. Call it after recording has ended. Waits
    /// for `patience` at most; the next start writes the rest. True if all was written.
    pub fn end(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let wait = |thread: &Mutex<Option<Receiver<()>>>| {
            let Some(ended) = thread.lock().expect("a thread's end").take() else { return true };
            let left = deadline.saturating_duration_since(Instant::now());
            ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
        };
        self.recorder.notes.stop();
        let noted = wait(&self.noting);
        self.inbox.stop();
        let written = wait(&self.writing);
        // What it has not compressed is compressed in the next life.
        self.stop_packing.store(true, Ordering::Relaxed);
        wait(&self.packing);
        noted & written && !self.recorder.figures.is_failing.load(Ordering::Relaxed)
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.end(DROP_PATIENCE);
    }
}

impl EventRecorder {
    /// Figures of its log since the opening.
    pub fn stats(&self) -> EventLogStats {
        EventLogStats {
            lines: self.figures.lines.load(Ordering::Relaxed),
            left_out: self.notes.left_out.load(Ordering::Relaxed),
            is_over: self.notes.leaves_out(),
            is_failing: self.figures.is_failing.load(Ordering::Relaxed),
        }
    }

    /// For callers whose batches go into another spool: their events are [noted](Self::note) in batches of their own.
    pub fn apart(self) -> Self {
        Self { is_apart: true, ..self }
    }

    /// An event for the caller's batch, with the batch's durability. One for each batch. `None`: left out, because too
    /// many events wait.
    pub fn entry(&self, event: &Event) -> Option<Entry> {
        self.entries(std::slice::from_ref(event))
    }

    /// Several events as one entry, like [`entry`](Self::entry). `None` also without events.
    pub fn entries(&self, events: &[Event]) -> Option<Entry> {
        if self.is_apart {
            // The number of a message that comes into another spool is known only once it is there.
            let is_known = |event: &&Event| !matches!(&event.kind, EventKind::Received(it) if it.message.is_none());
            events.iter().filter(is_known).for_each(|event| self.note(event));
            return None;
        }
        if self.notes.leaves_out() || events.is_empty() {
            self.notes.lost(events.iter().map(Event::lines).sum());
            return None;
        }
        let mut payload = entry::begin();
        events.iter().for_each(|event| entry::put(&mut payload, event));
        Some(Entry { stream: self.stream, needs_body: false, payload: payload.freeze() })
    }

    /// Counts lines of events whose batch was refused: one for each target.
    pub fn lost(&self, lines: u64) {
        self.notes.lost(lines);
    }

    /// Records an event without waiting: durable within a moment, unless there are too many. Does not block.
    pub fn note(&self, event: &Event) {
        self.notes.add(event);
    }
}

/// Releases all batches that wait for a disabled event log, which would otherwise keep them forever. Returns their
/// number. Takes effect with the next checkpoint.
pub fn give_up(spool: &dyn Spool) -> u64 {
    let all = spool.streams();
    let Some(stats) = all.into_iter().find(|stats| stats.name == STREAM && stats.entries > 0) else { return 0 };
    // The files go on after the cursor if it is written again.
    let (_, cursor) = spool.position(stats.id);
    spool.advance(stats.id, spool.stats().published, cursor, Released::default());
    stats.entries
}

/// Starts a thread and reports its end to the receiver. `failed` is called if it panics.
fn spawn(
    stream: &StreamHandle,
    name: &str,
    steps: &'static [&'static str],
    run: impl FnOnce(&Pulse) + Send + 'static,
    failed: impl FnOnce() + Send + 'static,
) -> Result<Receiver<()>, StreamOpenError> {
    let (tell, told) = channel();
    let run = move |pulse: &Pulse| {
        // Its state outlives a panic, behind locks.
        if catch_unwind(AssertUnwindSafe(|| run(pulse))).is_err() {
            failed();
        }
        let _ = tell.send(());
    };
    stream.start_thread(name, steps, run).map_err(StreamOpenError::io(name))?;
    Ok(told)
}

const NOTES_THREAD: &str = "event-notes";
const PACK_THREAD: &str = "event-pack";
const LOG_THREAD: &str = "event-log";
const DROP_PATIENCE: Duration = Duration::from_secs(1);
