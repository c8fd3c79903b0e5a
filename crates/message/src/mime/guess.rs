//! Guesses the charset of unlabelled text that is not UTF-8: by statistics, if the result has words.

use std::borrow::Cow;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, WINDOWS_1252};

/// Octets used for a guess, from the first beyond ASCII.
const GUESS_BYTES_MAX: usize = 64 << 10;
/// Letters in words that make a guess credible.
const LETTERS_MIN: usize = 3;

/// Decodes text that is not UTF-8 by statistics.
pub(super) fn by_statistics(bytes: &[u8]) -> Cow<'_, str> {
    let (characters, others) = count_utf8(bytes);
    if characters >= others {
        return Cow::Owned(mixed(bytes));
    }
    let start = bytes.iter().position(|byte| !byte.is_ascii()).unwrap_or(0).saturating_sub(16);
    let sample = &bytes[start..bytes.len().min(start + GUESS_BYTES_MAX)];
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(sample, true);
    let encoding = detector.guess(None, Utf8Detection::Deny);
    if encoding == WINDOWS_1252 || !makes_words(encoding, sample) {
        return Cow::Owned(mixed(bytes));
    }
    encoding.decode_without_bom_handling(bytes).0
}

/// True if there is an escape that begins two-byte characters (RFC 1468, RFC 1557).
pub(super) fn has_escapes(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, b"\x1b$").is_some()
}

/// Characters beyond ASCII that are valid UTF-8, and octets that are not.
pub(super) fn count_utf8(bytes: &[u8]) -> (usize, usize) {
    let mut characters = 0;
    let mut others = 0;
    for chunk in bytes.utf8_chunks() {
        // Lead octets.
        characters += chunk.valid().bytes().filter(|byte| *byte >= 0xc0).count();
        others += chunk.invalid().len();
    }
    (characters, others)
}

/// UTF-8 where it is valid and windows-1252 elsewhere: quotations of other mail often mix them.
pub(super) fn mixed(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + bytes.len() / 8);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.push_str(&WINDOWS_1252.decode_without_bom_handling(chunk.invalid()).0);
    }
    text
}

/// True if the letters of this charset that replace windows-1252's characters stand in words.
///
/// The detector compares frequencies of letter pairs. For English with a few pound signs (`£7,500`) or copyright signs
/// (`©2009`) it has too little data, and names a charset in which these are letters: `Ł7,500`, `Š2009`.
fn makes_words(encoding: &'static Encoding, sample: &[u8]) -> bool {
    let text = encoding.decode_without_bom_handling(sample).0;
    let western = WINDOWS_1252.decode_without_bom_handling(sample).0;
    let mut western = if encoding.is_single_byte() { western.chars() } else { "".chars() };
    let mut found = Evidence::default();
    let mut word = Word::default();
    for c in text.chars() {
        let is_its_own = western.next() != Some(c) && !c.is_ascii();
        if c.is_alphabetic() {
            word.push(c, is_its_own);
        } else {
            std::mem::take(&mut word).weigh(&mut found);
        }
    }
    word.weigh(&mut found);
    found.fitting >= LETTERS_MIN && found.fitting > found.stray
}

/// Letters where windows-1252 has other characters.
#[derive(Default)]
struct Evidence {
    fitting: usize,
    stray: usize,
}

/// A run of letters.
#[derive(Default)]
struct Word {
    letters: usize,
    /// Latin letters that only this charset has there.
    own_latin: usize,
    /// A capital after a small letter, or a small letter after two capitals: a sign stuck to a word.
    is_odd: bool,
    capitals: usize,
    has_small: bool,
    has_latin: bool,
    /// The run of other letters at the end of the word, and earlier runs: letters in those of two and more, and single
    /// ones.
    run: usize,
    in_runs: usize,
    single: usize,
}

impl Word {
    fn push(&mut self, c: char, is_its_own: bool) {
        self.letters += 1;
        if !is_latin(c) {
            self.run += 1;
            return;
        }
        self.end_run();
        self.has_latin = true;
        self.own_latin += usize::from(is_its_own);
        if c.is_uppercase() {
            self.is_odd |= self.has_small;
            self.capitals += 1;
        } else if c.is_lowercase() {
            self.is_odd |= self.capitals > 1;
            self.has_small = true;
        }
    }

    fn end_run(&mut self) {
        match std::mem::take(&mut self.run) {
            1 => self.single += 1,
            run => self.in_runs += run,
        }
    }

    fn weigh(mut self, found: &mut Evidence) {
        self.end_run();
        found.fitting += self.in_runs;
        // Russian has words of one letter; one within a Latin word is a stray.
        found.stray += if self.has_latin { self.single } else { 0 };
        let fits = self.letters > 1 && !self.is_odd;
        *(if fits { &mut found.fitting } else { &mut found.stray }) += self.own_latin;
    }
}

