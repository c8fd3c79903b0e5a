//! One try of all hosts of a site, by preference, until a session with one of them works.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use posthaste_random::Random;
use posthaste_smtp::Reply;
use posthaste_smtp::client::Step;
use posthaste_watch::Worker;
use tokio::time::{Instant, timeout};

use super::connection::{Counted, Served, open};
use super::dial::permit_dial;
use super::ended::end_refused;
use super::last_words::LastWords;
use super::reroute::{split_by_next_hop, suspend_source};
use super::reuse::{Key, ReusedSession};
use super::session_settings::{DemandingHost, demand_of, observe_tls_failure, settings_of};
use super::shaping::address_permit;
use super::shared::Shared;
use super::site::{Admitted, OpenLimit, Site, Tokens};
use super::status::{ReplyPlace, reply_for, status_of};
use super::suppress::has_unsuppressed;
use crate::session::{Endpoint, STEPS, SessionOpenError, steps};
use posthaste_dns::{Addresses, Attempt, DnsError, MailHost, Resolver};
use posthaste_queue::{AttemptOutcome, Prefer, Take};

/// Starts the task of a connection that its site has already counted. See [`Shared::start_connection`].
pub(super) fn start(shared: &Arc<Shared>, site: &Arc<Site>, admitted: Admitted, seed: u64) {
    shared.runtime.spawn(connect(shared.clone(), site.clone(), admitted, seed));
}

/// Sends the waiting mail of a site.
async fn connect(shared: Arc<Shared>, site: Arc<Site>, admitted: Admitted, seed: u64) {
    let Admitted { share, permits, tokens } = admitted;
    let counted = Counted::new(shared.clone(), site.clone(), share, permits);
    if shared.config.bounces.suppressed().is_some() {
        let asking = shared.clone();
        let of = site.clone();
        let has_more = tokio::task::spawn_blocking(move || has_unsuppressed(&asking, &of)).await;
        if matches!(has_more, Ok(false)) {
            return;
        }
    }
    let mut round = Round::new(counted, tokens, seed);
    loop {
        let next = round.next_host().await;
        match next {
            Ok(Some((host, addresses))) => {
                if round.try_host(&host, &addresses).await.is_break() {
                    return;
                }
            }
            Ok(None) => return round.no_more(),
            Err(DnsError::Unanswered { name, why }) => {
                return round.counted.failed(&format!("DNS: {name}: {why}"), round.was_tried);
            }
            Err(failed) => return give_up(&shared, &site, ReplyPlace::of(&Arc::default()), &reply_for(&failed)),
        }
    }
}

struct Round {
    counted: Counted,
    attempt: Attempt,
    resolver: Arc<Resolver>,
    random: Random,
    worker: Worker,
    /// Tokens of the first connection.
    tokens: Option<Tokens>,
    /// Hosts that ended sessions early in the recent past: tried after the others.
    put_off: VecDeque<(MailHost, Addresses)>,
    words: LastWords,
    /// Set while all tried hosts have said that they take no mail (RFC 7504).
    takes_none: TakesNone,
    /// Addresses with all connections in use.
    full: Vec<Arc<OpenLimit>>,
    /// True if any connection was attempted.
    was_tried: bool,
    /// True if a host has refused our login permanently.
    is_login_refused: bool,
    /// True if a host was tried without success.
    has_dead: bool,
}

impl Round {
    fn new(counted: Counted, tokens: Tokens, seed: u64) -> Self {
        let shared = &counted.shared;
        let site = &counted.site;
        let mut random = Random::new(seed);
        let destination = site.state().destination.clone();
        let name = format!("site {} from {}", shortened(&site.name), site.source.name());
        Round {
            attempt: Attempt::new(destination, site.manner.port, &mut random),
            resolver: shared.routes.resolver(),
            worker: shared.watch.worker(name, STEPS, PATIENCE),
            random,
            tokens: Some(tokens),
            put_off: VecDeque::new(),
            words: LastWords::default(),
            takes_none: TakesNone::NotAsked,
            full: Vec::new(),
            was_tried: false,
            is_login_refused: false,
            has_dead: false,
            counted,
        }
    }

