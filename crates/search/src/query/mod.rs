//! The query language: fields and habits of mu and notmuch, one parser, errors that point at the character.
//!
//! ```text
//! query   = { xor "or" } ; xor = { and "xor" } ; and = { unary ["and"] }
//! unary   = "not" unary | "-" unary | "(" query ")" | field ":" "(" query ")" | [field ":"] value
//! field   = name | "header:" name
//! value   = word | word "*" | "\"" phrase "\"" | "/" regular expression "/" | range | "{" query "}"
//! ```
//!
//! Operators may be written in upper case. Words match without regard to case, accents and width. A text of several
//! words, such as `ann@example.org` or `foo_bar`, is a phrase. `*` alone and the empty query match everything.
//! `query:name` is a [saved query](SavedQueries), read as if it stood there in parentheses.

mod ast;
mod date;
mod error;
mod fields;
mod parse;
mod saved;
mod scan;
mod values;

pub use ast::{Flag, HeaderValue, Leaf, Pattern, Query, Span, TextField, ThreadOf};
pub use error::ParseError;
pub use fields::is_field;
pub use parse::{parse, parse_with};
pub use saved::{QUERY_NAME_BYTES_MAX, SavedQueries, is_query_name};
