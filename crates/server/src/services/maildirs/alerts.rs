//! Mail that waits for mailboxes and mounts: the beginning and end of each problem is one log line.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use posthaste_delivery::local::{LocalDelivery, MountStats, RecoveredMailbox, WaitingMailbox};
use tokio::time::Instant;

/// Checks the mailboxes at intervals.
pub(crate) struct MailAlerts {
    store: LocalDelivery,
    told: Told,
}

impl MailAlerts {
    pub fn new(store: LocalDelivery) -> Self {
        Self { store, told: Told::default() }
    }

    /// Call it every few seconds.
    pub fn check(&mut self) {
        let stats = self.store.stats();
        self.told.report_mounts(&stats.mounts);
        self.told.report_mailboxes(&self.store, stats.waiting, stats.waiting_bytes);
    }
}

/// Problems already logged.
#[derive(Debug, Default)]
struct Told {
    waiting: Option<Instant>,
    /// Mailboxes that were logged, or counted, as waited for.
    troubled: HashSet<Arc<str>>,
    /// Mounts with problems, by their place below the mail root.
    mounts: HashMap<Arc<str>, Arc<str>>,
    /// Mounts that were named because they are not bound to their file systems.
    unbound: HashSet<Arc<str>>,
    /// Shortages of space on mounts. A mailbox keeps the reason until all waiting mail is delivered.
    shortages: HashSet<Arc<str>>,
}

impl Told {
    /// Logs each mount that does not answer or cannot be synced, once, and each recovered one.
    fn report_mounts(&mut self, mounts: &[MountStats]) {
        self.shortages.extend(mounts.iter().filter_map(|mount| mount.short_of_space.clone()));
        // Of a stuck stream the log tells by itself.
        for mount in mounts.iter().filter(|mount| !mount.is_stuck) {
            let name = if mount.point.is_empty() { "the mail directory" } else { &*mount.point };
            let trouble = mount.trouble();
            let before = match &trouble {
                Some(error) => self.mounts.insert(mount.point.clone(), error.clone()),
                None => self.mounts.remove(&mount.point),
            };
            match trouble {
                Some(error) if before.as_ref() != Some(&error) => tracing::error!(
                    mount = name,
                    messages = mount.messages,
                    error = &*error,
                    "a mail mount does not work: its mail stays in the spool; retrying automatically"
                ),
                None if before.is_some() => tracing::info!(mount = name, "the mail mount works again"),
                _ => {}
            }
            if let Some(error) = &mount.unbound
                && self.unbound.insert(mount.point.clone())
            {
                tracing::warn!(
                    mount = name,
                    error = &**error,
                    "cannot write an id to the mail mount: another disk in its place would go unnoticed; the next start tries again"
                );
            }
        }
    }

    /// Logs each mailbox for which mail begins to wait, each with all mail delivered, and the totals once a minute.
    /// `copies` and `bytes` count a message once for each mailbox.
    fn report_mailboxes(&mut self, store: &LocalDelivery, copies: usize, bytes: u64) {
        for line in recovered(store.take_recovered()) {
            tracing::info!(mailbox = &*line.mailbox, messages = line.messages, "waiting mail has been delivered");
        }
        let due = self.is_due(copies, Instant::now());
        if copies == 0 {
            if !std::mem::take(&mut self.troubled).is_empty() {
                tracing::info!("no mail waits for a mailbox any more");
            }
            return;
        }
        let waiting = store.waiting_mailboxes();
        // One line tells of the mount, and so of all of its mailboxes.
        let is_of_mount = |mailbox: &&WaitingMailbox| self.shortages.contains(&mailbox.error);
        let is_new = |mailbox: &&WaitingMailbox| !self.troubled.contains(&mailbox.mailbox) && !is_of_mount(mailbox);
        let new: Vec<&WaitingMailbox> = waiting.iter().filter(is_new).collect();
        for WaitingMailbox { mailbox, messages, bytes, attempts, error } in new.iter().take(NAMED_MAX) {
            tracing::warn!(
                mailbox = &**mailbox,
                messages,
                bytes,
                attempts,
                error = &**error,
                "mail waits for this mailbox; retrying automatically"
            );
        }
        if new.len() > NAMED_MAX {
            let mailboxes = new.len() - NAMED_MAX;
            tracing::warn!(mailboxes, "mail waits for further mailboxes; `posthaste spool inspect` lists them");
        }
        self.troubled =
            waiting.iter().filter(|waiting| !is_of_mount(waiting)).map(|waiting| waiting.mailbox.clone()).collect();
        if due {
            tracing::warn!(copies, bytes, mailboxes = waiting.len(), "total of waiting mail");
        }
    }

    /// True if `waiting` messages deserve a line: at once, and then each minute while there are any.
    fn is_due(&mut self, waiting: usize, now: Instant) -> bool {
        if waiting == 0 {
            self.waiting = None;
            return false;
        }
        let due = self.waiting.is_none_or(|last| now.duration_since(last) >= REPEAT_INTERVAL);
        if due {
            self.waiting = Some(now);
        }
        due
    }
}

/// The named mailboxes, and one line for all others.
fn recovered(mut recovered: Vec<RecoveredMailbox>) -> Vec<RecoveredMailbox> {
    let rest = recovered.split_off(recovered.len().min(NAMED_MAX));
    if !rest.is_empty() {
        let mailbox = format!("{} others", rest.len()).into();
        recovered.push(RecoveredMailbox { mailbox, messages: rest.iter().map(|one| one.messages).sum() });
    }
    recovered
}

/// Maximum mailboxes, or workers, logged at a time.
pub(crate) const NAMED_MAX: usize = 10;
/// Interval between two summary lines of everything that waits.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_that_recover_are_named_up_to_a_bound() {
        let one = |number: u64| RecoveredMailbox { mailbox: format!("m{number}").into(), messages: number };
        assert_eq!(recovered((0..10).map(one).collect()).len(), 10);
        let many = recovered((0..100).map(one).collect());
        assert_eq!(many.len(), 11);
        assert_eq!((&*many[10].mailbox, many[10].messages), ("90 others", (10..100).sum::<u64>()));
    }

    #[test]
    fn a_mount_in_trouble_is_told_of_once_and_again_when_it_is_well() {
        let mut alerts = Told::default();
        let mut mount = MountStats::default();
        for (sync_error, absent, known) in
            [(None, None, 0), (Some("EIO"), None, 1), (None, Some("gone"), 1), (None, None, 0)]
        {
            (mount.sync_error, mount.absent) = (sync_error.map(Arc::from), absent.map(Arc::from));
            alerts.report_mounts(std::slice::from_ref(&mount));
            assert_eq!(alerts.mounts.len(), known);
        }
        mount.unbound = Some("read-only".into());
        alerts.report_mounts(std::slice::from_ref(&mount));
        assert_eq!((alerts.mounts.len(), alerts.unbound.len()), (0, 1), "it is not in trouble");
        mount.short_of_space = Some("no room".into());
        alerts.report_mounts(std::slice::from_ref(&mount));
        assert_eq!(&*alerts.mounts[""], "no room");
    }

    #[test]
    fn waiting_mail_is_told_at_once_and_then_each_minute() {
        let mut alerts = Told::default();
        let begun = Instant::now();
        let mut due = |waiting, secs| alerts.is_due(waiting, begun + Duration::from_secs(secs));
        let looks = [(0, 0), (1, 2), (1, 4), (5, 61), (5, 62), (5, 64), (0, 66), (1, 68)];
        assert_eq!(
            looks.map(|(waiting, secs)| due(waiting, secs)),
            [false, true, false, false, true, false, false, true]
        );
    }
}
