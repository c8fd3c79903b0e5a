//! Limits log lines about one subject: the first few individually, then occasional counts.
//!
//! A full disk, a mailbox that cannot be written to or a client that guesses names causes the same line thousands of
//! times a second. Omitted lines are logged at level `debug`.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Kinds of lines that may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// We have no space for a message: 452 4.3.1.
    NoSpace,
    /// The store does not answer in time, or is overloaded.
    Slow,
    /// The store is broken, or a file cannot be written.
    Broken,
    /// Too much mail waits for one mailbox: 452 4.2.2.
    MailboxFull,
    /// The quota of an account is used up: 452 4.2.2 or 552 5.2.2.
    AccountFull,
    /// No memory for another recipient: 452 4.3.1.
    NoMemory,
    /// Too much mail waits for other hosts: 452 4.3.1.
    QueueFull,
    /// An account has reached its limit of recipients: 450 4.7.1.
    OverQuota,
    /// A recipient cannot be verified: its next hop cannot be asked.
    NotVerified,
    /// A key of its domain cannot be used: 451 4.7.5.
    NotSigned,
    /// A client's message is refused for a fault of its own.
    Refused,
    /// A client's recipient is refused.
    RefusedRecipient,
    /// A client may not connect, or is a proxy that does not name its client.
    RefusedConnection,
    /// The TLS handshake of a client failed.
    FailedTls,
    /// A client has logged in.
    Login,
    /// A client failed to authenticate.
    FailedLogin,
    /// A client broke off.
    Abandoned,
}

impl Kind {
    /// True for problems of this server that need the operator.
    pub fn is_ours(self) -> bool {
        !matches!(
            self,
            Self::Refused
                | Self::RefusedRecipient
                | Self::RefusedConnection
                | Self::FailedTls
                | Self::Login
                | Self::FailedLogin
                | Self::Abandoned
        )
    }

    /// Lines logged individually within an [`INTERVAL`].
    fn allowed(self) -> u64 {
        if self.is_ours() { 1 } else { 20 }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NoSpace => "no space to keep mail",
            Self::Slow => "the storage is too slow",
            Self::Broken => "the storage fails",
            Self::MailboxFull => "too much mail waits for a mailbox",
            Self::AccountFull => "the quota of an account is used up",
            Self::NoMemory => "no memory for recipients",
            Self::QueueFull => "too much mail waits for other hosts",
            Self::OverQuota => "an account is at its limit of recipients",
            Self::NotSigned => "mail cannot be signed",
            Self::NotVerified => "recipients cannot be verified",
            Self::Refused => "message refused",
            Self::RefusedRecipient => "recipient refused",
            Self::RefusedConnection => "connection refused",
            Self::FailedTls => "TLS handshake failed",
            Self::Login => "logged in",
            Self::FailedLogin => "login failed",
            Self::Abandoned => "message abandoned",
        }
    }
}

