//! Incremental threading: threads of the messages that came or went, and of all connected ones.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::indexer::{Indexer, Unthreaded};
use crate::state::{Record, bits};
use crate::threads::{Item, SubjectRule, thread};

impl Indexer {
    /// Brings threads up to date. Writes only what changed.
    pub(super) fn thread(&mut self) {
        let concerned = concerned(self.state.records(), &std::mem::take(&mut self.unthreaded));
        for (number, place) in places(self.state.records(), concerned) {
            let record = &self.state.records()[number as usize];
            if (record.thread, record.parent) != (place.thread, place.parent) {
                let record = self.state.change(number);
                (record.thread, record.parent) = (place.thread, place.parent);
            }
        }
    }
}

/// Threads these messages, a set closed under sharing a thread.
fn places(records: &[Record], mut numbers: Vec<u32>) -> Vec<(u32, crate::threads::ThreadPlace)> {
    // Numbers depend on the order of arrival. The result must not, but for the names of threads.
    numbers.sort_unstable_by_key(|&number| (records[number as usize].date, records[number as usize].digest, number));
    let item = |&number: &u32| {
        let record = &records[number as usize];
        Item {
            number,
            id: record.id,
            references: &record.references,
            subject: record.subject,
            is_reply: record.flags & bits::REPLY != 0,
            date: record.date,
        }
    };
    let items: Vec<Item<'_>> = numbers.iter().map(item).collect();
    let places = thread(&items, SubjectRule::default());
    numbers.into_iter().zip(places).collect()
}

/// Messages whose place may change because these came or went: all connected through shared ids or subjects,
/// transitively.
///
/// This is a superset of their threads and still exact, since threading joins by equal ids and equal subjects only.
/// Each further step of the relation takes one pass over all messages, a few milliseconds for a hundred thousand.
fn concerned(records: &[Record], changed: &Unthreaded) -> Vec<u32> {
    let alive = |record: &Record| record.flags & bits::GONE == 0;
    let Unthreaded { numbers: changed, gone } = changed;
    if changed.len() + gone.len() > records.len() / 8 {
        return (0u32..).zip(records).filter(|(_, record)| alive(record)).map(|(number, _)| number).collect();
    }
    let mut keys = Keys::default();
    for record in changed.iter().map(|&number| &records[number as usize]).chain(gone) {
        keys.add(record);
    }
    let mut is_in = vec![false; records.len()];
    let mut all = Vec::new();
    let mut grown = !changed.is_empty() || !gone.is_empty();
    while grown {
        grown = false;
        for (number, record) in (0u32..).zip(records) {
            if !is_in[number as usize] && alive(record) && keys.has_any(record) {
                is_in[number as usize] = true;
                all.push(number);
                grown |= keys.add(record);
            }
        }
    }
    // A message without id, references and subject has no key, and is a thread of its own.
    all.extend(changed.iter().filter(|&&number| !is_in[number as usize] && alive(&records[number as usize])));
    all
}

/// Hashes of ids and subjects.
#[derive(Default)]
struct Keys {
    ids: HashSet<u64, BuildHasherDefault<IdentityHasher>>,
    subjects: HashSet<u64, BuildHasherDefault<IdentityHasher>>,
}

impl Keys {
    /// Adds the message's keys. True if one of them is new.
    fn add(&mut self, record: &Record) -> bool {
        let mut new = record.id != 0 && self.ids.insert(record.id);
        for &id in &record.references {
            new |= self.ids.insert(id);
        }
        new | (record.subject != 0 && self.subjects.insert(record.subject))
    }

    fn has_any(&self, record: &Record) -> bool {
        self.ids.contains(&record.id)
            || self.subjects.contains(&record.subject)
            || record.references.iter().any(|id| self.ids.contains(id))
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Records with few ids and subjects, so that they collide.
    fn records() -> impl Strategy<Value = Vec<Record>> {
        let record = (
            0..12u64,
            prop::collection::vec(1..12u64, 0..3),
            0..6u64,
            any::<bool>(),
            0..400i64,
            prop::bool::weighted(0.1),
        );
        prop::collection::vec(record, 8..60).prop_map(|rows| {
            let record = |(id, references, subject, reply, day, gone): (u64, Vec<u64>, u64, bool, i64, bool)| Record {
                id,
                references,
                subject,
                date: day * 86_400,
                flags: if reply { bits::REPLY } else { 0 } | if gone { bits::GONE } else { 0 },
                ..Record::default()
            };
            rows.into_iter().map(record).collect()
        })
    }

    fn settle(records: &mut [Record], numbers: Vec<u32>) {
        for (number, place) in places(records, numbers) {
            (records[number as usize].thread, records[number as usize].parent) = (place.thread, place.parent);
        }
    }

    proptest! {
        #[test]
        fn threading_the_concerned_is_threading_all(mut records in records(), goes in 0..8usize) {
            let alive = |records: &[Record]| -> Vec<u32> {
                (0u32..).zip(records).filter(|(_, record)| record.flags & bits::GONE == 0).map(|(n, _)| n).collect()
            };
            // The last one has just come, another one goes.
            let last = records.len() - 1;
            let (old, all) = (alive(&records[..last]), alive(&records));
            settle(&mut records, old);
            let gone = std::mem::replace(&mut records[goes], Record { flags: bits::GONE, ..Record::default() });
            let mut whole = records.clone();
            settle(&mut whole, all.into_iter().filter(|&number| number as usize != goes).collect());
            let part = concerned(&records, &Unthreaded { numbers: vec![last as u32], gone: vec![gone] });
            settle(&mut records, part);
            records.iter().zip(&whole).filter(|(record, _)| record.flags & bits::GONE == 0).for_each(|(a, b)| assert_eq!(a, b));
        }
    }
}
