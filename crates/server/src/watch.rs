//! What the operator has to know and no client is told: a look at the store now and then, and a line in the log.

use std::collections::{HashMap, HashSet};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_delivery::local::{LocalDelivery, MountStats, RecoveredMailbox, WaitingMailbox};
use posthaste_watch::{Became, Found, Watch as Workers, Watcher};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::receive::Receiver;
use crate::repeats;
use crate::services::{Ending, OnFailure, Service};

/// Looks at the store until it is dropped.
pub(crate) struct Watch {
    task: JoinHandle<()>,
    receiver: Receiver,
}

impl Watch {
    pub fn begin(store: LocalDelivery, receiver: Receiver) -> Self {
        let of_task = receiver.clone();
        let task = tokio::spawn(async move {
            let receiver = of_task;
            let mut alerts = Alerts::default();
            loop {
                sleep(LOOK_INTERVAL).await;
                // First: what is stuck may hold a lock that others wait for.
                report_stuck(receiver.destinations().look_for_stuck(std::time::Instant::now()));
                receiver.destinations().stuck().tell_again(std::time::Instant::now());
                alerts.check(&store);
                repeats::log(&receiver.left_out(false));
                alerts.report_losses(receiver.turned_away(), crate::logging::dropped_lines() as u64);
            }
        });
        Self { task, receiver }
    }
}

/// Looks at the spool's workers while its consumers are opened, until it is dropped: one that hangs in its replay would otherwise be a start that says nothing.
pub(crate) struct OpeningWatch(JoinHandle<()>);

impl OpeningWatch {
    pub fn begin(workers: Workers) -> Self {
        Self(tokio::spawn(async move {
            let watcher = Watcher::of(workers);
            loop {
                sleep(LOOK_INTERVAL).await;
                report_stuck(watcher.look(Instant::now().into_std()));
            }
        }))
    }
}

impl Drop for OpeningWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Names each worker that is stuck, once, and each that goes on, up to a bound.
fn report_stuck(found: Vec<Found>) {
    let others = found.len().saturating_sub(NAMED_MAX);
    for found in found.into_iter().take(NAMED_MAX) {
        let (worker, seconds) = (&*found.states, found.time.as_secs());
        match found.what {
            Became::Stuck => tracing::warn!(worker, seconds, "a worker is stuck"),
            Became::WentOn => tracing::info!(worker, seconds, "a worker that was stuck goes on"),
            Became::Ended => tracing::info!(worker, seconds, "a worker that was stuck has ended"),
        }
    }
    if others > 0 {
        tracing::warn!(others, "further workers are stuck, or go on");
    }
}

impl Service for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn(
            "the log no longer tells of waiting mail, of mounts in trouble, of stuck workers and of what it left out",
        )
    }

    /// All sessions have ended by then: tells what the log has left out of the last ones.
    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        self.task.abort();
        repeats::log(&self.receiver.left_out(true));
        Box::pin(ready(Ok(())))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.task).poll(cx).map(drop)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the log has named already, so that each trouble, and its end, is one line.
#[derive(Debug, Default)]
struct Alerts {
    waiting: Option<Instant>,
    /// Mailboxes that were named, or counted, as those that mail waits for.
    troubled: HashSet<Arc<str>>,
    /// Mounts in trouble, by their place below the mail root, and what it is.
    mounts: HashMap<Arc<str>, Arc<str>>,
    /// Mounts that were named because they are not bound to their file systems.
    unbound: HashSet<Arc<str>>,
    /// Why mounts were, or are, short of space. A mailbox keeps the reason until it has all that waited.
    shortages: HashSet<Arc<str>>,
    /// A checkpoint of the spool hangs.
    checkpoint_hangs: bool,
    turned_away: u64,
    dropped: u64,
}

impl Alerts {
    fn check(&mut self, store: &LocalDelivery) {
        let stats = store.stats();
        self.report_checkpoint(store.intake().spool().stats().checkpoint_running);
        self.report_mounts(&stats.mounts);
        self.report_mailboxes(store, stats.waiting, stats.waiting_bytes);
    }

