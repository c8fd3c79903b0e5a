//! The files of a mailbox, as known before a listing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use posthaste_maildir::tree::key_of_name;

use super::file::MailFile;
use super::state::Messages;
use crate::message_list::Message;

/// Known facts of a mailbox's files.
pub(super) struct KnownFiles<'a> {
    pub now: &'a Messages,
    /// Files of expunged messages, by UID.
    pub leaving: &'a BTreeMap<u32, Arc<MailFile>>,
    /// Messages whose names do not show their flags yet.
    pub behind: &'a BTreeMap<u32, u32>,
    /// UIDs whose file has different content.
    pub suspects: &'a HashSet<u32>,
    /// True while delivery has not made all files of a batch durable.
    pub is_pending: &'a dyn Fn(u64) -> bool,
    /// See [`Known::listed_at`](super::looks::Known::listed_at).
    pub listed_at: Option<SystemTime>,
}

impl KnownFiles<'_> {
    /// Keys of files to remove. For an unlisted file, only the unique part is known.
    pub fn leaving_keys(&self) -> HashMap<&str, u32> {
        self.leaving.iter().map(|(uid, file)| (key_of_name(&file.name), *uid)).collect()
    }

    /// True for a copy that may still be in `tmp/`.
    pub fn is_to_place(&self, message: &Message<Arc<MailFile>>) -> bool {
        let file = &message.file;
        file.is_new() && file.inode().is_none() && file.body().is_none() && self.behind.contains_key(&message.uid)
    }

    pub fn is_awaited(&self, file: &MailFile) -> bool {
        file.awaited().is_some_and(|(lsn, _)| (self.is_pending)(lsn))
    }
}
