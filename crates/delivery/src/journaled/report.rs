//! What a journaled executor tells of its work.

use std::io;
use std::sync::Arc;

use posthaste_journal::{Damage, StatsSnapshot};
use posthaste_maildir::{Host, UniqueName};

use crate::error::MessageId;
use crate::workers::Letter;

/// What opening found in the journal and did about it.
#[derive(Debug, Default)]
pub struct ReplayReport {
    /// Messages in the journal that no checkpoint had finished.
    pub messages: usize,
    /// Entries in mailboxes that were missing or damaged and have been written anew.
    pub restored: usize,
    /// Entries that could not be written now; they are retried.
    pub deferred: usize,
    /// Records that could not be read, and why; they stay in the journal.
    pub unreadable: Vec<(u64, io::Error)>,
    /// Damaged places of the journal.
    pub damage: Vec<Damage>,
    /// Bytes of the journal that were read.
    pub bytes_read: u64,
}

/// A message that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub(crate) id: u64,
    pub(crate) secs: u64,
    pub(crate) nonce: u32,
    pub(crate) host: Arc<str>,
    pub(crate) targets: u16,
}

impl Kept {
    /// The names that it has, or will have, in its mailboxes, in the order of the targets.
    pub fn names(&self) -> impl Iterator<Item = MessageId> {
        let host = Host::new(&self.host);
        (0..self.targets).map(move |number| {
            let name = format!("{}.{}.{}", self.secs, Letter::unique(self.id, self.nonce, number), host.as_str());
            MessageId::new(UniqueName::parse(&name).expect("a name without sizes"))
        })
    }
}

/// A message that waits because a mailbox cannot be written to, or because its record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The message's record in the journal.
    pub id: u64,
    /// The mailboxes that it waits for; none if its record has to be read first.
    pub mailboxes: Vec<Arc<str>>,
    /// Bytes of its body, if they are known.
    pub bytes: u64,
    /// Attempts so far.
    pub attempts: u32,
    /// What the last of them ended with.
    pub error: Arc<str>,
}

/// A mailbox that cannot be written to, and what waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingMailbox {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Messages that wait for it.
    pub messages: usize,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Attempts in a row that failed, of whichever message.
    pub attempts: u32,
    /// What the last of them ended with.
    pub error: Arc<str>,
}

/// So much waits for a mailbox that no more is taken for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes wait for {mailbox}")]
pub struct MailboxFull {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Bytes that wait for it.
    pub bytes: u64,
}

/// A mailbox that could not be written to, and that has got all that waited for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredMailbox {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Messages that had waited.
    pub messages: u64,
}

/// Figures of a journaled executor since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournaledStats {
    /// Messages made durable.
    pub accepted: u64,
    /// Mailbox entries made visible.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Messages that wait, as [`Journaled::waiting`](super::Journaled::waiting) lists them.
    pub waiting: usize,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Checkpoints that failed.
    pub checkpoints_failed: u64,
    /// Time spent in checkpoints, in microseconds.
    pub checkpoint_us: u64,
    /// The longest of them, in microseconds.
    pub checkpoint_us_max: u64,
    /// Segments that the last checkpoint could not free because a live record in them cannot be read.
    pub unreadable_segments: u64,
    /// The journal's own.
    pub journal: StatsSnapshot,
}

impl From<JournaledStats> for crate::Stats {
    /// Batches are the journal's commits, flush times those of its syncs.
    fn from(stats: JournaledStats) -> Self {
        Self {
            delivered: stats.accepted,
            batches: stats.journal.syncs,
            batch_messages: stats.accepted,
            flush_us: stats.journal.sync_ns / 1000,
            flush_us_max: stats.journal.sync_ns_max / 1000,
            ..Self::default()
        }
    }
}
