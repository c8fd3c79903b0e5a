//! Logged problems of a mailbox, each kind once.

use std::sync::atomic::{AtomicBool, Ordering};

/// Problems found by a scan, for the operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Oddities {
    /// A name that is not a regular file, or could not be examined.
    pub no_file: Option<String>,
    /// Names that are not UTF-8.
    pub not_utf8: usize,
    /// Why the table of keywords cannot be read.
    pub keywords: Option<String>,
    /// True if all UIDs are used.
    pub out_of_uids: bool,
    /// Why changes could not be made durable; they stay invisible.
    pub not_durable: Option<String>,
    /// A file with the same key as another, and why it could not get its own key.
    pub same_key: Option<String>,
}

/// Problems of this mailbox that were already logged.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub no_permission: AtomicBool,
    pub no_file: AtomicBool,
    pub no_rename: AtomicBool,
    pub not_utf8: AtomicBool,
    pub keywords: AtomicBool,
    pub out_of_uids: AtomicBool,
    pub not_durable: AtomicBool,
    pub same_key: AtomicBool,
    pub not_taken: AtomicBool,
    pub other_server: AtomicBool,
}

impl Told {
    /// A file or mailbox that may not be read.
    pub fn no_permission(&self, file: &str) {
        if first(&self.no_permission) {
            tracing::warn!(file, "no permission to read mail; further files of this mailbox are not logged");
        }
    }

    /// A file that cannot be renamed or moved away: flags are only in the table.
    pub fn no_rename(&self, name: &str, error: &std::io::Error) {
        if first(&self.no_rename) {
            let error = error.to_string();
            tracing::warn!(
                name,
                error,
                "a message's file cannot be renamed; further ones of this mailbox are not logged"
            );
        }
    }

    /// Logs a look's problems, each once.
    pub fn tell(&self, mailbox: &str, odd: &Oddities) {
        if let Some(name) = odd.no_file.as_ref().filter(|_| first(&self.no_file)) {
            tracing::warn!(mailbox, name, "this file is not a message; further ones of this mailbox are not logged");
        }
        if odd.not_utf8 > 0 && first(&self.not_utf8) {
            tracing::warn!(mailbox, files = odd.not_utf8, "file names that are not UTF-8 are left out");
        }
        if let Some(error) = odd.keywords.as_ref().filter(|_| first(&self.keywords)) {
            tracing::warn!(mailbox, error, "cannot read dovecot-keywords; keywords stay as they were");
        }
        if let Some(error) = odd.same_key.as_ref().filter(|_| first(&self.same_key)) {
            tracing::warn!(mailbox, error, "a second file with the same key cannot be renamed, and is left out");
        }
        match &odd.not_durable {
            Some(error) if first(&self.not_durable) => {
                tracing::error!(mailbox, error, "changes of a mailbox cannot be made durable, and are not shown");
            }
            Some(_) => {}
            None => self.not_durable.store(false, Ordering::Relaxed),
        }
        if odd.out_of_uids && first(&self.out_of_uids) {
            tracing::error!(
                mailbox,
                "no UIDs left: its sessions end, and it gets a new UIDVALIDITY; clients download its mail again"
            );
        }
    }
}

/// True the first time.
pub(super) fn first(told: &AtomicBool) -> bool {
    !told.swap(true, Ordering::Relaxed)
}
