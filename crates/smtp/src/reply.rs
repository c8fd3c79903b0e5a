//! Replies: written by the server, read by the client (RFC 5321 section 4.2, RFC 2034, RFC 3463).

use std::borrow::Cow;
use std::fmt;
use std::io::Write;

/// Longest written reply line, CRLF included (RFC 5321 section 4.5.3.1.5); longer text is folded into more lines.
pub const REPLY_LINE_BYTES_MAX: usize = 512;

/// An enhanced status code such as 5.1.1 (RFC 3463).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EnhancedCode {
    /// 2, 4 or 5.
    pub class: u8,
    /// 0 to 999.
    pub subject: u16,
    /// 0 to 999.
    pub detail: u16,
}

impl EnhancedCode {
    /// Combines class, subject and detail to a code.
    pub const fn new(class: u8, subject: u16, detail: u16) -> Self {
        Self { class, subject, detail }
    }

    /// Parses `5.1.1` with nothing after it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let mut number = |max_digits: usize| {
            let part = parts.next()?;
            let fits = !part.is_empty() && part.len() <= max_digits && part.bytes().all(|b| b.is_ascii_digit());
            if fits { part.parse::<u16>().ok() } else { None }
        };
        let class = number(1)?;
        let subject = number(3)?;
        let detail = number(3)?;
        (parts.next().is_none() && matches!(class, 2 | 4 | 5)).then_some(Self { class: class as u8, subject, detail })
    }
}

impl fmt::Display for EnhancedCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.class, self.subject, self.detail)
    }
}

/// One reply: code, enhanced code, text. Line feeds in the text separate its lines.
///
/// ```
/// use posthaste_smtp::Reply;
/// let reply = Reply::new(550, "5.1.1", "No such user here");
/// assert_eq!(reply.to_string(), "550 5.1.1 No such user here");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    code: u16,
    enhanced: Option<EnhancedCode>,
    text: Cow<'static, str>,
}

impl Reply {
    /// A reply with an enhanced code, or `""` for none.
    ///
    /// # Panics
    /// When `code` is not 200..=599 or `enhanced` is neither empty nor a code of the same class: both are the
    /// caller's own constants.
    pub fn new(code: u16, enhanced: &str, text: impl Into<Cow<'static, str>>) -> Self {
        assert!((200..600).contains(&code), "reply code {code}");
        let enhanced = match enhanced {
            "" => None,
            text => Some(EnhancedCode::parse(text).unwrap_or_else(|| panic!("enhanced code {text}"))),
        };
        assert!(enhanced.is_none_or(|e| u16::from(e.class) == code / 100), "reply {code} with {enhanced:?}");
        Self { code, enhanced, text: text.into() }
    }

    /// 250 2.0.0.
    pub fn ok(text: impl Into<Cow<'static, str>>) -> Self {
        Self { code: 250, enhanced: Some(EnhancedCode::new(2, 0, 0)), text: text.into() }
    }

    /// The three-digit code.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// The enhanced code, if the reply has one.
    pub fn enhanced(&self) -> Option<EnhancedCode> {
        self.enhanced
    }

    /// The text without codes, its lines separated by line feeds.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// 2yz.
    pub fn is_positive(&self) -> bool {
        self.code / 100 == 2
    }

    /// 4yz: the client may try again.
    pub fn is_transient(&self) -> bool {
        self.code / 100 == 4
    }

    /// 5yz: the client must not try again.
    pub fn is_permanent(&self) -> bool {
        self.code / 100 == 5
    }

    /// Appends the wire form. Control characters in the text become `?`, so that no text can forge a second reply; long
    /// lines are folded at [`REPLY_LINE_BYTES_MAX`].
    pub fn write(&self, out: &mut Vec<u8>) {
        // Code and separator, and the enhanced code at its longest.
        const PREFIX_BYTES_MAX: usize = 4 + "5.999.999 ".len();
        const ROOM: usize = REPLY_LINE_BYTES_MAX - 2 - PREFIX_BYTES_MAX;
        let mut lines = self.text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).peekable();
        while let Some(mut line) = lines.next() {
            while line.len() > ROOM {
                let cut = (0..=ROOM).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(ROOM);
                self.write_line(out, b'-', &line[..cut]);
                line = &line[cut..];
            }
            self.write_line(out, if lines.peek().is_none() { b' ' } else { b'-' }, line);
        }
    }

    fn write_line(&self, out: &mut Vec<u8>, separator: u8, text: &str) {
        // Writing to a vector cannot fail.
        let _ = write!(out, "{}", self.code);
        out.push(separator);
        if let Some(enhanced) = self.enhanced {
            let _ = write!(out, "{enhanced} ");
        }
        out.extend(text.bytes().map(|b| if b < b' ' || b == 127 { b'?' } else { b }));
        out.extend_from_slice(b"\r\n");
    }
}

