//! Splits the input into commands, with their literals, under a size limit, before parsing.

use bytes::{Bytes, BytesMut};

use crate::lex::{Cursor, LITERAL_MARK_BYTES_MAX, Literal};

/// Finds the boundaries of commands in the input.
///
/// It stores positions only: a command stays in the caller's buffer until it is complete. The buffer never holds more
/// than one command.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    /// Octets of the buffer already examined; beyond its end while a literal is awaited.
    seen: usize,
    skipping: Option<Skipping>,
}

/// A command over the limit, of which only the tag is kept.
#[derive(Debug)]
struct Skipping {
    tag: Option<String>,
    /// Remaining octets of a literal.
    literal: u64,
    /// Octets dropped so far.
    dropped: u64,
    /// Octets after which a command counts as endless.
    most: u64,
}

/// Literals that are APPEND messages, and no part of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appends {
    /// No literal is a message.
    No,
    /// The first message of a command.
    First,
    /// All: the command continues after a message (RFC 3502).
    Next,
}

/// The next part of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// More input is needed.
    Incomplete,
    /// The client waits for a continuation, then sends the literal.
    Literal,
    /// A complete command without its line end.
    Command(Bytes),
    /// The line of an APPEND up to its message's literal; `octets` follow at once if the client does not wait.
    Append { line: Bytes, octets: u64, waits: bool },
    /// A command over the limit was skipped.
    TooBig { tag: Option<String> },
    /// A command over the limit has not ended within [`DROPPED_BYTES_MAX`].
    Endless,
}

/// Maximum octets of an oversized command that are read and dropped; a client that sends more is disconnected.
pub(crate) const DROPPED_BYTES_MAX: u64 = 1 << 20;

impl Framer {
    /// Looks for the end of a command of at most `limit` octets.
    pub fn next(&mut self, input: &mut BytesMut, limit: usize, appends: Appends) -> Frame {
        loop {
            if self.skipping.is_some() {
                return self.skip(input);
            }
            if input.len() < self.seen {
                return Frame::Incomplete;
            }
            let window = &input[self.seen..input.len().min(limit.max(self.seen))];
            let Some(end) = memchr::memchr(b'\n', window).map(|at| self.seen + at + 1) else {
                if input.len() <= limit {
                    return Frame::Incomplete;
                }
                self.skip_from(input, self.seen);
                continue;
            };
            let Some(literal) = Literal::at_end_of(&input[self.seen..end]) else {
                self.seen = 0;
                let command = input.split_to(end).freeze();
                let len = command.strip_suffix(b"\r\n").or(command.strip_suffix(b"\n")).map_or(end, <[u8]>::len);
                return Frame::Command(command.slice(..len));
            };
            let is_message = match appends {
                Appends::No => false,
                Appends::First => is_append(&input[..self.seen + literal.start]),
                Appends::Next => true,
            };
            if is_message {
                let line = input.split_to(end).freeze().slice(..self.seen + literal.start);
                self.seen = 0;
                return Frame::Append { line, octets: literal.len, waits: literal.is_synchronizing };
            }
            if literal.len > limit.saturating_sub(end) as u64 {
                if literal.is_synchronizing {
                    let tag = tag_of(input);
                    let _ = input.split_to(end);
                    self.seen = 0;
                    return Frame::TooBig { tag };
                }
                self.skip_from(input, end);
                self.skip_literal(literal.len);
                continue;
            }
            // Fits: it is below the limit.
            self.seen = end + literal.len as usize;
            if literal.is_synchronizing {
                return Frame::Literal;
            }
        }
    }

    /// Drops the message of a refused APPEND and the rest of its command. A client that sends more than `most` octets
    /// is disconnected.
    pub fn drop_message(&mut self, octets: u64, most: u64) {
        let most = DROPPED_BYTES_MAX.saturating_add(most);
        self.skipping = Some(Skipping { tag: None, literal: octets, dropped: 0, most });
    }

    fn skip_from(&mut self, input: &mut BytesMut, end: usize) {
        self.skipping = Some(Skipping { tag: tag_of(input), literal: 0, dropped: end as u64, most: DROPPED_BYTES_MAX });
        let _ = input.split_to(end);
        self.seen = 0;
    }

    fn skip_literal(&mut self, len: u64) {
        if let Some(skipping) = &mut self.skipping {
            skipping.literal = len;
        }
    }

    fn skip(&mut self, input: &mut BytesMut) -> Frame {
        let Some(skipping) = &mut self.skipping else { return Frame::Incomplete };
        loop {
            // A literal that will be too long is not waited for.
            if skipping.dropped.saturating_add(skipping.literal) > skipping.most {
                return Frame::Endless;
            }
            let take = skipping.literal.min(input.len() as u64);
            let _ = input.split_to(take as usize);
            skipping.literal -= take;
            skipping.dropped += take;
            if skipping.literal > 0 {
                return Frame::Incomplete;
            }
            let Some(end) = memchr::memchr(b'\n', input).map(|at| at + 1) else {
                // The end of the line may announce a literal.
                let take = input.len().saturating_sub(LITERAL_MARK_BYTES_MAX + 2);
                let _ = input.split_to(take);
                skipping.dropped += take as u64;
                return if skipping.dropped > skipping.most { Frame::Endless } else { Frame::Incomplete };
            };
            let literal = Literal::at_end_of(&input[..end]);
            let _ = input.split_to(end);
            skipping.dropped += end as u64;
            match literal {
                Some(literal) if !literal.is_synchronizing => skipping.literal = literal.len,
                _ if skipping.dropped > skipping.most => return Frame::Endless,
                _ => {
                    let tag = self.skipping.take().and_then(|skipping| skipping.tag);
                    return Frame::TooBig { tag };
                }
            }
        }
    }
}

