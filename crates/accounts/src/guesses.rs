//! Wrong guesses, by the client's network.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::login_use::{LoginFailure, LoginUse};

/// Wrong guesses, by network.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    networks: Mutex<HashMap<Network, Counted>>,
    hasher: RandomState,
}

/// The network that a guess is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Network {
    /// An IPv4 address, or an IPv6 /64.
    Client(IpAddr),
    /// An IPv6 /48: one site may have it (RFC 6177), or thousands of subscribers.
    Prefix48(Ipv6Addr),
}

/// The /48 of an IPv6 address.
pub(crate) fn prefix48(ip: IpAddr) -> Option<Ipv6Addr> {
    match ip {
        IpAddr::V6(ip) => Some(Ipv6Addr::from_bits(ip.to_bits() >> 80 << 80)),
        IpAddr::V4(_) => None,
    }
}

impl Network {
    /// Networks that a client counts in, smallest first.
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

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(ip @ IpAddr::V4(_)) => ip.fmt(f),
            Self::Client(ip @ IpAddr::V6(_)) => write!(f, "{ip}/64"),
            Self::Prefix48(ip) => write!(f, "{ip}/48"),
        }
    }
}

#[derive(Debug)]
struct Counted {
    /// Time of the first failure.
    since: Instant,
    failures: u32,
    /// Digest of the last wrong guess and the hash it was checked against, and the reason of its refusal. A program
    /// with an outdated password repeats one guess and learns nothing, so a repetition does not count. The digest's key
    /// is known to this process only. Kept for a [`Network::Client`] only.
    last: Option<(u64, &'static str)>,
    /// Attempts in flight by purpose, so that one purpose does not fill the other.
    in_flight: [u32; LoginUse::COUNT],
}

impl Counted {
    fn is_idle(&self) -> bool {
        self.in_flight.iter().all(|count| *count == 0)
    }
}

/// An attempt to log in, from its start to its reply.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    guesses: &'a Guesses,
    purpose: LoginUse,
    /// Networks in which it counts as in flight, the client first.
    networks: Vec<Network>,
}

impl Guesses {
    fn lock(&self) -> MutexGuard<'_, HashMap<Network, Counted>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Digest of a guess, by a key that only this process knows.
    pub fn digest(&self, guess: impl Hash) -> u64 {
        self.hasher.hash_one(guess)
    }

    /// Begins an attempt from a network; `None` is never refused. Wrong guesses from the same /48 block unknown
    /// networks only.
    ///
    /// # Errors
    /// [`LoginFailure::Blocked`] and [`LoginFailure::Busy`].
    pub fn begin(&self, purpose: LoginUse, from: Option<IpAddr>, is_known: bool) -> Result<Attempt<'_>, LoginFailure> {
        let mut attempt = Attempt { guesses: self, purpose, networks: Vec::new() };
        for network in Network::all(from) {
            // What others in a /48 guess does not keep out a client that is known. Its own guesses count there all the same.
            let is_limited = !is_known || matches!(network, Network::Client(_));
            self.enter(network, purpose, is_limited)?;
            attempt.networks.push(network);
        }
        Ok(attempt)
    }

    fn enter(&self, network: Network, purpose: LoginUse, is_limited: bool) -> Result<(), LoginFailure> {
        let now = Instant::now();
        let mut networks = self.lock();
        if networks.len() >= NETWORKS_MAX && !networks.contains_key(&network) {
            networks.retain(|_, counted| !counted.is_idle() || now - counted.since < GUESSES_FOR);
        }
        if networks.len() >= NETWORKS_MAX && !networks.contains_key(&network) {
            let idle = networks.iter().filter(|(_, counted)| counted.is_idle());
            let oldest = idle.min_by_key(|(_, counted)| counted.since).map(|(network, _)| *network);
            networks.remove(&oldest.ok_or(LoginFailure::Busy)?);
        }
        let new = Counted { since: now, failures: 0, last: None, in_flight: [0; LoginUse::COUNT] };
        let counted = networks.entry(network).or_insert(new);
        if now - counted.since >= GUESSES_FOR {
            (counted.since, counted.failures, counted.last) = (now, 0, None);
        }
        if is_limited && counted.failures >= network.failures_max() {
            return Err(LoginFailure::Blocked);
        }
        if is_limited && counted.in_flight[purpose as usize] >= network.in_flight_max() {
            return Err(LoginFailure::Busy);
        }
        counted.in_flight[purpose as usize] += 1;
        Ok(())
    }
}

/// A client, or a /48 of IPv6, that has guessed wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuessingClient {
    /// An address of IPv4, or a prefix of IPv6: `2001:db8::/64`.
    pub network: String,
    /// Counted wrong passwords or tokens.
    pub wrong: u32,
    /// True while its attempts are refused without a check.
    pub is_turned_away: bool,
    /// Seconds until its guesses no longer count.
    pub secs_left: u64,
}

