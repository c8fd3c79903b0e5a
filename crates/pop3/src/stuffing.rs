//! Messages as multi-line responses: dot-stuffing (RFC 1939 section 3), and TOP's end (section 7).

/// Writes a message piece by piece.
#[derive(Debug)]
pub(crate) struct Stuffer {
    /// Remaining lines of the body; `None`: all.
    lines_left: Option<u64>,
    in_header: bool,
    /// The last two octets; initially a line end.
    last: [u8; 2],
    /// Octets of the line so far.
    line_octets: u64,
    /// TOP has its lines.
    is_done: bool,
}

impl Stuffer {
    /// `lines`: number of body lines to send, for TOP; `None`: all.
    pub fn new(lines: Option<u64>) -> Self {
        Self { lines_left: lines, in_header: true, last: *b"\r\n", line_octets: 0, is_done: false }
    }

    /// True if the rest of the message is not needed.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Writes the next octets. Doubles a dot at each start of a line, also after an LF without CR: many clients end
    /// lines there, and must not end a message early.
    pub fn write(&mut self, mut octets: &[u8], out: &mut Vec<u8>) {
        while let Some(first) = octets.first().filter(|_| !self.is_done) {
            if self.last[1] == b'\n' && *first == b'.' {
                out.push(b'.');
            }
            let line = match memchr::memchr(b'\n', octets) {
                Some(at) => &octets[..=at],
                None => octets,
            };
            out.extend_from_slice(line);
            self.note(line);
            octets = &octets[line.len()..];
        }
    }

    /// Processes a piece of one line.
    fn note(&mut self, piece: &[u8]) {
        let [.., end] = piece else { return };
        self.last = [if let [.., before, _] = piece { *before } else { self.last[1] }, *end];
        self.line_octets += piece.len() as u64;
        if *end != b'\n' {
            return;
        }
        let octets = std::mem::take(&mut self.line_octets);
        let ends_header = self.in_header && (octets == 1 || octets == 2 && self.last[0] == b'\r');
        if !self.in_header {
            self.lines_left = self.lines_left.map(|left| left.saturating_sub(1));
        }
        self.in_header &= !ends_header;
        self.is_done = !self.in_header && self.lines_left == Some(0);
    }

    /// Ends the last line if the message does not, and writes the final dot.
    pub fn finish(&self, out: &mut Vec<u8>) {
        if self.last != *b"\r\n" {
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b".\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &str, lines: Option<u64>, expected: &str) {
        for piece in [1, 2, 3, message.len().max(1)] {
            let (mut stuffer, mut out) = (Stuffer::new(lines), Vec::new());
            message.as_bytes().chunks(piece).for_each(|piece| stuffer.write(piece, &mut out));
            stuffer.finish(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{message:?} in pieces of {piece}");
        }
    }

    #[test]
    fn dots_that_begin_lines_are_doubled() {
        check("", None, ".\r\n");
        check(".\r\n..\r\na.\r\n", None, "..\r\n...\r\na.\r\n.\r\n");
        check("a\r\n.", None, "a\r\n..\r\n.\r\n");
        check("a\n.\r\nb\r", None, "a\n..\r\nb\r\r\n.\r\n");
        check("a\r.b\n", None, "a\r.b\n\r\n.\r\n");
    }

    #[test]
    fn top_ends_after_its_lines() {
        let message = "A: b\r\nC: d\r\n\r\n.one\r\n\r\nthree\r\nfour";
        check(message, Some(0), "A: b\r\nC: d\r\n\r\n.\r\n");
        check(message, Some(1), "A: b\r\nC: d\r\n\r\n..one\r\n.\r\n");
        check(message, Some(3), "A: b\r\nC: d\r\n\r\n..one\r\n\r\nthree\r\n.\r\n");
        check(message, Some(9), "A: b\r\nC: d\r\n\r\n..one\r\n\r\nthree\r\nfour\r\n.\r\n");
        check("A: b\r\n", Some(0), "A: b\r\n.\r\n");
        check("\r\nbody\r\n", Some(0), "\r\n.\r\n");
        check("A: b\n\nx\n", Some(0), "A: b\n\n\r\n.\r\n");
        check("A: b\r\n\r\r\nx\r\n", Some(0), "A: b\r\n\r\r\nx\r\n.\r\n");
    }
}
