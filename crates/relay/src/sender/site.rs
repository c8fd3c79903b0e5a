//! State of a site while mail for it waits: connections, failures, next try.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use posthaste_spool::Lsn;
use tokio::time::Instant;

use super::alarm;
use super::backlog::Backlog;
use super::connection_sharing::{self, ConnectionSharing, Place};
use super::idle::Idle;
use super::route::Manner;
use super::source::Egress;
use super::standing::{FailingDials, Standing};
use posthaste_dns::MailDestination;
use posthaste_queue::{Parked, ReadyId, ServedKinds};
use posthaste_shaping::limits::{self, JoinedSections, LimitTokens, OpenPermit, check};

/// A set of mail hosts, by preference, and their port, as seen from one source.
pub(super) struct Site {
    pub source: Arc<Egress>,
    /// `10 mx1.example.org, 20 mx2.example.org`, and the suffix of its [transport settings](Manner::text).
    pub name: Arc<str>,
    pub manner: Arc<Manner>,
    /// Shared with the sites of the same name under other sources.
    pub failing_dials: FailingDials,
    state: Mutex<State>,
}

pub(super) struct State {
    /// The destination by the last DNS answer.
    pub destination: Arc<MailDestination>,
    /// Its ready queue.
    pub ready: ReadyId,
    /// Tasks that have a connection, or try to get one.
    pub connections: usize,
    /// Connections still opening among them.
    pub connecting: usize,
    /// Kinds of messages that its connections serve.
    pub served: ServedKinds,
    pub idle: Idle,
    pub standing: Standing,
    /// Maximum recipients that it accepted in one transaction before refusing more.
    pub recipients_max: Option<usize>,
    /// Its place in the queue of [connection sharing](super::connection_sharing), while it waits there.
    pub place: Option<Place>,
    pub limits: Arc<SiteLimits>,
    pub joined: JoinedSections,
    /// Limits of its addresses, if all were reached at the last try to connect.
    full: Vec<Arc<OpenLimit>>,
    /// Wake-ups for sending a message, and for connecting.
    pub waits_to_send: bool,
    pub waits_to_connect: bool,
    /// Connections lost with each message in flight.
    lost: HashMap<Lsn, u32>,
    /// Messages whose sending made a task panic.
    panicked: HashSet<Lsn>,
    /// Hosts that were unreachable, or ended a session too early, with the time until which the others take precedence.
    cut: HashMap<Arc<str>, Instant>,
    /// Recent work of its connections.
    pub backlog: Backlog,
    /// Last time when its limits delayed mail.
    limited: Option<Instant>,
    /// True if another site has replaced it: it ends after its transactions in flight.
    pub is_retired: bool,
}

/// Limits in force, and waiters for them.
pub(super) type Shaper = limits::Shaper<Waiter, Site>;
pub(super) type SiteLimits = limits::SiteLimits<Waiter, Site>;
pub(super) type RateLimit = limits::RateLimit<Waiter>;
pub(super) type OpenLimit = limits::OpenLimit<Site>;
pub(super) type Permit = OpenPermit<Site>;
pub(super) type Tokens = LimitTokens<Waiter>;
pub(super) type Alarm = alarm::Alarm<Waiter>;

/// The connections of all sites together.
pub(super) type Sharing = ConnectionSharing<Site>;
pub(super) type Share = connection_sharing::Share<Site>;
pub(super) type GivesWay = connection_sharing::GivesWay<Site>;

/// The waiter that is woken when a limit allows more.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A site with mail to send.
    Message(Weak<Site>),
    /// A site that needs one more connection.
    Connection(Weak<Site>),
    /// A site whose turn it is at a limit of open connections.
    InTurn(Weak<Site>),
    /// Mail that the queue has parked.
    Parked(Parked),
}

/// Source and name.
pub(super) type SiteKey = (Arc<str>, Arc<str>);

/// Next step for a site that has something to send.
pub(super) enum Wanted {
    /// Open one more connection, already counted.
    Connect(Admitted),
    /// Do nothing: a connection was woken, all are busy, a limit is reached, or the site pauses.
    Nothing,
}

