//! Text to tokens: one rule for the index and for queries.
//!
//! A word is a run of letters and digits; every other character ends it, `_`, `.`, `@` and `-` included. So `foo_bar.c`
//! and `ann@example.org` are found by each of their parts, and as a whole because a query for them becomes a phrase.
//! Scripts without spaces are cut into overlapping pairs, and the last character of a run stands alone.

use std::hash::{BuildHasher, RandomState};

use crate::fold::{Class, class, fold_into};
use crate::runs::{ascii_runs, eight_at};

/// Maximum bytes of a token; the rest is cut off, in the index and in queries alike.
pub const TOKEN_BYTES_MAX: usize = 64;

/// Kind of a token, which decides how a query matches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A whole word.
    Word,
    /// Two neighbours in a script without spaces.
    Pair,
    /// The last character of such a run, already part of the pair before it.
    Tail,
    /// A run of a single character.
    Single,
}

/// Splits a text into tokens. The caller supplies the buffer, so nothing is allocated for each token.
#[derive(Debug, Clone)]
pub struct Tokens<'a> {
    text: &'a str,
    at: usize,
    /// The second character of a pair, which is the first of the next.
    gram: Option<(char, bool)>,
    start: usize,
}

/// A token as little-endian numbers of eight octets, zero-padded, so that comparing and copying take eight octets a
/// step.
#[derive(Debug, Clone, Copy)]
pub struct Octets<'a> {
    /// The first eight octets.
    pub first: u64,
    /// Octets beyond the first eight.
    pub rest: &'a [u64],
    /// Total number of octets.
    pub length: usize,
}

impl<'a> Octets<'a> {
    /// `rest` receives the octets beyond the first eight.
    pub fn of(octets: &[u8], rest: &'a mut Vec<u64>) -> Self {
        rest.clear();
        rest.extend((8..octets.len()).step_by(8).map(|at| eight_at(octets, at)));
        Self { first: eight_at(octets, 0), rest, length: octets.len() }
    }

    /// Calls `each` with a run of ASCII letters and digits in lower case.
    #[inline]
    fn of_ascii(bytes: &[u8], start: usize, end: usize, each: &mut impl FnMut(Octets<'_>)) {
        // In letters this bit is the difference between upper and lower case, and digits have it.
        const LOWER: u64 = u64::from_ne_bytes([0x20; 8]);
        let length = (end - start).min(TOKEN_BYTES_MAX);
        let eight = |at: usize| (eight_at(bytes, start + at) | LOWER) & u64::MAX >> (64 - 8 * (length - at).min(8));
        let mut rest = [0; TOKEN_BYTES_MAX / 8 - 1];
        let count = (length - 1) / 8;
        rest.iter_mut().zip(1..=count).for_each(|(octets, place)| *octets = eight(8 * place));
        each(Octets { first: eight(0), rest: &rest[..count], length });
    }

    /// Length of `rest` for a token of `length` octets.
    #[inline]
    pub fn rest_of(length: usize) -> usize {
        length.saturating_sub(1) / 8
    }

    /// A hash for tables in memory. With a secret key ([`random_key`]), nobody can craft mail whose words all have the
    /// same hash.
    #[inline]
    pub fn hash(&self, key: u64) -> u64 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |hash: u64, value: u64| {
            let product = u128::from(hash ^ value) * u128::from(FACTOR);
            product as u64 ^ (product >> 64) as u64
        };
        let hash = mix(key ^ self.length as u64, self.first);
        let hash = self.rest.iter().fold(hash, |hash, eight| mix(hash, *eight));
        mix(hash, FACTOR)
    }
}

/// A key for [`Octets::hash`].
pub fn random_key() -> u64 {
    RandomState::new().hash_one(0)
}

