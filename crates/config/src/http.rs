//! `[http]`, and the keys of a `[[listener]]` about HTTP.

use posthaste_message::address::is_domain;
use posthaste_units::Rate;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::{Config, Listener, ListenerProtocol, ListenerTls, Networks, default_listeners};
use crate::reload::{NeedsRestart, Reload, all_of};

/// Settings that all HTTP listeners share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Host names by which browsers may ask, beside `host_name` and `localhost`, without ports. A request by another name gets 421, so that no other site
    /// can reach the page through its own DNS.
    pub names: Vec<String>,
    /// Requests that each token may make; more get 429.
    pub token_rate: Rate,
}

impl Default for Http {
    fn default() -> Self {
        // Above what the spool takes on fast disks, one message a request.
        Self { names: Vec::new(), token_rate: Rate::new(20_000, 1, 20_000).expect("a rate") }
    }
}

impl Table for Http {
    const NAME: &str = "http";
}

impl Reload for Http {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Http {
    /// Validates the section.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let wrong = self.names.iter().position(|name| !name.is_ascii() || !is_domain(name));
        wrong.map_or(Ok(()), |index| {
            let message = "not a host name, such as mail.example.org: letters, digits and hyphens, without a port";
            Err(Problem::new([Self::NAME.into(), "names".into(), index.into()], message))
        })
    }
}

impl Listener {
    /// True if HTTP is spoken here.
    pub fn is_http(&self) -> bool {
        self.protocol == ListenerProtocol::Http
    }

    /// Finds keys that are invalid with HTTP.
    pub(super) fn check_http(&self, has_acme: bool) -> Result<(), Problem> {
        match &self.inject_from {
            Some(_) if !self.is_http() => {
                return Err(Problem::new(["inject_from".into()], "only with protocol = \"http\""));
            }
            Some(Networks(networks)) if networks.is_empty() => {
                let message = "nobody could bring mail so; leave it out";
                return Err(Problem::new(["inject_from".into()], message));
            }
            _ => {}
        }
        if !self.is_http() {
            return match self.socket.proxies {
                Some(_) if !self.socket.proxy_protocol => {
                    Err(Problem::new(["proxies".into()], "only with `proxy_protocol = true`, or with HTTP"))
                }
                _ => Ok(()),
            };
        }
        self.check_no_mail_keys()?;
        let is_near = self.is_near() || (has_acme && self.is_public());
        match self.tls_mode() {
            ListenerTls::StartTls | ListenerTls::Required => {
                Err(Problem::new(["tls".into()], "HTTP has \"implicit\" or \"off\""))
            }
            ListenerTls::Off if !is_near => {
                let message = "tokens would cross the network in the clear: set tls = \"implicit\", or listen on a loopback address behind a web server";
                Err(Problem::new(["address".into()], message))
            }
            _ => Ok(()),
        }
    }
}

impl Config {
    /// Listeners that receive mail.
    pub fn mail_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| listener.protocol.of_mail().is_some())
    }

    /// Listeners of the API and the page.
    pub fn http_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| listener.is_http())
    }

    /// True if no listener is configured: then all but the SMTP listener take the next free port if theirs is busy.
    pub fn has_default_listeners(&self) -> bool {
        let mut default = default_listeners();
        default.iter_mut().for_each(|listener| listener.complete_tls(&self.tls, self.acme.enabled));
        self.listeners == default
    }
}
