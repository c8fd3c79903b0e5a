//! The tokens of RFC 3501 section 9, read from a whole command with its literals.

use crate::command::ImapCommandError;

type Result<T> = std::result::Result<T, ImapCommandError>;

/// A position in a command.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

const fn bad<T>(why: &'static str) -> Result<T> {
    Err(ImapCommandError::Bad(why))
}

impl<'a> Cursor<'a> {
    /// `command` is without its last line end.
    pub fn new(command: &'a [u8]) -> Self {
        Self { rest: command }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Consumes `octet` if it is next.
    pub fn take(&mut self, octet: u8) -> bool {
        let is_next = self.peek() == Some(octet);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    pub fn expect(&mut self, octet: u8, why: &'static str) -> Result<()> {
        if self.take(octet) { Ok(()) } else { bad(why) }
    }

    pub fn space(&mut self) -> Result<()> {
        self.expect(b' ', "A space is missing")
    }

    pub fn end(&self) -> Result<()> {
        if self.is_at_end() { Ok(()) } else { bad("The command has more than it should") }
    }

    /// Consumes octets that satisfy `is_part`; may be empty.
    pub fn run(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let len = self.rest.iter().position(|&octet| !is_part(octet)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(len);
        self.rest = rest;
        run
    }

    fn text(&mut self, is_part: impl Fn(u8) -> bool, why: &'static str) -> Result<&'a str> {
        match std::str::from_utf8(self.run(is_part)) {
            Ok(text) if !text.is_empty() => Ok(text),
            _ => bad(why),
        }
    }

    pub fn tag(&mut self) -> Result<&'a str> {
        self.text(|octet| is_astring_char(octet) && octet != b'+', "A tag is missing")
    }

    pub fn atom(&mut self) -> Result<&'a str> {
        self.text(is_atom_char, "A word is missing")
    }

    /// A word in upper case, for comparison.
    pub fn keyword(&mut self) -> Result<String> {
        self.atom().map(str::to_ascii_uppercase)
    }

    /// Consumes `word`, in any case, if it is the next whole word.
    pub fn take_word(&mut self, word: &str) -> bool {
        let mut after = self.clone();
        let found = after.run(is_atom_char).eq_ignore_ascii_case(word.as_bytes());
        if found {
            *self = after;
        }
        found
    }

    /// `number` of RFC 3501: leading zeros are allowed, 4294967295 is the largest.
    pub fn number(&mut self) -> Result<u32> {
        self.number64().and_then(|number| number.try_into().or(bad("A number is too large")))
    }

    pub fn number64(&mut self) -> Result<u64> {
        let digits = self.text(|octet| octet.is_ascii_digit(), "A number is missing")?;
        digits.parse().or(bad("A number is too large"))
    }

    pub fn nonzero(&mut self) -> Result<u32> {
        match self.number()? {
            0 => bad("A number is 0"),
            number => Ok(number),
        }
    }

    pub fn astring(&mut self) -> Result<Vec<u8>> {
        match self.peek() {
            Some(b'"' | b'{') => self.string(),
            _ => self.text(is_astring_char, "A string is missing").map(|atom| atom.as_bytes().to_vec()),
        }
    }

    /// A pattern of LIST: unquoted wildcards are allowed.
    pub fn list_mailbox(&mut self) -> Result<Vec<u8>> {
        match self.peek() {
            Some(b'"' | b'{') => self.string(),
            _ => {
                let is_part = |octet| is_astring_char(octet) || matches!(octet, b'%' | b'*');
                self.text(is_part, "A pattern is missing").map(|text| text.as_bytes().to_vec())
            }
        }
    }

    pub fn nstring(&mut self) -> Result<Option<Vec<u8>>> {
        if self.take_word("NIL") { Ok(None) } else { self.string().map(Some) }
    }

    pub fn string(&mut self) -> Result<Vec<u8>> {
        if self.take(b'"') { self.quoted() } else { self.literal() }
    }

    /// Rest of a quoted string, after the first quote. Octets above ASCII are accepted: clients write UTF-8 in
    /// passwords and searches (RFC 9051 allows it).
    fn quoted(&mut self) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            content.extend_from_slice(self.run(|octet| !matches!(octet, b'"' | b'\\' | b'\r' | b'\n' | 0)));
            match (self.peek(), self.rest.get(1)) {
                (Some(b'"'), _) => break,
                (Some(b'\\'), Some(&escaped @ (b'"' | b'\\'))) => {
                    content.push(escaped);
                    self.rest = &self.rest[2..];
                }
                _ => return bad("A quoted string is not closed or has a wrong escape"),
            }
        }
        self.rest = &self.rest[1..];
        Ok(content)
    }