    /// Names a checkpoint that hangs, once, and its end.
    fn report_checkpoint(&mut self, running: Option<Duration>) {
        let hangs = running.is_some_and(|running| running >= CHECKPOINT_HANGS);
        match (std::mem::replace(&mut self.checkpoint_hangs, hangs), hangs) {
            (false, true) => {
                let seconds = running.unwrap_or_default().as_secs();
                tracing::error!(seconds, "a checkpoint of the spool hangs: nothing is freed; look at its disk");
            }
            (true, false) => tracing::info!("the checkpoint of the spool that hung has ended"),
            _ => {}
        }
    }

    /// Names each mount that does not answer or cannot be synced, once, and each that is well again.
    fn report_mounts(&mut self, mounts: &[MountStats]) {
        self.shortages.extend(mounts.iter().filter_map(|mount| mount.short_of_space.clone()));
        // Of a stuck stream the log tells by itself.
        for mount in mounts.iter().filter(|mount| !mount.is_stuck) {
            let name = if mount.point.is_empty() { "the mail directory" } else { &mount.point };
            let trouble = trouble_of(mount);
            let before = match &trouble {
                Some(error) => self.mounts.insert(mount.point.clone(), error.clone()),
                None => self.mounts.remove(&mount.point),
            };
            match trouble {
                Some(error) if before.as_ref() != Some(&error) => tracing::error!(
                    mount = name,
                    messages = mount.messages,
                    error = &*error,
                    "a mail mount is in trouble: its mail stays in the spool; it is tried again by itself"
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
                    "the mail mount takes no id: if another disk is mounted in its place, this is not noticed; the next start tries again"
                );
            }
        }
    }

    /// Names each mailbox that mail begins to wait for, and each that has got what waited; tells of all of it each minute. A message
    /// counts in `copies` and `bytes` as often as it waits for a mailbox.
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
            tracing::warn!(copies, bytes, mailboxes = waiting.len(), "mail waits, in total");
        }
    }

    /// Tells how many there were since they were told of last, `turned_away` and `dropped` being all since the start.
    fn report_losses(&mut self, turned_away: u64, dropped: u64) {
        let clients = turned_away - std::mem::replace(&mut self.turned_away, turned_away);
        if clients > 0 {
            tracing::warn!(clients, "clients turned away: too many connections or open files");
        }
        let lines = dropped - std::mem::replace(&mut self.dropped, dropped);
        if lines > 0 {
            tracing::warn!(lines, "log lines were dropped: the reader of the log is too slow");
        }
    }

    /// Whether `waiting` messages are worth a line: at once, and then each minute while there are any.
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

/// Why nothing is delivered there, if so.
pub(crate) fn trouble_of(mount: &MountStats) -> Option<Arc<str>> {
    let hangs = mount.sync_secs.is_some_and(|secs| secs >= SYNC_HANGS_SECS);
    let hanging = hangs.then(|| "it does not answer: a sync of it, or a look at it, has not come back".into());
    mount.absent.clone().or(mount.sync_error.clone()).or(mount.short_of_space.clone()).or(hanging)
}

/// Those that are named, and one line for all others.
fn recovered(mut recovered: Vec<RecoveredMailbox>) -> Vec<RecoveredMailbox> {
    let rest = recovered.split_off(recovered.len().min(NAMED_MAX));
    if !rest.is_empty() {
        let mailbox = format!("{} others", rest.len()).into();
        recovered.push(RecoveredMailbox { mailbox, messages: rest.iter().map(|one| one.messages).sum() });
    }
    recovered
}

