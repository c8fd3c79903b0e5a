//! What the handle, the writer and the preparer share: the queue, the tables of records, the poison.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::layout::{BLOCK, KIND_BARRIER, record_span};
use crate::pool::Pool;
use crate::recovery::{InService, Live};
use crate::stats::Stats;
use crate::writer::Pending;
use crate::{AppendError, Config, RecordId};

/// What the handle, the writer and the preparer share.
pub(crate) struct Shared {
    pub config: Config,
    pub pool: Pool,
    queue: Mutex<Queue>,
    arrived: Condvar,
    state: Mutex<State>,
    poison: OnceLock<Arc<str>>,
    pub stats: Stats,
    segment_wanted: (Mutex<bool>, Condvar),
    closed: AtomicBool,
    pub checkpointing: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Pending>,
    bytes: usize,
    // Those that somebody waits for: all but most notes.
    waited_for: usize,
    // Nothing but being woken wakes the writer.
    sleeps_for_ever: bool,
}

pub(crate) struct State {
    pub live: HashMap<RecordId, Live>,
    // Settled since the last checkpoint that succeeded.
    pub settled: HashMap<RecordId, Live>,
    pub segments: BTreeMap<u64, InService>,
    pub last_seq: u64,
}

impl State {
    /// Where a record that no checkpoint has forgotten lies, settled or not.
    pub fn place(&self, id: RecordId) -> Option<&Live> {
        self.live.get(&id).or_else(|| self.settled.get(&id))
    }

    /// The same, to be changed when the record is copied.
    pub fn place_mut(&mut self, id: RecordId) -> Option<&mut Live> {
        match self.live.get_mut(&id) {
            Some(live) => Some(live),
            None => self.settled.get_mut(&id),
        }
    }
}

impl Shared {
    pub fn new(config: Config, pool: Pool, state: State) -> Self {
        Shared {
            config,
            pool,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            state: Mutex::new(state),
            poison: OnceLock::new(),
            stats: Stats::default(),
            segment_wanted: (Mutex::new(false), Condvar::new()),
            closed: AtomicBool::new(false),
            checkpointing: Mutex::new(()),
        }
    }

    /// Takes nothing more and lets the threads end.
    pub fn close(&self) {
        {
            let _no_more_appends = self.queue.lock().expect("queue lock");
            let _preparer = self.segment_wanted.0.lock().expect("preparer lock");
            self.closed.store(true, Ordering::Release);
        }
        self.pool.hurry();
        self.arrived.notify_all();
        self.segment_wanted.1.notify_all();
    }

    /// Live records at most: so many that a checkpoint, which names them all, takes a quarter of a segment.
    pub fn live_max(&self) -> usize {
        (self.config.segment_bytes / 4 / 8) as usize
    }

    /// The payload of a record, from disk. `None` when no record has this id.
    ///
    /// # Errors
    /// The disk's, and `InvalidData` when it gives back other bytes than were written.
    pub fn read(&self, id: RecordId) -> io::Result<Option<(Live, Vec<u8>)>> {
        let find = || {
            let state = self.state();
            let live = state.place(id)?.clone();
            let file = state.segments.get(&live.segment)?.segment.file.clone();
            Some((live, file))
        };
        let Some((live, file)) = find() else { return Ok(None) };
        match live.read(&*file) {
            Ok(payload) => Ok(Some((live, payload))),
            // A checkpoint may have moved the record while it was read.
            Err(error) => match find() {
                Some((moved, file)) if moved.seq != live.seq => {
                    moved.read(&*file).map(|payload| Some((moved, payload)))
                }
                _ => Err(error),
            },
        }
    }
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("state lock")
    }

    pub fn poison(&self) -> Option<Arc<str>> {
        self.poison.get().cloned()
    }

    pub fn poison_with(&self, why: String) -> Arc<str> {
        self.poison.get_or_init(|| why.into()).clone()
    }

    pub fn max_record_bytes(&self) -> usize {
        self.config.segment_bytes.min(u64::from(u32::MAX)) as usize - BLOCK - record_span(0)
    }

    pub fn push(&self, pending: Pending) -> Result<(), (Pending, AppendError)> {
        let limit = self.max_record_bytes();
        let bytes = pending.parts.iter().map(Bytes::len).sum();
        if bytes > limit {
            return Err((pending, AppendError::TooLarge { bytes, limit }));
        }
        // Who waits for all that was appended before is told once all of it has been refused.
        if let Some(why) = self.poison().filter(|_| pending.kind != KIND_BARRIER) {
            return Err((pending, AppendError::Poisoned(why)));
        }
        let mut queue = self.queue.lock().expect("queue lock");
        if self.closed.load(Ordering::Acquire) {
            return Err((pending, AppendError::Closed));
        }
        if queue.bytes + bytes > self.config.max_pending_bytes && !queue.pending.is_empty() {
            return Err((pending, AppendError::Busy));
        }
        queue.bytes += bytes;
        let is_waited_for = pending.done.is_some();
        queue.waited_for += usize::from(is_waited_for);
        queue.pending.push_back(pending);
        // The writer looks by itself for notes, for a while after each commit: those that follow it wake nobody.
        let wakes = is_waited_for && queue.waited_for == 1
            || queue.sleeps_for_ever && queue.pending.len() == 1
            || queue.pending.len() == self.config.max_batch;
        drop(queue);
        if wakes {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Takes nothing more, and refuses what waits.
    pub fn fail_all(&self, error: &AppendError) {
        self.close();
        let pending = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            (queue.bytes, queue.waited_for) = (0, 0);
            std::mem::take(&mut queue.pending)
        };
        pending.into_iter().for_each(|pending| pending.fail(error));
    }

    /// Everything that waits, up to a batch; `None` when the journal was closed and nothing waits.
    pub fn next_batch(&self) -> Option<Vec<Pending>> {
        let mut queue = self.queue.lock().expect("queue lock");
        // Notes go along with the next commit, or alone when none comes: a block for each would double the log.
        let mut notes_due = Instant::now() + NOTES_WAIT_MAX;
        while queue.waited_for == 0 && queue.pending.len() < self.config.max_batch {
            if self.closed.load(Ordering::Acquire) {
                if queue.pending.is_empty() {
                    return None;
                }
                break;
            }
            let left = notes_due.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                queue = self.arrived.wait_timeout(queue, left).expect("queue lock").0;
            } else if queue.pending.is_empty() {
                queue.sleeps_for_ever = true;
                queue = self.arrived.wait(queue).expect("queue lock");
                queue.sleeps_for_ever = false;
                notes_due = Instant::now() + NOTES_WAIT_MAX;
            } else {
                break;
            }
        }
        if !self.config.max_wait.is_zero() {
            let deadline = Instant::now() + self.config.max_wait;
            while queue.pending.len() < self.config.max_batch && !self.closed.load(Ordering::Acquire) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                queue = self.arrived.wait_timeout(queue, left).expect("queue lock").0;
            }
        }
        let count = queue.pending.len().min(self.config.max_batch);
        let batch: Vec<Pending> = queue.pending.drain(..count).collect();
        queue.bytes -= batch.iter().map(|pending| pending.len as usize).sum::<usize>();
        queue.waited_for -= batch.iter().filter(|pending| pending.done.is_some()).count();
        Some(batch)
    }

    pub fn want_segment(&self) {
        *self.segment_wanted.0.lock().expect("preparer lock") = true;
        self.segment_wanted.1.notify_one();
    }

    /// Keeps segments ready ahead of the writer.
    pub fn prepare_segments(&self) {
        loop {
            let mut wanted = self.segment_wanted.0.lock().expect("preparer lock");
            while !*wanted && !self.closed.load(Ordering::Acquire) {
                wanted = self.segment_wanted.1.wait(wanted).expect("preparer lock");
            }
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            *wanted = false;
            drop(wanted);
            // One to move on to and one that mail may not take. If there is no space the writer will find out itself
            // and say so.
            let has_enough = || self.closed.load(Ordering::Acquire) || self.pool.ready() >= READY_AHEAD;
            while !has_enough() && self.pool.prepare_ahead(READY_AHEAD).is_ok() {}
        }
    }
}

