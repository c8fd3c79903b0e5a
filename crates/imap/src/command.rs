//! Commands as the client sent them (RFC 3501 section 6 and its extensions).

mod error;
mod fetch;
mod flag;
mod list;
mod order;
mod parse;
mod search;
mod tagged;

pub use error::ImapCommandError;
pub use fetch::{BodySection, BodySectionText, FetchItem, FieldNames, Partial};
pub(crate) use fetch::{merge_items, part_numbers};
pub use flag::MailFlag;
pub(crate) use flag::{SEEN, SYSTEM_FLAGS};
pub use list::{ListCommand, ListReturn, ListSelection, StatusItem};
pub use order::{SortBy, SortCommand, SortCriterion, ThreadAlgorithm, ThreadCommand};
pub use parse::{Appending, MessageOptions, parse, parse_append, parse_append_next};
pub use search::{SearchCommand, SearchKey, SearchReturn};
pub use tagged::{FlagChange, ImapCommand, Resync, TaggedCommand};
