//! The incoming message body: end of data, dot-unstuffing, and checks of its octets.
//!
//! This is the hot path. After the header, each buffer is searched for CRLF and dot: only these can end a message or
//! need a dot removed. It is also compared once, pair by pair, for bare CR, bare LF and NUL. Both loops are vectorised.
//! The octet-by-octet loop runs only in headers and where that comparison found something.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;

use crate::body_error::BodyError;
use crate::limits::{BareNewlines, Limits, LongLines, NulOctets};

/// Checks of a body, and its bounds.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub message_bytes: u64,
    pub header_bytes: u64,
    pub text_line_bytes: Option<u64>,
    pub bare: BareNewlines,
    pub reject_nul: bool,
}

impl Policy {
    pub fn new(limits: &Limits, bare: BareNewlines, nul: NulOctets, long: LongLines) -> Self {
        Self {
            message_bytes: if limits.message_bytes == 0 { u64::MAX } else { limits.message_bytes },
            header_bytes: limits.header_bytes,
            text_line_bytes: (long == LongLines::Reject).then_some(limits.text_line_bytes),
            bare,
            reject_nul: nul == NulOctets::Reject,
        }
    }
}

/// Position of the next octet in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    LineStart,
    Middle,
    AfterCr,
}

/// Result of [`Scanner::scan`].
#[derive(Debug)]
pub(crate) struct Scanned {
    /// Octets of the message; may be empty.
    pub bytes: Bytes,
    /// True if the end of data was found.
    pub ended: bool,
}

/// Scans one message. Every decision depends on the message alone, not on its split into reads.
#[derive(Debug)]
pub(crate) struct Scanner {
    policy: Policy,
    /// True if dots are special: in DATA, not in BDAT.
    dots: bool,
    at: At,
    /// Octets of the current line so far, without its CRLF. Counted in the header, and everywhere if lines are limited.
    line_bytes: u64,
    in_header: bool,
    header_bytes: u64,
    size: u64,
    /// Octets consumed from the wire.
    walked: u64,
    /// Offset of the first fault among the consumed octets, except for a message that is too large.
    refused_at: Option<u64>,
    saw_bare: bool,
    saw_nul: bool,
    saw_long_line: bool,
}

pub(crate) static CRLF_DOT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n."));

impl Scanner {
    pub fn new(policy: Policy, dots: bool) -> Self {
        Self {
            policy,
            dots,
            at: At::LineStart,
            line_bytes: 0,
            in_header: true,
            header_bytes: 0,
            size: 0,
            walked: 0,
            refused_at: None,
            saw_bare: false,
            saw_nul: false,
            saw_long_line: false,
        }
    }

    /// Octets of the message so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Octets after the fault of a refused message, once `more` octets have come.
    pub fn unwanted_bytes(&self, more: u64) -> u64 {
        let refused = self.refused_at.map_or(0, |at| (self.walked - at).saturating_add(more));
        refused.max(self.size.saturating_add(more).saturating_sub(self.policy.message_bytes))
    }

    /// Takes as much as possible from `input`: at most two octets, a dot at the start of a line and a CR, stay for the
    /// next call.
    pub fn scan(&mut self, input: &mut BytesMut) -> Scanned {
        let after_cr = self.at == At::AfterCr;
        let bare_before = self.saw_bare;
        self.saw_bare = false;
        let (kept, taken, ended) = self.walk(input);
        let mut part = input.split_to(taken);
        part.truncate(kept);
        let mut bytes = part.freeze();
        if self.saw_bare && self.policy.bare == BareNewlines::Fix {
            bytes = fix_newlines(&bytes, after_cr);
        }
        self.saw_bare |= bare_before;
        self.size += bytes.len() as u64;
        self.walked += taken as u64;
        Scanned { bytes, ended }
    }

    /// Ends a message without its own end of data (BDAT LAST) and returns the octets to append to it.
    pub fn finish(&mut self) -> Bytes {
        if self.at != At::AfterCr {
            return Bytes::new();
        }
        self.saw_bare = true;
        if self.policy.bare != BareNewlines::Fix {
            return Bytes::new();
        }
        self.size += 1;
        Bytes::from_static(b"\n")
    }

