//! Attempts that may begin, their outcomes, and retries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_directory::TransportKind;

use crate::entry::{Failure, TargetKey};
use crate::observer::TargetId;
use crate::queues::{Queues, Stand, Wake, Worker};
use crate::reason::FailureReason;
use crate::work::{Note, Outcome, Part, Work};

impl Queues {
    /// The next work, if one more worker is allowed.
    pub fn take(&mut self, now: Instant) -> Option<(u64, Work)> {
        // A slow worker does not count any more, up to a limit: it delays only its own transport.
        let slow = self.workers.values().filter(|worker| now.saturating_duration_since(worker.since) >= SLOW).count();
        if self.workers.len() - slow >= WORKERS_MAX || self.workers.len() >= ALL_WORKERS_MAX {
            return None;
        }
        let transport = self.ready.pop_front()?;
        self.queues.get_mut(&transport)?.is_ready = false;
        let work = self.take_of(&transport)?;
        self.next_worker += 1;
        self.workers.insert(self.next_worker, worker_at(&work, now));
        self.queues.get_mut(&transport)?.running += 1;
        self.consider(&transport);
        Some((self.next_worker, work))
    }

    /// The worker's next work at the same transport. Other transports come first if they wait for a worker.
    pub fn take_more(&mut self, worker: u64, transport: &Arc<str>, now: Instant) -> Option<Work> {
        let queue = self.queues.get(transport)?;
        let may_go_on = queue.blocked_until.is_none() && queue.running <= queue.workers_max();
        if !may_go_on || self.ready.iter().any(|other| other != transport) && self.workers.len() >= WORKERS_MAX {
            return None;
        }
        let work = self.take_of(transport)?;
        self.workers.insert(worker, worker_at(&work, now));
        Some(work)
    }

    /// Ends a worker, also after a panic. Its attempt fails unless it was [finished](Self::finish), so that no target
    /// stays in flight without a worker. Returns events for the log.
    pub fn worker_ended(&mut self, worker: u64, why: &Arc<str>, now: Instant) -> Vec<Note> {
        let Some(Worker { transport, targets, .. }) = self.workers.remove(&worker) else { return Vec::new() };
        if let Some(queue) = self.queues.get_mut(&transport) {
            queue.running -= 1;
        }
        let is_left = |queues: &mut Self, key| queues.job(key).is_some_and(|job| job.stand == Stand::Running);
        let left: Vec<TargetKey> = targets.into_iter().filter(|key| is_left(self, *key)).collect();
        let notes =
            left.into_iter().filter_map(|key| self.failed(key, Failure::Panicked, why.clone().into(), now)).collect();
        self.consider(&transport);
        self.forget_if_idle(&transport);
        notes
    }

    fn take_of(&mut self, transport: &Arc<str>) -> Option<Work> {
        let queue = self.queues.get_mut(transport)?;
        let of_queue = queue.transport.clone().ok()?;
        let (body, first) = queue.queued.pop_front()?;
        let mut numbers = vec![first];
        let is_lmtp = matches!(of_queue.kind(), TransportKind::LmtpUnix(_) | TransportKind::LmtpTcp(..));
        while is_lmtp && numbers.len() < RECIPIENTS_MAX && queue.queued.front().is_some_and(|(other, _)| *other == body)
        {
            numbers.extend(queue.queued.pop_front().map(|(_, number)| number));
        }
        let message = self.messages.get_mut(&body)?;
        let take = |number: u16| {
            let job = message.jobs.get_mut(&number)?;
            job.stand = Stand::Running;
            Some(Part { number, target: job.target.clone(), begun: job.begun })
        };
        let targets = numbers.into_iter().filter_map(take).collect();
        Some(Work { transport: of_queue, body, body_len: message.body_len, deliver: message.deliver.clone(), targets })
    }

