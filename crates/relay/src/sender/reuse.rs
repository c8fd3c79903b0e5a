//! Idle open connections, for other sites that would connect to the same address in the same way.
//!
//! Each connection is registered here from opening to end, under a key that other connections must match. A site about
//! to connect asks an idle connection for its session: its task wakes and hands the session over instead of ending it.
//! If that task has a message by then, or ends, the request is dropped and the site connects.
//!
//! Lock order: the set of connections, then one of them; a site, then one of its connections. The set is never locked
//! after a site.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use posthaste_smtp::Protocol;
use posthaste_smtp::client::Transfer;
use posthaste_watch::Pulse;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::site::{OpenLimit, Permit, Shaper, Site};
use super::source::Egress;
use crate::session::{OutgoingSession, SessionAuth, SessionSettings, SessionTls, TlsPolicy};

/// Properties that two connections must share to swap their sessions.
#[derive(Debug, Clone)]
pub(super) struct Key {
    /// The source, with its addresses, EHLO name and proxy.
    source: Arc<Egress>,
    address: SocketAddr,
    protocol: Protocol,
    transfer: Transfer,
    tls: Option<SessionTls>,
    auth: Option<SessionAuth>,
}

impl Key {
    /// The key of a session from a source to an address with these settings.
    pub fn of(source: &Arc<Egress>, address: SocketAddr, settings: &SessionSettings) -> Self {
        let SessionSettings { protocol, transfer, tls, auth, .. } = settings;
        Key {
            source: source.clone(),
            address,
            protocol: *protocol,
            transfer: *transfer,
            tls: tls.clone(),
            auth: auth.clone(),
        }
    }

    /// True if mail may go in the clear when TLS fails.
    pub fn is_opportunistic(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.policy == TlsPolicy::Opportunistic) && self.auth.is_none()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let is_tls = match (&self.tls, &other.tls) {
            (None, None) => true,
            (Some(one), Some(other)) => is_alike(one, other),
            _ => false,
        };
        let is_auth = match (&self.auth, &other.auth) {
            (None, None) => true,
            (Some(one), Some(other)) => (&one.credentials, one.needs) == (&other.credentials, other.needs),
            _ => false,
        };
        let is_address = self.address == other.address && Arc::ptr_eq(&self.source, &other.source);
        is_address && (self.protocol, self.transfer) == (other.protocol, other.transfer) && is_tls && is_auth
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.source.name(), self.address).hash(hasher);
    }
}

/// Compares the name even if nobody verifies it: the server may use it (SNI).
fn is_alike(one: &SessionTls, other: &SessionTls) -> bool {
    (one.policy, one.is_implicit, &one.name) == (other.policy, other.is_implicit, &other.name)
        && Arc::ptr_eq(&one.config, &other.config)
}

/// A session handed over to another site.
pub(super) struct ReusedSession {
    pub session: OutgoingSession,
    /// Permit of the connection's address.
    pub permit: Option<Permit>,
}

/// All open connections.
#[derive(Default)]
pub(super) struct Reuse {
    open: Mutex<HashMap<Key, Alike>>,
    serial: AtomicU64,
    idle: AtomicUsize,
}

#[derive(Default)]
struct Alike {
    connections: BTreeMap<u64, Arc<Connection>>,
    /// Start of the next scan, so that each connection is considered.
    from: u64,
}

struct Connection {
    /// Number of the site that the connection serves.
    site: usize,
    /// Limit of the connection's address; `None` if not counted.
    address: Option<Arc<OpenLimit>>,
    offer: Mutex<Offer>,
}

#[derive(Default)]
struct Offer {
    idle: Option<Idle>,
    /// Channel to a site that waits for the session.
    asked: Option<oneshot::Sender<ReusedSession>>,
}

struct Idle {
    waker: Waker,
    since: Instant,
    /// Messages that the session has carried so far.
    messages: u64,
}

/// Requirements for a session.
struct Wanted {
    /// The session has carried fewer messages than this.
    messages_max: u64,
    is_counted: bool,
    idle_for: Duration,
}

impl Reuse {
    /// Registers a connection that was opened, or has changed its site.
    pub fn add(self: &Arc<Self>, key: Key, site: usize, address: Option<Arc<OpenLimit>>) -> Known {
        let connection = Arc::new(Connection { site, address, offer: Mutex::default() });
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.open().entry(key.clone()).or_default().connections.insert(serial, connection.clone());
        Known { reuse: self.clone(), key, serial, connection }
    }

    /// Number of idle connections.
    pub fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Key, Alike>> {
        self.open.lock().expect("the open connections")
    }

    fn ask(&self, key: &Key, site: usize, wanted: &Wanted) -> Option<oneshot::Receiver<ReusedSession>> {
        let mut open = self.open();
        let Alike { connections, from } = open.get_mut(key)?;
        let begin = *from;
        let in_turn = connections.range(begin..).chain(connections.range(..begin));
        in_turn.take(LOOK_AT_MAX).find_map(|(serial, connection)| {
            *from = serial + 1;
            connection.ask(site, wanted)
        })
    }

