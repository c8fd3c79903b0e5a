//! `Content-Type` and `Content-Disposition`: the value and its parameters (RFC 2045 section 5.1, RFC 2231).

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::charset::{Charset, decode_body};
use super::transfer::hex;
use super::words::{decode_text, unfold};

/// Most pieces of one parameter (RFC 2231 section 3).
const PIECES_MAX: usize = 1000;

/// The value before the parameters, in lower case, such as `text/plain` or `attachment`. Comments and blanks are
/// dropped.
pub fn main_value(value: &[u8]) -> String {
    let mut out = String::new();
    let mut at = 0;
    let mut unclosed = false;
    loop {
        at = skip_blanks(value, at, &mut unclosed);
        let Some(&byte) = value.get(at) else { break };
        let is_end = byte == b';' || !out.is_empty() && !out.ends_with('/') && byte != b'/';
        if is_end {
            break;
        }
        let len = if byte == b'/' { 1 } else { token_len(&value[at..]) };
        if len == 0 {
            break;
        }
        out.push_str(&String::from_utf8_lossy(&value[at..at + len]));
        at += len;
    }
    out.make_ascii_lowercase();
    out
}

/// Length of a type's token.
fn token_len(text: &[u8]) -> usize {
    text.iter().position(|&byte| !byte.is_ascii_graphic() || b"/;()\"=,".contains(&byte)).unwrap_or(text.len())
}

/// Skips blanks, line ends and comments. `unclosed`: an unclosed comment was met, so none is searched again; otherwise
/// each of many would be searched to the end.
fn skip_blanks(value: &[u8], mut at: usize, unclosed: &mut bool) -> usize {
    loop {
        at += value[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if *unclosed || value.get(at) != Some(&b'(') {
            return at;
        }
        match comment_len(&value[at..]) {
            Some(len) => at += len,
            None => *unclosed = true,
        }
    }
}

/// Length of a closed comment (RFC 5322 section 3.2.2) at the start of `text`.
pub(super) fn comment_len(text: &[u8]) -> Option<usize> {
    if text.first() != Some(&b'(') {
        return None;
    }
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' => at += 1,
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(at + 1),
            b')' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// A raw parameter.
struct Raw<'a> {
    name: &'a [u8],
    value: Cow<'a, [u8]>,
}

/// All parameters of a value.
struct Parameters<'a> {
    value: &'a [u8],
    at: usize,
    /// An unclosed comment was found, as in [`skip_blanks`].
    unclosed: bool,
}

impl<'a> Parameters<'a> {
    fn new(value: &'a [u8]) -> Self {
        // After the first semicolon, or, if it is missing, after the first blank of the value. Or at once:
        // `charset=utf-8`.
        let mut unclosed = false;
        let start = skip_blanks(value, 0, &mut unclosed);
        let behind_token = skip_blanks(value, start + token_len(&value[start..]), &mut unclosed);
        if behind_token > start && value.get(behind_token) == Some(&b'=') {
            return Self { value, at: start, unclosed };
        }
        let end = value[start..].iter().position(|&byte| byte == b';' || byte.is_ascii_whitespace());
        Self { value, at: end.map_or(value.len(), |end| start + end), unclosed }
    }

    fn take_value(&mut self, may_have_blanks: bool) -> Cow<'a, [u8]> {
        let rest = &self.value[self.at..];
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            let (content, len) = unquote(quoted);
            self.at += 1 + len;
            return content;
        }
        let is_end = |byte: &u8| *byte == b';' || !may_have_blanks && byte.is_ascii_whitespace();
        let len = rest.iter().position(is_end).unwrap_or(rest.len());
        self.at += len;
        unfold(rest[..len].trim_ascii())
    }
}

/// The content of a quoted string after its first quote, and its length with the last. A backslash escapes only
/// characters that need it, since mail has paths in quotes.
fn unquote(text: &[u8]) -> (Cow<'_, [u8]>, usize) {
    let mut content = Vec::new();
    let mut from = 0;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' if content.is_empty() && from == 0 => return (unfold(&text[..at]), at + 1),
            b'"' => {
                content.extend_from_slice(&text[from..at]);
                return (Cow::Owned(unfold(&content).into_owned()), at + 1);
            }
            b'\\' if matches!(text.get(at + 1), Some(b'"' | b'\\')) => {
                content.extend_from_slice(&text[from..at]);
                from = at + 1;
                at += 2;
            }
            _ => at += 1,
        }
    }
    content.extend_from_slice(&text[from.min(text.len())..]);
    (Cow::Owned(unfold(&content).into_owned()), text.len())
}