    /// The next host to try; `None` after the last.
    async fn next_host(&mut self) -> Result<Option<(MailHost, Addresses)>, DnsError> {
        loop {
            self.worker.pulse().step(steps::LOOKING_UP);
            let mut found = std::pin::pin!(self.attempt.next(&self.resolver));
            let found = match timeout(TOKENS_PATIENCE, found.as_mut()).await {
                Ok(found) => found,
                Err(_) => {
                    // Sites that share the limits may connect meanwhile.
                    self.tokens = None;
                    found.await
                }
            };
            return match found {
                Ok(Some(next)) if self.counted.site.state().has_cut(&next.0.name, Instant::now()) => {
                    self.put_off.push_back(next);
                    continue;
                }
                Ok(Some(next)) => Ok(Some(next)),
                end => self.put_off.pop_front().map_or(end, |next| Ok(Some(next))),
            };
        }
    }

    /// Tries the addresses of a host. Breaks once the connection has been served.
    async fn try_host(&mut self, host: &MailHost, addresses: &Addresses) -> ControlFlow<()> {
        let shared = self.counted.shared.clone();
        let demanding = match demand_of(&shared, &self.counted.site.manner, host, addresses).await {
            Ok(demanding) => demanding,
            Err(error) => {
                // Not in the clear either: an attacker who forges these records may be on the path.
                let counted = shared.sites.tls_counts.count_unanswered();
                observe_tls_failure(&shared, &self.counted.site, &host.name, counted, &error.to_string());
                self.words.put(&host.name, format!("{}: {error}", host.name));
                self.takes_none = TakesNone::No;
                return ControlFlow::Continue(());
            }
        };
        let mut was_dialed = false;
        for address in addresses.order(&mut self.random) {
            was_dialed |= self.try_address(&demanding, address).await?;
        }
        if was_dialed {
            // The next connections begin with the other hosts.
            let pause = Duration::from_secs(self.counted.shared.config.site_pause_secs.into());
            self.counted.site.state().cut_by(&host.name, Instant::now() + pause);
            self.has_dead = true;
        }
        ControlFlow::Continue(())
    }

    /// Tries one address. Continues with true if it was connected to in vain.
    async fn try_address(&mut self, demanding: &DemandingHost<'_>, address: IpAddr) -> ControlFlow<(), bool> {
        let host = demanding.host;
        let shared = self.counted.shared.clone();
        let site = self.counted.site.clone();
        // Each address of a name counts as a separate host.
        let who: Arc<str> = format!("{} ({address})", host.name).into();
        let Some(local) = site.source.local(address) else {
            self.words.put(&who, format!("{who}: the source has no address of this family"));
            return ControlFlow::Continue(false);
        };
        let at = SocketAddr::from((address, site.manner.port));
        let endpoint = Endpoint::Tcp(at);
        let settings = settings_of(&shared, &site, demanding, &endpoint, local, self.worker.pulse());
        let mut settings = match settings {
            Ok(settings) => settings,
            Err(failed) => {
                self.words.put(&who, format!("{who}: {failed}"));
                self.takes_none = TakesNone::No;
                return ControlFlow::Continue(false);
            }
        };
        let what = format!("session to {} at {at}", host.name);
        self.take_over(host, Key::of(&site.source, at, &settings), &what).await?;
        match address_permit(&shared, &site, address) {
            Ok(permit) => self.counted.address = permit,
            Err(limit) => {
                self.full.push(limit);
                return ControlFlow::Continue(false);
            }
        }
        let Some(permit) = permit_dial(&shared, &site, self.tokens.take()).await else { return ControlFlow::Break(()) };
        self.was_tried = true;
        self.worker.within(what);
        let opened = open(&shared, &site, host, &endpoint, &mut settings, permit).await;
        match self.counted.serve_opened(opened, host, &endpoint, &mut settings, self.worker.pulse()).await {
            Ok(Served::Done) => {
                if self.has_dead {
                    site.state().standing.other_host_worked();
                }
                return ControlFlow::Break(());
            }
            Ok(Served::Useless(why) | Served::UselessTls(why)) => {
                self.words.put(&who, format!("{who}: {why}"));
                self.takes_none = TakesNone::No;
            }
            Err(SessionOpenError::Source(failed)) => {
                suspend_source(&shared, &site.source, &failed);
                return ControlFlow::Break(());
            }
            Err(failed) => {
                split_by_next_hop(&shared, &site, host);
                self.words.put(&who, format!("{who}: {failed}"));
                self.takes_none.note(&host.name, &failed);
                if let Some((step, reply)) = failed.last_words() {
                    self.is_login_refused |= step == Step::Auth && reply.code() >= 500;
                }
            }
        }
        self.counted.leave_address();
        ControlFlow::Continue(true)
    }

