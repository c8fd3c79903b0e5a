//! The `[[listener]]` and `[[network]]` tables: sockets, and their overrides of `[limits]` and `[policy]`.

use std::net::SocketAddr;

use posthaste_net::section::{Networks, Socket};
use posthaste_smtp::Protocol;
use posthaste_smtp::driver::{IpNet, UnixAccess};
use posthaste_smtp::section::PolicyOverrides;
use posthaste_units::keys::{self, Keys};
use serde::de::MapAccess;
use serde::{Deserialize, Deserializer, Serialize};

use super::auth::ListenerAuth;
use super::limits::LimitOverrides;
use super::tls::{CertificateFiles, ListenerTls, PemFiles, Tls};
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
    /// The mail protocol, SMTP or LMTP; `None` for the others.
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

    /// Name of the protocol in messages.
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
    /// The pool of sources for mail received here ([sources.md](sources.md#which-source)).
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
    /// The wrong key, and the mistake.
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

    /// True if HTTP is spoken here.
    pub fn is_http(&self) -> bool {
        self.protocol == ListenerProtocol::Http
    }

    /// True for IMAP and POP3.
    pub fn is_for_reading(&self) -> bool {
        self.protocol.is_of_readers()
    }

    /// True for HTTP without TLS on port 80 that other hosts can reach. It answers without secrets only, such as ACME
    /// challenges.
    pub fn is_public(&self) -> bool {
        self.is_http() && self.tls_mode() == ListenerTls::Off && self.has_port(80) && !self.is_near()
    }

    /// True if it listens on this port of an IP address.
    pub fn has_port(&self, port: u16) -> bool {
        let of_address = self.socket.address.as_deref().and_then(|address| address.rsplit_once(':'));
        of_address.is_some_and(|(_, own)| own.parse() == Ok(port))
    }

    /// True if only this machine can connect.
    pub(super) fn is_near(&self) -> bool {
        self.socket.address.as_deref().is_none_or(is_loopback)
    }

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
        self.socket.address.as_deref().is_none_or(is_loopback) && !self.socket.proxy_protocol
    }

    /// True if a password could be read on the way here (RFC 4954 section 4).
    pub fn auth_needs_tls(&self) -> bool {
        !self.is_local() || self.tls_mode() == ListenerTls::Required
    }

    /// TLS at this listener.
    pub fn tls_mode(&self) -> ListenerTls {
        self.tls.unwrap_or_default()
    }

    /// Its certificate files, in order. Empty without TLS.
    pub fn certificate_files(&self) -> Vec<CertificateFiles> {
        let Some(certificates) = self.certificate.as_ref().filter(|_| self.tls_mode() != ListenerTls::Off) else {
            return Vec::new();
        };
        let keys = self.key.as_ref().filter(|keys| !keys.0.is_empty()).unwrap_or(certificates);
        let each = certificates.0.iter().zip(&keys.0);
        each.map(|(chain, key)| CertificateFiles { chain: chain.clone(), key: key.clone() }).collect()
    }

    /// Fills in the values of `[tls]`. `has_acme`: certificates come from an authority.
    pub fn complete_tls(&mut self, default: &Tls, has_acme: bool) {
        let names_none = self.certificate.is_none() && self.key.is_none();
        let socket = &self.socket;
        let has_certificate = !names_none || default.is_set() || has_acme;
        let is_http = self.protocol == ListenerProtocol::Http;
        let mode =
            *self.tls.get_or_insert(match &socket.address {
                // Browsers have no certificate for a loopback address, and a web server in front has its own.
                Some(address) if is_http && is_loopback(address) => ListenerTls::Off,
                // For the challenges of an authority.
                Some(address) if is_http && has_acme && address.ends_with(":80") => ListenerTls::Off,
                // A proxy may have done it already.
                Some(address) if has_certificate && !socket.proxy_protocol => {
                    if is_http || self.is_at_tls_port(address) { ListenerTls::Implicit } else { ListenerTls::StartTls }
                }
                _ => ListenerTls::Off,
            });
        if names_none && mode != ListenerTls::Off && default.is_set() {
            self.certificate = Some(default.certificate.clone());
            self.key = Some(default.key.clone()).filter(|keys| !keys.0.is_empty());
        }
    }

    fn is_at_tls_port(&self, address: &str) -> bool {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.is_some_and(|port: u16| self.protocol.implicit_tls_port() == Some(port))
    }

    /// True if TLS begins with the first octet.
    fn is_implicit(&self) -> bool {
        self.tls_mode() == ListenerTls::Implicit
    }
}

