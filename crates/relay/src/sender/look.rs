//! A rolling scan of the recipients of a large queue. It finds values without counters: arrival of the oldest message,
//! the next attempt, and the last reply.
//!
//! A scan goes through the queue from the oldest message to the youngest. A request scans at most [`PART`] recipients,
//! once per [`PAUSE`]. So its cost does not depend on the length of the queue; only the age of its answer does.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::count::Count;
use posthaste_queue::{QueueId, RecipientKey, Secs};

/// Recipients of one part; its last page may exceed it.
pub(super) const PART: usize = 16_384;
/// Minimum time between two parts.
const PAUSE: Duration = Duration::from_secs(1);

/// The scan, shared by requests.
#[derive(Debug, Default)]
pub(super) struct RollingLook(Mutex<Rounds>);

/// Findings of the scan's rounds.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Start of the last part.
    at: Option<Instant>,
    /// Start of the next part; `None`: the beginning of the queue.
    from: Option<RecipientKey>,
    round: u32,
    /// Samples by queue: of recipients not held, and of held ones.
    seen: [HashMap<QueueId, Glance>; 2],
}

/// Findings about the recipients of one queue.
#[derive(Debug)]
struct Glance {
    /// The last round that found a recipient of the queue.
    round: u32,
    oldest: Secs,
    next: Secs,
    sample: Option<RecipientKey>,
    /// Suspended recipients of this round so far, and of the round before.
    suspended: u64,
    suspended_before: u64,
}

impl Glance {
    /// The first recipient of a round is the oldest. Next attempt and reply of the previous round count until this one
    /// has found more.
    fn begin(before: Option<&Glance>, one: &Count, round: u32, now: Secs) -> Self {
        Self {
            round,
            oldest: one.oldest,
            // A time in the past belongs to a recipient that has been tried since.
            next: before
                .map(|before| before.next)
                .filter(|next| *next > now)
                .map_or(one.next, |next| next.min(one.next)),
            sample: one.sample.or(before.and_then(|before| before.sample)),
            suspended: one.suspended,
            suspended_before: before.map_or(0, |before| before.suspended),
        }
    }

    fn add(&mut self, one: &Count) {
        self.oldest = self.oldest.min(one.oldest);
        self.next = self.next.min(one.next);
        self.sample = one.sample.or(self.sample);
        self.suspended += one.suspended;
    }
}

impl RollingLook {
    /// Scans the next part if it is due. `page` returns the recipients from a key on, and the key to continue from;
    /// `None`: the end.
    pub fn advance(
        &self,
        at: Instant,
        now: Secs,
        mut page: impl FnMut(Option<RecipientKey>) -> (Vec<(QueueId, Count)>, Option<RecipientKey>),
    ) -> MutexGuard<'_, Rounds> {
        // One request scans at a time; others wait for its part.
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rounds.at.is_some_and(|last| at.duration_since(last) < PAUSE) {
            return rounds;
        }
        rounds.at = Some(at);
        let mut looked = 0;
        while looked < PART {
            let (found, next) = page(rounds.from);
            looked += found.len();
            found.iter().for_each(|(queue, one)| rounds.add(*queue, one, now));
            rounds.from = next;
            if next.is_none() {
                rounds.end_round();
                break;
            }
        }
        rounds
    }
}

impl Rounds {
    fn add(&mut self, queue: QueueId, one: &Count, now: Secs) {
        let round = self.round;
        let seen = &mut self.seen[usize::from(one.held > 0)];
        match seen.get_mut(&queue) {
            Some(glance) if glance.round == round => glance.add(one),
            before => {
                let glance = Glance::begin(before.as_deref(), one, round, now);
                seen.insert(queue, glance);
            }
        }
    }

    /// Drops queues that the round did not find.
    fn end_round(&mut self) {
        let round = self.round;
        self.seen.iter_mut().for_each(|seen| seen.retain(|_, glance| glance.round == round));
        self.round = round.wrapping_add(1);
    }

