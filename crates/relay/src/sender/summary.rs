//! Counts of waiting mail; and a message as it goes out.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::Lsn;

use super::control::Filter;
use super::{ControlError, Relay};
use crate::queue::{Key, QueueId, RecipientState, Secs, Waits};

/// The name that recipients are counted by.
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
    /// Recipients among them that have had an attempt.
    pub deferred: u64,
    /// Held recipients among them.
    pub held: u64,
    /// Suspended recipients among them.
    pub suspended: u64,
    /// Recipients under way among them.
    pub under_way: u64,
    /// When the oldest was received.
    pub oldest: Secs,
    /// When the next of them is tried; [`Secs::MAX`] if none is before somebody acts.
    pub next: Secs,
    /// The youngest recipient that had an attempt or waits for a host: its reply and limit stand for the group.
    sample: Option<Key>,
}

/// How a destination stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The hosts' last reply, or why they cannot be reached.
    pub reply: Option<Arc<str>>,
    /// The limit that its mail waits for now.
    pub limit: Option<String>,
}

impl Count {
    const NONE: Self = Count {
        recipients: 0,
        deferred: 0,
        held: 0,
        suspended: 0,
        under_way: 0,
        oldest: Secs::MAX,
        next: Secs::MAX,
        sample: None,
    };

    fn of(state: &RecipientState, now: Secs) -> Self {
        let is = |what: bool| u64::from(what);
        Self {
            recipients: 1,
            deferred: is(state.attempts > 0),
            held: is(matches!(state.waits, Waits::Held(_))),
            suspended: is(matches!(state.waits, Waits::Suspended(_))),
            under_way: is(state.waits == Waits::Busy),
            oldest: state.received,
            next: match state.waits {
                Waits::Until(next) | Waits::Suspended(next) => next,
                Waits::Due | Waits::Busy => now,
                Waits::Held(_) => Secs::MAX,
            },
            sample: (state.attempts > 0 || state.waits == Waits::Due).then_some(state.key),
        }
    }

    fn add(&mut self, other: &Count) {
        self.recipients += other.recipients;
        self.deferred += other.deferred;
        self.held += other.held;
        self.suspended += other.suspended;
        self.under_way += other.under_way;
        self.oldest = self.oldest.min(other.oldest);
        self.next = self.next.min(other.next);
        self.sample = self.sample.max(other.sample);
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
            let now = queue.now();
            for state in keys.iter().filter_map(|(key, _)| queue.show(*key)) {
                queues.entry(state.queue).or_insert(Count::NONE).add(&Count::of(&state, now));
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

    /// How those stand that were counted together. Reads memory only.
    pub fn standing(&self, count: &Count) -> Standing {
        let shared = &self.0.shared;
        let Some(key) = count.sample else { return Standing::default() };
        let reply = shared.at_site(key).0.or_else(|| shared.replies.of(key).map(|said| said.text));
        Standing { reply, limit: shared.limit_of(key) }
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