    fn literal(&mut self) -> Result<Vec<u8>> {
        let (line, after) = match memchr::memchr(b'\n', self.rest) {
            Some(end) if self.peek() == Some(b'{') => self.rest.split_at(end + 1),
            _ => return bad("A string is missing"),
        };
        let Some(literal) = Literal::at_end_of(line).filter(|literal| literal.start == 0) else {
            return bad("A string is missing");
        };
        let Some((content, rest)) = usize::try_from(literal.len).ok().and_then(|len| after.split_at_checked(len))
        else {
            return bad("A literal is cut off");
        };
        if content.contains(&0) {
            return bad("A literal has a NUL");
        }
        self.rest = rest;
        Ok(content.to_vec())
    }

    /// `(item item …)`, of at least `least` items.
    pub fn list<T>(&mut self, least: usize, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.expect(b'(', "A list is missing")?;
        let mut items = Vec::new();
        while !self.take(b')') {
            if !items.is_empty() {
                self.space()?;
            }
            items.push(item(self)?);
        }
        if items.len() < least { bad("A list is empty") } else { Ok(items) }
    }
}

/// The announcement of a literal at the end of a line: `{5}`, or the non-synchronizing `{5+}` (RFC 7888).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Literal {
    /// Position of the opening brace in the line.
    pub start: usize,
    /// Length in octets; a number beyond `u64` becomes its maximum.
    pub len: u64,
    /// True if the client waits for a continuation.
    pub is_synchronizing: bool,
}

/// Maximum length of an announcement: room for 20 digits.
pub(crate) const LITERAL_MARK_BYTES_MAX: usize = 32;

impl Literal {
    /// `line` may include its line end.
    pub fn at_end_of(line: &[u8]) -> Option<Self> {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text).strip_suffix(b"}")?;
        let (text, is_synchronizing) = match text.strip_suffix(b"+") {
            Some(text) => (text, false),
            None => (text, true),
        };
        let digits = text.iter().rev().take(LITERAL_MARK_BYTES_MAX).take_while(|octet| octet.is_ascii_digit()).count();
        let start = (text.len() - digits).checked_sub(1).filter(|&at| text[at] == b'{' && digits > 0)?;
        let number = std::str::from_utf8(&text[start + 1..]).ok()?;
        Some(Self { start, len: number.parse().unwrap_or(u64::MAX), is_synchronizing })
    }
}

pub(crate) fn is_atom_char(octet: u8) -> bool {
    matches!(octet, b'!'..=b'~') && !matches!(octet, b'(' | b')' | b'{' | b'%' | b'*' | b'"' | b'\\' | b']')
}

pub(crate) fn is_astring_char(octet: u8) -> bool {
    is_atom_char(octet) || octet == b']'
}

/// True if the text can be a field name as it is, without quotes.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&octet| is_astring_char(octet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_found_at_the_end_of_a_line() {
        let found = |line: &str| Literal::at_end_of(line.as_bytes()).map(|l| (l.start, l.len, l.is_synchronizing));
        assert_eq!(found("A LOGIN {3}\r\n"), Some((8, 3, true)));
        assert_eq!(found("A LOGIN {3+}\n"), Some((8, 3, false)));
        assert_eq!(found("{0010}"), Some((0, 10, true)));
        assert_eq!(found("{4294967296+}\r\n"), Some((0, 4_294_967_296, false)));
        assert_eq!(found("{18446744073709551616}"), Some((0, u64::MAX, true)));
        for none in
            ["{-1}", "{}", "{+}", "3}", "{3}x", "{3++}", "{3 }", "{3}\r\r\n", &format!("{{{}}}", "1".repeat(40))]
        {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn strings_are_quoted_literal_or_atoms() {
        let read = |text: &str| Cursor::new(text.as_bytes()).astring().map(|text| String::from_utf8(text).unwrap());
        assert_eq!(read("abc]d ").as_deref(), Ok("abc]d"));
        assert_eq!(read(r#""a \"b\" \\" "#).as_deref(), Ok(r#"a "b" \"#));
        assert_eq!(read("\"Grüße\"").as_deref(), Ok("Grüße"));
        assert_eq!(read("{3}\r\na\nb").as_deref(), Ok("a\nb"));
        assert_eq!(read("{0+}\r\n").as_deref(), Ok(""));
        assert_eq!(read("\"\"").as_deref(), Ok(""));
        for wrong in ["", "\"open", "\"a\\b\"", "(", "{3}\r\nab", "{3}", "é", "\"a\0\"", "{1}\r\n\0", "x{1}\r\na\0"] {
            let mut cursor = Cursor::new(wrong.as_bytes());
            let read = cursor.astring().and_then(|_| cursor.end());
            assert!(read.is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn numbers_have_32_bits() {
        let read = |text: &str| Cursor::new(text.as_bytes()).number().ok();
        assert_eq!(read("4294967295"), Some(u32::MAX));
        assert_eq!(read("0010 "), Some(10));
        assert_eq!(read("4294967296"), None);
        assert_eq!(read("-1"), None);
        assert_eq!(Cursor::new(b"0").nonzero().ok(), None);
    }
}