impl<'a> Tokens<'a> {
    /// Starts at the beginning of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, gram: None, start: 0 }
    }

    /// Puts the next token into `token`. `None` at the end.
    pub fn next_into(&mut self, token: &mut String) -> Option<TokenKind> {
        token.clear();
        loop {
            if let Some((first, had_pair)) = self.gram.take() {
                fold_into(first, token);
                let kind = match self.next_gram() {
                    Some(second) => {
                        fold_into(second, token);
                        self.gram = Some((second, true));
                        TokenKind::Pair
                    }
                    None if had_pair => TokenKind::Tail,
                    None => TokenKind::Single,
                };
                if token.is_empty() {
                    continue;
                }
                return Some(kind);
            }
            if !self.skip_to_start() {
                return None;
            }
            if self.gram.is_none() {
                self.read_word(token);
                if !token.is_empty() {
                    return Some(TokenKind::Word);
                }
            }
        }
    }

    /// Calls `each` with every remaining token. `token` as in [`next_into`](Self::next_into).
    pub fn for_each(mut self, token: &mut String, mut each: impl FnMut(Octets<'_>)) {
        let bytes = self.text.as_bytes();
        let mut rest = Vec::new();
        loop {
            if self.gram.is_none() && bytes.get(self.at).is_some_and(u8::is_ascii) {
                let from = &bytes[self.at..];
                self.at += ascii_runs(from, |start, end| Octets::of_ascii(from, start, end, &mut each));
            }
            if self.next_into(token).is_none() {
                return;
            }
            each(Octets::of(token.as_bytes(), &mut rest));
        }
    }

    /// Byte offset of the last token's start in the text (exact for words).
    pub fn start(&self) -> usize {
        self.start
    }

    /// Moves to the first byte of a word, or takes the first character of a run into `gram`. False at the end.
    fn skip_to_start(&mut self) -> bool {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            self.start = self.at;
            if byte < 128 {
                if byte.is_ascii_alphanumeric() {
                    return true;
                }
                self.at += 1;
                continue;
            }
            let c = self.char_here();
            match class(c) {
                Class::Word => return true,
                Class::Gram => {
                    self.at += c.len_utf8();
                    self.gram = Some((c, false));
                    return true;
                }
                Class::Nothing | Class::Border => self.at += c.len_utf8(),
            }
        }
        false
    }

    /// The next character, if it continues the run.
    fn next_gram(&mut self) -> Option<char> {
        while self.text.as_bytes().get(self.at).is_some_and(|&byte| byte >= 128) {
            let c = self.char_here();
            match class(c) {
                Class::Gram => {
                    self.start = self.at;
                    self.at += c.len_utf8();
                    return Some(c);
                }
                Class::Nothing => self.at += c.len_utf8(),
                Class::Word | Class::Border => return None,
            }
        }
        None
    }

    fn read_word(&mut self, token: &mut String) {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if byte < 128 {
                let length = bytes[self.at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
                if length == 0 {
                    return;
                }
                let from = token.len();
                let kept = length.min(TOKEN_BYTES_MAX.saturating_sub(token.len()));
                token.push_str(&self.text[self.at..self.at + kept]);
                token[from..].make_ascii_lowercase();
                self.at += length;
                continue;
            }
            let c = self.char_here();
            match class(c) {
                Class::Word if token.len() + 4 <= TOKEN_BYTES_MAX => fold_into(c, token),
                Class::Word | Class::Nothing => {}
                Class::Gram | Class::Border => return,
            }
            self.at += c.len_utf8();
        }
    }

    fn char_here(&self) -> char {
        self.text[self.at..].chars().next().unwrap_or('\0')
    }
}

/// All tokens of a text with their kinds: for queries, and to show the indexed form.
pub fn tokens(text: &str) -> Vec<(String, TokenKind)> {
    let mut source = Tokens::new(text);
    let mut token = String::new();
    let mut all = Vec::new();
    while let Some(kind) = source.next_into(&mut token) {
        all.push((token.clone(), kind));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let found: Vec<String> = tokens(text).into_iter().map(|(token, _)| token).collect();
        assert_eq!(found, expected, "{text:?}");
        let mut each = Vec::new();
        Tokens::new(text).for_each(&mut String::new(), |token| {
            let octets = [&[token.first], token.rest].concat().into_iter().flat_map(u64::to_le_bytes);
            assert_eq!(token.rest.len(), Octets::rest_of(token.length));
            assert!(octets.clone().skip(token.length).all(|octet| octet == 0));
            each.push(String::from_utf8(octets.take(token.length).collect()).unwrap());
        });
        assert_eq!(each, expected, "{text:?}");
    }

    #[test]
    fn words_end_at_everything_that_is_no_letter_or_digit() {
        check("foo_bar.baz() C++ CVE-2024-12345", &["foo", "bar", "baz", "c", "cve", "2024", "12345"]);
        check("a.b+c@corpus.example", &["a", "b", "c", "corpus", "example"]);
        check("co-operate naïve  Straße", &["co", "operate", "naive", "strasse"]);
        check("", &[]);
        check(" ---\n", &[]);
        check("Ab aé-éa, 字b b字 \u{ad}a\u{ad}b 1é", &["ab", "ae", "ea", "字", "b", "b", "字", "ab", "1e"]);
        let long = "Y".repeat(TOKEN_BYTES_MAX);
        check(&format!("{long} {long}Z {long}é."), &[&*long.to_lowercase(); 3]);
    }

    #[test]
    fn scripts_without_spaces_become_pairs() {
        check("東京都", &["東京", "京都", "都"]);
        check("iPhone手机x", &["iphone", "手机", "机", "x"]);
        check("字", &["字"]);
        assert_eq!(tokens("字"), [("字".to_owned(), TokenKind::Single)]);
        assert_eq!(tokens("東京").last(), Some(&("京".to_owned(), TokenKind::Tail)));
        check("한글", &["한글", "글"]);
        check("东\u{200b}京", &["东京", "京"]);
    }

    #[test]
    fn long_words_are_cut_alike_in_text_and_query() {
        let long = "x".repeat(200);
        check(&long, &[&"x".repeat(TOKEN_BYTES_MAX)]);
        assert_eq!(tokens(&long), tokens(&format!("{long}yy")));
        for (token, _) in tokens(&"é".repeat(300)).iter().chain(&tokens(&"ﷺ".repeat(30))) {
            assert!(token.len() <= TOKEN_BYTES_MAX + 40, "{}", token.len());
        }
    }
}
