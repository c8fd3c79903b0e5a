//! One segment of the text index: its documents and the numbers of their messages.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tantivy::SegmentReader;
use tantivy::columnar::ColumnValues;

use crate::text_index::TextIndex;

pub(super) struct Segment {
    pub reader: SegmentReader,
    pub column: Arc<dyn ColumnValues<u64>>,
    /// The whole column, loaded once a search needs most of it: common words and phrases read it several times.
    pub numbers: OnceLock<Box<[u32]>>,
}

pub(super) fn open_text(dir: &Path) -> tantivy::Result<(TextIndex, Vec<Segment>)> {
    let text = TextIndex::open_to_search(dir)?;
    let segment = |reader: SegmentReader| {
        let column = reader.fast_fields().u64("number")?.values;
        Ok(Segment { reader, column, numbers: OnceLock::new() })
    };
    let segments: tantivy::Result<Vec<Segment>> = text.segments()?.into_iter().map(segment).collect();
    Ok((text, segments?))
}

impl Segment {
    /// The document with this number, if documents are sorted by number.
    pub fn document_of(&self, number: u32) -> Option<u32> {
        let mut from = 0;
        let mut to = self.reader.max_doc();
        if !(self.column.min_value()..=self.column.max_value()).contains(&u64::from(number)) {
            return None;
        }
        while from < to {
            let middle = from + (to - from) / 2;
            match self.column.get_val(middle).cmp(&u64::from(number)) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Some(middle),
                Ordering::Greater => to = middle,
            }
        }
        None
    }

    /// The documents with these sorted numbers, with the places given beside them.
    pub fn documents_of(&self, wanted: &[(u32, usize)]) -> Vec<(u32, usize)> {
        let (Some((first, _)), Some((last, _))) = (wanted.first(), wanted.last()) else { return Vec::new() };
        let mut found = Vec::new();
        self.for_each_number(|document, number| {
            if (first..=last).contains(&&number)
                && let Ok(at) = wanted.binary_search_by_key(&number, |(number, _)| *number)
            {
                found.push((document, wanted[at].1));
            }
        });
        found
    }

    pub fn for_each_number(&self, mut each: impl FnMut(u32, u32)) {
        (0..).zip(self.numbers()).for_each(|(document, &number)| each(document, number));
    }

    /// The number of each document.
    pub fn numbers(&self) -> &[u32] {
        self.numbers.get_or_init(|| {
            let mut numbers = vec![0; self.reader.max_doc() as usize];
            let mut some = [0; 256];
            for (first, part) in (0..).step_by(some.len()).zip(numbers.chunks_mut(some.len())) {
                let some = &mut some[..part.len()];
                self.column.get_range(first, some);
                part.iter_mut().zip(some).for_each(|(number, value)| *number = number_of(*value));
            }
            numbers.into_boxed_slice()
        })
    }
}

pub(super) fn number_of(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
