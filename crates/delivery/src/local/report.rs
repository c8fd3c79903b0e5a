//! Reports and statistics of local delivery.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_maildir::{Host, UniqueName};
use posthaste_spool::{Damage, Lsn};

use super::files::unique_of;
use super::history::History;
use super::mount::MailMount;
use super::table::State;
use crate::error::MessageId;

/// Messages that the opening found in the spool, and their outcomes.
#[derive(Debug, Default)]
pub struct ReplayReport {
    /// Messages not known to be durable in all their mailboxes, on all mounts.
    pub messages: usize,
    /// Mailbox entries that were missing or damaged, and were rewritten.
    pub restored: usize,
    /// Mailbox entries given up because the message's body is lost: see
    /// [`LocalConfig::losses`](super::LocalConfig::losses).
    pub given_up: usize,
    /// Mailbox entries not written within the patience of opening; they are retried. A mount that does not answer
    /// counts its messages.
    pub deferred: usize,
    /// Unreadable batches: their entries for local delivery are lost.
    pub damaged: Vec<Lsn>,
    /// Batches written by a later version. They stay in the spool.
    pub unknown: Vec<Lsn>,
    /// Lists of mail mounts that were damaged or unreadable, and the repair.
    pub mended: Vec<Damage>,
    /// The report of the spool's opening.
    pub spool: Option<posthaste_spool::OpenReport>,
}

/// A durable message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReceipt {
    pub(crate) id: u64,
    pub(crate) secs: u64,
    pub(crate) nonce: u32,
    pub(crate) host: Arc<str>,
    pub(crate) targets: u16,
}

impl LocalReceipt {
    /// LSN of the message's batch in the spool.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Present or future file names of the message, in the order of the targets.
    pub fn names(&self) -> impl Iterator<Item = MessageId> {
        let host = Host::new(&self.host);
        (0..self.targets).map(move |number| {
            let name = format!("{}.{}.{}", self.secs, unique_of(self.id, self.nonce, number), host.as_str());
            MessageId::new(UniqueName::parse(&name).expect("a name without sizes"))
        })
    }
}

/// A message that waits for an unwritable mailbox, or for a mount that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingMailboxMail {
    /// LSN of the batch with the body.
    pub id: u64,
    /// Mailboxes that lack the message.
    pub mailboxes: Vec<Arc<str>>,
    /// Length of the body in bytes.
    pub bytes: u64,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Error of the last attempt.
    pub error: Arc<str>,
}

/// An unwritable mailbox, and its waiting mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingMailbox {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Number of messages that wait for the mailbox.
    pub messages: usize,
    /// Total bytes of their bodies.
    pub bytes: u64,
    /// Consecutive failed attempts, of any messages.
    pub attempts: u32,
    /// Error of the last attempt.
    pub error: Arc<str>,
}

/// Mail missing in some of its mailboxes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remaining {
    /// Number of messages, each counted once.
    pub messages: usize,
    /// Number of mailboxes that lack mail.
    pub mailboxes: usize,
}

/// Too much mail waits for a mailbox; further mail is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes wait for {mailbox}")]
pub struct MailboxFull {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Bytes of mail that wait for the mailbox.
    pub bytes: u64,
}

/// A mailbox that was unwritable and has now received all waiting mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredMailbox {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Number of messages that waited.
    pub messages: u64,
}

/// State of one mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountStats {
    /// Mount point below the mail root; empty for the root's own file system.
    pub point: Arc<str>,
    /// Messages not known to be durable in their mailboxes.
    pub messages: usize,
    /// The reason why nothing can be delivered, if the mount has not answered since the opening, or another file system
    /// is there.
    pub absent: Option<Arc<str>>,
    /// True if its stream was unreadable, as `absent` says: mail for the mount is refused, and waiting mail stays in
    /// the spool until the next opening.
    pub is_stuck: bool,
    /// The reason why the mount is not bound to its file system: another one in its place would go unnoticed. `None` if
    /// it is bound.
    pub unbound: Option<Arc<str>>,
    /// The reason why mail waits for disk space; `None` if there is enough.
    pub short_of_space: Option<Arc<str>>,
    /// The error of the last sync; `None` if it succeeded.
    pub sync_error: Option<Arc<str>>,
    /// Seconds for which a sync, or a check of the mount, has been hanging.
    pub sync_secs: Option<u64>,
}

