//! Outcomes of mail: their records, replies and counts, and the notices to senders.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::bounces_to_follow::BouncesToFollow;
use super::notices::NoticesInForce;
use super::notices_to_make::NoticesToMake;
use super::record::OutcomeRecorder;
use super::replies::Replies;

/// Owner of outcomes, from a host's reply to the notice of it.
pub(super) struct Outcomes {
    pub recorder: Arc<OutcomeRecorder>,
    /// The last replies about waiting recipients.
    pub replies: Replies,
    /// Settings of notices to senders.
    pub notices: NoticesInForce,
    pub notices_to_make: NoticesToMake,
    /// Bounces that operators order for recipients in flight.
    pub bounces_to_follow: BouncesToFollow,
    /// Recipients since the opening.
    pub delivered: AtomicU64,
    pub deferred: AtomicU64,
    pub failed: AtomicU64,
}

impl Outcomes {
    pub fn new(recorder: OutcomeRecorder, replies: Replies, notices: NoticesInForce) -> Self {
        Outcomes {
            recorder: Arc::new(recorder),
            replies,
            notices,
            notices_to_make: NoticesToMake::default(),
            bounces_to_follow: BouncesToFollow::default(),
            delivered: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }
}