/// Permissions for one more connection.
pub(super) struct Admitted {
    /// Its share of all connections.
    pub share: Share,
    /// Its shares of limits.
    pub permits: Vec<Permit>,
    /// Spent when connecting: a look-up of a name costs none.
    pub tokens: Tokens,
}

impl Site {
    pub fn new(
        source: Arc<Egress>,
        name: Arc<str>,
        manner: Arc<Manner>,
        destination: Arc<MailDestination>,
        ready: ReadyId,
        limits: Arc<SiteLimits>,
    ) -> Self {
        let state = State {
            destination,
            ready,
            connections: 0,
            connecting: 0,
            served: ServedKinds::default(),
            idle: Idle::default(),
            standing: Standing::default(),
            recipients_max: None,
            place: None,
            limits,
            joined: JoinedSections::default(),
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

    /// Shares the count of failed connections with sites of the same name.
    pub fn beside(self, failing_dials: FailingDials) -> Self {
        Site { failing_dials, ..self }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a site")
    }

    pub fn key(&self) -> SiteKey {
        (self.source.name().clone(), self.name.clone())
    }

    /// True if it has this source and these settings.
    pub fn is_of(&self, source: &Arc<Egress>, manner: &Manner) -> bool {
        Arc::ptr_eq(&self.source, source) && self.manner.is_as(manner)
    }

    /// An identity, unique during its lifetime; limits of connections use it, too.
    pub fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl State {
    /// Wakes an idle connection for waiting mail, or asks for one more.
    pub fn wanted(
        &mut self,
        site: &Arc<Site>,
        alarm: &Alarm,
        share: impl FnOnce(&mut Self) -> Option<Share>,
    ) -> Wanted {
        if !self.may_send(site, alarm) {
            return Wanted::Nothing;
        }
        if self.idle.wake_latest() {
            return Wanted::Nothing;
        }
        self.grow(site, alarm, share)
    }

    /// True if the limits of the site allow one more message. If not, it is woken later.
    pub fn may_send(&mut self, site: &Arc<Site>, alarm: &Alarm) -> bool {
        if self.limits.messages.is_empty() {
            return true;
        }
        let limits = self.limits.clone();
        let Err((limit, until)) = check(&limits.messages, alarm.now()) else { return true };
        self.set_limited();
        if !std::mem::replace(&mut self.waits_to_send, true) {
            alarm.wait(limit, Waiter::Message(Arc::downgrade(site)), until);
        }
        false
    }

    /// Takes a connection's share of the limits. `None`: one is reached, and the site is woken later.
    fn admit(&mut self, site: &Arc<Site>, alarm: &Alarm) -> Option<(Vec<Permit>, Tokens)> {
        let limits = self.limits.clone();
        let now = alarm.now();
        if let Err((limit, until)) = check(&limits.connecting, now) {
            if !std::mem::replace(&mut self.waits_to_connect, true) {
                alarm.wait(limit, Waiter::Connection(Arc::downgrade(site)), until);
            }
            return None;
        }
        match limits.permits() {
            Ok(permits) => match Tokens::try_reserve(&limits.connecting, now) {
                Some(tokens) => Some((permits, tokens)),
                // Another site was faster: this one is checked again each second.
                None => {
                    wake_in_turn(alarm, &limits::end_all(permits));
                    None
                }
            },
            Err(refused) => {
                refused.limit.wait(site);
                wake_in_turn(alarm, &refused.next);
                None
            }
        }
    }

    /// Takes a share of all connections for one more; without one for its first, the site is queued.
    pub fn share(&mut self, site: &Arc<Site>, sharing: &Arc<Sharing>) -> Option<Share> {
        sharing.take(site, self.connections, &mut self.place)
    }

    /// Asks for one more connection, if allowed. None in a pause; otherwise at most as many new ones as exist; after a
    /// pause a single probe, until something is accepted. `share` is called once the site itself allows it; shared
    /// limits are last, as a refusal there queues the site.
    pub fn grow(&mut self, site: &Arc<Site>, alarm: &Alarm, share: impl FnOnce(&mut Self) -> Option<Share>) -> Wanted {
        if self.standing.is_paused(Instant::now()) {
            return Wanted::Nothing;
        }
        let most = if self.standing.is_probed() { 1 } else { self.limits.connections };
        let established = self.connections - self.connecting;
        if self.connections >= most || self.connecting > established {
            if self.limits.says_connections && self.connections >= self.limits.connections {
                self.set_limited();
            }
            return Wanted::Nothing;
        }
        // A connection that finds no address would reserve its token for nothing.
        if self.is_full(site) {
            self.set_limited();
            return Wanted::Nothing;
        }
        let Some(share) = share(self) else { return Wanted::Nothing };
        let admitted =
            if self.limits.shares_connections() { self.admit(site, alarm) } else { Some(Default::default()) };
        let Some((permits, tokens)) = admitted else {
            self.set_limited();
            return Wanted::Nothing;
        };
        self.connections += 1;
        self.connecting += 1;
        Wanted::Connect(Admitted { share, permits, tokens })
    }

    /// Notes that its limits delay mail.
    pub fn set_limited(&mut self) {
        self.limited = Some(Instant::now());
    }

    /// True if its limits delayed mail lately: then the wait is not the relay's fault.
    pub fn is_limited(&self, now: Instant) -> bool {
        self.limited.is_some_and(|at| now.saturating_duration_since(at) < LIMITED)
    }

    /// Waits for one of these limits: all addresses of its hosts are at their limits.
    pub fn set_full(&mut self, limits: Vec<Arc<OpenLimit>>) {
        self.full = limits;
    }

    /// Ends all waiting for connections: others keep the site in memory, and end connections for it.
    pub fn leave_queues(&mut self, site: &Site, sharing: &Sharing) {
        self.place.take().into_iter().for_each(|place| sharing.leave(place));
        let limits = self.limits.open.iter().map(|(limit, _)| limit);
        limits.chain(&self.full).for_each(|limit| limit.leave(site.number()));
    }

    fn is_full(&mut self, site: &Arc<Site>) -> bool {
        let most = self.limits.connections_per_address.unwrap_or(u32::MAX);
        if self.full.iter().any(|limit| limit.count() < most) {
            self.full.clear();
        }
        self.full.iter().for_each(|limit| limit.wait(site));
        !self.full.is_empty()
    }

    /// True if it paused long ago, without a try since.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        self.connections == 0 && self.standing.is_forgotten(now)
    }

    /// Notes an open session: the host answers, but has not accepted mail yet.
    pub fn reached(&mut self) {
        self.connecting -= 1;
    }

    /// Notes the end of a connection. `was_open`: it had been [reached](Self::reached).
    pub fn ended(&mut self, was_open: bool) {
        self.connections -= 1;
        self.connecting -= usize::from(!was_open);
    }

    /// Notes a panic while sending a message; true for the first.
    pub fn panicked(&mut self, message: Lsn) -> bool {
        if self.panicked.len() >= LOST_MAX {
            self.panicked.clear();
        }
        self.panicked.insert(message)
    }

    /// Notes a connection lost with a message in flight; returns the number of losses.
    pub fn lost(&mut self, message: Lsn) -> u32 {
        if self.lost.len() >= LOST_MAX {
            self.lost.clear();
        }
        let count = self.lost.entry(message).or_default();
        *count += 1;
        *count
    }

    /// Moves a host to the end until a time: it was unreachable, or ended a session early. So connections do not all
    /// begin with a dead host, and the message is not lost there repeatedly.
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

/// Serves the sites that waited for the permits of another site.
fn wake_in_turn(alarm: &Alarm, sites: &[Arc<Site>]) {
    if !sites.is_empty() {
        alarm.wake(sites.iter().map(|site| Waiter::InTurn(Arc::downgrade(site))));
    }
}

/// A limit that delayed mail counts this long: its backlog drains meanwhile.
const LIMITED: Duration = Duration::from_secs(10);
const LOST_MAX: usize = 10_000;
/// Maximum hosts noted.
const CUT_MAX: usize = 1000;
