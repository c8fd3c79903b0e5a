//! The `[[listener]]` and `[[network]]` tables: sockets, and their overrides of `[limits]` and `[policy]`.

use posthaste_net::section::{Networks, Socket};
use posthaste_smtp::Protocol;
use posthaste_smtp::driver::{IpNet, UnixAccess};
use posthaste_smtp::section::PolicyOverrides;
use posthaste_units::keys::{self, Keys};
use serde::de::MapAccess;
use serde::{Deserialize, Deserializer, Serialize};

use super::auth::ListenerAuth;
use super::limits::LimitOverrides;
use super::tls::{ListenerTls, PemFiles};
use super::values::Table;
use crate::identity;
use crate::reload::{NeedsRestart, Reload, all_of};

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerProtocol {
    /// SMTP (RFC 5321).
    #[default]
    Smtp,
    /// LMTP (RFC 2033).
    Lmtp,
    /// HTTP/1.1: the API and the page.
    Http,
    /// IMAP (RFC 3501).
    Imap,
    /// POP3 (RFC 1939).
    Pop3,
}

impl ListenerProtocol {
    /// The protocol for incoming mail; `None` for the others.
    pub fn of_mail(self) -> Option<Protocol> {
        match self {
            Self::Smtp => Some(Protocol::Smtp),
            Self::Lmtp => Some(Protocol::Lmtp),
            Self::Http | Self::Imap | Self::Pop3 => None,
        }
    }

    /// True if users read their mail by it.
    pub fn is_of_readers(self) -> bool {
        matches!(self, Self::Imap | Self::Pop3)
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Smtp => "SMTP",
            Self::Lmtp => "LMTP",
            Self::Http => "HTTP",
            Self::Imap => "IMAP",
            Self::Pop3 => "POP3",
        }
    }

    /// The port for implicit TLS (RFC 8314).
    pub fn implicit_tls_port(self) -> Option<u16> {
        match self {
            Self::Smtp | Self::Lmtp => Some(465),
            Self::Imap => Some(993),
            Self::Pop3 => Some(995),
            Self::Http => None,
        }
    }
}

/// One socket that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Listener {
    /// Address, and networks that may connect.
    #[serde(flatten)]
    pub socket: Socket,
    /// `"smtp"` (RFC 5321), `"lmtp"` (RFC 2033: one reply for each recipient), `"http"` ([http.md](http.md)), `"imap"` or `"pop3"`
    /// ([imap-pop3.md](imap-pop3.md)). The last three have only the keys about the socket, TLS and numbers of connections. Default: `"smtp"`.
    pub protocol: ListenerProtocol,
    /// The tenant of mail for other hosts that comes here ([relay.md](relay.md#tenants-and-campaigns)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The campaign of that mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// The pool of sources that mail is sent from that comes here ([sources.md](sources.md#which-source)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// `true`: its clients may send mail anywhere; `false`: they may not. `true` needs a loopback address, a UNIX socket or `allow`
    /// ([relay.md](relay.md#who-may-send)). Default: as `[relay]` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<bool>,
    /// Logins of clients: `"off"`, `"offered"`, or `"required"`: MAIL before it is refused with 530 5.7.0 ([submission.md](submission.md)). Needs
    /// `[auth]` and TLS; on a loopback address and a UNIX socket it goes without TLS. Not with LMTP. Default: `"off"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<ListenerAuth>,
    /// `"off"`, `"starttls"`, `"required"` or `"implicit"`; with HTTP `"off"` on a loopback address, else `"implicit"`. With IMAP and POP3 `"required"`
    /// means before a password. Default: see [below](#tls).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,
    /// Other certificates for this listener: a file or a list, as in `[tls]`. Default: those of `[tls]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PemFiles>,
    /// Their private keys, as in `[tls]`. Default: those of `[tls]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PemFiles>,
    /// With HTTP: clients of these networks bring mail without a token ([inject.md](inject.md#without-a-token)). It is of the tenant of their `[[network]]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inject_from: Option<Networks>,
    /// Limits for this listener. `connections` and `connections_per_address` count this listener's connections, and apply in addition to those of
    /// `[limits]`; the others replace those of `[limits]`. Not possible: `memory_bytes`, `shutdown_secs`. Default: those of `[limits]`.
    #[serde(skip_serializing_if = "LimitOverrides::is_empty")]
    pub limits: LimitOverrides,
    /// Policies for this listener. Default: that of `[policy]`.
    #[serde(skip_serializing_if = "PolicyOverrides::is_empty")]
    pub policy: PolicyOverrides,
}

