//! Logins in SMTP sessions, and the persistent part of the defence against guessing.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_accounts::{Login, LoginFailure, LoginGate, LoginSecrets, Logins};
use posthaste_directory::Directory;
use posthaste_smtp::sasl::{MECHANISMS, scram};
use posthaste_smtp::{Reply, ReversePath, driver};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::config::error::ServeError;
use crate::config::first_password::FirstPassword;
use crate::lifecycle::{Ending, OnFailure, Service, end_blocking};
use crate::receive::handler::Receiver;
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

/// Regularly saves the networks with successful logins.
pub(crate) struct KnownNetworksService {
    saving: JoinHandle<()>,
    receiver: Receiver,
}

impl KnownNetworksService {
    pub fn begin(receiver: Receiver) -> Self {
        let of_task = receiver.clone();
        let saving = tokio::spawn(async move {
            loop {
                sleep(SAVE_INTERVAL).await;
                let receiver = of_task.clone();
                let _ = spawn_blocking(move || save(&receiver)).await;
            }
        });
        Self { saving, receiver }
    }
}

fn save(receiver: &Receiver) {
    if let Err(error) = receiver.gate().save() {
        tracing::warn!(error = error.to_string(), "cannot save the networks that have logged in");
    }
}

impl Service for KnownNetworksService {
    fn name(&self) -> &'static str {
        "known networks"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("networks that log in are not known after a restart")
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        self.saving.abort();
        end_blocking(move || save(&self.receiver))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        std::pin::Pin::new(&mut self.saving).poll(cx).map(drop)
    }
}

/// The file in the data directory.
const KNOWN_NETWORKS: &str = "known-networks";
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
