//! What waits, counted; and a message as it goes out.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::Lsn;

use super::control::Filter;
use super::{ControlError, Relay};
use crate::queue::{QueueId, Secs, Waits};

/// What recipients are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountBy {
    /// Their domain.
    Domain,
    /// Whose mail it is.
    Tenant,
    /// The mailing.
    Campaign,
    /// The set of mail hosts; those for which none is known yet are counted under an empty name.
    Site,
}

/// Recipients that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// All of them.
    pub recipients: u64,
    /// Of them, those that have had an attempt.
    pub deferred: u64,
    /// Of them, those that are held.
    pub held: u64,
    /// Of them, those that are suspended.
    pub suspended: u64,
    /// When the oldest was received.
    pub oldest: Secs,
}

impl Count {
    const NONE: Self = Count { recipients: 0, deferred: 0, held: 0, suspended: 0, oldest: Secs::MAX };

    fn add(&mut self, other: &Count) {
        self.recipients += other.recipients;
        self.deferred += other.deferred;
        self.held += other.held;
        self.suspended += other.suspended;
        self.oldest = self.oldest.min(other.oldest);
    }
}

impl Relay {
    /// Counts the recipients that fit, most first. Reads memory only, unless the filter names an address. Blocks.
    pub fn summary(&self, filter: &Filter, by: CountBy) -> Vec<(Arc<str>, Count)> {
        let shared = &self.0.shared;
        let mut queues: HashMap<QueueId, Count> = HashMap::new();
        shared.each(filter, false, &mut |keys| {
            // Not longer than for one part: mail goes on meanwhile.
            let queue = shared.queue();
            for state in keys.iter().filter_map(|(key, _)| queue.show(*key)) {
                let is = |what: bool| u64::from(what);
                queues.entry(state.queue).or_insert(Count::NONE).add(&Count {
                    recipients: 1,
                    deferred: is(state.attempts > 0),
                    held: is(matches!(state.waits, Waits::Held(_))),
                    suspended: is(matches!(state.waits, Waits::Suspended(_))),
                    oldest: state.received,
                });
            }
            true
        });
        let mut names: HashMap<Arc<str>, Count> = HashMap::new();
        for (id, count) in queues {
            let queue = shared.queue();
            let name = match by {
                CountBy::Site => Some(queue.site(id).unwrap_or_default()),
                _ => queue.queue(id).map(|(name, _)| match by {
                    CountBy::Tenant => name.tenant,
                    CountBy::Campaign => name.campaign,
                    CountBy::Domain | CountBy::Site => name.domain,
                }),
            };
            // Settled meanwhile.
            let Some(name) = name else { continue };
            names.entry(name).or_insert(Count::NONE).add(&count);
        }
        let mut all: Vec<_> = names.into_iter().collect();
        all.sort_by(|(a, first), (b, second)| second.recipients.cmp(&first.recipients).then_with(|| a.cmp(b)));
        all
    }

    /// A message that waits, in pieces, from its first octet to `bytes_max`. Blocks.
    ///
    /// # Errors
    /// It waits no more, or cannot be read.
    pub fn content(&self, message: Lsn, bytes_max: u64) -> Result<Vec<Bytes>, ControlError> {
        let shared = &self.0.shared;
        let waits = shared.queue().has_message(message);
        if !waits {
            return Err(ControlError::NotWaiting(message));
        }
        if let Some(loaded) = shared.messages.in_memory(message) {
            return Ok(loaded.body);
        }
        shared.messages.body(message, bytes_max).map_err(|error| ControlError::Unreadable(error.to_string()))
    }
}
