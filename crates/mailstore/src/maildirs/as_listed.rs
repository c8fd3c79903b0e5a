//! Skips the listing for the first session after a start, if the directories are unchanged.
//!
//! The head of a mailbox has its directories' stamps from the last complete listing. They hold for one boot: after a
//! power cut a directory may have other content with the same time. The listing still runs, after the answer: it finds
//! names and inodes of files, which reading a message needs.
//!
//! STATUS needs no names: the counters of an unloaded mailbox are in its head, and no message is loaded.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_maildir::MaildirReader;
use tokio::time::timeout;

use super::answers::{PATIENCE, no_answer};
use super::boot::{SealedStamps, sealed};
use super::core::MailboxCore;
use super::file::MailFile;
use super::locks::lock;
use super::opening::numbers_of;
use super::state::Messages;
use crate::error::MailstoreError;
use crate::message_list::Message;
use crate::row::{MailboxStatus, Uid};
use crate::table::{FileNote, MailboxHead};

impl MailboxCore {
    /// Shows the messages just read from the ledger, if the directories need no listing first.
    pub fn show_before_listing(&self, reader: &MaildirReader) {
        let Some(now) = reader.stamps().ok().and_then(sealed) else { return };
        let recent_from = match &*lock(&self.state) {
            Some(state) if state.stamps == now => state.recent_from,
            _ => return,
        };
        self.found_recent(recent_from);
        self.looked.send_modify(|looked| looked.is_ahead = true);
    }

    /// True if its messages are in memory, or the mailbox is unused.
    pub fn is_loaded(&self) -> bool {
        self.is_deleted.load(Ordering::Relaxed) || lock(&self.state).is_some()
    }

    /// True if the counters require a look at the directories.
    pub fn needs_look(&self) -> bool {
        self.is_loaded() && !self.looked.borrow().is_ahead
    }

    /// Stamps of its directories now, as a head has them.
    pub fn stamps_now(&self) -> Option<SealedStamps> {
        self.reader().ok()?.stamps().ok().and_then(sealed)
    }

    /// The counters of an unloaded mailbox, if the directories need no listing first. Blocks.
    pub fn stored_status(&self) -> Option<MailboxStatus> {
        if self.is_loaded() {
            return None;
        }
        let now = self.stamps_now()?;
        if let Some(status) = self.opening_status(now) {
            return Some(status);
        }
        let is_wanted = |head: &MailboxHead| head.stamps == now;
        numbers_of(self.shared.ledger.counted(self.id, is_wanted, self.known_recent_from()).ok()??)
            .map(|numbers| numbers.status)
    }

    /// The counters shown while messages are loaded, if no mail has arrived since.
    fn opening_status(&self, stamps: SealedStamps) -> Option<MailboxStatus> {
        let (numbers, of) = {
            let looked = self.looked.borrow();
            let (stamps, opening) = looked.opening.as_ref()?;
            (Arc::clone(&opening.numbers), *stamps)
        };
        let recent = numbers.recent_from(self.recent_from.load(Ordering::Relaxed))?;
        (of == stamps && !self.shared.ledger.has_tail(self.id)).then_some(MailboxStatus { recent, ..numbers.status })
    }

    /// The messages of a mailbox whose first listing is running, if it can find no change. Blocks.
    pub fn before_listing(&self) -> Option<Arc<Messages>> {
        let now = self.stamps_now()?;
        let is_gone = self.is_deleted.load(Ordering::Relaxed);
        if is_gone || !self.looked.borrow().is_ahead || !self.catch_up() {
            return None;
        }
        lock(&self.state).as_ref().filter(|state| state.stamps == now).map(|state| Arc::clone(&state.now))
    }

    /// Waits for the pending first listing.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]: its disk has not answered for five minutes.
    pub async fn listed(&self) -> Result<(), MailstoreError> {
        let mut looked = self.looked.subscribe();
        // Only the time can fail: the sender is in `self`.
        timeout(PATIENCE, looked.wait_for(|looked| !looked.is_ahead)).await.map(drop).map_err(|_| no_answer())
    }

    /// A message with its file as the listing has found it, also if its session has seen it before.
    pub fn as_listed(&self, message: &Message<Arc<MailFile>>) -> Message<Arc<MailFile>> {
        let mut message = message.clone();
        if message.file.inode().is_none()
            && let (Some(now), Some(uid)) = (self.now(), Uid::new(message.uid))
            && let Some(found) = now.find(uid)
        {
            message.file = Arc::clone(&found.file);
        }
        message
    }

    /// A note of the last complete listing, unless it was noted already. Does not touch the disk.
    pub fn listing_note(&self) -> Option<FileNote> {
        if self.is_unlisted.load(Ordering::Relaxed) || self.is_deleted.load(Ordering::Relaxed) {
            return None;
        }
        let stamps = sealed(lock(&self.looks).known.as_ref()?.settled?)?;
        let before = std::mem::replace(&mut lock(&self.state).as_mut()?.stamps, stamps);
        (before != stamps).then_some(FileNote::Listed { mailbox: self.id, stamps })
    }
}