    /// Serves the site with an idle session of a matching site, if any.
    async fn take_over(&mut self, host: &MailHost, key: Key, what: &str) -> ControlFlow<()> {
        let shared = self.counted.shared.clone();
        let site = self.counted.site.clone();
        // The wait for another site or a limit may be long: the task is not stuck.
        self.worker.pulse().step(0);
        let Some(ReusedSession { session, permit }) =
            shared.sites.reuse.take_over(&shared.shaper, &site, &key, self.worker.pulse()).await
        else {
            return ControlFlow::Continue(());
        };
        self.tokens = None;
        self.worker.within(what);
        self.counted.address = permit;
        match self.counted.serve(host, session, key, self.worker.pulse(), None).await {
            Served::Done => return ControlFlow::Break(()),
            // The session may have been closed for its age, which says nothing about the host.
            Served::Useless(why) | Served::UselessTls(why) => {
                self.words.put(&host.name, format!("{}: {why}", host.name))
            }
        }
        self.counted.leave_address();
        self.worker.pulse().step(0);
        ControlFlow::Continue(())
    }

    /// Ends the round without a working host.
    fn no_more(self) {
        let Round { counted, attempt, words, takes_none, full, was_tried, is_login_refused, .. } = self;
        if !was_tried && !full.is_empty() {
            // No connection is possible before one of these limits has room.
            return counted.site.state().set_full(full);
        }
        if let (TakesNone::Yes(host, reply), true, false) = (takes_none, full.is_empty(), attempt.has_unanswered()) {
            let place = ReplyPlace { host: &host, stage: Step::Greeting.name() };
            return give_up(&counted.shared, &counted.site, place, &reply);
        }
        // Providers lock accounts after a few wrong passwords: the first one begins a pause.
        counted.failed(&words.to_string(), was_tried && !is_login_refused);
    }
}

/// Fails all waiting mail: no host of the site takes mail, and none will.
fn give_up(shared: &Arc<Shared>, site: &Site, place: ReplyPlace<'_>, reply: &Reply) {
    let ready = site.state().ready;
    let take = Take { prefer: Prefer::First, recipients_max: shared.config.recipients_max, across_domains: true };
    // The remaining mail follows at the next check of the site.
    while shared.outcomes.recorder.budget.may_begin() {
        let next = shared.queue().next(ready, take);
        let Some(transaction) = next else { return };
        let outcome = AttemptOutcome::Failed(status_of(reply));
        end_refused(shared, &transaction, outcome, reply.clone(), place);
    }
}

/// All hosts of a site have said that they accept no mail at all: 521 in the greeting (RFC 7504 section 3).
enum TakesNone {
    NotAsked,
    /// All hosts so far: the last of them, and its reply.
    Yes(Arc<str>, Reply),
    No,
}

impl TakesNone {
    fn note(&mut self, host: &Arc<str>, failed: &SessionOpenError) {
        *self = match (failed.last_words(), &self) {
            (Some((Step::Greeting, reply)), Self::NotAsked | Self::Yes(..)) if reply.code() == 521 => {
                Self::Yes(host.clone(), (**reply).clone())
            }
            _ => Self::No,
        };
    }
}

/// The name of a site, cut for a log line.
fn shortened(site: &str) -> &str {
    &site[..site.floor_char_boundary(SITE_BYTES_MAX)]
}

/// Longest time for which a look-up keeps its connection's token reserved.
const TOKENS_PATIENCE: Duration = Duration::from_secs(1);
/// Time in one step after which a connection is reported as stuck.
const PATIENCE: Duration = Duration::from_secs(300);
const SITE_BYTES_MAX: usize = 200;
