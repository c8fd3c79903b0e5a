//! Looks at a mailbox for changes: pending ones, and the result of the last.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_maildir::tree::Stamp;
use tokio::time::Instant;

use super::boot::SealedStamps;
use super::file::MailFile;
use super::state::Messages;
use crate::error::MailstoreError;
use crate::opening_view::OpeningMailbox;

/// Interval of looks for an idle session without events in the directories.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Minimum interval of looks because of events, and 19 times the duration of the last one: they use a twentieth of a
/// core.
const EVENT_PAUSE_MIN: Duration = Duration::from_millis(50);
const EVENT_PAUSE: u32 = 19;

/// Numbers of the last requested and the last started look. Sessions that ask during a look share the next one.
#[derive(Debug)]
pub(super) struct Looks {
    pub wanted: u64,
    pub begun: u64,
    pub is_running: bool,
    /// End of the last look.
    pub last: Instant,
    /// Duration of the last look.
    pub took: Duration,
    /// Event count at the start of the last look.
    pub events: u64,
    /// [`POLL_EVERY`], but for tests.
    pub poll_every: Duration,
    /// `None` while a look uses it.
    pub known: Option<Known>,
}

impl Looks {
    pub fn new() -> Self {
        Self {
            wanted: 0,
            begun: 0,
            is_running: false,
            last: Instant::now(),
            took: Duration::ZERO,
            events: 0,
            poll_every: POLL_EVERY,
            known: Some(Known::default()),
        }
    }

    /// Time of the next look for an idle session. `events`: event count of the directories.
    pub fn next(&self, events: u64) -> Instant {
        let pause = if events == self.events {
            self.poll_every
        } else {
            (self.took * EVENT_PAUSE).clamp(EVENT_PAUSE_MIN, POLL_EVERY)
        };
        self.last + pause
    }
}

/// Knowledge kept between looks.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Stamps at the last listing, if all later changes would be noticed.
    pub settled: Option<[Stamp; 2]>,
    /// True if inotify reports each change of the listed directories while these are watched.
    pub tells_of_changes: bool,
    pub was_listed: bool,
    /// Start of the last listing in which no known message was missing.
    pub listed_at: Option<SystemTime>,
    /// Stamp of Dovecot's UID list at the first look. If it changes, another server runs here.
    pub uid_list: Option<Option<Stamp>>,
}

/// Result of the last look.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    pub number: u64,
    /// Messages of the last successful look.
    pub messages: Option<Arc<Messages>>,
    pub error: Option<MailstoreError>,
    /// True if the messages are from the ledger, and the first listing of the directories is running.
    pub is_ahead: bool,
    /// Counters while messages are being loaded from the ledger, and stamps of the directories.
    pub opening: Option<(SealedStamps, OpeningMailbox<Arc<MailFile>>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_hasten_a_look_and_long_looks_are_rare() {
        let mut looks = Looks { events: 7, took: Duration::from_millis(10), ..Looks::new() };
        let pause = |looks: &Looks, events| looks.next(events) - looks.last;
        assert_eq!(pause(&looks, 7), POLL_EVERY);
        assert_eq!(pause(&looks, 8), Duration::from_millis(190));
        looks.took = Duration::from_micros(5);
        assert_eq!(pause(&looks, 8), EVENT_PAUSE_MIN);
        looks.took = Duration::from_secs(1);
        assert_eq!(pause(&looks, 8), POLL_EVERY, "never later than without events");
    }
}
