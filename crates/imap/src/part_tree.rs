//! The parts of a message by position: small enough to be cached, and sufficient for BODY[n] and BINARY[n].

use std::ops::Range;

use bytes::BufMut;
use posthaste_message::mime::{Encoding, Kind, Part};

/// All parts in document order, at least the message itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartTree(Vec<PartNode>);

/// A part. Octets are counted from the beginning of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartNode {
    pub kind: Kind,
    pub encoding: PartEncoding,
    /// Header section, with its empty line.
    pub header: Range<u32>,
    pub body: Range<u32>,
    /// Position of the next part that is not nested in this one.
    end: u32,
}

/// Transfer encoding of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartEncoding {
    /// The octets are not encoded.
    Plain,
    Base64,
    QuotedPrintable,
    /// An encoding that we cannot decode.
    Unknown,
}

impl PartEncoding {
    fn of(part: &Part<'_, '_>) -> Self {
        let named = part.header().first("Content-Transfer-Encoding");
        match part.encoding() {
            Encoding::Identity if named.is_some_and(|named| Encoding::is_unknown(named.value)) => Self::Unknown,
            Encoding::Identity => Self::Plain,
            Encoding::Base64 => Self::Base64,
            Encoding::QuotedPrintable => Self::QuotedPrintable,
            Encoding::Uuencode => Self::Unknown,
        }
    }
}

const KINDS: [Kind; 3] = [Kind::Leaf, Kind::Multipart, Kind::Message];
const ENCODINGS: [PartEncoding; 4] =
    [PartEncoding::Plain, PartEncoding::Base64, PartEncoding::QuotedPrintable, PartEncoding::Unknown];
/// Octets of a part in an encoded tree.
const NODE_BYTES: usize = 22;

impl PartTree {
    /// The part and its nested ones. The parser bounds the recursion.
    pub fn of(root: Part<'_, '_>) -> Self {
        let mut tree = Self(Vec::new());
        tree.add(&root);
        tree
    }

    fn add(&mut self, part: &Part<'_, '_>) {
        let range = |range: Range<usize>| octets(range.start)..octets(range.end);
        let at = self.0.len();
        let header = range(part.header_range());
        let body = range(part.body_range());
        self.0.push(PartNode { kind: part.kind(), encoding: PartEncoding::of(part), header, body, end: 0 });
        part.children().for_each(|child| self.add(&child));
        self.0[at].end = octets(self.0.len());
    }

    /// The part with these numbers (RFC 3501 section 6.4.5).
    pub fn find(&self, numbers: &[u32]) -> Option<&PartNode> {
        self.place(numbers).map(|at| &self.0[at])
    }

    /// The message enclosed in this part.
    pub fn enclosed(&self, numbers: &[u32]) -> Option<&PartNode> {
        let at = self.place(numbers).filter(|at| self.0[*at].kind == Kind::Message)?;
        self.children(at).next().map(|child| &self.0[child])
    }

    fn place(&self, numbers: &[u32]) -> Option<usize> {
        let mut at = 0;
        for (depth, &number) in numbers.iter().enumerate() {
            // A part that is a message has the parts of what is in it.
            let is_message = depth > 0 && self.0[at].kind == Kind::Message;
            let holder = if is_message { self.children(at).next()? } else { at };
            at = match self.0[holder].kind {
                Kind::Multipart => self.children(holder).nth((number as usize).checked_sub(1)?)?,
                // Every message has a part 1: without parts, its body.
                _ if (is_message || depth == 0) && number == 1 => holder,
                _ => return None,
            };
        }
        Some(at)
    }

    fn children(&self, at: usize) -> impl Iterator<Item = usize> {
        let end = self.0[at].end as usize;
        let first = Some(at + 1).filter(|first| *first < end);
        std::iter::successors(first, move |child| Some(self.0[*child].end as usize).filter(|next| *next < end))
    }

