//! Wrong passwords counted by account, from any client.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Wrong passwords of each name, whether the login exists or not: a difference would reveal which names exist.
#[derive(Debug, Default)]
pub(crate) struct AccountGuesses {
    /// By a 16-bit digest of the name, with a key known to this process only. The key type bounds the map, so invented
    /// names evict no count. Names may share a slot.
    slots: Mutex<HashMap<u16, GuessedAccount>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct GuessedAccount {
    /// Time of the first failure; of the last one once the account is slow.
    since: Instant,
    failures: u32,
    /// Digest of the last guess ([`Guesses::digest`](crate::guesses::Guesses::digest)): a program with an outdated
    /// password repeats it endlessly, and counts once.
    last: u64,
}

impl AccountGuesses {
    /// True if unknown networks wait [`ACCOUNT_WAIT`] for this account, after too many wrong passwords.
    pub fn is_slow(&self, name: &str) -> bool {
        self.of(name).1
    }

    /// Number of wrong passwords that count against the name, and true if they make the account slow.
    pub fn of(&self, name: &str) -> (u32, bool) {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let counting = slots.get(&self.slot(name)).filter(|of| of.since.elapsed() < ACCOUNT_GUESSES_FOR);
        counting.map_or((0, false), |of| (of.failures, of.failures >= ACCOUNT_FAILURES_MAX))
    }

    /// Forgets the wrong passwords of a name. False if there are none.
    pub fn forget(&self, name: &str) -> bool {
        let is_counted = self.of(name).0 > 0;
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.slot(name));
        is_counted
    }

    /// Counts a wrong password, unless it repeats the last one.
    pub fn failed(&self, name: &str, guess: u64) {
        let now = Instant::now();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let new = GuessedAccount { since: now, failures: 0, last: !guess };
        let guessed = slots.entry(self.slot(name)).or_insert(new);
        if now - guessed.since >= ACCOUNT_GUESSES_FOR {
            (guessed.since, guessed.failures) = (now, 0);
        }
        if guessed.last == guess {
            return;
        }
        guessed.last = guess;
        guessed.failures = guessed.failures.saturating_add(1);
        if guessed.failures >= ACCOUNT_FAILURES_MAX {
            guessed.since = now;
        }
    }

    fn slot(&self, name: &str) -> u16 {
        self.hasher.hash_one(name) as u16
    }
}

/// Maximum wrong passwords of one account within [`ACCOUNT_GUESSES_FOR`].
pub(crate) const ACCOUNT_FAILURES_MAX: u32 = 100;
/// Time for which wrong passwords of an account count, and for which it stays slow after the last one.
pub(crate) const ACCOUNT_GUESSES_FOR: Duration = Duration::from_secs(3600);
/// Delay of each attempt at a slow account from an unknown network.
pub(crate) const ACCOUNT_WAIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_account_is_slow_until_an_hour_without_guesses() {
        let guesses = AccountGuesses::default();
        for guess in 0..u64::from(ACCOUNT_FAILURES_MAX) - 1 {
            guesses.failed("ann@example.org", guess);
            guesses.failed("ann@example.org", guess);
        }
        assert!(!guesses.is_slow("ann@example.org"), "a guess that is repeated counts once");
        tokio::time::advance(ACCOUNT_GUESSES_FOR - Duration::from_secs(1)).await;
        guesses.failed("ann@example.org", 1000);
        assert!(guesses.is_slow("ann@example.org"));
        tokio::time::advance(ACCOUNT_GUESSES_FOR - Duration::from_secs(1)).await;
        assert!(guesses.is_slow("ann@example.org"));
        guesses.failed("ann@example.org", 1001);
        tokio::time::advance(ACCOUNT_GUESSES_FOR - Duration::from_secs(1)).await;
        assert!(guesses.is_slow("ann@example.org"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!guesses.is_slow("ann@example.org"));
        guesses.failed("ann@example.org", 1002);
        assert!(!guesses.is_slow("ann@example.org"), "the count begins anew");
        assert_eq!(guesses.of("ann@example.org"), (1, false));
        assert!(guesses.forget("ann@example.org") && !guesses.forget("ann@example.org"));
        assert_eq!(guesses.of("ann@example.org"), (0, false));
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_of_long_ago_do_not_count() {
        let guesses = AccountGuesses::default();
        for guess in 0..10 * u64::from(ACCOUNT_FAILURES_MAX) {
            guesses.failed("ann@example.org", guess);
            // 97 in an hour.
            tokio::time::advance(Duration::from_secs(37)).await;
            assert!(!guesses.is_slow("ann@example.org"), "{guess}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn accounts_that_are_guessed_at_are_bounded() {
        let guesses = AccountGuesses::default();
        for guess in 0..u64::from(ACCOUNT_FAILURES_MAX) {
            guesses.failed("ann@example.org", guess);
        }
        for name in 0..300_000 {
            guesses.failed(&name.to_string(), 1);
        }
        assert!(guesses.slots.lock().unwrap().len() <= 1 << 16);
        assert!(guesses.is_slow("ann@example.org"), "invented names displace no count");
    }
}
