//! Counts sessions by login, for a limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of open sessions of each login. Clones share it, so that listeners count together.
#[derive(Debug, Clone, Default)]
pub struct LoginSessions(Arc<Mutex<HashMap<String, usize>>>);

/// An open session. Dropping it makes room for another one.
pub(super) struct LoginSession {
    all: LoginSessions,
    login: String,
}

impl LoginSessions {
    /// `None` if `login` has `most` sessions already. 0: any number.
    pub(super) fn begin(&self, login: String, most: usize) -> Option<LoginSession> {
        let mut counts = self.lock();
        if most > 0 && counts.get(&login).is_some_and(|count| *count >= most) {
            return None;
        }
        *counts.entry(login.clone()).or_default() += 1;
        drop(counts);
        Some(LoginSession { all: self.clone(), login })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LoginSession {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        match counts.get_mut(&self.login) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.login)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_has_no_more_sessions_than_it_may() {
        let all = LoginSessions::default();
        let ann = || all.begin("ann".to_owned(), 2);
        let (first, second) = (ann().unwrap(), ann().unwrap());
        assert!(ann().is_none());
        assert!(all.begin("bob".to_owned(), 2).is_some());
        drop(first);
        let third = ann().unwrap();
        assert!(ann().is_none());
        assert!(all.begin("ann".to_owned(), 0).is_some(), "no limit");
        drop((second, third));
        assert!(all.lock().is_empty(), "no name is kept");
    }
}
