//! Phrase search.
//!
//! Common words occur in nearly every message. So the engine's posting blocks of 128 messages are read in place, and a
//! word's positions for a whole block at once. A phrase with an open end (`rye brea*`) may have thousands of last
//! words. The positions of the words before it are found once and compared with each last word's.

use tantivy::directory::CompositeFile;
use tantivy::index::SegmentComponent;
use tantivy::positions::PositionReader;
use tantivy::postings::{BlockSegmentPostings, Postings as _, SegmentPostings, TermInfo};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{DocSet as _, InvertedIndexReader, TERMINATED};

use super::dictionary::for_each_term;
use super::scope::Scope;
use super::segment::Segment;
use crate::bitmap::Bitmap;

/// Adds the messages in which these words follow each other, as far as the scope asks.
pub(super) fn add_phrase(
    segment: &Segment,
    field: Field,
    words: &[String],
    scope: Scope<'_>,
    found: &mut Bitmap,
) -> tantivy::Result<()> {
    let index = segment.reader.inverted_index(field)?;
    let mut infos = Vec::with_capacity(words.len());
    for word in words {
        let Some(info) = index.terms().get(word)? else { return Ok(()) };
        infos.push(info);
    }
    if let Scope::Words(are_apart) = scope {
        are_apart.set(true);
        return add_with_all(segment, &index, &infos, found);
    }
    let positions = CompositeFile::open(&segment.reader.open_read(SegmentComponent::Positions)?)?.open_read(field);
    let Some(positions) = positions.filter(|_| !words.is_empty()) else { return Ok(()) };
    let word = |info: &TermInfo| -> tantivy::Result<Word> {
        let places = PositionReader::open(positions.read_bytes_slice(info.positions_range.clone())?)?;
        let block = index.read_block_postings_from_terminfo(info, IndexRecordOption::WithFreqs)?;
        Ok(Word::new(block, places, matches!(scope, Scope::Within(_))))
    };
    let mut words = infos.iter().map(word).collect::<tantivy::Result<Vec<Word>>>()?;
    let mut first = Vec::new();
    let mut ends = Vec::new();
    if let Scope::Within(these) = scope {
        segment.for_each_number(|document, number| {
            if these.get(number)
                && words.iter_mut().all(|word| word.seek(document) == Some(document))
                && are_together(&mut words, &mut first, &mut ends)
            {
                found.set(number);
            }
        });
        return Ok(());
    }
    let mut document = 0;
    while let Some(common) = common_document(&mut words, document) {
        if are_together(&mut words, &mut first, &mut ends) {
            found.set(segment.number(common));
        }
        document = common + 1;
    }
    Ok(())
}

/// Adds the messages that have all of these words.
fn add_with_all(
    segment: &Segment,
    index: &InvertedIndexReader,
    words: &[TermInfo],
    found: &mut Bitmap,
) -> tantivy::Result<()> {
    let mut all: Option<Bitmap> = None;
    for word in words {
        let mut with = found.none();
        segment.add_term(index, word, &mut with)?;
        match &mut all {
            None => all = Some(with),
            Some(all) => all.and(&with),
        }
    }
    all.iter().for_each(|all| found.or(all));
    Ok(())
}

/// True if the words follow each other in their common document. `first` and `ends` are scratch space, kept for reuse.
fn are_together(words: &mut [Word], first: &mut Vec<[u32; 8]>, ends: &mut Vec<u32>) -> bool {
    let [one, two, others @ ..] = words else { return true };
    if one.count() * two.count() <= PAIRS_MAX {
        eights_behind(one.gaps(), first);
        if !has_one_of(first, two.gaps()) {
            return false;
        }
        if others.is_empty() {
            return true;
        }
    }
    ends.clear();
    ends.extend(one.gaps().iter().scan(0, |position, gap| {
        *position += gap;
        Some(*position)
    }));
    follow(ends, two.gaps());
    others.iter_mut().for_each(|word| follow(ends, word.gaps()));
    !ends.is_empty()
}

/// Above this many pairs, positions are merged. Below, comparing all pairs is faster, since it has no mispredicted
/// branches: most words occur a few times in a message.
const PAIRS_MAX: usize = 1024;

/// Computes the positions one after these, eight at a time.
fn eights_behind(gaps: &[u32], eights: &mut Vec<[u32; 8]>) {
    eights.clear();
    let mut position = 1;
    for gaps in gaps.chunks(8) {
        // No position is as large as this.
        let mut eight = [u32::MAX; 8];
        for (behind, gap) in eight.iter_mut().zip(gaps) {
            position += gap;
            *behind = position;
        }
        eights.push(eight);
    }
}

