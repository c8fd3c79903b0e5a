//! State of [call-ahead](super::ask_ahead): answers, next hops and their sessions.
//!
//! Answers are cached, at most [`ANSWERS_MAX`], for [`TAKEN`], [`REFUSED`] or [`NOT_KNOWN`]. Concurrent questions about
//! one address share one answer. A next hop gets [`AT_ONCE`] questions at a time; its sessions are reused until they
//! have been idle for [`IDLE`]. A next hop that cannot be asked is not asked again for [`NOT_KNOWN`]; questions
//! meanwhile get "not known" at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_smtp::Reply;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::source::Egress;
use crate::session::OutgoingSession;
use posthaste_dns::Cache;
use posthaste_queue::EntryText;

/// Result of a call-ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ahead {
    /// The next hop accepts mail for the address.
    Taken,
    /// The next hop refuses mail for the address: the reply to give, 550.
    Refused(Reply),
    /// The next hop cannot be asked now, or gave no clear answer: the reason.
    NotKnown(Arc<str>),
}

impl Ahead {
    /// Time for which the answer is cached.
    pub(super) fn lifetime(&self) -> Duration {
        match self {
            Ahead::Taken => TAKEN,
            Ahead::Refused(_) => REFUSED,
            Ahead::NotKnown(_) => NOT_KNOWN,
        }
    }
}

/// Cached answers, and the next hops with their sessions.
pub(super) struct CallAhead {
    answers: Mutex<Arc<Cache<Ahead>>>,
    /// By site name.
    hops: Mutex<HashMap<Arc<str>, Arc<Hop>>>,
    /// Number of questions to hosts.
    pub serial: AtomicU64,
}

impl Default for CallAhead {
    fn default() -> Self {
        CallAhead {
            answers: Mutex::new(Arc::new(Cache::new(ANSWERS_MAX))),
            hops: Mutex::default(),
            serial: AtomicU64::new(0),
        }
    }
}

impl CallAhead {
    /// Forgets answers and next hops: other hosts may be responsible now.
    pub fn forget(&self) {
        *self.answers.lock().expect("the answers") = Arc::new(Cache::new(ANSWERS_MAX));
        self.hops.lock().expect("the hops").clear();
    }

    /// The cached answers, valid as long as the same next hops are responsible.
    pub fn answers(&self) -> Arc<Cache<Ahead>> {
        self.answers.lock().expect("the answers").clone()
    }

    pub fn hop(&self, site: &Arc<str>) -> Arc<Hop> {
        let mut hops = self.hops.lock().expect("the hops");
        if hops.len() >= HOPS_MAX && !hops.contains_key(site) {
            hops.retain(|_, hop| Arc::strong_count(hop) > 1);
        }
        hops.entry(site.clone()).or_default().clone()
    }
}

/// A next hop, with its askers and idle sessions.
pub(super) struct Hop {
    pub turns: Semaphore,
    /// Number of askers, including waiting ones.
    asking: AtomicUsize,
    state: Mutex<HopState>,
}

#[derive(Default)]
struct HopState {
    idle: Vec<IdleSession>,
    /// True while a task ends idle sessions.
    has_reaper: bool,
    /// End of the pause, and the reason for it.
    failed: Option<(Instant, Arc<str>)>,
}

/// A session for the next question.
pub(super) struct IdleSession {
    pub session: OutgoingSession,
    /// Name of the session's host.
    pub host: Arc<str>,
    /// Source from which the session was opened.
    pub source: Arc<Egress>,
    since: Instant,
}

impl Default for Hop {
    fn default() -> Self {
        Hop { turns: Semaphore::new(AT_ONCE), asking: AtomicUsize::new(0), state: Mutex::default() }
    }
}

/// Counts one asker until it is dropped.
pub(super) struct CountedAsker<'a>(&'a AtomicUsize);

impl Drop for CountedAsker<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hop {
    fn state(&self) -> MutexGuard<'_, HopState> {
        self.state.lock().expect("a next hop")
    }

    /// Counts an asker; `None` if there are too many.
    pub fn count(&self) -> Option<CountedAsker<'_>> {
        let counted = CountedAsker(&self.asking);
        (self.asking.fetch_add(1, Ordering::Relaxed) < ASKING_MAX).then_some(counted)
    }

    /// The answer to give during a pause; `None` without a pause.
    pub fn trouble(&self) -> Option<Ahead> {
        let state = self.state();
        let (until, why) = state.failed.as_ref()?;
        (*until > Instant::now()).then(|| Ahead::NotKnown(why.clone()))
    }

    /// Begins a pause because the next hop could not be asked.
    pub fn failed(&self, why: &str) -> Ahead {
        let why: Arc<str> = EntryText::from(why).into();
        self.state().failed = Some((Instant::now() + NOT_KNOWN, why.clone()));
        Ahead::NotKnown(why)
    }

    pub fn take(&self) -> Option<IdleSession> {
        self.state().idle.pop()
    }

    /// Keeps a session for the next question.
    pub fn put(self: &Arc<Self>, session: OutgoingSession, host: &Arc<str>, source: &Arc<Egress>, runtime: &Handle) {
        if !session.is_open() {
            runtime.spawn(session.quit());
            return;
        }
        let host = host.clone();
        let source = source.clone();
        let mut state = self.state();
        state.failed = None;
        state.idle.push(IdleSession { session, host, source, since: Instant::now() });
        if !std::mem::replace(&mut state.has_reaper, true) {
            runtime.spawn(self.clone().reap());
        }
    }

    async fn reap(self: Arc<Self>) {
        let mut next = Some(Instant::now() + IDLE);
        while let Some(at) = next {
            sleep_until(at).await;
            let old = {
                let mut state = self.state();
                let (old, idle) = state.idle.drain(..).partition::<Vec<_>, _>(|idle| idle.since.elapsed() >= IDLE);
                state.idle = idle;
                next = state.idle.iter().map(|idle| idle.since + IDLE).min();
                state.has_reaper = next.is_some();
                old
            };
            for idle in old {
                idle.session.quit().await;
            }
        }
    }
}

/// Lifetime of the answer "taken".
const TAKEN: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of the answer "refused".
const REFUSED: Duration = Duration::from_secs(3600);
/// Lifetime of the answer "not known", and pause of a next hop that could not be asked.
const NOT_KNOWN: Duration = Duration::from_secs(30);
/// About 30 MB with addresses of usual length.
const ANSWERS_MAX: usize = 100_000;
/// The reply for a refused address: with the next hop's enhanced code if it has one.
const HOPS_MAX: usize = 1000;
/// Concurrent questions to a next hop.
const AT_ONCE: usize = 4;
/// Askers of a next hop, most of them waiting. Further ones get "not known" at once.
const ASKING_MAX: usize = 200;
/// Idle time after which a session ends.
const IDLE: Duration = Duration::from_secs(5);
