//! `[auth]`, and the keys of a `[[listener]]` and a `[[network]]` about logins.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use posthaste_directory::Directory;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::{Config, Listener, ListenerProtocol, ListenerTls, Network, Rates};
use crate::reload::{NeedsRestart, Reload, all_of};

/// Logins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// The file of passwords, with a line for each login.
    pub file: PathBuf,
    /// How many recipients each login may send to: `"200/hour"`, or several rates that all apply, `["200/hour", "500/day"]`. `[]`: any number. See
    /// [submission.md](submission.md#how-much-a-login-may-send).
    pub recipient_rate: Rates,
    /// The same for each user of this machine, who sends through [`posthaste sendmail`](sendmail.md): mail above it waits in the pickup directory.
    pub local_recipient_rate: Rates,
    /// The same for single logins, in place of `recipient_rate`: `{ "app@example.org" = "5000/hour", "news@example.org" = [] }`.
    pub recipient_rates: BTreeMap<String, Rates>,
}

/// Logins at a listener (RFC 4954).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerAuth {
    /// No logins.
    #[default]
    Off,
    /// Logins are offered.
    Offered,
    /// A login is required before any mail.
    Required,
}

impl Table for Auth {
    const NAME: &str = "auth";
}

impl Reload for Auth {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Auth {
    /// The file, if configured.
    pub fn file(&self) -> Option<&std::path::Path> {
        Some(&*self.file).filter(|file| !file.as_os_str().is_empty())
    }

    /// `recipient_rates` by the one form of each login's name.
    ///
    /// # Errors
    /// An invalid or duplicate name.
    pub fn rates_by_login(&self, directory: &Directory) -> Result<HashMap<String, Rates>, Problem> {
        let mut by_login = HashMap::new();
        for (written, rates) in &self.recipient_rates {
            let problem = |message: String| {
                Problem::new([Self::NAME.into(), "recipient_rates".into(), written.as_str().into()], message)
            };
            let name = directory.login_name(written);
            let name = name.ok_or_else(|| problem(format!("`{written}` is not a login, such as ann@example.org")))?;
            if by_login.contains_key(&name) {
                return Err(problem(format!("{name} is there already, written in another way")));
            }
            by_login.insert(name, rates.clone());
        }
        Ok(by_login)
    }
}

impl Listener {
    /// The login mode of clients here, or of clients of `network`. A network's own mode counts only at listeners with
    /// logins.
    pub fn auth_mode(&self, network: Option<&Network>) -> ListenerAuth {
        match self.auth {
            None | Some(ListenerAuth::Off) => ListenerAuth::Off,
            Some(own) => network.and_then(|network| network.auth).unwrap_or(own),
        }
    }

    /// True if only programs of this machine can connect.
    pub fn is_local(&self) -> bool {
        self.socket.address.as_deref().is_none_or(super::check::is_loopback) && !self.socket.proxy_protocol
    }

    /// True if a password could be read on the way here (RFC 4954 section 4).
    pub fn auth_needs_tls(&self) -> bool {
        !self.is_local() || self.tls_mode() == ListenerTls::Required
    }

    /// Validates the settings of logins.
    pub(super) fn check_auth(&self, auth: &Auth) -> Result<(), Problem> {
        let message = match self.auth {
            None | Some(ListenerAuth::Off) => return Ok(()),
            // Those have words of their own about it.
            _ if self.protocol.of_mail().is_none() => return Ok(()),
            _ if self.protocol == ListenerProtocol::Lmtp => "not with LMTP",
            _ if self.auth_needs_tls() && self.tls_mode() == ListenerTls::Off => {
                "passwords would cross the network in the clear: set `tls`"
            }
            _ if auth.file().is_none() => "nobody could log in: set `file` below [auth]",
            _ => return Ok(()),
        };
        Err(Problem::new(["auth".into()], message))
    }
}

impl Network {
    /// Validates the section of a network.
    pub(super) fn check_auth(&self, listeners: &[Listener]) -> Result<(), Problem> {
        let is_idle = listeners.iter().all(|listener| listener.auth_mode(None) == ListenerAuth::Off);
        match self.auth {
            Some(ListenerAuth::Offered | ListenerAuth::Required) if is_idle => {
                Err(Problem::new(["auth".into()], "no listener has `auth`, where this would count"))
            }
            _ => Ok(()),
        }
    }
}

impl Config {
    /// True if clients can log in anywhere.
    pub fn has_logins(&self) -> bool {
        self.listeners.iter().any(|listener| listener.auth_mode(None) != ListenerAuth::Off)
    }
}
