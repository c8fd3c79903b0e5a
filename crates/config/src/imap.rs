//! `[imap]`: settings of all listeners for IMAP.

use posthaste_units::values::Table;
use serde::{Deserialize, Serialize};

use crate::reload::{NeedsRestart, Reload, all_of};

/// Settings that all listeners for IMAP share.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Imap {
    /// The form of mailbox names that clients see: `"/"` as in `Work/2026`, `"."` as in `Work.2026`, or `"INBOX."` as in
    /// `INBOX.Work.2026`.
    pub names: MailboxNames,
}

/// The form of mailbox names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MailboxNames {
    /// `Work/2026`.
    #[default]
    #[serde(rename = "/")]
    Slash,
    /// `Work.2026`.
    #[serde(rename = ".")]
    Dot,
    /// `INBOX.Work.2026`.
    #[serde(rename = "INBOX.")]
    DotBelowInbox,
}

impl Table for Imap {
    const NAME: &str = "imap";
}

impl Reload for Imap {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}
