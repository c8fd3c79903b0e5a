//! Items of FETCH (RFC 3501 section 6.4.5).

use super::ImapCommandError;
use super::parse::{Result, is_plain};
use crate::lex::Cursor;

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
    /// As BODY[], by another name.
    Rfc822,
    /// As `BODY.PEEK[HEADER]`, by another name.
    Rfc822Header,
    /// As `BODY[TEXT]`, by another name.
    Rfc822Text,
}

/// Octets of a section: `<offset.octets>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// The first one.
    pub offset: u32,
    /// Number of octets at most; never 0.
    pub octets: u32,
}

/// The text between the brackets of BODY[…].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodySection {
    /// Part numbers; empty for the message itself.
    pub part: Vec<u32>,
    /// The text within the part.
    pub text: BodySectionText,
}

/// A text within a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodySectionText {
    /// All of it: of the message header and text, of a part its body.
    All,
    /// HEADER
    Header,
    /// HEADER.FIELDS
    Fields(Vec<Vec<u8>>),
    /// HEADER.FIELDS.NOT
    FieldsNot(Vec<Vec<u8>>),
    /// TEXT
    Text,
    /// MIME
    Mime,
}

/// Items of one FETCH.
const ITEMS_MAX: usize = 1000;
/// Part numbers of one section. A message is taken apart no deeper.
const PART_DEPTH_MAX: usize = 200;

pub(super) fn fetch_items(cursor: &mut Cursor<'_>) -> Result<Vec<FetchItem>> {
    use FetchItem::{Body, Envelope, Flags, InternalDate, Rfc822Size};
    if cursor.peek() == Some(b'(') {
        let mut count = 0;
        return cursor.list(1, |cursor| {
            count += 1;
            if count > ITEMS_MAX {
                return Err(ImapCommandError::Limit("Too many items"));
            }
            item(cursor)
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
    // A bracket is no part of an atom, so the word ends before it.
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
        _ => return Err(ImapCommandError::Bad("That item of FETCH is not known")),
    })
}

fn body(cursor: &mut Cursor<'_>, peek: bool) -> Result<FetchItem> {
    cursor.expect(b'[', "A section is missing")?;
    let section = section(cursor)?;
    cursor.expect(b']', "A section is not closed")?;
    let mut partial = None;
    if cursor.take(b'<') {
        let offset = cursor.number()?;
        cursor.expect(b'.', "A partial range has two numbers")?;
        partial = Some(Partial { offset, octets: cursor.nonzero()? });
        cursor.expect(b'>', "A partial range is not closed")?;
    }
    Ok(FetchItem::Section { section, peek, partial })
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

fn field_names(cursor: &mut Cursor<'_>) -> Result<Vec<Vec<u8>>> {
    cursor.space()?;
    cursor.list(1, Cursor::astring)
}

impl BodySection {
    /// Writes it as the answer repeats it, with its brackets.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        for (at, number) in self.part.iter().enumerate() {
            let dot = if at > 0 { "." } else { "" };
            out.extend_from_slice(format!("{dot}{number}").as_bytes());
        }
        if !self.part.is_empty() && self.text != BodySectionText::All {
            out.push(b'.');
        }
        match &self.text {
            BodySectionText::All => {}
            BodySectionText::Header => out.extend_from_slice(b"HEADER"),
            BodySectionText::Text => out.extend_from_slice(b"TEXT"),
            BodySectionText::Mime => out.extend_from_slice(b"MIME"),
            BodySectionText::Fields(names) => write_names(out, b"HEADER.FIELDS (", names),
            BodySectionText::FieldsNot(names) => write_names(out, b"HEADER.FIELDS.NOT (", names),
        }
        out.push(b']');
    }
}

fn write_names(out: &mut Vec<u8>, before: &[u8], names: &[Vec<u8>]) {
    out.extend_from_slice(before);
    for (at, name) in names.iter().enumerate() {
        if at > 0 {
            out.push(b' ');
        }
        match is_plain(name) {
            true => out.extend_from_slice(name),
            false => crate::write::string(out, name),
        }
    }
    out.push(b')');
}
