//! How far the stream has come, and what is written down anew so that it can come further.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use posthaste_spool::{Lsn, Released};

use crate::entry::{Deliver, Failure, Key, TransportEntry, Trouble};
use crate::events::unix_secs;
use crate::queues::{Job, Queues, RefusalNotice, Stand};
use crate::work::Note;

impl Queues {
    /// Up to where nothing is needed any more, and what is not; `None` if nothing has changed since this was asked.
    pub fn take_advance(&mut self) -> Option<(Lsn, Released)> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let first = self.entries.first();
        let position = first.map_or(self.seen, |first| Lsn::new(first.get().saturating_sub(1)).min(self.seen));
        let behind = Lsn::new(position.get() + 1);
        let below = self.messages.keys().next().map_or(behind, |first| behind.min(*first));
        let mut also = std::mem::take(&mut self.released);
        also.retain(|body| *body >= below);
        Some((position, Released { below, also }))
    }

    /// What is to be written down anew, without bodies: messages that hold up the position at or below `through`; all of them if far more has been shown than
    /// waits. With each, where its files were before they were appended to, and of which refusals somebody was told or is to be.
    pub fn take_laggards(&mut self, through: Lsn) -> Vec<TransportEntry> {
        let is_much = self.shown > CARRY_ENTRIES + CARRY_RATIO * self.messages.len();
        let through = if is_much { self.seen } else { through };
        if is_much {
            self.shown = 0;
        }
        if self.entries.first().is_none_or(|first| *first > through) {
            return Vec::new();
        }
        let mut entries = Vec::new();
        for (body, message) in self.messages.iter().filter(|(_, message)| message.entry <= through) {
            let targets = message.jobs.iter().map(|(number, job)| (*number, job.target.clone()));
            let body_of = Some((*body, message.body_len));
            let deliver = Deliver { body: body_of, targets: targets.collect(), ..(*message.deliver).clone() };
            entries.push(TransportEntry::Deliver(deliver));
            let begun = message.jobs.iter().filter_map(|(number, job)| Some((*number, job.begun?)));
            entries
                .extend(begun.map(|(number, file_bytes)| TransportEntry::Begun { key: (*body, number), file_bytes }));
            let owed = message.jobs.iter().filter_map(|(number, job)| match &job.notice {
                RefusalNotice::Owed(reply) => Some(refusal((*body, *number), job, reply)),
                RefusalNotice::None | RefusalNotice::Told => None,
            });
            entries.extend(owed);
            let told = message.jobs.iter().filter(|(_, job)| job.notice == RefusalNotice::Told);
            let told: Vec<Key> = told.map(|(number, _)| (*body, *number)).collect();
            if !told.is_empty() {
                entries.push(TransportEntry::Told(told));
            }
        }
        entries
    }

    /// Everything that waits because of a failure, up to a number: what was noted of it is passed with the older entries.
    pub fn troubles(&self, max: usize) -> Vec<Note> {
        let blocked = self.queues.iter().filter_map(|(transport, queue)| {
            let (due, error) = (queue.blocked_until?, queue.error.clone()?);
            let (transport, attempts) = (transport.clone(), queue.attempts);
            Some(Note::Unavailable { transport, attempts, due, is_overdue: false, error })
        });
        let waiting = self.messages.iter().flat_map(|(body, message)| {
            message.jobs.iter().filter_map(|(number, job)| {
                let Stand::Waiting(due) = job.stand else { return None };
                let (failure, error) = job.error.clone()?;
                let (transport, recipient) = (job.target.transport.clone(), job.target.recipient.clone());
                let (key, attempts, is_new) = ((*body, *number), job.attempts, false);
                Some(Note::Failed { transport, key, recipient, attempts, due, failure, is_new, error })
            })
        });
        blocked.chain(waiting).take(max).collect()
    }
}

/// Says *notice owed* again. What is the matter now follows with the other [`troubles`](Queues::troubles).
fn refusal(key: Key, job: &Job, reply: &Arc<str>) -> TransportEntry {
    let due = match job.stand {
        Stand::Waiting(due) => due.saturating_duration_since(Instant::now()),
        _ => Duration::ZERO,
    };
    TransportEntry::Trouble(Trouble {
        key: Some(key),
        transport: job.target.transport.clone(),
        attempts: job.attempts,
        next_try_secs: unix_secs(SystemTime::now() + due),
        failure: Failure::Refused,
        error: reply.clone(),
    })
}

/// Entries that may be shown while messages wait, and how many more for each of those, before they are written down anew.
const CARRY_ENTRIES: usize = 4096;
const CARRY_RATIO: usize = 8;
