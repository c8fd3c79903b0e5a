//! Checks of passwords: how many at a time, and what becomes of clients that guess.
//!
//! A check takes tens of milliseconds of a processor and about 19 MiB of memory, which a client costs one line. So few run at a time, on threads of their own, few
//! wait, and not all of one client; who has guessed wrong too often is turned away for a while without a check.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_directory::Directory;
use posthaste_smtp::Reply;
use posthaste_smtp::driver::Peer;
use posthaste_smtp::sasl::Credentials;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use crate::logins::Logins;
use crate::password::{PASSWORD_BYTES_MAX, PasswordHash};

/// Checks passwords.
#[derive(Debug)]
pub(crate) struct LoginGate {
    everybody: Checks,
    /// For networks that are known, so that a flood from elsewhere does not keep them out.
    reserved: Checks,
    known: Known,
    guesses: Guesses,
}

#[derive(Debug)]
struct Checks {
    running: Arc<Semaphore>,
    /// Those that are checked, and those that wait for that.
    places: Semaphore,
}

/// A place among those that are checked or wait for it.
struct Place<'a> {
    checks: &'a Checks,
    _place: SemaphorePermit<'a>,
    /// The check may begin; `None`: it waits for that.
    turn: Option<OwnedSemaphorePermit>,
}

impl Default for LoginGate {
    fn default() -> Self {
        Self {
            everybody: Checks::new(CHECKS_MAX, PLACES_MAX),
            reserved: Checks::new(RESERVED_CHECKS_MAX, RESERVED_PLACES_MAX),
            known: Known::default(),
            guesses: Guesses::default(),
        }
    }
}

/// Why somebody is not logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoLogin {
    /// Another password, or no such name; the client is not told which.
    Wrong(&'static str),
    /// Too many wrong guesses came from the client's address.
    Blocked,
    /// Too many passwords are to be checked.
    Busy,
}

impl NoLogin {
    /// What the client is told.
    pub fn reply(self) -> Reply {
        match self {
            Self::Wrong(_) => Reply::new(535, "5.7.8", "Authentication credentials invalid"),
            Self::Blocked => Reply::new(421, "4.7.0", "Too many wrong passwords from your address, try again later"),
            Self::Busy => Reply::new(454, "4.7.0", "Passwords cannot be checked now, try again later"),
        }
    }

    /// What the operator is told.
    pub fn text(self) -> &'static str {
        match self {
            Self::Wrong(why) => why,
            Self::Blocked => "too many wrong passwords from this address",
            Self::Busy => "too many logins at a time",
        }
    }
}

/// Somebody who has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoggedIn {
    /// The name, in its one form.
    pub name: String,
    /// What the password was checked against: with another password it is another login.
    pub hash: Arc<PasswordHash>,
}

impl LoginGate {
    /// Checks a password. A refusal is sent at the next whole second after the question, so its time does not tell how long the check took, and thus not which
    /// names there are.
    ///
    /// # Errors
    /// See [`NoLogin`].
    pub async fn check(
        &self,
        logins: &Logins,
        directory: &Directory,
        peer: &Peer,
        credentials: Credentials,
    ) -> Result<LoggedIn, NoLogin> {
        let begun = Instant::now();
        // Who is on this machine may log in for many, as webmail does.
        let from = peer.network().filter(|ip| !ip.is_loopback());
        let is_known = from.is_none_or(|ip| self.known.has(ip));
        let attempt = self.guesses.begin(from, is_known)?;
        let Credentials { user, password, acts_for } = credentials;
        let name = directory.login_name(&user);
        let acts_for = acts_for.map(|acts_for| directory.login_name(&acts_for)).filter(|acts_for| *acts_for != name);
        let login = name.as_deref().and_then(|name| logins.get(name));
        let hash = login.map(|login| &login.hash).or(logins.decoy()).cloned();
        let guess = self.guesses.hasher.hash_one((&name, &acts_for, &password, hash.as_ref().map(|hash| hash.text())));
        let before = attempt.refused_before(guess);
        let is_right = match &hash {
            // Programs with an old password ask for ever.
            _ if before.is_some() => false,
            Some(hash) if password.len() <= PASSWORD_BYTES_MAX => {
                let place = self.place(is_known).ok_or(NoLogin::Busy)?;
                place.check(Arc::clone(hash), password).await?
            }
            _ => false,
        };
        let why = match (name, login) {
            (Some(name), Some(login)) if is_right && acts_for.is_none() => {
                from.inspect(|ip| self.known.add(*ip));
                return Ok(LoggedIn { name, hash: Arc::clone(&login.hash) });
            }
            (_, Some(_)) if is_right => "it may act for nobody else",
            (_, Some(_)) => "wrong password",
            (_, None) => "no such login",
        };
        let why = before.unwrap_or(why);
        attempt.failed(guess, why);
        sleep_until(begun + FAILURE_DELAY * (begun.elapsed().as_secs() as u32 + 1)).await;
        Err(NoLogin::Wrong(why))
    }

