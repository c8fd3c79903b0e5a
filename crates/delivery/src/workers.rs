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

use posthaste_maildir::{Found, Host, MailRoot, MailboxPath, Maildir, UniqueName};
use tokio::sync::OwnedSemaphorePermit;

use crate::cache::OpenMaildirs;
use crate::content::Content;
use crate::record::Stored;
use crate::seams::{Seams, Step};
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
        self.places.seams.now()
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

    /// Waits until nothing is queued or being written, but for mailboxes that do not answer; returns whether there is one.
    pub fn wait_until_idle(&self) -> bool {
        let mut state = self.state();
        while state.running > state.stalled || !state.ready.is_empty() {
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
            _ => Ok(HashMap::new()),
        };
        let mut done = Vec::with_capacity(jobs.len());
        for job in jobs {
            let outcome = match &maildir {
                Ok(_) if job.letter.again => there.as_ref().map_err(copy).and_then(|there| {
                    let (stored, id) = (&job.letter.stored, job.letter.id);
                    match there.get(&job.key()) {
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

/// An error that several messages share.
pub(crate) fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

pub(crate) fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer")
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "more mail comes than its file system takes")
}

fn no_thread() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "file systems that do not answer hold all threads")
}

/// Where messages go: the mail root, its open mailboxes, and the spool that large bodies come from.
pub(crate) struct Places {
    root: MailRoot,
    root_path: PathBuf,
    spool: Arc<Spool>,
    seams: Seams,
    open: OpenMaildirs<Arc<str>>,
}

impl Places {
    fn new(root: MailRoot, root_path: PathBuf, spool: Arc<Spool>, seams: Seams) -> Self {
        Places { root, root_path, spool, seams, open: OpenMaildirs::new() }
    }

    /// Makes all mail durable that was delivered before this call. An error is final: see [`MailRoot::sync`].
    pub fn sync(&self) -> io::Result<()> {
        self.seams.pass(Step::Sync)?;
        self.root.sync()
    }

    pub fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// The mailbox, made if there is none.
    pub fn maildir(&self, mailbox: &str) -> io::Result<Arc<Maildir>> {
        self.seams.pass(Step::Mailbox(mailbox))?;
        self.open.get(mailbox, &self.root_path.join(mailbox), || {
            let path = MailboxPath::parse(mailbox);
            let path = path.map_err(|error| io::Error::new(io::ErrorKind::InvalidFilename, error))?;
            self.root.mailbox(&path)
        })
    }

    /// Writes one message and makes it visible.
    fn deliver(&self, maildir: &Maildir, stored: &Stored, id: u64, target: usize) -> io::Result<()> {
        let mut content = self.content(stored, target)?;
        let name = name_of(stored, id, target, &content);
        let mut draft = maildir.draft(name.as_str()).or_else(|error| match error.kind() {
            // An attempt that a crash cut short: replay knows that nothing of it was made visible.
            io::ErrorKind::AlreadyExists => {
                maildir.remove_tmp(name.as_str())?;
                maildir.draft(name.as_str())
            }
            _ => Err(error),
        })?;
        content.write_to(&mut draft)?;
        match draft.publish() {
            // Visible already: an earlier attempt published it and failed to say so.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            published => published?,
        }
        match maildir.facts().syncfs_trusted {
            true => Ok(()),
            false => sync_found(maildir, name.as_str()),
        }
    }

    /// Looks for many messages in a mailbox; the answer is by key.
    pub fn find(&self, mailbox: &str, keys: &[String]) -> io::Result<HashMap<String, Found>> {
        look(&*self.maildir(mailbox)?, keys)
    }

    /// Sees that one message is in its mailbox whole, exactly once. True if anything had to be written.
    fn restore(&self, stored: &Stored, id: u64, target: usize) -> io::Result<bool> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        let key = [key_of(stored, id, stored.numbers[target])];
        let found = look(&maildir, &key)?;
        self.mend(&maildir, stored, id, target, found.get(&key[0]))
    }

    /// The same for one that was looked for already.
    pub fn restore_found(&self, stored: &Stored, id: u64, target: usize, found: Option<&Found>) -> io::Result<bool> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        match self.mend(&maildir, stored, id, target, found) {
            // Its owner has moved it since.
            Err(error) if error.kind() == io::ErrorKind::NotFound && found.is_some() => {
                self.restore(stored, id, target)
            }
            mended => mended,
        }
    }

    fn mend(
        &self,
        maildir: &Maildir,
        stored: &Stored,
        id: u64,
        target: usize,
        found: Option<&Found>,
    ) -> io::Result<bool> {
        let mut content = self.content(stored, target)?;
        let name = name_of(stored, id, target, &content);
        let Some(found) = found else {
            // What lies in tmp/ under this name was never visible.
            let _ = maildir.remove_tmp(name.as_str());
            return self.deliver(maildir, stored, id, target).map(|()| true);
        };
        // Where each file is fsynced by itself, what reads well may be what an fsync has failed to write.
        if maildir.facts().syncfs_trusted && content.is_in(maildir.open_message(found.dir, &found.name)?)? {
            return Ok(false);
        }
        rewrite(maildir, found, content, !maildir.facts().syncfs_trusted)?;
        Ok(true)
    }

    /// Writes a message that was found to a new file: for when a sync has failed. The pages of the old one may have been dropped while
    /// they still read well. The next [`Places::sync`] makes it durable, or this does where that is not trusted.
    pub fn renew(&self, stored: &Stored, id: u64, target: usize, found: &Found) -> io::Result<()> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        let content = self.content(stored, target)?;
        match rewrite(&maildir, found, content, !maildir.facts().syncfs_trusted) {
            // Its owner has moved it since, or taken it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.renew_synced(stored, id, target),
            renewed => renewed,
        }
    }

    /// The same for one that is to be looked for, and makes it durable by itself. Nothing if somebody has taken it away since it was delivered.
    pub fn renew_synced(&self, stored: &Stored, id: u64, target: usize) -> io::Result<()> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        let content = self.content(stored, target)?;
        match maildir.find(name_of(stored, id, target, &content).as_str())? {
            Some(found) => rewrite(&maildir, &found, content, true),
            None => Ok(()),
        }
    }

    fn content(&self, stored: &Stored, target: usize) -> io::Result<Content> {
        let message = &stored.message;
        Content::new(&message.targets[target], &message.body, message.line_ends, &self.spool)
    }
}

