//! The transports as a whole: the consumer of their stream, the workers, and the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use posthaste_directory::Transport;
use posthaste_spool::runtime::{ConsumerRuntime, NewRuntime};
use posthaste_spool::{
    AppendError, Batch, Body, Consumer, Entry, Lsn, Published, PublishedBody, ReplayError, Replayed, Spool,
    StreamError, StreamId,
};
use tokio::sync::{Notify, Semaphore};

use crate::body::Source;
use crate::config::Config;
use crate::entry::{Deliver, Key, Target, TransportEntry};
use crate::events::{Event, Events, event, observe, trouble, unix_secs};
use crate::observer::TargetId;
use crate::queues::Queues;
use crate::work::{LostMail, Note, Outcome, Work};
use crate::workers::schedule;

/// The name of the stream of all transports.
pub const STREAM: &str = "transports";

/// Delivery to programs, files and LMTP servers, open. Clones share it.
#[derive(Clone)]
pub struct Transports(Arc<Handle>);

impl std::fmt::Debug for Transports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transports").field("config", &self.0.shared.config).finish_non_exhaustive()
    }
}

/// The last handle ends it.
struct Handle {
    shared: Arc<Shared>,
    /// Its main task is the scheduler.
    runtime: ConsumerRuntime,
}

pub(crate) struct Shared {
    pub spool: Arc<dyn Spool>,
    pub stream: StreamId,
    pub config: Config,
    pub events: Events,
    pub queues: Mutex<Queues>,
    /// For the scheduler.
    pub wake: Notify,
    /// A worker has ended, or its last target is done.
    pub idle: Condvar,
    /// What the spool wants to be passed.
    pub wanted: AtomicU64,
    pub is_ending: AtomicBool,
    pub lmtp_memory: Arc<Semaphore>,
    pub lmtp_memory_kib: u32,
    pub delivered: AtomicU64,
    pub failed_attempts: AtomicU64,
}

/// The envelope of a message for transports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The sender's address; empty for none.
    pub sender: Arc<str>,
    /// BODY=8BITMIME was said of it.
    pub is_8bit: bool,
    /// SMTPUTF8 was said of it.
    pub smtputf8: bool,
    /// Where it goes: 1 to 65,535.
    pub targets: Vec<Target>,
}

/// Why the transports could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The stream could not be registered.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream could not be read.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Threads could not be started.
    #[error("threads for transports: {0}")]
    Threads(#[from] std::io::Error),
}

/// What opening found in the spool.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct OpenReport {
    /// Messages that were not known to be delivered.
    pub messages: usize,
    /// Batches that cannot be read any more.
    pub damaged: Vec<Lsn>,
    /// Batches that a later version has written. They stay in the spool.
    pub unknown: Vec<Lsn>,
}

/// So much waits for a transport that no more is taken for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes wait for {transport}")]
pub struct TransportFull {
    /// Which.
    pub transport: Arc<str>,
    /// Bytes that wait for it.
    pub bytes: u64,
}

/// Figures since opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Targets that got their message.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Messages that wait now.
    pub messages: usize,
    /// Bytes that wait now.
    pub bytes: u64,
    /// Transports that they wait for.
    pub transports: usize,
}

