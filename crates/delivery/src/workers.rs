//! Threads that put committed messages into their Maildirs.
//!
//! Each mailbox has a queue of its own and is worked on by one thread at a time, so a mailbox that hangs holds one
//! thread and no other mailbox; when all threads are held, another one is started.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use posthaste_maildir::{Host, MailRoot, MailboxPath, Maildir, UniqueName};
use tokio::sync::OwnedSemaphorePermit;

use crate::cache::Recent;
use crate::content::Content;
use crate::record::Stored;
use crate::spool::Spool;

/// A committed message on its way into mailboxes.
pub(crate) struct Letter {
    pub id: u64,
    pub stored: Stored,
    /// Targets that no thread has dealt with.
    remaining: AtomicUsize,
    failed: Mutex<Vec<u16>>,
    /// It was tried before, so some of it may be there.
    again: bool,
    /// How many syncs of the mail had failed before any of it was written.
    pub era: u64,
    /// Its share of the memory that messages under way may take.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Letter {
    /// A message just committed.
    pub fn new(id: u64, stored: Stored, era: u64, permit: OwnedSemaphorePermit) -> Self {
        Letter { _permit: Some(permit), again: false, ..Self::again(id, stored, era) }
    }

    /// A message read back from the journal.
    pub fn again(id: u64, stored: Stored, era: u64) -> Self {
        let remaining = AtomicUsize::new(stored.numbers.len());
        Letter { id, stored, era, remaining, failed: Mutex::default(), again: true, _permit: None }
    }

    /// Numbers of the targets that failed.
    pub fn failed(&self) -> Vec<u16> {
        self.failed.lock().expect("failed targets").clone()
    }

    /// The part of the file name that is the same wherever the sizes and flags go.
    pub fn unique(id: u64, number: u16) -> String {
        format!("J{id:x}T{number}")
    }
}

/// What the threads report to.
pub(crate) trait Desk: Send + Sync + 'static {
    /// These targets, by record and target number, are visible.
    fn delivered(&self, done: Vec<(u64, u16)>);
    /// Every target was tried; `letter.failed()` says which did not succeed, the last error why.
    fn finished(&self, letter: &Letter);
    /// A target failed.
    fn failed(&self, letter: &Letter, mailbox: &str, error: &io::Error);
}

pub(crate) struct Workers {
    places: Places,
    state: Mutex<State>,
    work: Condvar,
    idle: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Job {
    letter: Arc<Letter>,
    target: usize,
}

struct State {
    queues: HashMap<Arc<str>, Queue>,
    ready: VecDeque<Arc<str>>,
    running: usize,
    waiting: usize,
    taken: Instant,
    stop: bool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
}

impl Workers {
    pub fn new(root: MailRoot, root_path: PathBuf, spool: Arc<Spool>) -> Self {
        let state = State {
            queues: HashMap::new(),
            ready: VecDeque::new(),
            running: 0,
            waiting: 0,
            taken: Instant::now(),
            stop: false,
        };
        Workers {
            places: Places::new(root, root_path, spool),
            state: Mutex::new(state),
            work: Condvar::new(),
            idle: Condvar::new(),
            threads: Mutex::default(),
        }
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    pub fn submit(&self, letter: Arc<Letter>) {
        let mut state = self.state();
        for target in 0..letter.stored.message.targets.len() {
            let mailbox = letter.stored.message.targets[target].mailbox.clone();
            let queue = state.queues.entry(mailbox.clone()).or_default();
            queue.jobs.push_back(Job { letter: letter.clone(), target });
            if !queue.running && queue.jobs.len() == 1 {
                state.ready.push_back(mailbox);
                if state.waiting > 0 {
                    self.work.notify_one();
                }
            }
        }
    }

    /// Starts another thread if there is work that nobody has come for in a while. To be called now and then.
    pub fn relieve<D: Desk>(self: &Arc<Self>, desk: &Arc<D>) {
        let stuck = {
            let state = self.state();
            !state.ready.is_empty() && state.waiting == 0 && state.taken.elapsed() > STUCK
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

    /// Waits until nothing is queued or being written.
    pub fn wait_until_idle(&self) {
        let mut state = self.state();
        while state.running > 0 || !state.ready.is_empty() {
            state = self.idle.wait(state).expect("worker state");
        }
    }

    /// Ends the threads; what is still queued stays in the journal.
    pub fn stop(&self) {
        self.state().stop = true;
        self.work.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("thread list"));
        for thread in threads {
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
                if state.running == 0 {
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
            state.taken = Instant::now();
            let queue = state.queues.get_mut(&mailbox).expect("a ready mailbox has a queue");
            queue.running = true;
            let count = queue.jobs.len().min(GROUP_MAX);
            let jobs: Vec<Job> = queue.jobs.drain(..count).collect();
            drop(state);
            self.work_off(&mailbox, jobs, desk);
            state = self.state();
            state.running -= 1;
            let queue = state.queues.get_mut(&mailbox).expect("only its own thread removes a queue");
            queue.running = false;
            if queue.jobs.is_empty() {
                state.queues.remove(&mailbox);
            } else {
                state.ready.push_back(mailbox);
            }
        }
    }

    fn work_off(&self, mailbox: &str, jobs: Vec<Job>, desk: &impl Desk) {
        let maildir = self.places.maildir(mailbox);
        let mut done = Vec::with_capacity(jobs.len());
        let mut dealt_with = Vec::with_capacity(jobs.len());
        for job in jobs {
            let outcome = match &maildir {
                Ok(_) if job.letter.again => {
                    self.places.restore(&job.letter.stored, job.letter.id, job.target).map(drop)
                }
                Ok(maildir) => self.places.deliver(maildir, &job.letter.stored, job.letter.id, job.target),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            match outcome {
                Ok(()) => done.push((job.letter.id, job.letter.stored.numbers[job.target])),
                Err(error) => {
                    desk.failed(&job.letter, mailbox, &error);
                    job.letter.failed.lock().expect("failed targets").push(job.letter.stored.numbers[job.target]);
                }
            }
            dealt_with.push(job.letter);
        }
        // Before anything is settled: a crash in between must find the note or the record.
        if !done.is_empty() {
            desk.delivered(done);
        }
        for letter in dealt_with {
            if letter.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                desk.finished(&letter);
            }
        }
    }
}

/// Where messages go: the mail root, its open mailboxes, and the spool that large bodies come from.
pub(crate) struct Places {
    root: MailRoot,
    root_path: PathBuf,
    spool: Arc<Spool>,
    open: Mutex<Recent<Arc<str>, Arc<Maildir>>>,
}

impl Places {
    fn new(root: MailRoot, root_path: PathBuf, spool: Arc<Spool>) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        // A quarter of the descriptors, three each, in two generations.
        let generation = (limit / 4 / 3 / 2).min(OPEN_MAX);
        let open = Mutex::new(Recent::new(generation as usize));
        Places { root, root_path, spool, open }
    }

    pub fn root(&self) -> &MailRoot {
        &self.root
    }

    pub fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// The mailbox, made if there is none.
    pub fn maildir(&self, mailbox: &str) -> io::Result<Arc<Maildir>> {
        let known = self.open.lock().expect("open mailboxes").get(mailbox).cloned();
        // It may have been moved away or removed meanwhile, and then mail must not follow it.
        if let Some(maildir) = known.filter(|maildir| maildir.is_at(self.root_path.join(mailbox))) {
            return Ok(maildir);
        }
        let path =
            MailboxPath::parse(mailbox).map_err(|error| io::Error::new(io::ErrorKind::InvalidFilename, error))?;
        let maildir = Arc::new(self.root.mailbox(&path)?);
        self.open.lock().expect("open mailboxes").insert(mailbox.into(), maildir.clone());
        Ok(maildir)
    }

    /// Writes one message and makes it visible.
    fn deliver(&self, maildir: &Maildir, stored: &Stored, id: u64, target: usize) -> io::Result<()> {
        let message = &stored.message;
        let mut content = Content::new(&message.targets[target], &message.body, message.line_ends, &self.spool)?;
        let name = name_of(stored, id, target, &content);
        match content.write_tmp(maildir, name.as_str()) {
            // An attempt that a crash cut short: replay knows that nothing of it was made visible.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                maildir.remove_tmp(name.as_str())?;
                content.write_tmp(maildir, name.as_str())?;
            }
            written => written?,
        }
        match maildir.publish(name.as_str()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Visible already: an earlier attempt renamed it and failed to say so.
                maildir.remove_tmp(name.as_str())
            }
            published => published.inspect_err(|_| drop(maildir.remove_tmp(name.as_str()))),
        }?;
        match maildir.facts().syncfs_trusted {
            true => Ok(()),
            false => maildir.sync_message(posthaste_maildir::Subdir::New, name.as_str()),
        }
    }