impl<'a> Iterator for Parameters<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        loop {
            self.at = skip_blanks(self.value, self.at, &mut self.unclosed);
            let rest = &self.value[self.at..];
            let len = rest
                .iter()
                .position(|&byte| b"=;\"(".contains(&byte) || byte.is_ascii_whitespace())
                .unwrap_or(rest.len());
            if rest.is_empty() {
                return None;
            }
            if len == 0 {
                self.at += 1;
                continue;
            }
            self.at = skip_blanks(self.value, self.at + len, &mut self.unclosed);
            if self.value.get(self.at) != Some(&b'=') {
                continue;
            }
            self.at += 1;
            self.at += self.value[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let name = &rest[..len];
            // Mail has file names with blanks and no quotes.
            let value = self.take_value(name.len() >= 4 && name[name.len() - 4..].eq_ignore_ascii_case(b"name"));
            return Some(Raw { name, value });
        }
    }
}

/// A parameter's raw octets, unquoted: for boundaries.
pub(super) fn raw_parameter<'a>(value: &'a [u8], name: &str) -> Option<Cow<'a, [u8]>> {
    Parameters::new(value).find(|raw| raw.name.eq_ignore_ascii_case(name.as_bytes())).map(|raw| raw.value)
}

/// All parameters of a value in their order, unquoted and otherwise raw: pieces (RFC 2231) stay pieces.
pub fn raw_parameters(value: &[u8]) -> impl Iterator<Item = (&[u8], Cow<'_, [u8]>)> {
    Parameters::new(value).map(|raw| (raw.name, raw.value))
}

