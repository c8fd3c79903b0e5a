//! The gate's knowledge for an operator, and an end to what guessing costs a client.

use std::fmt;
use std::net::IpAddr;

use posthaste_directory::Directory;

use super::LoginGate;
use crate::guesses::GuessingClient;
use crate::last_uses::LastUse;
use crate::logins::Logins;

/// A login as the gate knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginStatus {
    /// The login's name.
    pub name: String,
    /// The tenant of its line.
    pub tenant: Option<String>,
    /// True if its line has keys of SCRAM-SHA-256.
    pub has_scram: bool,
    /// Its last success since the start.
    pub last_use: Option<LastUse>,
    /// True while its password costs no check.
    pub is_remembered: bool,
    /// Wrong passwords for its name that count now.
    pub wrong: u32,
    /// True while strangers wait before each attempt.
    pub is_slow: bool,
}

/// Of whom wrong passwords are forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guessed {
    /// Of a client: its address of IPv4, or its /64 and /48 of IPv6.
    Client(IpAddr),
    /// For an account, from wherever.
    Account(String),
}

impl Guessed {
    /// An address of IP or a network as [`GuessingClient`] has it, or the name of a login. `None`: neither.
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

    /// Clients whose wrong passwords, or tokens, count now: those that are turned away first, then those with the most.
    pub fn guessing_clients(&self) -> Vec<GuessingClient> {
        let mut all = [self.guesses.clients(), self.token_guesses.clients()].concat();
        all.sort_by(|a, b| a.rank().cmp(&b.rank()));
        all
    }

    /// Forgets wrong passwords of a client or for an account: it is neither turned away nor slow for them. False: there are none.
    pub fn forget(&self, of: &Guessed) -> bool {
        match of {
            Guessed::Client(ip) => self.guesses.forget(*ip) | self.token_guesses.forget(*ip),
            Guessed::Account(name) => self.account_guesses.forget(name),
        }
    }
}
