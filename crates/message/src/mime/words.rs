//! Decodes header text: unfolding (RFC 5322 section 2.2.3) and encoded words (RFC 2047), in any position.

use std::borrow::Cow;

use memchr::memmem;

use super::charset::{Charset, decode_body, decode_header};
use super::transfer::{base64, hex};

/// Decodes an unstructured value.
///
/// Encoded words also count inside quotes and words, as mail has them there. Adjacent ones in one charset are joined
/// before decoding, since a character may span them. Octets beyond ASCII are UTF-8, else `fallback`, else windows-1252.
pub fn decode_text<'a>(value: &'a [u8], fallback: Option<Charset>) -> Cow<'a, str> {
    let value = value.trim_ascii();
    if memmem::find(value, b"=?").is_none() {
        return match unfold(value) {
            Cow::Borrowed(value) => decode_header(value, fallback),
            Cow::Owned(value) => Cow::Owned(decode_header(&value, fallback).into_owned()),
        };
    }
    let value = unfold(value);
    let mut text = Joined { text: String::with_capacity(value.len()), ..Joined::default() };
    let mut rest = &*value;
    let mut is_after_word = false;
    while let Some(word) = next_word(rest) {
        let before = &rest[..word.start];
        if !(is_after_word && before.iter().all(u8::is_ascii_whitespace)) {
            text.flush();
            text.text.push_str(&decode_header(before, fallback));
        }
        text.push(&word);
        is_after_word = true;
        rest = &rest[word.end..];
    }
    text.flush();
    text.text.push_str(&decode_header(rest, fallback));
    Cow::Owned(text.text)
}

/// Removes line ends followed by a blank. Others stay, since they were meant to look like line ends.
pub fn unfold(value: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\n', value).is_none() {
        return Cow::Borrowed(value);
    }
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = memchr::memchr(b'\n', rest) {
        let line = &rest[..at];
        out.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        rest = &rest[at + 1..];
        if !rest.first().is_none_or(|next| matches!(next, b' ' | b'\t')) {
            out.push(b'\n');
        }
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

#[derive(Default)]
struct Joined<'a> {
    text: String,
    label: Option<&'a [u8]>,
    octets: Vec<u8>,
    /// Raw Q words: an escape may span two.
    escaped: Vec<u8>,
}

impl<'a> Joined<'a> {
    fn push(&mut self, word: &Word<'a>) {
        let is_stateful = Charset::for_label(word.label).is_some_and(Charset::is_stateful);
        if is_stateful || !self.label.is_some_and(|label| label.eq_ignore_ascii_case(word.label)) {
            self.flush();
        }
        self.label = Some(word.label);
        if word.is_base64 {
            self.unescape();
            self.octets.extend(base64(word.text).0);
        } else {
            self.escaped.extend_from_slice(word.text)
        }
    }

    fn unescape(&mut self) {
        q_decode(&self.escaped, &mut self.octets);
        self.escaped.clear();
    }

    fn flush(&mut self) {
        self.unescape();
        if let Some(label) = self.label.take() {
            self.text.push_str(&decode_body(&self.octets, Some(label), false));
            self.octets.clear();
        }
    }
}

struct Word<'a> {
    start: usize,
    end: usize,
    label: &'a [u8],
    is_base64: bool,
    text: &'a [u8],
}

/// The first encoded word.
fn next_word(value: &[u8]) -> Option<Word<'_>> {
    let mut from = 0;
    loop {
        let start = from + memmem::find(&value[from..], b"=?")?;
        from = start + 2;
        let Some((label, is_base64, text_at)) = prefix(&value[from..]) else { continue };
        let text_at = from + text_at;
        // Without an end here no later one has an end.
        let len = encoded_text_len(&value[text_at..], is_base64)?;
        return Some(Word { start, end: text_at + len + 2, label, is_base64, text: &value[text_at..text_at + len] });
    }
}

/// Length of an encoded word at the start of `value`.
pub(super) fn encoded_word_len(value: &[u8]) -> Option<usize> {
    let (_, is_base64, len) = prefix(value.strip_prefix(b"=?")?)?;
    let text_at = 2 + len;
    Some(text_at + encoded_text_len(&value[text_at..], is_base64)? + 2)
}

/// Octets before the `?=` that ends an encoded word. Before an escape that may be an unescaped `?`: then the next `?=`
/// ends the word, if no other word begins before it.
fn encoded_text_len(text: &[u8], is_base64: bool) -> Option<usize> {
    let first = memmem::find(text, b"?=")?;
    let mut at = first;
    loop {
        let after = &text[at + 2..];
        let is_escape = !is_base64 && after.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        if !is_escape {
            return Some(at);
        }
        match memmem::find(after, b"?=") {
            Some(len) if memmem::find(&after[..len], b"=?").is_none() => at += 2 + len,
            _ => return Some(first),
        }
    }
}

/// Longest label, with a language (RFC 2231 section 5).
const LABEL_BYTES_MAX: usize = 80;

