//! Threads that put committed messages into their Maildirs.
//!
//! Each mailbox has a queue of its own and is worked on by one thread at a time, so a mailbox that hangs holds one
//! thread and no other mailbox; when all threads are held, another one is started.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use posthaste_maildir::MailRoot;
use tokio::sync::OwnedSemaphorePermit;

use crate::places::{Looked, Places, copy, key_of, look, no_answer};
use crate::record::Stored;
use crate::seams::Seams;
use crate::spool::Spool;

/// A committed message on its way into mailboxes.
pub(crate) struct Letter {
    pub id: u64,
    pub stored: Stored,
    /// What it takes in memory.
    memory_bytes: u64,
    /// Targets that no thread has dealt with.
    remaining: AtomicUsize,
    failed: Mutex<Vec<(u16, Arc<str>)>>,
    /// It was tried before, so some of it may be there.
    again: bool,
    /// How many syncs of the mail had failed before any of it was written.
    pub era: u64,
    /// Its share of the memory that messages under way may take.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Letter {
    /// A message just committed.
    pub fn new(id: u64, stored: Stored, era: u64, permit: OwnedSemaphorePermit) -> Self {
        Letter { again: false, ..Self::again(id, stored, era, Some(permit)) }
    }

    /// A message read back from the journal.
    pub fn again(id: u64, stored: Stored, era: u64, permit: Option<OwnedSemaphorePermit>) -> Self {
        let (remaining, memory_bytes) = (AtomicUsize::new(stored.numbers.len()), stored.memory_bytes());
        let (failed, permit) = (Mutex::default(), Mutex::new(permit));
        Letter { id, stored, memory_bytes, era, remaining, failed, again: true, permit }
    }

    /// Gives back its share of memory although it is not done: others must not wait for a disk that hangs.
    fn release(&self) {
        drop(self.permit.lock().expect("permit").take());
    }

    fn fail(&self, target: usize, error: &io::Error) {
        self.failed.lock().expect("failed targets").push((self.stored.numbers[target], error.to_string().into()));
    }

    /// One more target was tried; true if it was the last.
    fn dealt_with(&self) -> bool {
        self.remaining.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether any target failed.
    pub fn has_failed(&self) -> bool {
        !self.failed.lock().expect("failed targets").is_empty()
    }

    /// Numbers of the targets that failed, and why.
    pub fn failed(&self) -> Vec<(u16, Arc<str>)> {
        self.failed.lock().expect("failed targets").clone()
    }

    /// The part of the file name that is the same wherever the sizes and flags go.
    pub fn unique(id: u64, nonce: u32, number: u16) -> String {
        format!("J{id:x}R{nonce:08x}T{number}")
    }
}

/// What the threads report to.
pub(crate) trait Desk: Send + Sync + 'static {
    /// These targets, by record and target number, are visible.
    fn delivered(&self, done: Vec<(u64, u16)>);
    /// Every target of these was tried; `letter.failed()` says which did not succeed.
    fn finished(&self, letters: &[&Letter]);
}

pub(crate) struct Workers {
    places: Places,
    state: Mutex<State>,
    work: Condvar,
    idle: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    queue_bytes_max: u64,
}

struct Job {
    letter: Arc<Letter>,
    target: usize,
    /// When it was queued.
    since: Instant,
}

impl Job {
    fn is_older_than(&self, age: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= age
    }

    fn give_up(&self, why: &io::Error) {
        self.letter.fail(self.target, why);
    }

    /// What of its file's name is the same wherever its reader moves it.
    fn key(&self) -> String {
        key_of(&self.letter.stored, self.letter.id, self.letter.stored.numbers[self.target])
    }
}

struct State {
    queues: HashMap<Arc<str>, Queue>,
    ready: VecDeque<Arc<str>>,
    running: usize,
    // Of these, mailboxes that have not answered for so long that nobody waits for them any more.
    stalled: usize,
    waiting: usize,
    taken: Instant,
    // For mailboxes that do not answer.
    refused: Vec<Job>,
    stop: bool,
}

impl State {
    fn is_busy(&self) -> bool {
        self.running > self.stalled || !self.ready.is_empty()
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    // What a thread is working on, and since when. The thread alone owns it, so that it is freed outside the lock.
    running: Option<(Instant, Weak<[Job]>)>,
    stalled: bool,
}

impl Workers {
    /// `queue_bytes_max`: bytes that may wait in memory for a mailbox that is slow.
    pub fn new(root: MailRoot, root_path: PathBuf, spool: Arc<Spool>, seams: Seams, queue_bytes_max: u64) -> Self {
        let state = State {
            queues: HashMap::new(),
            ready: VecDeque::new(),
            running: 0,
            stalled: 0,
            waiting: 0,
            taken: seams.now(),
            refused: Vec::new(),
            stop: false,
        };
        Workers {
            places: Places::new(root, root_path, spool, seams),
            state: Mutex::new(state),
            work: Condvar::new(),
            idle: Condvar::new(),
            threads: Mutex::default(),
            queue_bytes_max,
        }
    }

