//! Conditions on text: words, phrases, prefixes.

use tantivy::InvertedIndexReader;
use tantivy::postings::TermInfo;
use tantivy::schema::{Field, IndexRecordOption};

use super::dictionary::for_each_term;
use super::phrase::{add_phrase, add_with_ending};
use super::scope::Scope;
use super::searcher::Searcher;
use super::segment::{Segment, number_of};
use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::query::{Pattern, TextField};
use posthaste_text::{TokenKind, tokens};

impl Searcher {
    pub(super) fn fields_of(&self, field: TextField) -> Vec<Field> {
        let fields = &self.text.fields;
        match field {
            TextField::Any => vec![fields.body, fields.subject, fields.from, fields.to, fields.cc, fields.bcc],
            TextField::Contact => vec![fields.from, fields.to, fields.cc, fields.bcc],
            TextField::Recipient => vec![fields.to, fields.cc, fields.bcc],
            TextField::Body => vec![fields.body],
            TextField::Subject => vec![fields.subject],
            TextField::From => vec![fields.from],
            TextField::To => vec![fields.to],
            TextField::Cc => vec![fields.cc],
            TextField::Bcc => vec![fields.bcc],
            TextField::List => vec![fields.list],
            TextField::File => vec![fields.file],
        }
    }

    /// Messages with these words next to each other in one of the fields.
    pub(super) fn words(&self, field: TextField, text: &str, prefix: bool, scope: Scope<'_>) -> Result<Bitmap> {
        self.words_of(&self.fields_of(field), text, prefix, scope)
    }

    pub(super) fn words_of(&self, fields: &[Field], text: &str, prefix: bool, scope: Scope<'_>) -> Result<Bitmap> {
        let words = Words::of(text, prefix);
        self.in_segments(|segment, found| {
            fields.iter().try_for_each(|&field| self.words_in(segment, field, &words, scope, found))
        })
    }

    fn words_in(
        &self,
        segment: &Segment,
        field: Field,
        words: &Words,
        scope: Scope<'_>,
        found: &mut Bitmap,
    ) -> tantivy::Result<()> {
        let index = segment.reader.inverted_index(field)?;
        let terms = index.terms();
        match (words.exact.as_slice(), &words.last) {
            ([one], None) => {
                if let Some(info) = terms.get(one)? {
                    segment.add_term(&index, &info, found)?;
                }
                Ok(())
            }
            ([], Some(start)) => for_each_term(terms, start, |_, info| segment.add_term(&index, info, found)),
            (exact, None) => add_phrase(segment, field, exact, scope, found),
            (exact, Some(start)) => add_with_ending(segment, field, exact, start, found),
        }
    }

    /// Messages with a matching value, in a field of whole values.
    pub(super) fn exact(&self, field: Field, pattern: &Pattern) -> Result<Bitmap> {
        match pattern {
            Pattern::Is(value) => self.one_value(field, value),
            Pattern::StartsWith(start) => self.values_that(field, start, |_| true),
            Pattern::Matches(_) => self.values_that(field, "", |value| pattern.accepts(value)),
        }
    }

    fn one_value(&self, field: Field, value: &str) -> Result<Bitmap> {
        self.in_segments(|segment, found| {
            let index = segment.reader.inverted_index(field)?;
            index.terms().get(value)?.map_or(Ok(()), |info| segment.add_term(&index, &info, found))
        })
    }

    /// Messages with a matching value in this field; all matching values begin with `start`.
    pub(super) fn values_that(&self, field: Field, start: &str, fits: impl Fn(&str) -> bool) -> Result<Bitmap> {
        self.in_segments(|segment, found| {
            let index = segment.reader.inverted_index(field)?;
            for_each_term(index.terms(), start, |value, info| {
                if std::str::from_utf8(value).is_ok_and(&fits) { segment.add_term(&index, info, found) } else { Ok(()) }
            })
        })
    }

    pub(super) fn in_segments(
        &self,
        mut add: impl FnMut(&Segment, &mut Bitmap) -> tantivy::Result<()>,
    ) -> Result<Bitmap> {
        let mut found = Bitmap::empty(self.len());
        for segment in &self.segments {
            add(segment, &mut found).map_err(|error| self.fail(error))?;
        }
        Ok(found)
    }
}

impl Segment {
    pub(super) fn number(&self, document: u32) -> u32 {
        number_of(self.column.get_val(document))
    }

    /// Adds the messages with this word.
    pub(super) fn add_term(
        &self,
        index: &InvertedIndexReader,
        info: &TermInfo,
        found: &mut Bitmap,
    ) -> tantivy::Result<()> {
        let mut postings = index.read_block_postings_from_terminfo(info, IndexRecordOption::Basic)?;
        let is_common = info.doc_freq > self.reader.max_doc() / 8;
        let all = self.numbers.get().map(|all| &**all).or_else(|| is_common.then(|| self.numbers()));
        let mut values = [0; 128];
        while postings.block_len() > 0 {
            let documents = postings.docs();
            if let Some(all) = all {
                documents.iter().for_each(|&document| found.set(all[document as usize]));
            } else {
                let values = &mut values[..documents.len()];
                self.column.get_vals(documents, values);
                values.iter().for_each(|&value| found.set(number_of(value)));
            }
            postings.advance();
        }
        Ok(())
    }
}

/// A query's words in the form of the index.
struct Words {
    /// Complete words, in order.
    exact: Vec<String>,
    /// Prefix of the word after them.
    last: Option<String>,
}

impl Words {
    fn of(text: &str, prefix: bool) -> Self {
        let mut all = tokens(text);
        // The last pair has that character already, and in a longer text it does not stand alone.
        if all.last().is_some_and(|(_, kind)| *kind == TokenKind::Tail) {
            all.pop();
        }
        // A single character of a script without spaces begins every pair that it is in, and every run ends with it alone.
        let open =
            all.last().is_some_and(|(_, kind)| *kind == TokenKind::Single || (prefix && *kind == TokenKind::Word));
        let mut exact: Vec<String> = all.into_iter().map(|(token, _)| token).collect();
        let last = if open { exact.pop() } else { None };
        Self { exact, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_what_stands_in_the_index() {
        let check = |text: &str, prefix: bool, exact: &[&str], last: Option<&str>| {
            let words = Words::of(text, prefix);
            assert_eq!(
                (words.exact.as_slice(), words.last.as_deref()),
                (exact.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>().as_slice(), last)
            );
        };
        check("ann@example.org", false, &["ann", "example", "org"], None);
        check("foo ba", true, &["foo"], Some("ba"));
        check("東京都", false, &["東京", "京都"], None);
        check("字", false, &[], Some("字"));
        check("東京", true, &["東京"], None);
    }
}
