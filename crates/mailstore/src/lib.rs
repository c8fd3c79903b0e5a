//! Mailboxes with UIDs, flags and bodies, for IMAP and POP3 servers, and for similar programs.
//!
//! A protocol needs only [`Mailstore`] and its related traits. They are object-safe; each call that may read a disk
//! returns a future. Nothing here depends on a protocol's grammar, passwords or sockets.
//!
//! [`MaildirStore`] serves Maildirs, including those of Dovecot and other programs. With feature `fake`, `FakeStore`
//! has mailboxes in memory that a test fills.
//!
//! [`ledger`] keeps UIDs and flags durable: [entries](entry) of a stream of the spool, and a [`table`] as its snapshot.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod by_account;
pub mod entry;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod flags;
pub mod ledger;
mod line_ends;
mod listing;
mod mail_body;
mod maildirs;
mod message_list;
mod name;
mod opening_view;
mod pattern;
mod row;
mod snapshot;
mod store;
pub mod summary;
pub mod table;

pub use by_account::ByAccount;
pub use error::{Asked, MailstoreError};
#[cfg(feature = "fake")]
pub use fake::{FakeMessage, FakeStore};
pub use flags::{FlagUpdate, FlagUpdateMode, KEYWORDS_MAX, KeywordTable, MessageFlags};
pub use line_ends::FileForm;
pub use mail_body::{BODIES_BYTES_MAX, BODY_READ_MAX, FIELDS_BYTES_MAX, HEADER_BYTES_MAX, MailBody};
pub use maildirs::{
    FileWriter, FindMaildir, Finding, FindingKind, ForgetMail, IsPending, MailArrivals, MaildirLogins, MaildirStore,
    SettleFiles, SpoolLook, Verified, VerifiedPlaces, VerifyError, mailbox_of_folder, verify_mailboxes,
};
pub use name::{FolderTable, LEVEL_CHARS_MAX, LEVELS_MAX, MailboxName, NameError, SEPARATOR, SpecialUse, UsualFolders};
pub use pattern::NamePattern;
pub use row::{
    MailboxId, MailboxStatus, MessageRow, MessageSet, ModSeq, NumberRange, RebuiltMailbox, Uid, UidValidity, UniqueIds,
};
pub use store::{
    AppendRequest, AppendedMessage, ChangedFlags, CopiedMessages, ExpungedMessage, KeptKind, ListOptions,
    ListedMailbox, MailAccount, MailboxFiles, MailboxListing, MailboxView, Mailstore, MessageRows, MessageWriter,
    QuotaLimits, QuotaTable, QuotaUse, RowOptions, SelectMode, StoredFlags, ViewChanges,
};
