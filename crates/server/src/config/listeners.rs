//! The `[[listener]]` and `[[network]]` tables.

use std::path::PathBuf;

use posthaste_smtp::driver::{IpNet, UnixAccess};
use serde::{Deserialize, Serialize};

use super::overrides::{LimitOverrides, Networks, PolicyOverrides};
use super::values::{self, Table};
use super::{Protocol, accounts};

/// One socket that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listener {
    /// IP address or host name, and port; port 0 takes a free one.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::address")]
    pub address: Option<String>,
    /// Path of a UNIX socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// Permission bits of that socket, in octal: who may write may connect. Not set: `0660`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::mode")]
    pub mode: Option<String>,
    /// The group that the socket is given to, by name or number. Not set: the server's own.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub group: Option<String>,
    /// The protocol spoken there.
    pub protocol: Protocol,
    /// Networks whose clients may connect; others get 554 5.7.1. Not set: all.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub allow: Option<Networks>,
    /// Whether proxies connect here, which say with the PROXY protocol whose connection they pass on.
    pub proxy_protocol: bool,
    /// Networks of these proxies; nobody else may connect. Needed with `address`; with `unix` the socket's mode decides.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub proxies: Option<Networks>,
    /// In place of `[limits]`; the numbers of connections hold beside those.
    #[serde(skip_serializing_if = "LimitOverrides::is_empty")]
    pub limits: LimitOverrides,
    /// In place of `[policy]`.
    #[serde(skip_serializing_if = "PolicyOverrides::is_empty")]
    pub policy: PolicyOverrides,
}

/// Clients of some networks, for which other limits and policies apply. The smallest network that a client is in decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Which.
    pub cidr: Networks,
    /// In place of those of the listener and of `[limits]`. `connections` is that of each of the networks, in all.
    #[serde(skip_serializing_if = "LimitOverrides::is_empty")]
    pub limits: LimitOverrides,
    /// In place of those of the listener and of `[policy]`.
    #[serde(skip_serializing_if = "PolicyOverrides::is_empty")]
    pub policy: PolicyOverrides,
}

impl Table for Listener {
    const NAME: &str = "listener";
}

impl Table for Network {
    const NAME: &str = "network";
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.address, &self.unix) {
            (Some(address), _) => write!(f, "{address}"),
            (None, Some(path)) => write!(f, "{}", path.display()),
            (None, None) => f.write_str("nothing"),
        }
    }
}

impl Listener {
    /// Who may connect to a UNIX socket.
    ///
    /// # Errors
    /// The key that is wrong, and how.
    pub(crate) fn unix_access(&self) -> Result<UnixAccess, (&'static str, String)> {
        let mut access = UnixAccess::default();
        if let Some(mode) = &self.mode {
            access.mode = super::permission_bits(mode)
                .ok_or_else(|| ("mode", "permission bits in octal, such as \"0660\"".to_owned()))?;
        }
        if let Some(group) = &self.group {
            access.group = Some(accounts::group(group).map_err(|problem| ("group", problem))?);
        }
        Ok(access)
    }

    /// Finds what cannot be meant about who may connect: the key and why.
    pub(crate) fn check_rules(&self) -> Result<(), (&'static str, String)> {
        let problem = |key, message: &str| Err((key, message.to_owned()));
        if let Some(Networks(allow)) = &self.allow {
            if allow.is_empty() {
                return problem("allow", "nobody could connect; leave it out to allow everybody");
            }
            if self.unix.is_some() && !self.proxy_protocol {
                return problem(
                    "allow",
                    "clients of a UNIX socket have no address; `mode` and `group` say who may connect",
                );
            }
        }
        match &self.proxies {
            Some(_) if !self.proxy_protocol => problem("proxies", "only with `proxy_protocol = true`"),
            Some(_) if self.unix.is_some() => {
                problem("proxies", "only for `address`; the socket's `mode` and `group` say which proxies may connect")
            }
            Some(Networks(proxies)) if proxies.iter().any(|network| network.prefix_len() == 0) => {
                problem("proxies", "any client could claim any address; list the proxies' addresses")
            }
            Some(Networks(proxies)) if !proxies.is_empty() => Ok(()),
            _ if self.proxy_protocol && self.unix.is_none() => {
                problem("proxy_protocol", "needs the proxies' addresses too, such as proxies = [\"192.0.2.7\"]")
            }
            _ => Ok(()),
        }
    }
}

impl Network {
    /// The networks by themselves, all with the same limits and policies.
    pub(crate) fn each(&self) -> impl Iterator<Item = (IpNet, &Self)> {
        self.cidr.0.iter().map(move |network| (*network, self))
    }
}
