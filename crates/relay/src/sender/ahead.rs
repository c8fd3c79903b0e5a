//! Call-ahead: RCPT asks the next hop whether it takes mail for an address, for domains whose recipients only it knows.
//!
//! Answers are cached, at most [`ANSWERS_MAX`], for [`TAKEN`], [`REFUSED`] or [`NOT_KNOWN`]. Concurrent questions for
//! one address share one answer. A next hop gets [`AT_ONCE`] questions at a time; its sessions are reused until idle
//! for [`IDLE`]. A next hop that cannot be asked is left alone for [`NOT_KNOWN`]; questions meanwhile get "not known"
//! at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_message::address::Address;
use posthaste_random::{Random, mix};
use posthaste_smtp::client::Step;
use posthaste_smtp::{RcptTo, Reply, ShortReply};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::Relay;
use super::connection::settings_for;
use super::route_table::Plan;
use super::shared::Shared;
use super::source::Egress;
use crate::session::{Endpoint, Loss, OpenError, Session, Settings, Verdict};
use posthaste_dns::{Attempt, Cache};
use posthaste_queue::{EntryText, QueueName};

/// Result of a call-ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ahead {
    /// The next hop takes mail for it.
    Taken,
    /// It takes none: the reply to give, 550.
    Refused(Reply),
    /// It cannot be asked now, or does not know either: the reason.
    NotKnown(Arc<str>),
}

impl Relay {
    /// Asks the next hop for an address, as for mail without a tenant, whether it takes it. Answers within half a
    /// minute. Dropping the future ends the question.
    pub async fn ask_ahead(&self, address: &Address) -> Ahead {
        /// Aborts its task with the asker, so that there are no more questions than sessions.
        struct Asking(JoinHandle<Ahead>);
        impl Drop for Asking {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let shared = self.0.shared.clone();
        let mut asking = Asking(self.0.shared.runtime.spawn(shared.ask_ahead(address.clone())));
        (&mut asking.0).await.unwrap_or_else(|_| Ahead::NotKnown("the server ends".into()))
    }
}

/// Cached answers, and the next hops with their sessions.
pub(super) struct CallAhead {
    answers: Mutex<Arc<Cache<Ahead>>>,
    /// By site name.
    hops: Mutex<HashMap<Arc<str>, Arc<Hop>>>,
    serial: AtomicU64,
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
    /// Forgets answers and next hops: others may be responsible now.
    pub fn forget(&self) {
        *self.answers.lock().expect("the answers") = Arc::new(Cache::new(ANSWERS_MAX));
        self.hops.lock().expect("the hops").clear();
    }

    fn hop(&self, site: &Arc<str>) -> Arc<Hop> {
        let mut hops = self.hops.lock().expect("the hops");
        if hops.len() >= HOPS_MAX && !hops.contains_key(site) {
            hops.retain(|_, hop| Arc::strong_count(hop) > 1);
        }
        hops.entry(site.clone()).or_default().clone()
    }
}

/// A next hop.
struct Hop {
    turns: Semaphore,
    /// Askers, waiting ones included.
    asking: AtomicUsize,
    state: Mutex<HopState>,
}

#[derive(Default)]
struct HopState {
    idle: Vec<IdleSession>,
    /// A task ends sessions that are idle for too long.
    has_reaper: bool,
    /// End of the pause, and its reason.
    failed: Option<(Instant, Arc<str>)>,
}

/// A session for the next question.
struct IdleSession {
    session: Session,
    /// The session's host.
    host: Arc<str>,
    source: Arc<Egress>,
    since: Instant,
}

/// The host of a session, and the source that it is opened from.
struct Asked<'a> {
    plan: &'a Plan,
    source: &'a Arc<Egress>,
    host: &'a Arc<str>,
}

impl Default for Hop {
    fn default() -> Self {
        Hop { turns: Semaphore::new(AT_ONCE), asking: AtomicUsize::new(0), state: Mutex::default() }
    }
}

