//! The relaxed forms of fields and bodies (RFC 6376 section 3.4), which survive changes of white space.

use std::ops::Range;

use aws_lc_rs::digest::{Context, Digest, SHA256};
use memchr::memchr;

/// A hash that counts its octets.
#[derive(Clone)]
pub(crate) struct CountedHash {
    hash: Context,
    bytes: u64,
}

impl CountedHash {
    pub(crate) fn new() -> Self {
        Self { hash: Context::new(&SHA256), bytes: 0 }
    }

    pub(crate) fn update(&mut self, octets: &[u8]) {
        self.bytes += octets.len() as u64;
        self.hash.update(octets);
    }

    /// The hash, and the number of octets.
    pub(crate) fn finish(self) -> (Digest, u64) {
        (self.hash.finish(), self.bytes)
    }
}

/// The name of a header field.
pub(crate) fn name_of(field: &[u8]) -> &[u8] {
    let colon = field.iter().position(|octet| *octet == b':').unwrap_or(field.len());
    field[..colon].trim_ascii_end()
}

/// The relaxed form of a header field (RFC 6376 section 3.4.2), without a line end.
pub fn relaxed_field(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    push_relaxed_field(field, &mut out);
    out
}

/// Like [`relaxed_field`], at the end of `out`.
pub(crate) fn push_relaxed_field(field: &[u8], out: &mut Vec<u8>) {
    let colon = field.iter().position(|octet| *octet == b':').unwrap_or(field.len());
    let (name, value) = field.split_at(colon);
    out.extend(name.trim_ascii_end().iter().map(u8::to_ascii_lowercase));
    if value.is_empty() {
        return;
    }
    out.push(b':');
    let start = out.len();
    let mut has_space = false;
    for (at, &octet) in value.iter().enumerate().skip(1) {
        match octet {
            b' ' | b'\t' => has_space = true,
            // A line end, which is CRLF on the wire. What follows is the white space of a fold.
            b'\n' => {}
            b'\r' if value.get(at + 1) == Some(&b'\n') => {}
            octet => {
                if has_space && out.len() > start {
                    out.push(b' ');
                }
                has_space = false;
                out.push(octet);
            }
        }
    }
}

/// Hashes the relaxed form of a body (RFC 6376 section 3.4.4) with SHA-256, in pieces of any size.
#[derive(Clone)]
pub struct BodyHasher {
    hash: CountedHash,
    /// Line ends that count once more text follows.
    line_ends: u64,
    /// White space that counts once more text of its line follows.
    has_space: bool,
    /// A CR that may begin a line end.
    has_cr: bool,
    has_text: bool,
}

impl std::fmt::Debug for BodyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BodyHasher").finish_non_exhaustive()
    }
}

impl Default for BodyHasher {
    fn default() -> Self {
        Self { hash: CountedHash::new(), line_ends: 0, has_space: false, has_cr: false, has_text: false }
    }
}

impl BodyHasher {
    /// Takes the next octets. A line end of LF counts as CRLF, as it will be sent.
    pub fn push(&mut self, piece: &[u8]) {
        // Most pieces are their own relaxed form: one look at them, and one call of the hash.
        if self.has_cr || self.has_space || !stays(piece) {
            return self.lines(piece);
        }
        let (text, line_ends) = without_line_ends(piece);
        if !text.is_empty() {
            self.hold_back_no_more();
            self.hash.update(text);
        }
        self.line_ends += line_ends;
    }

