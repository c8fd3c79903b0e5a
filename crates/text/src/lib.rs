//! From a message's bytes to what is searched: MIME and charsets, HTML to text, folding, tokens.

mod alternatives;
pub(crate) mod extract;
mod extracted;
pub(crate) mod fold;
mod hash;
pub(crate) mod header;
mod html;
#[cfg(test)]
mod nested;
pub(crate) mod parts;
pub(crate) mod prune;
mod runs;
pub(crate) mod tokens;

pub use extract::{extract, extract_whole, extract_with};
pub use extracted::{Extracted, Priority, Traits};
pub use fold::fold;
pub(crate) use hash::{id_hash, subject_hash};
pub use html::html_to_text;
pub use parts::{Part, html_parts, parts, safe_file_name};
pub use posthaste_message::mime::{BaseSubject, base_subject};
pub use prune::prune_into;
pub(crate) use runs::eight_at;
pub use tokens::{Kind, TOKEN_BYTES_MAX, Tokens, tokens};
pub(crate) use tokens::{Octets, random_key};
