//! Waiting mail, for queries to a running server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_spool::Lsn;

use crate::entry::Failure;
use crate::observer::TargetId;
use crate::queues::{Queues, Stand};
use crate::reason::FailureReason;

/// A recipient waiting for a transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTarget {
    /// The batch of the spool that has the message.
    pub id: u64,
    /// Number of the recipient within the message.
    pub number: u16,
    /// The transport.
    pub transport: Arc<str>,
    /// The recipient.
    pub recipient: Arc<str>,
    /// The sender's address; empty for none.
    pub sender: Arc<str>,
    /// When it was received, in seconds since 1970.
    pub received_secs: u64,
    /// Bytes of the message.
    pub bytes: u64,
    /// Attempts since the opening.
    pub attempts: u32,
    /// The cause of its wait.
    pub waits: TransportWaits,
    /// The error of the last attempt, or why there was none.
    pub why: Option<Arc<str>>,
}

/// The cause of a recipient's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportWaits {
    /// It is due and waits for a worker.
    Due,
    /// It is being delivered.
    Running,
    /// The next attempt comes after this time.
    Retry(Duration),
    /// Held for an operator; the next attempt comes after this time.
    Held(Duration),
    /// An operator's decision: it is unknown if the target has its message. It is not tried.
    Uncertain,
}

impl Queues {
    /// Removes matching held targets: no worker has them.
    pub fn drop_held(&mut self, now: Instant, is_meant: &dyn Fn(&WaitingTarget) -> bool) -> Vec<TargetId> {
        let is_held =
            |target: &WaitingTarget| matches!(target.waits, TransportWaits::Uncertain | TransportWaits::Held(_));
        let held = self.waiting(now).into_iter().filter(|target| is_held(target) && is_meant(target));
        let held: Vec<TargetId> = held
            .map(|WaitingTarget { id, number, transport, recipient, .. }| TargetId {
                message: Lsn::new(id),
                number,
                transport,
                recipient,
            })
            .collect();
        held.iter().for_each(|target| self.remove((target.message, target.number)));
        held
    }

    pub fn waiting(&self, now: Instant) -> Vec<WaitingTarget> {
        let mut all = Vec::new();
        for (body, message) in &self.messages {
            for (number, job) in &message.jobs {
                let queue = self.queues.get(&job.target.transport);
                let held = job.error.as_ref().is_some_and(|(failure, _)| Failure::is_held(*failure));
                let waits = match job.stand {
                    Stand::Running => TransportWaits::Running,
                    Stand::Held => TransportWaits::Uncertain,
                    Stand::Waiting(due) if held => TransportWaits::Held(due.saturating_duration_since(now)),
                    Stand::Waiting(due) => TransportWaits::Retry(due.saturating_duration_since(now)),
                    Stand::Queued => match queue.and_then(|queue| queue.blocked_until) {
                        Some(due) => TransportWaits::Retry(due.saturating_duration_since(now)),
                        None => TransportWaits::Due,
                    },
                };
                let why = match job.stand {
                    Stand::Held => Some(UNCERTAIN.into()),
                    _ => job.error.as_ref().map(|(_, error)| error.said()),
                };
                all.push(WaitingTarget {
                    id: body.get(),
                    number: *number,
                    transport: job.target.transport.clone(),
                    recipient: job.target.recipient.clone(),
                    sender: message.deliver.sender.clone(),
                    received_secs: message.deliver.secs,
                    bytes: message.body_len,
                    attempts: job.attempts,
                    waits,
                    why: why.or_else(|| queue.and_then(|queue| queue.error.as_ref().map(FailureReason::said))),
                });
            }
        }
        all
    }
}

const UNCERTAIN: &str = "it is unknown whether it was delivered";
