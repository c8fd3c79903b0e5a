//! Recently checked passwords, so that a reconnecting client costs no second Argon2 check.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use tokio::time::Instant;

use crate::password::PasswordHash;

/// The last correct password of each login, as a MAC whose key only this process has and never writes down.
pub(crate) struct RememberedPasswords {
    /// `None` without random numbers from the system: then nothing is remembered.
    key: Option<hmac::Key>,
    table: Mutex<Table>,
}

struct Table {
    /// By the login's name.
    by_name: HashMap<Box<str>, Remembered>,
    /// Time of the last removal of unused entries.
    swept: Instant,
}

struct Remembered {
    /// The hash that the password was checked against. A changed hash invalidates the entry.
    hash: Arc<PasswordHash>,
    tag: hmac::Tag,
    used: Instant,
}

impl Default for RememberedPasswords {
    fn default() -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Self { key, table: Mutex::new(Table { by_name: HashMap::new(), swept: Instant::now() }) }
    }
}

impl RememberedPasswords {
    /// True if `password` is known to be right for the login `name`, whose line has `hash`. Compares in constant time.
    pub fn is_right(&self, name: &str, hash: &PasswordHash, password: &str) -> bool {
        let Some(key) = &self.key else { return false };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = table.by_name.get_mut(name) else { return false };
        if found.used.elapsed() >= REMEMBERED_FOR || *found.hash != *hash {
            table.by_name.remove(name);
            return false;
        }
        let is_right = hmac::verify(key, &message(name, password), found.tag.as_ref()).is_ok();
        if is_right {
            found.used = Instant::now();
        }
        is_right
    }

    /// True if the password of the login `name`, whose line has `hash`, is remembered.
    pub fn has(&self, name: &str, hash: &PasswordHash) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.by_name.get(name).is_some_and(|found| found.used.elapsed() < REMEMBERED_FOR && *found.hash == *hash)
    }

    /// Remembers a password that passed the check.
    pub fn add(&self, name: &str, hash: &Arc<PasswordHash>, password: &str) {
        let Some(key) = &self.key else { return };
        let tag = hmac::sign(key, &message(name, password));
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !table.by_name.contains_key(name);
        if table.swept.elapsed() >= SWEEP_INTERVAL || is_new && table.by_name.len() >= REMEMBERED_MAX {
            table.swept = Instant::now();
            table.by_name.retain(|_, remembered| remembered.used.elapsed() < REMEMBERED_FOR);
        }
        if is_new && table.by_name.len() >= REMEMBERED_MAX {
            let oldest = table.by_name.iter().min_by_key(|(_, remembered)| remembered.used);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.inspect(|name| _ = table.by_name.remove(name));
        }
        table.by_name.insert(name.into(), Remembered { hash: Arc::clone(hash), tag, used: Instant::now() });
    }

    #[cfg(test)]
    pub fn clear(&self) {
        self.table.lock().unwrap().by_name.clear();
    }
}

/// The MAC's input. It is unambiguous, since no name has a NUL.
fn message(name: &str, password: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0", password.as_bytes()].concat()
}

/// Omits names and hashes.
impl fmt::Debug for RememberedPasswords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RememberedPasswords").finish_non_exhaustive()
    }
}

/// Time for which a password is remembered after its last use.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Interval between removals of unused entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum logins with a remembered password: about 15 megabytes. Beyond that, the least recently used one is
/// forgotten.
const REMEMBERED_MAX: usize = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that is only compared here.
    fn hash(last: char) -> Arc<PasswordHash> {
        let text = format!("$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPP{last}");
        Arc::new(PasswordHash::parse(&text).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_password_is_remembered_for_its_login_and_its_line() {
        let (remembered, old, new) = (RememberedPasswords::default(), hash('c'), hash('g'));
        assert!(!remembered.is_right("ann", &old, "password"));
        remembered.add("ann", &old, "password");
        assert!(remembered.is_right("ann", &old, "password"));
        assert!(!remembered.is_right("ann", &old, "passwork") && !remembered.is_right("ann", &old, ""));
        assert!(!remembered.is_right("bob", &old, "password"));
        // An equal line of a file that was read again.
        assert!(remembered.is_right("ann", &hash('c'), "password"));
        assert!(!remembered.is_right("ann", &new, "password"));
        assert!(!remembered.is_right("ann", &old, "password"), "forgotten with the line");
    }

    #[tokio::test(start_paused = true)]
    async fn a_password_that_nobody_uses_is_forgotten() {
        let (remembered, hash) = (RememberedPasswords::default(), hash('c'));
        remembered.add("ann", &hash, "password");
        remembered.add("bob", &hash, "password");
        for _ in 0..3 {
            tokio::time::advance(REMEMBERED_FOR - Duration::from_secs(1)).await;
            assert!(remembered.is_right("ann", &hash, "password"), "each use counts");
        }
        // A wrong password is no use.
        tokio::time::advance(REMEMBERED_FOR - Duration::from_secs(1)).await;
        assert!(!remembered.is_right("ann", &hash, "Password"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!remembered.is_right("ann", &hash, "password"));
        remembered.add("carol", &hash, "password");
        assert_eq!(remembered.table.lock().unwrap().by_name.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_passwords_are_bounded() {
        let (remembered, hash) = (RememberedPasswords::default(), hash('c'));
        for number in 0..REMEMBERED_MAX {
            remembered.add(&number.to_string(), &hash, "password");
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        for number in 1..REMEMBERED_MAX {
            assert!(remembered.is_right(&number.to_string(), &hash, "password"));
        }
        remembered.add("ann", &hash, "password");
        assert_eq!(remembered.table.lock().unwrap().by_name.len(), REMEMBERED_MAX);
        assert!(remembered.is_right("ann", &hash, "password") && !remembered.is_right("0", &hash, "password"));
    }

    #[test]
    fn nobody_prints_a_remembered_password() {
        let remembered = RememberedPasswords { key: None, ..RememberedPasswords::default() };
        remembered.add("ann", &hash('c'), "password");
        assert!(!remembered.is_right("ann", &hash('c'), "password"), "without a key nothing is remembered");
        assert_eq!(format!("{remembered:?}"), "RememberedPasswords { .. }");
    }
}
