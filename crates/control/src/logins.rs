//! Answers to [`Request::Logins`](crate::Request::Logins).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LoginsLine {
    /// Somebody who may log in.
    Login(LoginLine),
    /// A client that has guessed wrong.
    Client(ClientLine),
    /// The password that opens every account, as long as there is no configuration.
    First {
        /// Its file.
        first_password: String,
    },
}

/// A login as the server knows it.
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
    /// Seconds after which they count no more.
    pub secs: u64,
}
