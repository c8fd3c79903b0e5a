//! The simple forms of fields and bodies (RFC 6376 section 3.4), which only normalise the end of the body.

use aws_lc_rs::digest::Digest;

use crate::canon::CountedHash;

/// Appends the simple form of a field, without its last line end. A line end of LF counts as CRLF, as it will be sent.
pub(crate) fn push_simple_field(field: &[u8], out: &mut Vec<u8>) {
    let field = field.strip_suffix(b"\n").unwrap_or(field);
    let field = field.strip_suffix(b"\r").unwrap_or(field);
    let mut last = 0;
    for &octet in field {
        if octet == b'\n' && last != b'\r' {
            out.push(b'\r');
        }
        out.push(octet);
        last = octet;
    }
}

/// Hashes the simple form of a body (RFC 6376 section 3.4.3), in pieces of any size.
pub(crate) struct SimpleBodyHasher {
    hash: CountedHash,
    /// Line ends that count once more text follows.
    line_ends: u64,
    /// A CR that may begin a line end.
    has_cr: bool,
}

impl SimpleBodyHasher {
    pub(crate) fn new() -> Self {
        Self { hash: CountedHash::new(), line_ends: 0, has_cr: false }
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        for line in piece.split_inclusive(|octet| *octet == b'\n') {
            let (line, is_ended) = line.strip_suffix(b"\n").map_or((line, false), |line| (line, true));
            let (text, ends_with_cr) = line.strip_suffix(b"\r").map_or((line, false), |text| (text, true));
            if !text.is_empty() || (self.has_cr && ends_with_cr) {
                if std::mem::take(&mut self.has_cr) {
                    self.octets(b"\r");
                }
                self.octets(text);
            }
            self.has_cr |= ends_with_cr;
            if is_ended {
                self.has_cr = false;
                self.line_ends += 1;
            }
        }
    }

    /// The hash, and the octets of the simple form: at least a line end.
    pub(crate) fn finish(mut self) -> (Digest, u64) {
        if std::mem::take(&mut self.has_cr) {
            self.octets(b"\r");
        }
        self.hash.update(b"\r\n");
        self.hash.finish()
    }

    fn octets(&mut self, octets: &[u8]) {
        for _ in 0..std::mem::take(&mut self.line_ends) {
            self.hash.update(b"\r\n");
        }
        self.hash.update(octets);
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::{SHA256, digest};

    use super::*;

    #[test]
    fn bodies_keep_all_but_empty_lines_at_their_end() {
        for (body, simple) in [
            ("", "\r\n"),
            ("\r\n\r\n", "\r\n"),
            (" C \r\nD \t E\r\n\r\n\r\n", " C \r\nD \t E\r\n"),
            ("a", "a\r\n"),
            ("a\r", "a\r\r\n"),
            ("\r\n\r\na\nb \n\n", "\r\n\r\na\r\nb \r\n"),
            ("a\rb\r\r\n", "a\rb\r\r\n"),
            ("\r\r\n", "\r\r\n"),
            ("\n\r", "\r\n\r\r\n"),
        ] {
            for piece in 1..=body.len().max(1) {
                let mut hasher = SimpleBodyHasher::new();
                body.as_bytes().chunks(piece).for_each(|part| hasher.push(part));
                let (found, bytes) = hasher.finish();
                assert_eq!(
                    found.as_ref(),
                    digest(&SHA256, simple.as_bytes()).as_ref(),
                    "{body:?} in pieces of {piece}"
                );
                assert_eq!(bytes, simple.len() as u64);
            }
        }
    }

    #[test]
    fn fields_stay_as_they_are() {
        let mut out = b"before".to_vec();
        push_simple_field(b"A: X \r\n\tY\r\n", &mut out);
        assert_eq!(out, b"beforeA: X \r\n\tY");
        out.clear();
        push_simple_field(b"A: X\n Y\n", &mut out);
        assert_eq!(out, b"A: X\r\n Y");
    }
}
