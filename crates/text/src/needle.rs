//! Substring search by words.

use crate::fold::{Class, class};
use crate::tokens::{TokenKind, Tokens};

/// A substring to search for. Case and accents are ignored, and a run of blanks and punctuation matches any such run.
///
/// It consists of words. A single word may be part of a word. Of several, the first ends a word, the last begins one,
/// and those between are whole; they follow each other. A blank or mark at either end of the text is a word boundary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needle {
    pieces: Vec<NeedlePiece>,
}

/// A word of a [`Needle`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedlePiece {
    /// The word, folded as [`Tokens`] folds it.
    pub word: String,
    /// True if no letter precedes it.
    pub from_start: bool,
    /// True if no letter follows it.
    pub to_end: bool,
}

impl NeedlePiece {
    /// True if this word of a text matches.
    pub fn fits(&self, token: &str) -> bool {
        match (self.from_start, self.to_end) {
            (true, true) => token == self.word,
            (true, false) => token.starts_with(&self.word),
            (false, true) => token.ends_with(&self.word),
            (false, false) => memchr::memmem::find(token.as_bytes(), self.word.as_bytes()).is_some(),
        }
    }

    /// True if only the word itself matches.
    pub fn is_whole(&self) -> bool {
        self.from_start && self.to_end
    }
}

impl Needle {
    /// Prepares a text for searching.
    pub fn new(text: &str) -> Self {
        let mut source = Tokens::new(text);
        let mut pieces = Vec::new();
        let mut kinds = Vec::new();
        let mut word = String::new();
        while let Some(kind) = source.next_into(&mut word) {
            pieces.push(NeedlePiece { word: word.clone(), from_start: true, to_end: true });
            kinds.push(kind);
        }
        // The pair before has that character, and in a longer text it does not stand alone.
        if kinds.last() == Some(&TokenKind::Tail) {
            pieces.pop();
            kinds.pop();
        }
        if kinds.first() == Some(&TokenKind::Word) {
            pieces[0].from_start = text.chars().next().is_some_and(is_border);
        }
        // A single character of a script without spaces begins every pair that it is in, and ends every run alone.
        let (ends_open, last) = match kinds.last() {
            Some(TokenKind::Word) => (!text.chars().next_back().is_some_and(is_border), pieces.last_mut()),
            Some(TokenKind::Single) => (true, pieces.last_mut()),
            _ => (false, None),
        };
        if let Some(last) = last {
            last.to_end = !ends_open;
        }
        Self { pieces }
    }

    /// Its words, in order. Without words it occurs in every text.
    pub fn pieces(&self) -> &[NeedlePiece] {
        &self.pieces
    }

    /// True if it has no word, and so occurs in every text.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Like [`is_in`](Self::is_in), of a field that may be absent: nothing occurs in that one.
    pub fn is_in_field(&self, text: Option<&str>) -> bool {
        text.is_some_and(|text| self.is_in(text))
    }

    /// True if it occurs in `text`.
    pub fn is_in(&self, text: &str) -> bool {
        let mut source = Tokens::new(text);
        let mut token = String::new();
        match self.pieces.as_slice() {
            [] => true,
            [piece] => {
                while source.next_into(&mut token).is_some() {
                    if piece.fits(&token) {
                        return true;
                    }
                }
                false
            }
            pieces => {
                // How many pieces the words before this one have matched, once for each place where that began.
                let mut before = Vec::new();
                let mut after = Vec::new();
                while source.next_into(&mut token).is_some() {
                    after.clear();
                    let matched: &[usize] = &before;
                    let begun = matched.iter().copied().chain([0]);
                    after.extend(begun.filter(|&at| pieces[at].fits(&token)).map(|at| at + 1));
                    if after.contains(&pieces.len()) {
                        return true;
                    }
                    std::mem::swap(&mut before, &mut after);
                }
                false
            }
        }
    }
}

fn is_border(c: char) -> bool {
    if c.is_ascii() { !c.is_ascii_alphanumeric() } else { class(c) == Class::Border }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fold;

    fn check(text: &str, needle: &str, expected: bool) {
        assert_eq!(Needle::new(needle).is_in(text), expected, "{needle:?} in {text:?}");
    }

    #[test]
    fn text_is_found_without_case_accents_and_marks() {
        for (text, needle) in [
            ("Caf\u{e9} au lait", "CAFE AU"),
            ("re: offer -- final", "Offer final"),
            ("ann@example.org", "nn@example.or"),
            ("ann@example.org", "EXAMPLE"),
            ("end.", "end."),
            ("end", "end."),
            ("x", ""),
            ("x", "..."),
            ("Stra\u{df}e", "strasse"),
            ("\u{ff21}\u{ff22}", "ab"),
            ("東京都", "京都"),
            ("大東京x", "東京x"),
            ("iPhone手机", "phone手"),
            ("字b", "字"),
        ] {
            check(text, needle, true);
        }
        for (text, needle) in [
            ("offers", "offer s"),
            ("abc", "d"),
            ("ends", "end."),
            ("bend", " end"),
            ("a b x c", "b c"),
            ("東京 都", "京都"),
            ("", "a"),
        ] {
            check(text, needle, false);
        }
    }

    proptest! {
        /// A search by words agrees with a search for the folded characters.
        #[test]
        fn a_needle_is_a_substring(text in "[aAbé .,-]{0,24}", needle in "[aAbé .,-]{1,6}") {
            let plain = |text: &str| {
                let mut out = String::new();
                for c in fold(text).chars() {
                    if c.is_alphanumeric() {
                        out.push(c);
                    } else if !out.ends_with(' ') {
                        out.push(' ');
                    }
                }
                out
            };
            let expected = format!(" {} ", plain(&text)).replace("  ", " ").contains(&plain(&needle));
            let is_blank = plain(&needle).trim().is_empty();
            prop_assert_eq!(Needle::new(&needle).is_in(&text), expected || is_blank, "{:?} in {:?}", needle, text);
        }
    }
}
