//! Sets of message numbers and UIDs (RFC 3501 section 9, `sequence-set`).

use std::ops::RangeInclusive;

use crate::command::ImapCommandError;
use crate::lex::Cursor;

/// One end of a range: a number from 1, or `*`, the largest in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeqNo {
    /// A message number or a UID; never 0.
    Number(u32),
    /// `*`
    Largest,
    /// `$`: the messages saved by a search (RFC 5182). Not combined with others.
    Saved,
}

/// Ranges as written by the client; a single number is a range. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceSet(pub Vec<(SeqNo, SeqNo)>);

/// Numbers as ordered ranges that neither touch nor overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumberSet(Vec<RangeInclusive<u32>>);

impl SequenceSet {
    /// Numbers of the set, with `largest` for `*`. With 0 there is no message, and a range with `*` is empty.
    pub fn resolve(&self, largest: u32) -> NumberSet {
        let number = |end: SeqNo| match end {
            SeqNo::Number(number) => number,
            SeqNo::Largest | SeqNo::Saved => largest,
        };
        let ranges =
            self.0.iter().filter(|&&(first, last)| largest > 0 || first != SeqNo::Largest && last != SeqNo::Largest);
        let ranges = ranges.filter(|(first, _)| *first != SeqNo::Saved);
        let ranges = ranges.map(|&(first, last)| {
            let first = number(first);
            let last = number(last);
            first.min(last)..=first.max(last)
        });
        NumberSet::from_ranges(ranges.collect())
    }

    /// True for `$`, the saved messages.
    pub fn is_saved(&self) -> bool {
        self.0 == [(SeqNo::Saved, SeqNo::Saved)]
    }

    /// True if the set contains a message number beyond `exists`. A range with `*` never does: clients send `1:*` after
    /// every SELECT, even of an empty mailbox.
    pub fn is_beyond(&self, exists: u32) -> bool {
        self.0.iter().any(|&(first, last)| match (first, last) {
            (SeqNo::Number(first), SeqNo::Number(last)) => first.max(last) > exists,
            _ => false,
        })
    }
}

impl NumberSet {
    /// Sorts ranges and joins adjacent ones.
    pub fn from_ranges(mut ranges: Vec<RangeInclusive<u32>>) -> Self {
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u32>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    /// Adds a number larger than all in the set.
    ///
    /// # Panics
    /// If the number is not larger.
    pub fn push(&mut self, number: u32) {
        match self.0.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(number) => *last = *last.start()..=number,
            last => {
                assert!(last.is_none_or(|last| *last.end() < number), "{number} is not above the others");
                self.0.push(number..=number);
            }
        }
    }

    /// The `sequence-set` or `uid-set` on the wire; empty without numbers.
    pub(crate) fn text(&self) -> String {
        let ranges = self.0.iter().map(|range| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}:{last}"),
        });
        ranges.collect::<Vec<_>>().join(",")
    }

    /// The ranges in ascending order.
    pub fn ranges(&self) -> &[RangeInclusive<u32>] {
        &self.0
    }

    /// Count of numbers in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|range| u64::from(range.end() - range.start()) + 1).sum()
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `number` is in the set.
    pub fn contains(&self, number: u32) -> bool {
        let at = self.0.partition_point(|range| *range.end() < number);
        self.0.get(at).is_some_and(|range| range.contains(&number))
    }

    /// The intersection.
    pub fn common(&self, other: &Self) -> Self {
        let mut common = Vec::new();
        let mut at = 0;
        for range in &self.0 {
            while other.0.get(at).is_some_and(|other| other.end() < range.start()) {
                at += 1;
            }
            let within = other.0[at..].iter().take_while(|other| other.start() <= range.end());
            common.extend(within.map(|other| *other.start().max(range.start())..=*other.end().min(range.end())));
        }
        Self(common)
    }

    /// Splits the set into sets of at most `ranges_max` ranges.
    pub(crate) fn pieces(&self, ranges_max: usize) -> impl Iterator<Item = Self> {
        self.0.chunks(ranges_max).map(|ranges| Self(ranges.to_vec()))
    }

    /// The least number.
    pub fn first(&self) -> Option<u32> {
        self.0.first().map(|range| *range.start())
    }

    /// The largest number.
    pub fn last(&self) -> Option<u32> {
        self.0.last().map(|range| *range.end())
    }
}

