//! Error messages about a TOML file, in terms of the file instead of the program, with their place.

use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Rewrites an error message of the crates `serde` and `toml` for the author of the file.
///
/// `home_of` names the right place of a key that is unknown where it stands: `below [log]`.
///
/// ```
/// let said = posthaste_units::words::plain("unknown field `nam`, expected `name` or `addresses`", |_| None);
/// assert_eq!(said, "there is no key `nam` here; did you mean `name`?");
/// ```
pub fn plain(message: &str, home_of: impl Fn(&str) -> Option<String>) -> String {
    let message = message.trim_end().replace('\n', ", ");
    let said = if let Some(rest) = message.strip_prefix("unknown field `") {
        split_name(rest, "`, ").map(|(name, expected)| unknown_key(name, &quoted(expected), home_of))
    } else if let Some(rest) = message.strip_prefix("unknown variant `") {
        split_name(rest, "`, ").map(|(name, expected)| unknown_word(name, &quoted(expected)))
    } else if let Some(rest) = message.strip_prefix("missing field `") {
        split_name(rest, "`").map(|(name, _)| format!("`{name}` is missing"))
    } else if message == "integer number overflowed" {
        Some("the number is too large".to_owned())
    } else if message.starts_with("unexpected leading zero") {
        Some("a number cannot begin with 0; permission bits are text in quotes, such as \"0660\"".to_owned())
    } else if message.starts_with("string values must be quoted") {
        Some("text needs quotes".to_owned())
    } else if message.starts_with("invalid basic string, expected `\"`") {
        Some("the closing quote is missing".to_owned())
    } else if message == "duplicate key" {
        Some("this name is given twice".to_owned())
    } else if message == "wanted string or table" {
        Some("this has to be text in quotes".to_owned())
    } else {
        let typed = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
        typed.and_then(|rest| rest.rsplit_once(", expected ")).map(|(found, wanted)| wrong_type(found, wanted))
    };
    said.unwrap_or(message)
}

fn split_name<'a>(rest: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    // A key may hold anything; what is expected may not.
    rest.rsplit_once("`, expected ").filter(|_| mark == "`, ").or_else(|| rest.rsplit_once(mark))
}

/// Returns the parts of `text` between back quotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn unknown_key(name: &str, known: &[&str], home_of: impl Fn(&str) -> Option<String>) -> String {
    if let Some(near) = nearest(name, known) {
        return format!("there is no key `{name}` here; did you mean `{near}`?");
    }
    if let Some(home) = home_of(name) {
        return format!("there is no key `{name}` here; it belongs {home}");
    }
    format!("there is no key `{name}` here; there are {}", known.join(", "))
}

fn unknown_word(name: &str, known: &[&str]) -> String {
    let all = known.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    match nearest(name, known) {
        Some(near) => format!("\"{name}\" is not allowed here; did you mean \"{near}\"? There are {all}"),
        None => format!("\"{name}\" is not allowed here; there are {all}"),
    }
}

fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    const ALIKE: f64 = 0.8;
    let scored = known.iter().map(|word| (strsim::jaro_winkler(&name.to_lowercase(), word), *word));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > ALIKE).map(|(_, word)| word)
}

fn wrong_type(found: &str, wanted: &str) -> String {
    // More than a number of TOML can be has a type of its own there.
    if let Some(number) = found.strip_suffix(" as i128").or_else(|| found.strip_suffix(" as u128")) {
        let number = number.trim_start_matches("integer ");
        let is_number = ["a size", "a time", "a whole number", "a share", "a name in quotes, or a number"];
        return if is_number.iter().any(|kind| wanted.starts_with(kind)) {
            format!("{number} is too large")
        } else {
            wrong_type(number, wanted)
        };
    }
    let wanted = match wanted {
        "a string" | "path string" => "text in quotes",
        "a boolean" => "true or false, without quotes",
        "a sequence" => "a list in brackets, such as [\"a\", \"b\"]",
        "a map" => "a table, such as { name = \"value\" }",
        "f64" => "a number",
        "u64" | "u32" | "usize" => "a whole number, not negative",
        // Of the program: nobody outside knows its name.
        other if other.starts_with("struct ") => "a table, with a heading of its own or as { name = \"value\" }",
        other => other,
    };
    // The reader has made a decimal number of what may be octal in the file.
    if wanted.starts_with("permission bits") && found.starts_with("integer ") {
        return format!("this has to be {wanted}");
    }
    let found = match found {
        "map" => "a table",
        "sequence" => "a list",
        other => ["string ", "integer ", "boolean ", "floating point "]
            .iter()
            .find_map(|kind| other.strip_prefix(kind))
            .unwrap_or(other),
    };
    format!("this has to be {wanted}; it is {found}")
}

/// One step from the top of the file to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A key of a table.
    Name(String),
    /// An entry of a list, counted from 0.
    Index(usize),
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<usize> for Key {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// A well-formed value that makes no sense: its place and the mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path from the top of the file to the value.
    pub at: Vec<Key>,
    /// The mistake, in words.
    pub message: String,
}

impl Problem {
    /// `message` is about the value at `at`.
    pub fn new(at: impl Into<Vec<Key>>, message: impl Into<String>) -> Self {
        Self { at: at.into(), message: message.into() }
    }

    /// Returns the problem with `above`, one or more keys, before its path.
    pub fn within(self, above: impl Into<Vec<Key>>) -> Self {
        Self { at: [above.into(), self.at].concat(), ..self }
    }
}

/// A mistake with its place in a file. Displays as `file:line:column: what`, the line, and a mark below it.
#[derive(Debug, Clone, Copy)]
pub struct Mistake<'a> {
    /// The file.
    pub file: &'a Path,
    /// The place, if there is a single one.
    pub position: Option<&'a Position>,
    /// The mistake, in words.
    pub message: &'a str,
}

impl Mistake<'_> {
    /// Formats the mistake without the line of the file and the mark below it.
    pub fn in_one_line(&self) -> String {
        let file = self.file.display();
        match self.position {
            Some(at) => format!("{file}:{}:{}: {}", at.line, at.column, self.message),
            None => format!("{file}: {}", self.message),
        }
    }
}

impl fmt::Display for Mistake<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_one_line())?;
        let Some(at) = self.position else { return Ok(()) };
        let number = at.line.to_string();
        let margin = " ".repeat(number.len());
        let indent = " ".repeat(at.column - 1);
        let marks = "^".repeat(at.marks);
        writeln!(f, "\n {number} | {}", at.text)?;
        write!(f, " {margin} | {indent}{marks}")
    }
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    text: String,
    marks: usize,
}

impl Position {
    /// Position of `span`, in bytes, in a file's text.
    pub fn of(text: &str, span: Range<usize>) -> Self {
        let start = span.start.min(text.len());
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |offset| start + offset);
        let marked = &text[start..span.end.clamp(start, line_end)];
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            // A tab would put the marks elsewhere than the terminal puts the text.
            text: text[line_start..line_end].trim_end().replace('\t', " "),
            marks: marked.trim_end().chars().count().max(1),
        }
    }
}
