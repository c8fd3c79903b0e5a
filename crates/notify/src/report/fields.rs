//! Fields of a report.

use posthaste_message::mime::Header;

/// Groups of lines between empty ones.
pub(super) fn blocks(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        while let Some(line) = first_line(text).filter(|line| is_empty(line)) {
            text = &text[line.len()..];
        }
        let mut end = 0;
        while let Some(line) = first_line(&text[end..]).filter(|line| !is_empty(line)) {
            end += line.len();
        }
        let (block, rest) = text.split_at(end);
        text = rest;
        (!block.is_empty()).then_some(block)
    })
}

fn first_line(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().position(|octet| *octet == b'\n').map_or(text.len(), |at| at + 1);
    (end > 0).then(|| &text[..end])
}

fn is_empty(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}

/// The first field of a name, on one line; `None` if it is empty or missing.
pub(super) fn text_of(header: &Header<'_>, name: &str) -> Option<String> {
    header.first(name).map(|field| clean(&field.text(None))).filter(|text| !text.is_empty())
}

/// The value of a field `type; value`. Some hosts omit the type.
pub(super) fn typed(header: &Header<'_>, name: &str) -> Option<String> {
    let text = text_of(header, name)?;
    let is_type = |kind: &str| kind.trim().bytes().all(|octet| octet.is_ascii_alphanumeric() || b"-_".contains(&octet));
    match text.split_once(';') {
        Some((kind, value)) if is_type(kind) => Some(value.trim().to_owned()),
        _ => Some(text),
    }
}

/// An address without brackets.
pub(super) fn address(text: &str) -> String {
    let text = text.trim();
    text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text).to_owned()
}

/// A status code (RFC 3463 section 2) at the start; comments may follow.
pub(super) fn code(text: &str) -> Option<(u8, u16, u16)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut parts = text[..end].split('.');
    let mut number = || parts.next()?.parse::<u16>().ok().filter(|number| *number < 1000);
    let class = number()?;
    let subject = number()?;
    let detail = number()?;
    (parts.next().is_none() && matches!(class, 2 | 4 | 5)).then_some((class as u8, subject, detail))
}

/// One line without control characters, truncated.
pub(super) fn clean(text: &str) -> String {
    let text = text.get(..text.floor_char_boundary(4 * TEXT_BYTES_MAX)).unwrap_or_default();
    let words: Vec<&str> =
        text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    cut(words.join(" "))
}

/// Its first [`TEXT_BYTES_MAX`] octets.
pub(super) fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

/// Longest kept text, in octets.
pub const TEXT_BYTES_MAX: usize = 1000;
