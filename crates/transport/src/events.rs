//! News for the operator, and for `spool inspect`.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::entry::{Failure, TargetTrouble, TransportEntry};
use crate::observer::{TargetId, TransportObserver};
use crate::work::{LostMail, Note};

/// Reports events to the operator. Must not block.
#[derive(Clone)]
pub struct TransportEvents(pub(crate) Arc<dyn Fn(TransportEvent) + Send + Sync>);

impl TransportEvents {
    /// Calls `tell` for each event, on the thread of its cause.
    pub fn new(tell: impl Fn(TransportEvent) + Send + Sync + 'static) -> Self {
        TransportEvents(Arc::new(tell))
    }
}

impl Default for TransportEvents {
    fn default() -> Self {
        TransportEvents::new(|_| ())
    }
}

/// An event for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportEvent {
    /// An attempt failed, for one recipient of one message.
    Failed {
        /// The transport at which it happened.
        transport: Arc<str>,
        /// LSN of the batch with the message's body: its number in `posthaste spool inspect`.
        id: u64,
        /// The recipient.
        recipient: Arc<str>,
        /// Attempts so far.
        attempts: u32,
        /// The kind of failure.
        failure: Failure,
        /// True if the previous attempt since the opening, if any, ended differently.
        is_new: bool,
        /// The error of the attempt.
        error: Arc<str>,
        /// Time until the retry.
        pause: Duration,
    },
    /// Outcomes cannot be recorded, so nothing more is delivered.
    NotRecorded {
        /// Deliveries that are repeated after a restart.
        unrecorded: u64,
        /// The reason.
        why: Arc<str>,
        /// True if that lasts until the spool is reopened.
        is_final: bool,
    },
    /// Outcomes are recorded again, and delivery continues.
    RecordedAgain,
    /// The transport accepts no mail now.
    Unavailable {
        /// The transport.
        transport: Arc<str>,
        /// Failures in a row.
        attempts: u32,
        /// Text of the error.
        error: Arc<str>,
        /// Time until the retry.
        pause: Duration,
        /// For the first time since it failed, a message was tried that is older than [`Config::max_age`](crate::Config::max_age).
        is_overdue: bool,
    },
    /// The sender could not be notified of a refusal; it is retried. Others may be affected, too: at most one event a
    /// minute.
    NotTold {
        /// LSN of the batch with the refused message's body: its number in `posthaste spool inspect`.
        id: u64,
        /// Text of the error.
        error: String,
    },
    /// The body of a message is lost: it was given up for one target.
    Lost(LostMail),
    /// The transport accepts mail again.
    Recovered {
        /// The transport.
        transport: Arc<str>,
    },
}

/// The operator's event.
pub(crate) fn event(note: Note, now: Instant) -> Option<TransportEvent> {
    Some(match note {
        Note::Failed { transport, key, recipient, attempts, due, failure, is_new, error } => {
            let id = key.0.get();
            let pause = due - now;
            let error = error.said();
            TransportEvent::Failed { transport, id, recipient, attempts, failure, is_new, error, pause }
        }
        Note::Unavailable { transport, attempts, due, is_overdue, error } => {
            TransportEvent::Unavailable { transport, attempts, error: error.said(), pause: due - now, is_overdue }
        }
        Note::Recovered { transport } => TransportEvent::Recovered { transport },
        Note::Behind { .. } => return None,
    })
}

/// Tells an observer, if it is something that it hears.
pub(crate) fn observe(observer: &dyn TransportObserver, note: &Note) {
    match note {
        Note::Failed { transport, key: (message, number), recipient, failure, is_new: true, error, .. } => {
            let transport = transport.clone();
            let recipient = recipient.clone();
            let target = TargetId { message: *message, number: *number, transport, recipient };
            observer.waits(vec![target], *failure, error.clone());
        }
        Note::Behind { targets, error } => observer.waits(targets.clone(), Failure::Temporary, error.clone()),
        Note::Failed { .. } | Note::Unavailable { .. } | Note::Recovered { .. } => {}
    }
}

/// The entry for `spool inspect`.
pub(crate) fn trouble(note: &Note, now: Instant) -> Option<TransportEntry> {
    let (key, transport, attempts, due, error, failure) = match note {
        Note::Failed { transport, key, attempts, due, failure, error, .. } => {
            (Some(*key), transport, attempts, due, error, *failure)
        }
        Note::Unavailable { transport, attempts, due, error, .. } => {
            (None, transport, attempts, due, error, Failure::Temporary)
        }
        Note::Recovered { .. } | Note::Behind { .. } => return None,
    };
    let next_try_secs = unix_secs(SystemTime::now() + due.saturating_duration_since(now));
    let transport = transport.clone();
    let attempts = *attempts;
    let error = error.shortened();
    Some(TransportEntry::Trouble(TargetTrouble { key, transport, attempts, next_try_secs, failure, error }))
}

pub(crate) fn unix_secs(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
