//! Items of FETCH (RFC 3501 section 6.4.5).

use std::collections::HashSet;

use super::error::{ImapCommandError, Result};
use crate::lex::{Cursor, is_plain};

/// One data item of FETCH.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard")]
pub enum FetchItem {
    Flags,
    Uid,
    /// RFC 7162 section 3.1.5.
    ModSeq,
    InternalDate,
    Rfc822Size,
    Envelope,
    /// BODY without a section.
    Body,
    BodyStructure,
    /// BODY[…] and BODY.PEEK[…].
    Section {
        section: BodySection,
        peek: bool,
        partial: Option<Partial>,
    },
    /// BINARY[…] and BINARY.PEEK[…] (RFC 3516 section 4.2).
    Binary {
        part: Vec<u32>,
        peek: bool,
        partial: Option<Partial>,
    },
    /// BINARY.SIZE[…]
    BinarySize(Vec<u32>),
    /// The old name of `BODY[]`.
    Rfc822,
    /// The old name of `BODY.PEEK[HEADER]`.
    Rfc822Header,
    /// The old name of `BODY[TEXT]`.
    Rfc822Text,
}

/// Octets of a section: `<offset.octets>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// Offset of the first octet.
    pub offset: u32,
    /// Maximum number of octets; never 0.
    pub octets: u32,
}

/// The text between the brackets of BODY[…].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodySection {
    /// Part numbers; empty for the message itself.
    pub part: Vec<u32>,
    /// The text of that part.
    pub text: BodySectionText,
}

/// A text within a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodySectionText {
    /// HEADER and TEXT of the message, or the whole body of a part.
    All,
    /// HEADER
    Header,
    /// HEADER.FIELDS
    Fields(FieldNames),
    /// HEADER.FIELDS.NOT
    FieldsNot(FieldNames),
    /// TEXT
    Text,
    /// MIME
    Mime,
}

/// Names of header fields. They are looked up and written for each message of a FETCH, so both are prepared once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldNames {
    /// The names as written in the answer.
    written: Vec<u8>,
    /// The names in lower case, for look-ups.
    names: HashSet<Vec<u8>>,
}

