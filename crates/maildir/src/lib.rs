//! Maildirs: names, flags, folders, scans, and delivery that a power cut cannot tear.
//!
//! For every program that keeps mail in Maildirs: a delivery agent, an IMAP server, an importer. The crate knows no
//! users, UIDs or protocols. Everything works relative to open directories and follows no symbolic link below a mail
//! root. A mailbox is named by a checked [`MailboxPath`], never by a string from the network.
//!
//! Guarantees:
//!
//! * A message is written in `tmp/`, with or without a name there, and linked or renamed into `new/`: no reader of `new/` or `cur/` ever sees part of one.
//! * [`deliver_batch`] returns `Ok` for a message only when its bytes and its name are on stable storage. The unsynced parts it
//!   is made of ([`Maildir::write_tmp`], [`Maildir::publish`]) are there for callers that hold the message in a journal and [sync](MailRoot::sync) later.
//! * A file's name tells its size on disk (`S=`) and on the wire (`W=`), see [`UniqueName`]; line ends are described in [`line_ends`].
//!
//! Linux only.
#![warn(missing_docs)]

mod batch;
mod cleanup;
mod copies;
mod dir_sync;
mod dirs;
mod draft;
mod flags;
mod folders;
mod gone;
mod keywords;
pub mod line_ends;
mod maildir;
mod mount;
mod mounts;
mod moves;
mod name;
mod owners;
mod path;
mod reader;
mod replace;
mod root;
mod scan;
pub mod tree;
mod uidlist;

pub use batch::{Outcomes, RenamedMail, StoreError, SyncBy, SyncMounts, Synced, Written, deliver_batch, sync};
pub use cleanup::TMP_AGE_MAX;
pub use draft::MailDraft;
pub use flags::Flags;
pub use folders::{FolderName, ListedFolders};
pub use gone::GoneDir;
pub use keywords::{
    KEYWORD_BYTES_MAX, KEYWORDS_FILE, KEYWORDS_MAX, Keywords, is_keyword, keywords_at, keywords_stamp, read_keywords,
};
pub use maildir::{Found, Maildir, Subdir};
pub use mount::{Mount, MountFacts};
pub use mounts::{mounts_below, resolved};
pub use moves::TakenKeys;
pub use name::{Host, NameSource, UniqueName};
pub use owners::{Owners, Ownership};
pub use path::{MailboxPath, PathError};
pub use reader::{ListedMessage, MaildirReader};
pub use replace::NewFile;
pub use root::MailRoot;
pub use uidlist::{ListedUid, OWN_UIDLIST_FILE, UIDLIST_FILE, UidList, UidListError};
