//! Classes of replies: the meaning of a refusal, independent of the host's wording. Rules are a TOML file; a set for
//! common replies is built in.
//!
//! ```toml
//! builtin = true          # the default: what no rule of this file matches is left to the built-in rules
//!
//! [[class]]
//! name = "bad-address"
//! is_address_bad = true   # of a name that is not built in; without it false
//! patterns = ['^550 .*gone fishing for good']
//! ```
//!
//! A pattern is a regular expression on the line `code enhanced text`, case-insensitive. The first match in file order
//! decides; a class may occur again. All patterns of a file are tried in one pass, in time linear in the line, and then
//! the built-in ones.
//!
//! ```
//! use posthaste_relay::classify::Classifier;
//!
//! let classifier = Classifier::default();
//! let class = classifier.classify("550 5.1.1 <bob@example.org>: no such user");
//! assert_eq!((class.name(), class.is_address_bad()), ("bad-address", true));
//! let class = classifier.classify("550 5.1.1 mailbox unavailable, 192.0.2.1 is listed on a blocklist");
//! assert_eq!((class.name(), class.is_address_bad()), ("policy", false));
//! ```
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use posthaste_shaping::automation::LINE_BYTES_MAX;
use posthaste_smtp::Reply;
use posthaste_units::words::plain;
use regex::{RegexBuilder, RegexSet, RegexSetBuilder};
use serde::Deserialize;

/// A class of replies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Class {
    name: Arc<str>,
    is_address_bad: bool,
}

impl Class {
    /// Its name; `other` if nothing matched.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if a permanent reply of this class means that the address will never take mail.
    pub fn is_address_bad(&self) -> bool {
        self.is_address_bad
    }
}

/// Classifies replies.
#[derive(Debug)]
pub struct Classifier {
    own: RegexSet,
    has_builtin: bool,
    /// The class of each pattern, the file's own first.
    classes: Vec<Class>,
    other: Class,
}

/// The mistake in a rules file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// Not TOML, or with unknown keys.
    #[error("the bounce rules: {0}")]
    Toml(String),
    /// A pattern is not a regular expression, or compiles to too much.
    #[error("class `{class}`, pattern `{pattern}`: {why}")]
    Pattern {
        /// Name of the class.
        class: String,
        /// As written.
        pattern: String,
        /// The mistake.
        why: String,
    },
    /// A name is empty, `other`, or has characters other than letters, digits and `-`.
    #[error("`{0}` cannot name a class")]
    Name(String),
    /// A class occurs twice, and only one of them marks the address as bad.
    #[error("class `{0}` has contradictory values of is_address_bad")]
    Contradiction(String),
    /// The patterns together are too large.
    #[error("the patterns together are too large")]
    TooLarge,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(default = "yes")]
    builtin: bool,
    #[serde(default)]
    class: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    name: String,
    is_address_bad: Option<bool>,
    patterns: Vec<String>,
}

impl Default for Classifier {
    /// The built-in rules.
    fn default() -> Self {
        Self::new("").expect("the built-in rules are tested")
    }
}

impl Classifier {
    /// Reads a rules file. An empty file gives the built-in rules.
    ///
    /// # Errors
    /// See [`RulesError`].
    pub fn new(rules: &str) -> Result<Self, RulesError> {
        let own = read(rules)?;
        let builtin = builtin();
        let known = |name: &str| builtin.iter().find(|rule| rule.name == name).and_then(|rule| rule.is_address_bad);
        let mut classes: Vec<Class> = Vec::new();
        let theirs: &[Rule] = if own.builtin { &builtin } else { &[] };
        for rule in own.class.iter().chain(theirs) {
            check_name(&rule.name)?;
            let earlier = classes.iter().find(|class| *class.name == *rule.name);
            let is_bad = match (rule.is_address_bad, earlier) {
                (Some(said), Some(earlier)) if said != earlier.is_address_bad => {
                    return Err(RulesError::Contradiction(rule.name.clone()));
                }
                (_, Some(earlier)) => earlier.is_address_bad,
                (said, None) => said.or_else(|| known(&rule.name)).unwrap_or(false),
            };
            let class = Class { name: rule.name.as_str().into(), is_address_bad: is_bad };
            classes.extend(rule.patterns.iter().map(|_| class.clone()));
        }
        own.class.iter().try_for_each(check_patterns)?;
        Ok(Classifier {
            own: compiled(&own.class).map_err(|_| RulesError::TooLarge)?,
            has_builtin: own.builtin,
            classes,
            other: Class { name: OTHER.into(), is_address_bad: false },
        })
    }

