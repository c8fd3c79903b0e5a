//! Character classes of the index: part of a word, unit of a script without spaces, ignored, or a word boundary.
//!
//! Folding maps letters that people treat as equal to one form: case, accents, width, ligatures (compatibility
//! decomposition, Unicode Standard Annex 15). It also maps a few letters that do not decompose (`ß` is `ss`, `ø` is
//! `o`).

use unicode_normalization::UnicodeNormalization;

/// Class of a non-ASCII character for the tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A letter, digit, or a mark that carries meaning.
    Word,
    /// A character of a script that is written without spaces between words; searched by pairs.
    Gram,
    /// Ignored: accents, soft hyphens, joiners, zero-width spaces.
    Nothing,
    /// Anything else ends a word.
    Border,
}

/// Classifies a character that is not ASCII.
pub(crate) fn class(c: char) -> Class {
    if is_dropped(c) {
        Class::Nothing
    } else if is_gram(c) {
        Class::Gram
    } else if c.is_alphanumeric() || unicode_normalization::char::is_combining_mark(c) {
        Class::Word
    } else {
        Class::Border
    }
}

/// True for accents of alphabets (not the vowel signs of Indic scripts, which make words differ), and characters of no
/// width.
fn is_dropped(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{206f}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' | '\u{640}'
        | '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}'..='\u{5c2}'
        | '\u{5c4}'..='\u{5c5}' | '\u{5c7}' | '\u{610}'..='\u{61a}' | '\u{64b}'..='\u{65f}' | '\u{670}'
        | '\u{6d6}'..='\u{6dc}' | '\u{6df}'..='\u{6e4}' | '\u{6e7}' | '\u{6e8}' | '\u{6ea}'..='\u{6ed}'
        | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}'
        | '\u{3099}'..='\u{309c}' | '\u{ff9e}' | '\u{ff9f}')
}

/// True for Han, kana, bopomofo, hangul, Thai, Lao, Myanmar, Khmer.
fn is_gram(c: char) -> bool {
    matches!(c,
        '\u{e01}'..='\u{e3a}' | '\u{e40}'..='\u{e4e}' | '\u{e81}'..='\u{ece}' | '\u{1000}'..='\u{1049}'
        | '\u{1100}'..='\u{11ff}' | '\u{1780}'..='\u{17d3}' | '\u{2e80}'..='\u{2fd5}' | '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{3096}' | '\u{309d}'..='\u{309f}' | '\u{30a1}'..='\u{30fa}' | '\u{30fc}'..='\u{30ff}'
        | '\u{3105}'..='\u{312f}' | '\u{3131}'..='\u{318e}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}' | '\u{a960}'..='\u{a97c}' | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ff9d}' | '\u{ffa0}'..='\u{ffdc}' | '\u{20000}'..='\u{3fffd}')
}

/// Appends the folded form of a non-ASCII character: none, one or several letters.
pub(crate) fn fold_into(c: char, out: &mut String) {
    if matches!(c, '\u{ac00}'..='\u{d7a3}' | '\u{3041}'..='\u{30ff}') {
        // Hangul syllables and kana would fall apart into pieces that nobody types.
        out.push(c);
        return;
    }
    for piece in std::iter::once(c).nfkd().filter(|&piece| !is_dropped(piece)) {
        for lower in piece.to_lowercase() {
            match lower {
                'ß' => out.push_str("ss"),
                'æ' => out.push_str("ae"),
                'œ' => out.push_str("oe"),
                'þ' => out.push_str("th"),
                'ø' => out.push('o'),
                'ł' => out.push('l'),
                'đ' | 'ð' => out.push('d'),
                'ħ' => out.push('h'),
                'ŧ' => out.push('t'),
                'ı' => out.push('i'),
                'ς' => out.push('σ'),
                lower if is_dropped(lower) => {}
                lower if lower.is_alphanumeric() || unicode_normalization::char::is_combining_mark(lower) => {
                    out.push(lower)
                }
                _ => {}
            }
        }
    }
}

/// Folds a whole text without splitting it into words, for regular expressions and plain comparisons.
pub fn fold(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            folded.push(c.to_ascii_lowercase());
        } else if class(c) == Class::Border {
            folded.push(c);
        } else {
            fold_into(c, &mut folded);
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_a_person_takes_for_the_same_fold_to_the_same() {
        let check = |a: &str, b: &str| assert_eq!(fold(a), fold(b), "{a} {b}");
        check("Straße", "STRASSE");
        check("Größe", "GROSSE");
        check("naïve café", "NAIVE CAFE\u{301}");
        check("ΣΊΣΥΦΟΣ", "σίσυφος");
        check("İstanbul", "istanbul");
        check("ёлка", "елка");
        check("ﬁ", "fi");
        check("ｶﾀｶﾅ", "カタカナ");
        check("السَّلامُ", "السلام");
        check("שָׁלוֹם", "שלום");
        check("pass\u{200b}word", "password");
        check("soft\u{ad}hyphen", "softhyphen");
    }

    #[test]
    fn vowel_signs_of_indic_scripts_stay() {
        assert_ne!(fold("कि"), fold("का"));
    }

    #[test]
    fn folding_twice_changes_nothing() {
        for c in ('\u{80}'..='\u{2ffff}').chain('\0'..'\u{80}') {
            let once = fold(&c.to_string());
            assert_eq!(fold(&once), once, "{c:?}");
        }
    }
}
