//! Sets of LSNs, compact for dense and for sparse content.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A set of LSNs, in words of 64 bits; zero words are not stored. Ten million consecutive LSNs take about 4 MB; an
/// isolated one takes one map entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LsnSet {
    words: BTreeMap<u64, u64>,
}

impl LsnSet {
    pub fn len(&self) -> u64 {
        self.words.values().map(|word| u64::from(word.count_ones())).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub fn contains(&self, lsn: u64) -> bool {
        self.words.get(&(lsn / 64)).is_some_and(|word| word >> (lsn % 64) & 1 == 1)
    }

    /// Inserts; true if it was not there before.
    pub fn insert(&mut self, lsn: u64) -> bool {
        let word = self.words.entry(lsn / 64).or_default();
        let is_new = *word >> (lsn % 64) & 1 == 0;
        *word |= 1 << (lsn % 64);
        is_new
    }

    /// Removes; true if it was there.
    pub fn remove(&mut self, lsn: u64) -> bool {
        let Some(word) = self.words.get_mut(&(lsn / 64)) else { return false };
        let was_there = *word >> (lsn % 64) & 1 == 1;
        *word &= !(1 << (lsn % 64));
        if *word == 0 {
            self.words.remove(&(lsn / 64));
        }
        was_there
    }

    /// Takes out all LSNs of a range, and returns them as a set.
    pub fn take(&mut self, range: RangeInclusive<u64>) -> LsnSet {
        let taken = LsnSet { words: self.words_in(range).collect() };
        for (key, word) in &taken.words {
            let left = self.words.get_mut(key).expect("it was just seen");
            *left &= !word;
            if *left == 0 {
                self.words.remove(key);
            }
        }
        taken
    }

    pub fn first(&self) -> Option<u64> {
        self.words.first_key_value().map(|(key, word)| key * 64 + u64::from(word.trailing_zeros()))
    }

    pub fn last(&self) -> Option<u64> {
        self.words.last_key_value().map(|(key, word)| key * 64 + 63 - u64::from(word.leading_zeros()))
    }

    /// The LSNs of a range that are not in `other`.
    pub fn without(&self, other: &LsnSet, range: RangeInclusive<u64>) -> LsnSet {
        let mut left = LsnSet::default();
        for (key, word) in self.words_in(range) {
            left.insert_word(key, word & !other.words.get(&key).copied().unwrap_or(0));
        }
        left
    }

    /// The lowest LSN in a range.
    pub fn first_in(&self, range: RangeInclusive<u64>) -> Option<u64> {
        self.iter(range).next()
    }

    /// The LSNs of a range, in order.
    pub fn iter(&self, range: RangeInclusive<u64>) -> impl Iterator<Item = u64> + '_ {
        self.words_in(range).flat_map(|(key, word)| bits(word).map(move |bit| key * 64 + bit))
    }

    /// The non-zero words of a range with their numbers; bits outside the range are cleared.
    pub fn words_in(&self, range: RangeInclusive<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (first, last) = range.into_inner();
        // An empty range ends before it begins; a map would panic on it.
        let keys = if first <= last { first / 64..=last / 64 } else { 0..=0 };
        let masked = move |(key, word): (&u64, &u64)| {
            let mut word = *word;
            if first > last {
                word = 0;
            }
            if *key == first / 64 {
                word &= u64::MAX << (first % 64);
            }
            if *key == last / 64 {
                word &= u64::MAX >> (63 - last % 64);
            }
            (word != 0).then_some((*key, word))
        };
        self.words.range(keys).filter_map(masked)
    }

    /// Inserts a word returned by [`words_in`](Self::words_in).
    pub fn insert_word(&mut self, key: u64, word: u64) {
        if word != 0 {
            *self.words.entry(key).or_default() |= word;
        }
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = u64::from(word.trailing_zeros());
            word &= word - 1;
            bit
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0u64..300), 0..200),
            (first, last) in (0u64..300, 0u64..300),
        ) {
            let (mut set, mut model) = (LsnSet::default(), BTreeSet::new());
            for (insert, lsn) in steps {
                if insert {
                    prop_assert_eq!(set.insert(lsn), model.insert(lsn));
                } else {
                    prop_assert_eq!(set.remove(lsn), model.remove(&lsn));
                }
                prop_assert_eq!((set.first(), set.last()), (model.first().copied(), model.last().copied()));
            }
            let expected: Vec<u64> = model.iter().copied().filter(|lsn| (first..=last).contains(lsn)).collect();
            prop_assert_eq!(set.first_in(first..=last), expected.first().copied());
            prop_assert_eq!(set.iter(first..=last).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(set.len(), model.len() as u64);
            let mut rest = set.clone();
            let taken = rest.take(first..=last);
            prop_assert_eq!(taken.iter(0..=u64::MAX).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(rest.len() + taken.len(), set.len());
            prop_assert_eq!(rest.first_in(first..=last), None);
            prop_assert_eq!(&set.without(&rest, first..=last), &taken);
            let mut copy = LsnSet::default();
            set.words_in(0..=u64::MAX).for_each(|(key, word)| copy.insert_word(key, word));
            prop_assert_eq!(copy, set);
        }
    }
}