    /// The class of a line `code enhanced text`; the enhanced code may be missing. Reads at most [`LINE_BYTES_MAX`]
    /// octets.
    pub fn classify(&self, line: &str) -> &Class {
        let line = &line[..line.floor_char_boundary(LINE_BYTES_MAX)];
        // Matches come in ascending order.
        let first_of = |patterns: &RegexSet| patterns.matches(line).iter().next();
        let of_builtin = || first_of(&BUILTIN_PATTERNS).map(|first| self.own.len() + first);
        let first = first_of(&self.own).or_else(|| self.has_builtin.then(of_builtin).flatten());
        first.map_or(&self.other, |first| &self.classes[first])
    }

    /// The class of a reply.
    pub fn classify_reply(&self, reply: &Reply) -> &Class {
        self.classify(&line_of(reply))
    }

    /// All classes, each once, in the order of tries; `other` last.
    pub fn classes(&self) -> Vec<&Class> {
        let mut all: Vec<&Class> = Vec::new();
        for class in self.classes.iter().chain([&self.other]) {
            if !all.contains(&class) {
                all.push(class);
            }
        }
        all
    }
}

/// A reply in the form for patterns: one line, without control characters.
pub fn line_of(reply: &Reply) -> String {
    let enhanced = reply.enhanced().map(|code| format!("{code} ")).unwrap_or_default();
    let text = reply.text().replace(char::is_control, " ");
    format!("{} {enhanced}{text}", reply.code())
}

/// The class of unmatched replies.
const OTHER: &str = "other";
const NAME_BYTES_MAX: usize = 64;
const PATTERN_BYTES_MAX: usize = 1000;
/// Largest compiled pattern.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Largest set of compiled patterns, and largest memory for matching.
const SET_BYTES_MAX: usize = 32 << 20;
const BUILTIN: &str = include_str!("default.toml");
/// Compiled at the first reply: compiling takes far longer than the rest of a server's start.
static BUILTIN_PATTERNS: LazyLock<RegexSet> =
    LazyLock::new(|| compiled(&builtin()).expect("the built-in rules are tested"));

fn builtin() -> Vec<Rule> {
    read(BUILTIN).expect("the built-in rules are tested").class
}

fn compiled(rules: &[Rule]) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(rules.iter().flat_map(|rule| &rule.patterns))
        .case_insensitive(true)
        .size_limit(SET_BYTES_MAX)
        .dfa_size_limit(SET_BYTES_MAX)
        .build()
}

fn yes() -> bool {
    true
}

fn read(text: &str) -> Result<Rules, RulesError> {
    toml::from_str(text).map_err(|error| RulesError::Toml(plain(error.message(), |_| None)))
}

fn check_name(name: &str) -> Result<(), RulesError> {
    let fits = name.bytes().all(|octet| octet.is_ascii_alphanumeric() || octet == b'-');
    let is_name = fits && (1..=NAME_BYTES_MAX).contains(&name.len()) && name != OTHER;
    if is_name { Ok(()) } else { Err(RulesError::Name(name.to_owned())) }
}

fn check_patterns(rule: &Rule) -> Result<(), RulesError> {
    rule.patterns.iter().try_for_each(|pattern| check_pattern(&rule.name, pattern))
}

fn check_pattern(class: &str, pattern: &str) -> Result<(), RulesError> {
    let wrong = |why: &str| RulesError::Pattern {
        class: class.to_owned(),
        pattern: pattern.chars().take(100).collect(),
        why: why.to_owned(),
    };
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(wrong("it is too long"));
    }
    // Compiled alone first, so that an error names it.
    let regex = RegexBuilder::new(pattern).case_insensitive(true).size_limit(COMPILED_BYTES_MAX).build();
    match regex {
        Err(regex::Error::CompiledTooBig(_)) => Err(wrong("it is too large: avoid counts such as {1000}")),
        Err(error) => Err(wrong(error.to_string().lines().last().unwrap_or_default())),
        Ok(regex) if regex.is_match("") => Err(wrong("it matches everything")),
        Ok(_) => Ok(()),
    }
}