/// How long a note may lie in memory, where a kill of the process would lose it. Nothing else depends on it.
const NOTES_WAIT_MAX: Duration = Duration::from_millis(50);
/// Segments kept ready: one to move on to and one that mail may not take.
const READY_AHEAD: usize = 2;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sim::SimDisk;
    use crate::{Journal, KIND_USER};

    fn until(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn nobody_waits_for_a_writer_that_has_panicked() {
        let (journal, _) = Journal::open_on(Arc::new(SimDisk::new(17)), Config::default()).expect("journal opens");
        let (hold, held) = std::sync::mpsc::channel::<()>();
        journal.append_then(KIND_USER, vec!["first".into()], move |_| {
            held.recv().expect("told to go on");
            panic!("as a test of what a panic does");
        });
        let second = journal.append(KIND_USER, vec!["second".into()]);
        hold.send(()).expect("the writer waits");
        assert!(matches!(second.wait(), Err(AppendError::Poisoned(_) | AppendError::Closed)));
        assert!(journal.append(KIND_USER, vec!["third".into()]).wait().is_err());
        until("it says so", || journal.poisoned().is_some());
    }

    #[test]
    fn the_last_handle_may_go_on_the_thread_that_writes() {
        let (journal, _) = Journal::open_on(Arc::new(SimDisk::new(18)), Config::default()).expect("journal opens");
        let (told, tells) = std::sync::mpsc::channel();
        let (last, (hold, held)) = (journal.clone(), std::sync::mpsc::channel::<()>());
        journal.append_then(KIND_USER, vec!["first".into()], move |_| {
            held.recv().expect("told to go on");
            drop(last);
            told.send(()).expect("somebody listens");
        });
        drop(journal);
        hold.send(()).expect("the writer waits");
        tells.recv_timeout(Duration::from_secs(60)).expect("it does not wait for itself");
    }

    #[test]
    fn a_note_is_written_although_nothing_follows_it_whether_the_writer_sleeps_or_not() {
        let disk = SimDisk::new(16);
        let config = Config { segment_bytes: 64 << 10, ..Config::default() };
        let (journal, _) = Journal::open_on(Arc::new(disk.clone()), config).expect("journal opens");
        journal.append(KIND_USER, vec!["before it".into()]).wait().expect("durable");
        let sleeps = || journal.shared().queue.lock().expect("queue lock").sleeps_for_ever;
        for (note, asleep) in [("at once", false), ("all alone", true), ("and again", true)] {
            if asleep {
                until("it sleeps", sleeps);
            }
            journal.append_note(KIND_USER, vec![note.into()]);
            let holds = |name: &String| disk.read(name).windows(note.len()).any(|bytes| bytes == note.as_bytes());
            until(note, || disk.files().iter().any(|(name, _)| holds(name)));
        }
    }
}