    /// A place, if there is one. A known client takes the reserved check only while those for everybody are busy, and waits among the few that are known.
    fn place(&self, is_known: bool) -> Option<Place<'_>> {
        let (everybody, reserved) = (&self.everybody, Some(&self.reserved).filter(|_| is_known));
        let free = everybody.free_place().or_else(|| reserved?.free_place());
        free.or_else(|| reserved?.waiting_place()).or_else(|| everybody.waiting_place())
    }
}

impl Checks {
    fn new(running: usize, places: usize) -> Self {
        Self { running: Arc::new(Semaphore::new(running)), places: Semaphore::new(places) }
    }

    fn free_place(&self) -> Option<Place<'_>> {
        let place = self.places.try_acquire().ok()?;
        let turn = Arc::clone(&self.running).try_acquire_owned().ok()?;
        Some(Place { checks: self, _place: place, turn: Some(turn) })
    }

    fn waiting_place(&self) -> Option<Place<'_>> {
        Some(Place { checks: self, _place: self.places.try_acquire().ok()?, turn: None })
    }
}

impl Place<'_> {
    /// Checks a password when its turn comes. What has begun goes on if nobody waits for it any more, and counts until its end.
    async fn check(self, hash: Arc<PasswordHash>, password: String) -> Result<bool, NoLogin> {
        let turn = match self.turn {
            Some(turn) => turn,
            None => {
                let turn = timeout(TURN_PATIENCE, Arc::clone(&self.checks.running).acquire_owned()).await;
                turn.ok().and_then(Result::ok).ok_or(NoLogin::Busy)?
            }
        };
        let check = spawn_blocking(move || {
            let _turn = turn;
            hash.is_of(&password)
        });
        check.await.map_err(|_| NoLogin::Busy)
    }
}

/// Clients' networks from which somebody has logged in, and when last.
#[derive(Debug, Default)]
struct Known(Mutex<HashMap<IpAddr, Instant>>);

impl Known {
    fn has(&self, client: IpAddr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&client).is_some_and(|at| at.elapsed() < KNOWN_FOR)
    }

    fn add(&self, client: IpAddr) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&client) {
            // One account with a whole /48 cannot displace the networks of others.
            let prefix = prefix48(client);
            let is_near = |ip: &IpAddr| prefix.is_some() && prefix48(*ip) == prefix;
            let is_prefix_full = known.keys().filter(|ip| is_near(ip)).count() >= KNOWN_OF_PREFIX_MAX;
            if is_prefix_full || known.len() >= NETWORKS_MAX {
                let candidates = known.iter().filter(|(ip, _)| !is_prefix_full || is_near(ip));
                let oldest = candidates.min_by_key(|(_, at)| **at).map(|(ip, _)| *ip);
                oldest.inspect(|ip| _ = known.remove(ip));
            }
        }
        known.insert(client, Instant::now());
    }
}

/// Wrong guesses, by network.
#[derive(Debug, Default)]
struct Guesses {
    networks: Mutex<HashMap<Network, Counted>>,
    hasher: RandomState,
}

/// Whose attempts are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Network {
    /// An address of IPv4, or a /64 of IPv6.
    Client(IpAddr),
    /// A /48 of IPv6: one site may have it (RFC 6177), or thousands of subscribers.
    Prefix48(Ipv6Addr),
}

/// The /48 of an address of IPv6.
fn prefix48(ip: IpAddr) -> Option<Ipv6Addr> {
    match ip {
        IpAddr::V6(ip) => Some(Ipv6Addr::from_bits(ip.to_bits() >> 80 << 80)),
        IpAddr::V4(_) => None,
    }
}

impl Network {
    /// Those of a client, the smallest first.
    fn all(client: Option<IpAddr>) -> impl Iterator<Item = Self> {
        client.map(Self::Client).into_iter().chain(client.and_then(prefix48).map(Self::Prefix48))
    }

    fn failures_max(self) -> u32 {
        match self {
            Self::Client(_) => FAILURES_MAX,
            Self::Prefix48(_) => PREFIX_FAILURES_MAX,
        }
    }