/// Clients of some networks, for which other limits and policies apply. The smallest network that a client is in decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// An address or network, or a list of them. Default: (required).
    pub cidr: Networks,
    /// The tenant of mail for other hosts that comes from there. Default: the listener's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The campaign of that mail. Default: the listener's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// The pool of sources that it is sent from. Default: the listener's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// `true`: these clients may send mail anywhere ([relay.md](relay.md#who-may-send)). Default: the listener's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<bool>,
    /// `"offered"` or `"required"`: logins of these clients, at listeners where `auth` is not `"off"`. Default: the listener's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<ListenerAuth>,
    /// Limits that replace those of the listener and of `[limits]`; the same keys as in `[listener.limits]`. `connections` counts the connections of each
    /// network, over all listeners. Default: the listener's.
    #[serde(skip_serializing_if = "LimitOverrides::is_empty")]
    pub limits: LimitOverrides,
    /// Policies that replace those of the listener and of `[policy]`. Default: the listener's.
    #[serde(skip_serializing_if = "PolicyOverrides::is_empty")]
    pub policy: PolicyOverrides,
}

impl Table for Listener {
    const NAME: &str = "listener";
}

impl Table for Network {
    const NAME: &str = "network";
}

impl Reload for Vec<Network> {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Keys for Listener {
    fn keys() -> Vec<&'static str> {
        [
            Socket::keys(),
            vec![
                "protocol",
                "tenant",
                "campaign",
                "pool",
                "relay",
                "auth",
                "tls",
                "certificate",
                "key",
                "inject_from",
                "limits",
                "policy",
            ],
        ]
        .concat()
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, table: &mut A) -> Result<bool, A::Error> {
        match key {
            "protocol" => self.protocol = table.next_value()?,
            "tenant" => self.tenant = Some(table.next_value()?),
            "campaign" => self.campaign = Some(table.next_value()?),
            "pool" => self.pool = Some(table.next_value()?),
            "relay" => self.relay = Some(table.next_value()?),
            "auth" => self.auth = Some(table.next_value()?),
            "tls" => self.tls = Some(table.next_value()?),
            "certificate" => self.certificate = Some(table.next_value()?),
            "key" => self.key = Some(table.next_value()?),
            "inject_from" => self.inject_from = Some(table.next_value()?),
            "limits" => self.limits = table.next_value()?,
            "policy" => self.policy = table.next_value()?,
            _ => return self.socket.read(key, table),
        }
        Ok(true)
    }
}

impl<'de> Deserialize<'de> for Listener {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        keys::table_of(deserializer)
    }
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.socket.fmt(f)
    }
}

impl Listener {
    /// Access to a UNIX socket.
    ///
    /// # Errors
    /// The key that is wrong, and how.
    pub fn unix_access(&self) -> Result<UnixAccess, (&'static str, String)> {
        let mut access = UnixAccess::default();
        if let Some(mode) = &self.socket.mode {
            access.mode = identity::permission_bits(mode)
                .ok_or_else(|| ("mode", "permission bits in octal, such as \"0660\"".to_owned()))?;
        }
        if let Some(group) = &self.socket.group {
            access.group = Some(identity::group(group).map_err(|problem| ("group", problem))?);
        }
        Ok(access)
    }
}

impl Network {
    /// Each network separately, all with the same limits and policies.
    pub fn each(&self) -> impl Iterator<Item = (IpNet, &Self)> {
        self.cidr.0.iter().map(move |network| (*network, self))
    }
}
