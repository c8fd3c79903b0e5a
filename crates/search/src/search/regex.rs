//! Regular expressions. A header field is matched whole; the text of a message is not stored, so it is matched word by
//! word.
//!
//! The expression is tried once for each distinct value or word, not for each message. A header field has a dictionary
//! of its distinct values, and the text one of its distinct words. Messages with a matching entry are then found by the
//! entry's number.

use std::sync::atomic::{AtomicUsize, Ordering};

use tantivy::columnar::StrColumn;
use tantivy::directory::OwnedBytes;
use tantivy::postings::TermInfo;
use tantivy::schema::Field;

use super::dictionary::for_each_term;
use super::dictionary::{Dictionary, Found};
use super::matcher::Matcher;
use super::scope::Scope;
use super::searcher::Searcher;
use super::segment::Segment;
use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::parallel::on_threads;
use crate::query::{Pattern, TextField};

/// Unit of work of one thread.
enum Piece<'a> {
    /// The values of a header field.
    Values(&'a Segment, Field),
    Words(Words<'a>),
}

/// Words of the text.
struct Words<'a> {
    segment: &'a Segment,
    /// Shared-suffix index for a fast search; `None` if its format is unknown, so that the engine tries each word.
    dictionary: Option<&'a Dictionary<OwnedBytes>>,
    from: &'a str,
    before: Option<&'a str>,
}

impl Searcher {
    pub(super) fn regex(&self, field: TextField, pattern: &Pattern) -> Result<Bitmap> {
        self.regex_on(&self.fields_of(field), pattern)
    }

    pub(super) fn regex_on(&self, fields: &[Field], pattern: &Pattern) -> Result<Bitmap> {
        let matcher = match pattern {
            Pattern::Matches(regex) => Matcher::new(regex),
            Pattern::Is(text) => return self.words_of(fields, text, false, Scope::All),
            Pattern::StartsWith(text) => return self.words_of(fields, text, true, Scope::All),
        };
        let body = self.text.fields.body;
        let start = literal_start(matcher.as_str());
        // The whole dictionary is cut in pieces, so that all cores have something to do.
        let cuts = if start.is_empty() { CUTS } else { &[] };
        let open = |segment: &Segment| match matcher.tables() {
            Some(_) => Dictionary::open(&segment.reader, body),
            None => Ok(None),
        };
        let dictionaries: tantivy::Result<Vec<_>> = self.segments.iter().map(open).collect();
        let dictionaries = dictionaries.map_err(|error| self.fail(error))?;
        let mut pieces = Vec::new();
        for (segment, dictionary) in self.segments.iter().zip(&dictionaries) {
            for &field in fields {
                if field != body {
                    pieces.push(Piece::Values(segment, field));
                    continue;
                }
                for piece in 0..=cuts.len() {
                    let from = piece.checked_sub(1).map_or(start.as_str(), |before| cuts[before]);
                    let before = cuts.get(piece).copied();
                    pieces.push(Piece::Words(Words { segment, dictionary: dictionary.as_ref(), from, before }));
                }
            }
        }
        self.look_at(&pieces, &matcher, &start)
    }

    fn look_at(&self, pieces: &[Piece<'_>], matcher: &Matcher, start: &str) -> Result<Bitmap> {
        let taken = AtomicUsize::new(0);
        let take = || -> tantivy::Result<Bitmap> {
            let mut found = Bitmap::empty(self.len());
            while let Some(piece) = pieces.get(taken.fetch_add(1, Ordering::Relaxed)) {
                match piece {
                    Piece::Values(segment, field) => self.values(segment, *field, matcher, &mut found)?,
                    Piece::Words(words) => self.body_words(words, start, matcher, &mut found)?,
                }
            }
            Ok(found)
        };
        // Each thread needs its own guard.
        let work = || self.guarded(|| take().map_err(|error| self.fail(error)));
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
        let mut found = Bitmap::empty(self.len());
        for part in on_threads(cores, work) {
            found.or(&part?);
        }
        Ok(found)
    }

    fn values(&self, segment: &Segment, field: Field, matcher: &Matcher, found: &mut Bitmap) -> tantivy::Result<()> {
        let schema = self.text.index.schema();
        let documents = segment.reader.max_doc();
        let empty_fits = matcher.fits(b"");
        let Some(column) = segment.reader.fast_fields().str(schema.get_field_name(field))? else {
            if empty_fits {
                (0..documents).for_each(|document| found.set(segment.number(document)));
            }
            return Ok(());
        };
        let fitting = fitting_values(&column, |value| matcher.fits(value))?;
        if !empty_fits && fitting.count() == 0 {
            return Ok(());
        }
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

    /// Adds the messages with a matching word in their text. All matching words begin with `start`.
    fn body_words(&self, words: &Words<'_>, start: &str, matcher: &Matcher, found: &mut Bitmap) -> tantivy::Result<()> {
        let &Words { segment, from, before, .. } = words;
        let index = segment.reader.inverted_index(self.text.fields.body)?;
        let mut take = |info: &TermInfo| segment.add_term(&index, info, found);
        if let Some(matching) = words.matching(matcher) {
            for matching in matching {
                match matching {
                    Found::Word(word) => index.terms().get(word)?.iter().try_for_each(&mut take)?,
                    Found::AllFrom(start) => for_each_term(index.terms(), &start, |_, info| take(info))?,
                }
            }
            return Ok(());
        }
        let words = index.terms().range().ge(from);
        let words = match before {
            Some(before) => words.lt(before),
            None => words,
        };
        let mut words = words.into_stream()?;
        while let Some((word, info)) = words.next() {
            if !word.starts_with(start.as_bytes()) {
                break;
            }
            if matcher.fits(word) {
                take(info)?;
            }
        }
        Ok(())
    }
}

impl Words<'_> {
    /// `None` if each word has to be tried.
    fn matching(&self, matcher: &Matcher) -> Option<Vec<Found>> {
        // Borders are of one byte, or the first is what every word that matches begins with.
        let first_byte = |border: &str| border.bytes().next().unwrap_or(0);
        self.dictionary?.matching(matcher.tables()?, first_byte(self.from), self.before.map(first_byte))
    }
}

/// Split points of the dictionary for parallel work, chosen so that the parts hold about equally many words of mail.
const CUTS: &[&str] = &["3", "6", "a", "d", "h", "n", "s"];

/// Numbers of the column's distinct values that match.
pub(super) fn fitting_values(column: &StrColumn, fits: impl Fn(&[u8]) -> bool) -> tantivy::Result<Bitmap> {
    let mut fitting = Bitmap::empty(u32::try_from(column.num_terms()).unwrap_or(u32::MAX));
    let mut values = column.dictionary().stream()?;
    let mut number = 0;
    while values.advance() {
        if fits(values.key()) {
            fitting.set(number);
        }
        number += 1;
    }
    Ok(fitting)
}

/// Returns a prefix that all matching words have, to narrow the scan. May be shorter than possible, even empty.
fn literal_start(pattern: &str) -> String {
    let Some(rest) = pattern.strip_prefix('^').filter(|rest| !rest.contains('|')) else { return String::new() };
    let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    // A repetition that may be none makes the letter before it optional.
    let is_optional = rest[length..].starts_with(['*', '?', '{']);
    rest[..length - usize::from(is_optional && length > 0)].to_ascii_lowercase()
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
            ("^*a", ""),
            ("^{0}a", ""),
        ];
        for (pattern, start) in cases {
            assert_eq!(literal_start(pattern), start, "{pattern}");
        }
    }
}
