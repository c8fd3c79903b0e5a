//! When notices are made: one for all failures of a message within a minute, a bounded number at a time.
//!
//! The queue knows which recipients a notice is owed for; here is only when. A failure waits while other recipients of its message are still to be settled. A
//! notice is written when it is made, so what waits costs a few bytes, and while none can be made, one is tried now and then.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_spool::Lsn;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::shared::Shared;
use super::tell::{Tell, tell};
use crate::queue::OwedNotice;

/// What the rest of the relay says to the task that makes notices.
#[derive(Default)]
pub(super) struct NoticesToMake {
    /// There is something new.
    pub wanted: Notify,
    news: Mutex<News>,
    is_last: AtomicBool,
    /// Whether the task runs.
    is_running: Mutex<bool>,
    has_ended: Condvar,
}

#[derive(Default)]
struct News {
    /// Messages with late recipients whose sender wants to know.
    delayed: Vec<Lsn>,
    /// Notices that were tried.
    made: Vec<(NoticeKey, Result<(), String>)>,
}

/// A notice: of a message, and of what.
type NoticeKey = (Lsn, Tell);

impl NoticesToMake {
    /// Tells of late recipients of a message.
    pub fn want_delay(&self, message: Lsn) {
        self.news().delayed.push(message);
        self.wanted.notify_one();
    }

    /// Before the task begins.
    pub fn begin(&self) {
        *self.is_running.lock().expect("whether it runs") = true;
    }

    /// Has everything told that waits, each once, and waits for that until the deadline. Blocks.
    pub fn end(&self, deadline: std::time::Instant) {
        self.is_last.store(true, Ordering::Release);
        self.wanted.notify_one();
        let is_running = self.is_running.lock().expect("whether it runs");
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        drop(self.has_ended.wait_timeout_while(is_running, left, |is_running| *is_running));
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().expect("news of notices")
    }
}

/// Says that the task has ended, in whatever way.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.notices_to_make.is_running.lock().expect("whether it runs") = false;
        self.0.notices_to_make.has_ended.notify_all();
    }
}

/// A notice is being made; says what came of it, in whatever way it ends.
struct Making {
    shared: Arc<Shared>,
    key: NoticeKey,
    made: Result<(), String>,
}

impl Making {
    async fn run(&mut self) {
        self.made = tell(&self.shared, self.key.0, self.key.1).await;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let made = std::mem::replace(&mut self.made, Ok(()));
        self.shared.notices_to_make.news().made.push((self.key, made));
        self.shared.notices_to_make.wanted.notify_one();
        self.shared.recorder.end();
    }
}

/// Makes notices until the relay has ended.
pub(super) async fn run(shared: Arc<Shared>) {
    let _running = Running(shared.clone());
    let mut schedule = Schedule::default();
    loop {
        let is_last = shared.notices_to_make.is_last.load(Ordering::Acquire);
        let now = Instant::now();
        let News { delayed, made } = std::mem::take(&mut *shared.notices_to_make.news());
        for (key, made) in made {
            if let Some(why) = schedule.made(key, made, now) {
                shared.warn(key.0, &format!("its sender cannot be told yet, and so it may be with others: {why}"));
            }
            schedule.look(&shared, key.0, now);
        }
        let owing = shared.queue().take_owing();
        owing.into_iter().for_each(|message| schedule.look(&shared, message, now));
        delayed.into_iter().for_each(|message| schedule.add((message, Tell::Delayed), now));
        // A poisoned spool takes nothing; the next opening knows what is owed.
        let is_closed = shared.recorder.budget.is_closed();
        if is_last && (is_closed || schedule.is_done()) {
            return;
        }
        while !is_closed && let Some(key) = schedule.begin(now, is_last) {
            shared.recorder.begin();
            let mut making = Making { shared: shared.clone(), key, made: Err("it has ended too early".to_owned()) };
            shared.runtime.spawn(async move { making.run().await });
        }
        let pause =
            schedule.next_due(is_last).filter(|_| !is_closed).map_or(IDLE, |due| due.saturating_duration_since(now));
        let _ = timeout(pause, shared.notices_to_make.wanted.notified()).await;
    }
}

/// Which notices wait, and for when.
#[derive(Default)]
struct Schedule {
    waiting: HashMap<NoticeKey, Waiting>,
    /// Those that have not failed come first, then the others.
    due: [BTreeSet<(Instant, Lsn, Tell)>; 2],
    making: usize,
    /// In a row, of all.
    failures: u32,
    not_before: Option<Instant>,
    told: Option<Instant>,
}

