//! Password checks: a limit on those at a time, and the defence against guessing.
//!
//! A check takes tens of milliseconds of CPU and about 19 MiB of memory, and costs a client one line. So few checks run
//! at a time, on threads of their own, and few wait, not all of one client. A client with too many wrong guesses is
//! refused for a while without a check.
//!
//! On an account with many wrong guesses, networks without an earlier login wait before each check. Nobody is locked
//! out of an account by the guesses of others.

mod scram;
mod status;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_directory::Directory;
pub use status::{Guessed, LoginStatus};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::account_guesses::{ACCOUNT_WAIT, AccountGuesses};
use crate::guesses::{Attempt, Guesses, GuessingClient};
use crate::known::KnownNetworks;
use crate::last_uses::LastUses;
use crate::login_use::{LoginFailure, LoginOrigin, LoginUse};
use crate::logins::{Login, LoginSecrets, Logins};
use crate::password::{PASSWORD_BYTES_MAX, PasswordHash};
use crate::remembered::RememberedPasswords;

/// Checks passwords.
#[derive(Debug)]
pub struct LoginGate {
    /// One lane for each purpose, so that a flood of one leaves the other open.
    lanes: [Lane; LoginUse::COUNT],
    known: KnownNetworks,
    guesses: Guesses,
    /// Wrong tokens of HTTP, counted separately: a program with an outdated token must not keep users at its address
    /// from reading mail.
    token_guesses: Guesses,
    account_guesses: AccountGuesses,
    remembered: RememberedPasswords,
    last_uses: LastUses,
    checks_made: AtomicU64,
}

/// An admitted attempt.
struct Entered<'a> {
    attempt: Attempt<'a>,
    /// The client's network, for counting.
    from: Option<IpAddr>,
    is_known: bool,
    begun: Instant,
}

/// Checks of one purpose.
#[derive(Debug)]
struct Lane {
    everybody: Checks,
    /// Checks for known networks, so that a flood from elsewhere does not keep them out.
    reserved: Checks,
}

#[derive(Debug)]
struct Checks {
    running: Arc<Semaphore>,
    /// Permits for passwords that are checked or wait for a check.
    places: Semaphore,
}

/// A login's place in a lane, while its check waits or runs.
struct Place<'a> {
    checks: &'a Checks,
    _place: SemaphorePermit<'a>,
    /// Permit of a running check; `None` while it waits.
    turn: Option<OwnedSemaphorePermit>,
}

impl Default for LoginGate {
    /// A gate without a file: it forgets known networks when it is dropped.
    fn default() -> Self {
        Self {
            lanes: [Lane::new(CHECKS_MAX), Lane::new(READING_CHECKS_MAX)],
            known: KnownNetworks::default(),
            guesses: Guesses::default(),
            token_guesses: Guesses::default(),
            account_guesses: AccountGuesses::default(),
            remembered: RememberedPasswords::default(),
            last_uses: LastUses::default(),
            checks_made: AtomicU64::new(0),
        }
    }
}

/// A name with a password to check.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordClaim {
    /// Name of the login.
    pub user: String,
    /// The password in clear text.
    pub password: String,
    /// Identity to act for (SASL authorization identity); `None`: the login itself.
    pub acts_for: Option<String>,
}

/// A successful login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    /// Normalised name of the login.
    pub name: String,
    /// The secrets used in the check, to detect a later change of password.
    pub secrets: Arc<LoginSecrets>,
}

/// Omits the password.
impl fmt::Debug for PasswordClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordClaim")
            .field("user", &self.user)
            .field("acts_for", &self.acts_for)
            .finish_non_exhaustive()
    }
}

impl LoginGate {
    /// Opens a gate with a file of known networks, which keeps them across restarts after a [`save`](Self::save).
    /// Blocks.
    ///
    /// # Errors
    /// The file exists but cannot be read.
    pub fn open(known_networks: PathBuf) -> io::Result<Self> {
        Ok(Self { known: KnownNetworks::open(known_networks)?, ..Self::default() })
    }

    /// Writes the file of known networks, if they have changed. Blocks.
    ///
    /// # Errors
    /// The file cannot be written. The next call tries again.
    pub fn save(&self) -> io::Result<()> {
        self.known.save()
    }

