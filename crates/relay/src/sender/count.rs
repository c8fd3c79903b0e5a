//! Counts of waiting recipients: of one queue, from running counters, and sums.

use posthaste_queue::{QueueTally, RecipientKey, RecipientState, Secs, SuspendedPart, Waits};

/// Counts of waiting recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// All recipients.
    pub recipients: u64,
    /// Recipients that had an attempt.
    pub deferred: u64,
    /// Recipients on hold.
    pub held: u64,
    /// Suspended recipients.
    pub suspended: u64,
    /// Recipients in flight.
    pub under_way: u64,
    /// Arrival of the oldest message.
    pub oldest: Secs,
    /// Time of the next attempt; [`Secs::MAX`] if an operator must act first.
    pub next: Secs,
    /// The youngest recipient that had an attempt or waits for a host: its reply and limit represent the group.
    pub(super) sample: Option<RecipientKey>,
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

    pub(super) fn of(state: &RecipientState, now: Secs) -> Self {
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

    /// Counts the recipients of a queue: held, not held, or all. `seen`: findings of the rolling scan, if any.
    pub(super) fn counted(
        tally: QueueTally,
        part: SuspendedPart,
        is_held: Option<bool>,
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
        // Both values are lower bounds; the scan is the later observation.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_as_it_changes_wins_over_the_last_look() {
        let seen = Count { oldest: 50, next: 200, ..Count::NONE };
        let tally =
            QueueTally { recipients: 4, deferred: 3, held: 1, held_deferred: 1, under_way: 0, due: 0, oldest: 40 };
        let held = |tally, part, is_held, now| Count::counted(tally, part, is_held, Some(&seen), now);
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
        let new = Count::counted(QueueTally { held: 0, ..tally }, SuspendedPart::None, None, None, 100);
        assert_eq!((new.oldest, new.next), (40, 100), "it has come since the look");
    }
}
