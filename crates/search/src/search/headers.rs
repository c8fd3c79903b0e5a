//! Conditions on header fields that the settings name.

use std::ops::RangeBounds;

use tantivy::schema::Field;

use super::regex::fitting_values;
use super::scope::Scope;
use super::searcher::Searcher;
use crate::bitmap::Bitmap;
use crate::error::{IndexError, Result};
use crate::query::HeaderValue;

impl Searcher {
    pub(super) fn header(&self, name: &str, value: &HeaderValue) -> Result<Bitmap> {
        let unknown = || IndexError::Header { name: name.to_owned(), known: self.text.headers().to_string() };
        let field = self.text.header_field(name).ok_or_else(unknown)?;
        match value {
            HeaderValue::Any => self.with_a_value(field, |_| true),
            HeaderValue::Words { text, prefix } => self.words_of(&[field], text, *prefix, Scope::All),
            HeaderValue::Text(pattern) => self.regex_on(&[field], pattern),
            HeaderValue::Number(from, to) => self
                .with_a_value(field, |value| first_number(value).is_some_and(|number| (*from, *to).contains(&number))),
        }
    }

    /// Messages with a matching value of this field.
    fn with_a_value(&self, field: Field, fits: impl Fn(&str) -> bool) -> Result<Bitmap> {
        let schema = self.text.index.schema();
        self.in_segments(|segment, found| {
            let Some(column) = segment.reader.fast_fields().str(schema.get_field_name(field))? else { return Ok(()) };
            let fitting = fitting_values(&column, |value| std::str::from_utf8(value).is_ok_and(&fits))?;
            for document in 0..segment.reader.max_doc() {
                let mut values = column.ords().values_for_doc(document);
                if values.any(|value| fitting.get(u32::try_from(value).unwrap_or(u32::MAX))) {
                    found.set(segment.number(document));
                }
            }
            Ok(())
        })
    }
}

/// Parses the first number in a text: 5.3 in `Yes, score=5.3 required=5.0`, -1.2 in `-1.2 / 15`. A `-` is a sign unless
/// a letter, digit or point stands before it.
fn first_number(text: &str) -> Option<f64> {
    let is_word = |c: char| c.is_alphanumeric() || c == '.';
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let first = text.find(|c: char| c.is_ascii_digit())?;
    // `.5` is half, `v.5` is five.
    let start = match text[..first].strip_suffix('.') {
        Some(before) if !before.ends_with(is_word) => before.len(),
        _ => first,
    };
    let mut end = first + digits(&text[first..]);
    if let Some(decimals) = text[end..].strip_prefix('.').filter(|_| start == first) {
        end += 1 + digits(decimals);
    }
    let number: f64 = text[start..end].parse().ok()?;
    let is_negative = text[..start].strip_suffix('-').is_some_and(|before| !before.ends_with(is_word));
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_of_a_text_is_found() {
        for (text, number) in [
            ("5.3", Some(5.3)),
            ("-0.1", Some(-0.1)),
            ("Yes, score=5.3 required=5.0", Some(5.3)),
            ("No, score=-1.9", Some(-1.9)),
            ("-.5", Some(-0.5)),
            (".5", Some(0.5)),
            (".5.7", Some(0.5)),
            ("v.5", Some(5.0)),
            ("2026-01-02", Some(2026.0)),
            ("x-5", Some(5.0)),
            ("5.", Some(5.0)),
            ("1.2.3", Some(1.2)),
            ("****", None),
            ("", None),
            ("é-7", Some(7.0)),
        ] {
            assert_eq!(first_number(text), number, "{text}");
        }
    }
}
