//! Purpose and origin of a login, and why one is refused.

use std::net::IpAddr;

/// Purpose of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginUse {
    /// Login to send mail.
    Sending,
    /// To read mail: clients reconnect after a restart, with a dozen connections each.
    Reading,
}

impl LoginUse {
    pub(crate) const COUNT: usize = 2;
}

/// Origin of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginOrigin {
    /// Purpose of the login.
    pub purpose: LoginUse,
    /// The client's network: an IPv4 address, or an IPv6 /64. `None` without an address.
    pub network: Option<IpAddr>,
}

/// The reason of a refused login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginFailure {
    /// Wrong password, or unknown name; the reason is for the operator. The client is not told which.
    #[error("{0}")]
    Wrong(&'static str),
    /// Too many wrong guesses came from the client's address.
    #[error("too many wrong passwords from this address")]
    Blocked,
    /// Too many passwords wait for a check.
    #[error("too many logins at a time")]
    Busy,
}
