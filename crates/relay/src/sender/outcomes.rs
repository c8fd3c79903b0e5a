//! Outcomes of mail: their records, replies and counts, and the notices to senders.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use posthaste_smtp::Reply;

use super::notices::NoticesInForce;
use super::notices_to_make::NoticesToMake;
use super::record::OutcomeRecorder;
use super::replies::Replies;
use posthaste_queue::{Change, Queue, RecipientKey, Waits};

/// Owner of outcomes, from a host's reply to the sender's notice.
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

/// Bounces that an operator ordered for recipients in flight: they apply after the host's reply. Locked after the
/// queue.
#[derive(Default)]
pub(super) struct BouncesToFollow(Mutex<HashMap<RecipientKey, Reply>>);

impl BouncesToFollow {
    /// Notes a bounce. The caller holds the queue's lock, and the recipient is in flight.
    pub fn add(&self, key: RecipientKey, reply: Reply) {
        self.0.lock().expect("replies to follow").insert(key, reply);
    }

    /// Takes the bounces of recipients no longer in flight. A recipient that the host's reply settled is forgotten.
    pub fn take(&self, bounces: Vec<Change>, queue: &Queue) -> Vec<(Change, Reply)> {
        let mut replies = self.0.lock().expect("replies to follow");
        let mut reply =
            |change: &Change| replies.remove(&change.key).unwrap_or_else(|| Reply::new(554, "5.0.0", GIVEN_UP));
        let taken = bounces.into_iter().map(|change| (change, reply(&change))).collect();
        replies.retain(|key, _| queue.show(*key).is_some_and(|state| state.waits == Waits::Busy));
        taken
    }
}

const GIVEN_UP: &str = "given up by the operator";
