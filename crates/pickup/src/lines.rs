//! Line ends of a program's output: each becomes CRLF, and a line with a single dot may end the message.

use memchr::memchr3;

/// Normalises line ends of octets, in pieces of any size.
///
/// | input | header | body |
/// | --- | --- | --- |
/// | LF, CRLF, CR CR LF | CRLF | CRLF |
/// | CR alone | a blank, so that no text can begin a field | CRLF |
/// | NUL | left out | left out |
/// | a line `.`, if it ends the message | | the end |
#[derive(Debug)]
pub(crate) struct Lines {
    dot_ends: bool,
    in_body: bool,
    at_start: bool,
    /// CRs that may belong to a line end.
    crs: usize,
    /// The line is a dot so far.
    dot: bool,
    is_over: bool,
}

impl Lines {
    pub fn new(dot_ends: bool) -> Self {
        Self { dot_ends, in_body: false, at_start: true, crs: 0, dot: false, is_over: false }
    }

    /// Notes the start of the body, where a lone CR ends a line.
    pub fn enter_body(&mut self) {
        self.in_body = true;
    }

    /// True after the final dot.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes octets up to the end of a line, or all. Returns their number, and true at the end of a line.
    pub fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, bool) {
        let mut at = 0;
        while let Some(&octet) = input.get(at) {
            if self.is_over {
                return (at, false);
            }
            match octet {
                0 => at += 1,
                b'\r' => (self.crs, at) = (self.crs + 1, at + 1),
                b'\n' => {
                    self.crs = 0;
                    self.end_line(out);
                    return (at + 1, !self.is_over);
                }
                _ => {
                    self.loose_crs(out);
                    if self.is_over {
                        return (at, false);
                    }
                    if self.at_start && self.dot_ends && octet == b'.' {
                        (self.dot, self.at_start) = (true, false);
                        at += 1;
                        continue;
                    }
                    if std::mem::take(&mut self.dot) {
                        out.push(b'.');
                    }
                    let rest = &input[at..];
                    let text = &rest[..memchr3(0, b'\r', b'\n', rest).unwrap_or(rest.len())];
                    out.extend_from_slice(text);
                    self.at_start = false;
                    at += text.len();
                }
            }
        }
        (input.len(), false)
    }

    /// Ends the last line at the end of input. True if there was one.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> bool {
        if self.is_over {
            return false;
        }
        let has_line = !self.at_start || self.crs > 0;
        self.crs = 0;
        if has_line {
            self.end_line(out);
        }
        let was_dot = std::mem::replace(&mut self.is_over, true);
        has_line && !was_dot
    }

    /// CRs that did not belong to a line end.
    fn loose_crs(&mut self, out: &mut Vec<u8>) {
        for _ in 0..std::mem::take(&mut self.crs) {
            if self.in_body {
                self.end_line(out);
                if self.is_over {
                    return;
                }
            } else {
                if std::mem::take(&mut self.dot) {
                    out.push(b'.');
                }
                out.push(b' ');
                self.at_start = false;
            }
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.dot) {
            self.is_over = true;
            return;
        }
        out.extend_from_slice(b"\r\n");
        self.at_start = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The output of `input` in pieces of `piece` octets.
    fn made(input: &[u8], piece: usize, dot_ends: bool, in_body: bool) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(dot_ends), Vec::new());
        if in_body {
            lines.enter_body();
        }
        for mut chunk in input.chunks(piece.max(1)) {
            while !chunk.is_empty() && !lines.is_over() {
                let (taken, _) = lines.take(chunk, &mut out);
                chunk = &chunk[taken..];
            }
        }
        lines.finish(&mut out);
        out
    }

    fn check(input: &str, dot_ends: bool, in_body: bool, expected: &str) {
        for piece in 1..=input.len().max(1) {
            let out = String::from_utf8(made(input.as_bytes(), piece, dot_ends, in_body)).unwrap();
            assert_eq!(out, expected, "{input:?} in pieces of {piece}");
        }
    }

    #[test]
    fn line_ends_become_crlf() {
        check("a\nb\r\nc\r\r\nd", false, true, "a\r\nb\r\nc\r\nd\r\n");
        check("a\rb\r\rc\r", false, true, "a\r\nb\r\n\r\nc\r\n");
        check("S: a\rBcc: b\n", false, false, "S: a Bcc: b\r\n");
        check("a\0b\n", false, true, "ab\r\n");
        check("", true, true, "");
        check("\n", true, true, "\r\n");
    }

    #[test]
    fn a_dot_alone_ends_the_message_if_it_may() {
        check("a\n.\nb\n", true, true, "a\r\n");
        check("a\n.\r\nb\n", true, true, "a\r\n");
        check("a\n.\rb\n", true, true, "a\r\n");
        check("a\n.", true, true, "a\r\n");
        check("a\n..\n.b\n. \nc.\n", true, true, "a\r\n..\r\n.b\r\n. \r\nc.\r\n");
        check("a\n.\nb\n", false, true, "a\r\n.\r\nb\r\n");
        check(".\nb\n", true, true, "");
    }

    proptest! {
        #[test]
        fn what_comes_out_has_no_bare_line_end_however_it_is_cut(
            input in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'.'), Just(0), any::<u8>()], 0..60),
            piece in 1_usize..20,
            dot_ends: bool,
            in_body: bool,
        ) {
            let out = made(&input, input.len(), dot_ends, in_body);
            prop_assert_eq!(&made(&input, piece, dot_ends, in_body), &out);
            let without = out.iter().enumerate().filter(|&(at, &octet)| match octet {
                b'\r' => out.get(at + 1) != Some(&b'\n'),
                b'\n' => at == 0 || out[at - 1] != b'\r',
                0 => true,
                _ => false,
            });
            prop_assert_eq!(without.count(), 0);
            prop_assert!(out.is_empty() || out.ends_with(b"\r\n"));
            // What comes out is not changed again.
            prop_assert_eq!(made(&out, piece, false, in_body), out);
        }
    }
}
