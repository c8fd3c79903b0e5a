//! The state of a mount under one lock: its table, its queues, and the mailboxes that block threads. No disk I/O.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_spool::Lsn;

use super::entry::{LocalEntry, MailboxTrouble, Removal, Visible};
use super::files::{Held, Job};
use super::history::History;
use super::mounts::is_at_or_below;
use super::observer::MailboxTargetId;
use super::syncing::Syncing;
use super::table::{Key, Table};
use super::troubles::Troubles;
use crate::session::SessionTag;

pub(super) struct State {
    /// Replayed entries, kept until the mount answers: no work is done before.
    pub history: Option<History>,
    /// The reason why the mount does not answer; `None` if it does.
    pub absent: Option<Arc<str>>,
    /// Start of the wait for the mount's answer.
    pub looking_since: Option<Instant>,
    pub session: Option<SessionTag>,
    pub table: Table<Held>,
    pub troubles: Troubles,
    pub syncing: Syncing,
    pub stop: bool,
    /// Visible targets without a *visible* entry.
    pub unnoted: Vec<Key>,
    queues: HashMap<Arc<str>, Queue>,
    pub ready: VecDeque<Arc<str>>,
    running: usize,
    /// Number of mailboxes in `running` that hang so long that shutdown does not wait for them.
    stalled: usize,
    /// Idle threads.
    pub waiting: usize,
    /// Idle threads that were notified but are not awake; a lower bound.
    called: usize,
    pub taken: Instant,
    to_note: Vec<Arc<str>>,
    /// Targets that began to wait, with the reason, until the observer is told.
    pub began_to_wait: Vec<(MailboxTargetId, Arc<str>)>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Queued>,
    running: Option<Running>,
    stalled: bool,
}

struct Queued {
    key: Key,
    since: Instant,
    bytes: u64,
}

/// The mailbox of a thread, and the start of its last step.
struct Running {
    step: Arc<Mutex<Instant>>,
    keys: Vec<Key>,
}

impl State {
    /// The state of a mount that has not answered yet.
    pub fn new(now: Instant, history: History) -> Self {
        State {
            history: Some(history),
            absent: None,
            looking_since: None,
            session: None,
            table: Table::default(),
            troubles: Troubles::default(),
            syncing: Syncing::new(now),
            stop: false,
            unnoted: Vec::new(),
            queues: HashMap::new(),
            ready: VecDeque::new(),
            running: 0,
            stalled: 0,
            waiting: 0,
            called: 0,
            taken: now,
            to_note: Vec::new(),
            began_to_wait: Vec::new(),
        }
    }

    /// Bytes that wait for mailboxes, or for the whole mount if it does not answer or cannot be synced.
    pub fn waiting_bytes(&self, now: Instant) -> u64 {
        match &self.history {
            Some(history) => history.bytes(),
            None if self.syncing.is_in_trouble(now) => self.table.bytes(),
            None => self.troubles.bytes(),
        }
    }

    /// True if a disk may hold a thread: at a mailbox, at a sync or at the mount itself.
    pub fn is_held(&self) -> bool {
        self.running > 0 || self.syncing.is_running() || self.looking_since.is_some()
    }

    /// True if anything is queued or being written, except at hanging mailboxes.
    pub fn is_busy(&self) -> bool {
        self.running > self.stalled || !self.ready.is_empty()
    }

    /// Queues a target in the state `Queued`, or puts it off because its mailbox hangs.
    pub fn enqueue(&mut self, key: Key, now: Instant) {
        let message = self.table.get(key.0).expect("what is queued is known");
        let mailbox = message.mailbox(key.1).clone();
        let bytes = message.body_len;
        let in_memory = if message.deliver.large.is_some() { 0 } else { bytes };
        let queue = self.queues.entry(mailbox.clone()).or_default();
        if queue.stalled {
            return self.put_off(&mailbox, key, bytes, &no_answer(), now);
        }
        queue.jobs.push_back(Queued { key, since: now, bytes: in_memory });
        if queue.running.is_none() && queue.jobs.len() == 1 {
            self.ready.push_back(mailbox);
        }
    }

    /// Returns how many threads to wake for `ready` mailboxes that became ready. Threads already notified count: each
    /// wake-up costs a system call on the ring's thread.
    pub fn call(&mut self, ready: usize) -> usize {
        let wanted = ready.min(self.waiting - self.called);
        self.called += wanted;
        wanted
    }

    /// Notes that a waiting thread is awake, for any reason.
    pub fn came(&mut self) {
        self.waiting -= 1;
        self.called = self.called.saturating_sub(1);
    }