/// Looks for many messages, with one scan; the answer is by key. What is not there has gone for good: a power cut does not bring it back beside what is
/// delivered in its place.
fn look(maildir: &Maildir, keys: &[String]) -> io::Result<HashMap<String, Found>> {
    let found = maildir.find_many(keys.iter().map(String::as_str))?;
    if found.len() < keys.len() {
        maildir.sync_moves()?;
    }
    Ok(found)
}

/// Puts a new file in the place of a message that was found; `sync` makes it durable by itself.
fn rewrite(maildir: &Maildir, found: &Found, mut content: Content, sync: bool) -> io::Result<()> {
    maildir.replace(found, &[io::IoSlice::new(&content.bytes()?)])?;
    if !sync {
        return Ok(());
    }
    match maildir.sync_message(found.dir, &found.name) {
        // Its owner has just moved it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => sync_found(maildir, &found.name),
        synced => synced,
    }
}

/// The name of one target's file: it follows from the record, so that replay finds what was delivered before.
fn name_of(stored: &Stored, id: u64, target: usize, content: &Content) -> UniqueName {
    let unique = Letter::unique(id, stored.nonce, stored.numbers[target]);
    UniqueName::new(stored.secs, &unique, &Host::new(&stored.host), content.disk_size, content.wire_size)
}

/// What of that name stays the same wherever its reader moves it.
pub(crate) fn key_of(stored: &Stored, id: u64, number: u16) -> String {
    let unique = Letter::unique(id, stored.nonce, number);
    UniqueName::new(stored.secs, &unique, &Host::new(&stored.host), 0, 0).key().to_owned()
}

/// Makes a message durable by itself, wherever its reader has moved it.
fn sync_found(maildir: &Maildir, name: &str) -> io::Result<()> {
    match maildir.find(name)? {
        Some(found) => maildir.sync_message(found.dir, &found.name),
        None => Ok(()),
    }
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