    /// The first fault in a fixed order of importance, so that the reply does not depend on the reads.
    pub fn fault(&self) -> Option<BodyError> {
        let policy = &self.policy;
        if self.size > policy.message_bytes {
            return Some(BodyError::TooLarge { limit: policy.message_bytes });
        }
        if self.header_bytes > policy.header_bytes {
            return Some(BodyError::HeaderTooLarge { limit: policy.header_bytes });
        }
        if self.saw_nul && policy.reject_nul {
            return Some(BodyError::Nul);
        }
        if self.saw_bare && policy.bare == BareNewlines::Reject {
            return Some(BodyError::BareNewline);
        }
        self.saw_long_line.then_some(BodyError::DataLineTooLong { limit: policy.text_line_bytes.unwrap_or(u64::MAX) })
    }

    /// Goes over `buf`, moving the message's octets to its front over the removed dots. Returns how many octets are
    /// kept, how many were taken, and true if the end of data was found.
    fn walk(&mut self, buf: &mut [u8]) -> (usize, usize, bool) {
        let mut pos = 0; // octets judged
        let mut segment = 0; // start of the octets judged but not yet moved; segment <= pos
        let mut kept = 0; // octets moved; kept <= segment
        let mut move_up = |buf: &mut [u8], segment: usize, pos: usize| {
            if kept != segment {
                buf.copy_within(segment..pos, kept);
            }
            kept += pos - segment;
            kept
        };
        while pos < buf.len() {
            if self.dots && self.at == At::LineStart && buf[pos] == b'.' {
                match buf[pos + 1..] {
                    [] | [b'\r'] => break,
                    [b'\r', b'\n', ..] => return (move_up(buf, segment, pos), pos + 3, true),
                    _ => {
                        move_up(buf, segment, pos);
                        pos += 1;
                        segment = pos;
                        self.at = At::Middle;
                    }
                }
            }
            // The search for CRLF and dot would miss a CRLF whose CR came with the last read.
            pos = match self.at {
                At::AfterCr => self.walk_octets(buf, pos, pos + 1),
                _ => self.walk_to_dot(buf, pos),
            };
        }
        (move_up(buf, segment, pos), pos, false)
    }

    /// Checks octets from `pos` up to the next CRLF followed by a dot, or to the end. Returns the new position.
    fn walk_to_dot(&mut self, buf: &[u8], mut pos: usize) -> usize {
        let end = match self.dots.then(|| CRLF_DOT.find(&buf[pos..])).flatten() {
            Some(found) => pos + found + 2,
            None => buf.len(),
        };
        if self.in_header {
            pos = self.walk_octets(buf, pos, end);
        }
        // Comparing pairs pays only if nothing but bare newlines and NUL can be wrong.
        if self.policy.text_line_bytes.is_none()
            && pos < end
            && self.at != At::AfterCr
            && is_clean(&buf[pos..end], self.policy.reject_nul)
        {
            self.at = match buf[end - 1] {
                b'\n' => At::LineStart,
                b'\r' => At::AfterCr,
                _ => At::Middle,
            };
            return end;
        }
        self.walk_octets(buf, pos, end)
    }

    /// Checks octets one newline at a time, up to the end of the header.
    fn walk_octets(&mut self, buf: &[u8], start: usize, end: usize) -> usize {
        let in_header = self.in_header;
        let mut pos = start;
        while pos < end && self.in_header == in_header {
            if self.at == At::AfterCr {
                if buf[pos] == b'\n' {
                    pos += 1;
                    self.end_line();
                    continue;
                }
                self.saw_bare_newline(pos);
                self.grow_line(pos, 1);
                self.at = At::Middle;
            }
            let run = memchr::memchr3(b'\r', b'\n', 0, &buf[pos..end]).unwrap_or(end - pos);
            pos += run;
            self.grow_line(pos, run);
            if run > 0 {
                self.at = At::Middle;
            }
            if pos == end {
                break;
            }
            match buf[pos] {
                b'\r' => self.at = At::AfterCr,
                b'\n' => {
                    // Never the start of a line for a dot: only CRLF makes one.
                    self.saw_bare_newline(pos);
                    // An accepted bare newline also ends lines of the header, and an empty one ends the header.
                    self.in_header &= self.line_bytes > 0 || self.policy.bare == BareNewlines::Reject;
                    self.line_bytes = 0;
                    self.at = At::Middle;
                }
                _ => {
                    self.saw_nul = true;
                    if self.policy.reject_nul {
                        self.refuse_at(self.walked + pos as u64);
                    }
                    self.grow_line(pos + 1, 1);
                    self.at = At::Middle;
                }
            }
            pos += 1;
        }
        if in_header {
            self.header_bytes += (pos - start) as u64;
            let over = self.header_bytes.saturating_sub(self.policy.header_bytes);
            if over > 0 {
                self.refuse_at(self.walked + pos as u64 - over);
            }
        }
        pos
    }

