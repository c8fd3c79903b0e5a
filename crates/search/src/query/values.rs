//! Values of fields, after the colon.

use std::ops::{Bound, Range};

use super::ast::{Flag, HeaderValue, Leaf, Pattern, Query, Span, TextField};
use super::error::ParseError;
use super::fields;
use crate::state::bits;
use posthaste_text::{Priority, fold, tokens};

/// Maximum bytes of a compiled regular expression.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// A value, by its notation.
pub(super) enum Value {
    /// Without quotes.
    Bare(String),
    Quoted(String),
    Regex(String),
}

pub(super) fn is_relative(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.contains(|c: char| c.is_ascii_alphabetic() && c != 'T')
}

pub(super) fn plain(value: Value, span: &Span) -> Result<String, ParseError> {
    match value {
        Value::Bare(text) | Value::Quoted(text) => Ok(text),
        Value::Regex(_) => Err(ParseError::new(span.clone(), "this field takes no regular expression")),
    }
}

pub(super) fn text_leaf(field: TextField, value: Value, span: Span) -> Result<Leaf, ParseError> {
    match value {
        // Matches every message that has the field.
        Value::Bare(text) if text == "*" => Ok(Leaf::Regex { field, pattern: Pattern::Matches(regex(".", &span)?) }),
        Value::Regex(pattern) => Ok(Leaf::Regex { field, pattern: Pattern::Matches(regex(&pattern, &span)?) }),
        Value::Bare(text) => {
            let (text, prefix) = words(text, true, span)?;
            Ok(Leaf::Text { field, text, prefix })
        }
        Value::Quoted(text) => {
            let (text, prefix) = words(text, false, span)?;
            Ok(Leaf::Text { field, text, prefix })
        }
    }
}

/// Parses the condition on a header's value: like other text, and also a comparison of numbers (`>5`, `..2.5`).
pub(super) fn header_value(value: Value, span: Span) -> Result<HeaderValue, ParseError> {
    let (text, is_bare) = match value {
        Value::Bare(text) if text == "*" => return Ok(HeaderValue::Any),
        Value::Regex(pattern) => return Ok(HeaderValue::Text(Pattern::Matches(regex(&pattern, &span)?))),
        Value::Bare(text) => (text, true),
        Value::Quoted(text) => (text, false),
    };
    if is_bare && let Some((from, to)) = number_range(&text, &span)? {
        return Ok(HeaderValue::Number(from, to));
    }
    let (text, prefix) = words(text, is_bare, span)?;
    Ok(HeaderValue::Words { text, prefix })
}

type NumberRange = (Bound<f64>, Bound<f64>);

/// Parses `>5`, `<=-1.5`, `2..7`, `..2`. `None` for anything else.
fn number_range(text: &str, span: &Span) -> Result<Option<NumberRange>, ParseError> {
    let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
    let compared = |text: &str| {
        let wrong = || ParseError::new(span.clone(), format!("`{text}` is not a number; try >5, <=-1.5 or 2..7"));
        number(text).ok_or_else(wrong)
    };
    if let Some(least) = text.strip_prefix(">=") {
        return Ok(Some((Bound::Included(compared(least)?), Bound::Unbounded)));
    }
    if let Some(most) = text.strip_prefix("<=") {
        return Ok(Some((Bound::Unbounded, Bound::Included(compared(most)?))));
    }
    if let Some(above) = text.strip_prefix('>') {
        return Ok(Some((Bound::Excluded(compared(above)?), Bound::Unbounded)));
    }
    if let Some(below) = text.strip_prefix('<') {
        return Ok(Some((Bound::Unbounded, Bound::Excluded(compared(below)?))));
    }
    let bound = |text: &str| if text.is_empty() { Some(Bound::Unbounded) } else { number(text).map(Bound::Included) };
    let range = text.split_once("..").filter(|(from, to)| !from.is_empty() || !to.is_empty());
    Ok(range.and_then(|(from, to)| Some((bound(from)?, bound(to)?))))
}

/// Parses words. The flag is true if the last one is a prefix: an unquoted `*` marks it.
fn words(text: String, is_bare: bool, span: Span) -> Result<(String, bool), ParseError> {
    let (text, prefix) = match text.strip_suffix('*').filter(|_| is_bare) {
        Some(stem) => (stem.to_owned(), true),
        None => (text, false),
    };
    if tokens(&text).is_empty() {
        return Err(ParseError::new(span, "there is no letter or digit in this to search for"));
    }
    Ok((text, prefix))
}

/// Compiles an expression for folded text. The pattern itself is folded, except escapes and classes (`\S` is not `\s`).
fn regex(pattern: &str, span: &Span) -> Result<regex::Regex, ParseError> {
    let mut folded = String::with_capacity(pattern.len());
    let mut escaped = false;
    for c in pattern.chars() {
        if escaped || c.is_ascii() {
            folded.push(c)
        } else {
            folded.push_str(&fold(c.encode_utf8(&mut [0; 4])))
        }
        escaped = c == '\\' && !escaped;
    }
    let built = regex::RegexBuilder::new(&folded).case_insensitive(true).size_limit(REGEX_BYTES_MAX).build();
    built.map_err(|error| {
        // The last line of the message says what is wrong; the others draw the pattern again.
        let text = error.to_string();
        let what = text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned();
        ParseError::new(span.clone(), format!("not a regular expression: {what}"))
    })
}