/// The prefix of an encoded word: its label without language, true for base64, and its length.
fn prefix(value: &[u8]) -> Option<(&[u8], bool, usize)> {
    let len = value.iter().take(LABEL_BYTES_MAX).position(|&byte| byte == b'?')?;
    let label = &value[..len];
    if label.iter().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return None;
    }
    let is_base64 = match value.get(len + 1..len + 3)? {
        [b'B' | b'b', b'?'] => true,
        [b'Q' | b'q', b'?'] => false,
        _ => return None,
    };
    let label = label.split(|&byte| byte == b'*').next().unwrap_or(label);
    Some((label, is_base64, len + 3))
}

/// RFC 2047 section 4.2.
fn q_decode(text: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let escaped = match (byte, text.get(at + 1..at + 3)) {
            (b'=', Some(digits)) => hex(digits[0]).zip(hex(digits[1])).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        out.push(escaped.unwrap_or(if byte == b'_' { b' ' } else { byte }));
        at += if escaped.is_some() { 3 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &[u8], expected: &str) {
        assert_eq!(decode_text(value, None), expected, "{}", value.escape_ascii());
    }

    #[test]
    fn encoded_words_are_decoded_wherever_they_stand() {
        check(b"=?utf-8?Q?J=C3=BCrgen?= Meier", "Jürgen Meier");
        check(b"=?ISO-8859-1?B?SvxyZ2Vu?=", "Jürgen");
        check(b"a=?utf-8?Q?glued?=b", "agluedb");
        check(b"\"=?utf-8?Q?M=C3=BCller=2C_A?=\"", "\"Müller, A\"");
        check(b"Re: =?utf-8?q?a_b?=: c", "Re: a b: c");
        check(b"=?iso-8859-1*de?Q?gr=FC=DFe?=", "grüße");
        check(b"=?utf-8?Q?with blank, and comma?=", "with blank, and comma");
        check(b"=?utf-8?B?aGVsbG8?=", "hello");
        check(b"=?utf-8?B?aGVs!bG8=?=", "hello");
    }

    #[test]
    fn neighbours_are_joined() {
        check(b"=?utf-8?Q?a?=  =?utf-8?Q?b?= c", "ab c");
        check(b"=?utf-8?Q?split_=E2=82?=\r\n =?UTF-8?B?rCBldXJv?=", "split € euro");
        check(b"=?utf-8?Q?=C3=A9?= =?iso-8859-1?Q?=E9?=", "éé");
        check(b"=?iso-2022-jp?B?GyRCRnwbKEI=?= =?iso-2022-jp?B?GyRCS1wbKEI=?=", "日本");
        check(b"=?gb2312?B?1tA=?=\r\n\t=?gb2312?B?zsQ=?=", "中文");
        check(b"=?gb2312?B?1g==?= =?gb2312?B?0A==?=", "中");
    }

    #[test]
    fn a_question_mark_that_nobody_escaped_ends_no_word() {
        check(b"=?utf-8?Q?Noch_Fragen?=20Wir_helfen_=C3=BCberall?=", "Noch Fragen? Wir helfen überall");
        check(b"=?utf-8?Q?Why?=3F_Why?=20not?= (b)", "Why?? Why? not (b)");
        check(b"\"=?iso-8859-1?q?Wer?=2C_wo?=\" =?iso-8859-1?q?was?=", "\"Wer?, wo\" was");
        check(b"=?utf-8?Q?a?=bad", "abad");
        check(b"=?utf-8?Q?a?=20b =?utf-8?Q?c?=", "a20b c");
        check(b"=?utf-8?B?YQ?=20b?=", "a20b?=");
    }

    #[test]
    fn an_escape_may_be_cut_between_two_words() {
        check(b"=?UTF-8?Q?INFO:_p=?=\r\n =?UTF-8?Q?C5=99idal...?=", "INFO: přidal...");
        check(b"=?UTF-8?Q?p=C?= =?utf-8?q?5=9?= =?UTF-8?Q?9i?=", "při");
        check(b"=?utf-8?Q?1+1=?= =?utf-8?B?Mg==?=", "1+1=2");
        check(b"=?utf-8?Q?a=?= =?iso-8859-1?Q?E9?=", "a=E9");
    }

    #[test]
    fn what_is_no_encoded_word_stays() {
        for value in ["=?utf-8?X?bad?=", "=?utf-8?Q?open", "a =? b ?= c", "=?", "?=", "=?=?=?", "=?utf 8?Q?x?="] {
            check(value.as_bytes(), value);
        }
        check(b"=?=?utf-8?Q?x?=", "=?x");
        check(b"=?no-such-charset?Q?caf=E9?=", "café");
        check(b"=??Q?abc?=", "abc");
        check(b"=?utf-8?B?w?=", "");
    }

    #[test]
    fn folding_goes_and_other_line_ends_stay() {
        check(b" one\r\n two\n\tthree\r\n", "one two\tthree");
        check(b"one\rtwo", "one\rtwo");
        check(b"a\r\n\r\n b", "a\n b");
    }
}
