//! Evaluates queries: every condition becomes a set of message numbers, and the query an expression over sets.
//!
//! Text conditions read postings, all others read a column of the side store. Sets are bitmaps (a megabyte for eight million messages), so
//! `not`, `xor` and whole threads cost no more than `and`. Nothing is scored; hits are ordered by a column.

mod containing;
mod dictionary;
mod exclusion;
mod folder;
mod guard;
mod headers;
mod matcher;
mod messages;
mod newest;
mod order;
mod phrase;
mod plan;
mod regex;
mod relevance;
mod scope;
mod searcher;
mod segment;
mod terms;
mod tree;

pub use containing::Containing;
pub use exclusion::Exclusion;
pub use folder::FolderFiles;
pub use messages::{AddressFields, FoundMessage};
pub use order::Sort;
pub use plan::{MatchOrder, SearchPlan};
pub use searcher::Searcher;
pub use tree::{TreeLine, tree};