impl GuessingClient {
    /// Sort key of a list: blocked clients first, then by number of guesses.
    pub(crate) fn rank(&self) -> (bool, u32, &str) {
        (!self.is_turned_away, u32::MAX - self.wrong, &self.network)
    }
}

impl Guesses {
    /// Networks with counted failures.
    pub fn clients(&self) -> Vec<GuessingClient> {
        let networks = self.lock();
        let counting = networks.iter().filter(|(_, counted)| counted.failures > 0);
        counting
            .filter_map(|(network, counted)| {
                let left = GUESSES_FOR.checked_sub(counted.since.elapsed()).filter(|left| !left.is_zero())?;
                let is_turned_away = counted.failures >= network.failures_max();
                let secs_left = left.as_secs_f64().ceil() as u64;
                Some(GuessingClient {
                    network: network.to_string(),
                    wrong: counted.failures,
                    is_turned_away,
                    secs_left,
                })
            })
            .collect()
    }

    /// Clears the failures of a client and of its /48. False if it had none.
    pub fn forget(&self, ip: IpAddr) -> bool {
        let client = match ip {
            IpAddr::V4(_) => ip,
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        };
        let mut networks = self.lock();
        let mut is_found = false;
        for network in Network::all(Some(client)) {
            let Some(counted) = networks.get_mut(&network) else { continue };
            is_found |= counted.failures > 0 && counted.since.elapsed() < GUESSES_FOR;
            (counted.failures, counted.last) = (0, None);
            if counted.is_idle() {
                networks.remove(&network);
            }
        }
        is_found
    }
}

impl Attempt<'_> {
    /// Reason for which the client's last guess was refused, if this is the same guess.
    pub fn refused_before(&self, guess: u64) -> Option<&'static str> {
        let networks = self.guesses.lock();
        networks.get(self.networks.first()?)?.last.filter(|(last, _)| *last == guess).map(|(_, why)| why)
    }

    /// Counts a wrong guess, unless it repeats the client's last one. True if it was counted.
    pub fn failed(&self, guess: u64, why: &'static str) -> bool {
        let mut networks = self.guesses.lock();
        let client = self.networks.first().and_then(|client| networks.get_mut(client));
        if client.is_some_and(|client| client.last.replace((guess, why)).is_some_and(|(last, _)| last == guess)) {
            return false;
        }
        for network in &self.networks {
            let Some(counted) = networks.get_mut(network) else { continue };
            counted.failures += 1;
            if counted.failures == 1 || counted.failures == network.failures_max() {
                // A block lasts from the last of them on.
                counted.since = Instant::now();
            }
        }
        true
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut networks = self.guesses.lock();
        for network in &self.networks {
            if let Some(counted) = networks.get_mut(network) {
                counted.in_flight[self.purpose as usize] -= 1;
                if counted.is_idle() && counted.failures == 0 {
                    networks.remove(network);
                }
            }
        }
    }
}

/// Attempts of one client at a time for each purpose, including those whose reply is delayed.
pub(crate) const IN_FLIGHT_MAX: u32 = 16;
/// Attempts of one /48 at a time for each purpose.
const PREFIX_IN_FLIGHT_MAX: u32 = 32;
/// Maximum wrong guesses of a client within [`GUESSES_FOR`].
pub(crate) const FAILURES_MAX: u32 = 10;
/// Maximum wrong guesses of a /48 within [`GUESSES_FOR`].
pub(crate) const PREFIX_FAILURES_MAX: u32 = 80;
/// Time for which wrong guesses count, and for which a client is refused then.
pub(crate) const GUESSES_FOR: Duration = Duration::from_secs(600);
/// Networks whose wrong guesses, and logins, are remembered: about a megabyte each.
pub(crate) const NETWORKS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn networks_that_guess_are_bounded() {
        let guesses = Guesses::default();
        let ip = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        for number in 0..NETWORKS_MAX as u32 {
            guesses.begin(LoginUse::Sending, Some(ip(number)), false).unwrap().failed(1, "wrong password");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let held = guesses.begin(LoginUse::Sending, Some(ip(0)), false).unwrap();
        drop(guesses.begin(LoginUse::Sending, Some(ip(1_000_000)), false).unwrap());
        let networks = guesses.lock();
        assert_eq!(networks.len(), NETWORKS_MAX - 1);
        let has = |number| networks.contains_key(&Network::Client(ip(number)));
        assert!(has(0) && !has(1), "the oldest that is not at work goes");
        drop(networks);
        drop(held);
    }
}
