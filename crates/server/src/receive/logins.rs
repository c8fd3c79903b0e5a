//! Logins in SMTP sessions, and the persistent part of the defence against guessing.

use std::io;
use std::path::Path;
use std::sync::Arc;

use posthaste_accounts::{Login, LoginFailure, LoginGate, LoginSecrets, Logins};
use posthaste_directory::Directory;
use posthaste_smtp::sasl::{MECHANISMS, scram};
use posthaste_smtp::{Reply, ReversePath, driver};
use tokio::task::spawn_blocking;

use crate::config::error::ServeError;
use crate::config::first_password::FirstPassword;
use posthaste_config::Config;

/// A session of this server. Its state is the verified password hash, so that a login ends when its password changes.
pub(crate) type Session = driver::Session<Option<Arc<LoginSecrets>>>;

/// Offered mechanisms: PLAIN and LOGIN are supported by all clients. SCRAM-SHA-256 comes first, if any login has keys,
/// as clients take the first known one.
pub(crate) fn mechanisms(logins: &Logins) -> Vec<String> {
    MECHANISMS
        .iter()
        .filter(|name| !name.starts_with(scram::NAME) || logins.has_scram())
        .map(|name| (*name).to_owned())
        .collect()
}

/// The reply to AUTH.
pub(crate) fn refusal(failure: LoginFailure) -> Reply {
    match failure {
        LoginFailure::Wrong(_) => Reply::new(535, "5.7.8", "Authentication credentials invalid"),
        LoginFailure::Blocked => {
            Reply::new(421, "4.7.0", "Too many wrong passwords from your address, try again later")
        }
        LoginFailure::Busy => Reply::new(454, "4.7.0", "Passwords cannot be checked now, try again later"),
    }
}

/// True if a login may send mail from there. Notifications have no sender, and are allowed to everybody.
pub(crate) fn may_send_as(login: &Login, name: &str, sender: &ReversePath, directory: &Directory) -> bool {
    *sender == ReversePath::Null || login.may_send_as(sender.address(), name, directory)
}

/// The gate, with the networks of earlier logins. Empty if their file is unreadable.
pub(crate) fn open_gate(data: &Path) -> LoginGate {
    let file = data.join(KNOWN_NETWORKS);
    LoginGate::open(file.clone()).unwrap_or_else(|error| {
        let file = file.display().to_string();
        let error = error.to_string();
        tracing::warn!(file, error, "cannot read the networks that have logged in: all count as unknown");
        LoginGate::default()
    })
}

/// The first password, if the configuration needs one. Only its file is logged.
///
/// # Errors
/// [`ServeError::Service`]: it can be neither read nor created.
pub(crate) async fn first_password(config: &Config) -> Result<Option<FirstPassword>, ServeError> {
    if !config.takes_first_password() {
        return Ok(None);
    }
    let data = config.storage.data.clone();
    let opened = spawn_blocking(move || FirstPassword::open(&data)).await.map_err(io::Error::from).flatten();
    let password = opened.map_err(|error| ServeError::Service { service: "the first password", error })?;
    let file = password.file().display().to_string();
    tracing::info!(file, "the password in this file opens the mail of every account, from this machine only");
    Ok(Some(password))
}

/// Saves the networks with successful logins. Blocks.
pub(crate) fn save_gate(gate: &LoginGate) {
    if let Err(error) = gate.save() {
        tracing::warn!(error = error.to_string(), "cannot save the networks that have logged in");
    }
}

/// The file in the data directory.
const KNOWN_NETWORKS: &str = "known-networks";
