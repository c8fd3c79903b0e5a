//! User data that no index can derive again: tags of messages, and saved queries.
//!
//! Kept in `tags.redb` beside the index, which no rebuild removes, and again as text in `tags.dump`. The key is the
//! Message-ID and the content's digest, so a message that is moved, renamed or fetched again keeps its tags. A digest
//! without an entry of its own has the tags of another content under the id: copies differ when a server adds a header.
//! Removing the tags of one content leaves an entry without tags, which stops that. [`dump`] and [`restore`] use the
//! text format of `notmuch dump` (batch-tag).

mod all;
mod check;
mod dump;
mod error;
mod file;
pub(crate) mod kept;
mod store;

pub(crate) use all::digest_of;
pub use all::{AllTags, Tags, id_of};
pub(crate) use check::check;
pub(crate) use dump::dump_of;
pub use dump::{Dump, Restore, dump, restore};
pub(crate) use error::check_query_name;
pub use error::{TAG_BYTES_MAX, TagError, check_tag};
pub(crate) use store::FILE;
pub use store::TagStore;
