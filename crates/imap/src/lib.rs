//! IMAP4rev1 (RFC 3501) for servers: the grammar of commands and a session as a state machine without IO.
//!
//! Any server of mailboxes can use it: [`session::ImapMachine`] asks its owner for logins, names, rows and octets of messages, and holds none
//! of them longer than a command. It opens no file and no socket and reads no clock; with feature `tokio`, a driver does.
//!
//! | commands | file of `session/` |
//! | --- | --- |
//! | FETCH | `fetch.rs`, one message: `source.rs` |
//! | SEARCH, SORT, THREAD | `searching.rs`, `matching.rs`, `ordering.rs`, `threads.rs` |
//! | STORE, COPY, MOVE, EXPUNGE | `changing.rs` |
//! | SELECT, EXAMINE, STATUS, CLOSE | `select.rs` |
//! | APPEND | `appending.rs` |
//! | LIST, CREATE, DELETE, RENAME, SUBSCRIBE | `listing.rs`, `managing.rs` |
//! | LOGIN, AUTHENTICATE, STARTTLS | `auth.rs` |
//!
//! The machine asks; `driver/messages.rs` answers about messages from the store, `driver/serve.rs` about the rest.
//!
//! ```
//! use posthaste_imap::{ImapCommand, parse};
//!
//! let read = parse(b"a1 LOGIN {3}\r\nann \"se cret\"").unwrap();
//! assert_eq!(read.tag, "a1");
//! assert_eq!(read.command, Ok(ImapCommand::Login { user: b"ann".into(), password: b"se cret".into() }));
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod command;
mod date;
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub mod driver;
mod envelope;
mod frame;
mod kept_structure;
mod lex;
mod part_tree;
mod section;
pub mod session;
mod set;
mod structure;
mod write;

pub use command::{
    Appending, BodySection, BodySectionText, FetchItem, FieldNames, FlagChange, ImapCommand, ImapCommandError,
    ListCommand, ListReturn, ListSelection, MailFlag, MessageOptions, Partial, Resync, SearchCommand, SearchKey,
    SearchReturn, SortBy, SortCommand, SortCriterion, StatusItem, TaggedCommand, ThreadAlgorithm, ThreadCommand, parse,
    parse_append, parse_append_next,
};
pub use date::Day;
pub use set::{NumberSet, SeqNo, SequenceSet};
