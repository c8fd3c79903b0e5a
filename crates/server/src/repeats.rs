//! Bounds what the log says of one thing: the first few by themselves, then a count now and then.
//!
//! A full disk, a mailbox that cannot be written to or a client that guesses names causes the same line thousands of times a second. The
//! lines that are left out are logged at the level `debug`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// We have no space for a message: 452 4.3.1.
    NoSpace,
    /// The store does not answer in time, or has too much to do.
    Slow,
    /// The store is broken, or a file cannot be written.
    Broken,
    /// Too much mail waits for one mailbox: 452 4.2.2.
    MailboxFull,
    /// No memory for another recipient: 452 4.3.1.
    NoMemory,
    /// A client's message is refused for a fault of its own.
    Refused,
    /// A client's recipient is refused.
    RefusedRecipient,
    /// A client broke off.
    Abandoned,
}

impl Kind {
    /// Whether we are to blame, and somebody here has to do something.
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::Refused | Self::RefusedRecipient | Self::Abandoned)
    }

    /// Lines within an [`INTERVAL`] that are logged by themselves.
    fn allowed(self) -> u64 {
        if self.is_ours() { 1 } else { 20 }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NoSpace => "no space to keep mail",
            Self::Slow => "the storage is too slow",
            Self::Broken => "the storage fails",
            Self::MailboxFull => "too much mail waits for a mailbox",
            Self::NoMemory => "no memory for recipients",
            Self::Refused => "message refused",
            Self::RefusedRecipient => "recipient refused",
            Self::Abandoned => "message abandoned",
        }
    }
}

/// What repeats, and of whom: a mailbox, a directory, a client's address.
type Subject = (Kind, String);

/// Counts what repeats.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<HashMap<Subject, Seen>>);

#[derive(Debug)]
struct Seen {
    /// When the interval began.
    since: Instant,
    /// Logged since then.
    told: u64,
    /// Left out since then.
    left_out: u64,
}

/// What was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub kind: Kind,
    pub about: String,
    pub count: u64,
}

impl Repeats {
    /// Whether this one is to be logged by itself. Otherwise it is counted.
    pub fn is_told(&self, kind: Kind, about: &str, now: Instant) -> bool {
        let mut all = self.all();
        let known = all.contains_key(&(kind, about.to_owned()));
        let about = if known || all.len() < SUBJECTS_MAX { about } else { OTHERS };
        let seen = all.entry((kind, about.to_owned())).or_insert(Seen { since: now, told: 0, left_out: 0 });
        if seen.told < kind.allowed() {
            seen.told += 1;
            return true;
        }
        seen.left_out += 1;
        false
    }

    /// What was left out of intervals that are over, the most frequent first. `all`: also of those that are not.
    pub fn left_out(&self, now: Instant, all: bool) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.all().retain(|(kind, about), seen| {
            if !all && now.saturating_duration_since(seen.since) < INTERVAL {
                return true;
            }
            let count = std::mem::take(&mut seen.left_out);
            if count > 0 {
                left_out.push(LeftOut { kind: *kind, about: about.clone(), count });
            }
            // As long as it goes on, only the count is told.
            seen.since = now;
            count > 0
        });
        left_out.sort_by_key(|kind| std::cmp::Reverse(kind.count));
        left_out
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Subject, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what was left out: each of the most frequent, and how much there was of the rest.
pub(crate) fn log(left_out: &[LeftOut]) {
    for LeftOut { kind, about, count } in left_out.iter().take(LINES_MAX) {
        if kind.is_ours() {
            tracing::warn!(about = &**about, count, "{}: it goes on, so many times more", kind.text());
        } else {
            tracing::info!(about = &**about, count, "{}: so many times more", kind.text());
        }
    }
    if let Some(rest) = left_out.get(LINES_MAX..).filter(|rest| !rest.is_empty()) {
        let count: u64 = rest.iter().map(|left_out| left_out.count).sum();
        tracing::info!(about = rest.len(), count, "and more of other mailboxes and clients");
    }
}

/// How often a count is told.
const INTERVAL: Duration = Duration::from_secs(10);
/// Mailboxes and clients that are counted apart.
const SUBJECTS_MAX: usize = 1000;
const OTHERS: &str = "others";
/// Counts that are told at a time.
const LINES_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_a_count_for_each_interval() {
        let repeats = Repeats::default();
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let told = (0..5000).filter(|_| repeats.is_told(Kind::NoSpace, "journal", at(0))).count();
        assert_eq!(told, 1);
        assert!(repeats.is_told(Kind::MailboxFull, "a", at(0)) && repeats.is_told(Kind::MailboxFull, "b", at(0)));
        assert_eq!(repeats.left_out(at(9), false), []);
        let left_out = |count| vec![LeftOut { kind: Kind::NoSpace, about: "journal".to_owned(), count }];
        assert_eq!(repeats.left_out(at(10), false), left_out(4999));
        assert!(!repeats.is_told(Kind::NoSpace, "journal", at(11)), "it goes on");
        assert_eq!(repeats.left_out(at(20), false), left_out(1));
        assert_eq!(repeats.left_out(at(30), false), []);
        assert!(repeats.is_told(Kind::NoSpace, "journal", at(31)), "it is over, and begins anew");
        assert!(!repeats.is_told(Kind::NoSpace, "journal", at(31)));
        assert_eq!(repeats.left_out(at(32), true), left_out(1), "at the end nothing is kept back");
    }

    #[test]
    fn a_client_may_be_refused_some_times_before_it_is_only_counted() {
        let repeats = Repeats::default();
        let now = Instant::now();
        let told = (0..100).filter(|_| repeats.is_told(Kind::RefusedRecipient, "192.0.2.1", now)).count();
        assert_eq!(told, 20);
        assert!(repeats.is_told(Kind::RefusedRecipient, "192.0.2.2", now));
    }

    #[test]
    fn there_is_a_bound_to_what_is_remembered() {
        let repeats = Repeats::default();
        let now = Instant::now();
        for number in 0..10_000 {
            repeats.is_told(Kind::MailboxFull, &number.to_string(), now);
        }
        assert_eq!(repeats.all().len(), SUBJECTS_MAX + 1);
        assert_eq!(repeats.left_out(now, true)[0].count, 10_000 - SUBJECTS_MAX as u64 - 1);
    }
}
