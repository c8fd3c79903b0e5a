//! Timing of notices: one for all failures of a message within a minute.
//!
//! The queue knows which recipients are owed a notice; this module only decides when to make it. A failure waits while
//! other recipients of its message are unsettled. The text is written last, so a waiting notice takes only a few bytes.

use std::sync::Arc;
use std::time::Duration;

use posthaste_consumer::NoticeSchedule;
use posthaste_spool::Lsn;
use tokio::time::{Instant, timeout};

use super::notices_to_make::{NewsOfNotices, NoticeKey, Tell};
use super::shared::Shared;
use super::tell::tell;
use posthaste_queue::OwedNotice;

/// Marks the task as ended, however it ends.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.outcomes.notices_to_make.has_ended();
    }
}

/// A notice in the making; reports its result, however it ends.
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
        self.shared.outcomes.notices_to_make.made(self.key, made);
        self.shared.outcomes.recorder.end();
    }
}

/// Makes notices until the relay has ended.
pub(super) async fn run(shared: Arc<Shared>) {
    let _running = Running(shared.clone());
    let mut schedule = NoticeSchedule::new(GATHERED_FOR);
    loop {
        let is_last = shared.outcomes.notices_to_make.is_last();
        let now = Instant::now();
        let NewsOfNotices { mut delayed, made } = shared.outcomes.notices_to_make.take_news();
        for (key, made) in made {
            // Further recipients may have become late meanwhile.
            if made.is_ok() && key.1 == Tell::Delayed && !shared.queue().delayed(key.0).is_empty() {
                delayed.push(key.0);
            }
            if let Some(why) = schedule.made(key, made, now) {
                shared.warn(key.0, &format!("its sender, and perhaps others, cannot be notified yet; retrying: {why}"));
            }
            look(&mut schedule, &shared, key.0, now);
        }
        let owing = shared.queue().take_owing();
        owing.into_iter().for_each(|message| look(&mut schedule, &shared, message, now));
        delayed.into_iter().for_each(|message| schedule.add((message, Tell::Delayed), now, now));
        // A poisoned spool accepts nothing; the next opening knows which notices are owed.
        let is_closed = shared.outcomes.recorder.budget.is_closed();
        if is_last && (is_closed || schedule.is_done()) {
            return;
        }
        while !is_closed && let Some(key) = schedule.begin(now, is_last) {
            shared.outcomes.recorder.begin();
            let mut making = Making { shared: shared.clone(), key, made: Err("it has ended too early".to_owned()) };
            shared.runtime.spawn(async move { making.run().await });
        }
        let pause =
            schedule.next_due(is_last).filter(|_| !is_closed).map_or(IDLE, |due| due.saturating_duration_since(now));
        let _ = timeout(pause, shared.outcomes.notices_to_make.wanted.notified()).await;
    }
}

/// Schedules the notices that a message owes.
fn look(schedule: &mut NoticeSchedule<NoticeKey>, shared: &Shared, message: Lsn, now: Instant) {
    let (owed, has_others) = {
        let queue = shared.queue();
        (queue.owed(message), queue.has_message(message))
    };
    let owes = |notice| owed.iter().any(|owed| owed.notice == notice);
    if owes(OwedNotice::Delivered) {
        schedule.add((message, Tell::Delivered), now, now);
    }
    if owes(OwedNotice::Relayed) {
        schedule.add((message, Tell::Relayed), now, now);
    }
    if owes(OwedNotice::Failed) {
        let gathered = if has_others { GATHERED_FOR } else { Duration::ZERO };
        schedule.add((message, Tell::Failed), now + gathered, now);
    }
}

/// Time for which a failure waits for others of its message.
const GATHERED_FOR: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(60);
