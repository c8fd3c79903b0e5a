//! The text of mail for search: MIME and charsets, HTML to text, folding, tokens.
//!
//! [`extract`] and [`Tokens`] give an index of mail and a search through the mail itself the same words, and [`Needle`]
//! has the same meaning in both. The crate does no IO and knows no index.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod alternatives;
mod extract;
mod extracted;
mod fold;
mod hash;
mod header;
mod header_names;
mod html;
mod mail;
mod needle;
#[cfg(test)]
mod nested;
mod parts;
mod prune;
mod runs;
mod tokens;

pub use addresses::split_addresses;
pub use extract::{extract, extract_whole, extract_with};
pub use extracted::{Extracted, Priority, Traits};
pub use fold::fold;
pub use hash::{id_hash, subject_hash};
pub use header::is_trace;
pub use header_names::{HEADERS_MAX, HeaderNames, OTHER_HEADERS, check_header_name};
pub use html::html_to_text;
pub use mail::{MailText, SearchedField};
pub use needle::{Needle, NeedlePiece};
pub use parts::{TextPart, html_parts, parts, safe_file_name};
pub use posthaste_message::mime::{BaseSubject, base_subject};
pub use prune::prune_into;
pub use runs::eight_at;
pub use tokens::{Octets, TOKEN_BYTES_MAX, TokenKind, Tokens, random_key, tokens};