    /// Handles a CRLF.
    fn end_line(&mut self) {
        // An empty line ends the header.
        self.in_header &= self.line_bytes > 0;
        self.line_bytes = 0;
        self.at = At::LineStart;
    }

    /// Counts `more` octets of the line, the last of them before `pos`.
    fn grow_line(&mut self, pos: usize, more: usize) {
        self.line_bytes += more as u64;
        let over = self.line_bytes.saturating_sub(self.policy.text_line_bytes.unwrap_or(u64::MAX));
        if over > 0 && !self.saw_long_line {
            self.saw_long_line = true;
            self.refuse_at(self.walked + pos as u64 - over);
        }
    }

    fn saw_bare_newline(&mut self, pos: usize) {
        self.saw_bare = true;
        if self.policy.bare == BareNewlines::Reject {
            self.refuse_at(self.walked + pos as u64);
        }
    }

    /// Notes a fault after `octets`. Faults are not found in order.
    fn refuse_at(&mut self, octets: u64) {
        self.refused_at = Some(self.refused_at.map_or(octets, |before| before.min(octets)));
    }
}

/// True if every CR is followed by LF, every LF follows a CR and, with `no_nul`, no octet is NUL. A CR at the very end is
/// left open; `bytes` does not begin after a CR.
pub(crate) fn is_clean(bytes: &[u8], no_nul: bool) -> bool {
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return true };
    if first == b'\n' || (no_nul && last == 0) {
        return false;
    }
    // In blocks, to stop early on a hostile body; each shares one octet with the next.
    let mut rest = bytes;
    while rest.len() > 1 {
        let block = &rest[..rest.len().min(4097)];
        let pairs = block[..block.len() - 1].iter().zip(&block[1..]);
        let nul = u8::from(no_nul);
        // One vectorised pass: a bare newline is where exactly one of "this is CR" and "next is LF" holds.
        let dirty = pairs.fold(0, |dirty, (&a, &b)| {
            dirty | (u8::from(a == b'\r') ^ u8::from(b == b'\n')) | (u8::from(a == 0) & nul)
        });
        if dirty != 0 {
            return false;
        }
        rest = &rest[block.len() - 1..];
    }
    true
}