    fn lines(&mut self, piece: &[u8]) {
        // Lines that stay as they are, with the line ends between them: hashed in one call, as most bodies are.
        let mut same: Option<Range<usize>> = None;
        let mut at = 0;
        while at < piece.len() {
            let end = memchr(b'\n', &piece[at..]).map(|len| at + len);
            let line = &piece[at..end.unwrap_or(piece.len())];
            match line.strip_suffix(b"\r") {
                Some(text) if end.is_some() && self.keeps(text) => {
                    if let Some(same) = &mut same {
                        if !text.is_empty() {
                            (same.end, self.line_ends) = (at + text.len(), 0);
                        }
                    } else if !text.is_empty() {
                        self.hold_back_no_more();
                        same = Some(at..at + text.len());
                    }
                    self.line_ends += 1;
                }
                _ => {
                    if let Some(same) = same.take() {
                        self.hash.update(&piece[same]);
                    }
                    self.line(line, end.is_some());
                }
            }
            at += line.len() + 1;
        }
        if let Some(same) = same {
            self.hash.update(&piece[same]);
        }
    }

    /// True if this rest of a line before CRLF is hashed unchanged.
    fn keeps(&self, text: &[u8]) -> bool {
        !self.has_cr && !self.has_space && (text.is_empty() || is_relaxed(text))
    }

    /// A line or a part of it, without its LF.
    fn line(&mut self, line: &[u8], is_ended: bool) {
        self.text(line);
        if is_ended {
            self.has_cr = false;
            self.has_space = false;
            self.line_ends += 1;
        }
    }

    /// The hash of the whole body.
    pub fn finish(self) -> Digest {
        self.finish_counted().0
    }

    /// The hash, and the octets of the relaxed form.
    pub(crate) fn finish_counted(mut self) -> (Digest, u64) {
        if self.has_cr {
            self.octets(b"\r");
        }
        if self.has_text {
            self.hash.update(b"\r\n");
        }
        self.hash.finish()
    }

    /// Octets of one line.
    fn text(&mut self, text: &[u8]) {
        let (text, ends_with_cr) = text.strip_suffix(b"\r").map_or((text, false), |text| (text, true));
        if !text.is_empty() {
            if std::mem::take(&mut self.has_cr) {
                self.octets(b"\r");
            }
            if is_relaxed(text) && !self.has_space {
                // Most lines are.
                self.octets(text)
            } else {
                self.words(text)
            }
        }
        if ends_with_cr {
            if self.has_cr {
                self.octets(b"\r");
            }
            self.has_cr = true;
        }
    }

    fn words(&mut self, text: &[u8]) {
        for word in text.split_inclusive(|octet| is_blank(*octet)) {
            let (word, is_cut) = match word.split_last() {
                Some((&last, word)) if is_blank(last) => (word, true),
                _ => (word, false),
            };
            if !word.is_empty() {
                self.octets(word);
            }
            self.has_space |= is_cut;
        }
    }

    /// Octets that are hashed unchanged, after those held back.
    fn octets(&mut self, octets: &[u8]) {
        self.hold_back_no_more();
        self.hash.update(octets);
    }

    /// Hashes the white space that was held back, as text follows.
    fn hold_back_no_more(&mut self) {
        self.has_text = true;
        for _ in 0..std::mem::take(&mut self.line_ends) {
            self.hash.update(b"\r\n");
        }
        if std::mem::take(&mut self.has_space) {
            self.hash.update(b" ");
        }
    }
}

fn is_blank(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t')
}

/// True if the piece is its own relaxed form whatever comes before and after, except for line ends at its end. No early
/// exit, so that the loop is vectorised.
fn stays(piece: &[u8]) -> bool {
    let (Some(first), Some(last)) = (piece.first(), piece.last()) else { return true };
    let mut changes = matches!(first, b'\t' | b'\n') | matches!(last, b' ' | b'\r');
    for pair in piece.windows(2) {
        let (one, next) = (pair[0], pair[1]);
        let is_space_cut = (one == b' ') & ((next == b' ') | (next == b'\r'));
        let is_half_line_end = (one == b'\r') != (next == b'\n');
        changes |= is_space_cut | (next == b'\t') | is_half_line_end;
    }
    !changes
}

