//! The account that mailboxes belong to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste_maildir::MailboxPath;

/// The account of a mailbox.
#[derive(Debug)]
pub(super) struct Owner {
    pub id: u32,
    /// Path of the account's INBOX.
    pub path: MailboxPath,
    is_durable: AtomicBool,
    /// Locked while one of its mailboxes is made.
    pub making: Mutex<()>,
}

impl Owner {
    pub fn new(id: u32, path: MailboxPath, is_durable: bool) -> Self {
        Self { id, path, is_durable: AtomicBool::new(is_durable), making: Mutex::default() }
    }

    /// True if the account is in the ledger.
    pub fn is_durable(&self) -> bool {
        self.is_durable.load(Ordering::Relaxed)
    }

    pub fn set_durable(&self) {
        self.is_durable.store(true, Ordering::Relaxed);
    }
}
