//! Counts of waiting mail; and a message as it goes out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use posthaste_spool::Lsn;

use super::control::Filter;
use super::shared::Shared;
use super::{ControlError, Relay};
use crate::queue::{Key, QueueId, QueueTally, RecipientState, Secs, Selection, SuspendedPart, Waits};

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
    pub(super) sample: Option<Key>,
}

/// A queue of at most so many recipients is looked at as a whole each time.
const LOOKED_AT_MAX: u64 = 20_000;
/// How a destination stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The hosts' last reply, or why they cannot be reached.
    pub reply: Option<Arc<str>>,
    /// The limit that its mail waits for now.
    pub limit: Option<String>,
}

impl Count {
    pub(super) const NONE: Self = Count {
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

    /// Of a queue, those that are held or not, or all; `seen` at looks, if it was there.
    fn counted(
        tally: QueueTally,
        (part, is_held): (SuspendedPart, Option<bool>),
        seen: Option<&Count>,
        now: Secs,
    ) -> Self {
        let QueueTally { recipients, deferred, held, held_deferred, under_way, due, oldest } = tally;
        let waiting = recipients - held - under_way;
        let suspended = match part {
            SuspendedPart::None => 0,
            SuspendedPart::All(_) => waiting,
            SuspendedPart::Some => seen.map_or(0, |seen| seen.suspended.min(waiting)),
        };
        let next = match part {
            _ if under_way > 0 => now,
            _ if waiting == 0 => Secs::MAX,
            SuspendedPart::All(until) => until,
            _ if due > suspended => now,
            _ => seen.map_or(now, |seen| seen.next.max(now)),
        };
        // Each is a bound from below, and what was seen is from later on.
        let oldest = seen.map_or(oldest, |seen| seen.oldest.max(oldest));
        let sample = seen.and_then(|seen| seen.sample);
        let all = Self { recipients, deferred, held, suspended, under_way, oldest, next, sample };
        match is_held {
            None => all,
            Some(true) => {
                let none = Self { next: Secs::MAX, suspended: 0, under_way: 0, ..all };
                Self { recipients: held, deferred: held_deferred, ..none }
            }
            Some(false) => Self { recipients: recipients - held, deferred: deferred - held_deferred, held: 0, ..all },
        }
    }

    pub(super) fn add(&mut self, other: &Count) {
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
    /// Counts the recipients that fit, most first. Reads memory only, unless the filter names an address. Of a large queue, when the oldest was received, when the next is tried
    /// and what the last reply was are as they were at the last look, which takes minutes to go round ten million. Blocks.
    pub fn summary(&self, filter: &Filter, by: CountBy) -> Vec<(Arc<str>, Count)> {
        let shared = &self.0.shared;
        let queues = match shared.counted(filter) {
            Some(queues) => queues,
            None => shared.looked_at(filter),
        };
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

impl Shared {
    /// Counts what fits by looking at each recipient.
    fn looked_at(&self, filter: &Filter) -> HashMap<QueueId, Count> {
        let mut queues: HashMap<QueueId, Count> = HashMap::new();
        self.each(filter, false, &mut |keys| {
            // Not longer than for one part: mail goes on meanwhile.
            let queue = self.queue();
            let now = queue.now();
            for state in keys.iter().filter_map(|(key, _)| queue.show(*key)) {
                queues.entry(state.queue).or_insert(Count::NONE).add(&Count::of(&state, now));
            }
            true
        });
        queues
    }

    /// What fits, as it was counted while it changed. `None`: it was not counted so, or the queue is small.
    fn counted(&self, filter: &Filter) -> Option<HashMap<QueueId, Count>> {
        let Filter { selection, message, number, sender, recipient, after, pages_max: _ } = filter;
        let Selection { tenant, campaign, domain, is_held } = selection;
        let is_counted =
            message.is_none() && number.is_none() && sender.is_none() && recipient.is_none() && after.is_none();
        if !is_counted || self.queue().recipients() <= LOOKED_AT_MAX {
            return None;
        }
        let now = self.queue().now();
        let look = self.look.advance(Instant::now(), now, |from| self.part(from));
        let ids = self.queue().queues();
        let mut counts = HashMap::with_capacity(ids.len());
        for id in ids {
            // One at a time: mail goes on meanwhile.
            let queue = self.queue();
            let Some((name, _)) = queue.queue(id) else { continue };
            let is = |wanted: &Option<Arc<str>>, name: &Arc<str>| wanted.as_ref().is_none_or(|wanted| wanted == name);
            let Some(tally) = queue.tally(id).filter(|tally| tally.recipients > 0) else { continue };
            if is(tenant, &name.tenant) && is(campaign, &name.campaign) && is(domain, &name.domain) {
                let part = (queue.suspended_part(id), *is_held);
                let count = Count::counted(tally, part, look.of(id, *is_held).as_ref(), queue.now());
                if count.recipients > 0 {
                    counts.insert(id, count);
                }
            }
        }
        Some(counts)
    }

    /// A page of recipients at or behind a place, each counted by itself, and where to go on.
    fn part(&self, from: Option<Key>) -> (Vec<(QueueId, Count)>, Option<Key>) {
        // Not longer than for one page: mail goes on meanwhile.
        let queue = self.queue();
        let (keys, next, looked_at) = queue.select(&Selection::default(), from);
        self.looked_at.fetch_add(looked_at as u64, Ordering::Relaxed);
        let states = keys.into_iter().filter_map(|key| queue.show(key));
        (states.map(|state| (state.queue, Count::of(&state, queue.now()))).collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_as_it_changes_wins_over_the_last_look() {
        let seen = Count { oldest: 50, next: 200, ..Count::NONE };
        let tally =
            QueueTally { recipients: 4, deferred: 3, held: 1, held_deferred: 1, under_way: 0, due: 0, oldest: 40 };
        let held = |tally, part, is_held, now| Count::counted(tally, (part, is_held), Some(&seen), now);
        let count = |tally, part, now| held(tally, part, None, now);
        let expected = Count {
            recipients: 4,
            deferred: 3,
            held: 1,
            suspended: 0,
            under_way: 0,
            oldest: 50,
            next: 200,
            sample: None,
        };
        assert_eq!(count(tally, SuspendedPart::None, 100), expected);
        assert_eq!(count(QueueTally { oldest: 60, ..tally }, SuspendedPart::None, 100).oldest, 60);
        assert_eq!(count(tally, SuspendedPart::None, 300).next, 300, "what the look saw has come");
        assert_eq!(count(QueueTally { due: 1, ..tally }, SuspendedPart::None, 100).next, 100);
        assert_eq!(count(QueueTally { under_way: 1, ..tally }, SuspendedPart::None, 100).next, 100);
        assert_eq!(count(QueueTally { held: 4, ..tally }, SuspendedPart::None, 100).next, Secs::MAX);
        let suspended = count(QueueTally { due: 2, ..tally }, SuspendedPart::All(900), 100);
        assert_eq!((suspended.suspended, suspended.next), (3, 900));
        let only_held = Count { recipients: 1, deferred: 1, next: Secs::MAX, ..expected };
        assert_eq!(held(tally, SuspendedPart::None, Some(true), 100), only_held);
        let free = Count { recipients: 3, deferred: 2, held: 0, ..expected };
        assert_eq!(held(tally, SuspendedPart::None, Some(false), 100), free);
        let new = Count::counted(QueueTally { held: 0, ..tally }, (SuspendedPart::None, None), None, 100);
        assert_eq!((new.oldest, new.next), (40, 100), "it has come since the look");
    }
}
