//! Notices of refusals: *notice owed*.
//!
//! The entry of the first refusal of a target says that a notice is owed, and the batch of the notice clears it. So a
//! kill, or a notice that cannot be stored now, loses none: it is made later, even after a restart.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_consumer::NoticeSchedule;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::consumer::Shared;
use crate::entry::{TargetKey, TransportEntry};
use crate::events::TransportEvent;
use crate::notifier::{RefusalNotifier, RefusedMail};
use crate::queues::{Queues, RefusalNotice};
use crate::workers::caught;

impl Queues {
    /// Notes a refused target: one notice is due.
    pub fn owe_notice(&mut self, key: TargetKey, reply: Arc<str>) {
        if let Some(job) = self.job(key).filter(|job| job.notice == RefusalNotice::None) {
            job.notice = RefusalNotice::Owed(reply);
            self.owing.push(key);
            self.changed(key.0);
        }
    }

    /// Facts for the notice about a target; `None` if it was sent, or the target has its message.
    fn owed_notice(&self, (body, number): TargetKey) -> Option<RefusedMail> {
        let message = self.messages.get(&body)?;
        let job = message.jobs.get(&number)?;
        let RefusalNotice::Owed(reply) = &job.notice else { return None };
        let target = &job.target;
        let deliver = &message.deliver;
        Some(RefusedMail {
            id: body.get(),
            transport: target.transport.clone(),
            recipient: target.recipient.clone(),
            original: target.original.clone(),
            sender: deliver.sender.clone(),
            received_secs: deliver.secs,
            reply: reply.clone(),
        })
    }
}

/// Makes owed notices, until the end.
pub(crate) async fn tell_refusals(shared: Arc<Shared>) {
    let Some(notifier) = shared.config.notifier.clone() else { return std::future::pending().await };
    let mut schedule = NoticeSchedule::new(Duration::ZERO);
    let mut making = JoinSet::new();
    loop {
        let now = Instant::now();
        std::mem::take(&mut shared.queues().owing).into_iter().for_each(|key| schedule.add(key, now, now));
        // A poisoned spool takes nothing; the next opening knows what is owed.
        let goes_on = !shared.recorder.budget.is_closed() && !shared.is_ending.load(Ordering::Acquire);
        while goes_on && let Some(key) = schedule.begin(now, false) {
            let shared = shared.clone();
            let notifier = notifier.clone();
            making.spawn(async move {
                let made = caught(tell(&shared, &*notifier, key)).await;
                (key, made.unwrap_or_else(|panic| Err(format!("a panic, which is a bug: {panic}"))))
            });
        }
        let due = schedule.next_due(false).filter(|_| goes_on).unwrap_or(now + IDLE);
        tokio::select! {
            Some(Ok((key, made))) = making.join_next() => {
                if let Some(error) = schedule.made(key, made, Instant::now()) {
                    (shared.events.0)(TransportEvent::NotTold { id: key.0.get(), error });
                }
            }
            () = shared.notices_wanted.notified() => {}
            () = sleep_until(due) => {}
        }
    }
}

async fn tell(shared: &Shared, notifier: &dyn RefusalNotifier, key: TargetKey) -> Result<(), String> {
    let Some(refused) = shared.queues().owed_notice(key) else { return Ok(()) };
    let told = TransportEntry::Told(vec![key]);
    if !notifier.tell(refused, shared.stream.entry(told.encode())).await? {
        shared.append(&told);
    }
    Ok(())
}

const IDLE: Duration = Duration::from_secs(60);

#[cfg(test)]
impl Queues {
    /// True if every waiting target was refused, and its notice sent.
    pub fn are_all_told(&self) -> bool {
        self.messages.values().flat_map(|message| message.jobs.values()).all(|job| job.notice == RefusalNotice::Told)
    }
}
