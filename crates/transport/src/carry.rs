//! The stream's position, and entries that are re-appended so that it can advance.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use posthaste_spool::{Lsn, Released};

use crate::entry::{Deliver, Failure, TargetKey, TargetTrouble, TransportEntry};
use crate::events::unix_secs;
use crate::queues::{Carry, Job, Message, Queues, RefusalNotice, Stand};
use crate::work::Note;

/// A message whose entries are re-appended, as one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CarriedMessage {
    /// LSN of the batch with the body.
    pub body: Lsn,
    pub entries: Vec<TransportEntry>,
}

impl Queues {
    /// Position up to which nothing is needed, and released bodies. `None` if nothing has changed since the last call,
    /// or while held targets are not recorded yet: advancing would drop their entries.
    pub fn take_advance(&mut self) -> Option<(Lsn, Released)> {
        if !self.holds_to_record.is_empty() || !std::mem::take(&mut self.is_changed) {
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

    /// Takes the messages to append again, without bodies: those that hold up the position at or below `through`, or
    /// all if far more entries were shown than wait. Each comes with the lengths of its files before the append, its
    /// sent and owed notices, and its held targets.
    pub fn take_laggards(&mut self, through: Lsn) -> Vec<CarriedMessage> {
        for body in std::mem::take(&mut *self.failed_carries.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.messages.get_mut(&body).into_iter().for_each(|message| message.carry = Carry::No);
        }
        let is_much = self.shown > CARRY_ENTRIES + CARRY_RATIO * self.messages.len();
        let through = if is_much { self.seen } else { through };
        if is_much {
            self.shown = 0;
        }
        if self.entries.first().is_none_or(|first| *first > through) {
            return Vec::new();
        }
        let is_late = |(_, message): &(&Lsn, &mut Message)| message.entry <= through && message.carry == Carry::No;
        let carried = self.messages.iter_mut().filter(is_late).map(|(body, message)| {
            message.carry = Carry::UnderWay { is_stale: false };
            CarriedMessage { body: *body, entries: message.written(*body) }
        });
        carried.collect()
    }

    /// Notes of failing transports and targets, at most `max`, to be appended again: the stream advances past the older
    /// ones.
    pub fn troubles(&self, max: usize) -> Vec<Note> {
        let blocked = self.queues.iter().filter_map(|(transport, queue)| {
            let due = queue.blocked_until?;
            let error = queue.error.clone()?;
            let transport = transport.clone();
            let attempts = queue.attempts;
            Some(Note::Unavailable { transport, attempts, due, is_overdue: false, error })
        });
        let waiting = self.messages.iter().flat_map(|(body, message)| {
            message.jobs.iter().filter_map(|(number, job)| {
                let Stand::Waiting(due) = job.stand else { return None };
                let (failure, error) = job.error.clone()?;
                let transport = job.target.transport.clone();
                let recipient = job.target.recipient.clone();
                let key = (*body, *number);
                let attempts = job.attempts;
                let is_new = false;
                Some(Note::Failed { transport, key, recipient, attempts, due, failure, is_new, error })
            })
        });
        blocked.chain(waiting).take(max).collect()
    }
}

impl Message {
    /// State of the message as entries. `body`: LSN of the batch with the body.
    fn written(&self, body: Lsn) -> Vec<TransportEntry> {
        let key = |number: &u16| (body, *number);
        let targets = self.jobs.iter().map(|(number, job)| (*number, job.target.clone())).collect();
        let deliver = Deliver { body: Some((body, self.body_len)), targets, ..(*self.deliver).clone() };
        let mut entries = vec![TransportEntry::Deliver(deliver)];
        for (number, job) in &self.jobs {
            entries.extend(job.begun.map(|file_bytes| TransportEntry::Begun { key: key(number), file_bytes }));
            if let RefusalNotice::Owed(reply) = &job.notice {
                entries.push(refusal(key(number), job, reply));
            }
        }
        let those = |holds: &dyn Fn(&Job) -> bool| -> Vec<TargetKey> {
            self.jobs.iter().filter(|(_, job)| holds(job)).map(|(number, _)| key(number)).collect()
        };
        let told = TransportEntry::Told(those(&|job| job.notice == RefusalNotice::Told));
        let held = TransportEntry::Held(those(&|job| job.stand == Stand::Held));
        let is_some = |entry: &TransportEntry| match entry {
            TransportEntry::Told(keys) | TransportEntry::Held(keys) => !keys.is_empty(),
            _ => true,
        };
        entries.extend([told, held].into_iter().filter(is_some));
        entries
    }
}

/// Repeats *notice owed*. The current failure follows with the other [`troubles`](Queues::troubles).
fn refusal(key: TargetKey, job: &Job, reply: &Arc<str>) -> TransportEntry {
    let due = match job.stand {
        Stand::Waiting(due) => due.saturating_duration_since(Instant::now()),
        _ => Duration::ZERO,
    };
    TransportEntry::Trouble(TargetTrouble {
        key: Some(key),
        transport: job.target.transport.clone(),
        attempts: job.attempts,
        next_try_secs: unix_secs(SystemTime::now() + due),
        failure: Failure::Refused,
        error: reply.clone().into(),
    })
}

/// Waiting messages are appended again once this many entries were shown, plus [`CARRY_RATIO`] for each of them.
const CARRY_ENTRIES: usize = 4096;
const CARRY_RATIO: usize = 8;
