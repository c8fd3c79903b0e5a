//! Pieces of the answer to FETCH. BINARY (RFC 3516) is decoded while its octets are read.

use std::ops::Range;

use posthaste_message::mime::Encoding;

use super::{DecodedLength, ImapEvent};
use crate::command::{Partial, part_numbers};

/// A piece of the answer about a message.
#[derive(Debug)]
pub(super) enum Piece {
    Text(Vec<u8>),
    Octets(Range<u64>),
    /// An item that needs the decoded length of a part.
    Decode(DecodedItem),
    /// Octets of a decoded part.
    Decoded {
        range: Range<u64>,
        encoding: Encoding,
        octets: Range<u64>,
    },
    /// The encoding of a part is unknown.
    Failed,
}

/// An item whose length is known once the part was decoded.
#[derive(Debug)]
pub(super) struct DecodedItem {
    /// The item's name in the answer.
    name: String,
    range: Range<u64>,
    encoding: Encoding,
    wanted: Wanted,
}

#[derive(Debug)]
enum Wanted {
    Length,
    Octets(Option<Partial>),
}

impl DecodedItem {
    /// BINARY.SIZE
    pub fn size(name: String, range: Range<u64>, encoding: Encoding) -> Self {
        Self { name, range, encoding, wanted: Wanted::Length }
    }

    /// BINARY
    pub fn octets(name: String, range: Range<u64>, encoding: Encoding, partial: Option<Partial>) -> Self {
        Self { name, range, encoding, wanted: Wanted::Octets(partial) }
    }

    pub fn ask(&self) -> ImapEvent {
        ImapEvent::Decode { range: self.range.clone(), encoding: self.encoding }
    }

    /// Writes the answer and returns the octets that follow it. `None` if the part cannot be decoded.
    pub fn answer(self, length: Option<DecodedLength>, out: &mut Vec<u8>) -> Option<Piece> {
        let Self { name, range, encoding, wanted } = self;
        let mut write = |text: String| out.extend_from_slice(format!("{name} {text}").as_bytes());
        let partial = match (wanted, &length) {
            (Wanted::Length, length) => {
                write(length.as_ref().map_or(0, |length| length.octets).to_string());
                return None;
            }
            (Wanted::Octets(_), None) => {
                write("NIL".to_owned());
                return None;
            }
            (Wanted::Octets(partial), Some(_)) => partial,
        };
        let DecodedLength { octets, has_nul } = length?;
        let (start, end) = match partial {
            Some(Partial { offset, octets: most }) => {
                (octets.min(offset.into()), octets.min(u64::from(offset) + u64::from(most)))
            }
            None => (0, octets),
        };
        if start == end {
            write("\"\"".to_owned());
            return None;
        }
        // A literal has no NUL, a literal8 may (RFC 3516 section 7).
        write(format!("{}{{{}}}\r\n", if has_nul { "~" } else { "" }, end - start));
        Some(Piece::Decoded { range, encoding, octets: start..end })
    }
}

/// `BINARY[1.2]<0>`
pub(super) fn item_name(item: &str, part: &[u32], partial: Option<Partial>) -> String {
    let origin = partial.map_or(String::new(), |partial| format!("<{}>", partial.offset));
    format!("{item}[{}]{origin}", part_numbers(part))
}
