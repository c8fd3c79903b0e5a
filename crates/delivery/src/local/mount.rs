//! One mail mount: takes the entries of its stream, and its threads deliver the messages to its mailboxes.
//!
//! Each mailbox has a queue and one thread at a time, so a hanging mailbox holds one thread and no other mailbox.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use posthaste_intake::Budget;
use posthaste_spool::{Batch, Body, Consumer, Entry, Lsn, Published, PublishedBody, StreamId, Then};

use super::entry::{LocalEntry, MailboxDelivery};
use super::files::{Done, Files, Job};
use super::held::HeldBody;
use super::history::History;
use super::losses::{Losses, Lost, LostMailboxMail};
use super::observer::MailboxTargetId;
use super::queues::State;
use super::room::is_refusal;
use super::syncing::ENTRY_BYTES;
use super::table::{State as Of, Task};
use crate::session::SessionTag;

/// Bounds of a mount, and the memory that mounts share.
#[derive(Clone)]
pub(crate) struct Limits {
    pub budget: Budget,
    pub losses: Losses,
    /// Bytes that may wait in memory for a slow mailbox.
    pub queue_bytes_max: u64,
    /// Bytes of visible mail after which a sync is due, and the interval after which it is due anyway.
    pub sync_bytes: u64,
    pub sync_interval: Duration,
}

pub(crate) struct MailMount {
    pub files: Files,
    pub stream: StreamId,
    /// True if the stream's entries were unreadable: the mount takes and delivers nothing until the next opening.
    pub is_stuck: bool,
    pub(super) limits: Limits,
    pub(super) state: Mutex<State>,
    work: Condvar,
    idle: Condvar,
    /// Signals between the syncing thread and the threads that wait for it.
    pub(super) sync: Condvar,
    /// `None` once stopped: no thread starts any more.
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
    /// Read-locked while a *visible* entry is made and appended; write-locked by a sync while it begins, so that each
    /// entry is before or after it.
    pub(super) noting: RwLock<()>,
    pub counters: Counters,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub delivered: AtomicU64,
    pub restored: AtomicU64,
    pub failed_attempts: AtomicU64,
    pub given_up: AtomicU64,
    pub syncs: AtomicU64,
    pub syncs_failed: AtomicU64,
    pub sync_us: AtomicU64,
    pub sync_us_max: AtomicU64,
    /// Bytes that wait for mailboxes now.
    pub waiting_bytes: AtomicU64,
}

impl MailMount {
    /// `history`: its replayed entries, or the reason why its stream is stuck.
    pub fn new(files: Files, stream: StreamId, limits: Limits, history: Result<History, Arc<str>>) -> Arc<Self> {
        let now = files.common().seams.now();
        let (history, absent) = match history {
            Ok(history) => (history, None),
            Err(why) => (History::default(), Some(why)),
        };
        let is_stuck = absent.is_some();
        let mut state = State::new(now, history);
        state.absent = absent;
        Arc::new(MailMount {
            files,
            stream,
            is_stuck,
            limits,
            state: Mutex::new(state),
            work: Condvar::new(),
            idle: Condvar::new(),
            sync: Condvar::new(),
            threads: Mutex::new(Some(Vec::new())),
            noting: RwLock::default(),
            counters: Counters::default(),
        })
    }

    pub fn now(&self) -> Instant {
        self.files.common().seams.now()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds a mount's state")
    }