    /// Takes a session for a site about to connect: a matching one that has been idle for a while. If the address
    /// allows no more connections, any idle one.
    pub async fn take_over(
        &self,
        shaper: &Shaper,
        site: &Arc<Site>,
        key: &Key,
        pulse: &Pulse,
    ) -> Option<ReusedSession> {
        let limits = {
            let state = site.state();
            // A site that has paused is probed with a connection of its own.
            if state.standing.is_probed() {
                return None;
            }
            state.limits.clone()
        };
        let messages_max = limits.messages_per_connection;
        let mut wanted = Wanted { messages_max, is_counted: false, idle_for: IDLE_MIN };
        if let Some(most) = limits.connections_per_address {
            wanted.is_counted = true;
            // Including the message that is handed over.
            match shaper.address(&limits.source, key.address.ip()).count() {
                open if open > most => return None,
                open if open == most => wanted.idle_for = Duration::ZERO,
                _ => {}
            }
        }
        let mut handed = self.ask(key, site.number(), &wanted)?.await.ok()?;
        handed.session.take_over(messages_max, pulse.clone());
        Some(handed)
    }
}

impl Connection {
    fn offer(&self) -> MutexGuard<'_, Offer> {
        self.offer.lock().expect("an open connection")
    }

    fn ask(&self, site: usize, wanted: &Wanted) -> Option<oneshot::Receiver<ReusedSession>> {
        if self.site == site || wanted.is_counted && self.address.is_none() {
            return None;
        }
        let mut offer = self.offer();
        let Offer { idle: Some(idle), asked: asked @ None } = &mut *offer else { return None };
        if idle.messages >= wanted.messages_max || idle.since.elapsed() < wanted.idle_for {
            return None;
        }
        let (tell, told) = oneshot::channel();
        *asked = Some(tell);
        idle.waker.wake_by_ref();
        Some(told)
    }
}

/// Registration of an open connection, for as long as others may ask for it.
pub(super) struct Known {
    reuse: Arc<Reuse>,
    key: Key,
    serial: u64,
    connection: Arc<Connection>,
}

impl Known {
    /// Marks the connection as idle after `messages` messages. True if it must end now: to be handed over, or because
    /// others wait for a connection to its address.
    pub fn set_idle(&self, waker: &Waker, messages: u64) -> bool {
        let mut offer = self.connection.offer();
        let Connection { address, site, .. } = &*self.connection;
        let is_waited_for = address.as_ref().is_some_and(|limit| limit.set_idle(self.serial, *site, waker));
        match &mut offer.idle {
            Some(idle) => idle.waker.clone_from(waker),
            None => {
                self.reuse.idle.fetch_add(1, Ordering::Relaxed);
                offer.idle = Some(Idle { waker: waker.clone(), since: Instant::now(), messages });
            }
        }
        offer.asked = offer.asked.take().filter(|asked| !asked.is_closed());
        offer.asked.is_some() || is_waited_for
    }

    /// Marks the connection as busy: a site that asked for it connects by itself.
    pub fn set_busy(&self) {
        drop(self.asked());
        self.connection.address.iter().for_each(|limit| limit.wake_idle());
    }

    /// Removes the connection from the idle ones before it ends. Returns the channel of a site that waits for its
    /// session.
    pub fn asked(&self) -> Option<oneshot::Sender<ReusedSession>> {
        let mut offer = self.connection.offer();
        if offer.idle.take().is_some() {
            self.reuse.idle.fetch_sub(1, Ordering::Relaxed);
            self.connection.address.iter().for_each(|limit| limit.forget_idle(self.serial));
        }
        offer.asked.take()
    }

    /// True if other sites wait for a connection to this address to end. Call it when the connection's own site has
    /// nothing to send.
    pub fn is_waited_for(&self) -> bool {
        let Connection { address, site, .. } = &*self.connection;
        address.as_ref().is_some_and(|limit| limit.is_waited_for_but_by(*site))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        {
            let mut open = self.reuse.open();
            if let Some(alike) = open.get_mut(&self.key) {
                alike.connections.remove(&self.serial);
                if alike.connections.is_empty() {
                    open.remove(&self.key);
                }
            }
        }
        // Nobody can find it after this.
        drop(self.asked());
    }
}

