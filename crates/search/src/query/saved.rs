//! Saved queries: `query:name` stands for the text saved under that name.

use std::collections::BTreeMap;

/// Texts of queries, by name.
pub type SavedQueries = BTreeMap<String, String>;

/// Maximum bytes of a saved query's name.
pub const QUERY_NAME_BYTES_MAX: usize = 200;
/// Bytes of all saved texts that one query may expand to. Without a limit, a chain in which each query names the next
/// one twice grows exponentially.
pub(super) const SAVED_TEXT_BYTES_MAX: usize = 1 << 20;
/// Names that an error lists.
const LISTED_MAX: usize = 10;

/// True if a query can be saved as `name`: not empty, at most [`QUERY_NAME_BYTES_MAX`], without quote, backslash or
/// control character.
pub fn is_query_name(name: &str) -> bool {
    let is_bad = |c: char| c.is_control() || c == '"' || c == '\\';
    !name.is_empty() && name.len() <= QUERY_NAME_BYTES_MAX && !name.contains(is_bad)
}

/// The saved queries, and the state of their expansion.
pub(super) struct Saved<'a> {
    pub all: &'a SavedQueries,
    /// Names of the saved queries being expanded, outermost first.
    pub inside: Vec<&'a str>,
    pub bytes_left: usize,
}

impl<'a> Saved<'a> {
    pub fn new(all: &'a SavedQueries) -> Self {
        Self { all, inside: Vec::new(), bytes_left: SAVED_TEXT_BYTES_MAX }
    }
}

/// Error message for the name of a query that was never saved.
pub(super) fn unknown(name: &str, all: &SavedQueries) -> String {
    let mut names: Vec<&str> = all.keys().take(LISTED_MAX).map(String::as_str).collect();
    if all.len() > LISTED_MAX {
        names.push("...");
    }
    if names.is_empty() {
        format!("no saved query `{name}`, nor any other")
    } else {
        format!("no saved query `{name}`; there are {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{parse, parse_with};

    fn saved(queries: &[(&str, &str)]) -> SavedQueries {
        queries.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect()
    }

    fn now() -> jiff::Zoned {
        "2025-03-05T12:30:00+00:00[+00:00]".parse().unwrap()
    }

    #[test]
    fn a_saved_query_is_what_it_stands_for() {
        let queries = saved(&[("mine", "from:ann or x"), ("my todo", "query:mine tag:todo"), ("all", " ")]);
        for (text, meant) in [
            ("query:mine y", "(from:ann or x) y"),
            ("not query:\"my todo\"", "not ((from:ann or x) tag:todo)"),
            ("subject:(query:mine a)", "(from:ann or x) subject:a"),
            ("query:all", ""),
            ("query:mine query:mine", "(from:ann or x) (from:ann or x)"),
            ("thread:{query:mine}", "thread:{from:ann or x}"),
        ] {
            assert_eq!(parse_with(text, &now(), &queries), parse(meant, &now()), "{text}");
        }
    }

    #[test]
    fn what_a_saved_query_cannot_be_is_pointed_at() {
        let queries = saved(&[
            ("a", "x query:b"),
            ("b", "query:c"),
            ("c", "y or query:a"),
            ("me", "query:me"),
            ("bad", "x date:y"),
        ]);
        let check = |text: &str, marked: &str, message: &str| {
            let error = parse_with(text, &now(), &queries).expect_err(text);
            assert_eq!(&text[error.span.clone()], marked, "{}", error.show(text));
            assert!(error.message.contains(message), "{}", error.show(text));
        };
        check("z query:a", "a", "the saved query `a` is part of itself: `a`, `b`, `c`");
        check("query:me", "me", "the saved query `me` is part of itself: `me`\n  query:me\n        ^^");
        check("query:bad", "bad", "in the saved query `bad`: `y` is not a date");
        check("query:d x", "d", "no saved query `d`; there are a, b, bad, c, me");
        check("query:/a/", "/a/", "no regular expression");
        assert!(parse("query:x", &now()).unwrap_err().message.contains("nor any other"));
    }

    #[test]
    fn what_saved_queries_stand_for_is_bounded() {
        // Each names the next one twice.
        let mut queries: SavedQueries =
            (0..90).map(|n| (format!("q{n}"), format!("query:q{} query:q{}", n + 1, n + 1))).collect();
        queries.insert("q90".to_owned(), "x".to_owned());
        assert!(parse_with("query:q0", &now(), &queries).unwrap_err().message.contains("bytes here"));
        let chain = (0..10_000).map(|n| (format!("q{n}"), format!("query:q{}", n + 1))).collect();
        assert!(parse_with("query:q0", &now(), &chain).unwrap_err().message.contains("nested too deeply"));
    }
}