/// The decoded value of a parameter: joins its pieces (RFC 2231), applies its charset, and decodes encoded words (which
/// should not be there).
///
/// ```
/// use posthaste_message::mime::parameter;
/// let value = b"attachment; filename*0*=utf-8'en'na%C3%AF; filename*1=\"ve.txt\"";
/// assert_eq!(parameter(value, "filename", None).as_deref(), Some("naïve.txt"));
/// ```
pub fn parameter(value: &[u8], name: &str, fallback: Option<Charset>) -> Option<String> {
    let mut plain = None;
    let mut pieces: BTreeMap<u32, (bool, Cow<'_, [u8]>)> = BTreeMap::new();
    for raw in Parameters::new(value) {
        if raw.name.len() < name.len() || !raw.name[..name.len()].eq_ignore_ascii_case(name.as_bytes()) {
            continue;
        }
        let suffix = &raw.name[name.len()..];
        if suffix.is_empty() {
            plain.get_or_insert(raw.value);
        } else if let Some((number, is_encoded)) = piece_of(suffix).filter(|_| pieces.len() < PIECES_MAX) {
            pieces.entry(number).or_insert((is_encoded, raw.value));
        }
    }
    if pieces.is_empty() {
        return plain.map(|value| decode_text(&value, fallback).into_owned());
    }
    Some(put_together(pieces, fallback))
}

/// Parses `*`, `*0`, `*0*`: the number of the piece, and true if it is percent-encoded.
fn piece_of(suffix: &[u8]) -> Option<(u32, bool)> {
    let suffix = std::str::from_utf8(suffix).ok()?.strip_prefix('*')?;
    if suffix.is_empty() {
        return Some((0, true));
    }
    let number = suffix.strip_suffix('*').unwrap_or(suffix);
    Some((number.parse().ok()?, number.len() < suffix.len()))
}

fn put_together(pieces: BTreeMap<u32, (bool, Cow<'_, [u8]>)>, fallback: Option<Charset>) -> String {
    let mut label = Vec::new();
    let mut octets = Vec::new();
    let mut has_encoded = false;
    for (at, (is_encoded, value)) in pieces.into_values().enumerate() {
        let mut value = &*value;
        has_encoded |= is_encoded;
        if is_encoded && at == 0 {
            let mut quotes = value.splitn(3, |&byte| byte == b'\'');
            if let (Some(charset), Some(_), Some(rest)) = (quotes.next(), quotes.next(), quotes.next()) {
                (label, value) = (charset.to_vec(), rest);
            }
        }
        if is_encoded { percent_decode(value, &mut octets) } else { octets.extend_from_slice(value) }
    }
    if has_encoded {
        decode_body(&octets, Some(&label), false).into_owned()
    } else {
        decode_text(&octets, fallback).into_owned()
    }
}

fn percent_decode(text: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let escaped = match (byte, text.get(at + 1..at + 3)) {
            (b'%', Some(digits)) => hex(digits[0]).zip(hex(digits[1])).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        out.push(escaped.unwrap_or(byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_with_blanks_and_comments() {
        for (value, expected) in [
            (&b" text/plain; charset=x"[..], "text/plain"),
            (b"MULTIPART / Digest; boundary=b", "multipart/digest"),
            (b"(c) message / rfc822 (x)", "message/rfc822"),
            (b"text/html charset=utf-8", "text/html"),
            (b"text", "text"),
            (b"text/", "text/"),
            (b"", ""),
            (b"; charset=x", ""),
            (b"attachment\r\n; filename=x", "attachment"),
            (b"application/vnd.ms-excel", "application/vnd.ms-excel"),
            (b"\"text/plain\"", ""),
        ] {
            assert_eq!(main_value(value), expected, "{}", value.escape_ascii());
        }
    }

    fn check(value: &[u8], name: &str, expected: Option<&str>) {
        assert_eq!(parameter(value, name, None).as_deref(), expected, "{} of {}", name, value.escape_ascii());
    }

    #[test]
    fn parameters_are_read_quoted_or_not() {
        check(b"text/plain; charset=utf-8; name=\"a b.txt\"", "name", Some("a b.txt"));
        check(b"text/plain; Charset = \"utf-8\" ; x=y", "charset", Some("utf-8"));
        check(b"text/plain charset=utf-8", "charset", Some("utf-8"));
        check(b"text/plain; charset=us-ascii (plain text)", "charset", Some("us-ascii"));
        check(b"text/plain; charset=us-ascii format=flowed", "format", Some("flowed"));
        check(b"a/b; name=no quotes here.txt", "name", Some("no quotes here.txt"));
        check(b"a/b; name=foo(1).pdf; x=1", "name", Some("foo(1).pdf"));
        check(b"a/b; name=\"C:\\dir\\file.txt\"", "name", Some("C:\\dir\\file.txt"));
        check(b"a/b; name=\"a \\\"b\\\" \\\\c\"", "name", Some("a \"b\" \\c"));
        check(b"a/b; name=\"open", "name", Some("open"));
        check(b"a/b; name=\"folded\r\n name\"", "name", Some("folded name"));
        check(b"a/b; name=\"\"", "name", Some(""));
        check(b"a/b; filename=x", "name", None);
        check(b"a/b;;; = ; name=x;", "name", Some("x"));
        check(b"a/b; name=first; name=second", "name", Some("first"));
        check(b"charset=utf-8; format=flowed", "charset", Some("utf-8"));
        check(b" filename = a.pdf", "filename", Some("a.pdf"));
    }

    #[test]
    fn pieces_are_put_together_in_their_order() {
        check(b"a; filename*1=\"b\"; filename*0=\"a\"; filename*2=c; filename=plain", "filename", Some("abc"));
        check(b"a; filename*=iso-8859-1'de'gr%FC%DFe", "filename", Some("grüße"));
        check(b"a; filename*0*=utf-8''%E2%82; filename*1*=%AC.txt", "filename", Some("€.txt"));
        check(b"a; filename*=utf-8'no-second-quote", "filename", Some("utf-8'no-second-quote"));
        check(b"a; filename*=UTF-8''a%2", "filename", Some("a%2"));
        check(b"a; filename*x=1; filename=b", "filename", Some("b"));
    }

    #[test]
    fn encoded_words_and_bare_octets_are_read() {
        check(b"a; name=\"=?utf-8?Q?r=C3=A9sum=C3=A9?=.txt\"", "name", Some("résumé.txt"));
        check(b"a; name==?utf-8?Q?r=C3=A9sum=C3=A9?=.txt; x=1", "name", Some("résumé.txt"));
        check(b"a; name=\"Gr\xfc\xdfe.txt\"", "name", Some("Grüße.txt"));
    }

    #[test]
    fn what_is_long_is_read_once() {
        // Each would take minutes with a search to the end for every mark.
        for many in ["(", "x(", "x (\\)", "a=b ", "a= ", "a=\"b\" ", "a*1=b ", "\""] {
            let value = format!("text/plain; {}", many.repeat(200_000));
            assert_eq!(main_value(value.as_bytes()), "text/plain");
            assert_eq!(parameter(value.as_bytes(), "charset", None), None, "{many}");
            assert_eq!(main_value(many.repeat(200_000).as_bytes()).is_empty(), many.starts_with(['(', '"']));
        }
        let value = format!("text/plain; {}; charset=utf-8", "(".repeat(10));
        assert_eq!(parameter(value.as_bytes(), "charset", None).as_deref(), Some("utf-8"));
    }

    #[test]
    fn raw_parameters_are_given_as_written() {
        let value = b"text/plain; Charset=\"utf-8\"; name*0*=utf-8''%e2; name*1=\"a\\\"b\"";
        let found: Vec<_> = raw_parameters(value).map(|(n, v)| (n.to_vec(), v.into_owned())).collect();
        let expected = [("Charset", "utf-8"), ("name*0*", "utf-8''%e2"), ("name*1", "a\"b")];
        assert_eq!(found, expected.map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())));
    }
}
