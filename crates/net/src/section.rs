//! Sections of a configuration file: connection limits in `[limits]`, and the socket of a `[[listener]]`.

use std::fmt;
use std::path::PathBuf;

use posthaste_units::values::{self, Text};
use posthaste_units::words::Problem;
use posthaste_units::{check_bounds, keys};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{IpNet, network};

keys! {
    /// Connection limits in `[limits]`.
    pub struct ConnectionLimits, overridden by ConnectionLimitOverrides {
        /// Simultaneous connections, over all listeners. Each needs a file descriptor: the server raises its soft limit to the hard limit, and warns when
        /// that is too low.
        connections: usize = 20_000, values::count;
        /// Simultaneous connections from one address.
        connections_per_address: usize = 5_000, values::count;
    }
}

keys! {
    /// The keys of `[[listener]]` for its socket: address, and access.
    pub struct Socket {
        /// IP address or host name, and port: `"0.0.0.0:25"`, `"[::]:25"`, `"localhost:25"`. Port 0 takes a free port, which is printed. A name is
        /// resolved once, at the start.
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<String> = None, address;
        /// Path of a UNIX socket, instead of `address`. Its directory must exist, also after a reboot: below `/run`, use systemd's `RuntimeDirectory=`
        /// ([install.md](install.md)). A dead server's socket is replaced, any other file never.
        #[serde(skip_serializing_if = "Option::is_none")]
        unix: Option<PathBuf> = None, Deserialize::deserialize;
        /// Permission bits of the UNIX socket, in octal. Write permission allows connecting. Default: `"0660"`.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<String> = None, values::mode;
        /// Group of the UNIX socket: a name in `/etc/group`, or a number. Default: the server's own.
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<String> = None, values::account;
        /// Client addresses and networks that may connect, such as `["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"]`; others get 554 5.7.1 instead of the
        /// greeting. Default: all.
        #[serde(skip_serializing_if = "Option::is_none")]
        allow: Option<Networks> = None, values::some;
        /// `true` if proxies connect here instead of clients: see below. Default: `false`.
        proxy_protocol: bool = false, Deserialize::deserialize;
        /// Addresses and networks of these proxies; all others are refused. Required with `address`; not possible with `unix`, where `mode` and `group`
        /// decide. With HTTP also without `proxy_protocol`: these web servers name their clients ([http.md](http.md#behind-a-web-server)).
        #[serde(skip_serializing_if = "Option::is_none")]
        proxies: Option<Networks> = None, values::some;
    }
}

impl ConnectionLimits {
    /// Validates the section.
    ///
    /// # Errors
    /// The first value out of range.
    pub fn check(&self) -> Result<(), Problem> {
        check_bounds(
            "limits",
            &[
                ("connections", self.connections as u64, 1, u64::MAX),
                ("connections_per_address", self.connections_per_address as u64, 1, u64::MAX),
            ],
        )
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, &self.unix) {
            (Some(address), _) => write!(f, "{address}"),
            (None, Some(path)) => write!(f, "{}", path.display()),
            (None, None) => f.write_str("nothing"),
        }
    }
}

impl Socket {
    /// Validates the section. The host, the directory and the group are not looked up.
    ///
    /// # Errors
    /// The first wrong key, and its mistake.
    pub fn check(&self) -> Result<(), Problem> {
        self.check_place()?;
        self.check_rules()
    }

    fn check_place(&self) -> Result<(), Problem> {
        match (&self.address, &self.unix) {
            (None, None) => {
                let example = "such as address = \"0.0.0.0:25\" or unix = \"/run/posthaste/lmtp.sock\"";
                Err(Problem::new(Vec::new(), format!("a listener needs `address` or `unix`, {example}")))
            }
            (Some(_), Some(_)) => problem("unix", "a listener has `address` or `unix`, not both"),
            (None, Some(path)) if path.as_os_str().is_empty() || path.as_os_str().len() > UNIX_PATH_MAX => {
                problem("unix", &format!("a socket's path has 1 to {UNIX_PATH_MAX} octets"))
            }
            (Some(_), None) if self.mode.is_some() => problem("mode", "only for `unix`"),
            (Some(_), None) if self.group.is_some() => problem("group", "only for `unix`"),
            _ => Ok(()),
        }
    }

    /// Validates the rules of access.
    fn check_rules(&self) -> Result<(), Problem> {
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
            Some(_) if self.unix.is_some() => {
                problem("proxies", "only for `address`; the socket's `mode` and `group` say which proxies may connect")
            }
            Some(Networks(proxies)) if !proxies.is_empty() => Ok(()),
            _ if self.proxy_protocol && self.unix.is_none() => {
                problem("proxy_protocol", "needs the proxies' addresses too, such as proxies = [\"192.0.2.7\"]")
            }
            _ => Ok(()),
        }
    }
}

fn problem(key: &str, message: &str) -> Result<(), Problem> {
    Err(Problem::new([key.into()], message))
}

/// Reads an address to listen on.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let expecting = "an address and port in quotes, such as \"0.0.0.0:25\"";
    deserializer.deserialize_any(Text { expecting, number: |_| None }).map(Some)
}

/// Addresses and networks: one in quotes, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Networks(pub Vec<IpNet>);

impl Serialize for Networks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ToString::to_string))
    }
}

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NetworksVisitor;
        impl<'de> Visitor<'de> for NetworksVisitor {
            type Value = Networks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "addresses or networks in quotes, such as \"192.0.2.7\" or [\"10.0.0.0/8\", \"2001:db8::/32\"]",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Networks, E> {
                network(text).map(|network| Networks(vec![network])).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Networks, A::Error> {
                let mut networks = Vec::new();
                while let Some(Networks(one)) = seq.next_element()? {
                    networks.extend(one);
                }
                Ok(Networks(networks))
            }
        }
        deserializer.deserialize_any(NetworksVisitor)
    }
}

/// Bytes of `sun_path` on Linux, without its final NUL.
const UNIX_PATH_MAX: usize = 107;