/// Subject of a repeated log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum About<'a> {
    /// A client's address; none for a UNIX socket.
    Client(Option<IpAddr>),
    /// Name of a mailbox, directory or configuration key.
    Name(&'a str),
}

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(Some(address)) => address.fmt(f),
            Self::Client(None) => f.write_str("unix socket"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Counts repeats. A repeated refusal costs one short, rarely contended lock, and no memory.
#[derive(Debug)]
pub(crate) struct Repeats {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for Repeats {
    fn default() -> Self {
        Self { hasher: RandomState::new(), shards: Default::default() }
    }
}

#[derive(Debug, Default)]
struct Shard {
    clients: HashMap<(Kind, Option<IpAddr>), Seen>,
    names: HashMap<Kind, HashMap<Box<str>, Seen>>,
    /// Counts of kinds without room.
    others: HashMap<Kind, Seen>,
    /// Entries in `clients` and `names`.
    subjects: usize,
}

#[derive(Debug)]
struct Seen {
    /// Start of the interval.
    since: Instant,
    /// Lines logged in the interval.
    told: u64,
    /// Lines omitted in the interval.
    left_out: u64,
}

/// Number of omitted lines of one kind and subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub kind: Kind,
    pub about: String,
    pub count: u64,
}

impl Repeats {
    /// True if this line is logged; otherwise it is only counted.
    pub fn is_told(&self, kind: Kind, about: About<'_>, now: Instant) -> bool {
        let shard = self.hasher.hash_one((kind, about)) as usize % SHARDS;
        lock(&self.shards[shard]).seen(kind, about, now).is_told(kind)
    }

    /// Lines omitted in past intervals, the most frequent first. `all`: including running intervals.
    pub fn left_out(&self, now: Instant, all: bool) -> Vec<LeftOut> {
        let mut counts: HashMap<(Kind, String), u64> = HashMap::new();
        for shard in &self.shards {
            lock(shard).take_left_out(now, all, |kind, about, count| {
                *counts.entry((kind, about)).or_default() += count;
            });
        }
        let mut left_out: Vec<_> =
            counts.into_iter().map(|((kind, about), count)| LeftOut { kind, about, count }).collect();
        left_out.sort_by_key(|kind| std::cmp::Reverse(kind.count));
        left_out
    }
}

impl Shard {
    fn seen(&mut self, kind: Kind, about: About<'_>, now: Instant) -> &mut Seen {
        let is_known = match about {
            About::Client(address) => self.clients.contains_key(&(kind, address)),
            About::Name(name) => self.names.get(&kind).is_some_and(|names| names.contains_key(name)),
        };
        let fresh = || Seen { since: now, told: 0, left_out: 0 };
        if !is_known && self.subjects >= SUBJECTS_MAX / SHARDS {
            return self.others.entry(kind).or_insert_with(fresh);
        }
        self.subjects += usize::from(!is_known);
        match about {
            About::Client(address) => self.clients.entry((kind, address)).or_insert_with(fresh),
            About::Name(name) => {
                let names = self.names.entry(kind).or_default();
                if !is_known {
                    names.insert(name.into(), fresh());
                }
                names.get_mut(name).expect("known, or just inserted")
            }
        }
    }

    fn take_left_out(&mut self, now: Instant, all: bool, mut tell: impl FnMut(Kind, String, u64)) {
        let mut keep = |kind: Kind, about: &dyn fmt::Display, seen: &mut Seen| {
            let over = seen.end_interval(now, all);
            if let Some(count) = over.filter(|count| *count > 0) {
                tell(kind, about.to_string(), count);
            }
            // As long as it goes on, only the count is told.
            over != Some(0)
        };
        self.clients.retain(|(kind, address), seen| keep(*kind, &About::Client(*address), seen));
        for (kind, names) in &mut self.names {
            names.retain(|name, seen| keep(*kind, name, seen));
        }
        self.others.retain(|kind, seen| keep(*kind, &OTHERS, seen));
        self.subjects = self.clients.len() + self.names.values().map(HashMap::len).sum::<usize>();
    }
}

impl Seen {
    fn is_told(&mut self, kind: Kind) -> bool {
        let is_told = self.told < kind.allowed();
        *(if is_told { &mut self.told } else { &mut self.left_out }) += 1;
        is_told
    }

    /// Ends an interval, and counts its omitted lines; `None` if it is still running.
    fn end_interval(&mut self, now: Instant, all: bool) -> Option<u64> {
        if !all && now.saturating_duration_since(self.since) < INTERVAL {
            return None;
        }
        self.since = now;
        Some(std::mem::take(&mut self.left_out))
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs omitted lines: the most frequent ones, and a sum of the rest.
pub(crate) fn log(left_out: &[LeftOut]) {
    for LeftOut { kind, about, count } in left_out.iter().take(LINES_MAX) {
        if kind.is_ours() {
            tracing::warn!(
                about = &**about,
                count,
                "{}: still happening; repeats were not logged one by one",
                kind.text()
            );
        } else {
            tracing::info!(about = &**about, count, "{}: repeats were not logged one by one", kind.text());
        }
    }
    if let Some(rest) = left_out.get(LINES_MAX..).filter(|rest| !rest.is_empty()) {
        let count: u64 = rest.iter().map(|left_out| left_out.count).sum();
        tracing::info!(
            about = rest.len(),
            count,
            "repeats for further mailboxes and clients were not logged one by one"
        );
    }
}

/// Time between two counts.
const INTERVAL: Duration = Duration::from_secs(10);
/// Approximate maximum of mailboxes and clients that are counted separately.
const SUBJECTS_MAX: usize = 1024;
const SHARDS: usize = 16;
const OTHERS: &str = "others";
/// Maximum counts logged at a time.
const LINES_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_a_count_for_each_interval() {
        let repeats = Repeats::default();
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let told = (0..5000).filter(|_| repeats.is_told(Kind::NoSpace, About::Name("spool"), at(0))).count();
        assert_eq!(told, 1);
        assert!(
            repeats.is_told(Kind::MailboxFull, About::Name("a"), at(0))
                && repeats.is_told(Kind::MailboxFull, About::Name("b"), at(0))
        );
        assert_eq!(repeats.left_out(at(9), false), []);
        let left_out = |count| vec![LeftOut { kind: Kind::NoSpace, about: "spool".to_owned(), count }];
        assert_eq!(repeats.left_out(at(10), false), left_out(4999));
        assert!(!repeats.is_told(Kind::NoSpace, About::Name("spool"), at(11)), "it goes on");
        assert_eq!(repeats.left_out(at(20), false), left_out(1));
        assert_eq!(repeats.left_out(at(30), false), []);
        assert!(repeats.is_told(Kind::NoSpace, About::Name("spool"), at(31)), "it is over, and begins anew");
        assert!(!repeats.is_told(Kind::NoSpace, About::Name("spool"), at(31)));
        assert_eq!(repeats.left_out(at(32), true), left_out(1), "at the end nothing is kept back");
    }

    #[test]
    fn a_client_may_be_refused_some_times_before_it_is_only_counted() {
        let repeats = Repeats::default();
        let now = Instant::now();
        let client = |last| About::Client(Some(IpAddr::from([192, 0, 2, last])));
        let told = (0..100).filter(|_| repeats.is_told(Kind::RefusedRecipient, client(1), now)).count();
        assert_eq!(told, 20);
        assert!(repeats.is_told(Kind::RefusedRecipient, client(2), now));
        assert!(repeats.is_told(Kind::Abandoned, client(1), now), "each thing is counted apart");
        let left_out = LeftOut { kind: Kind::RefusedRecipient, about: "192.0.2.1".to_owned(), count: 80 };
        assert_eq!(repeats.left_out(now, true), [left_out]);
    }

    #[test]
    fn there_is_a_bound_to_what_is_remembered() {
        let repeats = Repeats::default();
        let now = Instant::now();
        for number in 0..10_000_u32 {
            repeats.is_told(Kind::MailboxFull, About::Name(&number.to_string()), now);
            repeats.is_told(Kind::Refused, About::Client(Some(IpAddr::from(number.to_be_bytes()))), now);
        }
        let subjects: usize = repeats.shards.iter().map(|shard| lock(shard).subjects).sum();
        assert_eq!(subjects, SUBJECTS_MAX);
        let left_out = repeats.left_out(now, true);
        assert!(
            left_out.iter().take(2).all(|left_out| left_out.about == OTHERS && left_out.count > 8000),
            "{left_out:?}"
        );
        // Nothing is logged of them any more.
        repeats.left_out(now, true);
        assert!(repeats.shards.iter().all(|shard| lock(shard).subjects == 0));
    }
}