    /// Starts the syncing thread, which starts the others once the mount answers.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        if self.is_stuck {
            return Ok(());
        }
        self.spawn("mail-sync", |mount| mount.run_syncs())
    }

    fn spawn(self: &Arc<Self>, name: &str, run: impl FnOnce(&Arc<Self>) + Send + 'static) -> io::Result<()> {
        if let Some(threads) = &mut *self.threads() {
            let mount = self.clone();
            threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&mount))?);
        }
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Option<Vec<JoinHandle<()>>>> {
        self.threads.lock().expect("thread list")
    }

    /// Begins deliveries once the mount has answered.
    pub(super) fn begin(self: &Arc<Self>, session: SessionTag) {
        let mut state = self.state();
        let Some(history) = state.history.take() else { return };
        let (table, queued) = history.end(session);
        (state.table, state.session, state.absent) = (table, Some(session), None);
        let now = self.now();
        queued.into_iter().for_each(|key| state.enqueue(key, now));
        let has_visible = state.table.has_visible();
        state.syncing.want_if(has_visible);
        drop(state);
        // One per processor, but at least two: otherwise a slow mailbox would hold up the others until `relieve` helps.
        let threads = std::thread::available_parallelism().map_or(WORKERS_MIN, usize::from);
        for _ in 0..threads.clamp(WORKERS_MIN, WORKERS_MAX) {
            // Without any thread the mail waits until `relieve` can start one.
            let _ = self.spawn("deliver", |mount| mount.run());
        }
    }

    /// Called regularly by the keeper; does not block on a disk. Retries waiting mail only if `retries`.
    pub fn tick(self: &Arc<Self>, retries: bool) {
        let now = self.now();
        let mut state = self.state();
        state.give_up_on_stalled(now, self.limits.queue_bytes_max);
        if self.files.room().take_over() | self.files.take_return() {
            state.troubles.try_all(now);
        }
        let due = if retries { state.troubles.due(now, TRIES_AT_ONCE) } else { Vec::new() };
        for key in due {
            state.table.try_again(key);
            state.enqueue(key, now);
        }
        if !state.ready.is_empty() {
            self.work.notify_all();
        }
        if !state.is_busy() {
            self.idle.notify_all();
        }
        if state.syncing.is_due(now, self.limits.sync_interval) || self.files.is_look_due(now) {
            self.sync.notify_all();
        }
        self.count_waiting(&state);
        let stuck = !state.ready.is_empty() && state.waiting == 0 && now.saturating_duration_since(state.taken) > STUCK;
        let notes = state.notes(now);
        let began_to_wait = std::mem::take(&mut state.began_to_wait);
        drop(state);
        self.append_all(notes);
        self.note_visible();
        if let Some(observer) = &self.files.common().observer {
            began_to_wait.into_iter().for_each(|(target, error)| observer.waits(target, error));
        }
        if stuck && self.threads().as_ref().is_some_and(|threads| threads.len() < THREADS_MAX) {
            // Without another thread the mail waits, which is no reason to stop.
            let _ = self.spawn("deliver", |mount| mount.run());
        }
    }

    /// True if the mount has answered since the opening.
    pub fn has_begun(&self) -> bool {
        self.state().history.is_none()
    }

    /// Waits until nothing is queued or being written, except at hanging mailboxes. False after `deadline` (real time).
    pub fn wait_until_idle(&self, deadline: Instant) -> bool {
        let mut state = self.state();
        loop {
            if state.absent.is_some() || state.history.is_none() && !state.is_busy() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.idle.wait_timeout(state, left).expect("a mount's state").0;
        }
    }

    /// Waits until no thread works on a mailbox, or on one below it. False after `deadline` (real time).
    pub fn wait_until_left(&self, mailbox: &str, deadline: Instant) -> bool {
        let mut state = self.state();
        while state.is_at(mailbox) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // Threads that leave a single mailbox send no notification.
            state = self.idle.wait_timeout(state, left.min(LEFT_PAUSE)).expect("a mount's state").0;
        }
        true
    }

    /// Notifies `wait_until_idle` of a change.
    pub(super) fn tell_idle(&self) {
        self.idle.notify_all();
    }

    pub(super) fn tell_workers(&self) {
        self.work.notify_all();
    }

    /// Ends the threads; queued mail stays in the spool. Joins them, unless a hanging file system still holds one at
    /// `deadline` (real time).
    pub fn stop(&self, deadline: Instant) {
        let mut state = self.state();
        state.stop = true;
        self.work.notify_all();
        self.sync.notify_all();
        while state.is_held() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.sync.wait_timeout(state, left).expect("a mount's state").0;
        }
        drop(state);
        let threads = self.threads().take();
        for thread in threads.into_iter().flatten() {
            // A panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            if state.stop {
                return;
            }
            let Some(mailbox) = state.ready.pop_front() else {
                if !state.is_busy() {
                    self.idle.notify_all();
                }
                state.waiting += 1;
                state = self.work.wait(state).expect("a mount's state");
                state.came();
                continue;
            };
            let (jobs, step) = state.take_group(&mailbox, self.now());
            drop(state);
            let outcomes = self.files.work_off(&mailbox, &jobs, &|| *step.lock().expect("a step") = self.now());
            let is_refused = outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(is_refusal));
            self.enter(&mailbox, &jobs, outcomes);
            if is_refused {
                self.files.room().refusals_entered();
            }
            state = self.state();
        }
    }

    fn enter(&self, mailbox: &Arc<str>, jobs: &[Job], outcomes: Vec<io::Result<Done>>) {
        self.tell_losses(mailbox, jobs, &outcomes);
        let now = self.now();
        let mut guard = self.state();
        let state = &mut *guard;
        for (job, outcome) in jobs.iter().zip(outcomes) {
            match outcome {
                Ok(done @ (Done::GivenUp(_) | Done::Removed)) => {
                    let is_lost = matches!(done, Done::GivenUp(_));
                    self.counters.given_up.fetch_add(u64::from(is_lost), Ordering::Relaxed);
                    state.troubles.gave_up(mailbox, job.key, now);
                    let entry = state.table.gave_up(job.key);
                    // The position must pass the target soon: a kill before that would give it up and report it once
                    // more.
                    state.syncing.want_through(entry);
                }
                Ok(done) => {
                    if job.task != Task::Write && matches!(done, Done::Written) {
                        self.counters.restored.fetch_add(1, Ordering::Relaxed);
                    }
                    self.counters.delivered.fetch_add(1, Ordering::Relaxed);
                    state.troubles.reached(mailbox, job.key, now);
                    if state.table.written(job.key) {
                        state.syncing.made_visible(job.body_len + ENTRY_BYTES, self.limits.sync_bytes);
                        state.unnoted.push(job.key);
                    } else {
                        state.enqueue(job.key, now);
                    }
                }
                Err(error) => {
                    self.counters.failed_attempts.fetch_add(1, Ordering::Relaxed);
                    state.table.failed(job.key);
                    state.trouble(mailbox, job.key, job.body_len, &error.to_string().into(), now);
                }
            }
        }
        state.group_done(mailbox);
        self.count_waiting(state);
        if state.syncing.is_wanted() || state.stop {
            self.sync.notify_all();
        }
        let many = state.unnoted.len() >= NOTED_AT_ONCE;
        let notes = state.notes(now);
        drop(guard);
        self.append_all(notes);
        if many {
            self.note_visible();
        }
    }

    /// Reports lost mail before anything is released: mail is never given up silently.
    fn tell_losses(&self, mailbox: &Arc<str>, jobs: &[Job], outcomes: &[io::Result<Done>]) {
        for (job, outcome) in jobs.iter().zip(outcomes) {
            let error = match outcome {
                Ok(Done::GivenUp(lost)) => lost.error.clone(),
                Ok(Done::Removed) => "its mailbox was removed".into(),
                _ => continue,
            };
            if let Some(observer) = &self.files.common().observer {
                let (message, number) = job.key;
                observer.given_up(MailboxTargetId { message, number, mailbox: mailbox.clone() }, error.clone());
            }
            // The mailbox's owner knows about a removal.
            let Ok(Done::GivenUp(Lost { kept, is_there, .. })) = outcome else { continue };
            self.limits.losses.tell(&LostMailboxMail {
                id: job.key.0.get(),
                received_secs: job.deliver.secs,
                bytes: job.body_len,
                mailbox: mailbox.clone(),
                error,
                kept: kept.clone(),
                is_there: *is_there,
            });
        }
    }

    /// Appends *visible* entries, each for many targets: every entry costs a write to the spool's device.
    fn note_visible(&self) {
        // Held until the entry is appended: if a sync failed and another one succeeded in between, the entry would name
        // lost files.
        let _no_sync_begins = self.noting.read().expect("no thread panics while it appends a note");
        self.append_visible();
    }

    /// Appends a *visible* entry together with the observer's entry.
    pub(super) fn append_visible(&self) {
        let observer = &self.files.common().observer;
        let mut state = self.state();
        let targets = observer.as_ref().map_or_else(Vec::new, |_| state.visible_targets());
        let Some(note) = state.take_visible() else { return };
        drop(state);
        let mut batch = self.batch(&note);
        let Some(observer) = observer.clone() else { return self.append_batch(batch, Box::new(|_| ())) };
        let count = targets.len() as u64;
        let observed = observer.visible(targets);
        let then: Then = if observed.is_some() {
            Box::new(move |outcome| outcome.map_or_else(|_| observer.lost(count), drop))
        } else {
            Box::new(|_| ())
        };
        batch.entries.extend(observed);
        self.append_batch(batch, then);
    }

    fn append_batch(&self, batch: Batch, then: Then) {
        self.files.common().spool.append(batch, then);
    }

    /// Publishes the size of the backlog for readers without the lock.
    fn count_waiting(&self, state: &State) {
        let bytes = state.waiting_bytes(self.now());
        self.counters.waiting_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Appends entries without waiting for them.
    pub(super) fn append_all(&self, entries: Vec<LocalEntry>) {
        for entry in entries {
            self.files.common().spool.append(self.batch(&entry), Box::new(|_| ()));
        }
    }

    pub(super) fn batch(&self, entry: &LocalEntry) -> Batch {
        let entry = Entry { stream: self.stream, needs_body: false, payload: entry.encode() };
        Batch { entries: vec![entry], body: Body::None }
    }
}