impl Transports {
    /// Registers the stream and has everything in it delivered that is not known to be.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(spool: Arc<dyn Spool>, config: Config, events: Events) -> Result<(Self, OpenReport), OpenError> {
        let stream = spool.stream(STREAM)?;
        let mut queues = Queues::new(config.clone());
        let mut report = OpenReport::default();
        let shown_through = spool.replay(stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, payload, body_len, .. } => {
                queues.show(lsn, TransportEntry::decode(payload.clone()), body_len);
            }
            Replayed::Damaged { lsn } => report.damaged.push(lsn),
        })?;
        queues.replayed();
        report.messages = queues.messages();
        report.unknown.extend_from_slice(queues.unknown());
        let runtime = NewRuntime::new("transport", BLOCKING_THREADS_MAX)?;
        let lmtp_memory_kib =
            u32::try_from(config.lmtp_bytes_max / 1024).unwrap_or(u32::MAX >> 3).clamp(1, u32::MAX >> 3);
        let shared = Arc::new(Shared {
            spool,
            stream,
            config,
            events,
            queues: Mutex::new(queues),
            wake: Notify::new(),
            idle: Condvar::new(),
            wanted: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            lmtp_memory: Arc::new(Semaphore::new(lmtp_memory_kib as usize)),
            lmtp_memory_kib,
            delivered: AtomicU64::new(0),
            failed_attempts: AtomicU64::new(0),
        });
        shared.spool.attach(stream, shown_through, shared.clone())?;
        let runtime = runtime.run(schedule(shared.clone()));
        Ok((Transports(Arc::new(Handle { shared, runtime })), report))
    }

    /// The entry of a message for the batch that keeps it.
    pub fn entry(&self, message: Message) -> Entry {
        let Message { sender, is_8bit, smtputf8, targets } = message;
        let secs = unix_secs(SystemTime::now());
        let targets = (0..).zip(targets).collect();
        let deliver = Deliver { secs, sender, is_8bit, smtputf8, body: None, targets };
        Entry { stream: self.0.shared.stream, needs_body: true, payload: TransportEntry::Deliver(deliver).encode() }
    }

    /// Whether mail for a transport can be taken: not if too much waits for it already, or for all of them (SMTP 452 4.2.2).
    ///
    /// # Errors
    /// Too much waits.
    pub fn check(&self, transport: &Transport) -> Result<(), TransportFull> {
        let (queues, config) = (self.0.shared.queues(), &self.0.shared.config);
        let bytes = queues.bytes_of(transport.text());
        match bytes > config.pending_bytes_max || bytes > 0 && queues.bytes() > config.pending_bytes_max_all {
            true => Err(TransportFull { transport: transport.text().clone(), bytes }),
            false => Ok(()),
        }
    }

    /// Tries everything that waits now, also what was refused.
    pub fn retry_all(&self) {
        self.0.shared.queues().retry_all();
        self.0.shared.wake.notify_one();
    }

    /// Figures since opening.
    pub fn stats(&self) -> Stats {
        let shared = &self.0.shared;
        let queues = shared.queues();
        Stats {
            delivered: shared.delivered.load(Ordering::Relaxed),
            failed_attempts: shared.failed_attempts.load(Ordering::Relaxed),
            messages: queues.messages(),
            bytes: queues.bytes(),
            transports: queues.transports(),
        }
    }

    /// Ready once nothing is delivered any more although nobody has [ended](Self::end_by) it, which is a bug: what waits is in the spool. Not to be called after that.
    pub fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.runtime.poll_ended(cx)
    }

    /// Begins nothing more, waits until `deadline` (real time) for what is under way, and ends. A program that still runs then is killed. Blocks.
    pub fn end_by(&self, deadline: Instant) {
        self.0.end_by(deadline);
    }
}

impl Handle {
    fn end_by(&self, deadline: Instant) {
        let Some(ending) = self.runtime.begin_end() else { return };
        let shared = &self.shared;
        shared.is_ending.store(true, Ordering::Release);
        shared.wake.notify_one();
        shared.wait_until(deadline, |queues| queues.workers() == 0);
        shared.spool.detach(shared.stream);
        shared.advance();
        // What still hangs is dropped, and with it its program.
        ending.shut_down();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end_by(Instant::now() + self.shared.config.shutdown_patience);
    }
}

impl Consumer for Shared {
    fn published(&self, entry: Published) {
        let body_len = match &entry.body {
            PublishedBody::None => 0,
            PublishedBody::Stored { len } => *len,
            PublishedBody::Memory(parts) => parts.iter().map(|part| part.len() as u64).sum(),
        };
        let done = self.queues().show(entry.lsn, TransportEntry::decode(entry.payload), body_len);
        if !done.is_empty() {
            // Their notes may be passed with the older entry.
            self.append(&TransportEntry::Done(done));
        }
        self.wake.notify_one();
    }

    fn advance_wanted(&self, through: Lsn) {
        self.wanted.fetch_max(through.get(), Ordering::AcqRel);
        self.wake.notify_one();
    }
}