/// Counts one asker until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hop {
    fn state(&self) -> MutexGuard<'_, HopState> {
        self.state.lock().expect("a next hop")
    }

    fn count(&self) -> Option<Counted<'_>> {
        let counted = Counted(&self.asking);
        (self.asking.fetch_add(1, Ordering::Relaxed) < ASKING_MAX).then_some(counted)
    }

    /// The answer during a pause, if there is one.
    fn trouble(&self) -> Option<Ahead> {
        let state = self.state();
        let (until, why) = state.failed.as_ref()?;
        (*until > Instant::now()).then(|| Ahead::NotKnown(why.clone()))
    }

    fn failed(&self, why: &str) -> Ahead {
        let why: Arc<str> = EntryText::from(why).into();
        self.state().failed = Some((Instant::now() + NOT_KNOWN, why.clone()));
        Ahead::NotKnown(why)
    }

    fn take(&self) -> Option<IdleSession> {
        self.state().idle.pop()
    }

    /// Keeps a session for the next question.
    fn put(self: &Arc<Self>, session: Session, asked: &Asked<'_>, runtime: &Handle) {
        if !session.is_open() {
            runtime.spawn(session.quit());
            return;
        }
        let (host, source) = (asked.host.clone(), asked.source.clone());
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

impl Shared {
    async fn ask_ahead(self: Arc<Self>, address: Address) -> Ahead {
        let domain = address.domain().to_string().to_lowercase();
        let name = format!("{}@{domain}", address.local_part());
        let answers = self.ahead.answers.lock().expect("the answers").clone();
        let look_up = async {
            let answer = self.ask(&domain, &address).await;
            let kept = match &answer {
                Ahead::Taken => TAKEN,
                Ahead::Refused(_) => REFUSED,
                Ahead::NotKnown(_) => NOT_KNOWN,
            };
            (answer, Instant::now() + kept)
        };
        answers.get(&name, Instant::now(), look_up).await
    }

    async fn ask(self: &Arc<Self>, domain: &str, address: &Address) -> Ahead {
        let name = QueueName { tenant: "".into(), campaign: "".into(), domain: domain.into(), pool: "".into() };
        let plan = match Plan::usual(&self.routes, &name).await {
            Ok(plan) => plan,
            Err(error) => return Ahead::NotKnown(error.to_string().into()),
        };
        let hop = self.ahead.hop(&plan.name);
        if let Some(trouble) = hop.trouble() {
            return trouble;
        }
        let Some(_counted) = hop.count() else { return Ahead::NotKnown("too many ask it at once".into()) };
        let Ok(Ok(_turn)) = timeout(TURN_PATIENCE, hop.turns.acquire()).await else {
            return Ahead::NotKnown("too many ask it at once".into());
        };
        // Another asker may have found a failure meanwhile.
        if let Some(trouble) = hop.trouble() {
            return trouble;
        }
        let address = self.generic().and_then(|generic| generic.address(address)).unwrap_or_else(|| address.clone());
        let recipient = RcptTo::new(address);
        match timeout(ANSWER_PATIENCE, self.ask_hosts(&plan, &hop, &recipient)).await {
            Ok(Ok(Verdict::Taken)) => Ahead::Taken,
            Ok(Ok(Verdict::Refused(reply))) => Ahead::Refused(refusal(&reply)),
            Ok(Ok(Verdict::NotKnown(reply))) => Ahead::NotKnown(cleaned(&reply.to_string()).into()),
            Ok(Err(why)) => hop.failed(&why),
            Err(_) => hop.failed(&format!("no answer within {} s", ANSWER_PATIENCE.as_secs())),
        }
    }

    /// # Errors
    /// No host could be asked: the error of the last.
    async fn ask_hosts(self: &Arc<Self>, plan: &Plan, hop: &Arc<Hop>, recipient: &RcptTo) -> Result<Verdict, String> {
        // A session that was closed meanwhile says nothing of its host.
        while let Some(IdleSession { mut session, host, source, .. }) = hop.take() {
            let asked = Asked { plan, source: &source, host: &host };
            if let Ok(verdict) = self.verify(&mut session, &asked, recipient).await {
                hop.put(session, &asked, &self.runtime);
                return Ok(verdict);
            }
        }
        let source = plan.members.iter().map(|(egress, _)| egress).find(|egress| egress.is_usable());
        let source = source.ok_or("no source can be used")?;
        let mut random = Random::new(mix(self.seed ^ mix(self.ahead.serial.fetch_add(1, Ordering::Relaxed))));
        let resolver = self.routes.resolver();
        let mut attempt = Attempt::new(plan.destination.clone(), plan.manner.port, &mut random);
        let mut error = String::from("it has no host");
        while let Some((host, addresses)) = attempt.next(&resolver).await.map_err(|error| error.to_string())? {
            let asked = Asked { plan, source, host: &host.name };
            let demanding = match self.demand_of(&plan.manner, &host, &addresses).await {
                Ok(demanding) => demanding,
                Err(failed) => {
                    error = format!("{}: {failed}", host.name);
                    continue;
                }
            };
            for address in addresses.order(&mut random) {
                let said = |what: &dyn std::fmt::Display| format!("{} ({address}): {what}", host.name);
                let Some(local) = source.local(address) else {
                    error = said(&"the source has no address of this family");
                    continue;
                };
                let endpoint = Endpoint::Tcp((address, plan.manner.port).into());
                let settings = settings_for(self, source, &plan.manner, &demanding, &endpoint, local);
                match self.ask_host(&asked, hop, &endpoint, settings, recipient).await {
                    Ok(verdict) => return Ok(verdict),
                    Err(failed) => error = said(&failed),
                }
            }
        }
        Err(error)
    }

    /// # Errors
    /// The host gave no answer.
    async fn ask_host(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        hop: &Arc<Hop>,
        endpoint: &Endpoint,
        settings: Result<Settings, OpenError>,
        recipient: &RcptTo,
    ) -> Result<Verdict, OpenError> {
        let mut settings = settings?;
        // Leaves time to ask another host.
        settings.timeouts.connect = settings.timeouts.connect.min(CONNECT_PATIENCE);
        let may_retry_in_clear = settings.is_opportunistic();
        loop {
            let mut session = match self.open_to_ask(asked, endpoint, &settings).await {
                Err(error) if error.may_retry_in_clear() => {
                    self.tls_failed(asked.host, &error.to_string());
                    settings.tls = None;
                    self.open_to_ask(asked, endpoint, &settings).await?
                }
                opened => opened?,
            };
            match self.verify(&mut session, asked, recipient).await {
                Ok(verdict) => {
                    hop.put(session, asked, &self.runtime);
                    return Ok(verdict);
                }
                Err(loss) if session.is_useless_tls(&loss) && may_retry_in_clear => {
                    self.tls_failed(asked.host, &loss.to_string());
                    settings.tls = None;
                }
                Err(loss) => return Err(loss.into()),
            }
        }
    }

    /// Opens a session for a question. A reply that ends it is reported, here and in [`verify`](Self::verify).
    async fn open_to_ask(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        endpoint: &Endpoint,
        settings: &Settings,
    ) -> Result<Session, OpenError> {
        let opened = Session::open(endpoint, settings).await;
        self.hear(asked, opened.as_ref().err().and_then(OpenError::last_words));
        opened
    }

    async fn verify(
        self: &Arc<Self>,
        session: &mut Session,
        asked: &Asked<'_>,
        recipient: &RcptTo,
    ) -> Result<Verdict, Loss> {
        let verdict = session.verify(recipient.clone()).await;
        self.hear(asked, verdict.as_ref().err().and_then(Loss::last_words));
        verdict
    }

    fn hear(self: &Arc<Self>, asked: &Asked<'_>, last_words: Option<(Step, &ShortReply)>) {
        let Some((step, reply)) = last_words else { return };
        self.ended_without_mail(&self.site_of(asked.plan, asked.source), asked.host, step, reply);
    }
}

/// The reply for a refused address: with the next hop's code if it has one.
fn refusal(reply: &Reply) -> Reply {
    let status = reply.enhanced().filter(|code| code.class == 5).map_or("5.1.1".to_owned(), |code| code.to_string());
    let said = cleaned(reply.text());
    let separator = if said.is_empty() { "" } else { ": " };
    Reply::new(550, &status, format!("The next host refuses this address{separator}{said}"))
}

/// One bounded line of visible ASCII.
fn cleaned(text: &str) -> String {
    let visible = text.chars().map(|letter| if letter.is_ascii_graphic() { letter } else { ' ' });
    let visible: String = visible.take(10 * SAID_BYTES_MAX).collect();
    let mut line = visible.split_whitespace().collect::<Vec<_>>().join(" ");
    line.truncate(SAID_BYTES_MAX);
    line.trim_end().to_owned()
}

/// Lifetime of the answer "taken".
pub(super) const TAKEN: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of the answer "refused".
pub(super) const REFUSED: Duration = Duration::from_secs(3600);
/// Lifetime of the answer "not known", and pause of a next hop that could not be asked.
pub(super) const NOT_KNOWN: Duration = Duration::from_secs(30);
/// About 30 MB with addresses of usual length.
const ANSWERS_MAX: usize = 100_000;
/// Next hops that are remembered without being asked.
const HOPS_MAX: usize = 1000;
/// Questions that a next hop is asked at a time.
const AT_ONCE: usize = 4;
/// Askers of a next hop, most of them waiting. Further ones get "not known" at once.
const ASKING_MAX: usize = 200;
const TURN_PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
const CONNECT_PATIENCE: Duration = Duration::from_secs(8);
/// Idle time after which a session ends.
const IDLE: Duration = Duration::from_secs(5);
const SAID_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_next_hosts_code_and_one_clean_line() {
        let check = |enhanced: &str, text: &str, expected: &str| {
            assert_eq!(refusal(&Reply::new(553, enhanced, text.to_owned())).to_string(), expected);
        };
        check("", "no such user", "550 5.1.1 The next host refuses this address: no such user");
        check("5.7.1", "not\nyou\r\n\u{7}", "550 5.7.1 The next host refuses this address: not you");
        check("5.1.1", "", "550 5.1.1 The next host refuses this address");
        check("5.1.1", "\u{e9}t\u{e9}", "550 5.1.1 The next host refuses this address: t");
        let long = refusal(&Reply::new(550, "", "x ".repeat(5000)));
        assert!(long.text().len() < 250 && long.text().ends_with(" x"), "{}", long.text());
    }
}
