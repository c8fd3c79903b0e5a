//! Answers to [`Request::Logins`](crate::Request::Logins).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LoginsLine {
    /// Status of a login.
    Login(LoginLine),
    /// A client with counted wrong guesses.
    Client(ClientLine),
    /// The password that opens every account while there is no configuration.
    First {
        /// Path of the file that has the password.
        first_password: String,
    },
}

/// Status of a login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginLine {
    /// Login name, such as `ann@example.org`.
    pub login: String,
    /// Tenant that is charged for its mail, if any.
    pub tenant: Option<String>,
    /// True if SCRAM-SHA-256 keys are stored for it.
    pub scram: bool,
    /// Time of the last successful login since the server's start, in seconds since 1970.
    pub last_use: Option<u64>,
    /// Purpose of the last successful login.
    pub last_to: Option<LoginPurpose>,
    /// Network of the client at the last successful login; `None` without an IP address.
    pub last_from: Option<IpAddr>,
    /// True while its password is cached, so that a login needs no Argon2 check.
    pub remembered: bool,
    /// Number of wrong passwords that count against this login.
    pub wrong: u32,
    /// True while unknown networks must wait before each attempt.
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
    /// An IP address, or a network such as `2001:db8::/48`.
    pub client: String,
    /// Number of its wrong passwords and tokens that count.
    pub wrong: u32,
    /// True if its attempts are refused without a check.
    pub turned_away: bool,
    /// Seconds until its wrong guesses no longer count.
    pub secs: u64,
}
