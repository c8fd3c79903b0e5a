//! Bounces that an operator orders for recipients in flight: they apply after the reply of the host.

use std::collections::HashMap;
use std::sync::Mutex;

use posthaste_smtp::Reply;

use posthaste_queue::{Change, Key, Queue, Waits};

/// Locked after the queue.
#[derive(Default)]
pub(super) struct BouncesToFollow(Mutex<HashMap<Key, Reply>>);

impl BouncesToFollow {
    /// Notes a bounce. The caller holds the queue's lock, and the recipient is in flight.
    pub fn add(&self, key: Key, reply: Reply) {
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