/// Listeners keep their order, as sessions and sockets refer to them by number. Sockets are neither opened nor closed.
impl Reload for Vec<Listener> {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        let (mut merged, mut restart, mut left) =
            (Vec::with_capacity(self.len()), Vec::new(), new.iter().collect::<Vec<_>>());
        for old in self {
            let is_same =
                |new: &&Listener| (&new.socket.address, &new.socket.unix) == (&old.socket.address, &old.socket.unix);
            let Some(found) = left.iter().position(is_same) else {
                restart.push(NeedsRestart::new(format!("listener {old} (removed)")));
                merged.push(old.clone());
                continue;
            };
            let (listener, changed) = old.reloaded(left.remove(found));
            restart.extend(changed);
            merged.push(listener);
        }
        restart.extend(left.iter().map(|new| NeedsRestart::new(format!("listener {new} (added)"))));
        (merged, restart)
    }
}

/// Settings of `new` that can change on an open socket, and settings of its protocol.
impl Reload for Listener {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        // IMAP and POP3 say at the start whether they offer TLS, and whether passwords need it.
        let is_read = self.is_for_reading() && new.is_for_reading();
        let has_other_tls = new.is_implicit() != self.is_implicit() || is_read && new.tls_mode() != self.tls_mode();
        let has_other_proxy = is_read && new.socket.proxy_protocol != self.socket.proxy_protocol;
        let changed = [
            ("protocol", new.protocol != self.protocol),
            ("mode", new.socket.mode != self.socket.mode),
            ("group", new.socket.group != self.socket.group),
            ("tls", has_other_tls),
            ("proxy_protocol", has_other_proxy),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        let restart = changed.map(|(key, _)| NeedsRestart::new(format!("{key} of listener {self}"))).collect();
        let Socket { mode, group, proxy_protocol, .. } = self.socket.clone();
        let mut socket = Socket { mode, group, ..new.socket.clone() };
        if has_other_proxy {
            let proxies = self.socket.proxies.clone();
            socket = Socket { proxy_protocol, proxies, ..socket };
        }
        let mut listener = Self { socket, protocol: self.protocol, ..new.clone() };
        if has_other_tls {
            let Self { tls, certificate, key, .. } = self.clone();
            listener = Self { tls, certificate, key, ..listener };
        }
        (listener, restart)
    }
}

impl Network {
    /// One entry for each of the networks, with the same limits and policies.
    pub fn each(&self) -> impl Iterator<Item = (IpNet, &Self)> {
        self.cidr.0.iter().map(move |network| (*network, self))
    }
}

/// The listeners of a configuration without any.
pub(super) fn default_listeners() -> [Listener; 4] {
    let listener = |address: &str, protocol| {
        let socket = Socket { address: Some(address.to_owned()), ..Socket::default() };
        Listener { socket, protocol, ..Listener::default() }
    };
    [
        listener("127.0.0.1:2525", ListenerProtocol::Smtp),
        listener("127.0.0.1:8025", ListenerProtocol::Http),
        listener("127.0.0.1:1143", ListenerProtocol::Imap),
        listener("127.0.0.1:1110", ListenerProtocol::Pop3),
    ]
}

/// True if only this machine can connect there. Of names only `localhost` counts: any other may change.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: SocketAddr| address.ip().to_canonical().is_loopback())
}
