//! Splits the input into lines under a limit, before anything is parsed.

use bytes::{Bytes, BytesMut};

/// Finds lines in the input. It stores positions only: a line stays in the caller's buffer until it is complete.
#[derive(Debug, Default)]
pub(crate) struct LineFramer {
    /// Octets of the buffer searched without a line end.
    searched: usize,
    /// Octets dropped so far of a line over the limit.
    dropped: Option<u64>,
}

/// The next piece of input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineFrame {
    /// More input is needed.
    Incomplete,
    /// A line without its end.
    Line(Bytes),
    /// A line over the limit was skipped.
    TooLong,
    /// A line exceeds [`DROPPED_BYTES_MAX`], so the client is disconnected.
    Endless,
}

/// Maximum octets of one line that are read and dropped; a client that sends more is disconnected.
const DROPPED_BYTES_MAX: u64 = 1 << 20;

impl LineFramer {
    /// Takes the next line of at most `limit` octets, including its end. Lines end with LF; a preceding CR belongs to
    /// the end.
    pub fn next(&mut self, input: &mut BytesMut, limit: usize) -> LineFrame {
        if self.dropped.is_some() {
            return self.drop_line(input);
        }
        let end = input.len().min(limit);
        let Some(at) = memchr::memchr(b'\n', &input[self.searched.min(end)..end]) else {
            if input.len() >= limit {
                self.dropped = Some(0);
                return self.drop_line(input);
            }
            self.searched = end;
            return LineFrame::Incomplete;
        };
        let line = input.split_to(self.searched.min(end) + at + 1).freeze();
        self.searched = 0;
        let len = line.strip_suffix(b"\r\n").or(line.strip_suffix(b"\n")).map_or(line.len(), <[u8]>::len);
        LineFrame::Line(line.slice(..len))
    }

    fn drop_line(&mut self, input: &mut BytesMut) -> LineFrame {
        let end = memchr::memchr(b'\n', input).map(|at| at + 1);
        let taken = end.unwrap_or(input.len());
        let dropped = self.dropped.unwrap_or(0) + taken as u64;
        let _ = input.split_to(taken);
        (self.searched, self.dropped) = (0, Some(dropped));
        if dropped > DROPPED_BYTES_MAX {
            return LineFrame::Endless;
        }
        if end.is_none() {
            return LineFrame::Incomplete;
        }
        self.dropped = None;
        LineFrame::TooLong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(text: &[u8], limit: usize, piece: usize) -> Vec<LineFrame> {
        let (mut framer, mut input, mut found) = (LineFramer::default(), BytesMut::new(), Vec::new());
        for octets in text.chunks(piece) {
            input.extend_from_slice(octets);
            loop {
                match framer.next(&mut input, limit) {
                    LineFrame::Incomplete => break,
                    LineFrame::Endless => {
                        found.push(LineFrame::Endless);
                        return found;
                    }
                    frame => found.push(frame),
                }
            }
            assert!(input.len() < limit, "{} octets wait", input.len());
        }
        found
    }

    fn check(text: &[u8], limit: usize, expected: &[LineFrame]) {
        for piece in [1, 2, 3, 7, 64, text.len().max(1)] {
            assert_eq!(frames(text, limit, piece), expected, "{} in pieces of {piece}", text.escape_ascii());
        }
    }

    fn line(text: &'static str) -> LineFrame {
        LineFrame::Line(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn lines_end_with_lf_or_crlf() {
        check(b"NOOP\r\nSTAT\n\r\n\nx", 100, &[line("NOOP"), line("STAT"), line(""), line("")]);
        check(b"a\rb\r\r\n", 100, &[line("a\rb\r")]);
    }

    #[test]
    fn long_lines_are_dropped_and_the_next_one_counts() {
        check(b"12345678\r\n1234567\r\nNOOP\r\n", 10, &[line("12345678"), line("1234567"), line("NOOP")]);
        check(b"123456789\r\nNOOP\r\n", 10, &[LineFrame::TooLong, line("NOOP")]);
        check(&[&b"x".repeat(5000)[..], b"\nQUIT\n"].concat(), 10, &[LineFrame::TooLong, line("QUIT")]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_off() {
        let endless = b"x".repeat(1 + DROPPED_BYTES_MAX as usize);
        for piece in [1000, 4096, endless.len() + 1] {
            assert_eq!(frames(&endless, 255, piece), [LineFrame::Endless]);
            assert_eq!(frames(&[&endless[..], b"\n"].concat(), 255, piece), [LineFrame::Endless]);
        }
    }
}