    pub fn now(&self) -> Instant {
        self.places.now()
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Queues a message for each of its mailboxes. Called on the journal's thread, so nothing is done about those that do not
    /// answer: [`give_up_on_stalled`](Self::give_up_on_stalled) tells the desk.
    pub fn submit(&self, letter: Arc<Letter>) {
        let since = self.now();
        let mut state = self.state();
        let state = &mut *state;
        for (target, to) in letter.stored.message.targets.iter().enumerate() {
            let queue = state.queues.entry(to.mailbox.clone()).or_default();
            let job = Job { letter: letter.clone(), target, since };
            if queue.stalled {
                state.refused.push(job);
                continue;
            }
            queue.jobs.push_back(job);
            if queue.running.is_none() && queue.jobs.len() == 1 {
                state.ready.push_back(to.mailbox.clone());
                if state.waiting > 0 {
                    self.work.notify_one();
                }
            }
        }
    }

    /// Gives up on mailboxes that have held a thread for too long, on what a slow one has in its queue beyond its share of memory, and, where all
    /// threads are held, on what has waited for one for too long: it waits in the journal from now on. To be called now and then.
    pub fn give_up_on_stalled(&self, now: Instant, desk: &impl Desk) {
        let mut state = self.state();
        let mut given_up: Vec<(Job, io::Error)> =
            std::mem::take(&mut state.refused).into_iter().map(|job| (job, no_answer())).collect();
        let mut stalled = 0;
        for queue in state.queues.values_mut().filter(|queue| !queue.stalled) {
            match &queue.running {
                Some((since, jobs)) if now.saturating_duration_since(*since) >= STALLED => {
                    jobs.upgrade().iter().flat_map(|jobs| jobs.iter()).for_each(|job| job.letter.release());
                    given_up.extend(queue.jobs.drain(..).map(|job| (job, no_answer())));
                    queue.stalled = true;
                    stalled += 1;
                }
                _ if queue.is_slow(now) => {
                    given_up.extend(queue.beyond(self.queue_bytes_max).map(|job| (job, too_slow())));
                }
                _ => {}
            }
        }
        state.stalled += stalled;
        if state.running == state.stalled && state.waiting == 0 {
            let state = &mut *state;
            state.ready.retain(|mailbox| {
                let waits_too_long =
                    |queue: &Queue| queue.jobs.front().is_some_and(|job| job.is_older_than(STALLED, now));
                let gives_up = state.queues.get(mailbox).is_some_and(waits_too_long);
                if gives_up {
                    let queue = state.queues.remove(mailbox).expect("looked at above");
                    given_up.extend(queue.jobs.into_iter().map(|job| (job, no_thread())));
                }
                !gives_up
            });
        }
        drop(state);
        if !given_up.is_empty() || stalled > 0 {
            self.idle.notify_all();
        }
        given_up.iter().for_each(|(job, why)| job.give_up(why));
        finish(given_up.iter().map(|(job, _)| job), desk);
    }

    /// Starts another thread if there is work that nobody has come for in a while. To be called now and then.
    pub fn relieve<D: Desk>(self: &Arc<Self>, now: Instant, desk: &Arc<D>) {
        let stuck = {
            let state = self.state();
            !state.ready.is_empty() && state.waiting == 0 && now.saturating_duration_since(state.taken) > STUCK
        };
        let enough = self.threads.lock().expect("thread list").len() >= THREADS_MAX;
        if stuck && !enough {
            // Without one more thread the mail waits, which is no reason to stop.
            let _ = self.start(desk);
        }
    }

    pub fn start<D: Desk>(self: &Arc<Self>, desk: &Arc<D>) -> io::Result<()> {
        let (workers, desk) = (self.clone(), desk.clone());
        let thread = std::thread::Builder::new().name("deliver".into()).spawn(move || workers.run(&*desk))?;
        self.threads.lock().expect("thread list").push(thread);
        Ok(())
    }

    /// Whether anything is queued or being written, but for mailboxes that do not answer.
    pub fn is_busy(&self) -> bool {
        self.state().is_busy()
    }

    /// Waits until nothing is queued or being written, but for mailboxes that do not answer; returns whether there is one.
    pub fn wait_until_idle(&self) -> bool {
        let mut state = self.state();
        while state.is_busy() {
            state = self.idle.wait(state).expect("worker state");
        }
        state.stalled > 0
    }

    /// Ends the threads, but for those that a mailbox holds; what is still queued stays in the journal.
    pub fn stop(&self) {
        let hang = {
            let mut state = self.state();
            state.stop = true;
            state.stalled > 0
        };
        self.work.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("thread list"));
        for thread in threads.into_iter().filter(|_| !hang) {
            // A panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("worker state")
    }

    fn run(&self, desk: &impl Desk) {
        let mut state = self.state();
        loop {
            let Some(mailbox) = state.ready.pop_front() else {
                if state.running == state.stalled {
                    self.idle.notify_all();
                }
                if state.stop {
                    return;
                }
                state.waiting += 1;
                state = self.work.wait(state).expect("worker state");
                state.waiting -= 1;
                continue;
            };
            state.running += 1;
            let now = self.now();
            state.taken = now;
            let queue = state.queues.get_mut(&mailbox).expect("a ready mailbox has a queue");
            let jobs: Arc<[Job]> = queue.take_group().into();
            queue.running = Some((now, Arc::downgrade(&jobs)));
            drop(state);
            self.work_off(&mailbox, &jobs, desk);
            drop(jobs);
            state = self.state();
            state.running -= 1;
            let queue = state
                .queues
                .get_mut(&mailbox)
                .expect("a mailbox that is worked on is not ready, and only those that are lose their queues");
            queue.running = None;
            let was_stalled = std::mem::take(&mut queue.stalled);
            if queue.jobs.is_empty() {
                state.queues.remove(&mailbox);
            } else {
                state.ready.push_back(mailbox);
            }
            state.stalled -= usize::from(was_stalled);
        }
    }

    fn work_off(&self, mailbox: &str, jobs: &[Job], desk: &impl Desk) {
        let maildir = self.places.maildir(mailbox);
        // One scan for the whole group.
        let again: Vec<String> = jobs.iter().filter(|job| job.letter.again).map(Job::key).collect();
        let there = match &maildir {
            Ok(maildir) if !again.is_empty() => look(maildir, &again),
            _ => Ok(Looked::default()),
        };
        let mut done = Vec::with_capacity(jobs.len());
        for job in jobs {
            let outcome = match &maildir {
                Ok(_) if job.letter.again => there.as_ref().map_err(copy).and_then(|there| {
                    let (stored, id) = (&job.letter.stored, job.letter.id);
                    match there.get(&job.key())? {
                        // An attempt to make it durable by itself has failed. What reads well may be in the page cache alone, and the sync
                        // that has told so is over.
                        Some(_) => self.places.renew_synced(stored, id, job.target),
                        None => self.places.restore_found(stored, id, job.target, None).map(drop),
                    }
                }),
                Ok(maildir) => self.places.deliver(maildir, &job.letter.stored, job.letter.id, job.target),
                Err(error) => Err(copy(error)),
            };
            match outcome {
                Ok(()) => done.push((job.letter.id, job.letter.stored.numbers[job.target])),
                Err(error) => job.letter.fail(job.target, &error),
            }
        }
        // Before anything is settled: a crash in between must find the note or the record.
        if !done.is_empty() {
            desk.delivered(done);
        }
        finish(jobs, desk);
    }
}

/// These have been tried, or given up: tells the desk of letters of which nothing is left to be tried.
fn finish<'a>(jobs: impl IntoIterator<Item = &'a Job>, desk: &impl Desk) {
    let finished: Vec<&Letter> =
        jobs.into_iter().filter(|job| job.letter.dealt_with()).map(|job| &*job.letter).collect();
    if !finished.is_empty() {
        desk.finished(&finished);
    }
}

impl Queue {
    /// What a thread does at once: bounded, so that a mailbox that hangs holds little.
    fn take_group(&mut self) -> Vec<Job> {
        let mut bytes = 0;
        let fits = |job: &&Job| {
            let before = bytes;
            bytes += job.letter.stored.message.body.len();
            before < GROUP_BYTES_MAX
        };
        let count = self.jobs.iter().take(GROUP_MAX).take_while(fits).count();
        self.jobs.drain(..count).collect()
    }

    /// It gets more than it takes, and not only in a burst.
    fn is_slow(&self, now: Instant) -> bool {
        self.running.is_some() && self.jobs.front().is_some_and(|job| job.is_older_than(SLOW, now))
    }

    /// Takes out what has come last, as far as it is beyond a number of bytes in memory.
    fn beyond(&mut self, bytes_max: u64) -> impl Iterator<Item = Job> {
        let mut bytes = 0;
        let fits = |job: &&Job| {
            bytes += job.letter.memory_bytes;
            bytes <= bytes_max
        };
        let count = self.jobs.iter().take_while(fits).count();
        self.jobs.drain(count..)
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "more mail comes than its file system takes")
}

fn no_thread() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "file systems that do not answer hold all threads")
}

/// Messages for one mailbox that a thread takes at once, and about how many bytes of them.
const GROUP_MAX: usize = 64;
const GROUP_BYTES_MAX: u64 = 4 << 20;
/// How long a group may take before its mailbox counts as hanging.
const STALLED: Duration = Duration::from_secs(5);
/// How long the first message of a queue may have waited before its mailbox counts as slow.
const SLOW: Duration = Duration::from_secs(2);
const THREADS_MAX: usize = 64;
const STUCK: Duration = Duration::from_millis(100);