struct Waiting {
    since: Instant,
    due: Instant,
    failures: u32,
    is_making: bool,
    /// There may be more to tell when it is made.
    has_news: bool,
}

impl Schedule {
    /// Finds what a message owes.
    fn look(&mut self, shared: &Shared, message: Lsn, now: Instant) {
        let (owed, has_others) = {
            let queue = shared.queue();
            (queue.owed(message), queue.has_message(message))
        };
        if owed.iter().any(|owed| owed.notice == OwedNotice::Relayed) {
            self.add((message, Tell::Relayed), now);
        }
        if owed.iter().any(|owed| owed.notice == OwedNotice::Failed) {
            let gathered = if has_others { GATHERED_FOR } else { Duration::ZERO };
            self.add((message, Tell::Failed), now + gathered);
        }
    }

    /// `due` counts from the first that is to be told; what was tried already keeps its time.
    fn add(&mut self, key: NoticeKey, due: Instant) {
        let now = Instant::now();
        let waiting = self.waiting.entry(key).or_insert_with(|| {
            self.due[FRESH].insert((due, key.0, key.1));
            Waiting { since: now, due, failures: 0, is_making: false, has_news: false }
        });
        if waiting.is_making {
            waiting.has_news = true;
        } else if waiting.failures == 0 {
            self.due[FRESH].remove(&(waiting.due, key.0, key.1));
            waiting.due = due.min(waiting.since + GATHERED_FOR);
            self.due[FRESH].insert((waiting.due, key.0, key.1));
        }
    }

    /// The next that may be made now; `is_last`: whatever waits and was not tried since this holds.
    fn begin(&mut self, now: Instant, is_last: bool) -> Option<NoticeKey> {
        let most = if self.failures == 0 { AT_ONCE } else { 1 };
        if self.making >= most || !is_last && self.not_before.is_some_and(|at| at > now) {
            return None;
        }
        let is_due = |due: &BTreeSet<(Instant, Lsn, Tell)>| due.first().is_some_and(|first| first.0 <= now || is_last);
        let (_, message, what) = self.due.iter_mut().find(|due| is_due(due))?.pop_first()?;
        self.making += 1;
        let key = (message, what);
        let waiting = self.waiting.get_mut(&key).expect("what is due waits");
        (waiting.is_making, waiting.has_news) = (true, false);
        Some(key)
    }

    /// What came of it. Why, if that is to be told.
    fn made(&mut self, key: NoticeKey, made: Result<(), String>, now: Instant) -> Option<String> {
        self.making -= 1;
        let waiting = self.waiting.get_mut(&key).expect("what is made waits");
        waiting.is_making = false;
        let Err(why) = made else {
            self.failures = 0;
            self.not_before = None;
            // Whatever is owed by now is found by the look that follows.
            let has_news = waiting.has_news;
            self.waiting.remove(&key);
            if has_news && key.1 == Tell::Delayed {
                self.add(key, now);
            }
            return None;
        };
        waiting.failures = waiting.failures.saturating_add(1);
        waiting.due = now + pause(waiting.failures, PAUSE_MAX);
        self.due[FAILED].insert((waiting.due, key.0, key.1));
        self.failures = self.failures.saturating_add(1);
        // One that fails is no reason for others to wait.
        self.not_before = (self.failures > 1).then(|| now + pause(self.failures, GAP_MAX));
        let is_new = self.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY);
        is_new.then(|| {
            self.told = Some(now);
            why
        })
    }

    fn next_due(&self, is_last: bool) -> Option<Instant> {
        // Else the end of one that is being made wakes the task.
        let may_begin = self.making == 0 || self.failures == 0 && self.making < AT_ONCE;
        let due = self.due.iter().filter_map(|due| Some(due.first()?.0)).min().filter(|_| may_begin)?;
        Some(due.max(self.not_before.filter(|_| !is_last).unwrap_or(due)))
    }

    /// At the end each notice has one try more.
    fn is_done(&self) -> bool {
        self.making == 0 && (self.failures > 0 || self.due.iter().all(BTreeSet::is_empty))
    }
}

fn pause(failures: u32, most: Duration) -> Duration {
    PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(most)
}

const FRESH: usize = 0;
const FAILED: usize = 1;
/// A failure waits so long for others of its message.
const GATHERED_FOR: Duration = Duration::from_secs(60);
/// Notices that are made at once: each is a message in memory.
const AT_ONCE: usize = 64;
/// Between two attempts to make the same notice.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Between two attempts to make any while none can be made.
const GAP_MAX: Duration = Duration::from_secs(1);
/// The log has one line of it in so long.
const TOLD_EVERY: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(60);