    fn put_off(&mut self, mailbox: &Arc<str>, key: Key, bytes: u64, why: &Arc<str>, now: Instant) {
        self.table.put_off(key);
        self.trouble(mailbox, key, bytes, why, now);
    }

    pub fn trouble(&mut self, mailbox: &Arc<str>, key: Key, bytes: u64, why: &Arc<str>, now: Instant) {
        if self.began_to_wait.len() < BEGAN_MAX && !self.troubles.has(mailbox, key) {
            let target = MailboxTargetId { message: key.0, number: key.1, mailbox: mailbox.clone() };
            self.began_to_wait.push((target, why.clone()));
        }
        if self.troubles.failed(mailbox, key, bytes, why, now) && self.to_note.last() != Some(mailbox) {
            self.to_note.push(mailbox.clone());
        }
    }

    /// The next group of work for a thread: bounded, so that a hanging mailbox holds few messages.
    pub fn take_group(&mut self, mailbox: &Arc<str>, now: Instant) -> (Vec<Job>, Arc<Mutex<Instant>>) {
        self.running += 1;
        self.taken = now;
        let queue = self.queues.get_mut(mailbox).expect("a ready mailbox has a queue");
        let mut bytes = 0;
        let fits = |job: &&Queued| {
            let before = bytes;
            bytes += job.bytes;
            before < GROUP_BYTES_MAX
        };
        // Mail for a removed mailbox is not put off by the state of its successor.
        let is_removed = |job: &Queued| self.table.is_removed(job.key);
        let first = queue.jobs.front().is_some_and(is_removed);
        let is_like_first = |job: &&Queued| is_removed(job) == first;
        let count = queue.jobs.iter().take(GROUP_MAX).take_while(is_like_first).take_while(fits).count();
        let keys: Vec<Key> = queue.jobs.drain(..count).map(|job| job.key).collect();
        let step = Arc::new(Mutex::new(now));
        let jobs = keys.iter().map(|key| self.table.take(*key)).collect();
        queue.running = Some(Running { step: step.clone(), keys });
        (jobs, step)
    }

    pub fn group_done(&mut self, mailbox: &Arc<str>) {
        self.running -= 1;
        let queue = self.queues.get_mut(mailbox).expect("a mailbox that is worked on keeps its queue");
        queue.running = None;
        self.stalled -= usize::from(std::mem::take(&mut queue.stalled));
        if queue.jobs.is_empty() {
            self.queues.remove(mailbox);
        } else {
            self.ready.push_back(mailbox.clone());
        }
    }

    /// Moves queued mail back to the spool, for one of these reasons:
    ///
    /// - its mailbox blocks a thread for too long;
    /// - its mailbox is slow and exceeds its share of memory;
    /// - it waits too long while all threads are blocked.
    pub fn give_up_on_stalled(&mut self, now: Instant, queue_bytes_max: u64) {
        let is_old = |since: Instant, age: Duration| now.saturating_duration_since(since) >= age;
        let mut given_up: Vec<(Arc<str>, Key, Arc<str>)> = Vec::new();
        for (mailbox, queue) in self.queues.iter_mut().filter(|(_, queue)| !queue.stalled) {
            let Some(running) = &queue.running else { continue };
            if is_old(*running.step.lock().expect("a step"), STALLED) {
                self.table.take_bodies(&running.keys).iter().for_each(|held| held.let_go());
                (queue.stalled, self.stalled) = (true, self.stalled + 1);
                given_up.extend(queue.jobs.drain(..).map(|job| (mailbox.clone(), job.key, no_answer())));
            } else if queue.jobs.front().is_some_and(|job| is_old(job.since, SLOW)) {
                let beyond = queue.beyond(queue_bytes_max);
                given_up.extend(beyond.map(|job| (mailbox.clone(), job.key, "more mail comes than it takes".into())));
            }
        }
        if self.running == self.stalled && self.waiting == 0 {
            let queues = &mut self.queues;
            self.ready.retain(|mailbox| {
                let queue = &queues[mailbox];
                if !queue.jobs.front().is_some_and(|job| is_old(job.since, STALLED)) {
                    return true;
                }
                let queue = queues.remove(mailbox).expect("looked at above");
                let why: Arc<str> = "mailboxes that do not answer hold all threads of this mount".into();
                given_up.extend(queue.jobs.into_iter().map(|job| (mailbox.clone(), job.key, why.clone())));
                false
            });
        }
        for (mailbox, key, why) in given_up {
            let bytes = self.table.get(key.0).expect("what is queued is known").body_len;
            self.put_off(&mailbox, key, bytes, &why, now);
        }
    }

