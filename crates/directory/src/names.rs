//! Addresses as names of users and directories: one normal form for all spellings, and never a path.

use std::borrow::Cow;
use std::fmt::Write;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Why an address cannot name a mailbox. The reply is 550 5.1.3 (bad destination mailbox address syntax).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusableName;

/// The directory name for a local part or domain.
///
/// ASCII letters become lower case; `a-z 0-9 - _ + = .` stay as they are; every other octet, and a dot in front, becomes
/// `%` and two hexadecimal digits. So two different names never share a directory, and none is `.`, `..`, hidden, or
/// holds a slash.
///
/// # Errors
/// The name is empty, holds a control character, or needs more than 240 octets.
pub fn directory_name(name: &str) -> Result<String, UnusableName> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(UnusableName);
    }
    let mut directory = String::with_capacity(name.len());
    for octet in name.bytes().map(|octet| octet.to_ascii_lowercase()) {
        match octet {
            b'.' if directory.is_empty() => directory.push_str("%2e"),
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'+' | b'=' | b'.' => directory.push(char::from(octet)),
            _ => {
                let _ = write!(directory, "%{octet:02x}");
            }
        }
    }
    if directory.len() > MAX_DIRECTORY_NAME { Err(UnusableName) } else { Ok(directory) }
}

/// Normalises a domain for comparison and directory names: lower case, A-labels (`xn--bcher-kva.example`), no final
/// dot. U-labels are converted by UTS 46. `None`: an invalid domain, such as an A-label without a meaning.
pub fn folded_domain(name: &str) -> Option<Cow<'_, str>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let has_a_label =
        || name.split('.').any(|label| label.get(..4).is_some_and(|tag| tag.eq_ignore_ascii_case("xn--")));
    if name.is_ascii() && !has_a_label() {
        return Some(ascii_lower_case(name));
    }
    // Underscores and the like are tolerated as in every other domain.
    Uts46::new().to_ascii(name.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore).ok()
}

/// Normalises a name from the configuration or from a client for comparison, as [`user_name`] does. For an invalid user
/// name only ASCII case is folded.
pub fn folded(name: &str) -> Cow<'_, str> {
    user_name(name).unwrap_or_else(|| ascii_lower_case(name))
}

/// Normalises a user name by PRECIS's UsernameCaseMapped (RFC 8265 section 3.3): ordinary width, lower case, NFC.
/// `None`: it contains disallowed characters (blanks, symbols, look-alikes such as the Kelvin sign).
///
/// Not checked: contexts of RFC 5892 appendix A, and writing directions (RFC 5893). They cannot lead to the mailbox
/// of another user.
pub fn user_name(name: &str) -> Option<Cow<'_, str>> {
    if name.bytes().all(|octet| octet.is_ascii_graphic()) {
        return Some(ascii_lower_case(name));
    }
    let ordinary = ordinary_width(name);
    if !ordinary.chars().all(is_allowed) {
        return None;
    }
    let lower: String = ordinary.to_lowercase().nfc().collect();
    // RFC 8265 section 3.3.2: what the mapping makes has to be allowed as well.
    lower.chars().all(is_allowed).then_some(Cow::Owned(lower))
}

fn ascii_lower_case(name: &str) -> Cow<'_, str> {
    let upper = name.bytes().any(|octet| octet.is_ascii_uppercase());
    if upper { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) }
}

/// RFC 8265 section 3.3.2, width mapping: the forms for typesetting of East Asia.
fn ordinary_width(name: &str) -> String {
    let mut ordinary = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '\u{3000}' | '\u{ff00}'..='\u{ffef}' => ordinary.extend(std::iter::once(c).nfkc()),
            _ => ordinary.push(c),
        }
    }
    ordinary
}

/// RFC 8264 section 4.2, IdentifierClass: letters, digits, marks and visible ASCII; no compatibility forms, and no
/// parts of old Hangul syllables.
fn is_allowed(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_graphic();
    }
    let exceptions =
        matches!(c, '\u{b7}' | '\u{375}' | '\u{5f3}' | '\u{5f4}' | '\u{6fd}' | '\u{6fe}' | '\u{f0b}' | '\u{30fb}');
    let never = matches!(
        c,
        '\u{640}' | '\u{7fa}' | '\u{302e}' | '\u{302f}' | '\u{3031}'..='\u{3035}' | '\u{303b}'
            // Parts of Hangul syllables.
            | '\u{1100}'..='\u{11ff}' | '\u{a960}'..='\u{a97c}' | '\u{d7b0}'..='\u{d7fb}'
            // Marks that are not to be seen: the grapheme joiner, fillers, selectors of variants.
            | '\u{34f}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}'
    );
    exceptions || !never && (c.is_alphanumeric() || is_combining_mark(c)) && std::iter::once(c).nfkc().eq([c])
}