fn has_one_of(eights: &[[u32; 8]], gaps: &[u32]) -> bool {
    let mut position = 0;
    let mut found = [0; 8];
    for gap in gaps {
        position += gap;
        for eight in eights {
            for (found, one) in found.iter_mut().zip(eight) {
                // All bits or none, as the processor has it when it compares several at once; one bit it would take apart.
                *found |= u32::from(*one == position).wrapping_neg();
            }
        }
    }
    found.iter().any(|found| *found != 0)
}

/// Moves all words to the first common document from `document` on.
fn common_document(words: &mut [Word], mut document: u32) -> Option<u32> {
    let mut agree = 0;
    while agree < words.len() {
        let found = words[agree].seek(document)?;
        agree = if found == document { agree + 1 } else { 0 };
        document = found;
    }
    Some(document)
}

/// Keeps the end positions that the next word follows, and moves them past it.
fn follow(ends: &mut Vec<u32>, gaps: &[u32]) {
    let mut at = 0;
    let mut kept = 0;
    let mut position = 0;
    for gap in gaps {
        position += gap;
        while ends.get(at).is_some_and(|end| end + 1 < position) {
            at += 1;
        }
        if ends.get(at).is_some_and(|end| end + 1 == position) {
            // Never beyond the compared positions: at most one is kept of each.
            ends[kept] = position;
            (at, kept) = (at + 1, kept + 1);
        }
    }
    ends.truncate(kept);
}

/// A word's postings, block after block.
struct Word {
    block: BlockSegmentPostings,
    /// Index of the document in the block, and number of positions of the documents before it.
    at: usize,
    start: usize,
    places: PositionReader,
    /// Positions before the block, and in it.
    before: u64,
    positions: usize,
    /// Positions of all documents of the block, if some were needed, as differences.
    gaps: Vec<u32>,
    /// True if few documents of a block are needed: then only theirs are read.
    is_sparse: bool,
}

impl Word {
    fn new(block: BlockSegmentPostings, places: PositionReader, is_sparse: bool) -> Self {
        let positions = positions_in(&block);
        Self { block, at: 0, start: 0, places, before: 0, positions, gaps: Vec::new(), is_sparse }
    }

    /// Advances to the first document at or after this one.
    #[inline]
    fn seek(&mut self, document: u32) -> Option<u32> {
        while *self.block.docs().last()? < document {
            self.before += self.positions as u64;
            self.block.advance();
            (self.at, self.start, self.positions) = (0, 0, positions_in(&self.block));
            self.gaps.clear();
        }
        let documents = &self.block.docs()[self.at..];
        let counts = self.block.freqs().get(self.at..)?;
        for (found, count) in documents.iter().zip(counts) {
            if *found >= document {
                return Some(*found);
            }
            self.start += *count as usize;
            self.at += 1;
        }
        None
    }

    /// Occurrences in the current document.
    fn count(&self) -> usize {
        self.block.freq(self.at) as usize
    }

    /// The positions in the document where it is.
    #[inline]
    fn gaps(&mut self) -> &[u32] {
        if self.is_sparse {
            self.gaps.resize(self.block.freq(self.at) as usize, 0);
            self.places.read(self.before + self.start as u64, &mut self.gaps);
            return &self.gaps;
        }
        if self.gaps.is_empty() {
            self.gaps.resize(self.positions, 0);
            self.places.read(self.before, &mut self.gaps);
        }
        &self.gaps[self.start..][..self.block.freq(self.at) as usize]
    }
}

fn positions_in(block: &BlockSegmentPostings) -> usize {
    block.freqs()[..block.block_len()].iter().map(|count| *count as usize).sum()
}

/// End positions of consecutive words: documents, ascending, each with the positions after the last word.
#[derive(Default)]
struct WordPositions {
    documents: Vec<u32>,
    /// End of each document's positions.
    ends: Vec<usize>,
    positions: Vec<u32>,
}

impl WordPositions {
    /// All occurrences of a word.
    fn of(mut word: SegmentPostings) -> Self {
        let mut places = Self::default();
        let mut positions = Vec::new();
        while word.doc() != TERMINATED {
            word.positions_with_offset(1, &mut positions);
            places.push(word.doc(), &positions);
            word.advance();
        }
        places
    }

