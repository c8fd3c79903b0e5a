//! State of a site while mail for it waits: its connections, its failures, and when it is tried again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_spool::Lsn;
use tokio::time::Instant;

use super::backlog::Backlog;
use super::halves::Halves;
use super::idle::Idle;
use super::route::Manner;
use super::shape::{Alarm, Joined, OpenLimit, Permit, SiteLimits, Tokens, Waiter, check};
use super::source::Egress;
use super::standing::{FailingDials, Standing};
use crate::queue::ReadyId;
use posthaste_dns::Destination;

/// A set of mail hosts, by preference, and their port, as one source sees it.
pub(super) struct Site {
    pub source: Arc<Egress>,
    /// `10 mx1.example.org, 20 mx2.example.org`, and what is special to its [manner](Manner::text).
    pub name: Arc<str>,
    pub manner: Arc<Manner>,
    /// Shared with the sites of the same name that other sources see.
    pub failing_dials: FailingDials,
    state: Mutex<State>,
}

pub(super) struct State {
    /// The destination by the last answer of DNS.
    pub destination: Arc<Destination>,
    /// The ready queue that is served.
    pub ready: ReadyId,
    /// Tasks that have a connection, or try to.
    pub connections: usize,
    /// Connections among them that are being opened.
    pub connecting: usize,
    /// The kinds that its connections serve.
    pub halves: Halves,
    pub idle: Idle,
    pub standing: Standing,
    /// The most recipients that it has taken in one transaction before it said that these are too many.
    pub recipients_max: Option<usize>,
    /// It waits for a connection in the [crowd](super::crowd).
    pub is_in_crowd: bool,
    pub limits: Arc<SiteLimits>,
    pub joined: Joined,
    /// Limits of its addresses, if all were reached when it was to connect last.
    full: Vec<Arc<OpenLimit>>,
    /// It is woken when it may send a message, and when it may connect.
    pub waits_to_send: bool,
    pub waits_to_connect: bool,
    /// Number of times that a connection was lost while a message was on its way.
    lost: HashMap<Lsn, u32>,
    /// Messages over which a task has panicked.
    panicked: HashSet<Lsn>,
    /// Hosts that could not be reached, or broke a session off before anything came of it, until when the others come first.
    cut: HashMap<Arc<str>, Instant>,
    /// Work that its connections have taken.
    pub backlog: Backlog,
    /// When its limits held mail up last.
    limited: Option<Instant>,
    /// Another has taken its place: it ends behind the transactions under way.
    pub is_retired: bool,
}

/// By source and name.
pub(super) type SiteKey = (Arc<str>, Arc<str>);

/// The act for a site that has something to send.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Open one more connection, which is counted already.
    Connect(Admitted),
    /// Do nothing: a connection was woken, all are busy, a limit is reached, or the site pauses.
    Nothing,
}

/// A connection's part of the limits that it is counted for.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    pub permits: Vec<Permit>,
    /// Spent when it connects: looking up a name costs none.
    pub tokens: Tokens,
}

impl Site {
    pub fn new(
        source: Arc<Egress>,
        name: Arc<str>,
        manner: Arc<Manner>,
        destination: Arc<Destination>,
        ready: ReadyId,
        limits: Arc<SiteLimits>,
    ) -> Self {
        let state = State {
            destination,
            ready,
            connections: 0,
            connecting: 0,
            halves: Halves::default(),
            idle: Idle::default(),
            standing: Standing::default(),
            recipients_max: None,
            is_in_crowd: false,
            limits,
            joined: Joined::default(),
            full: Vec::new(),
            waits_to_send: false,
            waits_to_connect: false,
            lost: HashMap::new(),
            panicked: HashSet::new(),
            cut: HashMap::new(),
            backlog: Backlog::default(),
            limited: None,
            is_retired: false,
        };
        Site { source, name, manner, failing_dials: FailingDials::default(), state: Mutex::new(state) }
    }

    /// Beside sites of the same name.
    pub fn beside(self, failing_dials: FailingDials) -> Self {
        Site { failing_dials, ..self }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a site")
    }

