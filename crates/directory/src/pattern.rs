//! Aliases by regular expression.

use regex::{Captures, Regex, RegexBuilder};

/// A regular expression and the target of its matches.
#[derive(Debug)]
pub(crate) struct Expression {
    regex: Regex,
    /// The text in the configuration.
    pub text: String,
}

impl Expression {
    /// # Errors
    /// Describes the mistake.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("a pattern has at most {TEXT_BYTES_MAX} bytes"));
        }
        // Compiled alone first, because `a)|(b` is invalid by itself.
        build(text)?;
        let regex = build(&format!(r"\A(?:{text})\z"))?;
        Ok(Self { regex, text: text.to_owned() })
    }

    /// Matches all of `name`. Linear in its length.
    pub fn captures<'a>(&self, name: &'a str) -> Option<Captures<'a>> {
        self.regex.captures(name)
    }
}

fn build(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text)
        .case_insensitive(true)
        .size_limit(COMPILED_BYTES_MAX)
        .dfa_size_limit(COMPILED_BYTES_MAX)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "the pattern is too large: avoid counts such as {1000}".to_owned(),
            error => {
                // The last line says what is wrong, those before it show where, in a drawing.
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default();
                format!("not a regular expression: {}", last.strip_prefix("error: ").unwrap_or(last))
            }
        })
}

/// Text with placeholders for groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Group(usize),
}

impl Template {
    /// `$1` or `${1}` or `${name}` for a group of `expression`, `$$` for a dollar.
    ///
    /// # Errors
    /// Describes the mistake.
    pub fn new(text: &str, expression: &Expression) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            if let Some(behind) = behind.strip_prefix('$') {
                pieces.push(Piece::Text("$".to_owned()));
                rest = behind;
                continue;
            }
            let (name, behind) = match behind.strip_prefix('{') {
                Some(braced) => braced.split_once('}').ok_or("`${` without `}`; write $$ for a dollar")?,
                None => behind.split_at(behind.bytes().take_while(u8::is_ascii_digit).count()),
            };
            if name.is_empty() {
                return Err(
                    "after `$` comes the number of a group, as in $1 or ${name}; write $$ for a dollar".to_owned()
                );
            }
            let number = match name.parse() {
                Ok(number) => Some(number).filter(|&number: &usize| number < expression.regex.captures_len()),
                Err(_) => expression.regex.capture_names().position(|group| group == Some(name)),
            };
            pieces.push(Piece::Group(number.ok_or_else(|| format!("the pattern has no group `{name}`"))?));
            rest = behind;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    /// The text, if it has no groups.
    pub fn fixed(&self) -> Option<String> {
        self.0.iter().map(|piece| if let Piece::Text(text) = piece { Some(text.as_str()) } else { None }).collect()
    }

    /// Inserts the matched groups; a group without a match is empty.
    pub fn fill(&self, captures: &Captures<'_>) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Group(number) => text.push_str(captures.get(*number).map_or("", |found| found.as_str())),
            }
        }
        text
    }
}

/// Maximum bytes of a pattern in the configuration.
const TEXT_BYTES_MAX: usize = 1000;
/// Maximum size of a compiled pattern, and of its cache.
const COMPILED_BYTES_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_of_a_name() {
        let matches = |text: &str, name: &str| Expression::new(text).unwrap().captures(name).is_some();
        assert!(matches("a|ab", "ab"));
        assert!(!matches("a|b", "ab"));
        assert!(!matches("a", "a\n"));
        assert!(matches("SALES-[a-z]+", "sales-x"));
        assert!(matches("^b.*$", "b\u{fc}cher"));
        assert!(!matches("(?m)^a$", "a\nb"));
    }

    #[test]
    fn what_is_no_pattern_is_said_in_one_line() {
        let said = |text: &str| Expression::new(text).unwrap_err();
        assert_eq!(said("a("), "not a regular expression: unclosed group");
        assert_eq!(said("a)|(b"), "not a regular expression: unopened group");
        assert!(said(r"(a)\1").starts_with("not a regular expression: backreferences are not supported"));
        assert_eq!(said(r"((\w{100}){100}){100}"), "the pattern is too large: avoid counts such as {1000}");
        assert_eq!(said(&"a".repeat(1001)), "a pattern has at most 1000 bytes");
        assert!(said(&"(".repeat(1000)).starts_with("not a regular expression: "));
        assert!(said("(?x)a # b").starts_with("not a regular expression: "), "its end would be a comment");
    }

    #[test]
    fn groups_are_filled_in() {
        let expression = Expression::new(r"(?<first>\w+)\.(\w+)(-x)?").unwrap();
        let captures = expression.captures("ann.lee").unwrap();
        let fill = |text: &str| Template::new(text, &expression).unwrap().fill(&captures);
        assert_eq!(fill("$2"), "lee");
        assert_eq!(fill("${first}$2"), "annlee");
        assert_eq!(fill("${2}x$$$1"), "leex$ann");
        assert_eq!(fill("$0|$3|"), "ann.lee||");
        assert_eq!(Template::new("a$$b", &expression).unwrap().fixed().as_deref(), Some("a$b"));
        assert_eq!(Template::new("a$1b", &expression).unwrap().fixed(), None);
        let said = |text: &str| Template::new(text, &expression).unwrap_err();
        assert_eq!(said("$4"), "the pattern has no group `4`");
        assert_eq!(said("${last}"), "the pattern has no group `last`");
        assert_eq!(said("${first"), "`${` without `}`; write $$ for a dollar");
        assert_eq!(said("a$"), "after `$` comes the number of a group, as in $1 or ${name}; write $$ for a dollar");
        assert_eq!(said("$99999999999999999999999"), "the pattern has no group `99999999999999999999999`");
    }

    #[test]
    fn no_name_makes_a_pattern_slow() {
        // With backtracking these would take until the end of time.
        for text in ["(a+)+b", "(a|aa)*c", "(a*)*(a*)*(a*)*d", "([a-z]+)*!"] {
            let expression = Expression::new(text).unwrap();
            assert!(expression.captures(&"a".repeat(240)).is_none(), "{text}");
        }
    }
}