/// Idle time before a connection may be handed over. A connection that sends more often stays with its site: passing it
/// back and forth would cost more than a second one.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// Maximum connections of a key that are checked for an idle one.
const LOOK_AT_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use posthaste_smtp::sasl::Credentials;
    use rustls::pki_types::ServerName;

    use super::super::opportunistic_tls;
    use super::super::source::OutgoingSource;
    use super::*;
    use crate::session::Channel;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn key(source: &Arc<Egress>) -> Key {
        Key::of(source, address("192.0.2.1:25"), &SessionSettings::new("relay.example"))
    }

    fn egress() -> Arc<Egress> {
        Arc::new(Egress::new(OutgoingSource::new("default")))
    }

    #[test]
    fn connections_are_alike_if_no_host_or_eavesdropper_can_tell() {
        let source = egress();
        let config = opportunistic_tls().unwrap();
        let with = |change: &dyn Fn(&mut SessionSettings)| {
            let mut settings = SessionSettings::new("relay.example");
            change(&mut settings);
            Key::of(&source, address("192.0.2.1:25"), &settings)
        };
        let tls = |policy, name: &str| {
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let tls = SessionTls { policy, is_implicit: false, config: config.clone(), name, is_dane: false };
            with(&|settings| settings.tls = Some(tls.clone()))
        };
        let auth = |user: &str, password: &str| {
            let auth = SessionAuth { credentials: Credentials::new(user, password), needs: Channel::Clear };
            with(&|settings| settings.auth = Some(auth.clone()))
        };
        assert!(key(&source) == key(&source) && key(&source) != key(&egress()), "another source of the same name");
        let settings = SessionSettings::new("relay.example");
        for other in ["192.0.2.2:25", "192.0.2.1:26"] {
            assert!(Key::of(&source, address(other), &settings) != key(&source), "{other}");
        }
        use TlsPolicy::{Opportunistic, Required, Verified};
        let one = "mx1.example";
        let other = "mx2.example";
        assert!(tls(Verified, one) == tls(Verified, one) && tls(Verified, one) != tls(Verified, other));
        assert!(tls(Required, one) != tls(Required, other));
        assert!(
            tls(Opportunistic, one) == tls(Opportunistic, one) && tls(Opportunistic, one) != tls(Opportunistic, other)
        );
        assert!(tls(Opportunistic, one) != tls(Required, one) && tls(Required, one) != tls(Verified, one));
        assert!(tls(Opportunistic, one) != key(&source));
        let other_authorities = with(&|settings| {
            let name = ServerName::try_from(one).unwrap();
            let config = opportunistic_tls().unwrap();
            settings.tls = Some(SessionTls { policy: Verified, is_implicit: false, config, name, is_dane: false });
        });
        assert!(other_authorities != tls(Verified, one));
        assert!(auth("a", "x") == auth("a", "x") && auth("a", "x") != auth("a", "y") && auth("a", "x") != key(&source));
        assert!(with(&|settings| settings.transfer = Transfer::Bdat) != key(&source));
        assert!(with(&|settings| settings.protocol = Protocol::Lmtp) != key(&source));
    }

    const ANY: Wanted = Wanted { messages_max: 10, is_counted: false, idle_for: Duration::ZERO };

    #[test]
    fn a_question_is_answered_once_or_dropped() {
        let reuse = Arc::new(Reuse::default());
        let key = key(&egress());
        assert!(reuse.ask(&key, 1, &ANY).is_none());
        let known = reuse.add(key.clone(), 2, None);
        assert!(reuse.ask(&key, 1, &ANY).is_none() && reuse.idle() == 0, "it is not idle");
        assert!(!known.set_idle(Waker::noop(), 3) && reuse.idle() == 1);
        assert!(reuse.ask(&key, 2, &ANY).is_none(), "it is its own");
        let mut asked = reuse.ask(&key, 1, &ANY).expect("it is idle");
        assert!(reuse.ask(&key, 3, &ANY).is_none(), "it is asked already");
        assert!(known.set_idle(Waker::noop(), 3));
        // A message arrives first.
        known.set_busy();
        assert!(asked.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(known.asked().is_none() && reuse.idle() == 0);
        // The asking site goes away.
        assert!(!known.set_idle(Waker::noop(), 4));
        drop(reuse.ask(&key, 1, &ANY).unwrap());
        assert!(!known.set_idle(Waker::noop(), 4));
        // The connection ends.
        let mut asked = reuse.ask(&key, 1, &ANY).unwrap();
        assert!(asked.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(known);
        assert!(asked.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(reuse.ask(&key, 1, &ANY).is_none() && reuse.idle() == 0 && reuse.open().is_empty());
    }

    #[test]
    fn a_connection_is_asked_only_for_what_it_has() {
        let reuse = Arc::new(Reuse::default());
        let key = key(&egress());
        let known = reuse.add(key.clone(), 2, None);
        known.set_idle(Waker::noop(), 3);
        assert!(reuse.ask(&key, 1, &Wanted { messages_max: 3, ..ANY }).is_none(), "it has carried as many");
        assert!(reuse.ask(&key, 1, &Wanted { is_counted: true, ..ANY }).is_none(), "it has no permit");
        assert!(reuse.ask(&key, 1, &Wanted { idle_for: Duration::from_secs(3600), ..ANY }).is_none());
        let limit = Arc::new(OpenLimit::new("address".into()));
        let counted = reuse.add(key.clone(), 3, Some(limit));
        counted.set_idle(Waker::noop(), 3);
        assert!(reuse.ask(&key, 1, &Wanted { messages_max: 4, is_counted: true, ..ANY }).is_some());
        // Any number may be busy: each scan continues after the one before.
        let busy: Vec<Known> = (0..100).map(|_| reuse.add(key.clone(), 4, None)).collect();
        let looks = (0..20).filter(|_| reuse.ask(&key, 1, &ANY).is_some()).count();
        assert_eq!(looks, 1, "{}", busy.len());
    }
}