/// Below the 255 octets of a file name, with room for suffixes.
const MAX_DIRECTORY_NAME: usize = 240;

#[cfg(test)]
mod tests {
    use posthaste_message::address::is_domain;

    use super::*;

    fn check(name: &str, expected: Option<&str>) {
        assert_eq!(directory_name(name).ok().as_deref(), expected, "{name:?}");
    }

    #[test]
    fn ordinary_names_stay_readable() {
        check("Alice.B-c_d+e=f", Some("alice.b-c_d+e=f"));
        check("o'brien", Some("o%27brien"));
    }

    #[test]
    fn no_name_is_a_path_or_hidden() {
        check(".", Some("%2e"));
        check("..", Some("%2e."));
        check(".ssh", Some("%2essh"));
        check("../../etc/passwd", Some("%2e.%2f..%2fetc%2fpasswd"));
        check("a/b\\c", Some("a%2fb%5cc"));
        check("a%2fb", Some("a%252fb"));
        check("a:b,c", Some("a%3ab%2cc"));
        check("jörg", Some("j%c3%b6rg"));
    }

    #[test]
    fn names_that_cannot_be_kept_are_refused() {
        check("", None);
        check("a\0b", None);
        check("a\nb", None);
        check(&"ö".repeat(41), None);
        check(&"a".repeat(241), None);
        check(&"a".repeat(240), Some(&"a".repeat(240)));
    }

    #[test]
    fn domains() {
        for good in ["localhost", "mx.example.org", "xn--bcher-kva.example", "a_b.example", "bücher.example"] {
            assert!(is_domain(good), "{good}");
        }
        for bad in ["", ".", "a..b", "-a.example", "a b.example", "a/b", "[127.0.0.1]", "a.example.", "a\r\nb"] {
            assert!(!is_domain(bad), "{bad}");
        }
        assert_eq!(folded_domain("MX.Example.ORG.").as_deref(), Some("mx.example.org"));
    }

    #[test]
    fn a_name_has_one_form() {
        let same =
            |a: &str, b: &str| assert_eq!((user_name(a), user_name(a).is_some()), (user_name(b), true), "{a} {b}");
        same("JOS\u{c9}", "jos\u{e9}");
        same("Jose\u{301}", "jos\u{e9}");
        same("\u{ff21}nn", "ann");
        same("\u{ff76}\u{ff9e}", "\u{30ac}");
        same("\u{3a3}igma", "\u{3c3}igma");
        same("\u{1100}\u{1161}".nfc().collect::<String>().as_str(), "\u{ac00}");
        same("Alice.B+c", "alice.b+c");
        for (letter, lower) in [("\u{130}", "i\u{307}"), ("\u{df}", "\u{df}"), ("\u{131}", "\u{131}")] {
            assert_eq!(user_name(letter).as_deref(), Some(lower));
        }
    }

    #[test]
    fn what_only_looks_like_a_name_is_none() {
        for bad in [
            "\u{212a}arl",
            "\u{212b}",
            "\u{fb01}n",
            "a b",
            "a\u{a0}b",
            "a\u{3000}b",
            "\u{2460}",
            "a\u{200d}b",
            "a\u{202e}b",
            "\u{1f600}",
            "a\u{2028}",
            "\u{17f}",
            "x\u{fe0f}",
            "\u{1100}",
            "a\u{ad}",
        ] {
            assert_eq!(user_name(bad), None, "{bad:?}");
            assert_eq!(folded(bad), bad, "told apart from all others");
        }
        assert_eq!(folded("A B"), "a b");
    }

    proptest::proptest! {
        #[test]
        fn the_form_of_a_name_is_its_own_form(name in ".{0,12}") {
            let once = folded(&name).into_owned();
            assert_eq!(folded(&once), once);
        }

        #[test]
        fn any_name_stays_one_visible_component_and_its_own(name in ".{0,80}", other in ".{0,3}") {
            if let Ok(directory) = directory_name(&name) {
                assert!(!directory.starts_with('.') && directory.len() <= MAX_DIRECTORY_NAME);
                assert!(directory.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && !b.is_ascii_uppercase()));
                let same = directory_name(&other).is_ok_and(|of_other| of_other == directory);
                assert_eq!(same, name.eq_ignore_ascii_case(&other));
            }
        }
    }
}
