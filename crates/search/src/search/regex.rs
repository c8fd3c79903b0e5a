//! Regular expressions: a header field is matched whole, the text of a message word by word, since it is not stored.
//!
//! Nothing is matched once for each message. A field has a dictionary of its distinct values, the text one of its distinct words; the expression is
//! tried on each entry once, and what uses an entry that fits is found by its number.

use std::sync::atomic::{AtomicUsize, Ordering};

use regex::Regex;
use tantivy::columnar::StrColumn;
use tantivy::schema::{Field, IndexRecordOption};

use super::{Bitmap, Result, Searcher, Segment};
use crate::query::{Pattern, TextField};
use crate::text::fold;

impl Searcher {
    pub(super) fn regex(&self, field: TextField, pattern: &Pattern) -> Result<Bitmap> {
        let Pattern::Matches(regex) = pattern else { return self.words(field, pattern_text(pattern), false) };
        let mut found = Bitmap::empty(self.len());
        let body = self.text.fields.body;
        for field in self.fields_of(field).into_iter().filter(|field| *field != body) {
            for segment in &self.segments {
                self.values(segment, field, regex, &mut found).map_err(|error| self.fail(error))?;
            }
        }
        if matches!(field, TextField::Body | TextField::Any) {
            found.or(&self.body_words(regex)?);
        }
        Ok(found)
    }

    fn values(&self, segment: &Segment, field: Field, regex: &Regex, found: &mut Bitmap) -> tantivy::Result<()> {
        let schema = self.text.index.schema();
        let documents = segment.reader.max_doc();
        let Some(column) = segment.reader.fast_fields().str(schema.get_field_name(field))? else {
            if regex.is_match("") {
                (0..documents).for_each(|document| found.set(segment.number(document)));
            }
            return Ok(());
        };
        let fitting = fitting_values(&column, regex)?;
        let empty_fits = regex.is_match("");
        for document in 0..documents {
            let mut values = column.ords().values_for_doc(document).peekable();
            let fits = match values.peek() {
                None => empty_fits,
                Some(_) => values.any(|value| fitting.get(u32::try_from(value).unwrap_or(u32::MAX))),
            };
            if fits {
                found.set(segment.number(document));
            }
        }
        Ok(())
    }

    /// Messages with a word in their text that fits. The dictionary is cut in pieces that all cores share.
    fn body_words(&self, regex: &Regex) -> Result<Bitmap> {
        let start = literal_start(regex.as_str());
        let ends = if start.is_empty() { PIECES } else { &[] };
        let pieces: Vec<(&Segment, usize)> =
            self.segments.iter().flat_map(|segment| (0..=ends.len()).map(move |piece| (segment, piece))).collect();
        let taken = AtomicUsize::new(0);
        let work = || -> tantivy::Result<Bitmap> {
            let mut found = Bitmap::empty(self.len());
            while let Some((segment, piece)) = pieces.get(taken.fetch_add(1, Ordering::Relaxed)) {
                let from = piece.checked_sub(1).map_or(start.as_str(), |before| ends[before]);
                self.piece(segment, (from, ends.get(*piece).copied(), &start), regex, &mut found)?;
            }
            Ok(found)
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
        let parts: Vec<tantivy::Result<Bitmap>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..cores).map(|_| scope.spawn(work)).collect();
            let mine = work();
            let joined =
                others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.chain(std::iter::once_with(|| mine)).collect()
        });
        let mut found = Bitmap::empty(self.len());
        for part in parts {
            found.or(&part.map_err(|error| self.fail(error))?);
        }
        Ok(found)
    }

    /// The words from the first on, before the second, that begin with the third.
    fn piece(
        &self,
        segment: &Segment,
        (from, to, start): (&str, Option<&str>, &str),
        regex: &Regex,
        found: &mut Bitmap,
    ) -> tantivy::Result<()> {
        let index = segment.reader.inverted_index(self.text.fields.body)?;
        let range = index.terms().range().ge(from);
        let mut stream = to.map_or_else(|| index.terms().range().ge(from), |to| range.lt(to)).into_stream()?;
        while let Some((term, info)) = stream.next() {
            if !term.starts_with(start.as_bytes()) {
                break;
            }
            if std::str::from_utf8(term).is_ok_and(|term| regex.is_match(term)) {
                segment.add_all(index.read_block_postings_from_terminfo(info, IndexRecordOption::Basic)?, found);
            }
        }
        Ok(())
    }
}

/// Where a dictionary of words is cut: mail has about as many words before `6` as between `6` and `c`, and so on.
const PIECES: &[&str] = &["3", "6", "a", "d", "h", "n", "s"];

/// Which of a column's distinct values fit, by their numbers.
fn fitting_values(column: &StrColumn, regex: &Regex) -> tantivy::Result<Bitmap> {
    let mut fitting = Bitmap::empty(u32::try_from(column.num_terms()).unwrap_or(u32::MAX));
    let mut values = column.dictionary().stream()?;
    let mut number = 0;
    while values.advance() {
        if fits(regex, values.key()) {
            fitting.set(number);
        }
        number += 1;
    }
    Ok(fitting)
}

/// The expression has no regard to case, so that text without accents need not be folded first.
fn fits(regex: &Regex, text: &[u8]) -> bool {
    std::str::from_utf8(text)
        .is_ok_and(|text| if text.is_ascii() { regex.is_match(text) } else { regex.is_match(&fold(text)) })
}

/// What every word that matches begins with, so that only those words need be looked at. May be shorter than it could be.
fn literal_start(pattern: &str) -> String {
    let Some(rest) = pattern.strip_prefix('^').filter(|rest| !rest.contains('|')) else { return String::new() };
    let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    // A repetition that may be none makes the letter before it optional.
    let is_optional = rest[length..].starts_with(['*', '?', '{']);
    rest[..length - usize::from(is_optional && length > 0)].to_ascii_lowercase()
}

fn pattern_text(pattern: &Pattern) -> &str {
    match pattern {
        Pattern::Is(text) | Pattern::StartsWith(text) => text,
        Pattern::Matches(regex) => regex.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchored_expression_tells_how_words_begin() {
        let cases = [
            ("^lm9[0-9]$", "lm9"),
            ("^AB*c", "a"),
            ("^ab+", "ab"),
            ("^a{0,2}b", ""),
            ("^a|b", ""),
            ("ab", ""),
            ("^", ""),
            ("^a?", ""),
        ];
        for (pattern, start) in cases {
            assert_eq!(literal_start(pattern), start, "{pattern}");
        }
    }
}