/// Parses a `sequence-set`; the command's length bounds its numbers.
pub(crate) fn sequence_set(cursor: &mut Cursor<'_>) -> Result<SequenceSet, ImapCommandError> {
    if cursor.take(b'$') {
        return Ok(SequenceSet(vec![(SeqNo::Saved, SeqNo::Saved)]));
    }
    let end = |cursor: &mut Cursor<'_>| {
        if cursor.take(b'*') { Ok(SeqNo::Largest) } else { cursor.nonzero().map(SeqNo::Number) }
    };
    let mut ranges = Vec::new();
    loop {
        let first = end(cursor)?;
        let last = if cursor.take(b':') { end(cursor)? } else { first };
        ranges.push((first, last));
        if !cursor.take(b',') {
            return Ok(SequenceSet(ranges));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u32, u32)]) -> SequenceSet {
        let end = |number| if number == 0 { SeqNo::Largest } else { SeqNo::Number(number) };
        SequenceSet(ranges.iter().map(|&(first, last)| (end(first), end(last))).collect())
    }

    fn check(ranges: &[(u32, u32)], largest: u32, expected: &[RangeInclusive<u32>]) {
        assert_eq!(set(ranges).resolve(largest).ranges(), expected, "{ranges:?} of {largest}");
    }

    #[test]
    fn stars_stand_for_the_largest_number() {
        check(&[(1, 0)], 7, &[1..=7]);
        check(&[(0, 0)], 7, &[7..=7]);
        // Decision 56: `n:*` always has the last message.
        check(&[(100, 0)], 7, &[7..=100]);
        check(&[(0, 1)], 7, &[1..=7]);
        check(&[(1, 0), (0, 0)], 0, &[]);
        check(&[(3, 3), (1, 2), (5, 4), (9, 9)], 7, &[1..=5, 9..=9]);
        check(&[(1, u32::MAX), (7, 7)], 7, &[1..=u32::MAX]);
    }

    #[test]
    fn numbers_beyond_the_last_are_seen() {
        assert!(set(&[(1, 8)]).is_beyond(7) && set(&[(8, 8)]).is_beyond(7));
        assert!(!set(&[(1, 7)]).is_beyond(7) && !set(&[(8, 0)]).is_beyond(7) && !set(&[(1, 0)]).is_beyond(0));
    }

    #[test]
    fn sets_have_numbers_in_common() {
        let set = |ranges: &[RangeInclusive<u32>]| NumberSet::from_ranges(ranges.to_vec());
        let (one, other) = (set(&[1..=5, 8..=8, 20..=u32::MAX]), set(&[3..=4, 5..=9, 30..=30, 40..=50]));
        let expected = set(&[3..=5, 8..=8, 30..=30, 40..=50]);
        assert_eq!((one.common(&other), other.common(&one)), (expected.clone(), expected));
        assert!(one.common(&NumberSet::default()).is_empty());
        let pieces: Vec<String> = one.pieces(2).map(|piece| piece.text()).collect();
        assert_eq!(pieces, ["1:5,8", "20:4294967295"]);
    }

    #[test]
    fn numbers_are_found_and_counted() {
        let mut numbers = NumberSet::default();
        for number in [1, 2, 3, 7, 9, 10] {
            numbers.push(number);
        }
        assert_eq!(numbers.ranges(), &[1..=3, 7..=7, 9..=10]);
        assert_eq!((numbers.text().as_str(), NumberSet::default().text().as_str()), ("1:3,7,9:10", ""));
        assert_eq!((numbers.len(), numbers.first(), numbers.last()), (6, Some(1), Some(10)));
        assert!(numbers.contains(7) && numbers.contains(2) && !numbers.contains(8) && !numbers.contains(11));
    }
}