impl Shared {
    pub fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("no thread panics while it holds the queues")
    }

    fn wait_until(&self, deadline: Instant, holds: impl Fn(&Queues) -> bool) -> bool {
        let mut queues = self.queues();
        while !holds(&queues) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queues = self.idle.wait_timeout(queues, left).expect("the queues").0;
        }
        true
    }

    /// Appends an entry that nobody waits for.
    pub fn append(&self, entry: &TransportEntry) {
        self.spool.append(self.batch(entry), Box::new(|_| ()));
    }

    /// Appends an entry and waits until it is durable. Blocks.
    pub fn append_durably(&self, entry: &TransportEntry) -> Result<(), String> {
        let (tell, told) = std::sync::mpsc::channel();
        self.spool.append(self.batch(entry), Box::new(move |outcome| drop(tell.send(outcome))));
        match told.recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("the spool: {error}")),
            Err(_) => Err("the spool is closed".to_owned()),
        }
    }

    fn batch(&self, entry: &TransportEntry) -> Batch {
        let entry = Entry { stream: self.stream, needs_body: false, payload: entry.encode() };
        Batch { entries: vec![entry], body: Body::None }
    }

    /// Says how far the stream has come, and writes down anew what holds it up.
    pub fn advance(&self) {
        let wanted = Lsn::new(self.wanted.swap(0, Ordering::AcqRel));
        let (advance, laggards, troubles) = {
            let mut queues = self.queues();
            let laggards = queues.take_laggards(wanted);
            let troubles = if laggards.is_empty() { Vec::new() } else { queues.troubles(NOTES_MAX) };
            (queues.take_advance(), laggards, troubles)
        };
        if let Some((position, released)) = advance {
            self.spool.advance(self.stream, position, None, released);
        }
        laggards.iter().for_each(|entry| self.append(entry));
        let now = Instant::now();
        troubles.iter().filter_map(|note| trouble(note, now)).for_each(|trouble| self.append(&trouble));
    }

    /// Enters what became of a worker's attempt.
    pub fn finish(&self, worker: u64, work: &Work, outcomes: Vec<Outcome>) {
        let now = Instant::now();
        let age = Duration::from_secs(unix_secs(SystemTime::now()).saturating_sub(work.deliver.secs));
        self.tell_lost(work, &outcomes);
        let delivered = work.targets_with(&outcomes, |outcome| *outcome == Outcome::Delivered);
        let delivered: Vec<TargetId> = delivered.map(|(target, _)| target).collect();
        self.delivered.fetch_add(delivered.len() as u64, Ordering::Relaxed);
        let (done, notes) = self.queues().finish(worker, work, outcomes, age > self.config.max_age, now);
        if !done.is_empty() {
            self.append_done(done, delivered);
        }
        self.tell(notes, now);
        self.wake.notify_one();
    }

    /// Nothing is given up before it is told.
    fn tell_lost(&self, work: &Work, outcomes: &[Outcome]) {
        for (target, outcome) in work.targets_with(outcomes, |outcome| matches!(outcome, Outcome::Lost(..))) {
            let Outcome::Lost(error, kept) = outcome else { continue };
            if let Some(observer) = &self.config.observer {
                observer.given_up(target.clone(), error.clone());
            }
            let (received_secs, bytes, error) = (work.deliver.secs, work.body_len, error.clone());
            (self.events.0)(Event::Lost(LostMail { target, received_secs, bytes, error, kept: kept.clone() }));
        }
    }

    /// Notes what is done, and with it what the observer has to say of what was delivered.
    fn append_done(&self, done: Vec<Key>, delivered: Vec<TargetId>) {
        let mut batch = self.batch(&TransportEntry::Done(done));
        let observer = self.config.observer.as_ref().filter(|_| !delivered.is_empty());
        let Some(observer) = observer.cloned() else {
            self.spool.append(batch, Box::new(|_| ()));
            return;
        };
        let count = delivered.len() as u64;
        let observed = observer.delivered(delivered);
        let is_observed = observed.is_some();
        batch.entries.extend(observed);
        let then = move |outcome: Result<Lsn, AppendError>| {
            if outcome.is_err() && is_observed {
                observer.lost(count);
            }
        };
        self.spool.append(batch, Box::new(then));
    }

    /// A worker has ended, in whatever way.
    pub fn worker_ended(&self, worker: u64, panic: Option<&str>) {
        let now = Instant::now();
        let why = format!("the worker panicked, which is a bug: {}", panic.unwrap_or("it has ended too early"));
        let notes = self.queues().worker_ended(worker, &why.into(), now);
        self.idle.notify_all();
        self.wake.notify_one();
        self.tell(notes, now);
    }

    fn tell(&self, notes: Vec<Note>, now: Instant) {
        for note in notes {
            let is_failure = matches!(note, Note::Failed { .. } | Note::Unavailable { .. });
            self.failed_attempts.fetch_add(u64::from(is_failure), Ordering::Relaxed);
            if let Some(trouble) = trouble(&note, now) {
                self.append(&trouble);
            }
            if let Some(observer) = &self.config.observer {
                observe(&**observer, &note);
            }
            event(note, now).into_iter().for_each(|event| (self.events.0)(event));
        }
    }

    pub fn source(&self, work: &Work) -> Source {
        Source { spool: self.spool.clone(), lsn: work.body, len: work.body_len }
    }
}

/// For files and for reading bodies: as many as there may be workers.
const BLOCKING_THREADS_MAX: usize = 256;
/// Failures noted once more with messages that are written down anew.
const NOTES_MAX: usize = 1000;

#[cfg(test)]
impl Transports {
    pub(crate) fn want(&self, through: Lsn) {
        self.0.shared.advance_wanted(through);
    }
}