impl Consumer for MailMount {
    fn published(&self, entry: Published) {
        let (len, parts) = match entry.body {
            PublishedBody::None => (0, None),
            PublishedBody::Stored { len } => (len, None),
            PublishedBody::Memory(parts) => (parts.iter().map(|part| part.len() as u64).sum(), Some(parts)),
        };
        let decoded = LocalEntry::decode(entry.payload.clone());
        let held = match (&decoded, parts) {
            (Some(LocalEntry::Deliver(deliver)), Some(parts)) => {
                // The share of the budget was taken before the append.
                let share = self.limits.budget.taken_over(memory_units(deliver, len).into());
                Some(Arc::new(HeldBody::new(parts, share)))
            }
            _ => None,
        };
        let now = self.now();
        let mut state = self.state();
        state.syncing.saw_entry();
        if let Some(history) = &mut state.history {
            return history.show(entry.lsn, &entry.payload, len);
        }
        state.table.saw(entry.lsn);
        match decoded {
            Some(LocalEntry::Deliver(deliver)) => {
                let (body, len) = deliver.body.map_or((entry.lsn, len), |older| (older.lsn, older.len));
                if deliver.body.is_some() && state.table.carried(body, entry.lsn) {
                    return;
                }
                let task = if deliver.body.is_some() { Task::LookFirst } else { Task::Write };
                let numbers: Vec<u16> = deliver.targets.iter().map(|(number, _)| *number).collect();
                let targets = numbers.iter().map(|number| (*number, Of::Queued, task));
                state.table.insert(body, entry.lsn, deliver.into(), len, held, targets);
                let ready_before = state.ready.len();
                numbers.into_iter().for_each(|number| state.enqueue((body, number), now));
                // A worker busy with a mailbox also takes newly arriving mail for it.
                let became_ready = state.ready.len() - ready_before;
                let wanted = state.call(became_ready);
                drop(state);
                (0..wanted).for_each(|_| self.work.notify_one());
            }
            Some(LocalEntry::Removal(removal)) => state.removed(entry.lsn, removal, now),
            Some(_) => {}
            None => state.table.keep_entry(entry.lsn),
        }
    }

    fn advance_wanted(&self, through: Lsn) {
        self.state().syncing.want_through(through);
        self.sync.notify_all();
    }
}

/// Memory that a message takes on this mount until its delivery.
pub(crate) fn memory_units(deliver: &MailboxDelivery, body_len: u64) -> u32 {
    let body = if deliver.large.is_some() { 0 } else { body_len };
    let targets = deliver.targets.iter().map(|(_, target)| (target.mailbox.len() + target.prefix.len()) as u64);
    posthaste_intake::memory_units(body + targets.sum::<u64>())
}

const WORKERS_MIN: usize = 2;
/// Half of the maximum number of threads: the other half replaces threads that mailboxes block.
const WORKERS_MAX: usize = 32;
const THREADS_MAX: usize = 64;
/// Time that work may wait before another thread is started.
const STUCK: Duration = Duration::from_millis(100);
/// Maximum waiting messages queued in one tick.
const TRIES_AT_ONCE: usize = 1024;
/// Interval of checks that threads have left a mailbox being removed.
const LEFT_PAUSE: Duration = Duration::from_millis(20);
/// Number of visible targets that are noted at once instead of at the next tick.
const NOTED_AT_ONCE: usize = 256;
