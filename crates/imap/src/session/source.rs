//! The answer to FETCH about one message.

use posthaste_message::mime::{Header, Message};

use super::ViewRow;
use super::piece::{DecodedItem, Piece, item_name};
use crate::answer::Answer;
use crate::command::{BodySection, BodySectionText, FetchItem, Partial};
use crate::date::write_internal_date;
use crate::section::{KnownParts, Octets, PartOctets, of_message};
use crate::{envelope, structure, write};

/// The known part of a message.
pub(super) enum Known<'a> {
    Nothing,
    Header(&'a [u8]),
    /// The message or its first octets.
    Parts(&'a [u8]),
}

/// The known data about a row.
pub(super) struct Source<'s> {
    pub row: &'s ViewRow,
    pub header: Option<&'s [u8]>,
    /// BODYSTRUCTURE, if known.
    pub structure: Option<&'s [u8]>,
    pub message: Option<&'s Message<'s>>,
    pub parts: Option<KnownParts<'s>>,
    pub len: Option<u64>,
}

impl Source<'_> {
    /// Writes an item. Octets of the message are returned as a piece instead.
    pub fn item(&self, item: &FetchItem, out: &mut Vec<u8>) -> Option<Piece> {
        let number = |out: &mut Vec<u8>, name: &[u8], number: u64| {
            out.extend_from_slice(name);
            write::number(out, number);
        };
        match item {
            FetchItem::Flags => {}
            FetchItem::Uid => number(out, b"UID ", self.row.uid.into()),
            FetchItem::ModSeq => {
                number(out, b"MODSEQ (", self.row.modseq);
                out.push(b')');
            }
            FetchItem::InternalDate => {
                out.extend_from_slice(b"INTERNALDATE ");
                write_internal_date(out, self.row.internal_date);
            }
            FetchItem::Rfc822Size => number(out, b"RFC822.SIZE ", self.row.size.unwrap_or_default()),
            FetchItem::Envelope => {
                out.extend_from_slice(b"ENVELOPE ");
                envelope::write(&mut Answer::new(out), &Header::new(self.header.unwrap_or_default()));
            }
            FetchItem::Body => self.structure(out, false),
            FetchItem::BodyStructure => self.structure(out, true),
            FetchItem::Rfc822 => return self.literal(out, "RFC822", self.root(&BodySectionText::All)),
            FetchItem::Rfc822Header => return self.literal(out, "RFC822.HEADER", self.root(&BodySectionText::Header)),
            FetchItem::Rfc822Text => return self.literal(out, "RFC822.TEXT", self.root(&BodySectionText::Text)),
            FetchItem::Section { section, partial, .. } => return self.section(out, section, *partial),
            FetchItem::Binary { part, partial, .. } => return self.binary(out, part, *partial),
            FetchItem::BinarySize(part) => return self.binary_size(out, part),
        }
        None
    }

    /// Writes BODY, or BODYSTRUCTURE if `extended`. An unreadable message gets the structure of an empty one: the
    /// grammar has no NIL for it.
    fn structure(&self, out: &mut Vec<u8>, extended: bool) {
        out.extend_from_slice(if extended { &b"BODYSTRUCTURE "[..] } else { b"BODY " });
        if let Some(known) = self.structure.filter(|_| extended) {
            out.extend_from_slice(known);
            return;
        }
        let empty = Message::parse(b"");
        structure::write(&mut Answer::new(out), self.message.unwrap_or(&empty).root(), extended);
    }

    fn root(&self, text: &BodySectionText) -> Option<Octets> {
        match text {
            BodySectionText::All => self.len.map(|len| Octets::Range(0..len)),
            // Fields that are picked need no length.
            text @ BodySectionText::Fields(_) => Some(of_message(text, self.header?, self.len.unwrap_or(0))),
            text => Some(of_message(text, self.header?, self.len?)),
        }
    }

    fn part_octets(&self, part: &[u32]) -> Option<PartOctets> {
        if part.is_empty() {
            return self.len.map(|len| PartOctets::Plain(0..len));
        }
        self.parts?.binary(part)
    }

    fn binary(&self, out: &mut Vec<u8>, part: &[u32], partial: Option<Partial>) -> Option<Piece> {
        let name = item_name("BINARY", part, partial);
        match self.part_octets(part) {
            Some(PartOctets::Encoded(range, encoding)) => {
                Some(Piece::Decode(DecodedItem::octets(name, range, encoding, partial)))
            }
            Some(PartOctets::Plain(range)) => self.literal(out, &name, Some(Octets::Range(range).cut(partial))),
            Some(PartOctets::Unknown) => self.literal(out, &name, None).or(Some(Piece::Failed)),
            None => self.literal(out, &name, None),
        }
    }

    /// Writes BINARY.SIZE. A missing part has size 0: the grammar has no NIL for it.
    fn binary_size(&self, out: &mut Vec<u8>, part: &[u32]) -> Option<Piece> {
        let name = item_name("BINARY.SIZE", part, None);
        let (size, piece) = match self.part_octets(part) {
            Some(PartOctets::Encoded(range, encoding)) => {
                return Some(Piece::Decode(DecodedItem::size(name, range, encoding)));
            }
            Some(PartOctets::Plain(range)) => (range.end - range.start, None),
            Some(PartOctets::Unknown) => (0, Some(Piece::Failed)),
            None => (0, None),
        };
        out.extend_from_slice(format!("{name} {size}").as_bytes());
        piece
    }

    fn section(&self, out: &mut Vec<u8>, section: &BodySection, partial: Option<Partial>) -> Option<Piece> {
        let octets = if section.part.is_empty() {
            self.root(&section.text)
        } else {
            self.parts.and_then(|parts| parts.section(section))
        };
        let mut name = b"BODY".to_vec();
        section.write(&mut name);
        if let Some(partial) = partial {
            name.extend_from_slice(format!("<{}>", partial.offset).as_bytes());
        }
        out.extend_from_slice(&name);
        self.literal(out, "", octets.map(|octets| octets.cut(partial)))
    }

    /// Writes octets as a literal. A missing part is NIL (decisions 30 and 32).
    fn literal(&self, out: &mut Vec<u8>, name: &str, octets: Option<Octets>) -> Option<Piece> {
        out.extend_from_slice(name.as_bytes());
        let Some(octets) = octets else {
            out.extend_from_slice(b" NIL");
            return None;
        };
        match octets.len() {
            0 => out.extend_from_slice(b" \"\""),
            len => out.extend_from_slice(format!(" {{{len}}}\r\n").as_bytes()),
        }
        match octets {
            Octets::Made(made) => {
                out.extend_from_slice(&made);
                None
            }
            Octets::Range(range) => Some(range).filter(|range| !range.is_empty()).map(Piece::Octets),
        }
    }
}
