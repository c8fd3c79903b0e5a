//! Notices that senders are owed: their kinds, and the requests to the [task](super::gather) that makes them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use posthaste_message::DateTime;
use posthaste_notify::dsn::DsnAction;
use posthaste_spool::Lsn;
use tokio::sync::Notify;

use super::messages::Envelope;
use posthaste_queue::OwedNotice;

/// Kind of a notice to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Tell {
    Failed,
    Delayed,
    /// Passed to a host that does not report success itself.
    Relayed,
    /// Delivered to a mailbox here.
    Delivered,
}

impl Tell {
    /// The action in a report (RFC 3464 section 2.3.3). `until`: the end of the retries.
    pub fn action(self, until: DateTime) -> DsnAction {
        match self {
            Tell::Failed => DsnAction::Failed,
            Tell::Delayed => DsnAction::Delayed { until },
            Tell::Relayed => DsnAction::Relayed,
            Tell::Delivered => DsnAction::Delivered,
        }
    }

    pub fn is_wanted(self, envelope: &Envelope, number: u16) -> bool {
        let asked = envelope.recipient(number).map_or(0, |recipient| recipient.notify);
        self.action(DateTime::from_unix(0)).is_told(&envelope.queued.sender, asked)
    }

    /// The queue's name for this kind; `None`: the queue records it as a delay.
    pub fn owed(self) -> Option<OwedNotice> {
        match self {
            Tell::Failed => Some(OwedNotice::Failed),
            Tell::Relayed => Some(OwedNotice::Relayed),
            Tell::Delivered => Some(OwedNotice::Delivered),
            Tell::Delayed => None,
        }
    }

    /// The class of the enhanced codes.
    pub fn class(self) -> u8 {
        match self {
            Tell::Failed => 5,
            Tell::Delayed => 4,
            Tell::Relayed | Tell::Delivered => 2,
        }
    }
}

/// Requests from the rest of the relay to the task that makes notices.
#[derive(Default)]
pub(super) struct NoticesToMake {
    /// Signals a new request.
    pub wanted: Notify,
    news: Mutex<NewsOfNotices>,
    is_last: AtomicBool,
    /// True if the task runs.
    is_running: Mutex<bool>,
    /// Notified when the task has ended.
    ended: Condvar,
}

/// Reports to the task since its last look.
#[derive(Default)]
pub(super) struct NewsOfNotices {
    /// Messages with late recipients whose sender asked for notices of delay.
    pub delayed: Vec<Lsn>,
    /// Results of attempted notices.
    pub made: Vec<(NoticeKey, Result<(), String>)>,
}

/// Identity of a notice: its message, and its kind.
pub(super) type NoticeKey = (Lsn, Tell);

impl NoticesToMake {
    /// Requests a notice for the late recipients of a message.
    pub fn want_delay(&self, message: Lsn) {
        self.news().delayed.push(message);
        self.wanted.notify_one();
    }

    /// Marks the task as running, before it begins.
    pub fn begin(&self) {
        *self.is_running.lock().expect("whether it runs") = true;
    }

    /// Makes all waiting notices, each tried once, and waits for that until the deadline. Blocks.
    pub fn end(&self, deadline: std::time::Instant) {
        self.is_last.store(true, Ordering::Release);
        self.wanted.notify_one();
        let is_running = self.is_running.lock().expect("whether it runs");
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        drop(self.ended.wait_timeout_while(is_running, left, |is_running| *is_running));
    }

    /// True at the end of the relay: each waiting notice is tried once more.
    pub fn is_last(&self) -> bool {
        self.is_last.load(Ordering::Acquire)
    }

    /// Reports the result of a notice.
    pub fn made(&self, key: NoticeKey, made: Result<(), String>) {
        self.news().made.push((key, made));
        self.wanted.notify_one();
    }

    pub fn take_news(&self) -> NewsOfNotices {
        std::mem::take(&mut *self.news())
    }

    /// Marks the task as ended.
    pub fn has_ended(&self) {
        *self.is_running.lock().expect("whether it runs") = false;
        self.ended.notify_all();
    }

    fn news(&self) -> MutexGuard<'_, NewsOfNotices> {
        self.news.lock().expect("news of notices")
    }
}
