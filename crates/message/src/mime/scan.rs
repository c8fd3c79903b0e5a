//! Finds the parts of a message in one pass over its lines, with a stack of open parts and no recursion.

use std::borrow::Cow;

use memchr::{memchr, memmem};

use super::field::{Header, colon_of, is_continuation, is_empty_line, line_at};
use super::params::{main_value, raw_parameter};
use super::transfer::Encoding;

/// Bounds for parsing one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanLimits {
    /// Deepest nesting of parts. A part at this depth is a leaf, whatever its type.
    pub depth: usize,
    /// Most parts. Octets after the last one belong to the enclosing parts.
    pub parts: usize,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { depth: 100, parts: 10_000 }
    }
}

/// A defect of a message that its reader should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanProblem {
    /// It has no header field, and no empty line after one.
    NoHeader,
    /// Parts beyond [`ScanLimits::depth`].
    TooDeep,
    /// Parts beyond [`ScanLimits::parts`].
    TooManyParts,
}

/// The content of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A body.
    Leaf,
    /// Parts between boundaries.
    Multipart,
    /// A message, which is its only child.
    Message,
}

/// A part: `start <= body <= end`, and those of its children lie between `body` and `end`.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub start: usize,
    pub body: usize,
    pub end: usize,
    /// Index after the last nested part.
    pub after: usize,
    pub parent: Option<usize>,
    pub kind: Kind,
    pub encoding: Encoding,
    pub content_type: Option<&'a [u8]>,
    pub disposition: Option<&'a [u8]>,
    /// True if its default type is a message (RFC 2046 section 5.1.5).
    pub is_in_digest: bool,
}

pub(super) fn scan<'a>(bytes: &'a [u8], limits: &ScanLimits) -> (Vec<Node<'a>>, Option<ScanProblem>) {
    let line_marks = memmem::Finder::new(b"\n--");
    let mut scan =
        Scan { bytes, limits, nodes: Vec::new(), open: Vec::new(), boundaries: 0, problem: None, line_marks };
    scan.run();
    if scan.nodes.first().is_none_or(|root| root.body == 0) {
        scan.problem = Some(ScanProblem::NoHeader);
    }
    (scan.nodes, scan.problem)
}

struct Scan<'a, 'l> {
    bytes: &'a [u8],
    limits: &'l ScanLimits,
    nodes: Vec<Node<'a>>,
    open: Vec<Open<'a>>,
    /// Number of `open` parts with a boundary.
    boundaries: usize,
    problem: Option<ScanProblem>,
    line_marks: memmem::Finder<'static>,
}

/// A part whose end is not found yet.
struct Open<'a> {
    node: usize,
    /// The boundary of its children; `None` for a part without any, and after the closing boundary.
    boundary: Option<Cow<'a, [u8]>>,
}

/// A boundary line.
struct Delimiter {
    /// Index in `open`.
    level: usize,
    is_close: bool,
    start: usize,
    /// Start of the next line.
    end: usize,
}

