//! Bounded texts of an entry.

use std::sync::Arc;

use bytes::BytesMut;
use posthaste_spool::{Fields, put_text};

/// Truncates a text to the maximum length.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

pub(super) fn put_short(out: &mut BytesMut, text: &str) {
    put_text(out, short(text));
}

/// A text that could have been written: not over the bound.
pub(super) fn text(rest: &mut Fields<'_>) -> Option<Arc<str>> {
    rest.text().filter(|text: &Arc<str>| text.len() <= TEXT_MAX)
}

/// Maximum bytes of one text: longer ones are truncated.
pub(crate) const TEXT_MAX: usize = 1000;
