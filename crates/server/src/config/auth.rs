//! `[auth]`, and what of a `[[listener]]` and a `[[network]]` is about logins.

use std::path::PathBuf;

use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::{Config, Listener, ListenerTls, Network, Protocol};

/// Who may log in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// The file of passwords. Empty: nobody.
    pub file: PathBuf,
}

/// Whether clients of a listener log in (RFC 4954).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerAuth {
    /// They cannot.
    #[default]
    Off,
    /// They can.
    Offered,
    /// They have to, before any mail.
    Required,
}

impl Table for Auth {
    const NAME: &str = "auth";
}

impl Auth {
    /// The file, if there is one.
    pub(crate) fn file(&self) -> Option<&std::path::Path> {
        Some(&*self.file).filter(|file| !file.as_os_str().is_empty())
    }
}

impl Listener {
    /// Whether clients log in here, those of `network` if one is given. What a network says counts at listeners that have logins.
    pub(crate) fn auth_mode(&self, network: Option<&Network>) -> ListenerAuth {
        match self.auth {
            None | Some(ListenerAuth::Off) => ListenerAuth::Off,
            Some(own) => network.and_then(|network| network.auth).unwrap_or(own),
        }
    }

    /// Whether only programs of this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        self.socket.address.as_deref().is_none_or(super::check::is_loopback) && !self.socket.proxy_protocol
    }

    /// Whether a password that is sent here can be read on the way (RFC 4954 section 4).
    pub(crate) fn auth_needs_tls(&self) -> bool {
        !self.is_local() || self.tls_mode() == ListenerTls::Required
    }

    /// Finds what cannot be meant about logins.
    pub(super) fn check_auth(&self, auth: &Auth) -> Result<(), Problem> {
        let message = match self.auth {
            None | Some(ListenerAuth::Off) => return Ok(()),
            _ if self.protocol == Protocol::Lmtp => "not with LMTP",
            _ if self.auth_needs_tls() && self.tls_mode() == ListenerTls::Off => {
                "passwords would cross the network in the clear: set `tls`, and `certificate` and `key`"
            }
            _ if auth.file().is_none() => "nobody could log in: set `file` below [auth]",
            _ => return Ok(()),
        };
        Err(Problem::new(["auth".into()], message))
    }
}

impl Network {
    /// The same for a network.
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
    /// Whether clients can log in anywhere.
    pub(crate) fn has_logins(&self) -> bool {
        self.listeners.iter().any(|listener| listener.auth_mode(None) != ListenerAuth::Off)
    }
}
