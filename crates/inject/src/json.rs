//! JSON of a request, with errors in the terms of the API.

use std::fmt::Write as _;

use posthaste_units::object::Object;
use serde::de::Deserialize;
use serde_json::error::Category;

/// Parses the JSON object in a body.
///
/// # Errors
/// The error, with the path of the value: `recipients[0].email: expected a string, found a number`.
pub(crate) fn read<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, String> {
    let read: Result<Object<T>, _> = serde_json::from_slice(body);
    read.map(|Object(read)| read).map_err(|error| match error.classify() {
        Category::Data => {
            let path = path_at(body, error.line(), error.column());
            let what = mistake(&error.to_string());
            if path.is_empty() { what } else { format!("{path}: {what}") }
        }
        Category::Syntax | Category::Eof | Category::Io => format!("the body is not JSON: {error}"),
    })
}

/// An error of serde, without its type names and without the value, which may be long.
fn mistake(told: &str) -> String {
    let told = told.rsplit_once(" at line ").map_or(told, |(told, _)| told);
    if let Some((found, expected)) =
        told.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "))
    {
        return format!("expected {}, found {}", kind(expected), kind(found));
    }
    let quoted = |prefix: &str| told.strip_prefix(prefix)?.split_once('`');
    if let Some((key, _)) = quoted("missing field `") {
        return format!("`{key}` is missing");
    }
    if let Some((key, _)) = quoted("duplicate field `") {
        return format!("`{}` is there twice", cut(key));
    }
    for (prefix, what) in [("unknown field `", "there is no key"), ("unknown variant `", "there is no")] {
        if let Some((name, rest)) = told.strip_prefix(prefix).and_then(|rest| rest.rsplit_once("`, expected ")) {
            let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
            return format!("{what} `{}`; there are {}", cut(name), known.join(", "));
        }
    }
    cut(told)
}

/// A kind of value as JSON calls it.
fn kind(told: &str) -> &str {
    let kinds = [
        ("a map", "an object"),
        ("map", "an object"),
        ("a sequence", "an array"),
        ("sequence", "an array"),
        ("string", "a string"),
        ("integer", "a number"),
        ("floating point", "a number"),
        ("number", "a number"),
        ("boolean", "a boolean"),
        ("unit value", "null"),
    ];
    kinds.iter().find(|(of_serde, _)| told.starts_with(of_serde)).map_or(told, |(_, of_json)| of_json)
}

/// A name from the request, shortened for the answer.
fn cut(name: &str) -> String {
    const CHARS_MAX: usize = 64;
    match name.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// The value that contains a position, or the last key before it: `recipients[0].email`. Lines and columns count from
/// 1.
fn path_at(body: &[u8], line: usize, column: usize) -> String {
    let line_start =
        body.split_inclusive(|octet| *octet == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum::<usize>();
    let end = (line_start + column).min(body.len());
    // The keys and indexes from the body inwards; a key is empty until it is read.
    let mut within: Vec<Step> = Vec::new();
    let mut at = 0;
    while at < end {
        match body[at] {
            b'{' => within.push(Step::Key(String::new())),
            b'[' => within.push(Step::Index(0)),
            // The object or array itself is what is wrong.
            b'}' | b']' if at + 1 < end => drop(within.pop()),
            b',' => match within.last_mut() {
                Some(Step::Key(key)) => key.clear(),
                Some(Step::Index(index)) => *index += 1,
                None => {}
            },
            b'"' => {
                let text_end = text_end(body, at);
                if let Some(Step::Key(key)) = within.last_mut()
                    && key.is_empty()
                {
                    *key = cut(&String::from_utf8_lossy(&body[at + 1..text_end]));
                }
                at = text_end;
            }
            _ => {}
        }
        at += 1;
    }
    if matches!(body[..end].last(), Some(b'{' | b'[' | b'}' | b']')) {
        within.pop();
    }
    within.iter().fold(String::new(), |mut path, step| {
        let _ = match step {
            Step::Key(key) if key.is_empty() => Ok(()),
            Step::Key(key) if path.is_empty() => write!(path, "{key}"),
            Step::Key(key) => write!(path, ".{key}"),
            Step::Index(index) => write!(path, "[{index}]"),
        };
        path
    })
}

enum Step {
    Key(String),
    Index(usize),
}

/// The closing quote of the string that begins at `from`.
fn text_end(body: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < body.len() && body[at] != b'"' {
        at += if body[at] == b'\\' { 2 } else { 1 };
    }
    at.min(body.len())
}