pub(super) fn pattern(value: Value, span: Span, normal: impl Fn(&str) -> String) -> Result<Pattern, ParseError> {
    Ok(match value {
        Value::Regex(pattern) => Pattern::Matches(regex(&pattern, &span)?),
        Value::Quoted(text) => Pattern::Is(normal(&text)),
        Value::Bare(text) => match text.strip_suffix('*') {
            Some(stem) => Pattern::StartsWith(normal(stem)),
            None => Pattern::Is(normal(&text)),
        },
    })
}

/// Parses `image/*`, and as in notmuch single words: `pdf`, `image`.
pub(super) fn mime_leaf(value: Value, span: Span) -> Result<Leaf, ParseError> {
    Ok(match value {
        Value::Bare(word) | Value::Quoted(word) if !word.contains(['/', '*']) => {
            Leaf::MimeWord(word.to_ascii_lowercase())
        }
        value => Leaf::Mime(pattern(value, span, str::to_ascii_lowercase)?),
    })
}

/// Parses `/Lists/rust`, `Lists/*`, notmuch's `Lists/**`. Slashes at the ends are ignored.
pub(super) fn folder_pattern(value: Value, span: Span) -> Result<Pattern, ParseError> {
    let trimmed = |text: &str| text.trim_matches('/').to_owned();
    Ok(match value {
        Value::Bare(text) if text.ends_with('*') => {
            Pattern::StartsWith(text.trim_end_matches('*').trim_start_matches('/').to_owned())
        }
        value => pattern(value, span, trimmed)?,
    })
}

/// Parses notmuch's `path:`, which names the file's directory, `Lists/rust/cur`; without that end it is a folder.
pub(super) fn path_query(value: Value, span: Span) -> Result<Query, ParseError> {
    if let Value::Bare(text) | Value::Quoted(text) = &value {
        let text = text.trim_matches('/');
        let (folder, last) = text.rsplit_once('/').unwrap_or(("", text));
        let new = || Query::Leaf(Leaf::Flag(Flag::Property(bits::NEW)));
        let side = match last {
            "new" => Some(new()),
            "cur" => Some(Query::Not(Box::new(new()))),
            _ => None,
        };
        if let Some(side) = side {
            return Ok(Query::And(vec![Query::Leaf(Leaf::Folder(Pattern::Is(folder.to_owned()))), side]));
        }
    }
    Ok(Query::Leaf(Leaf::Folder(folder_pattern(value, span)?)))
}

pub(super) fn flag_leaf(name: &str, span: Span) -> Result<Leaf, ParseError> {
    let known = "draft flagged passed replied seen trashed new unread read attach signed encrypted list calendar";
    fields::flag(name)
        .map(Leaf::Flag)
        .ok_or_else(|| ParseError::new(span, format!("there is no flag `{name}`; there are {known}")))
}

/// Parses a tag. A tag with a flag's name also matches that flag.
pub(super) fn tag_query(value: Value, span: Span, flag_of: fn(&str) -> Option<Flag>) -> Result<Query, ParseError> {
    let flag = match &value {
        Value::Bare(name) | Value::Quoted(name) => flag_of(name),
        Value::Regex(_) => None,
    };
    let tag = Query::Leaf(Leaf::Tag(pattern(value, span, str::to_owned)?));
    Ok(match flag {
        Some(flag) => Query::Or(vec![tag, Query::Leaf(Leaf::Flag(flag))]),
        None => tag,
    })
}

pub(super) fn priority_leaf(name: &str, span: Span) -> Result<Leaf, ParseError> {
    let priority = match name.to_ascii_lowercase().as_str() {
        "high" | "h" => Priority::High,
        "normal" | "n" => Priority::Normal,
        "low" | "l" => Priority::Low,
        _ => return Err(ParseError::new(span, "a priority is high, normal or low")),
    };
    Ok(Leaf::Priority(priority))
}

/// Parses a thread's number: 8 hexadecimal digits, or 16 as in notmuch's output. Anything shorter is a word, since a
/// number meant for another purpose must not find an unrelated thread.
pub(super) fn thread_number(text: &str, span: Span) -> Result<u32, ParseError> {
    let is_number = matches!(text.len(), 8 | 16) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten();
    number.ok_or_else(|| {
        let message = "a thread is a number of 8 hexadecimal digits as `threads` shows it, or a query in braces: thread:{from:ann}";
        ParseError::new(span, message)
    })
}

pub(super) fn size_range(text: &str, span: Span) -> Result<Range<u64>, ParseError> {
    let one = |part: &str| {
        size(part).ok_or_else(|| ParseError::new(span.clone(), format!("`{part}` is not a size; try 500, 20k or 3M")))
    };
    if let Some((from, to)) = text.split_once("..") {
        let start = if from.is_empty() { 0 } else { one(from)? };
        let end = if to.is_empty() { u64::MAX } else { one(to)?.saturating_add(1) };
        return Ok(start..end);
    }
    if let Some(least) = text.strip_prefix(">=") {
        return Ok(one(least)?..u64::MAX);
    }
    if let Some(most) = text.strip_prefix("<=") {
        return Ok(0..one(most)?.saturating_add(1));
    }
    if let Some(above) = text.strip_prefix('>') {
        return Ok(one(above)?.saturating_add(1)..u64::MAX);
    }
    if let Some(below) = text.strip_prefix('<') {
        return Ok(0..one(below)?);
    }
    let exact = one(text)?;
    Ok(exact..exact.saturating_add(1))
}

fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(factor)
}