    /// Checks a password. A refusal is sent at the next whole second after the request. So its delay does not show how
    /// long the check took, and thus not which names exist.
    ///
    /// # Errors
    /// See [`LoginFailure`].
    pub async fn check(
        &self,
        logins: &Logins,
        directory: &Directory,
        origin: LoginOrigin,
        claim: PasswordClaim,
    ) -> Result<LoggedIn, LoginFailure> {
        let entered = self.enter(origin)?;
        let PasswordClaim { user, password, acts_for } = claim;
        let name = directory.login_name(&user);
        self.wait_if_slow(&entered, name.as_deref()).await;
        let acts_for = acts_for.map(|acts_for| directory.login_name(&acts_for)).filter(|acts_for| *acts_for != name);
        let login = name.as_deref().and_then(|name| logins.get(name));
        let hash = login.map(|login| &login.secrets.hash).or(logins.decoy()).cloned();
        let guess = self.guesses.digest((&name, &acts_for, &password, hash.as_ref().map(|hash| hash.text())));
        let before = entered.attempt.refused_before(guess);
        let is_right = match &hash {
            // Programs with an old password ask for ever.
            _ if before.is_some() => false,
            Some(hash) if password.len() <= PASSWORD_BYTES_MAX => {
                let account = name.as_deref().filter(|_| login.is_some());
                self.is_right(origin.purpose, entered.is_known, account, hash, &password).await?
            }
            _ => false,
        };
        let why = match (&name, login) {
            (Some(name), Some(login)) if is_right && acts_for.is_none() => {
                return Ok(self.let_in(&entered, logins, origin, name, login));
            }
            (_, Some(_)) if is_right => "this login may act only for itself",
            (_, Some(_)) => "wrong password",
            (_, None) => "no such login",
        };
        let guessed_at = name.as_deref().filter(|_| !is_right);
        Err(self.refuse(entered, guessed_at, guess, before.unwrap_or(why)).await)
    }