/// Mailboxes, or workers, that are named at a time.
const NAMED_MAX: usize = 10;
/// A sync that takes longer is told of.
const SYNC_HANGS_SECS: u64 = 60;
/// A checkpoint that takes longer is taken to hang.
pub(crate) const CHECKPOINT_HANGS: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_log::logged;

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
        let mut alerts = Alerts::default();
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
        (mount.short_of_space, mount.sync_secs) = (None, Some(SYNC_HANGS_SECS));
        assert!(trouble_of(&mount).is_some());
    }

    #[test]
    fn a_checkpoint_that_hangs_is_told_of_once_and_again_when_it_has_ended() {
        let mut alerts = Alerts::default();
        for (running, known) in [(None, false), (Some(59), false), (Some(60), true), (Some(62), true), (Some(1), false)]
        {
            let lines = logged(|| alerts.report_checkpoint(running.map(Duration::from_secs)));
            assert_eq!(alerts.checkpoint_hangs, known, "{running:?}");
            let expected: &[&str] = match running {
                Some(60) => &["ERROR a checkpoint of the spool hangs: nothing is freed; look at its disk seconds=60"],
                Some(1) => &["INFO the checkpoint of the spool that hung has ended"],
                _ => &[],
            };
            assert_eq!(lines, expected, "{running:?}");
        }
    }

    #[test]
    fn waiting_mail_is_told_at_once_and_then_each_minute() {
        let mut alerts = Alerts::default();
        let begun = Instant::now();
        let mut due = |waiting, secs| alerts.is_due(waiting, begun + Duration::from_secs(secs));
        let looks = [(0, 0), (1, 2), (1, 4), (5, 61), (5, 62), (5, 64), (0, 66), (1, 68)];
        assert_eq!(
            looks.map(|(waiting, secs)| due(waiting, secs)),
            [false, true, false, false, true, false, false, true]
        );
    }

    #[test]
    fn a_worker_that_is_stuck_has_a_line_and_another_one_when_it_goes_on_or_ends() {
        let found = |what, secs| Found {
            states: "site mx.example > session to 192.0.2.1:25 > waiting for the reply".to_owned(),
            time: Duration::from_secs(secs),
            what,
        };
        let lines = logged(|| {
            report_stuck(vec![found(Became::Stuck, 301), found(Became::WentOn, 400)]);
            report_stuck(vec![found(Became::Ended, 5)]);
        });
        let worker = "worker=\"site mx.example > session to 192.0.2.1:25 > waiting for the reply\"";
        assert_eq!(
            lines,
            [
                format!("WARN a worker is stuck {worker} seconds=301"),
                format!("INFO a worker that was stuck goes on {worker} seconds=400"),
                format!("INFO a worker that was stuck has ended {worker} seconds=5"),
            ]
        );
        let many = logged(|| report_stuck((0..100).map(|_| found(Became::Stuck, 301)).collect()));
        assert_eq!(many.len(), NAMED_MAX + 1);
        assert_eq!(many[NAMED_MAX], "WARN further workers are stuck, or go on others=90");
    }

    #[test]
    fn a_consumer_that_hangs_while_it_is_opened_has_a_line() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let lines = logged(|| {
            runtime.block_on(async {
                let workers = Workers::default();
                let opening = OpeningWatch::begin(workers.clone());
                let worker = workers.worker("replay of the spool", &["", "reading"], Duration::from_secs(60));
                worker.pulse().step(1);
                sleep(Duration::from_secs(70)).await;
                drop(opening);
                worker.pulse().step(0);
                sleep(Duration::from_secs(70)).await;
            });
        });
        assert!(lines.len() == 1 && lines[0].starts_with("WARN a worker is stuck worker=\"replay"), "{lines:?}");
    }

    #[test]
    fn a_hung_worker_is_found_by_the_watch_and_logged_once() {
        let watcher = Watcher::default();
        let worker =
            watcher.watch().worker("records of the queue", &["", "waiting for the spool"], Duration::from_secs(60));
        worker.pulse().step(1);
        let begun = std::time::Instant::now();
        let look = |secs| logged(|| report_stuck(watcher.look(begun + Duration::from_secs(secs))));
        assert_eq!((look(0), look(59)), (vec![], vec![]));
        let stuck = "WARN a worker is stuck worker=\"records of the queue > waiting for the spool\" seconds=61";
        assert_eq!((look(61), look(63)), (vec![stuck.to_owned()], vec![]));
        worker.pulse().step(0);
        let went_on = look(65);
        assert!(went_on.len() == 1 && went_on[0].starts_with("INFO a worker that was stuck goes on"), "{went_on:?}");
        assert_eq!(look(67), Vec::<String>::new());
    }
}
