//! Patterns of LIST.

use crate::name::{MailboxName, SEPARATOR, with_inbox};

/// A pattern of LIST, reference included: `*` stands for any characters, `%` for any but the separator (RFC 9051 section 6.3.9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(Vec<char>);

impl NamePattern {
    /// Accepts any text. Matching time grows with the product of both lengths, so limit the pattern's length.
    pub fn new(pattern: &str) -> Self {
        use unicode_normalization::UnicodeNormalization;
        let mut chars: Vec<char> = Vec::new();
        for next in with_inbox(pattern.nfc().collect()).chars() {
            // Of wildcards that follow each other, the widest has the same meaning.
            match (chars.last(), next) {
                (Some('*'), '*' | '%') | (Some('%'), '%') => {}
                (Some('%'), '*') => *chars.last_mut().expect("one is there") = '*',
                _ => chars.push(next),
            }
        }
        Self(chars)
    }

    /// True if a name matches.
    pub fn matches(&self, name: &MailboxName) -> bool {
        self.matches_text(name.as_str()) || (name.is_inbox() && self.matches_inbox())
    }

    /// INBOX is case-insensitive, also with wildcards in the pattern.
    fn matches_inbox(&self) -> bool {
        Self(self.0.iter().map(char::to_ascii_uppercase).collect()).matches_text("INBOX")
    }

    /// Matches without backtracking: follows all possible pattern positions, one character at a time.
    fn matches_text(&self, name: &str) -> bool {
        let pattern = &self.0;
        let mut reached = vec![false; pattern.len() + 1];
        reached[0] = true;
        self.pass_wildcards(&mut reached);
        for next in name.chars() {
            let mut now = vec![false; pattern.len() + 1];
            for (at, wanted) in pattern.iter().enumerate().filter(|(at, _)| reached[*at]) {
                match wanted {
                    '*' => now[at] = true,
                    '%' => now[at] |= next != SEPARATOR,
                    wanted => now[at + 1] |= *wanted == next,
                }
            }
            self.pass_wildcards(&mut now);
            reached = now;
        }
        reached[pattern.len()]
    }

    /// Skips wildcards, which may match nothing.
    fn pass_wildcards(&self, reached: &mut [bool]) {
        for (at, wanted) in self.0.iter().enumerate() {
            reached[at + 1] |= reached[at] && matches!(wanted, '*' | '%');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_the_standard_says() {
        let check = |pattern: &str, name: &str, expected: bool| {
            let name = MailboxName::parse(name).unwrap();
            assert_eq!(NamePattern::new(pattern).matches(&name), expected, "{pattern} {name}");
        };
        check("*", "a/b", true);
        check("%", "a", true);
        check("%", "a/b", false);
        check("a/%", "a/b", true);
        check("a/%", "a", false);
        check("%/b", "a/b", true);
        check("*b", "a/b", true);
        check("%%*%", "a/b/c", true);
        check("inbox", "INBOX", true);
        check("inb%", "INBOX", true);
        check("inbox/*", "INBOX/x", true);
        check("A", "a", false);
        check("", "a", false);
        check("Entwu\u{308}rf%", "Entw\u{fc}rfe", true);
        check("a*b*c", "abcbc", true);
        check("a*b*c", "abcb", false);
    }

    #[test]
    fn a_pattern_of_many_wildcards_takes_no_exponential_time() {
        let name = MailboxName::parse(&["a".repeat(200).as_str(); 10].join("/")).unwrap();
        let begun = std::time::Instant::now();
        assert!(!NamePattern::new(&("*a%".repeat(500) + "b")).matches(&name));
        assert!(begun.elapsed().as_secs() < 10);
    }
}