    /// Adds the tree as octets.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32_le(octets(self.0.len()));
        for PartNode { kind, encoding, header, body, end } in &self.0 {
            out.put_u8(KINDS.iter().position(|known| known == kind).map_or(0, |at| at as u8));
            out.put_u8(ENCODINGS.iter().position(|known| known == encoding).map_or(0, |at| at as u8));
            [header.start, header.end, body.start, body.end, *end]
                .into_iter()
                .for_each(|number| out.put_u32_le(number));
        }
    }

    /// Decodes the tree of a message of `len` octets; returns it with the remaining bytes. `None` if they are
    /// malformed.
    pub fn decode(bytes: &[u8], len: u32) -> Option<(Self, &[u8])> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (nodes, rest) = rest.split_at_checked(count.checked_mul(NODE_BYTES).filter(|_| count > 0)?)?;
        let node = |(at, node): (usize, &[u8])| {
            let number = |at: usize| Some(u32::from_le_bytes(*node.get(2 + 4 * at..)?.first_chunk::<4>()?));
            let node = PartNode {
                kind: *KINDS.get(usize::from(node[0]))?,
                encoding: *ENCODINGS.get(usize::from(node[1]))?,
                header: number(0)?..number(1)?,
                body: number(2)?..number(3)?,
                end: number(4)?,
            };
            let is_within = |range: &Range<u32>| range.start <= range.end && range.end <= len;
            let is_sound = is_within(&node.header) && is_within(&node.body);
            (is_sound && (at + 1..=count).contains(&(node.end as usize))).then_some(node)
        };
        let nodes = nodes.chunks_exact(NODE_BYTES).enumerate().map(node).collect::<Option<_>>()?;
        Some((Self(nodes), rest))
    }
}

/// Parsed messages are shorter than this number.
fn octets(octets: usize) -> u32 {
    u32::try_from(octets).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use posthaste_message::mime::Message;

    use super::*;

    const MAIL: &[u8] = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Transfer-Encoding: base64\r\n\r\nAAAA\r\n\
        --b\r\nContent-Type: message/rfc822\r\n\r\nSubject: in\r\n\r\ninner\r\n--b\r\nContent-Transfer-Encoding: x-new\r\n\r\nx\r\n--b--\r\n";

    #[test]
    fn a_tree_is_what_was_encoded() {
        for mail in [MAIL, b"", b"Subject: x\r\n\r\nx", b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"] {
            let tree = PartTree::of(Message::parse(mail).root());
            let mut encoded = Vec::new();
            tree.encode(&mut encoded);
            encoded.extend_from_slice(b"rest");
            assert_eq!(PartTree::decode(&encoded, mail.len() as u32), Some((tree, &b"rest"[..])));
        }
    }

    #[test]
    fn parts_have_their_places_and_encodings() {
        let tree = PartTree::of(Message::parse(MAIL).root());
        let check = |numbers: &[u32], expected: Option<(&[u8], PartEncoding)>| {
            let found = tree.find(numbers);
            let octets = |node: &PartNode| (&MAIL[node.body.start as usize..node.body.end as usize], node.encoding);
            assert_eq!(found.map(octets), expected, "{numbers:?}");
        };
        check(&[1], Some((b"AAAA", PartEncoding::Base64)));
        check(&[2, 1], Some((b"inner", PartEncoding::Plain)));
        check(&[3], Some((b"x", PartEncoding::Unknown)));
        check(&[0], None);
        check(&[4], None);
        check(&[1, 1], None);
        assert!(tree.enclosed(&[1]).is_none() && tree.enclosed(&[2]).is_some_and(|inner| inner.kind == Kind::Leaf));
    }

    /// Whoever writes to the file of the cache may cost parts, and no more.
    #[test]
    fn any_octets_are_a_tree_that_ends_or_none() {
        let mut encoded = Vec::new();
        PartTree::of(Message::parse(MAIL).root()).encode(&mut encoded);
        for at in 0..encoded.len() {
            for octet in [0, 1, 2, 3, 7, 0x80, 0xff] {
                let mut other = encoded.clone();
                other[at] = octet;
                if let Some((tree, _)) = PartTree::decode(&other, MAIL.len() as u32) {
                    for numbers in [&[][..], &[1], &[2, 1], &[2, 1, 1], &[3], &[u32::MAX]] {
                        let found = tree.find(numbers).into_iter().chain(tree.enclosed(numbers));
                        assert!(found.into_iter().all(|node| node.body.end as usize <= MAIL.len()));
                    }
                }
            }
            assert_eq!(PartTree::decode(&encoded[..at], MAIL.len() as u32), None);
        }
    }
}