    /// Sees that one message is in its mailbox whole, exactly once. True if anything had to be written.
    pub fn restore(&self, stored: &Stored, id: u64, target: usize) -> io::Result<bool> {
        let message = &stored.message;
        let maildir = self.maildir(&message.targets[target].mailbox)?;
        let mut content = Content::new(&message.targets[target], &message.body, message.line_ends, &self.spool)?;
        let name = name_of(stored, id, target, &content);
        let Some(found) = maildir.find(name.as_str())? else {
            // What lies in tmp/ under this name was never visible.
            let _ = maildir.remove_tmp(name.as_str());
            return self.deliver(&maildir, stored, id, target).map(|()| true);
        };
        if content.is_in(maildir.open_message(found.dir, &found.name)?)? {
            return Ok(false);
        }
        maildir.replace(&found, &[io::IoSlice::new(&content.bytes()?)])?;
        Ok(true)
    }

    /// As [`Places::restore`], and makes it durable by itself: for when the sync of the whole file system has failed.
    pub fn restore_synced(&self, stored: &Stored, id: u64, target: usize) -> io::Result<()> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        let message = &stored.message;
        let mut content = Content::new(&message.targets[target], &message.body, message.line_ends, &self.spool)?;
        let name = name_of(stored, id, target, &content);
        // The pages of the old file may have been dropped while they still read well, so only a new file is believed.
        match maildir.find(name.as_str())? {
            Some(found) => {
                maildir.replace(&found, &[io::IoSlice::new(&content.bytes()?)])?;
                maildir.sync_message(found.dir, &found.name)
            }
            // Somebody has taken it away since it was delivered.
            None => Ok(()),
        }
    }
}

/// The name of one target's file: it follows from the record, so that replay finds what was delivered before.
fn name_of(stored: &Stored, id: u64, target: usize, content: &Content) -> UniqueName {
    let unique = Letter::unique(id, stored.numbers[target]);
    UniqueName::new(stored.secs, &unique, &Host::new(&stored.host), content.disk_size, content.wire_size)
}

/// Messages for one mailbox that a thread takes at once.
const GROUP_MAX: usize = 64;
const THREADS_MAX: usize = 64;
const STUCK: Duration = Duration::from_millis(100);
/// Open mailboxes in each of two generations.
const OPEN_MAX: u64 = 2048;
