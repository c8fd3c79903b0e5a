//! Addresses as names of directories: checked, folded to lower case, and never a path.

use std::borrow::Cow;
use std::fmt::Write;

pub use posthaste_smtp::address::is_domain;

/// Why an address cannot name a mailbox. The reply is 550 5.1.3 (bad destination mailbox address syntax).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusableName;

/// The directory name for a local part or domain.
///
/// Letters fold to lower case; `a-z 0-9 - _ + = .` stay as they are; every other octet, and a dot in front, becomes
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
    for octet in lower_case(name).bytes() {
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

/// The form in which domains are compared: lower case, without a final dot.
pub fn folded_domain(name: &str) -> Cow<'_, str> {
    lower_case(name.strip_suffix('.').unwrap_or(name))
}

/// `name` in lower case, which it mostly is already.
pub fn lower_case(name: &str) -> Cow<'_, str> {
    let lower = name.bytes().all(|octet| octet.is_ascii() && !octet.is_ascii_uppercase());
    if lower { Cow::Borrowed(name) } else { Cow::Owned(name.to_lowercase()) }
}

/// Below the 255 octets of a file name, with room for what a file system adds.
const MAX_DIRECTORY_NAME: usize = 240;

#[cfg(test)]
mod tests {
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
        assert_eq!(folded_domain("MX.Example.ORG."), "mx.example.org");
    }

    proptest::proptest! {
        #[test]
        fn any_name_stays_one_visible_component_and_its_own(name in ".{0,80}", other in ".{0,3}") {
            if let Ok(directory) = directory_name(&name) {
                assert!(!directory.starts_with('.') && directory.len() <= MAX_DIRECTORY_NAME);
                assert!(directory.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && !b.is_ascii_uppercase()));
                let same = directory_name(&other).is_ok_and(|of_other| of_other == directory);
                assert_eq!(same, name.to_lowercase() == other.to_lowercase());
            }
        }
    }
}
