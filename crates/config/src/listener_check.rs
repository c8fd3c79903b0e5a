//! Checks of the keys of a `[[listener]]` and a `[[network]]`.

use posthaste_net::section::Networks;
use posthaste_smtp::section::PolicyOverrides;
use posthaste_units::words::Problem;

use super::auth::{Auth, ListenerAuth};
use super::limits::LimitOverrides;
use super::listeners::{Listener, ListenerProtocol, Network};
use super::tls::{ListenerTls, PemFiles, check_keys};

impl Listener {
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

    /// Validates the settings of reading mail.
    pub(super) fn check_reading(&self, auth: &Auth) -> Result<(), Problem> {
        if !self.is_for_reading() {
            return Ok(());
        }
        self.check_no_mail_keys()?;
        let name = self.protocol.name();
        if self.auth_needs_tls() && self.tls_mode() == ListenerTls::Off {
            let message = "passwords would cross the network in the clear: set `tls`";
            return Err(Problem::new(["protocol".into()], message));
        }
        if auth.file().is_none() {
            let message = format!("nobody could log in by {name}: set `file` below [auth]");
            return Err(Problem::new(["protocol".into()], message));
        }
        Ok(())
    }

    /// Finds keys about incoming mail at a listener without any.
    pub(super) fn check_no_mail_keys(&self) -> Result<(), Problem> {
        let name = self.protocol.name();
        let of_mail = [
            ("tenant", self.tenant.is_some()),
            ("campaign", self.campaign.is_some()),
            ("pool", self.pool.is_some()),
            ("relay", self.relay.is_some()),
            ("auth", self.auth.is_some()),
            ("policy", self.policy != PolicyOverrides::default()),
            (
                "limits",
                self.limits != LimitOverrides { connections: self.limits.connections.clone(), ..Default::default() },
            ),
        ];
        let Some((key, _)) = of_mail.into_iter().find(|(_, is_set)| *is_set) else { return Ok(()) };
        let message = match key {
            "limits" => format!("with {name} only `connections` and `connections_per_address`"),
            "auth" if self.is_for_reading() => format!("not with {name}: its clients always log in"),
            _ => format!("not with {name}"),
        };
        Err(Problem::new([key.into()], message))
    }

    /// Validates the settings of TLS, without their files.
    pub(super) fn check_tls(&self) -> Result<(), Problem> {
        let none = PemFiles::default();
        check_keys(self.certificate.as_ref().unwrap_or(&none), self.key.as_ref().unwrap_or(&none))?;
        match self.tls_mode() {
            ListenerTls::Off => Ok(()),
            _ if self.socket.unix.is_some() => Err(Problem::new(["tls".into()], "only for `address`")),
            _ => Ok(()),
        }
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
