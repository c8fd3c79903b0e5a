//! Revocation of a login during its session.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;

/// The end of a session's rights, caused elsewhere: for example by a change of its password.
pub struct Revocation(Pin<Box<dyn Future<Output = ()> + Send + Sync>>);

/// A successful login.
#[derive(Debug)]
pub struct Grant {
    /// Its name.
    pub login: String,
    /// The end of its rights.
    pub until: Revocation,
}

/// A login whose rights do not end during its sessions.
impl From<String> for Grant {
    fn from(login: String) -> Self {
        Self { login, until: Revocation::new(pending()) }
    }
}

impl Revocation {
    /// Ends the rights when `revoked` completes.
    pub fn new(revoked: impl Future<Output = ()> + Send + Sync + 'static) -> Self {
        Self(Box::pin(revoked))
    }

    /// Waits for the end. Must not be called again after it.
    pub(crate) async fn comes(&mut self) {
        self.0.as_mut().await;
    }
}

impl fmt::Debug for Revocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocation").finish_non_exhaustive()
    }
}
