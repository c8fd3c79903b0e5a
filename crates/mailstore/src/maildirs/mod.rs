//! Mailboxes over Maildirs: their UIDs and flags are kept by the ledger.
//!
//! A file keeps its UID as long as its key (the part of its name before flags and sizes) is the same. A UID is never
//! reused. Files of other programs get UIDs at the next look, durable before any client sees them.

mod account;
mod answers;
mod append;
mod appender;
mod arrivals;
mod as_listed;
#[cfg(test)]
mod as_listed_tests;
mod awaited;
mod body;
mod boot;
mod change_batch;
mod change_queue;
#[cfg(test)]
mod change_tests;
mod changes;
mod copies;
#[cfg(test)]
mod copies_tests;
mod copy_names;
mod core;
mod file;
mod file_work;
mod first_login;
mod folder_changes;
#[cfg(test)]
mod folder_tests;
mod gathered;
mod gone_dirs;
mod header_cache;
mod hot_dirs;
mod keywords;
mod known_files;
mod known_mailboxes;
mod layout;
mod listed;
mod loaded;
mod locks;
mod looking;
mod looks;
mod mail_account;
mod mailbox;
mod missing;
mod moved_paths;
mod names;
mod names_out;
mod opening;
mod owner;
mod pending;
mod quota;
#[cfg(test)]
mod quota_tests;
mod read_turns;
mod reading;
mod rebuild;
#[cfg(test)]
mod rebuild_tests;
mod rekeyed;
mod scan;
mod scratch;
mod seconds;
mod shared;
mod stamp;
mod state;
mod store;
mod takeover;
#[cfg(test)]
mod tests;
mod told;
mod uid_lists;
mod unchanged;
mod upkeep;
mod verify;

pub use self::appender::{FileWriter, ForgetMail, SettleFiles};
pub use self::arrivals::MailArrivals;
pub use self::names::mailbox_of_folder;
pub use self::shared::IsPending;
pub use self::store::{FindMaildir, MaildirLogins, MaildirStore};
pub use self::verify::{Finding, FindingKind, SpoolLook, Verified, VerifiedPlaces, VerifyError, verify_mailboxes};