/// Maximum length of a tag that replies repeat.
const TAG_BYTES_MAX: usize = 256;

fn tag_of(command: &[u8]) -> Option<String> {
    let mut cursor = Cursor::new(&command[..command.len().min(TAG_BYTES_MAX)]);
    let tag = cursor.tag().ok()?;
    cursor.take(b' ').then(|| tag.to_owned())
}

/// True if the next literal is the message of an APPEND, not the name of its mailbox.
fn is_append(line: &[u8]) -> bool {
    let mut cursor = Cursor::new(line);
    cursor.tag().is_ok()
        && cursor.take(b' ')
        && cursor.take_word("APPEND")
        && cursor.take(b' ')
        && cursor.astring().is_ok()
        && cursor.take(b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All frames of `text`, given `piece` octets at a time.
    fn frames(text: &[u8], limit: usize, piece: usize) -> Vec<Frame> {
        let (mut framer, mut input, mut found) = (Framer::default(), BytesMut::new(), Vec::new());
        for octets in text.chunks(piece) {
            input.extend_from_slice(octets);
            loop {
                match framer.next(&mut input, limit, Appends::First) {
                    Frame::Incomplete => break,
                    Frame::Endless => {
                        found.push(Frame::Endless);
                        return found;
                    }
                    frame => found.push(frame),
                }
            }
            assert!(input.len() <= limit + piece.max(64), "{} octets wait", input.len());
        }
        found
    }

    fn check(text: &[u8], limit: usize, expected: &[Frame]) {
        for piece in [1, 2, 3, 7, 64, text.len().max(1)] {
            assert_eq!(frames(text, limit, piece), expected, "{} in pieces of {piece}", text.escape_ascii());
        }
    }

    fn command(text: &'static str) -> Frame {
        Frame::Command(Bytes::from_static(text.as_bytes()))
    }

    fn too_big(tag: &str) -> Frame {
        Frame::TooBig { tag: Some(tag.into()) }
    }

    #[test]
    fn commands_end_where_their_literals_do() {
        check(b"a NOOP\r\nb NOOP\n\r\n", 100, &[command("a NOOP"), command("b NOOP"), command("")]);
        check(
            b"a LOGIN {3}\r\n\r\n\n {2+}\r\nxy\r\n",
            100,
            &[Frame::Literal, command("a LOGIN {3}\r\n\r\n\n {2+}\r\nxy")],
        );
        check(b"a X {0+}\r\n\r\nb {-1}\r\n", 100, &[command("a X {0+}\r\n"), command("b {-1}")]);
        let many = b"{1+}\r\nx".repeat(10_000);
        check(&[b"a ", &many[..], b"\r\nb NOOP\r\n"].concat(), 8192, &[too_big("a"), command("b NOOP")]);
    }

    #[test]
    fn what_is_too_big_is_dropped_and_told() {
        check(b"a LOGIN {90}\r\nb NOOP\r\n", 20, &[too_big("a"), command("b NOOP")]);
        check(b"a {18446744073709551616}\r\nb NOOP\r\n", 30, &[too_big("a"), command("b NOOP")]);
        check(b"a X {30+}\r\n012345678901234567890123456789 {1+}\r\nx\r\nb N\r\n", 20, &[too_big("a"), command("b N")]);
        check(&[b"a ", &b"x".repeat(100)[..], b" {1+}\r\n\n\r\nb N\r\n"].concat(), 20, &[too_big("a"), command("b N")]);
        check(b"(((((((((((((((((((((\r\nb N\r\n", 20, &[Frame::TooBig { tag: None }, command("b N")]);
        check(b"a {4294967296+}\r\nxx", 20, &[Frame::Endless]);
        check(b"a {10000000000+}\r\nxx", 8192, &[Frame::Endless]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_off() {
        let line = b"x".repeat(2 << 20);
        assert_eq!(frames(&line, 8192, 4096), [Frame::Endless]);
        assert_eq!(frames(&[&line[..], b"\n"].concat(), 8192, line.len() + 1), [Frame::Endless]);
        let literals = [&b"a "[..], &b"{1+}\r\nx".repeat(200_000)[..]].concat();
        assert_eq!(frames(&literals, 8192, 4096), [Frame::Endless]);
    }

    #[test]
    fn the_message_of_an_append_is_apart() {
        let line = Bytes::from_static(b"a APPEND x () ");
        check(b"a APPEND x () {5000000}\r\n", 100, &[Frame::Append { line, octets: 5_000_000, waits: true }]);
        let line = Bytes::from_static(b"a append {1}\r\nx () ");
        let append = Frame::Append { line, octets: 7, waits: false };
        check(b"a append {1}\r\nx () {7+}\r\n", 100, &[Frame::Literal, append]);
    }
}
