//! Substring search with IMAP's meaning, by the dictionary of words, without reading a message.

use regex::Regex;
use tantivy::schema::Field;

use super::dictionary::{Dictionary, Found, for_each_term};
use super::matcher::Matcher;
use super::phrase::{add_phrase, add_with_ending};
use super::scope::Scope;
use super::searcher::Searcher;
use super::segment::Segment;
use crate::bitmap::Bitmap;
use crate::error::Result;
use posthaste_text::{Needle, NeedlePiece, OTHER_HEADERS, SearchedField, is_trace};

/// Result of a substring search.
#[derive(Debug)]
pub struct Containing {
    /// Messages that have the text.
    pub found: Bitmap,
    /// Messages that may have it: only reading them decides. Disjoint from `found`.
    pub open: Bitmap,
}

impl Searcher {
    /// Finds messages with a text in one of their fields, as [`MailText`](posthaste_text::MailText) decides it for one
    /// message. `None` if the field is not indexed.
    ///
    /// # Errors
    /// [`IndexError::Text`](crate::IndexError::Text).
    pub fn containing(&self, field: &SearchedField, needle: &Needle) -> Result<Option<Containing>> {
        self.guarded(|| self.look_for(field, needle))
    }

    fn look_for(&self, field: &SearchedField, needle: &Needle) -> Result<Option<Containing>> {
        let all = || Bitmap::full(self.len());
        let none = || Bitmap::empty(self.len());
        let Some(SearchedFields { fields, others }) = self.searched_fields(field) else { return Ok(None) };
        if needle.is_empty() {
            // The message may lack the header field.
            let is_any = !matches!(field, SearchedField::Header(_));
            return Ok(is_any.then(|| Containing { found: all(), open: none() }));
        }
        let mut found = none();
        let mut open = none();
        for (field, has_positions) in fields {
            let in_field = self.in_field(field, needle, has_positions)?;
            found.or(&in_field.found);
            open.or(&in_field.open);
        }
        match others {
            Others::None => {}
            Others::Name => {
                open.or(&found);
                found = none();
            }
            Others::NotIndexed => open = all(),
        }
        let mut not_found = found.clone();
        not_found.not();
        open.and(&not_found);
        Ok(Some(Containing { found, open }))
    }

    /// `None` if the field is not indexed.
    fn searched_fields(&self, field: &SearchedField) -> Option<SearchedFields> {
        let fields = &self.text.fields;
        let others = self.text.header_field(OTHER_HEADERS);
        let whole = |fields: Vec<Field>, others| {
            let fields = fields.into_iter().map(|field| (field, true)).collect();
            Some(SearchedFields { fields, others })
        };
        match field {
            SearchedField::Body => whole(vec![fields.body], Others::None),
            SearchedField::Header(name) => {
                let own = [
                    ("From", fields.from),
                    ("To", fields.to),
                    ("Cc", fields.cc),
                    ("Bcc", fields.bcc),
                    ("Subject", fields.subject),
                ];
                if let Some((_, field)) = own.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)) {
                    return whole(vec![*field], Others::None);
                }
                if let Some(field) = self.text.header_field(name).filter(|_| name != OTHER_HEADERS) {
                    return whole(vec![field], Others::None);
                }
                let others = others.filter(|_| !is_trace(name.as_bytes()))?;
                Some(SearchedFields { fields: vec![(others, false)], others: Others::Name })
            }
            SearchedField::Anywhere => {
                let mut all =
                    vec![fields.body, fields.subject, fields.from, fields.to, fields.cc, fields.bcc, fields.file];
                let named = self.headers().iter().filter(|name| *name != OTHER_HEADERS && !is_trace(name.as_bytes()));
                all.extend(named.filter_map(|name| self.text.header_field(name)));
                let mut all: Vec<(Field, bool)> = all.into_iter().map(|field| (field, true)).collect();
                all.extend(others.map(|field| (field, false)));
                let others = if others.is_some() { Others::None } else { Others::NotIndexed };
                Some(SearchedFields { fields: all, others })
            }
        }
    }

    fn in_field(&self, field: Field, needle: &Needle, has_positions: bool) -> Result<Containing> {
        let with = |piece: &NeedlePiece| self.in_segments(|segment, found| with_piece(segment, field, piece, found));
        let pieces = needle.pieces();
        let [first, .., last] = pieces else {
            let found = pieces.first().map_or_else(|| Ok(Bitmap::full(self.len())), with)?;
            let open = found.none();
            return Ok(Containing { found, open });
        };
        // Whole words are looked up first: most needles have one that occurs in few messages.
        let mut in_turn: Vec<&NeedlePiece> = pieces.iter().collect();
        in_turn.sort_by_key(|piece| !piece.is_whole());
        let mut open = with(in_turn[0])?;
        for piece in &in_turn[1..] {
            if open.count() == 0 {
                return Ok(Containing { found: open.none(), open });
            }
            open.and(&with(piece)?);
        }
        if !has_positions {
            return Ok(Containing { found: open.none(), open });
        }
        // As if the first word were whole: those that have it so are certain.
        let words: Vec<String> = pieces.iter().map(|piece| piece.word.clone()).collect();
        let found = self.in_segments(|segment, found| {
            if last.to_end {
                add_phrase(segment, field, &words, Scope::All, found)
            } else {
                let (last, before) = words.split_last().expect("there are at least two");
                add_with_ending(segment, field, before, last, found)
            }
        })?;
        if first.from_start {
            open = found.none();
        }
        Ok(Containing { found, open })
    }
}

struct SearchedFields {
    /// Fields, each with true if positions are needed.
    fields: Vec<(Field, bool)>,
    others: Others,
}

/// Role of the fields that are not indexed by themselves.
enum Others {
    /// The search uses no other header fields.
    None,
    /// The search uses a header field whose name is not in the index.
    Name,
    /// The search uses header fields that are not indexed.
    NotIndexed,
}

/// Adds the messages with a matching word.
fn with_piece(segment: &Segment, field: Field, piece: &NeedlePiece, found: &mut Bitmap) -> tantivy::Result<()> {
    let index = segment.reader.inverted_index(field)?;
    let terms = index.terms();
    if piece.is_whole() {
        return terms.get(&piece.word)?.map_or(Ok(()), |info| segment.add_term(&index, &info, found));
    }
    if piece.from_start {
        return for_each_term(terms, &piece.word, |_, info| segment.add_term(&index, info, found));
    }
    let end = if piece.to_end { "$" } else { "" };
    let pattern = Regex::new(&format!("{}{end}", regex::escape(&piece.word)));
    let walked = match pattern {
        Ok(pattern) => match (Dictionary::open(&segment.reader, field)?, Matcher::new(&pattern).tables()) {
            (Some(words), Some(tables)) => words.matching(tables, 0, None),
            _ => None,
        },
        Err(_) => None,
    };
    let Some(walked) = walked else {
        return for_each_term(terms, "", |word, info| match std::str::from_utf8(word) {
            Ok(word) if piece.fits(word) => segment.add_term(&index, info, found),
            _ => Ok(()),
        });
    };
    for walked in walked {
        match walked {
            Found::Word(word) if std::str::from_utf8(&word).is_ok_and(|word| piece.fits(word)) => {
                terms.get(&word)?.iter().try_for_each(|info| segment.add_term(&index, info, found))?;
            }
            Found::Word(_) => {}
            Found::AllFrom(start) => for_each_term(terms, &start, |word, info| match std::str::from_utf8(word) {
                Ok(word) if piece.fits(word) => segment.add_term(&index, info, found),
                _ => Ok(()),
            })?,
        }
    }
    Ok(())
}
