//! What the operator has to know and no client is told: a look at the store now and then, and a line in the log.

use std::time::Duration;

use posthaste_delivery::Journaled;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::receive::Receiver;

/// Looks at the store until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(JoinHandle<()>);

impl Watch {
    pub fn begin(store: Journaled, receiver: Receiver) -> Self {
        Self(tokio::spawn(async move {
            let mut told = Told::default();
            loop {
                sleep(LOOK_INTERVAL).await;
                told.look(&store);
                told.losses(receiver.turned_away(), crate::logging::dropped_lines() as u64);
            }
        }))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What has been said already.
#[derive(Debug, Default)]
struct Told {
    poisoned: bool,
    unreadable: u64,
    waiting: Option<Instant>,
    turned_away: u64,
    dropped: u64,
}

impl Told {
    fn look(&mut self, store: &Journaled) {
        if let Some(why) = store.poisoned().filter(|_| !std::mem::replace(&mut self.poisoned, true)) {
            tracing::error!(
                why = &*why,
                "stable storage failed: no mail is accepted until a restart, once its cause is gone"
            );
        }
        let stats = store.stats();
        let unreadable = std::mem::replace(&mut self.unreadable, stats.unreadable_segments);
        if stats.unreadable_segments > unreadable {
            tracing::error!(
                segments = stats.unreadable_segments,
                "the journal cannot read mail that it holds: its disk is failing; the segments are kept"
            );
        }
        if !self.is_due(stats.waiting, Instant::now()) {
            return;
        }
        let waiting = store.waiting();
        let Some(oldest) = waiting.first() else { return };
        tracing::warn!(
            messages = waiting.len(),
            bytes = waiting.iter().map(|message| message.bytes).sum::<u64>(),
            mailbox = oldest.mailboxes.first().map(|mailbox| &**mailbox),
            attempts = oldest.attempts,
            error = &*oldest.error,
            "mail waits: its mailboxes cannot be written to, or the journal cannot read it; the oldest is named"
        );
    }

    /// Tells how many there were since they were told of last, `turned_away` and `dropped` being all since the start.
    fn losses(&mut self, turned_away: u64, dropped: u64) {
        let clients = turned_away - std::mem::replace(&mut self.turned_away, turned_away);
        if clients > 0 {
            tracing::warn!(clients, "turned away: too many connections or open files");
        }
        let lines = dropped - std::mem::replace(&mut self.dropped, dropped);
        if lines > 0 {
            tracing::warn!(lines, "lines of this log were dropped: who reads it is too slow");
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

const LOOK_INTERVAL: Duration = Duration::from_secs(2);
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_mail_is_told_at_once_and_then_each_minute() {
        let mut told = Told::default();
        let begun = Instant::now();
        let mut due = |waiting, secs| told.is_due(waiting, begun + Duration::from_secs(secs));
        let looks = [(0, 0), (1, 2), (1, 4), (5, 61), (5, 62), (5, 64), (0, 66), (1, 68)];
        assert_eq!(
            looks.map(|(waiting, secs)| due(waiting, secs)),
            [false, true, false, false, true, false, false, true]
        );
    }
}
