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
    /// Try it again, after a pause that doubles.
    Failed(FailureReason),
    /// The other side does not want it, now or ever.
    Refused(FailureReason),
    /// The transport takes no mail now, this message or another.
    Unavailable(FailureReason),
    /// The body is lost: no attempt will ever succeed. What is left of it is kept.
    Lost(Arc<str>, Option<PathBuf>),
}

/// The work of a worker: one message, and its targets that go there together.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub transport: Arc<Transport>,
    pub body: Lsn,
    pub body_len: u64,
    pub deliver: Arc<Deliver>,
    pub targets: Vec<Part>,
}

impl Work {
    /// Its targets for which an attempt has ended in some way.
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
        /// The attempt before, if there was one, ended in another way.
        is_new: bool,
        error: FailureReason,
    },
    /// `is_overdue`: for the first time since it failed, one of its messages was older than it may be.
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

/// A message that was given up for one target: its body in the spool is damaged, or is not there any more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostMail {
    /// The target.
    pub target: TargetId,
    /// When the message was received, in seconds since 1970.
    pub received_secs: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// The error.
    pub error: Arc<str>,
    /// The file with what is left of the body, if anything is.
    pub kept: Option<PathBuf>,
}