/// Makes every bare CR and LF a CRLF. A CR at the very end is left open; `after_cr`: the octet before was one.
pub(crate) fn fix_newlines(bytes: &[u8], mut after_cr: bool) -> Bytes {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 16 + 8);
    for &byte in bytes {
        match (after_cr, byte) {
            (true, b'\n') | (false, b'\r') => out.push(byte),
            (true, _) => out.extend_from_slice(&[b'\n', byte]),
            (false, b'\n') => out.extend_from_slice(b"\r\n"),
            (false, _) => out.push(byte),
        }
        after_cr = byte == b'\r';
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(bare: BareNewlines) -> Policy {
        Policy::new(&Limits::default(), bare, NulOctets::Reject, LongLines::Accept)
    }

    /// Scans `wire` split at `cut` and checks body, fault and what is left over.
    fn check(bare: BareNewlines, wire: &[u8], body: &[u8], fault: Option<BodyError>, rest: Option<&[u8]>) {
        for cut in 0..=wire.len() {
            let mut scanner = Scanner::new(policy(bare), true);
            let mut input = BytesMut::new();
            let mut got = Vec::new();
            let mut ended = false;
            for part in [&wire[..cut], &wire[cut..]] {
                input.extend_from_slice(part);
                if !ended {
                    let scanned = scanner.scan(&mut input);
                    got.extend_from_slice(&scanned.bytes);
                    ended = scanned.ended;
                }
            }
            assert_eq!(ended, rest.is_some(), "{:?} cut at {cut}", wire.escape_ascii().to_string());
            if let Some(rest) = rest {
                assert_eq!(input, rest);
                assert_eq!(got.escape_ascii().to_string(), body.escape_ascii().to_string(), "cut at {cut}");
                assert_eq!(scanner.size(), body.len() as u64);
            }
            assert_eq!(scanner.fault(), fault, "{:?} cut at {cut}", wire.escape_ascii().to_string());
        }
    }

    #[test]
    fn dots_are_unstuffed_and_the_end_is_found() {
        use BareNewlines::Reject;
        check(Reject, b".\r\n", b"", None, Some(b""));
        check(Reject, b".\r\nQUIT", b"", None, Some(b"QUIT"));
        check(Reject, b"a: b\r\n\r\n..\r\n.x\r\n...\r\n.\r\nX", b"a: b\r\n\r\n.\r\nx\r\n..\r\n", None, Some(b"X"));
        check(Reject, b"a.\r\n.b.\r\n.\r\n", b"a.\r\nb.\r\n", None, Some(b""));
        check(Reject, b"a\r\n.", b"", None, None);
    }

    #[test]
    fn bare_newlines_never_end_a_message() {
        use BareNewlines::{Accept, Fix, Reject};
        for fake in [
            &b"\n.\n"[..],
            b"\n.\r\n",
            b"\r.\r",
            b"\r.\r\n",
            b"\r\n.\n",
            b"\r\n.\r",
            b"\r\r\n.\r\r\n",
            b"\n.\r",
            b"\r\n\r.\n",
        ] {
            let wire = [b"a: b\r\n\r\nx", fake, b"MAIL FROM:<a@b>\r\n.\r\nQUIT\r\n"].concat();
            check(Reject, &wire, &unstuff(&wire), Some(BodyError::BareNewline), Some(b"QUIT\r\n"));
            check(Accept, &wire, &unstuff(&wire), None, Some(b"QUIT\r\n"));
            check(Fix, &wire, &fix_newlines(&unstuff(&wire), false), None, Some(b"QUIT\r\n"));
        }
    }

    /// The obvious implementation, without the last `.` CRLF `QUIT` CRLF.
    fn unstuff(wire: &[u8]) -> Vec<u8> {
        let mut body = wire[..wire.len() - 9].to_vec();
        while let Some(at) = body.windows(4).position(|w| w == b"\r\n.\r" || w == b"\r\n.\n") {
            body.remove(at + 2);
        }
        body
    }

    #[test]
    fn fixing_makes_every_newline_whole() {
        assert_eq!(&fix_newlines(b"a\nb\rc\r\nd\r\r\ne\n\r", false)[..], b"a\r\nb\r\nc\r\nd\r\n\r\ne\r\n\r");
        assert_eq!(&fix_newlines(b"\na", true)[..], b"\na");
        assert_eq!(&fix_newlines(b"a", true)[..], b"\na");
    }

    #[test]
    fn nul_is_refused() {
        use BareNewlines::Reject;
        check(Reject, b"a: b\r\n\r\n\0\r\n.\r\n", b"a: b\r\n\r\n\0\r\n", Some(BodyError::Nul), Some(b""));
        check(Reject, b"a\r\n.\0\r\n.\r\n", b"a\r\n\0\r\n", Some(BodyError::Nul), Some(b""));
        check(Reject, b"a\r\n\r\n\r\n.\r\0\n.\r\n", b"", Some(BodyError::Nul), None);
    }

    #[test]
    fn header_limit_is_inclusive() {
        let limits = Limits { header_bytes: 8, ..Limits::default() };
        for (wire, fault) in [
            (&b"a: b\r\n\r\nbody\r\n.\r\n"[..], None),
            (b"a: bc\r\n\r\nbody\r\n.\r\n", Some(BodyError::HeaderTooLarge { limit: 8 })),
            (b"12345678", None),
            (b"123456789", Some(BodyError::HeaderTooLarge { limit: 8 })),
        ] {
            let mut scanner =
                Scanner::new(Policy::new(&limits, BareNewlines::Reject, NulOctets::Reject, LongLines::Accept), true);
            scanner.scan(&mut BytesMut::from(wire));
            assert_eq!(scanner.fault(), fault, "{:?}", wire.escape_ascii().to_string());
        }
    }

    #[test]
    fn text_line_limit_is_inclusive() {
        for (length, fault) in [(998, None), (999, Some(BodyError::DataLineTooLong { limit: 998 }))] {
            let wire = [&b"a: b\r\n\r\n."[..], &vec![b'.'; length], b"\r\n.\r\n"].concat();
            for cut in [0, 8, 9, 500, wire.len() - 5, wire.len() - 4] {
                let policy =
                    Policy::new(&Limits::default(), BareNewlines::Reject, NulOctets::Reject, LongLines::Reject);
                let mut scanner = Scanner::new(policy, true);
                let mut input = BytesMut::from(&wire[..cut]);
                scanner.scan(&mut input);
                input.extend_from_slice(&wire[cut..]);
                assert!(scanner.scan(&mut input).ended);
                assert_eq!(scanner.fault(), fault);
            }
        }
    }
}
