//! Errors that point at the place in the file.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::words;
pub use posthaste_units::words::Position;
use posthaste_units::words::{Key, Mistake, Problem};

/// Why a configuration cannot be used. Displays as `file:line:column: what`, the line, and a mark below it.
#[derive(Debug)]
pub struct ConfigError {
    file: PathBuf,
    position: Option<Position>,
    message: String,
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// Position of the error, if it has one.
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// The message without the line of the file and the mark below it.
    pub fn in_one_line(&self) -> String {
        self.mistake().in_one_line()
    }

    fn mistake(&self) -> Mistake<'_> {
        Mistake { file: &self.file, position: self.position.as_ref(), message: &self.message }
    }

    /// An error without a position in the file.
    pub(super) fn whole(file: &Path, message: String) -> Self {
        Self { file: file.to_owned(), position: None, message }
    }

    pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        Self::whole(file, format!("cannot be read: {error}"))
    }

    pub(super) fn encoding(file: &Path, octets: &[u8], error: std::str::Utf8Error) -> Self {
        // The place is in what comes before it; what cannot be read is shown as U+FFFD.
        let text = String::from_utf8_lossy(octets);
        let at = error.valid_up_to();
        let position = Position::of(&text, at..at + char::REPLACEMENT_CHARACTER.len_utf8());
        Self { file: file.to_owned(), position: Some(position), message: "not UTF-8".to_owned() }
    }

    pub(super) fn syntax(file: &Path, text: &str, error: &toml::de::Error) -> Self {
        Self {
            file: file.to_owned(),
            position: error.span().map(|span| Position::of(text, span)),
            message: words::plain(error.message()),
        }
    }

    pub(super) fn meaning(file: &Path, text: &str, problem: &Problem) -> Self {
        Self {
            file: file.to_owned(),
            position: span_of(text, &problem.at).map(|span| Position::of(text, span)),
            message: problem.message.clone(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mistake().fmt(f)
    }
}

/// Span in `text` of the value at `path`; of the nearest enclosing table if it is missing.
fn span_of(text: &str, path: &[Key]) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut found = None;
    let mut here: Option<&DeValue<'_>> = None;
    for key in path {
        let next = match (key, here) {
            (Key::Name(name), None) => table.get_ref().get(name.as_str()),
            (Key::Name(name), Some(DeValue::Table(table))) => table.get(name.as_str()),
            (Key::Index(index), Some(DeValue::Array(array))) => array.get(*index),
            // A value that may be given alone or in a list.
            (Key::Index(_), Some(_)) => break,
            _ => None,
        };
        let Some(value) = next else { break };
        found = Some(value.span());
        here = Some(value.get_ref());
    }
    found
}