impl MountStats {
    /// The reason why nothing is delivered to the mount; `None` if mail is delivered.
    pub fn trouble(&self) -> Option<Arc<str>> {
        let hangs = self.sync_secs.is_some_and(|secs| secs >= SYNC_HANGS_SECS);
        let hanging = hangs.then(|| "it does not answer: a sync of it, or a look at it, has not come back".into());
        self.absent.clone().or(self.sync_error.clone()).or(self.short_of_space.clone()).or(hanging)
    }

    /// Name of the mount for the operator.
    pub fn place(&self) -> String {
        if self.point.is_empty() { "the mail directory".to_owned() } else { format!("the mail mount {}", self.point) }
    }
}

/// A slower sync is reported.
const SYNC_HANGS_SECS: u64 = 60;

/// A mount whose sync failed: its mail stays in the spool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the mail mount {point:?} could not be synced: {error}")]
pub struct SyncFailed {
    /// Its mount point below the mail root; empty for the root's own file system.
    pub point: Arc<str>,
    /// The error of the sync.
    pub error: Arc<str>,
}

/// Statistics of local delivery since its opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalStats {
    /// Messages made durable.
    pub accepted: u64,
    /// Mailbox entries made visible.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Mailbox entries given up because the message's body is lost.
    pub given_up: u64,
    /// Waiting messages, once for each mailbox that they wait for.
    pub waiting: usize,
    /// Bytes of waiting mail.
    pub waiting_bytes: u64,
    /// Successful syncs of mounts.
    pub syncs: u64,
    /// Failed syncs of mounts.
    pub syncs_failed: u64,
    /// Time spent in syncs, in microseconds.
    pub sync_us: u64,
    /// The longest sync, in microseconds.
    pub sync_us_max: u64,
    /// Each mount.
    pub mounts: Vec<MountStats>,
    /// The spool's statistics.
    pub spool: posthaste_spool::Stats,
}

impl From<LocalStats> for crate::DeliveryStats {
    /// Maps commits of the spool to batches, and its sync times to flush times.
    fn from(stats: LocalStats) -> Self {
        Self {
            delivered: stats.accepted,
            batches: stats.spool.syncs,
            batch_messages: stats.accepted,
            flush_us: stats.spool.sync_ns / 1000,
            flush_us_max: stats.spool.sync_ns_max / 1000,
            ..Self::default()
        }
    }
}

impl MailMount {
    /// Waiting messages of this mount.
    pub(super) fn waiting_messages(&self) -> Vec<WaitingMailboxMail> {
        let state = self.state();
        if let (Some(history), Some(why)) = (&state.history, &state.absent) {
            let waiting = history.messages().map(|(body, shown)| WaitingMailboxMail {
                id: body.get(),
                mailboxes: shown.deliver.targets.iter().map(|(_, target)| target.mailbox.clone()).collect(),
                bytes: shown.body_len,
                attempts: 0,
                error: why.clone(),
            });
            return waiting.collect();
        }
        let held: Vec<_> = state.stalled_mailboxes().flat_map(|(_, keys)| keys.iter().copied()).collect();
        let held: std::collections::HashSet<_> = held.into_iter().collect();
        let mut all = Vec::new();
        for (body, message) in state.table.iter() {
            let waits = |(number, of): &(u16, State)| *of == State::Waiting || held.contains(&(body, *number));
            let mailboxes: Vec<_> =
                message.targets().filter(waits).map(|(number, _)| message.mailbox(number).clone()).collect();
            let Some(first) = mailboxes.first() else { continue };
            let known = state.troubles.of(first);
            let error = known.as_ref().map_or_else(super::queues::no_answer, |known| known.error.clone());
            all.push(WaitingMailboxMail {
                id: body.get(),
                bytes: message.body_len,
                attempts: known.map_or(1, |known| known.attempts),
                error: format!("{first}: {error}").into(),
                mailboxes,
            });
        }
        all
    }

