//! Log lines for the operator about events that no client sees: checked every two seconds.

use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_watch::{Became, StuckWorker, Watch as Workers, Watcher};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::lifecycle::{Ending, OnFailure, Service};
use crate::receive::handler::Receiver;
use crate::repeats;
use crate::services::maildirs::{MailAlerts, NAMED_MAX};

/// Looks until it is dropped.
pub(crate) struct Watch {
    task: JoinHandle<()>,
    receiver: Receiver,
}

impl Watch {
    pub fn begin(mut mail: MailAlerts, receiver: Receiver) -> Self {
        let of_task = receiver.clone();
        let task = tokio::spawn(async move {
            let receiver = of_task;
            let mut alerts = Alerts::default();
            loop {
                sleep(LOOK_INTERVAL).await;
                // First: what is stuck may hold a lock that others wait for.
                report_stuck(receiver.destinations().look_for_stuck(std::time::Instant::now()));
                receiver.destinations().stuck().tell_again(std::time::Instant::now());
                let intakes = receiver.destinations().intakes().into_iter();
                alerts.report_checkpoint(intakes.filter_map(|it| it.spool().stats().checkpoint_running).max());
                mail.check();
                repeats::log(&receiver.left_out(false));
                alerts.report_losses(receiver.turned_away(), crate::logging::dropped_lines() as u64);
            }
        });
        Self { task, receiver }
    }
}

/// Watches the spool's workers while its consumers are opened, until it is dropped: otherwise a hanging replay would
/// look like a silent start.
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

/// Logs each stuck worker, once, and each that continues, up to a limit.
fn report_stuck(found: Vec<StuckWorker>) {
    let others = found.len().saturating_sub(NAMED_MAX);
    for found in found.into_iter().take(NAMED_MAX) {
        let worker = &*found.states;
        let seconds = found.time.as_secs();
        match found.what {
            Became::Stuck => tracing::warn!(worker, seconds, "a worker is stuck"),
            Became::WentOn => tracing::info!(worker, seconds, "a worker that was stuck continues"),
            Became::Ended => tracing::info!(worker, seconds, "a worker that was stuck has ended"),
        }
    }
    if others > 0 {
        tracing::warn!(others, "further workers are stuck or continue");
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

    /// All sessions have ended: logs the omitted lines of the last ones.
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

/// Problems already logged, so that each gets one line, and one more at its end.
#[derive(Debug, Default)]
struct Alerts {
    /// A checkpoint of the spool hangs.
    checkpoint_hangs: bool,
    turned_away: u64,
    dropped: u64,
}

impl Alerts {
    /// Logs a hanging checkpoint, once, and its end.
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

    /// Logs losses since the last call; `turned_away` and `dropped` are totals since the start.
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
}

/// A longer checkpoint counts as hanging.
pub(crate) const CHECKPOINT_HANGS: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_log::logged;

    #[test]
    fn a_hanging_checkpoint_is_logged_once_and_at_its_end() {
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
    fn a_stuck_worker_is_logged_once_and_when_it_goes_on() {
        let found = |what, secs| StuckWorker {
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
                format!("INFO a worker that was stuck continues {worker} seconds=400"),
                format!("INFO a worker that was stuck has ended {worker} seconds=5"),
            ]
        );
        let many = logged(|| report_stuck((0..100).map(|_| found(Became::Stuck, 301)).collect()));
        assert_eq!(many.len(), NAMED_MAX + 1);
        assert_eq!(many[NAMED_MAX], "WARN further workers are stuck or continue others=90");
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
        assert!(went_on.len() == 1 && went_on[0].starts_with("INFO a worker that was stuck continues"), "{went_on:?}");
        assert_eq!(look(67), Vec::<String>::new());
    }
}