    /// Admits an attempt.
    fn enter(&self, origin: LoginOrigin) -> Result<Entered<'_>, LoginFailure> {
        let begun = Instant::now();
        // Who is on this machine may log in for many, as webmail does.
        let from = origin.network.filter(|ip| !ip.is_loopback());
        let is_known = from.is_none_or(|ip| self.known.has(ip));
        Ok(Entered { attempt: self.guesses.begin(origin.purpose, from, is_known)?, from, is_known, begun })
    }

    /// Makes an attempt at a slow account wait. The wait precedes the check: after it, a client could ignore the wait
    /// and guess as fast as before.
    async fn wait_if_slow(&self, entered: &Entered<'_>, name: Option<&str>) {
        if !entered.is_known && name.is_some_and(|name| self.account_guesses.is_slow(name)) {
            sleep(ACCOUNT_WAIT).await;
        }
    }

    /// Records a success.
    fn let_in(
        &self,
        entered: &Entered<'_>,
        logins: &Logins,
        origin: LoginOrigin,
        name: &str,
        login: &Login,
    ) -> LoggedIn {
        entered.from.inspect(|ip| self.known.add(*ip));
        self.last_uses.note(logins, name, origin);
        LoggedIn { name: name.to_owned(), secrets: Arc::clone(&login.secrets) }
    }

    /// Counts a wrong guess, also for the account if the password was wrong, and waits until the time of the reply.
    async fn refuse(
        &self,
        entered: Entered<'_>,
        guessed_at: Option<&str>,
        guess: u64,
        why: &'static str,
    ) -> LoginFailure {
        let Entered { attempt, begun, .. } = entered;
        if attempt.failed(guess, why) {
            guessed_at.inspect(|name| self.account_guesses.failed(name, guess));
        }
        sleep_until(begun + FAILURE_DELAY * (begun.elapsed().as_secs() as u32 + 1)).await;
        LoginFailure::Wrong(why)
    }

    /// Counts a wrong token of HTTP for its client, separately from wrong passwords, and returns when a reply to a
    /// wrong password would be sent. Clients on this machine count, too: no webmail shows tokens for its users.
    pub async fn wrong_token(&self, network: Option<IpAddr>, presented: &str) -> LoginFailure {
        let begun = Instant::now();
        let attempt = match self.token_guesses.begin(LoginUse::Reading, network, false) {
            Ok(attempt) => attempt,
            Err(why) => return why,
        };
        attempt.failed(self.token_guesses.digest(presented), "wrong token");
        sleep_until(begun + FAILURE_DELAY).await;
        LoginFailure::Wrong("wrong token")
    }

    /// Number of Argon2 checks since the start, without those saved by remembered passwords.
    pub fn checks_made(&self) -> u64 {
        self.checks_made.load(Ordering::Relaxed)
    }

    /// `account`: name of the login, if it exists.
    async fn is_right(
        &self,
        purpose: LoginUse,
        is_known: bool,
        account: Option<&str>,
        hash: &Arc<PasswordHash>,
        password: &str,
    ) -> Result<bool, LoginFailure> {
        let is_remembered = || account.is_some_and(|name| self.remembered.is_right(name, hash, password));
        if is_remembered() {
            return Ok(true);
        }
        let mut place = self.lanes[purpose as usize].place(is_known).ok_or(LoginFailure::Busy)?;
        place.wait().await?;
        // Many clients of one login may have waited for the same check.
        if is_remembered() {
            return Ok(true);
        }
        self.checks_made.fetch_add(1, Ordering::Relaxed);
        let is_right = place.check(Arc::clone(hash), password.to_owned()).await?;
        account.filter(|_| is_right).inspect(|name| self.remembered.add(name, hash, password));
        Ok(is_right)
    }

    /// Status of all logins, by name.
    pub fn logins(&self, logins: &Logins) -> Vec<LoginStatus> {
        let mut all: Vec<_> = logins
            .all()
            .map(|(name, login)| {
                let (wrong, is_slow) = self.account_guesses.of(name);
                LoginStatus {
                    name: name.to_owned(),
                    tenant: login.tenant.as_deref().map(str::to_owned),
                    has_scram: login.secrets.scram.is_some(),
                    last_use: self.last_uses.of(name),
                    is_remembered: self.remembered.has(name, &login.secrets.hash),
                    wrong,
                    is_slow,
                }
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Clients with counted wrong passwords or tokens: blocked ones first, then by count.
    pub fn guessing_clients(&self) -> Vec<GuessingClient> {
        let mut all = [self.guesses.clients(), self.token_guesses.clients()].concat();
        all.sort_by(|a, b| a.rank().cmp(&b.rank()));
        all
    }

    /// Forgets the wrong passwords of a client or an account, so that it is no longer blocked or slow. False if there
    /// are none.
    pub fn forget(&self, of: &Guessed) -> bool {
        match of {
            Guessed::Client(ip) => self.guesses.forget(*ip) | self.token_guesses.forget(*ip),
            Guessed::Account(name) => self.account_guesses.forget(name),
        }
    }
}

impl Lane {
    fn new(checks_max: usize) -> Self {
        Self {
            everybody: Checks::new(checks_max, PLACES_MAX),
            reserved: Checks::new(RESERVED_CHECKS_MAX, RESERVED_PLACES_MAX),
        }
    }

    /// Takes a free place. A known client uses the reserved lane only while the common one is busy, and then queues
    /// among known clients only.
    fn place(&self, is_known: bool) -> Option<Place<'_>> {
        let everybody = &self.everybody;
        let reserved = Some(&self.reserved).filter(|_| is_known);
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
    /// Waits until the check may begin.
    async fn wait(&mut self) -> Result<(), LoginFailure> {
        if self.turn.is_none() {
            let turn = timeout(TURN_PATIENCE, Arc::clone(&self.checks.running).acquire_owned()).await;
            self.turn = Some(turn.ok().and_then(Result::ok).ok_or(LoginFailure::Busy)?);
        }
        Ok(())
    }

    /// Checks a password. A running check continues if nobody waits for it any more, and counts until its end. The next
    /// one begins when the place is dropped.
    async fn check(&mut self, hash: Arc<PasswordHash>, password: String) -> Result<bool, LoginFailure> {
        let turn = self.turn.take();
        let (is_right, turn) =
            spawn_blocking(move || (hash.is_of(&password), turn)).await.map_err(|_| LoginFailure::Busy)?;
        self.turn = turn;
        Ok(is_right)
    }
}

/// Concurrent checks for sending: about 60 MiB, including the reserved one.
const CHECKS_MAX: usize = 2;
/// Concurrent checks for reading: about 40 MiB, including the reserved one.
const READING_CHECKS_MAX: usize = 1;
const RESERVED_CHECKS_MAX: usize = 1;
/// Passwords checked or waiting for a purpose: about a second's worth.
const PLACES_MAX: usize = 64;
/// Places of known networks: fewer, so that their queue stays short.
const RESERVED_PLACES_MAX: usize = 16;
/// Longest wait of a password for its check.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
/// Refusals are sent after a multiple of this time.
const FAILURE_DELAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