    /// No other has it while this one is there.
    pub fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl State {
    /// Something waits: wakes an idle connection, or asks for one more.
    pub fn wanted(&mut self, site: &Arc<Site>, connections_max: usize, alarm: &Alarm) -> Wanted {
        if !self.may_send(site, alarm) {
            return Wanted::Nothing;
        }
        if self.idle.wake_latest() {
            return Wanted::Nothing;
        }
        self.grow(site, connections_max, alarm)
    }

    /// True if the limits of the site let one more message go. If not, it is woken later.
    pub fn may_send(&mut self, site: &Arc<Site>, alarm: &Alarm) -> bool {
        if self.limits.messages.is_empty() {
            return true;
        }
        let limits = self.limits.clone();
        let Err((limit, until)) = check(&limits.messages, alarm.now()) else { return true };
        self.set_limited();
        if !std::mem::replace(&mut self.waits_to_send, true) {
            limit.wait(alarm, Waiter::Message(Arc::downgrade(site)), until);
        }
        false
    }

    /// Takes a connection's part of the limits that the site shares. `None`: one is reached, and it is woken later.
    fn admit(&mut self, site: &Arc<Site>, alarm: &Alarm) -> Option<Admitted> {
        let (limits, now) = (self.limits.clone(), alarm.now());
        if let Err((limit, until)) = check(&limits.connecting, now) {
            if !std::mem::replace(&mut self.waits_to_connect, true) {
                limit.wait(alarm, Waiter::Connection(Arc::downgrade(site)), until);
            }
            return None;
        }
        match limits.permits() {
            // If another site was faster meanwhile, this one is looked at again each second.
            Ok(permits) => Tokens::try_reserve(&limits.connecting, now).map(|tokens| Admitted { permits, tokens }),
            Err(limit) => {
                limit.wait(site);
                None
            }
        }
    }

    /// One more connection if there may be one: none in a pause, only as many at once as there are already, and one probe behind a pause until something is
    /// accepted.
    pub fn grow(&mut self, site: &Arc<Site>, connections_max: usize, alarm: &Alarm) -> Wanted {
        if self.standing.is_paused(Instant::now()) {
            return Wanted::Nothing;
        }
        let most = if self.standing.is_probed() { 1 } else { connections_max.min(self.limits.connections) };
        let established = self.connections - self.connecting;
        if self.connections >= most || self.connecting > established {
            if self.limits.says_connections && self.connections >= self.limits.connections {
                self.set_limited();
            }
            return Wanted::Nothing;
        }
        // A connection that finds no address would set its token aside in vain.
        if self.is_full(site) {
            self.set_limited();
            return Wanted::Nothing;
        }
        let admitted = match self.limits.shares_connections() {
            true => match self.admit(site, alarm) {
                Some(admitted) => admitted,
                None => {
                    self.set_limited();
                    return Wanted::Nothing;
                }
            },
            false => Admitted::default(),
        };
        self.connections += 1;
        self.connecting += 1;
        Wanted::Connect(admitted)
    }

    /// Notes that mail waits because of its limits.
    pub fn set_limited(&mut self) {
        self.limited = Some(Instant::now());
    }

    /// True if its limits have held mail up lately: then it is no fault of the relay that it waits.
    pub fn is_limited(&self, now: Instant) -> bool {
        self.limited.is_some_and(|at| now.saturating_duration_since(at) < LIMITED)
    }

    /// All addresses of its hosts have as many connections as they may have: it waits until one ends.
    pub fn set_full(&mut self, limits: Vec<Arc<OpenLimit>>) {
        self.full = limits;
    }

    fn is_full(&mut self, site: &Arc<Site>) -> bool {
        let most = self.limits.connections_per_address.unwrap_or(u32::MAX);
        if self.full.iter().any(|limit| limit.count() < most) {
            self.full.clear();
        }
        self.full.iter().for_each(|limit| limit.wait(site));
        !self.full.is_empty()
    }

    /// True if it has paused, long ago, and nobody has tried since.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        self.connections == 0 && self.standing.is_forgotten(now)
    }

    /// A session is open, which says nothing yet of whether it takes mail.
    pub fn reached(&mut self) {
        self.connecting -= 1;
    }

    /// A connection has ended. `was_open`: it had been [reached](Self::reached).
    pub fn ended(&mut self, was_open: bool) {
        self.connections -= 1;
        self.connecting -= usize::from(!was_open);
    }

    /// A task has panicked over a message: true if it is the first time.
    pub fn panicked(&mut self, message: Lsn) -> bool {
        if self.panicked.len() >= LOST_MAX {
            self.panicked.clear();
        }
        self.panicked.insert(message)
    }

    /// A connection was lost with a message on its way: how often by now.
    pub fn lost(&mut self, message: Lsn) -> u32 {
        if self.lost.len() >= LOST_MAX {
            self.lost.clear();
        }
        let count = self.lost.entry(message).or_default();
        *count += 1;
        *count
    }

    /// A host could not be reached, or has broken a session off: until then the others come first, so that not each connection begins with a dead host, and the
    /// message is not lost there again and again.
    pub fn cut_by(&mut self, host: &Arc<str>, until: Instant) {
        if self.cut.len() >= CUT_MAX {
            self.cut.clear();
        }
        self.cut.insert(host.clone(), until);
    }

    pub fn has_cut(&self, host: &str, now: Instant) -> bool {
        self.cut.get(host).is_some_and(|until| *until > now)
    }

    pub fn not_lost(&mut self, message: Lsn) {
        if !self.lost.is_empty() {
            self.lost.remove(&message);
        }
    }
}

/// A limit that has held mail up counts for so long: what waited for it is taken meanwhile.
const LIMITED: Duration = Duration::from_secs(10);
const LOST_MAX: usize = 10_000;
/// Hosts of a site.
const CUT_MAX: usize = 1000;
