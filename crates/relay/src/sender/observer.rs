use std::sync::Arc;

use posthaste_smtp::Reply;
use posthaste_spool::{Entry, Lsn};

use crate::queue::{Key, Secs};

/// Is told what happens, for a log. Its methods must not block.
pub trait Observer: Send + Sync {
    /// Recipients that next hops have, told just before that is recorded. The entries go into the batch that records it.
    fn delivered(&self, delivered: Vec<Delivered>) -> Vec<Entry>;

    /// What became of one recipient in an attempt that did not deliver.
    fn attempt(&self, attempt: &Attempt<'_>);

    /// A site cannot be reached, or can be again.
    fn site(&self, state: &SiteState<'_>);

    /// A source cannot be used (`error` says why), or can be again.
    fn source(&self, source: &str, error: Option<&str>);

    /// A batch of the spool cannot be read: what it said is lost, or belongs to a later version.
    fn unreadable(&self, batch: Lsn, why: &str);
}

/// A recipient that the next hop has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Which.
    pub key: Key,
    /// Its address.
    pub recipient: Arc<str>,
    /// The next hop.
    pub host: Arc<str>,
}

/// What became of a recipient.
#[derive(Debug, Clone)]
pub struct Attempt<'a> {
    /// Which.
    pub key: Key,
    /// The sender; empty for none.
    pub sender: &'a str,
    /// The recipient's address.
    pub recipient: &'a str,
    /// On whose account; empty for none.
    pub tenant: &'a str,
    /// When the message was received, in Unix seconds of the queue's clock.
    pub received: Secs,
    /// What.
    pub result: AttemptResult,
    /// The host that said it; empty for none.
    pub host: &'a str,
    /// The reply, or what we say in its place.
    pub reply: &'a Reply,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// It is tried again at that time of the queue's clock.
    Deferred {
        /// When.
        next: Secs,
    },
    /// The connection broke when all was written: the next hop may have it. It is tried again.
    Unknown {
        /// When.
        next: Secs,
    },
    /// It is given up: refused for good.
    Failed,
    /// It is given up: too old.
    Expired,
}

/// Whether a site can be reached.
#[derive(Debug, Clone)]
pub enum SiteState<'a> {
    /// None of its hosts has answered.
    Unreachable {
        /// The source from which it was tried.
        source: &'a str,
        /// The site.
        site: &'a str,
        /// What the last host said or did.
        error: &'a str,
        /// Failures in a row.
        failures: u32,
        /// Seconds until it is tried again.
        pause_secs: u32,
    },
    /// It is reached again.
    Reached {
        /// The source.
        source: &'a str,
        /// The site.
        site: &'a str,
    },
}

/// Counts since opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Recipients that the next hop has.
    pub delivered: u64,
    /// Attempts that ended with a refusal for now, or nobody knows how.
    pub deferred: u64,
    /// Recipients that were given up.
    pub failed: u64,
    /// Recipients in the queue.
    pub recipients: u64,
    /// Connections open now.
    pub connections: usize,
    /// Sites that cannot be reached now.
    pub unreachable: usize,
    /// The time of the queue.
    pub now: Secs,
}
