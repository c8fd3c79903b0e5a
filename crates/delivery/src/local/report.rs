//! Reports and figures of local delivery.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_maildir::{Host, UniqueName};
use posthaste_spool::{Damage, Lsn};

use super::files::unique_of;
use super::history::History;
use super::mount::MailMount;
use super::table::State;
use crate::error::MessageId;

/// Messages that opening found in the spool, and its work on them.
#[derive(Debug, Default)]
pub struct ReplayReport {
    /// Messages that were not known to be in all of their mailboxes and durable there, on all mounts.
    pub messages: usize,
    /// Entries in mailboxes that were missing or damaged and have been rewritten.
    pub restored: usize,
    /// Mailbox entries that were given up, because the body of the message is lost: see [`LocalConfig::losses`](super::LocalConfig::losses).
    pub given_up: usize,
    /// Entries in mailboxes that could not be written when opening had waited long enough; they are retried. A mount that does not answer counts its messages.
    pub deferred: usize,
    /// Batches that cannot be read any more: what they said to local delivery is lost.
    pub damaged: Vec<Lsn>,
    /// Batches that a later version has written. They stay in the spool.
    pub unknown: Vec<Lsn>,
    /// Lists of mail mounts that were damaged or unreadable, and what was done.
    pub mended: Vec<Damage>,
    /// The report of the spool's opening.
    pub spool: Option<posthaste_spool::OpenReport>,
}

/// A message that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReceipt {
    pub(crate) id: u64,
    pub(crate) secs: u64,
    pub(crate) nonce: u32,
    pub(crate) host: Arc<str>,
    pub(crate) targets: u16,
}

impl LocalReceipt {
    /// The batch of the spool that has it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The names that it has, or will have, in its mailboxes, in the order of the targets.
    pub fn names(&self) -> impl Iterator<Item = MessageId> {
        let host = Host::new(&self.host);
        (0..self.targets).map(move |number| {
            let name = format!("{}.{}.{}", self.secs, unique_of(self.id, self.nonce, number), host.as_str());
            MessageId::new(UniqueName::parse(&name).expect("a name without sizes"))
        })
    }
}

/// A message that waits because a mailbox cannot be written to, or its mount does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The batch of the spool that has its body.
    pub id: u64,
    /// The mailboxes that it waits for.
    pub mailboxes: Vec<Arc<str>>,
    /// Bytes of its body.
    pub bytes: u64,
    /// Attempts so far.
    pub attempts: u32,
    /// The end of the last of them.
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
    /// The end of the last of them.
    pub error: Arc<str>,
}

/// Mail that is not in all of its mailboxes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remaining {
    /// Messages, each counted once.
    pub messages: usize,
    /// Mailboxes that have not got all of theirs.
    pub mailboxes: usize,
}

/// Too much mail waits for a mailbox, so more is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes wait for {mailbox}")]
pub struct MailboxFull {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Bytes that wait for it.
    pub bytes: u64,
}

/// A recovered mailbox: it could not be written to, and has received all waiting mail now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredMailbox {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Messages that had waited.
    pub messages: u64,
}

/// State of one mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountStats {
    /// Where it is mounted below the mail root; empty for the root's own file system.
    pub point: Arc<str>,
    /// Messages that are not known to be durable in their mailboxes.
    pub messages: usize,
    /// Why nothing can be delivered, if the mount has not answered since the opening, or another file system is there.
    pub absent: Option<Arc<str>>,
    /// Its stream could not be read, as `absent` says: no mail is taken for it, and what waits stays in the spool until the next opening.
    pub is_stuck: bool,
    /// Why the mount is not bound to its file system, if so: another one at its place would not be noticed.
    pub unbound: Option<Arc<str>>,
    /// Why mail waits for room on it, if so: its file system would go below the floor.
    pub short_of_space: Option<Arc<str>>,
    /// The error of the last sync, if it failed.
    pub sync_error: Option<Arc<str>>,
    /// For how long a sync, or a look at the mount, has not come back, in seconds.
    pub sync_secs: Option<u64>,
}

impl MountStats {
    /// Why nothing is delivered there, if so.
    pub fn trouble(&self) -> Option<Arc<str>> {
        let hangs = self.sync_secs.is_some_and(|secs| secs >= SYNC_HANGS_SECS);
        let hanging = hangs.then(|| "it does not answer: a sync of it, or a look at it, has not come back".into());
        self.absent.clone().or(self.sync_error.clone()).or(self.short_of_space.clone()).or(hanging)
    }

    /// Its name for the operator.
    pub fn place(&self) -> String {
        if self.point.is_empty() { "the mail directory".to_owned() } else { format!("the mail mount {}", self.point) }
    }
}

/// A sync that takes longer is told of.
const SYNC_HANGS_SECS: u64 = 60;

/// A mount that could not be synced: its mail stays in the spool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the mail mount {point:?} could not be synced: {error}")]
pub struct SyncFailed {
    /// Where it is mounted below the mail root; empty for the root's own file system.
    pub point: Arc<str>,
    /// The error of the sync.
    pub error: Arc<str>,
}

/// Figures of local delivery since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalStats {
    /// Messages made durable.
    pub accepted: u64,
    /// Mailbox entries made visible.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Mailbox entries that were given up, because the body of the message is lost.
    pub given_up: u64,
    /// Messages that wait, each as often as it waits for a mailbox.
    pub waiting: usize,
    /// Bytes that wait.
    pub waiting_bytes: u64,
    /// Syncs of mounts that succeeded.
    pub syncs: u64,
    /// And those that failed.
    pub syncs_failed: u64,
    /// Time spent in syncs, in microseconds.
    pub sync_us: u64,
    /// The longest of them, in microseconds.
    pub sync_us_max: u64,
    /// Each mount.
    pub mounts: Vec<MountStats>,
    /// The spool's own.
    pub spool: posthaste_spool::Stats,
}

impl From<LocalStats> for crate::Stats {
    /// Batches are the spool's commits, flush times those of its syncs.
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
    /// The messages of this mount that wait.
    pub(super) fn waiting_messages(&self) -> Vec<Waiting> {
        let state = self.state();
        if let (Some(history), Some(why)) = (&state.history, &state.absent) {
            let waiting = history.messages().map(|(body, shown)| Waiting {
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
            all.push(Waiting {
                id: body.get(),
                bytes: message.body_len,
                attempts: known.map_or(1, |known| known.attempts),
                error: format!("{first}: {error}").into(),
                mailboxes,
            });
        }
        all
    }

    /// The mailboxes of this mount that mail waits for.
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

    /// Adds the messages that are not in all of their mailboxes, and these mailboxes: queued, being written, waiting, or for a mount that does not answer.
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

    /// Bytes that wait for a mailbox, `None` if none do; or for all of the mount if it does not answer, cannot be synced or has no room, which the flag says.
    pub(super) fn waiting_bytes(&self, mailbox: &str) -> Option<(u64, bool)> {
        let (state, now) = (self.state(), self.now());
        match state.history.is_some() || state.syncing.is_in_trouble(now) {
            true => Some((state.waiting_bytes(now), true)),
            false => match state.troubles.of(mailbox) {
                Some(known) => Some((known.bytes, false)),
                None => self.files.room().short().map(|_| (state.waiting_bytes(now), true)),
            },
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
    fn what_is_left_at_the_end_is_counted_whether_it_was_tried_or_not() {
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
