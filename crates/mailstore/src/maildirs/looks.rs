//! Looks at a mailbox: those that are wanted, and the outcome of the last.

use std::sync::Arc;

use posthaste_maildir::tree::Stamp;
use tokio::time::Instant;

use super::state::Messages;
use crate::error::MailstoreError;

/// Which look is wanted, and which has begun. Sessions that ask while one runs share the next.
#[derive(Debug)]
pub(super) struct Looks {
    pub wanted: u64,
    pub begun: u64,
    pub is_running: bool,
    pub last: Instant,
    /// `None` while a look has it.
    pub known: Option<Known>,
}

/// Memory of looks.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Stamps at the last listing, if nothing can have changed unseen since.
    pub settled: Option<[Stamp; 2]>,
    pub was_listed: bool,
    /// Of Dovecot's list of UIDs at the first look. If it changes, another server runs here.
    pub uid_list: Option<Option<Stamp>>,
}

/// The outcome of the last look.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    pub number: u64,
    /// Of the last look that went well.
    pub messages: Option<Arc<Messages>>,
    pub error: Option<MailstoreError>,
}
