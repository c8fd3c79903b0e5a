//! Checks of passwords: how many at a time, and what becomes of clients that guess.
//!
//! A check takes tens of milliseconds of a processor and about 19 MiB of memory, which a client costs one line. So few run at a time, on threads of their own, few
//! wait, and not all of one client; who has guessed wrong too often is turned away for a while without a check.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_directory::Directory;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use crate::guesses::Guesses;
use crate::known::KnownNetworks;
use crate::logins::Logins;
use crate::password::{PASSWORD_BYTES_MAX, PasswordHash};

/// Checks passwords.
#[derive(Debug)]
pub struct LoginGate {
    everybody: Checks,
    /// For networks that are known, so that a flood from elsewhere does not keep them out.
    reserved: Checks,
    known: KnownNetworks,
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
            known: KnownNetworks::default(),
            guesses: Guesses::default(),
        }
    }
}

/// A name, and the password that is to show that the client is its owner.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordClaim {
    /// Whose password it is.
    pub user: String,
    /// The password itself.
    pub password: String,
    /// On whose behalf the client wants to act; `None` for its own.
    pub acts_for: Option<String>,
}

/// The reason of a refused login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginFailure {
    /// Another password, or no such name: for the operator. The client is not told which.
    #[error("{0}")]
    Wrong(&'static str),
    /// Too many wrong guesses came from the client's address.
    #[error("too many wrong passwords from this address")]
    Blocked,
    /// Too many passwords are to be checked.
    #[error("too many logins at a time")]
    Busy,
}

/// A login that has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    /// The name, in its one form.
    pub name: String,
    /// What the password was checked against: with another password it is another login.
    pub hash: Arc<PasswordHash>,
}

/// Without the password.
impl fmt::Debug for PasswordClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordClaim")
            .field("user", &self.user)
            .field("acts_for", &self.acts_for)
            .finish_non_exhaustive()
    }
}

