//! The order of what was found, and a page of it.

use std::collections::HashMap;

use super::{Bitmap, Result, Searcher};
use crate::state::{Column, bits};
use crate::text::fold;
use crate::text_index::Head;

/// What hits are ordered by. Ties are broken by message number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Newest first; last, in either direction, messages without a date that can be read.
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
    /// A page of what was found. Only as much is sorted as the page needs.
    ///
    /// # Errors
    /// [`IndexError::State`](crate::IndexError::State), [`IndexError::Text`](crate::IndexError::Text).
    pub fn page(&self, found: &Bitmap, sort: Sort, reverse: bool, offset: usize, limit: usize) -> Result<Vec<u32>> {
        let mut numbers: Vec<u32> = found.iter().collect();
        match sort {
            Sort::Date => {
                let dates = self.wide(&self.columns.date, Column::Date)?;
                let flags = self.flags()?;
                // Their files' times say when they were copied here, which may be today.
                let is_undated = |number: u32| (flags[number as usize] & bits::UNDATED != 0) != reverse;
                let date = |number: u32| std::cmp::Reverse(dates[number as usize].cast_signed());
                keep_page(&mut numbers, offset, limit, reverse, |number| (is_undated(number), date(number), number));
            }
            Sort::Size => {
                let sizes = self.wide(&self.columns.size, Column::Size)?;
                keep_page(&mut numbers, offset, limit, reverse, |number| {
                    (std::cmp::Reverse(sizes[number as usize]), number)
                });
            }
            Sort::Subject | Sort::From => {
                let heads = self.heads(&numbers)?;
                let text = |head: &Head| match sort {
                    Sort::From => fold(&head.from),
                    _ => fold(&crate::text::base_subject(&head.subject).text),
                };
                let keys: HashMap<u32, String> = numbers.iter().copied().zip(heads.iter().map(text)).collect();
                numbers.sort_by(|a, b| (&keys[a], a).cmp(&(&keys[b], b)));
                if reverse {
                    numbers.reverse();
                }
                numbers = numbers.into_iter().skip(offset).take(limit).collect();
            }
        }
        Ok(numbers)
    }
}

pub(super) fn keep_page<K: Ord>(
    numbers: &mut Vec<u32>,
    offset: usize,
    limit: usize,
    reverse: bool,
    key: impl Fn(u32) -> K,
) {
    let compare = |a: &u32, b: &u32| {
        let order = key(*a).cmp(&key(*b));
        if reverse { order.reverse() } else { order }
    };
    let end = offset.saturating_add(limit).min(numbers.len());
    if end < numbers.len() && end > 0 {
        numbers.select_nth_unstable_by(end - 1, compare);
    }
    numbers.truncate(end);
    numbers.sort_unstable_by(compare);
    numbers.drain(..offset.min(end));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_part_of_the_sorted_whole() {
        for (offset, limit) in [(0, 3), (2, 3), (9, 5), (20, 5), (0, 100), (0, 0)] {
            let mut numbers: Vec<u32> = vec![5, 3, 9, 1, 7, 0, 2, 8, 6, 4];
            keep_page(&mut numbers, offset, limit, true, |n| n);
            let expected: Vec<u32> = (0..10).rev().skip(offset).take(limit).collect();
            assert_eq!(numbers, expected);
        }
    }
}