impl<'a> Scan<'a, '_> {
    fn run(&mut self) {
        let mut at = 0;
        loop {
            let mut from = self.begin(at);
            if self.nodes.last().is_some_and(|node| node.kind == Kind::Message) && self.has_room() {
                at = from;
                continue;
            }
            loop {
                let Some(line) = self.next_delimiter(from) else { return self.close(0, self.bytes.len()) };
                self.close(line.level + 1, self.without_line_end(line.start));
                if !line.is_close {
                    at = line.end;
                    break;
                }
                self.open[line.level].boundary = None;
                self.boundaries -= 1;
                from = line.end;
            }
            if !self.has_room() {
                return self.close(0, self.bytes.len());
            }
        }
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.nodes.len() < self.limits.parts;
        if !has_room {
            self.problem = Some(ScanProblem::TooManyParts);
        }
        has_room
    }

    /// Reads the header of a part at a position, within the innermost open part. Returns the start of its body.
    fn begin(&mut self, start: usize) -> usize {
        let parent = self.open.last().map(|open| open.node);
        let parent_node = parent.map(|parent| &self.nodes[parent]);
        let is_message = parent_node.is_none_or(|node| node.kind == Kind::Message);
        let is_in_digest = parent_node.is_some_and(|node| {
            node.kind == Kind::Multipart && node.content_type.is_some_and(|kind| main_value(kind) == "multipart/digest")
        });
        let body = self.header_end(start, is_message);
        let mut node = Node {
            start,
            body,
            end: body,
            after: 0,
            parent,
            kind: Kind::Leaf,
            encoding: Encoding::Identity,
            content_type: None,
            disposition: None,
            is_in_digest,
        };
        let mut has_encoding = false;
        for field in Header::at(&self.bytes[start..body], start).fields() {
            if !field.name.first().is_some_and(|first| first.eq_ignore_ascii_case(&b'c')) {
                continue;
            }
            if field.is("Content-Type") && !field.value.trim_ascii().is_empty() {
                node.content_type = node.content_type.or(Some(field.value));
            } else if field.is("Content-Disposition") {
                node.disposition = node.disposition.or(Some(field.value));
            } else if field.is("Content-Transfer-Encoding") && !has_encoding {
                (node.encoding, has_encoding) = (Encoding::from_value(field.value), true);
            }
        }
        let boundary = self.kind_of(&mut node);
        self.boundaries += usize::from(boundary.is_some());
        self.open.push(Open { node: self.nodes.len(), boundary });
        self.nodes.push(node);
        body
    }

    /// Determines the kind of a part, and the boundary of its children.
    fn kind_of(&mut self, node: &mut Node<'a>) -> Option<Cow<'a, [u8]>> {
        let (kind, boundary) = match node.content_type {
            Some(value) => {
                let media_type = main_value(value);
                if media_type.starts_with("multipart/") || media_type == "multipart" {
                    let boundary =
                        raw_parameter(value, "boundary").map(trimmed).filter(|boundary| !boundary.is_empty());
                    (Kind::Multipart, Some(boundary.or_else(|| self.likely_boundary(node.body))?))
                } else if matches!(media_type.as_str(), "message/rfc822" | "message/global" | "message/news") {
                    (Kind::Message, None)
                } else {
                    return None;
                }
            }
            None if node.is_in_digest => (Kind::Message, None),
            None => return None,
        };
        // An encoded message (forbidden by RFC 2046 section 5.2.1) is left to the caller, which decodes it.
        if kind == Kind::Message && node.encoding != Encoding::Identity {
            return None;
        }
        if self.open.len() >= self.limits.depth {
            self.problem = Some(ScanProblem::TooDeep);
            return None;
        }
        node.kind = kind;
        boundary
    }

    /// A likely boundary if none is named: the first line `--something` followed by a field or an empty line.
    fn likely_boundary(&self, body: usize) -> Option<Cow<'a, [u8]>> {
        let start = self.next_mark(body)?;
        let line = line_at(self.bytes, start)?;
        let name = self.bytes[start + 2..line.end].trim_ascii();
        let next = line_at(self.bytes, line.end).map(|next| &self.bytes[next])?;
        let is_likely =
            (1..=70).contains(&name.len()) && name.iter().any(|&byte| byte != b'-') && !name.contains(&b' ');
        (is_likely && (is_empty_line(next) || colon_of(next).is_some())).then_some(Cow::Borrowed(name))
    }

    /// The end of a header section: after its empty line, or at a boundary.
    ///
    /// A part of a multipart has no header if its first line is not a field: the empty line is missing. Nor has a
    /// message without any field. In a header without the final empty line, the body begins with the first of the
    /// trailing lines that are not fields.
    fn header_end(&self, start: usize, is_message: bool) -> usize {
        let mut at = start;
        let mut has_field = false;
        // The first line that is not a field, since the last field.
        let mut others = None;
        let mut own_boundary = None;
        while let Some(line) = line_at(self.bytes, at) {
            let text = &self.bytes[line.clone()];
            if is_empty_line(text) {
                return if has_field || at == start { line.end } else { start };
            }
            if text.starts_with(b"--") {
                if self.boundaries > 0 && self.level_of(text).is_some() {
                    return if has_field { others.unwrap_or(at) } else { start };
                }
                // Looked up once: there may be any number of such lines.
                let own = own_boundary.get_or_insert_with(|| self.boundary_named(start..at));
                if own.as_deref().is_some_and(|own| text[2..].trim_ascii_end() == own) {
                    return others.unwrap_or(at);
                }
            }
            if colon_of(text.trim_ascii_start()).is_some() && (at == start || !is_continuation(text[0])) {
                (has_field, others) = (true, None);
            } else if others.is_some() || !is_continuation(text[0]) {
                others = others.or(Some(at));
            }
            if !has_field && !is_message {
                return start;
            }
            at = line.end;
        }
        if has_field { others.unwrap_or(at) } else { start }
    }

    /// The boundary named by a header.
    fn boundary_named(&self, header: std::ops::Range<usize>) -> Option<Cow<'a, [u8]>> {
        let field = Header::at(&self.bytes[header], 0).first("Content-Type")?;
        raw_parameter(field.value, "boundary").map(trimmed).filter(|boundary| !boundary.is_empty())
    }

    /// The start of the first line with `--` at or after `from`, which is the start of a line.
    fn next_mark(&self, from: usize) -> Option<usize> {
        if self.bytes[from..].starts_with(b"--") {
            return Some(from);
        }
        self.line_marks.find(&self.bytes[from..]).map(|at| from + at + 1)
    }

    fn next_delimiter(&self, mut from: usize) -> Option<Delimiter> {
        if self.boundaries == 0 {
            return None;
        }
        loop {
            let start = self.next_mark(from)?;
            let end = memchr(b'\n', &self.bytes[start..]).map_or(self.bytes.len(), |at| start + at + 1);
            if let Some((level, is_close)) = self.level_of(&self.bytes[start..end]) {
                return Some(Delimiter { level, is_close, start, end });
            }
            from = end;
        }
    }

    /// The level of a boundary line that begins with `--`. The innermost boundary equal to the whole line; else, only
    /// for ends of parts, one that it begins with, since text can follow there. RFC 2046 section 5.1.1 allows any text
    /// after both, and text in mail looks like that.
    fn level_of(&self, line: &[u8]) -> Option<(usize, bool)> {
        let text = line[2..].trim_ascii_end();
        let mut begun = None;
        for (level, open) in self.open.iter().enumerate().rev() {
            let Some(rest) = open.boundary.as_deref().and_then(|boundary| text.strip_prefix(boundary)) else {
                continue;
            };
            match rest {
                b"" => return Some((level, false)),
                b"--" => return Some((level, true)),
                [b'-', b'-', next, ..] if *next != b'-' => begun = begun.or(Some((level, true))),
                _ => {}
            }
        }
        begun
    }

    /// A position without the line end before it, which belongs to the boundary (RFC 2046 section 5.1.1).
    fn without_line_end(&self, at: usize) -> usize {
        let before = &self.bytes[..at];
        let before = before.strip_suffix(b"\n").map_or(before, |before| before.strip_suffix(b"\r").unwrap_or(before));
        before.len()
    }

    /// Closes all open parts except the first `keep`.
    fn close(&mut self, keep: usize, mut end: usize) {
        while self.open.len() > keep {
            let Some(open) = self.open.pop() else { return };
            self.boundaries -= usize::from(open.boundary.is_some());
            let after = self.nodes.len();
            let node = &mut self.nodes[open.node];
            end = end.max(node.body);
            (node.end, node.after) = (end, after);
            if node.kind == Kind::Multipart && after == open.node + 1 {
                // Without a boundary it is text.
                node.kind = Kind::Leaf;
            }
        }
    }
}

/// A boundary without trailing white space (RFC 2046 section 5.1.1).
fn trimmed(boundary: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match boundary {
        Cow::Borrowed(boundary) => Cow::Borrowed(boundary.trim_ascii_end()),
        Cow::Owned(boundary) => Cow::Owned(boundary.trim_ascii_end().to_vec()),
    }
}