    /// Notes the removal of a mailbox: waiting mail for it, and for those below it, is taken up soon, to be given up.
    pub fn removed(&mut self, entry: Lsn, removal: Removal, now: Instant) {
        self.troubles.release(&removal.mailbox, now);
        self.table.removed(entry, removal);
    }

    /// True if a thread works at a mailbox, or at one below it.
    pub fn is_at(&self, mailbox: &str) -> bool {
        self.queues.iter().any(|(at, queue)| queue.running.is_some() && is_at_or_below(at, mailbox))
    }

    /// The targets of the next [`take_visible`](Self::take_visible).
    pub fn visible_targets(&self) -> Vec<MailboxTargetId> {
        let id = |&(message, number): &Key| {
            let mailbox = self.table.get(message)?.mailbox(number).clone();
            Some(MailboxTargetId { message, number, mailbox })
        };
        self.unnoted.iter().filter_map(id).collect()
    }

    /// A *visible* entry for the targets since the last one.
    pub fn take_visible(&mut self) -> Option<LocalEntry> {
        let session = self.session.filter(|_| !self.unnoted.is_empty())?;
        Some(LocalEntry::Visible(Visible { session, targets: std::mem::take(&mut self.unnoted) }))
    }

    /// *Trouble* entries for `posthaste spool inspect`.
    pub fn notes(&mut self, now: Instant) -> Vec<LocalEntry> {
        let mailboxes = std::mem::take(&mut self.to_note);
        let note = |mailbox: Arc<str>| {
            let known = self.troubles.of(&mailbox)?;
            let next_try = std::time::SystemTime::now() + known.due.saturating_duration_since(now);
            let next_try_secs = next_try.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
            Some(LocalEntry::Trouble(MailboxTrouble {
                mailbox,
                attempts: known.attempts,
                next_try_secs,
                error: short(&known.error),
            }))
        };
        mailboxes.into_iter().filter_map(note).collect()
    }

    /// Marks the *trouble* entries to be written once more.
    pub fn note_troubles_again(&mut self) {
        let mailboxes = self.troubles.iter().take(NOTES_MAX).map(|(mailbox, _)| mailbox.clone());
        self.to_note = mailboxes.collect();
    }

    /// Waiting messages for unwritable mailboxes, once for each mailbox; all messages if the mount does not answer.
    pub fn waiting_count(&self) -> usize {
        let stalled = self.stalled_mailboxes().map(|(_, keys)| keys.len()).sum::<usize>();
        match &self.history {
            Some(history) => history.messages().count(),
            None => self.troubles.iter().map(|(_, known)| known.messages).sum::<usize>() + stalled,
        }
    }

    /// Hanging mailboxes that hold a thread.
    pub fn stalled_mailboxes(&self) -> impl Iterator<Item = (&Arc<str>, &[Key])> {
        let stalled = self.queues.iter().filter(|(_, queue)| queue.stalled);
        stalled.filter_map(|(mailbox, queue)| Some((mailbox, &queue.running.as_ref()?.keys[..])))
    }
}

impl Queue {
    /// Removes the newest messages beyond a number of bytes in memory.
    fn beyond(&mut self, bytes_max: u64) -> impl Iterator<Item = Queued> {
        let mut bytes = 0;
        let fits = |job: &&Queued| {
            bytes += job.bytes;
            bytes <= bytes_max
        };
        let count = self.jobs.iter().take_while(fits).count();
        self.jobs.drain(count..)
    }
}

/// Shortens an error for an entry.
fn short(error: &Arc<str>) -> Arc<str> {
    let end = (0..=error.len().min(ERROR_BYTES_MAX)).rev().find(|end| error.is_char_boundary(*end)).unwrap_or(0);
    error[..end].into()
}

pub(super) fn no_answer() -> Arc<str> {
    "its file system does not answer".into()
}

/// Messages for one mailbox that a thread takes at once, and their bytes, approximately.
const GROUP_MAX: usize = 64;
const GROUP_BYTES_MAX: u64 = 4 << 20;
/// Time of one step at a mailbox after which it counts as hanging: a message, or a piece of a large one.
const STALLED: Duration = Duration::from_secs(5);
/// Age of a queue's first message at which its mailbox counts as slow.
const SLOW: Duration = Duration::from_secs(2);
const ERROR_BYTES_MAX: usize = 1000;
/// Targets reported to an observer in one tick.
const BEGAN_MAX: usize = 1000;
/// Mailboxes noted at once.
const NOTES_MAX: usize = 1000;