    fn in_flight_max(self) -> u32 {
        match self {
            Self::Client(_) => IN_FLIGHT_MAX,
            Self::Prefix48(_) => PREFIX_IN_FLIGHT_MAX,
        }
    }
}

#[derive(Debug)]
struct Counted {
    /// When the first of the failures was.
    since: Instant,
    failures: u32,
    /// What was guessed wrong last, and against which hash of the password, hashed with a key that only this process has, and why it was refused: a program that
    /// has an old password says the same for ever, and learns nothing. Of a [`Network::Client`] only.
    last: Option<(u64, &'static str)>,
    in_flight: u32,
}

/// An attempt to log in, from its begin to its answer.
#[derive(Debug)]
struct Attempt<'a> {
    guesses: &'a Guesses,
    /// Those in which it is in flight, the client first.
    networks: Vec<Network>,
}

impl Guesses {
    fn lock(&self) -> MutexGuard<'_, HashMap<Network, Counted>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, from: Option<IpAddr>, is_known: bool) -> Result<Attempt<'_>, NoLogin> {
        let mut attempt = Attempt { guesses: self, networks: Vec::new() };
        for network in Network::all(from) {
            // What others in a /48 guess does not keep out a client that is known. Its own guesses count there all the same.
            let is_limited = !is_known || matches!(network, Network::Client(_));
            self.enter(network, is_limited)?;
            attempt.networks.push(network);
        }
        Ok(attempt)
    }

    fn enter(&self, network: Network, is_limited: bool) -> Result<(), NoLogin> {
        let now = Instant::now();
        let mut networks = self.lock();
        if networks.len() >= NETWORKS_MAX && !networks.contains_key(&network) {
            networks.retain(|_, counted| counted.in_flight > 0 || now - counted.since < MEMORY);
        }
        if networks.len() >= NETWORKS_MAX && !networks.contains_key(&network) {
            let idle = networks.iter().filter(|(_, counted)| counted.in_flight == 0);
            let oldest = idle.min_by_key(|(_, counted)| counted.since).map(|(network, _)| *network);
            networks.remove(&oldest.ok_or(NoLogin::Busy)?);
        }
        let counted = networks.entry(network).or_insert(Counted { since: now, failures: 0, last: None, in_flight: 0 });
        if now - counted.since >= MEMORY {
            (counted.since, counted.failures, counted.last) = (now, 0, None);
        }
        if is_limited && counted.failures >= network.failures_max() {
            return Err(NoLogin::Blocked);
        }
        if is_limited && counted.in_flight >= network.in_flight_max() {
            return Err(NoLogin::Busy);
        }
        counted.in_flight += 1;
        Ok(())
    }
}

