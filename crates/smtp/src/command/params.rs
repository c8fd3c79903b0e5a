//! Parameters of MAIL and RCPT, and their values.

use super::error::CommandError;
use super::xtext::is_xtext;
use super::{BodyType, Notify, Ret};

pub(super) fn set<T>(slot: &mut Option<T>, name: &'static str, value: Option<T>) -> Result<(), CommandError> {
    match (&slot, value) {
        (None, Some(value)) => {
            *slot = Some(value);
            Ok(())
        }
        _ => Err(CommandError::Parameter(name)),
    }
}

/// `KEYWORD` or `KEYWORD=value`; a known keyword in upper case, any other as `""`.
pub(super) struct Param<'a>(pub &'static str, pub Option<&'a str>);

pub(super) struct Params<'a>(&'a str);

impl<'a> Params<'a> {
    /// Parameters of the text after the path, where the line must end or have a blank.
    pub fn new(text: &'a str) -> Result<Self, ()> {
        if text.is_empty() || text.starts_with([' ', '\t']) { Ok(Self(text)) } else { Err(()) }
    }
}

impl<'a> Iterator for Params<'a> {
    type Item = Param<'a>;
    fn next(&mut self) -> Option<Param<'a>> {
        const KNOWN: [&str; 11] =
            ["SIZE", "BODY", "SMTPUTF8", "RET", "ENVID", "AUTH", "NOTIFY", "ORCPT", "HOLDFOR", "HOLDUNTIL", "XEXPIRES"];
        let text = self.0.trim_start_matches([' ', '\t']);
        let end = text.find([' ', '\t']).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        if word.is_empty() {
            return None;
        }
        let (keyword, value) = word.split_once('=').map_or((word, None), |(k, v)| (k, Some(v)));
        let known = KNOWN.into_iter().find(|name| keyword.eq_ignore_ascii_case(name));
        Some(Param(known.unwrap_or(""), value))
    }
}

/// Parses at most twenty digits (RFC 1870 section 4); a value beyond `u64` is larger than any message.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let fits = (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    fits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Parses at most twenty digits, and nothing else (RFC 3030 section 2).
pub(super) fn parse_number(text: &str) -> Option<u64> {
    (text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

pub(super) fn parse_body(value: &str) -> Option<BodyType> {
    match value {
        _ if value.eq_ignore_ascii_case("7BIT") => Some(BodyType::SevenBit),
        _ if value.eq_ignore_ascii_case("8BITMIME") => Some(BodyType::EightBitMime),
        _ => None,
    }
}

pub(super) fn parse_ret(value: &str) -> Option<Ret> {
    match value {
        _ if value.eq_ignore_ascii_case("FULL") => Some(Ret::Full),
        _ if value.eq_ignore_ascii_case("HDRS") => Some(Ret::Headers),
        _ => None,
    }
}

pub(super) fn parse_notify(value: &str) -> Option<Notify> {
    if value.eq_ignore_ascii_case("NEVER") {
        return Some(Notify::default());
    }
    let mut notify = Notify::default();
    for word in value.split(',') {
        match word.to_ascii_uppercase().as_str() {
            "SUCCESS" => notify.success = true,
            "FAILURE" => notify.failure = true,
            "DELAY" => notify.delay = true,
            _ => return None,
        }
    }
    Some(notify)
}

pub(super) fn parse_orcpt(value: &str) -> Option<String> {
    is_orcpt(value).then(|| value.to_owned())
}

/// True if `value` may stand after ORCPT= (RFC 3461 section 4.2).
pub(crate) fn is_orcpt(value: &str) -> bool {
    let Some((kind, address)) = value.split_once(';') else { return false };
    let kind_fits = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    // RFC 6533 lets the utf-8 type carry UTF-8 as it is.
    let ascii: String = address.chars().filter(char::is_ascii).collect();
    let utf8_fits = address.is_ascii() || kind.eq_ignore_ascii_case("utf-8");
    let controls = address.contains(char::is_control);
    kind_fits && utf8_fits && !controls && value.len() <= 500 && !address.is_empty() && is_xtext(&ascii)
}