    /// Mailboxes of this mount with waiting mail.
    pub(super) fn waiting_mailboxes(&self) -> Vec<WaitingMailbox> {
        let state = self.state();
        let waiting = state.troubles.iter().map(|(mailbox, known)| WaitingMailbox {
            mailbox: mailbox.clone(),
            messages: known.messages,
            bytes: known.bytes,
            attempts: known.attempts,
            error: known.error,
        });
        waiting.collect()
    }

    /// Adds messages missing in some of their mailboxes, and these mailboxes: queued, being written, waiting, or on a
    /// mount that does not answer.
    pub(super) fn add_remaining(&self, messages: &mut HashSet<Lsn>, mailboxes: &mut HashSet<Arc<str>>) {
        let state = self.state();
        for (body, shown) in state.history.iter().flat_map(History::messages) {
            messages.insert(body);
            mailboxes.extend(shown.deliver.targets.iter().map(|(_, target)| target.mailbox.clone()));
        }
        for (body, message) in state.table.iter() {
            for (number, _) in message.targets().filter(|(_, state)| *state != State::Visible) {
                messages.insert(body);
                mailboxes.insert(message.mailbox(number).clone());
            }
        }
    }

    /// Bytes that wait for a mailbox; `None` if none do. With true: for the whole mount, which does not answer, cannot
    /// be synced or has no space.
    pub(super) fn waiting_bytes(&self, mailbox: &str) -> Option<(u64, bool)> {
        let state = self.state();
        let now = self.now();
        if state.history.is_some() || state.syncing.is_in_trouble(now) {
            Some((state.waiting_bytes(now), true))
        } else {
            match state.troubles.of(mailbox) {
                Some(known) => Some((known.bytes, false)),
                None => self.files.room().short().map(|_| (state.waiting_bytes(now), true)),
            }
        }
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.state().waiting_count()
    }

    pub(super) fn stats(&self) -> MountStats {
        let state = self.state();
        let messages = state.history.as_ref().map_or(state.table.len(), |history| history.messages().count());
        let since = state.syncing.running_since().or(state.looking_since);
        MountStats {
            point: self.files.point().clone(),
            messages,
            absent: state.absent.clone().or_else(|| self.files.missing()),
            is_stuck: self.is_stuck,
            unbound: self.files.unbound(),
            short_of_space: self.files.room().short(),
            sync_error: state.syncing.error.clone(),
            sync_secs: since.map(|since| self.now().saturating_duration_since(since).as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::test_world::{Door, World, message};
    use super::*;

    #[test]
    fn a_sync_of_a_mount_that_hangs_is_a_trouble() {
        let of = |sync_secs| MountStats { sync_secs, ..MountStats::default() }.trouble();
        assert_eq!((of(None), of(Some(SYNC_HANGS_SECS - 1))), (None, None));
        assert!(of(Some(SYNC_HANGS_SECS)).is_some());
        let absent = MountStats { absent: Some("gone".into()), sync_secs: Some(99), ..MountStats::default() };
        assert_eq!(absent.trouble().as_deref(), Some("gone"));
    }

    #[test]
    fn mail_left_at_the_end_is_counted_tried_or_not() {
        let world = World::new(&[]);
        world.doors.shut("bad/Maildir", Door::Fails);
        world.doors.shut("hangs/Maildir", Door::Hangs);
        world.deliver(message(&["bad", "good"], "tried"));
        world.until("one waits", || world.waiting() == 1 && world.texts("good").len() == 1);
        assert_eq!(world.delivery.remaining(), Remaining { messages: 1, mailboxes: 1 });
        for _ in 0..3 {
            world.deliver(message(&["hangs", "bad"], "not tried"));
        }
        world.doors.wait_until_held("hangs/Maildir");
        let deadline = Instant::now() + Duration::from_millis(100);
        world.place.runtime.block_on(world.delivery.shutdown_by(deadline));
        assert_eq!(world.delivery.remaining(), Remaining { messages: 4, mailboxes: 2 });
        world.doors.open("hangs/Maildir");
    }
}