/// The text before the line ends (CRLF) at the end, and their number.
fn without_line_ends(mut piece: &[u8]) -> (&[u8], u64) {
    let mut line_ends = 0;
    while let Some(rest) = piece.strip_suffix(b"\r\n") {
        (piece, line_ends) = (rest, line_ends + 1);
    }
    (piece, line_ends)
}

/// True if the relaxed form is identical. No early exit, so that the loop is vectorised.
fn is_relaxed(text: &[u8]) -> bool {
    let mut changes = text.last().is_none_or(|last| is_blank(*last)) | (text[0] == b'\t');
    for pair in text.windows(2) {
        changes |= (pair[0] == b' ') & (pair[1] == b' ') | (pair[1] == b'\t');
    }
    !changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(body: &[u8], piece: usize) -> Vec<u8> {
        let mut hasher = BodyHasher::default();
        body.chunks(piece.max(1)).for_each(|part| hasher.push(part));
        hasher.finish().as_ref().to_vec()
    }

    fn check(body: &str, relaxed: &str) {
        let expected = aws_lc_rs::digest::digest(&SHA256, relaxed.as_bytes());
        for piece in 1..=body.len().max(1) {
            assert_eq!(hash(body.as_bytes(), piece), expected.as_ref(), "{body:?} in pieces of {piece}");
        }
    }

    #[test]
    fn bodies_of_the_standard_and_worse_ones() {
        // RFC 6376 section 3.4.5.
        check(" C \r\nD \t E\r\n\r\n\r\n", " C\r\nD E\r\n");
        check("", "");
        check("\r\n\r\n", "");
        check(" \t\r\n \r\n", "");
        check("a", "a\r\n");
        check("a\r\n\r\nb  c\t\r\n", "a\r\n\r\nb c\r\n");
        check("\r\n\r\na", "\r\n\r\na\r\n");
        check("a\nb \n\n", "a\r\nb\r\n");
        check("a\rb\r\r\n", "a\rb\r\r\n");
        check("a \r b\r", "a \r b\r\r\n");
        check("\ta", " a\r\n");
        check("a  ", "a\r\n");
        // Lines that stay as they are, around some that do not.
        check("a b\r\n\r\nc\r\nd \r\n\r\n e\r\nf\ng\r\r\nh", "a b\r\n\r\nc\r\nd\r\n\r\n e\r\nf\r\ng\r\r\nh\r\n");
        check("a\r\n\nb\r\n\r\n\tc\r\n\r\n", "a\r\n\r\nb\r\n\r\n c\r\n");
    }

    #[test]
    fn only_a_piece_that_stays_is_hashed_in_one_call() {
        for (piece, expected) in [
            ("", true),
            ("\r\n", true),
            (" a b\r\n\r\n c\r\n\r\n", true),
            ("a  b", false),
            ("a ", false),
            ("a \r\nb", false),
            ("\ta", false),
            ("a\tb", false),
            ("a\nb", false),
            ("\na", false),
            ("a\r", false),
            ("a\rb", false),
            ("a\r\r\n", false),
        ] {
            assert_eq!(stays(piece.as_bytes()), expected, "{piece:?}");
        }
        assert_eq!(without_line_ends(b"a\r\n\r\n"), (&b"a"[..], 2));
    }

    #[test]
    fn fields_of_the_standard_and_worse_ones() {
        let check = |field: &str, relaxed: &str| {
            assert_eq!(String::from_utf8(relaxed_field(field.as_bytes())).unwrap(), relaxed, "{field:?}");
        };
        check("A: X\r\n", "a:X");
        check("B : Y\t\r\n\tZ  \r\n", "b:Y Z");
        check("Subject:\r\n", "subject:");
        check("SUBJect \t:\r\n a\r\n  \tb:c\r\n", "subject:a b:c");
        check("a: b\n c\n", "a:b c");
        check("a: b\rc\r\n", "a:b\rc");
        check("no field\r\n", "no field");
    }
}
