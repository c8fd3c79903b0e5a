//! Sorting and paging of results.

use std::cmp::{Ordering, Reverse};
use std::sync::OnceLock;

use super::messages::ROWS_IN_COLUMN;
use super::searcher::Searcher;
use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::state::{Column, bits};
use crate::text_index::Head;
use posthaste_text::fold;

/// Sort key of hits. Ties are broken by message number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Newest first. Messages without a readable date come last in both directions.
    #[default]
    Date,
    /// Largest first.
    Size,
    /// By subject without `Re:`, folded.
    Subject,
    /// By sender, folded.
    From,
}

impl Searcher {
    /// Returns a page of the result. Sorts only as much as the page needs.
    ///
    /// # Errors
    /// [`IndexError::State`](crate::IndexError::State), [`IndexError::Text`](crate::IndexError::Text).
    pub fn page(&self, found: &Bitmap, sort: Sort, reverse: bool, offset: usize, limit: usize) -> Result<Vec<u32>> {
        match sort {
            Sort::Date => self.newest(found, reverse, offset, limit),
            Sort::Size => self.greatest(found, &self.columns.size, Column::Size, reverse, offset, limit),
            Sort::Subject | Sort::From => {
                let numbers: Vec<u32> = found.iter().collect();
                let heads = self.heads(&numbers)?;
                let text = |head: &Head| match sort {
                    Sort::From => fold(&head.from),
                    _ => fold(&posthaste_text::base_subject(&head.subject).text),
                };
                let keys = heads.iter().map(text).zip(numbers);
                Ok(numbers_of(page_of(keys, reverse, offset, limit)))
            }
        }
    }

    fn newest(&self, found: &Bitmap, reverse: bool, offset: usize, limit: usize) -> Result<Vec<u32>> {
        // The times of their files say when they were copied here, which may be today.
        let is_undated = |flags: u64| (flags & bits::UNDATED != 0) != reverse;
        let undated = self.directory().undated;
        if undated > UNDATED_FEW {
            let dates = self.wide(&self.columns.date, Column::Date)?;
            let flags = self.flags()?;
            let key = |number: u32| {
                let at = number as usize;
                ((is_undated(flags[at]), Reverse(dates[at].cast_signed())), number)
            };
            return Ok(numbers_of(page_of(found.iter().map(key), reverse, offset, limit)));
        }
        if undated == 0 {
            return self.greatest(found, &self.columns.date, Column::Date, reverse, offset, limit);
        }
        // This many more cover all messages with a date that the page needs.
        let count = offset.saturating_add(limit).saturating_add(undated as usize);
        let first = self.greatest(found, &self.columns.date, Column::Date, reverse, 0, count)?;
        let mut keys = Vec::with_capacity(first.len());
        for number in first {
            let flags = self.snapshot.value(Column::Flags, number)?;
            let date = self.wide_value(&self.columns.date, Column::Date, number)?;
            keys.push(((is_undated(flags), Reverse(date.cast_signed())), number));
        }
        Ok(numbers_of(page_of(keys.into_iter(), reverse, offset, limit)))
    }

    /// Sorts by a column of signed values, which is read whole only for many messages.
    fn greatest(
        &self,
        found: &Bitmap,
        cell: &OnceLock<Vec<u64>>,
        column: Column,
        reverse: bool,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<u32>> {
        let key = |value: u64, number| (Reverse(value.cast_signed()), number);
        let mut page = Page::new(reverse, offset, limit);
        match cell.get() {
            Some(values) => found.iter().for_each(|number| page.add(key(values[number as usize], number))),
            // Not kept: memory that a process touches for the first time costs more than what is read into it.
            None if found.count() as usize > self.len() as usize / ROWS_IN_COLUMN => {
                self.snapshot.for_each_wide(column, |first, values| {
                    for (number, value) in (first..).zip(values) {
                        let key = key(u64::from_le_bytes(*value), number);
                        // Most messages are older than those already on the page.
                        if page.wants(&key) && found.get(number) {
                            page.keep(key);
                        }
                    }
                })?;
            }
            None => {
                for number in found.iter() {
                    page.add(key(self.wide_value(cell, column, number)?, number));
                }
            }
        }
        Ok(numbers_of(page.sorted()))
    }

    fn wide_value(&self, cell: &OnceLock<Vec<u64>>, column: Column, number: u32) -> Result<u64> {
        match cell.get() {
            Some(values) => Ok(values[number as usize]),
            None => Ok(self.snapshot.value(column, number)?),
        }
    }
}

/// With more undated messages than this, the flags of all messages are read to find them.
const UNDATED_FEW: u64 = 100;

fn numbers_of<K>(keys: Vec<(K, u32)>) -> Vec<u32> {
    keys.into_iter().map(|(_, number)| number).collect()
}

/// Returns a page of the sorted keys.
pub(super) fn page_of<K: Ord>(keys: impl Iterator<Item = K>, reverse: bool, offset: usize, limit: usize) -> Vec<K> {
    let mut page = Page::new(reverse, offset, limit);
    keys.for_each(|key| page.add(key));
    page.sorted()
}

/// A page under construction. Each key is seen once, and about twice the page's length is kept at a time.
struct Page<K> {
    reverse: bool,
    offset: usize,
    end: usize,
    kept: Vec<K>,
    /// True once there are enough keys: then the last one marks the end of the page.
    is_cut: bool,
}

impl<K: Ord> Page<K> {
    fn new(reverse: bool, offset: usize, limit: usize) -> Self {
        Self { reverse, offset, end: offset.saturating_add(limit), kept: Vec::new(), is_cut: false }
    }

    #[inline]
    fn compare(reverse: bool, a: &K, b: &K) -> Ordering {
        if reverse { b.cmp(a) } else { a.cmp(b) }
    }

    #[inline]
    fn wants(&self, key: &K) -> bool {
        !self.is_cut || Self::compare(self.reverse, key, &self.kept[self.end - 1]).is_lt()
    }

    #[inline]
    fn add(&mut self, key: K) {
        if self.wants(&key) {
            self.keep(key);
        }
    }

    fn keep(&mut self, key: K) {
        if self.end == 0 {
            return;
        }
        self.kept.push(key);
        if self.kept.len() == self.end.saturating_mul(2).max(KEPT_MIN) {
            self.kept.select_nth_unstable_by(self.end - 1, |a, b| Self::compare(self.reverse, a, b));
            self.kept.truncate(self.end);
            self.is_cut = true;
        }
    }

    fn sorted(mut self) -> Vec<K> {
        self.kept.sort_unstable_by(|a, b| Self::compare(self.reverse, a, b));
        self.kept.truncate(self.end);
        self.kept.drain(..self.offset.min(self.kept.len()));
        self.kept
    }
}

const KEPT_MIN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_part_of_the_sorted_whole() {
        let mut numbers: Vec<u32> = (0..3000).map(|n| n * 1_237 % 3001).collect();
        numbers.extend(2000..2500);
        for (offset, limit) in [(0, 3), (2, 3), (9, 5), (120, 9), (140, 140), (3490, 50), (4000, 5), (0, 5000), (0, 0)]
        {
            for reverse in [false, true] {
                let page = page_of(numbers.iter().copied(), reverse, offset, limit);
                let mut expected = numbers.clone();
                expected.sort_unstable();
                if reverse {
                    expected.reverse();
                }
                let expected: Vec<u32> = expected.into_iter().skip(offset).take(limit).collect();
                assert_eq!(page, expected, "{offset} {limit} {reverse}");
            }
        }
    }
}
