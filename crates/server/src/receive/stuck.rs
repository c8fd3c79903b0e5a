//! Streams of the spool that could not be opened. The log repeats them until they are; the control socket and the page
//! show them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Streams that are stuck, by name.
#[derive(Debug, Default)]
pub(crate) struct StuckStreams(Mutex<BTreeMap<String, StuckStream>>);

#[derive(Debug)]
struct StuckStream {
    error: String,
    /// Remedy for the operator.
    help: String,
    /// Time of its last log line.
    told: Instant,
}

impl StuckStream {
    fn tell(&self, stream: &str) {
        let error = &*self.error;
        let help = &*self.help;
        tracing::error!(
            stream,
            error,
            help,
            "this stream of the spool is stuck: its mail is deferred or stays in the spool; the others serve"
        );
    }
}

impl StuckStreams {
    /// A stream cannot be opened: its mail waits, the other streams serve.
    pub fn add(&self, stream: &str, error: &dyn Display, help: &str) {
        let stuck = StuckStream { error: error.to_string(), help: help.to_owned(), told: Instant::now() };
        stuck.tell(stream);
        self.streams().insert(stream.to_owned(), stuck);
    }

    /// Removes a stream that was opened.
    pub fn remove(&self, stream: &str) {
        self.streams().remove(stream);
    }

    /// All stuck streams, with the reasons.
    pub fn all(&self) -> Vec<String> {
        let of = |(stream, stuck): (&String, &StuckStream)| format!("{stream}: {}; {}", stuck.error, stuck.help);
        self.streams().iter().map(of).collect()
    }

    /// Logs each stuck stream again that was not logged for [`TOLD_EVERY`].
    pub fn tell_again(&self, now: Instant) {
        for (stream, stuck) in self.streams().iter_mut() {
            if now.saturating_duration_since(stuck.told) >= TOLD_EVERY {
                stuck.told = now;
                stuck.tell(stream);
            }
        }
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<String, StuckStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Interval of repeated log lines about lasting trouble.
pub(crate) const TOLD_EVERY: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_log::logged;

    #[test]
    fn a_stuck_stream_is_told_every_ten_minutes_until_it_is_open() {
        let (stuck, begun) = (StuckStreams::default(), Instant::now());
        let look = |secs: u64| logged(|| stuck.tell_again(begun + Duration::from_secs(secs)));
        let line = logged(|| stuck.add("queue", &"snapshots/queue-1 cannot be read", "start it again"));
        assert!(line.len() == 1 && line[0].starts_with("ERROR this stream of the spool is stuck"), "{line:?}");
        assert_eq!((look(590), look(601), look(1190), look(1202)), (vec![], line.clone(), vec![], line));
        assert_eq!(stuck.all(), ["queue: snapshots/queue-1 cannot be read; start it again"]);
        stuck.remove("queue");
        assert_eq!((stuck.all(), look(99_999)), (vec![], vec![]));
    }
}
