//! Words next to each other of which the last may go on: `rye brea*`.
//!
//! There may be thousands of endings, so nothing is done anew for each of them: where the words before stand is found once, and each ending's
//! positions are compared with that.

use tantivy::postings::{Postings as _, SegmentPostings};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{DocSet as _, InvertedIndexReader, TERMINATED};

use super::terms::for_each_term;
use super::{Bitmap, Segment};

/// Where words end that stand next to each other: documents, ascending, and in each the positions behind the last word.
#[derive(Default)]
struct Places {
    documents: Vec<u32>,
    /// For each document the end of its positions.
    ends: Vec<usize>,
    positions: Vec<u32>,
}

impl Places {
    /// All places of a word.
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

    /// The places that `word` goes on from.
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

/// Adds the messages in which a word that begins with `start` follows the words `before`, of which there is at least one.
pub(super) fn add_with_ending(
    segment: &Segment,
    field: Field,
    before: &[String],
    start: &str,
    found: &mut Bitmap,
) -> tantivy::Result<()> {
    let index = segment.reader.inverted_index(field)?;
    let mut places: Option<Places> = None;
    for word in before {
        let Some(info) = index.terms().get(word)? else { return Ok(()) };
        let word = postings(&index, &info)?;
        places = Some(match places {
            None => Places::of(word),
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

fn postings(index: &InvertedIndexReader, info: &tantivy::postings::TermInfo) -> tantivy::Result<SegmentPostings> {
    Ok(index.read_postings_from_terminfo(info, IndexRecordOption::WithFreqsAndPositions)?)
}