/// The wire form without the last CRLF.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wire = Vec::new();
        self.write(&mut wire);
        f.write_str(String::from_utf8_lossy(&wire).trim_end_matches("\r\n"))
    }
}

/// A stored reply of another host: at most [`ShortReply::BYTES_MAX`] bytes and [`ShortReply::LINES_MAX`] lines of text.
/// The rest is cut on creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortReply(Reply);

impl ShortReply {
    /// Maximum bytes of the text.
    pub const BYTES_MAX: usize = 1000;
    /// Maximum lines of the text.
    pub const LINES_MAX: usize = 8;
}

impl From<Reply> for ShortReply {
    fn from(mut reply: Reply) -> Self {
        let text = &*reply.text;
        let end = text.match_indices('\n').nth(Self::LINES_MAX - 1).map_or(text.len(), |(at, _)| at);
        let end = text.floor_char_boundary(end.min(Self::BYTES_MAX));
        if end < text.len() {
            reply.text = text[..end].to_owned().into();
        }
        Self(reply)
    }
}

impl From<ShortReply> for Reply {
    fn from(reply: ShortReply) -> Self {
        reply.0
    }
}

impl std::ops::Deref for ShortReply {
    type Target = Reply;

    fn deref(&self) -> &Reply {
        &self.0
    }
}

impl fmt::Display for ShortReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reason why bytes are not a reply. The connection is then out of step and of no further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// More octets without an end of line than [`ReplyParser::LINE_BYTES_MAX`].
    #[error("reply line is too long")]
    LineTooLong,
    /// More lines in one reply than [`ReplyParser::LINES_MAX`].
    #[error("reply has too many lines")]
    TooManyLines,
    /// No three digits at the start, or a code outside 200..=599.
    #[error("no reply code")]
    Code,
    /// The lines of one reply carry different codes.
    #[error("reply code changes from line to line")]
    CodesDiffer,
}

/// Parses replies from a byte stream, however it is split.
#[derive(Debug, Default)]
pub struct ReplyParser {
    code: u16,
    enhanced: Option<EnhancedCode>,
    text: String,
    lines: usize,
    scanned: usize,
}

impl ReplyParser {
    /// Longest line taken, CRLF included. The standard says 512; some servers write longer ones.
    pub const LINE_BYTES_MAX: usize = 4096;
    /// Maximum lines in one reply.
    pub const LINES_MAX: usize = 128;
    /// Longest kept text of one reply; the rest is skipped.
    pub const TEXT_BYTES_MAX: usize = 64 << 10;

