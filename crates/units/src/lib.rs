//! Values of a configuration or a command line: sizes, times, rates and names, with uniform [error messages](words).
//!
//! A [`Bucket`] enforces a rate, and a [`BackOff`] computes the pauses between attempts.
//!
//! For any program with such values. The crate knows no keys and no limits; it reads no file.
#![forbid(unsafe_code)]

mod back_off;
mod bounds;
mod bucket;
pub mod histogram;
#[cfg(feature = "serde")]
pub mod keys;
#[cfg(feature = "serde")]
pub mod object;
mod quantities;
mod rate;
#[cfg(feature = "serde")]
pub mod values;
pub mod words;

pub use back_off::BackOff;
pub use bounds::{A_YEAR, check_bounds};
pub use bucket::{Bucket, Refused};
pub use quantities::{DURATION_MAX, UnitError, about_bytes, bytes, count, duration, show_bytes};
pub use rate::{Rate, RateError};

/// True if `text` can name a tenant, campaign or pool: 1 to 100 visible ASCII characters.
pub fn is_name(text: &str) -> bool {
    const BYTES_MAX: usize = 100;
    (1..=BYTES_MAX).contains(&text.len()) && text.bytes().all(|octet| octet.is_ascii_graphic())
}

/// Wraps a text at blanks to lines of at most 80 columns. Each line except the first is indented by `indent` blanks; in
/// the first the caller has used that many columns. A longer word has a line of its own. Ends without a line feed.
pub fn wrapped(text: &str, indent: usize) -> String {
    const COLUMNS: usize = 80;
    let mut out = String::new();
    let mut used = indent;
    for word in text.split(' ') {
        let width = word.chars().count();
        if used > indent && used + 1 + width > COLUMNS {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
        } else if used > indent {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_at_blanks() {
        let text = "word ".repeat(40) + &"x".repeat(100);
        let out = wrapped(&text, 8);
        let lines: Vec<&str> = out.split('\n').collect();
        assert!(lines.iter().skip(1).all(|line| line.starts_with("        ")), "{out}");
        assert!(lines[..lines.len() - 1].iter().all(|line| line.len() <= 80), "{out}");
        assert_eq!(out.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        assert_eq!((wrapped("", 4), wrapped("one", 4)), (String::new(), "one".to_owned()));
        assert_eq!(
            (count(1u64, "message"), count(0, "message"), count(12usize, "message")),
            ("1 message".into(), "0 messages".into(), "12 messages".into())
        );
    }
}
