//! A regular expression compiled to be tried on very many short texts.

use regex::Regex;
use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, Input, MatchKind};

use posthaste_text::fold;

/// Limit in bytes on the tables, and on memory while they are made. Larger expressions use the ordinary matcher, which
/// starts more slowly on each text.
const TABLES_BYTES_MAX: usize = 2 << 20;

/// A regular expression, as byte-by-byte tables unless they are too large.
pub(super) struct Matcher {
    regex: Regex,
    tables: Option<Tables>,
}

impl Matcher {
    pub fn new(regex: &Regex) -> Self {
        Self { tables: Tables::new(regex.as_str()), regex: regex.clone() }
    }

    /// Tables for a search of a dictionary; `None` if the expression has none.
    pub fn tables(&self) -> Option<&Tables> {
        self.tables.as_ref()
    }

    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// True if the unfolded `text` matches. The expression ignores case, so only text that is not ASCII has to be
    /// folded first.
    pub fn fits(&self, text: &[u8]) -> bool {
        if !text.is_ascii() {
            return std::str::from_utf8(text).is_ok_and(|text| self.regex.is_match(&fold(text)));
        }
        match &self.tables {
            Some(tables) => tables.fits(text),
            None => std::str::from_utf8(text).is_ok_and(|text| self.regex.is_match(text)),
        }
    }
}

/// A state machine: states, and their successors by byte.
pub(super) struct Tables {
    states: dense::DFA<Vec<u32>>,
    start: StateID,
    anchored: Anchored,
}

impl Tables {
    /// `None` if they would be too large.
    fn new(pattern: &str) -> Option<Self> {
        // Nothing can follow a first byte that does not fit, so most of a dictionary is skipped. A repetition of zero
        // or more makes the anchor optional.
        let anchored_rest = pattern.strip_prefix('^').filter(|rest| !rest.starts_with(['*', '?', '{']));
        let is_anchored = anchored_rest.is_some_and(|rest| !rest.contains('|'));
        let (anchored, kind) =
            if is_anchored { (Anchored::Yes, StartKind::Anchored) } else { (Anchored::No, StartKind::Unanchored) };
        let sizes = dense::Config::new()
            .dfa_size_limit(Some(TABLES_BYTES_MAX))
            .determinize_size_limit(Some(TABLES_BYTES_MAX))
            .match_kind(MatchKind::All)
            .start_kind(kind);
        let states = dense::Builder::new()
            .syntax(syntax::Config::new().case_insensitive(true))
            .thompson(thompson::Config::new().nfa_size_limit(Some(TABLES_BYTES_MAX)))
            .configure(sizes)
            .build(pattern)
            .ok()?;
        let start = states.start_state(&start::Config::new().anchored(anchored)).ok()?;
        Some(Self { states, start, anchored })
    }

    fn fits(&self, text: &[u8]) -> bool {
        // There are no bytes at which such tables give up.
        let input = Input::new(text).anchored(self.anchored).earliest(true);
        self.states.try_search_fwd(&input).is_ok_and(|found| found.is_some())
    }
}

/// A position in the tables.
pub(super) type State = StateID;

impl Tables {
    pub fn start(&self) -> State {
        self.start
    }

    /// Advances by one byte. `None` once a match is certain, whatever follows.
    pub fn next(&self, state: State, byte: u8) -> Option<State> {
        // That something matched is known one byte late.
        Some(self.states.next_state(state, byte)).filter(|&state| !self.states.is_match_state(state))
    }

    /// True if a text that ends here matches.
    pub fn is_match(&self, state: State) -> bool {
        self.states.is_match_state(self.states.next_eoi_state(state))
    }

    /// True if no continuation can match.
    pub fn is_dead(&self, state: State) -> bool {
        self.states.is_dead_state(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(tables: &Tables, text: &str) -> bool {
        let mut state = tables.start();
        for byte in text.bytes() {
            match tables.next(state, byte) {
                None => return true,
                Some(next) if tables.is_dead(next) => return false,
                Some(next) => state = next,
            }
        }
        tables.is_match(state)
    }

    #[test]
    fn tables_say_what_the_expression_says() {
        let texts =
            ["", "lm90", "xlm95", "lm9", "LM91", "lm90x", "hwmon patch", "patch hwmon", "aab", "ba", "é", "re: x", "b"];
        for pattern in [
            "lm9[0-9]$",
            "^lm9",
            "^LM9[0-9]$",
            "hwmon.*patch",
            "",
            "^$",
            "^a|b$",
            "a*b",
            ".",
            "^re:|x",
            "a{2,}",
            "[^a]",
            "^(a|b)",
            "^*patch",
            "^?patch",
            "^{0}patch",
        ] {
            let regex = regex::RegexBuilder::new(pattern).case_insensitive(true).build().unwrap();
            let matcher = Matcher::new(&regex);
            let tables = matcher.tables().unwrap_or_else(|| panic!("{pattern}"));
            for text in texts {
                assert_eq!(walk(tables, text), regex.is_match(text), "{pattern} on {text:?}");
                assert_eq!(matcher.fits(text.as_bytes()), regex.is_match(&fold(text)), "{pattern} on {text:?}");
            }
        }
    }

    #[test]
    fn what_would_be_too_large_is_matched_in_the_ordinary_way() {
        let regex = Regex::new("[a-z].{40}x.{40}y").unwrap();
        let matcher = Matcher::new(&regex);
        assert!(matcher.tables().is_none());
        assert!(matcher.fits(format!("a{0}x{0}y", "b".repeat(40)).as_bytes()) && !matcher.fits(b"abc"));
    }
}
