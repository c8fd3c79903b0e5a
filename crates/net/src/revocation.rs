//! Rights that end while a session uses them.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;

/// The end of what a session may do, which comes from elsewhere: the password that it was opened with has changed, say.
pub struct Revocation(Pin<Box<dyn Future<Output = ()> + Send + Sync>>);

/// A login that was checked.
#[derive(Debug)]
pub struct Grant {
    /// Its name.
    pub login: String,
    /// When it ends.
    pub until: Revocation,
}

/// Of a login that does not change while it has sessions.
impl From<String> for Grant {
    fn from(login: String) -> Self {
        Self { login, until: Revocation::new(pending()) }
    }
}

impl Revocation {
    /// Comes when `revoked` does.
    pub fn new(revoked: impl Future<Output = ()> + Send + Sync + 'static) -> Self {
        Self(Box::pin(revoked))
    }

    /// Waits for it. Not to be called again once it has come.
    pub(crate) async fn comes(&mut self) {
        self.0.as_mut().await;
    }
}

impl fmt::Debug for Revocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocation").finish_non_exhaustive()
    }
}
