//! Finds messages in Maildirs of any size: scan, index, query language, threads, tags.
//!
//! For programs that search mail in Maildirs: the command line, an IMAP server's SEARCH, another mail program. Nothing
//! here writes into a Maildir. All data derived from the mail can be removed and rebuilt at any time; tags cannot, and
//! are stored separately.
//!
//! * [`Indexer`] brings an index up to date; there is one at a time. [`Searcher`] reads a commit of it, as many as there are.
//! * Header fields that [`settings`] name are indexed too: `header:X-Spam-Score:>5`.
//! * [`scan`] searches Maildirs that have no index.
//! * [`SearchPlan`] holds what a search shall return, in which order; it chooses the cheapest way when it runs.
//! * [`Searcher::containing`] answers as IMAP's SEARCH does: substrings, and which messages have to be read to know.
//! * [`watch`] keeps an index up to date while mail comes and goes, and lends it to other writers. Delivery does not know of
//!   it: the kernel reports each new file.
//! * [`query::parse`] reads mu's and notmuch's query language; errors point at the character.
//!
//! ```
//! use posthaste_search::{Indexer, Searcher, Sort, UpdateOptions, query};
//!
//! let mail = tempfile::tempdir()?;
//! for sub in ["new", "cur", "tmp"] {
//!     std::fs::create_dir(mail.path().join(sub))?;
//! }
//! std::fs::write(mail.path().join("cur/1.a.host:2,S"), "From: Ann <ann@example.org>\nSubject: Rye bread\n\nTwo days.\n")?;
//! let dir = tempfile::tempdir()?;
//! Indexer::open(dir.path(), None)?.update(&[mail.path().to_owned()], &UpdateOptions::default(), &|_| {})?;
//!
//! let searcher = Searcher::open(dir.path())?;
//! let query = query::parse("from:example.org \"rye bread\" not flag:unread", &jiff::Zoned::now())?;
//! let found = searcher.find(&query)?;
//! let page = searcher.page(&found, Sort::Date, false, 0, 50)?;
//! assert_eq!(searcher.messages(&page)?[0].head.subject, "Rye bread");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bitmap;
mod disk;
mod error;
pub mod flag_tags;
mod hook;
mod parallel;
pub mod query;
mod scan;
mod search;
mod section;
pub mod settings;
pub mod state;
mod stop;
pub mod tags;
mod text_index;
pub mod threads;
mod update;
mod verify;
mod watch;

pub use bitmap::Bitmap;
pub use error::IndexError;
pub use hook::{HookRunner, run_hook};
pub use posthaste_maildir::tree::IoMethod;
pub use posthaste_text as text;
pub use posthaste_text::{HEADERS_MAX, HeaderNames, OTHER_HEADERS, check_header_name, split_addresses};
pub use scan::scan;
pub use search::{
    AddressFields, Containing, Exclusion, FolderFiles, FoundMessage, MatchOrder, SearchPlan, Searcher, Sort, TreeLine,
    tree,
};
pub use section::Section;
pub use stop::Stop;
pub use text_index::Head;
pub use update::{Indexer, MEMORY_BYTES, Progress, ROUND_MESSAGES, Report, Touched, UpdateOptions, nothing_to_do};
pub use verify::{IndexVerdict, verify};
pub use watch::{WatchEvent, WatchOptions, WatchStatus, watch, watched};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