    /// Ends a worker's attempt. `is_overdue`: the message is older than permitted. Returns the target's outcome, and
    /// events for the log.
    pub fn finish(
        &mut self,
        worker: u64,
        work: &Work,
        outcomes: Vec<Outcome>,
        is_overdue: bool,
        now: Instant,
    ) -> (Vec<TargetKey>, Vec<Note>) {
        let mut done = Vec::new();
        let mut notes = Vec::new();
        let transport = work.transport.text();
        if let Some(worker) = self.workers.get_mut(&worker) {
            // Another may take them while this one still ends its session.
            worker.targets.clear();
        }
        let unavailable = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Unavailable(error) => Some(error.clone()),
            _ => None,
        });
        for (part, outcome) in work.targets.iter().zip(outcomes) {
            let key = (work.body, part.number);
            match outcome {
                // A lost message was reported before.
                Outcome::Delivered | Outcome::Lost(..) => {
                    self.remove(key);
                    done.push(key);
                }
                Outcome::Unavailable(_) => {
                    let Some(job) = self.job(key) else { continue };
                    job.attempts = job.attempts.saturating_add(1);
                    job.stand = Stand::Queued;
                    self.queue(transport).queued.push_back(key);
                }
                Outcome::Failed(error) => {
                    let failure = if is_overdue { Failure::Overdue } else { Failure::Temporary };
                    notes.extend(self.failed(key, failure, error, now));
                }
                Outcome::Refused(error) => notes.extend(self.failed(key, Failure::Refused, error, now)),
            }
        }
        // It may be gone with its last target.
        let Some(queue) = self.queues.get_mut(transport) else { return (done, notes) };
        let back_off = self.config.retry;
        match unavailable {
            Some(error) => {
                queue.attempts = queue.attempts.saturating_add(1);
                let due = now + back_off.after(queue.attempts);
                let attempts = queue.attempts;
                (queue.blocked_until, queue.error) = (Some(due), Some(error.clone()));
                let is_overdue = is_overdue && !std::mem::replace(&mut queue.is_overdue, true);
                self.due.insert((due, Wake::Transport(transport.clone())));
                let targets = self.begin_to_wait(transport);
                notes.push(Note::Unavailable {
                    transport: transport.clone(),
                    attempts,
                    due,
                    is_overdue,
                    error: error.clone(),
                });
                if !targets.is_empty() {
                    notes.push(Note::Behind { targets, error });
                }
            }
            None => {
                if std::mem::take(&mut queue.attempts) > 0 {
                    (queue.blocked_until, queue.error, queue.is_overdue) = (None, None, false);
                    notes.push(Note::Recovered { transport: transport.clone() });
                }
                self.consider(transport);
            }
        }
        (done, notes)
    }

    /// Notes a failed attempt for one target, which then waits.
    fn failed(&mut self, key: TargetKey, failure: Failure, error: FailureReason, now: Instant) -> Option<Note> {
        let back_off = self.config.retry;
        let held = self.config.held_pause;
        let job = self.job(key)?;
        job.attempts = job.attempts.saturating_add(1);
        let due = now + if failure.is_held() { held } else { back_off.after(job.attempts) };
        job.stand = Stand::Waiting(due);
        let is_new = job.error.as_ref().is_none_or(|(before, _)| *before != failure);
        job.error = Some((failure, error.clone()));
        job.is_told = true;
        let target = job.target.clone();
        let attempts = job.attempts;
        self.due.insert((due, Wake::Target(key)));
        if failure == Failure::Refused {
            self.owe_notice(key, error.shortened().said());
        }
        let transport = target.transport;
        let recipient = target.recipient;
        Some(Note::Failed { transport, key, recipient, attempts, due, failure, is_new, error })
    }

    /// The targets queued for a failing transport that were not reported as waiting.
    fn begin_to_wait(&mut self, transport: &Arc<str>) -> Vec<TargetId> {
        let queued = self.queues.get(transport).map(|queue| queue.queued.clone());
        let is_new =
            |queues: &mut Self, key| queues.job(key).is_some_and(|job| !std::mem::replace(&mut job.is_told, true));
        let new: Vec<TargetKey> = queued.into_iter().flatten().filter(|key| is_new(self, *key)).collect();
        new.into_iter().filter_map(|key| self.target_id(key)).collect()
    }

    fn target_id(&self, (message, number): TargetKey) -> Option<TargetId> {
        let target = &self.messages.get(&message)?.jobs.get(&number)?.target;
        let transport = target.transport.clone();
        let recipient = target.recipient.clone();
        Some(TargetId { message, number, transport, recipient })
    }

    /// Queues due targets.
    pub fn wake(&mut self, now: Instant) {
        while self.due.first().is_some_and(|(due, _)| *due <= now) {
            let Some((due, wake)) = self.due.pop_first() else { return };
            match wake {
                Wake::Target(key) => self.queue_again(key, Some(due)),
                Wake::Transport(transport) => {
                    if let Some(queue) =
                        self.queues.get_mut(&transport).filter(|queue| queue.blocked_until == Some(due))
                    {
                        queue.blocked_until = None;
                    }
                    self.consider(&transport);
                }
            }
        }
    }

    /// Tries everything that waits now.
    pub fn retry_all(&mut self) {
        for (_, wake) in std::mem::take(&mut self.due) {
            match wake {
                Wake::Target(key) => self.queue_again(key, None),
                Wake::Transport(transport) => {
                    if let Some(queue) = self.queues.get_mut(&transport) {
                        queue.blocked_until = None;
                    }
                    self.consider(&transport);
                }
            }
        }
    }

    fn queue_again(&mut self, key: TargetKey, due: Option<Instant>) {
        let Some(job) = self.job(key) else { return };
        match job.stand {
            Stand::Waiting(at) if due.is_none_or(|due| due == at) => job.stand = Stand::Queued,
            _ => return,
        }
        let transport = job.target.transport.clone();
        self.queue(&transport).queued.push_back(key);
        self.consider(&transport);
    }

    /// Time of the next due target; `None` without any.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Number of busy workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// True if a worker could begin, apart from the limit of workers.
    pub fn is_any_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

fn worker_at(work: &Work, since: Instant) -> Worker {
    let targets = work.targets.iter().map(|part| (work.body, part.number)).collect();
    Worker { transport: work.transport.text().clone(), since, targets }
}

/// Maximum workers whose attempt is younger than [`SLOW`].
const WORKERS_MAX: usize = 64;
/// Older attempts do not count against [`WORKERS_MAX`].
const SLOW: Duration = Duration::from_secs(10);
const ALL_WORKERS_MAX: usize = 256;
/// Recipients of one transaction with an LMTP server.
const RECIPIENTS_MAX: usize = 100;
