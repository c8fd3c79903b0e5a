//! The gate's state for an operator, and the reset of wrong guesses.

use std::fmt;
use std::net::IpAddr;

use posthaste_directory::Directory;

use crate::last_uses::LastUse;

/// State of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginStatus {
    /// The login's name.
    pub name: String,
    /// The tenant on its line.
    pub tenant: Option<String>,
    /// True if its line has keys of SCRAM-SHA-256.
    pub has_scram: bool,
    /// Its last success since the start.
    pub last_use: Option<LastUse>,
    /// True while its password is remembered, so that a login costs no check.
    pub is_remembered: bool,
    /// Wrong passwords for its name that count now.
    pub wrong: u32,
    /// True while unknown networks wait before each attempt.
    pub is_slow: bool,
}

/// Target of a reset of wrong passwords.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guessed {
    /// A client: an IPv4 address, or an IPv6 address with its /64 and /48.
    Client(IpAddr),
    /// An account, whatever the origin of the guesses.
    Account(String),
}

impl Guessed {
    /// Parses an IP address, a network in the form of [`GuessingClient`](crate::GuessingClient), or the name of a login. `None` for anything
    /// else.
    pub fn parse(text: &str, directory: &Directory) -> Option<Self> {
        let address = text.strip_suffix("/64").or_else(|| text.strip_suffix("/48")).unwrap_or(text);
        match address.parse::<IpAddr>() {
            Ok(ip) => Some(Self::Client(ip.to_canonical())),
            Err(_) => directory.login_name(text).map(Self::Account),
        }
    }
}

impl fmt::Display for Guessed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(ip) => ip.fmt(f),
            Self::Account(name) => f.write_str(name),
        }
    }
}