impl Attempt<'_> {
    /// Why the client's last guess was refused, if this is the same.
    fn refused_before(&self, guess: u64) -> Option<&'static str> {
        let networks = self.guesses.lock();
        networks.get(self.networks.first()?)?.last.filter(|(last, _)| *last == guess).map(|(_, why)| why)
    }

    /// Counts a wrong guess, unless it is the client's last one again.
    fn failed(&self, guess: u64, why: &'static str) {
        let mut networks = self.guesses.lock();
        let client = self.networks.first().and_then(|client| networks.get_mut(client));
        if client.is_some_and(|client| client.last.replace((guess, why)).is_some_and(|(last, _)| last == guess)) {
            return;
        }
        for network in &self.networks {
            let Some(counted) = networks.get_mut(network) else { continue };
            counted.failures += 1;
            if counted.failures == 1 || counted.failures == network.failures_max() {
                // A block lasts from the last of them on.
                counted.since = Instant::now();
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut networks = self.guesses.lock();
        for network in &self.networks {
            if let Some(counted) = networks.get_mut(network) {
                counted.in_flight -= 1;
                if counted.in_flight == 0 && counted.failures == 0 {
                    networks.remove(network);
                }
            }
        }
    }
}

/// Checks at a time: about 60 MiB, with the one that is reserved.
const CHECKS_MAX: usize = 2;
const RESERVED_CHECKS_MAX: usize = 1;
/// Passwords that are checked or wait for it: about a second's.
const PLACES_MAX: usize = 64;
/// The same for known networks: fewer, so that one with room among everybody's does not wait for long.
const RESERVED_PLACES_MAX: usize = 16;
/// Known networks of one /48.
const KNOWN_OF_PREFIX_MAX: usize = 16;
/// How long a network is known from its last login on.
const KNOWN_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Attempts of one client at a time, the delay of an answer included.
const IN_FLIGHT_MAX: u32 = 16;
/// The same of a /48.
const PREFIX_IN_FLIGHT_MAX: u32 = 32;
/// How long a password waits for its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
/// A refusal is sent after a whole number of these.
const FAILURE_DELAY: Duration = Duration::from_secs(1);
/// Wrong guesses of a client within [`MEMORY`].
const FAILURES_MAX: u32 = 10;
/// The same of a /48.
const PREFIX_FAILURES_MAX: u32 = 80;
/// How long wrong guesses count, and how long a client is turned away then.
const MEMORY: Duration = Duration::from_secs(600);
/// Networks of which wrong guesses, and logins, are remembered: about a megabyte each.
const NETWORKS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use posthaste_directory::Domain;
    use tokio::time::sleep;

    use super::*;

    /// `ann@example.org`, whose password is `password`, by a hash that takes little.
    fn logins(directory: &Directory) -> Logins {
        logins_with(directory, "password")
    }

    fn logins_with(directory: &Directory, password: &str) -> Logins {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwords");
        let params = argon2::Params::new(64, 1, 1, None).unwrap();
        let hash = argon2::PasswordHasher::hash_password(&argon2::Argon2::from(params), password.as_bytes()).unwrap();
        std::fs::write(&file, format!("ann:{hash}\n")).unwrap();
        Logins::load(&file, directory).unwrap()
    }

    fn directory() -> Directory {
        Directory::new(&[Domain::open_to_any("example.org")], "Maildir").unwrap()
    }

    fn peer(ip: &str) -> Peer {
        let remote = SocketAddr::new(ip.parse().unwrap(), 40_000);
        Peer::Tcp { remote, local: remote }
    }

    struct Rig {
        gate: LoginGate,
        logins: Logins,
        directory: Directory,
    }

    impl Rig {
        fn new() -> Self {
            let directory = directory();
            Self { gate: LoginGate::default(), logins: logins(&directory), directory }
        }

        async fn check(&self, ip: &str, user: &str, password: &str) -> Result<String, NoLogin> {
            let credentials = Credentials::new(user, password);
            self.gate.check(&self.logins, &self.directory, &peer(ip), credentials).await.map(|login| login.name)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_right_password_lets_in_and_only_as_oneself() {
        let rig = Rig::new();
        let ann = Ok("ann@example.org".to_owned());
        assert_eq!(rig.check("192.0.2.1", "Ann@Example.org", "password").await, ann);
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, ann);
        assert_eq!(rig.check("192.0.2.1", "ann", "Password").await, Err(NoLogin::Wrong("wrong password")));
        // The password of the hash that is checked for names that nobody has.
        assert_eq!(rig.check("192.0.2.1", "bob", "password").await, Err(NoLogin::Wrong("no such login")));
        assert_eq!(rig.check("192.0.2.1", "ann", &"x".repeat(5000)).await, Err(NoLogin::Wrong("wrong password")));
        let acts_for = |acts_for: &str| {
            let mut credentials = Credentials::new("ann", "password");
            credentials.acts_for = Some(acts_for.to_owned());
            credentials
        };
        let peer = peer("192.0.2.1");
        let itself = rig.gate.check(&rig.logins, &rig.directory, &peer, acts_for("ANN@example.org")).await;
        assert_eq!(itself.map(|login| login.name), ann);
        for _ in 0..2 {
            let other = rig.gate.check(&rig.logins, &rig.directory, &peer, acts_for("bob")).await;
            assert_eq!(other, Err(NoLogin::Wrong("it may act for nobody else")));
        }
        // What is wrong about that is not the password.
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, ann);
        let nobody = Logins::default();
        let none = rig.gate.check(&nobody, &rig.directory, &peer, Credentials::new("ann", "password")).await;
        assert_eq!(none, Err(NoLogin::Wrong("no such login")));
    }

    #[tokio::test(start_paused = true)]
    async fn who_guesses_is_turned_away_for_a_while_and_others_are_not() {
        let rig = Rig::new();
        for guess in 0..FAILURES_MAX {
            let begun = Instant::now();
            let answer = rig.check("2001:db8::1", "ann", &format!("guess {guess}")).await;
            assert_eq!(answer, Err(NoLogin::Wrong("wrong password")));
            assert!(begun.elapsed() >= FAILURE_DELAY);
        }
        // From all of its network, even with the right one.
        assert_eq!(rig.check("2001:db8::2", "ann", "password").await, Err(NoLogin::Blocked));
        rig.check("2001:db8:0:1::1", "ann", "password").await.unwrap();
        sleep(MEMORY - Duration::from_secs(2)).await;
        assert_eq!(rig.check("2001:db8::1", "ann", "password").await, Err(NoLogin::Blocked));
        sleep(Duration::from_secs(2)).await;
        rig.check("2001:db8::1", "ann", "password").await.unwrap();
        assert!(rig.gate.guesses.lock().is_empty(), "nothing is kept of those that know the password");
    }

    #[tokio::test(start_paused = true)]
    async fn who_guesses_from_many_networks_of_a_48_is_turned_away_as_well() {
        let rig = Rig::new();
        let peer = |network: u32| format!("2001:db8:1:{network:x}::1");
        rig.check(&peer(2000), "ann", "password").await.unwrap();
        for network in 0..PREFIX_FAILURES_MAX {
            let wrong = Err(NoLogin::Wrong("wrong password"));
            // What the client before has said twice counts once.
            for network in [network.saturating_sub(1), network] {
                assert_eq!(rig.check(&peer(network), "ann", "guess").await, wrong);
            }
        }
        assert_eq!(rig.check(&peer(1000), "ann", "password").await, Err(NoLogin::Blocked));
        rig.check(&peer(2000), "ann", "password").await.expect("it has logged in before");
        rig.check("2001:db8:2::1", "ann", "password").await.unwrap();
        sleep(MEMORY).await;
        rig.check(&peer(1000), "ann", "password").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_from_networks_with_a_login_count_for_their_48() {
        let rig = Rig::new();
        let peer = |network: u32| format!("2001:db8:1:{network:x}::1");
        let networks = PREFIX_FAILURES_MAX / FAILURES_MAX;
        for network in 0..networks {
            rig.check(&peer(network), "ann", "password").await.unwrap();
        }
        for network in 0..networks {
            for guess in 0..FAILURES_MAX {
                let answer = rig.check(&peer(network), "ann", &guess.to_string()).await;
                assert_eq!(answer, Err(NoLogin::Wrong("wrong password")));
            }
        }
        assert_eq!(rig.check(&peer(1000), "ann", "password").await, Err(NoLogin::Blocked));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_known_takes_whatever_check_is_free() {
        let rig = Rig::new();
        let check = async || timeout(FAILURE_DELAY, rig.check("192.0.2.1", "ann", "password")).await;
        check().await.unwrap().unwrap();
        let reserved = Arc::clone(&rig.gate.reserved.running).acquire_owned().await.unwrap();
        check().await.expect("one of everybody's is free").unwrap();
        drop(reserved);
        let _all = Arc::clone(&rig.gate.everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
        check().await.expect("the reserved one is free").unwrap();
        let _reserved = Arc::clone(&rig.gate.reserved.running).acquire_owned().await.unwrap();
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(NoLogin::Busy));
    }

    #[tokio::test(start_paused = true)]
    async fn the_known_networks_of_a_48_displace_each_other_only() {
        let known = Known::default();
        let near = |network: u32| format!("2001:db8:1:{network:x}::").parse().unwrap();
        let (other, v4) = ("2001:db8:2::".parse().unwrap(), "192.0.2.1".parse().unwrap());
        known.add(other);
        known.add(v4);
        for network in 0..=KNOWN_OF_PREFIX_MAX as u32 {
            tokio::time::advance(Duration::from_secs(1)).await;
            known.add(near(network));
        }
        assert!(known.has(other) && known.has(v4));
        assert_eq!(known.0.lock().unwrap().len(), KNOWN_OF_PREFIX_MAX + 2);
        assert!(!known.has(near(0)) && known.has(near(1)), "the one of the oldest login goes");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_password_counts_once_and_this_machine_is_never_turned_away() {
        let rig = Rig::new();
        for _ in 0..3 * FAILURES_MAX {
            rig.check("192.0.2.1", "ann", "of last year").await.unwrap_err();
        }
        rig.check("192.0.2.1", "ann", "password").await.unwrap();
        for guess in 0..3 * FAILURES_MAX {
            rig.check("127.0.0.1", "ann", &guess.to_string()).await.unwrap_err();
        }
        rig.check("127.0.0.1", "ann", "password").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_wrong_a_moment_ago_takes_no_check_until_the_password_is_another() {
        let mut rig = Rig::new();
        rig.check("192.0.2.1", "ann", "next year's").await.unwrap_err();
        // Every check waits.
        let all = Arc::clone(&rig.gate.everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
        let wrong = Err(NoLogin::Wrong("wrong password"));
        assert_eq!(rig.check("192.0.2.1", "ann", "next year's").await, wrong);
        assert_eq!(rig.check("192.0.2.2", "ann", "next year's").await, Err(NoLogin::Busy), "another client");
        drop(all);
        rig.logins = logins_with(&rig.directory, "next year's");
        assert_eq!(rig.check("192.0.2.1", "ann", "next year's").await.as_deref(), Ok("ann@example.org"));
    }

    #[tokio::test(start_paused = true)]
    async fn how_long_a_check_takes_does_not_show() {
        let rig = Rig::new();
        for (wait, answered) in [(0, 1000), (300, 1000), (999, 1000), (1000, 2000), (1700, 2000)] {
            let all = Arc::clone(&rig.gate.everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
            let begun = Instant::now();
            let end = async {
                sleep(Duration::from_millis(wait)).await;
                drop(all);
            };
            let password = wait.to_string();
            let (answer, ()) = tokio::join!(rig.check("192.0.2.1", "ann", &password), end);
            answer.unwrap_err();
            assert_eq!(begun.elapsed().as_millis(), answered, "after {wait} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_wait_are_bounded_for_each_client_and_for_all() {
        let rig = Arc::new(Rig::new());
        // Every check waits.
        let all = Arc::clone(&rig.gate.everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
        let attempt = |ip: String| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.check(&ip, "ann", "password").await })
        };
        let mut waiting = Vec::new();
        for client in 0..PLACES_MAX as u32 / IN_FLIGHT_MAX {
            for _ in 0..IN_FLIGHT_MAX {
                waiting.push(attempt(format!("192.0.2.{client}")));
            }
        }
        while rig.gate.everybody.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(rig.check("192.0.2.0", "ann", "password").await, Err(NoLogin::Busy), "too many of one client");
        assert_eq!(rig.check("192.0.2.99", "ann", "password").await, Err(NoLogin::Busy), "too many of all");
        drop(all);
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
        let all = Arc::clone(&rig.gate.everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
        assert_eq!(rig.check("192.0.2.98", "ann", "password").await, Err(NoLogin::Busy), "its turn does not come");
        drop(all);
        assert_eq!(rig.gate.everybody.places.available_permits(), PLACES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_does_not_keep_out_a_client_that_has_logged_in_before() {
        let rig = Rig::new();
        rig.check("192.0.2.1", "ann", "password").await.unwrap();
        let flood = rig.gate.everybody.places.try_acquire_many(PLACES_MAX as u32).unwrap();
        assert_eq!(rig.check("192.0.2.2", "ann", "password").await, Err(NoLogin::Busy));
        for known in ["192.0.2.1", "127.0.0.1"] {
            rig.check(known, "ann", "password").await.unwrap();
        }
        // With more of them than are reserved for, they are as everybody.
        let reserved = rig.gate.reserved.places.try_acquire_many(RESERVED_PLACES_MAX as u32).unwrap();
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(NoLogin::Busy));
        drop(flood);
        rig.check("192.0.2.1", "ann", "password").await.unwrap();
        drop(reserved);
        let _flood = rig.gate.everybody.places.try_acquire_many(PLACES_MAX as u32).unwrap();
        sleep(KNOWN_FOR).await;
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(NoLogin::Busy), "that was long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn the_networks_that_are_remembered_are_bounded() {
        let (guesses, logged_in) = (Guesses::default(), Known::default());
        let ip = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        for number in 0..NETWORKS_MAX as u32 {
            guesses.begin(Some(ip(number)), false).unwrap().failed(1, "wrong password");
            logged_in.add(ip(number));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        logged_in.add(ip(0));
        logged_in.add(ip(1_000_000));
        assert_eq!(logged_in.0.lock().unwrap().len(), NETWORKS_MAX);
        assert!(logged_in.has(ip(0)) && !logged_in.has(ip(1)), "the one of the oldest login goes");
        let held = guesses.begin(Some(ip(0)), false).unwrap();
        drop(guesses.begin(Some(ip(1_000_000)), false).unwrap());
        let networks = guesses.lock();
        assert_eq!(networks.len(), NETWORKS_MAX - 1);
        let has = |number| networks.contains_key(&Network::Client(ip(number)));
        assert!(has(0) && !has(1), "the oldest that is not at work goes");
        drop(networks);
        drop(held);
    }
}
