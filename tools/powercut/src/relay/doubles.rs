//! Judges the copies at the next hop of a server that is killed repeatedly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::sink::Arrived;
use crate::load::Load;

/// Extra copies. A recipient whose delivery is recorded never gets another; an unrecorded one may get one more after
/// each kill.
///
/// Copies of messages to several recipients are not counted, as each recipient may get its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubles {
    /// Number of extra copies.
    pub copies: u64,
    /// The most of these in one run of the server, and so after one kill.
    pub copies_max: u64,
    /// The longest time between a copy and the next kill, of messages that arrived again.
    pub before_kill_max: Duration,
    /// Messages that arrived again, although a delivery to each of their recipients was recorded.
    pub recorded: BTreeSet<u64>,
    /// Messages that arrived twice without a kill in between.
    pub in_one_life: BTreeSet<u64>,
    /// Copies of each message at the last kill, and the age of the newest then.
    known: BTreeMap<u64, (u64, Duration)>,
    /// Messages with a recorded delivery to each of their recipients at the last kill.
    settled: BTreeSet<u64>,
}

impl Doubles {
    /// Judges a run of the server that ended at `ended`, by all that has `arrived` and all that is recorded as
    /// delivered (`settled`).
    pub fn note(
        &mut self,
        load: &Load,
        arrived: &BTreeMap<u64, Arrived>,
        settled: impl Iterator<Item = u64>,
        ended: SystemTime,
    ) {
        let mut copies = 0;
        for (number, found) in arrived {
            let known = self.known.get(number).copied();
            let new = found.copies - known.map_or(0, |(copies, _)| copies);
            if new == 0 {
                continue;
            }
            self.recorded.extend(self.settled.contains(number).then_some(*number));
            self.known.insert(*number, (found.copies, ended.duration_since(found.last).unwrap_or_default()));
            if load.recipients(*number).len() > 1 {
                continue;
            }
            self.in_one_life.extend((new > 1).then_some(*number));
            copies += new - u64::from(known.is_none());
            self.before_kill_max = self.before_kill_max.max(known.map_or(Duration::ZERO, |(_, before)| before));
        }
        self.copies += copies;
        self.copies_max = self.copies_max.max(copies);
        self.settled = settled.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A life of 10 s: copies of the messages so far with the second of the newest, and what is settled at the end.
    type SeenLife<'a> = (&'a [(u64, u64, u64)], &'a [u64]);

    fn check(load: &Load, lives: &[SeenLife<'_>]) -> Doubles {
        let mut doubles = Doubles::default();
        let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        for ((arrived, settled), ended) in lives.iter().zip((10..).step_by(10)) {
            let arrived = arrived
                .iter()
                .map(|(number, copies, secs)| (*number, Arrived { copies: *copies, is_intact: true, last: at(*secs) }));
            doubles.note(load, &arrived.collect(), settled.iter().copied(), at(ended));
        }
        doubles
    }

    #[test]
    fn a_copy_after_a_kill_counts_unless_the_first_was_recorded() {
        let load = Load { several_one_in: u64::MAX, ..Load::mixed(7) };
        let doubles = check(&load, &[(&[(1, 1, 8), (2, 1, 9)], &[2]), (&[(1, 2, 12), (2, 1, 9)], &[1, 2])]);
        assert_eq!((doubles.copies, doubles.copies_max, doubles.before_kill_max), (1, 1, Duration::from_secs(2)));
        assert!(doubles.recorded.is_empty() && doubles.in_one_life.is_empty(), "{doubles:?}");
        let doubles = check(&load, &[(&[(1, 1, 8)], &[1]), (&[(1, 2, 12)], &[1])]);
        assert_eq!((doubles.copies, doubles.recorded), (1, BTreeSet::from([1])));
    }

    #[test]
    fn two_copies_in_one_life_are_told() {
        let load = Load { several_one_in: u64::MAX, ..Load::mixed(7) };
        let first = check(&load, &[(&[(1, 2, 8)], &[])]);
        assert_eq!((first.copies, first.in_one_life), (1, BTreeSet::from([1])));
        let later = check(&load, &[(&[(1, 1, 8)], &[]), (&[(1, 3, 12)], &[])]);
        assert_eq!((later.copies, later.copies_max, later.in_one_life), (2, 2, BTreeSet::from([1])));
    }

    #[test]
    fn a_message_to_several_may_come_singly_until_recorded() {
        let load = Load { several_one_in: 1, ..Load::mixed(7) };
        let number = (0..).find(|number| load.recipients(*number).len() > 1).unwrap();
        let doubles = check(&load, &[(&[(number, 2, 8)], &[]), (&[(number, 3, 12)], &[number])]);
        assert!((doubles.copies, doubles.recorded.len(), doubles.in_one_life.len()) == (0, 0, 0), "{doubles:?}");
        let doubles = check(&load, &[(&[(number, 2, 8)], &[number]), (&[(number, 3, 12)], &[number])]);
        assert_eq!(doubles.recorded, BTreeSet::from([number]));
    }
}