fn is_latin(c: char) -> bool {
    matches!(c, '\0'..'\u{250}' | '\u{1e00}'..'\u{1f00}' | '\u{300}'..'\u{370}')
}

#[cfg(test)]
mod tests {
    use super::super::charset::{decode_body, guess};
    use super::*;

    fn check(charset: &str, text: &str) {
        let encoding = Encoding::for_label(charset.as_bytes()).expect("a charset of the Encoding Standard");
        let (octets, _, has_errors) = encoding.encode(text);
        assert!(!has_errors, "{charset} has {text}");
        assert_eq!(guess(&octets), text, "{charset}");
    }

    #[test]
    fn signs_in_english_are_no_letters_of_polish() {
        for text in [
            "He had a closing balance of £7,500,000.00 (seven million five hundred\nthousand pounds).\n",
            "Please forward it to him/her.\n©2009 Example Inc.\nStop future newsletters.\n",
            "© 2009 Example, Inc. All rights reserved. Windows® is a trademark of Microsoft®.\n",
            "Add ½ cup of sugar, ¾ cup of flour, and bake at 200° for 20 minutes (±5).\n",
            "See § 3 and § 4 of the Act; the fine is ¥500 or £20.\n",
            "£50 off, £60 off, £70 off: ©Example, ®Example, no. 1ª and 2º.\n",
            "The price is 3£. Call +44·20·7946·0000 «now»\n",
            "Order your café table today for £99, delivered to Zoë or José.\n",
        ] {
            check("windows-1252", text);
        }
    }

    #[test]
    fn words_of_other_languages_are_guessed() {
        for (charset, text) in [
            (
                "iso-8859-2",
                "Cześć, proszę o przesłanie książki na mój adres w Łodzi. Dziękuję i pozdrawiam serdecznie.\n",
            ),
            ("windows-1250", "Dobrý den, příliš žluťoučký kůň úpěl ďábelské ódy. Děkuji za vaši odpověď.\n"),
            ("koi8-r", "Привет, это письмо на русском языке, и в нём есть короткие слова.\n"),
            ("windows-1251", "Здравствуйте! Сообщаем, что Linux и Windows работают.\n"),
            ("iso-8859-7", "Καλημέρα, σας στέλνω το αρχείο που ζητήσατε.\n"),
            (
                "windows-1254",
                "Merhaba, Türkiye’den sevgiler: bugün hava çok güzel, ışıklar ve şarkılar, İstanbul’da yağış yok.\n",
            ),
            ("shift_jis", "こんにちは。Linuxのファイルを送ります。よろしくお願いします。\n"),
            ("gbk", "你好，我使用Linux系统，请看附件里的文件。谢谢！\n"),
            ("euc-kr", "안녕하세요. 첨부 파일을 확인해 주세요. 감사합니다.\n"),
            ("windows-1252", "Grüße aus München; schöne Straße für Ärzte in Österreich\n"),
            ("windows-1252", "¿Qué tal? ¡Hola, señor Muñoz! El niño está en España.\n"),
            ("windows-1252", "Le garçon a mangé à l’hôtel, où il y avait une crème brûlée.\n"),
        ] {
            check(charset, text);
        }
    }

    #[test]
    fn a_wrong_label_hides_no_right_one() {
        let page = |meta: &str| format!("<html><head>{meta}</head><p>").into_bytes();
        let check = |label: Option<&str>, meta: &str, octets: &[u8], expected: &str| {
            let html = [&page(meta), octets].concat();
            let text = decode_body(&html, label.map(str::as_bytes), true);
            assert!(text.ends_with(expected), "{label:?} {meta}: {text}");
        };
        check(Some("UTF-8"), "<meta charset=iso-8859-1>", b"\xa92009 Example", "©2009 Example");
        check(Some("us-ascii"), "<meta charset=iso-8859-2>", b"\xa9koda", "Škoda");
        check(Some("iso-2022-jp"), "<meta charset=\"windows-1250\">", b"\x9ei\x9eka", "žižka");
        check(Some("x-unknown"), "<meta charset='koi8-r'>", b"\xd0\xc5\xd4\xd2", "петр");
        check(None, "<meta charset=utf-8>", b"Copyright \xa9 2009 Example, Inc. caf\xe9", "© 2009 Example, Inc. café");
        check(Some("utf-8"), "<meta charset=utf-8>", b"\xa37,500", "£7,500");
        check(None, "<meta charset=us-ascii>", b"\xa37,500", "£7,500");
        // A plausible label overrides the document.
        check(Some("koi8-r"), "<meta charset=utf-8>", b"\xd0\xc5\xd4\xd2", "петр");
        check(Some("utf-8"), "<meta charset=koi8-r>", "é\u{d7}".as_bytes(), "é×");
    }
}