impl FieldNames {
    /// Names as a client gave them.
    pub fn new(names: &[Vec<u8>]) -> Self {
        let mut written = Vec::new();
        for (at, name) in names.iter().enumerate() {
            if at > 0 {
                written.push(b' ');
            }
            if is_plain(name) { written.extend_from_slice(name) } else { crate::write::string(&mut written, name) }
        }
        Self { written, names: names.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// True if `is_such` holds for each name, in lower case.
    pub(crate) fn all(&self, is_such: impl Fn(&[u8]) -> bool) -> bool {
        self.names.iter().all(|name| is_such(name))
    }

    /// True if the list has this field name, in any case.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.names.contains(&name.to_ascii_lowercase())
    }
}

/// Maximum items of one FETCH.
const ITEMS_MAX: usize = 1000;
/// Maximum items of one FETCH with decoded parts: each is decoded from its beginning.
const DECODED_ITEMS_MAX: usize = 100;
/// Maximum part numbers of one section, and depth of parsing a message.
const PART_DEPTH_MAX: usize = 200;

pub(super) fn fetch_items(cursor: &mut Cursor<'_>) -> Result<Vec<FetchItem>> {
    use FetchItem::{Body, Envelope, Flags, InternalDate, Rfc822Size};
    if cursor.peek() == Some(b'(') {
        let mut count = 0;
        let mut decoded = 0;
        return cursor.list(1, |cursor| {
            let item = item(cursor)?;
            count += 1;
            decoded += usize::from(matches!(item, FetchItem::Binary { .. } | FetchItem::BinarySize(_)));
            if count > ITEMS_MAX || decoded > DECODED_ITEMS_MAX {
                return Err(ImapCommandError::Limit("Too many items"));
            }
            Ok(item)
        });
    }
    for (name, items) in [
        ("ALL", vec![Flags, InternalDate, Rfc822Size, Envelope]),
        ("FAST", vec![Flags, InternalDate, Rfc822Size]),
        ("FULL", vec![Flags, InternalDate, Rfc822Size, Envelope, Body]),
    ] {
        if cursor.take_word(name) {
            return Ok(items);
        }
    }
    Ok(vec![item(cursor)?])
}

fn item(cursor: &mut Cursor<'_>) -> Result<FetchItem> {
    // A bracket is not part of an atom, so the word ends before it.
    let word = String::from_utf8_lossy(cursor.run(|octet| octet.is_ascii_alphanumeric() || octet == b'.'));
    Ok(match word.to_ascii_uppercase().as_str() {
        "FLAGS" => FetchItem::Flags,
        "UID" => FetchItem::Uid,
        "MODSEQ" => FetchItem::ModSeq,
        "INTERNALDATE" => FetchItem::InternalDate,
        "RFC822.SIZE" => FetchItem::Rfc822Size,
        "ENVELOPE" => FetchItem::Envelope,
        "BODYSTRUCTURE" => FetchItem::BodyStructure,
        "RFC822" => FetchItem::Rfc822,
        "RFC822.HEADER" => FetchItem::Rfc822Header,
        "RFC822.TEXT" => FetchItem::Rfc822Text,
        "BODY" if cursor.peek() != Some(b'[') => FetchItem::Body,
        "BODY" => body(cursor, false)?,
        "BODY.PEEK" => body(cursor, true)?,
        "BINARY" => binary(cursor, false)?,
        "BINARY.PEEK" => binary(cursor, true)?,
        "BINARY.SIZE" => FetchItem::BinarySize(binary_part(cursor)?),
        _ => return Err(ImapCommandError::Bad("That item of FETCH is not known")),
    })
}

fn body(cursor: &mut Cursor<'_>, peek: bool) -> Result<FetchItem> {
    cursor.expect(b'[', "A section is missing")?;
    let section = section(cursor)?;
    cursor.expect(b']', "A section is not closed")?;
    Ok(FetchItem::Section { section, peek, partial: partial(cursor)? })
}

fn binary(cursor: &mut Cursor<'_>, peek: bool) -> Result<FetchItem> {
    Ok(FetchItem::Binary { part: binary_part(cursor)?, peek, partial: partial(cursor)? })
}

fn binary_part(cursor: &mut Cursor<'_>) -> Result<Vec<u32>> {
    cursor.expect(b'[', "A section is missing")?;
    let section = section(cursor)?;
    cursor.expect(b']', "A section is not closed")?;
    match section.text {
        BodySectionText::All => Ok(section.part),
        _ => Err(ImapCommandError::Bad("BINARY is for parts")),
    }
}

fn partial(cursor: &mut Cursor<'_>) -> Result<Option<Partial>> {
    if !cursor.take(b'<') {
        return Ok(None);
    }
    let offset = cursor.number()?;
    cursor.expect(b'.', "A partial range has two numbers")?;
    let octets = cursor.nonzero()?;
    cursor.expect(b'>', "A partial range is not closed")?;
    Ok(Some(Partial { offset, octets }))
}

fn section(cursor: &mut Cursor<'_>) -> Result<BodySection> {
    let mut part = Vec::new();
    while cursor.peek().is_some_and(|octet| octet.is_ascii_digit()) {
        if part.len() >= PART_DEPTH_MAX {
            return Err(ImapCommandError::Limit("A section is too deep"));
        }
        part.push(cursor.nonzero()?);
        if !cursor.take(b'.') {
            return Ok(BodySection { part, text: BodySectionText::All });
        }
        if !cursor.peek().is_some_and(|octet| octet.is_ascii_alphanumeric()) {
            return Err(ImapCommandError::Bad("A section ends with a dot"));
        }
    }
    let word = cursor.run(|octet| octet.is_ascii_alphabetic() || octet == b'.').to_ascii_uppercase();
    let text = match &word[..] {
        b"" if part.is_empty() => BodySectionText::All,
        b"HEADER" => BodySectionText::Header,
        b"TEXT" => BodySectionText::Text,
        b"MIME" if !part.is_empty() => BodySectionText::Mime,
        b"HEADER.FIELDS" => BodySectionText::Fields(field_names(cursor)?),
        b"HEADER.FIELDS.NOT" => BodySectionText::FieldsNot(field_names(cursor)?),
        _ => return Err(ImapCommandError::Bad("That section is not known")),
    };
    Ok(BodySection { part, text })
}

fn field_names(cursor: &mut Cursor<'_>) -> Result<FieldNames> {
    cursor.space()?;
    cursor.list(1, Cursor::astring).map(|names| FieldNames::new(&names))
}

/// Removes duplicate items, so that none is answered twice for a message.
pub(crate) fn merge_items(items: Vec<FetchItem>) -> Vec<FetchItem> {
    let mut merged: Vec<FetchItem> = Vec::with_capacity(items.len());
    for item in items {
        match merged.iter_mut().find(|earlier| earlier.answers(&item)) {
            Some(earlier) => earlier.read_as(&item),
            None => merged.push(item),
        }
    }
    merged
}

impl FetchItem {
    /// True if the answer to this item serves `other`, too.
    fn answers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Section { section, partial, .. }, Self::Section { section: other, partial: part, .. }) => {
                section == other && partial == part
            }
            (Self::Binary { part, partial, .. }, Self::Binary { part: other, partial: range, .. }) => {
                part == other && partial == range
            }
            _ => self == other,
        }
    }

    /// Sets \Seen if `other` does.
    fn read_as(&mut self, other: &Self) {
        match (self, other) {
            (Self::Section { peek, .. }, Self::Section { peek: other, .. })
            | (Self::Binary { peek, .. }, Self::Binary { peek: other, .. }) => *peek &= other,
            _ => {}
        }
    }
}

/// Part numbers with their dots.
pub(crate) fn part_numbers(part: &[u32]) -> String {
    part.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

impl BodySection {
    /// Writes the section with its brackets, as in the answer.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        out.extend_from_slice(part_numbers(&self.part).as_bytes());
        if !self.part.is_empty() && self.text != BodySectionText::All {
            out.push(b'.');
        }
        match &self.text {
            BodySectionText::All => {}
            BodySectionText::Header => out.extend_from_slice(b"HEADER"),
            BodySectionText::Text => out.extend_from_slice(b"TEXT"),
            BodySectionText::Mime => out.extend_from_slice(b"MIME"),
            BodySectionText::Fields(names) => out.extend([b"HEADER.FIELDS (", &names.written[..], b")"].concat()),
            BodySectionText::FieldsNot(names) => {
                out.extend([b"HEADER.FIELDS.NOT (", &names.written[..], b")"].concat());
            }
        }
        out.push(b']');
    }
}
