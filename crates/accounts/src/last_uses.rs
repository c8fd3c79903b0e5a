//! The last use of each login.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::login_use::{LoginOrigin, LoginUse};
use crate::logins::Logins;

/// A successful login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastUse {
    /// Seconds since 1970.
    pub at: u64,
    /// Purpose of the login.
    pub purpose: LoginUse,
    /// The client's network, as in [`LoginOrigin`].
    pub network: Option<IpAddr>,
}

/// Last successes since the start, by name.
#[derive(Debug, Default)]
pub(crate) struct LastUses(Mutex<HashMap<Box<str>, LastUse>>);

impl LastUses {
    /// Records a success. `logins` are the current ones, which bound the map: only a few names removed by a reload are
    /// kept.
    pub fn note(&self, logins: &Logins, name: &str, origin: LoginOrigin) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let last = LastUse { at, purpose: origin.purpose, network: origin.network };
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = uses.get_mut(name) {
            *known = last;
            return;
        }
        if uses.len() >= logins.len() + REMOVED_MAX {
            uses.retain(|name, _| logins.get(name).is_some());
        }
        uses.insert(name.into(), last);
    }

    pub fn of(&self, name: &str) -> Option<LastUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }
}

/// Maximum removed logins that are kept.
const REMOVED_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_uses_are_bounded_by_the_logins() {
        let (uses, none) = (LastUses::default(), Logins::default());
        let origin = LoginOrigin { purpose: LoginUse::Reading, network: None };
        for number in 0..10 * REMOVED_MAX {
            uses.note(&none, &number.to_string(), origin);
        }
        assert!(uses.0.lock().unwrap().len() <= REMOVED_MAX);
        let last = (10 * REMOVED_MAX - 1).to_string();
        assert_eq!(uses.of(&last).map(|last| last.purpose), Some(LoginUse::Reading));
    }
}
