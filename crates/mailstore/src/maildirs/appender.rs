//! Intake and delivery of messages that clients add.

use std::io;
use std::sync::{Arc, OnceLock};

use posthaste_intake::{Destination, Intake, MemoryBudget};
use posthaste_maildir::MailboxPath;

use crate::error::MailstoreError;

/// Cancels pending deliveries to a mailbox. Durable on return; nobody writes there any more.
pub type ForgetMail = dyn Fn(&MailboxPath) -> io::Result<()> + Send + Sync;

/// Waits until delivery has written the files in flight, and syncs them.
pub type SettleFiles = dyn Fn() -> io::Result<()> + Send + Sync;

/// Delivery's function for making files of added messages.
pub struct FileWriter {
    /// Destination that makes the files.
    pub files: Arc<dyn Destination>,
    /// Called for mailboxes that are deleted.
    pub forget: Box<ForgetMail>,
    /// Called before mailboxes are renamed.
    pub settle: Box<SettleFiles>,
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWriter").finish_non_exhaustive()
    }
}

/// Appends messages to mailboxes, once it is opened.
#[derive(Default)]
pub(super) struct MailAppender(OnceLock<OpenAppender>);

pub(super) struct OpenAppender {
    pub intake: Intake,
    pub writer: FileWriter,
    pub memory: MemoryBudget,
}

impl MailAppender {
    pub fn open(&self, intake: Intake, writer: FileWriter, memory: MemoryBudget) {
        let _ = self.0.set(OpenAppender { intake, writer, memory });
    }

    pub fn get(&self) -> Result<&OpenAppender, MailstoreError> {
        self.0.get().ok_or_else(|| MailstoreError::Unavailable("nothing can be added now".to_owned()))
    }

    /// Makes files in progress durable. Blocks.
    pub fn settle(&self) -> io::Result<()> {
        self.0.get().map_or(Ok(()), |open| (open.writer.settle)())
    }

    /// Cancels mail that is to be delivered to a removed mailbox. Blocks.
    pub fn forget(&self, path: &MailboxPath) -> io::Result<()> {
        self.0.get().map_or(Ok(()), |open| (open.writer.forget)(path))
    }
}
