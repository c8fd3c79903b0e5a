//! Keys of a `[[listener]]` for IMAP and POP3.

use posthaste_units::words::Problem;

use super::{Auth, Config, LimitOverrides, Listener, ListenerTls, PolicyOverrides};

impl Listener {
    /// True for IMAP and POP3.
    pub fn is_for_reading(&self) -> bool {
        self.protocol.is_of_readers()
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
}

impl Config {
    /// True if neither `[auth]` nor a listener is configured: then the server makes a password for reading mail.
    pub fn takes_first_password(&self) -> bool {
        self.has_default_listeners() && self.auth.file().is_none()
    }

    /// Listeners of IMAP and POP3.
    pub fn reading_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| listener.is_for_reading())
    }
}
