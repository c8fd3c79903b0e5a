//! The gate's state for an operator, and the reset of wrong guesses.

use std::fmt;
use std::net::IpAddr;

use posthaste_directory::Directory;

use super::LoginGate;
use crate::guesses::GuessingClient;
use crate::last_uses::LastUse;
use crate::logins::Logins;

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
    /// Parses an IP address, a network in the form of [`GuessingClient`], or the name of a login. `None` for anything
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

impl LoginGate {
    /// All logins, by name.
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
