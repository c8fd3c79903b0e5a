//! Answers to [`Request::Logins`](crate::Request::Logins).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LoginsLine {
    /// A login.
    Login(LoginLine),
    /// A client that has guessed wrong.
    Client(ClientLine),
    /// The password that opens every account while there is no configuration.
    First {
        /// Its file.
        first_password: String,
    },
}

/// The server's data about a login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginLine {
    /// Its name.
    pub login: String,
    /// The tenant of its mail.
    pub tenant: Option<String>,
    /// True if it has keys of SCRAM-SHA-256.
    pub scram: bool,
    /// Its last success since the server's start, in seconds since 1970.
    pub last_use: Option<u64>,
    /// The purpose of that.
    pub last_to: Option<LoginPurpose>,
    /// The client's network, if it has one.
    pub last_from: Option<IpAddr>,
    /// True while its password costs no check.
    pub remembered: bool,
    /// Wrong passwords for it that count.
    pub wrong: u32,
    /// True while strangers wait before each attempt.
    pub slow: bool,
}

/// The purpose of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoginPurpose {
    /// Login to send mail.
    Send,
    /// Login to read mail.
    Read,
}

/// A client, or a /48 of IPv6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientLine {
    /// Its address or network.
    pub client: String,
    /// Its wrong passwords and tokens that count.
    pub wrong: u32,
    /// True if its attempts are turned away without a check.
    pub turned_away: bool,
    /// Seconds until they expire.
    pub secs: u64,
}