impl LoginGate {
    /// Checks a password. `client` is the client's network, an address of IPv4 or a /64 of IPv6; `None` if it has no address. A refusal comes at the next whole
    /// second after the question, so its time does not tell how long the check took, and thus not which names there are.
    ///
    /// # Errors
    /// See [`LoginFailure`].
    pub async fn check(
        &self,
        logins: &Logins,
        directory: &Directory,
        client: Option<IpAddr>,
        claim: PasswordClaim,
    ) -> Result<LoggedIn, LoginFailure> {
        let begun = Instant::now();
        // Who is on this machine may log in for many, as webmail does.
        let from = client.filter(|ip| !ip.is_loopback());
        let is_known = from.is_none_or(|ip| self.known.has(ip));
        let attempt = self.guesses.begin(from, is_known)?;
        let PasswordClaim { user, password, acts_for } = claim;
        let name = directory.login_name(&user);
        let acts_for = acts_for.map(|acts_for| directory.login_name(&acts_for)).filter(|acts_for| *acts_for != name);
        let login = name.as_deref().and_then(|name| logins.get(name));
        let hash = login.map(|login| &login.hash).or(logins.decoy()).cloned();
        let guess = self.guesses.digest((&name, &acts_for, &password, hash.as_ref().map(|hash| hash.text())));
        let before = attempt.refused_before(guess);
        let is_right = match &hash {
            // Programs with an old password ask for ever.
            _ if before.is_some() => false,
            Some(hash) if password.len() <= PASSWORD_BYTES_MAX => {
                let place = self.place(is_known).ok_or(LoginFailure::Busy)?;
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
        Err(LoginFailure::Wrong(why))
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
    async fn check(self, hash: Arc<PasswordHash>, password: String) -> Result<bool, LoginFailure> {
        let turn = match self.turn {
            Some(turn) => turn,
            None => {
                let turn = timeout(TURN_PATIENCE, Arc::clone(&self.checks.running).acquire_owned()).await;
                turn.ok().and_then(Result::ok).ok_or(LoginFailure::Busy)?
            }
        };
        let check = spawn_blocking(move || {
            let _turn = turn;
            hash.is_of(&password)
        });
        check.await.map_err(|_| LoginFailure::Busy)
    }
}

/// Checks at a time: about 60 MiB, with the one that is reserved.
const CHECKS_MAX: usize = 2;
const RESERVED_CHECKS_MAX: usize = 1;
/// Passwords that are checked or wait for it: about a second's.
const PLACES_MAX: usize = 64;
/// The same for known networks: fewer, so that one with room among everybody's does not wait for long.
const RESERVED_PLACES_MAX: usize = 16;
/// How long a password waits for its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
/// A refusal is sent after a whole number of these.
const FAILURE_DELAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use posthaste_directory::Domain;
    use tokio::time::sleep;

    use super::*;
    use crate::guesses::{FAILURES_MAX, GUESSES_FOR, IN_FLIGHT_MAX, PREFIX_FAILURES_MAX};
    use crate::known::KNOWN_FOR;

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

    /// As the listeners tell it.
    fn network(ip: &str) -> Option<IpAddr> {
        Some(match ip.parse().unwrap() {
            IpAddr::V6(ip) => std::net::Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            ip => ip,
        })
    }

    fn claim(user: &str, password: &str) -> PasswordClaim {
        PasswordClaim { user: user.to_owned(), password: password.to_owned(), acts_for: None }
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

        async fn check(&self, ip: &str, user: &str, password: &str) -> Result<String, LoginFailure> {
            let claim = claim(user, password);
            self.gate.check(&self.logins, &self.directory, network(ip), claim).await.map(|login| login.name)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_right_password_lets_in_and_only_as_oneself() {
        let rig = Rig::new();
        let ann = Ok("ann@example.org".to_owned());
        assert_eq!(rig.check("192.0.2.1", "Ann@Example.org", "password").await, ann);
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, ann);
        assert_eq!(rig.check("192.0.2.1", "ann", "Password").await, Err(LoginFailure::Wrong("wrong password")));
        // The password of the hash that is checked for names that nobody has.
        assert_eq!(rig.check("192.0.2.1", "bob", "password").await, Err(LoginFailure::Wrong("no such login")));
        assert_eq!(rig.check("192.0.2.1", "ann", &"x".repeat(5000)).await, Err(LoginFailure::Wrong("wrong password")));
        let acts_for =
            |acts_for: &str| PasswordClaim { acts_for: Some(acts_for.to_owned()), ..claim("ann", "password") };
        let client = network("192.0.2.1");
        let itself = rig.gate.check(&rig.logins, &rig.directory, client, acts_for("ANN@example.org")).await;
        assert_eq!(itself.map(|login| login.name), ann);
        for _ in 0..2 {
            let other = rig.gate.check(&rig.logins, &rig.directory, client, acts_for("bob")).await;
            assert_eq!(other, Err(LoginFailure::Wrong("it may act for nobody else")));
        }
        // What is wrong about that is not the password.
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, ann);
        let nobody = Logins::default();
        let none = rig.gate.check(&nobody, &rig.directory, client, claim("ann", "password")).await;
        assert_eq!(none, Err(LoginFailure::Wrong("no such login")));
    }

    #[tokio::test(start_paused = true)]
    async fn who_guesses_is_turned_away_for_a_while_and_others_are_not() {
        let rig = Rig::new();
        for guess in 0..FAILURES_MAX {
            let begun = Instant::now();
            let answer = rig.check("2001:db8::1", "ann", &format!("guess {guess}")).await;
            assert_eq!(answer, Err(LoginFailure::Wrong("wrong password")));
            assert!(begun.elapsed() >= FAILURE_DELAY);
        }
        // From all of its network, even with the right one.
        assert_eq!(rig.check("2001:db8::2", "ann", "password").await, Err(LoginFailure::Blocked));
        rig.check("2001:db8:0:1::1", "ann", "password").await.unwrap();
        sleep(GUESSES_FOR - Duration::from_secs(2)).await;
        assert_eq!(rig.check("2001:db8::1", "ann", "password").await, Err(LoginFailure::Blocked));
        sleep(Duration::from_secs(2)).await;
        rig.check("2001:db8::1", "ann", "password").await.unwrap();
        assert!(rig.gate.guesses.is_empty(), "nothing is kept of those that know the password");
    }

    #[tokio::test(start_paused = true)]
    async fn who_guesses_from_many_networks_of_a_48_is_turned_away_as_well() {
        let rig = Rig::new();
        let peer = |network: u32| format!("2001:db8:1:{network:x}::1");
        rig.check(&peer(2000), "ann", "password").await.unwrap();
        for network in 0..PREFIX_FAILURES_MAX {
            let wrong = Err(LoginFailure::Wrong("wrong password"));
            // What the client before has said twice counts once.
            for network in [network.saturating_sub(1), network] {
                assert_eq!(rig.check(&peer(network), "ann", "guess").await, wrong);
            }
        }
        assert_eq!(rig.check(&peer(1000), "ann", "password").await, Err(LoginFailure::Blocked));
        rig.check(&peer(2000), "ann", "password").await.expect("it has logged in before");
        rig.check("2001:db8:2::1", "ann", "password").await.unwrap();
        sleep(GUESSES_FOR).await;
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
                assert_eq!(answer, Err(LoginFailure::Wrong("wrong password")));
            }
        }
        assert_eq!(rig.check(&peer(1000), "ann", "password").await, Err(LoginFailure::Blocked));
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
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(LoginFailure::Busy));
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
        let wrong = Err(LoginFailure::Wrong("wrong password"));
        assert_eq!(rig.check("192.0.2.1", "ann", "next year's").await, wrong);
        assert_eq!(rig.check("192.0.2.2", "ann", "next year's").await, Err(LoginFailure::Busy), "another client");
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
        assert_eq!(rig.check("192.0.2.0", "ann", "password").await, Err(LoginFailure::Busy), "too many of one client");
        assert_eq!(rig.check("192.0.2.99", "ann", "password").await, Err(LoginFailure::Busy), "too many of all");
        drop(all);
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
        let all = Arc::clone(&rig.gate.everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
        assert_eq!(rig.check("192.0.2.98", "ann", "password").await, Err(LoginFailure::Busy), "its turn does not come");
        drop(all);
        assert_eq!(rig.gate.everybody.places.available_permits(), PLACES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_does_not_keep_out_a_client_that_has_logged_in_before() {
        let rig = Rig::new();
        rig.check("192.0.2.1", "ann", "password").await.unwrap();
        let flood = rig.gate.everybody.places.try_acquire_many(PLACES_MAX as u32).unwrap();
        assert_eq!(rig.check("192.0.2.2", "ann", "password").await, Err(LoginFailure::Busy));
        for known in ["192.0.2.1", "127.0.0.1"] {
            rig.check(known, "ann", "password").await.unwrap();
        }
        // With more of them than are reserved for, they are as everybody.
        let reserved = rig.gate.reserved.places.try_acquire_many(RESERVED_PLACES_MAX as u32).unwrap();
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(LoginFailure::Busy));
        drop(flood);
        rig.check("192.0.2.1", "ann", "password").await.unwrap();
        drop(reserved);
        let _flood = rig.gate.everybody.places.try_acquire_many(PLACES_MAX as u32).unwrap();
        sleep(KNOWN_FOR).await;
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(LoginFailure::Busy), "that was long ago");
    }
}