    fn push(&mut self, document: u32, positions: &[u32]) {
        if !positions.is_empty() {
            self.positions.extend_from_slice(positions);
            self.documents.push(document);
            self.ends.push(self.positions.len());
        }
    }

    fn positions(&self, at: usize) -> &[u32] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.positions[start..self.ends[at]]
    }

    /// Calls `each` for the documents that also have `word`, with its positions there.
    fn meet(&self, mut word: SegmentPostings, mut each: impl FnMut(usize, &[u32])) {
        let mut positions = Vec::new();
        let mut at = 0;
        while let Some(&document) = self.documents.get(at) {
            let mut found = word.doc();
            if found < document {
                found = word.seek(document);
            }
            if found == TERMINATED {
                return;
            }
            if found == document {
                word.positions(&mut positions);
                each(at, &positions);
                at += 1;
            } else {
                at += self.documents[at..].partition_point(|&document| document < found);
            }
        }
    }

    /// The occurrences that `word` continues.
    fn then(&self, word: SegmentPostings) -> Self {
        let mut places = Self::default();
        self.meet(word, |at, positions| {
            let wanted = self.positions(at);
            let next: Vec<u32> =
                positions.iter().filter(|position| wanted.binary_search(position).is_ok()).map(|p| p + 1).collect();
            places.push(self.documents[at], &next);
        });
        places
    }
}

/// Adds the messages in which a word with the prefix `start` follows the words `before`, of which there is at least
/// one.
pub(super) fn add_with_ending(
    segment: &Segment,
    field: Field,
    before: &[String],
    start: &str,
    found: &mut Bitmap,
) -> tantivy::Result<()> {
    let index = segment.reader.inverted_index(field)?;
    let mut places: Option<WordPositions> = None;
    for word in before {
        let Some(info) = index.terms().get(word)? else { return Ok(()) };
        let word = postings(&index, &info)?;
        places = Some(match places {
            None => WordPositions::of(word),
            Some(places) => places.then(word),
        });
    }
    let Some(places) = places.filter(|places| !places.documents.is_empty()) else { return Ok(()) };
    let mut is_found = vec![false; places.documents.len()];
    for_each_term(index.terms(), start, |_, info| {
        places.meet(postings(&index, info)?, |at, positions| {
            let wanted = places.positions(at);
            is_found[at] |= positions.iter().any(|position| wanted.binary_search(position).is_ok());
        });
        Ok(())
    })?;
    for (&document, _) in places.documents.iter().zip(&is_found).filter(|(_, is_found)| **is_found) {
        found.set(segment.number(document));
    }
    Ok(())
}

fn postings(index: &InvertedIndexReader, info: &TermInfo) -> tantivy::Result<SegmentPostings> {
    Ok(index.read_postings_from_terminfo(info, IndexRecordOption::WithFreqsAndPositions)?)
}

#[cfg(test)]
mod tests {
    use posthaste_random::Random;

    use super::*;

    #[test]
    fn all_pairs_say_what_following_says() {
        let mut random = Random::new(9);
        let mut next = |bound: u64| random.below(bound);
        let (mut eights, mut found) = (Vec::new(), 0);
        for _ in 0..2000 {
            let mut gaps =
                |count: u64| (0..next(count)).map(|at| next(40) as u32 + u32::from(at > 0)).collect::<Vec<u32>>();
            let (one, two) = (gaps(20), gaps(9));
            let mut ends: Vec<u32> = one
                .iter()
                .scan(0, |position, gap| {
                    *position += gap;
                    Some(*position)
                })
                .collect();
            follow(&mut ends, &two);
            eights_behind(&one, &mut eights);
            assert_eq!(has_one_of(&eights, &two), !ends.is_empty(), "{one:?} {two:?}");
            found += usize::from(!ends.is_empty());
        }
        assert!((100..1900).contains(&found), "{found}");
    }

    #[test]
    fn what_follows_is_left() {
        let check = |ends: &[u32], gaps: &[u32], expected: &[u32]| {
            let mut ends = ends.to_vec();
            follow(&mut ends, gaps);
            assert_eq!(ends, expected);
        };
        check(&[0, 4, 5, 9], &[1, 4, 1, 5], &[1, 5, 6]);
        check(&[3], &[0, 1, 1], &[]);
        check(&[3], &[0, 4], &[4]);
        check(&[0, 1, 2], &[0, 1, 1, 1], &[1, 2, 3]);
        check(&[], &[1], &[]);
        check(&[1], &[], &[]);
    }
}
