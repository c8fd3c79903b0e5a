//! The work of a worker, and its outcomes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use posthaste_directory::Transport;
use posthaste_spool::Lsn;

use crate::entry::{Deliver, Failure, Target, TargetKey};
use crate::observer::TargetId;
use crate::reason::FailureReason;

/// The outcome of an attempt, for one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Delivered,
    /// Retry after a pause that doubles.
    Failed(FailureReason),
    /// The other side refuses it permanently.
    Refused(FailureReason),
    /// The transport accepts no mail now, whatever the message.
    Unavailable(FailureReason),
    /// The body is lost: no attempt will succeed. The rest of it is saved.
    Lost(Arc<str>, Option<PathBuf>),
}

/// The work of a worker: one message, and its targets to be delivered together.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub transport: Arc<Transport>,
    pub body: Lsn,
    pub body_len: u64,
    pub deliver: Arc<Deliver>,
    pub targets: Vec<Part>,
}

impl Work {
    /// Its targets whose attempt has ended in this way.
    pub fn targets_with<'a>(
        &'a self,
        outcomes: &'a [Outcome],
        is_wanted: impl Fn(&Outcome) -> bool + 'a,
    ) -> impl Iterator<Item = (TargetId, &'a Outcome)> {
        let ended = self.targets.iter().zip(outcomes).filter(move |(_, outcome)| is_wanted(outcome));
        ended.map(|(part, outcome)| {
            let transport = part.target.transport.clone();
            let recipient = part.target.recipient.clone();
            (TargetId { message: self.body, number: part.number, transport, recipient }, outcome)
        })
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub number: u16,
    pub target: Target,
    /// Bytes that the file had before an attempt that may have been cut short.
    pub begun: Option<u64>,
}

/// An event for the operator or the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    Failed {
        transport: Arc<str>,
        key: TargetKey,
        recipient: Arc<str>,
        attempts: u32,
        due: Instant,
        failure: Failure,
        /// True if the previous attempt, if any, ended differently.
        is_new: bool,
        error: FailureReason,
    },
    /// `is_overdue`: for the first time since its failure, one of its messages is overdue.
    Unavailable {
        transport: Arc<str>,
        attempts: u32,
        due: Instant,
        is_overdue: bool,
        error: FailureReason,
    },
    /// Targets that began to wait for a failing transport.
    Behind {
        targets: Vec<TargetId>,
        error: FailureReason,
    },
    Recovered {
        transport: Arc<str>,
    },
}

/// A message given up for one target: its body in the spool is damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostMail {
    /// The target.
    pub target: TargetId,
    /// When the message was received, in seconds since 1970.
    pub received_secs: u64,
    /// Length of the body in bytes.
    pub bytes: u64,
    /// Text of the error.
    pub error: Arc<str>,
    /// The file with the rest of the body, if any.
    pub kept: Option<PathBuf>,
}