    /// Times and samples of a queue's recipients, held or not held; all if `is_held` is `None`. Counts are left at 0.
    pub fn of(&self, queue: QueueId, is_held: Option<bool>) -> Option<Count> {
        let halves = self.seen.iter().zip([false, true]).filter(|(_, of)| is_held.is_none_or(|is_held| is_held == *of));
        let glances = halves.filter_map(|(seen, _)| seen.get(&queue)).map(|glance| Count {
            oldest: glance.oldest,
            next: glance.next,
            sample: glance.sample,
            suspended: glance.suspended.max(glance.suspended_before),
            ..Count::NONE
        });
        glances.reduce(|mut all, one| {
            all.add(&one);
            all
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use posthaste_queue::{Queue, QueueEntry, Queued, Schedules};
    use posthaste_spool::Lsn;

    use super::*;

    /// Ids of two queues.
    static QUEUES: LazyLock<Vec<QueueId>> = LazyLock::new(|| {
        let mut queue = Queue::new(Schedules::default(), 1);
        let message = Queued::plain(0, "", ["bob@a.example", "bob@b.example"]);
        queue.apply(Lsn::new(1), &QueueEntry::Queued(message));
        queue.queues()
    });

    fn key(number: u64) -> RecipientKey {
        RecipientKey { message: Lsn::new(number), number: 0 }
    }

    /// Scans pages of 1000 of a queue of `len` recipients, each a second younger than the one before. Returns how many
    /// were scanned.
    fn look_at(look: &RollingLook, at: Instant, len: u64) -> usize {
        let mut given = 0;
        let page = |from: Option<RecipientKey>| {
            let from = from.map_or(0, |from| from.message.get());
            let to = len.min(from + 1000);
            given += (to - from) as usize;
            let one = |number| (QUEUES[0], Count { oldest: 100 + number as Secs, ..Count::NONE });
            ((from..to).map(one).collect(), (to < len).then(|| key(to)))
        };
        drop(look.advance(at, 0, page));
        given
    }

    #[test]
    fn a_part_is_as_long_in_any_queue_and_rounds_see_all() {
        for len in [40_000, 200_000, 10_000_000] {
            let look = RollingLook::default();
            let begun = Instant::now();
            assert_eq!(look_at(&look, begun, len), 17_000);
            assert_eq!(look_at(&look, begun + PAUSE / 2, len), 0, "too soon");
            assert_eq!(look_at(&look, begun + PAUSE, len), 17_000);
        }
        let look = RollingLook::default();
        let begun = Instant::now();
        let all: usize = (0..12).map(|part| look_at(&look, begun + PAUSE * part, 200_000)).sum();
        assert_eq!(all, 200_000);
        let oldest = || look.0.lock().unwrap().of(QUEUES[0], None).unwrap().oldest;
        assert_eq!(oldest(), 100);
        // The oldest have left: the next round shows it with its first part.
        let page =
            |_: Option<RecipientKey>| (vec![(QUEUES[0], Count { oldest: 50_100, ..Count::NONE }); PART], Some(key(1)));
        drop(look.advance(begun + PAUSE * 12, 0, page));
        assert_eq!(oldest(), 50_100);
        let nothing = |_: Option<RecipientKey>| (Vec::new(), None);
        drop(look.advance(begun + PAUSE * 13, 0, nothing));
        drop(look.advance(begun + PAUSE * 14, 0, nothing));
        assert_eq!(look.0.lock().unwrap().of(QUEUES[0], None), None, "a queue that is gone is forgotten");
    }

    #[test]
    fn held_recipients_are_told_apart_and_past_times_ignored() {
        let look = RollingLook::default();
        let one = |held, oldest, next| (QUEUES[0], Count { held, oldest, next, ..Count::NONE });
        let page = |_: Option<RecipientKey>| (vec![one(0, 7, 90), one(1, 5, Secs::MAX), one(0, 9, 80)], None);
        let begun = Instant::now();
        let rounds = look.advance(begun, 50, page);
        let of = |rounds: &Rounds, is_held| rounds.of(QUEUES[0], is_held).map(|of| (of.oldest, of.next));
        assert_eq!(of(&rounds, Some(true)), Some((5, Secs::MAX)));
        assert_eq!(of(&rounds, Some(false)), Some((7, 80)));
        assert_eq!(of(&rounds, None), Some((5, 80)));
        assert_eq!(rounds.of(QUEUES[1], None), None);
        drop(rounds);
        let later = |_: Option<RecipientKey>| (vec![one(0, 7, 300)], None);
        assert_eq!(of(&look.advance(begun + PAUSE, 85, later), Some(false)), Some((7, 300)));
    }
}