    /// Takes one whole reply from the front of `input`; `Ok(None)` means that more bytes are needed.
    ///
    /// Bytes that are not UTF-8 are replaced. A bare LF counts as a line end here: a reply has nothing to smuggle.
    ///
    /// # Errors
    /// See [`ReplyError`].
    pub fn next(&mut self, input: &mut bytes::BytesMut) -> Result<Option<Reply>, ReplyError> {
        loop {
            let Some(found) = memchr::memchr(b'\n', &input[self.scanned..]) else {
                self.scanned = input.len();
                return if input.len() > Self::LINE_BYTES_MAX { Err(ReplyError::LineTooLong) } else { Ok(None) };
            };
            let end = self.scanned + found + 1;
            if end > Self::LINE_BYTES_MAX {
                return Err(ReplyError::LineTooLong);
            }
            self.scanned = 0;
            let line = input.split_to(end);
            if let Some(reply) = self.line(line[..end - 1].strip_suffix(b"\r").unwrap_or(&line[..end - 1]))? {
                return Ok(Some(reply));
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Reply>, ReplyError> {
        let (digits, rest) = line.split_at_checked(3).ok_or(ReplyError::Code)?;
        if !digits.iter().all(u8::is_ascii_digit) || !(b'2'..=b'5').contains(&digits[0]) {
            return Err(ReplyError::Code);
        }
        let code = digits.iter().fold(0, |code, d| code * 10 + u16::from(d - b'0'));
        let last = match rest.first() {
            None | Some(b' ') => true,
            Some(b'-') => false,
            Some(_) => return Err(ReplyError::Code),
        };
        if self.lines > 0 && code != self.code {
            return Err(ReplyError::CodesDiffer);
        }
        if self.lines >= Self::LINES_MAX {
            return Err(ReplyError::TooManyLines);
        }
        let text = String::from_utf8_lossy(rest.get(1..).unwrap_or_default());
        let (enhanced, text) = split_enhanced(code, &text);
        if self.lines > 0 {
            self.keep("\n");
        } else {
            self.enhanced = enhanced;
        }
        self.keep(text);
        self.code = code;
        self.lines += 1;
        if !last {
            return Ok(None);
        }
        let done = std::mem::take(self);
        Ok(Some(Reply { code: done.code, enhanced: done.enhanced, text: done.text.into() }))
    }

    fn keep(&mut self, text: &str) {
        let room = Self::TEXT_BYTES_MAX - self.text.len();
        self.text.push_str(&text[..text.floor_char_boundary(room)]);
    }
}

fn split_enhanced(code: u16, text: &str) -> (Option<EnhancedCode>, &str) {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match EnhancedCode::parse(word) {
        Some(enhanced) if u16::from(enhanced.class) == code / 100 => (Some(enhanced), rest),
        _ => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    fn read(wire: &str) -> Result<Option<Reply>, ReplyError> {
        ReplyParser::default().next(&mut BytesMut::from(wire))
    }

    #[test]
    fn text_cannot_forge_a_second_reply() {
        let mut out = Vec::new();
        Reply::new(550, "5.7.1", "no\r\n250 2.0.0 yes\rx").write(&mut out);
        assert_eq!(out, b"550-5.7.1 no\r\n550 5.7.1 250 2.0.0 yes?x\r\n");
    }

    #[test]
    fn long_text_is_folded() {
        let mut out = Vec::new();
        Reply::new(250, "", "é".repeat(600)).write(&mut out);
        assert!(out.split_inclusive(|b| *b == b'\n').all(|line| line.len() <= REPLY_LINE_BYTES_MAX));
        let reply = ReplyParser::default().next(&mut BytesMut::from(&out[..])).unwrap().unwrap();
        assert_eq!(reply.text().replace('\n', ""), "é".repeat(600));
    }

    #[test]
    fn replies_are_read() {
        assert_eq!(read("250 2.1.0 ok\r\n"), Ok(Some(Reply::new(250, "2.1.0", "ok"))));
        assert_eq!(read("250\r\n"), Ok(Some(Reply::new(250, "", ""))));
        assert_eq!(read("250 5.1.0 odd\r\n"), Ok(Some(Reply::new(250, "", "5.1.0 odd"))));
        assert_eq!(read("250-a\r\n250-b c\r\n250 d\r\n"), Ok(Some(Reply::new(250, "", "a\nb c\nd"))));
        assert_eq!(read("250-a\r\n"), Ok(None));
    }

    #[test]
    fn long_replies_are_read_to_their_end_and_kept_in_part() {
        let wire = format!("550-{}\r\n", "x".repeat(3900)).repeat(120) + "550 5.1.1 end\r\n";
        let reply = read(&wire).unwrap().unwrap();
        assert_eq!((reply.code(), reply.text().len()), (550, ReplyParser::TEXT_BYTES_MAX));
        let short = ShortReply::from(reply);
        assert_eq!(short.text(), "x".repeat(ShortReply::BYTES_MAX));
    }

    #[test]
    fn a_short_reply_is_cut_behind_a_line_or_a_whole_character() {
        let short = |text: String| ShortReply::from(Reply::new(451, "4.7.1", text)).text().to_owned();
        for whole in ["".to_owned(), "x".repeat(1000), "a\n".repeat(7) + "b"] {
            assert_eq!(short(whole.clone()), whole);
        }
        assert_eq!(short("a\n".repeat(8)), "a\n".repeat(7) + "a");
        assert_eq!(short("a\n".repeat(100_000)), "a\n".repeat(7) + "a");
        assert_eq!(short("é".repeat(501)), "é".repeat(500));
        assert_eq!(short(format!("x{}", "é".repeat(500))).len(), 999);
    }

    #[test]
    fn bad_replies_are_errors() {
        assert_eq!(read("hello\r\n"), Err(ReplyError::Code));
        assert_eq!(read("25\r\n"), Err(ReplyError::Code));
        assert_eq!(read("150 x\r\n"), Err(ReplyError::Code));
        assert_eq!(read("250x\r\n"), Err(ReplyError::Code));
        assert_eq!(read("250-a\r\n550 b\r\n"), Err(ReplyError::CodesDiffer));
        assert_eq!(read(&"2".repeat(5000)), Err(ReplyError::LineTooLong));
        assert_eq!(read(&"250-a\r\n".repeat(200)), Err(ReplyError::TooManyLines));
    }
}
