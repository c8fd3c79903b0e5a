//! `[cluster]`: a node that replicates its queue, and the shards of all nodes.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;

use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use serde::{Deserialize, Deserializer, Serialize};

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The name of this node: 1 to 64 letters, digits, hyphens and dots. Default: (required).
    pub node: String,
    /// The engine that keeps the log of each shard: `"nats"`, which is NATS JetStream from 2.15.3 on. Default: `"nats"`.
    #[serde(default)]
    pub engine: ClusterEngine,
    /// `host:port` of each server of the engine. Default: (required).
    pub servers: Vec<String>,
    /// `host:port` of the HTTP monitoring of each server: it tells the settings that keep the promise. Default: (required).
    pub monitors: Vec<String>,
    /// Connect with TLS. Needed beyond loopback addresses. Default: `false`.
    #[serde(default)]
    pub tls: bool,
    /// Certificates of the authorities that are trusted with `tls`. Default: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The certificate of this node for the engine, in PEM; with `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The key of `certificate`, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The login at the engine; with `password_file`. Needed beyond loopback addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A file whose first line is the password; the server's user must be able to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Begins the names of all streams in the engine: 1 to 32 letters, digits and hyphens. Clusters that share an engine have different ones. Default: `"posthaste"`.
    #[serde(default = "prefix")]
    pub prefix: String,
    /// Replicas of each stream; 1 only for trials. Default: `3`.
    #[serde(default = "replicas", deserialize_with = "values::count")]
    pub replicas: u64,
    /// Limit of the log of a shard, at least 64 MiB. Above 80 % of it new mail is refused. Default: `"16G"`.
    #[serde(default = "log_bytes", deserialize_with = "values::bytes")]
    pub log_bytes: u64,
    /// The shards of all nodes: the same list in the configuration of each. Default: (required).
    #[serde(default, rename = "shard", deserialize_with = "values::tables")]
    pub shards: Vec<ClusterShard>,
}

/// A shard: the mail that comes to its home node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterShard {
    /// Its number, below 32,768; never used again for another shard. Default: (required).
    pub number: u16,
    /// The node that takes its mail, and sends it while it lives. Each node is the home of one shard. Default: (required).
    pub home: String,
    /// Other nodes with a copy of its queue, one of which sends its mail when the home is lost. Default: (required).
    pub standbys: Vec<String>,
}

/// The engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterEngine {
    /// NATS JetStream.
    #[default]
    Nats,
}

/// Reads the section, if present.
pub(super) fn section<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cluster>, D::Error> {
    values::table(deserializer).map(Some)
}

impl Table for Cluster {
    const NAME: &str = "cluster";
}

impl Table for ClusterShard {
    const NAME: &str = "cluster.shard";
}

fn prefix() -> String {
    "posthaste".to_owned()
}

fn replicas() -> u64 {
    3
}

fn log_bytes() -> u64 {
    16 << 30
}

impl Cluster {
    /// The shards that this node is a member of.
    pub fn own_shards(&self) -> impl Iterator<Item = &ClusterShard> {
        self.shards.iter().filter(|shard| shard.members().any(|node| node == self.node))
    }

    /// The shard whose home this node is.
    pub fn home_shard(&self) -> Option<&ClusterShard> {
        self.shards.iter().find(|shard| shard.home == self.node)
    }

    pub(super) fn check(&self) -> Result<(), Problem> {
        let problem = |key: &'static str, message: String| Err(Problem::new([Self::NAME.into(), key.into()], message));
        if !is_node(&self.node) {
            return problem("node", NODE.to_owned());
        }
        for (key, addresses) in [("servers", &self.servers), ("monitors", &self.monitors)] {
            if addresses.is_empty() {
                return problem(key, "the engine needs at least one address, such as \"127.0.0.1:4222\"".to_owned());
            }
            if let Some(wrong) = addresses.iter().find(|address| host(address).is_none()) {
                return problem(key, format!("`{wrong}` is not a host with a port, such as \"127.0.0.1:4222\""));
            }
        }
        if self.certificate.is_some() != self.key.is_some() {
            return problem("certificate", "`certificate` and `key` go together".to_owned());
        }
        if self.user.is_some() != self.password_file.is_some() {
            return problem("user", "`user` and `password_file` go together".to_owned());
        }
        if let Some(key) = [("ca_file", &self.ca_file), ("certificate", &self.certificate)]
            .into_iter()
            .find_map(|(key, file)| (file.is_some() && !self.tls).then_some(key))
        {
            return problem(key, "only with `tls = true`".to_owned());
        }
        let is_open = !self.tls || self.user.is_none();
        if let Some(far) = self.servers.iter().find(|server| is_open && !is_loopback(server)) {
            let message = format!(
                "`{far}` is not a loopback address: mail would cross the network in the clear, or anybody could write it. Set `tls = true`, `user` and `password_file`"
            );
            return problem("servers", message);
        }
        let is_prefix = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !(1..=32).contains(&self.prefix.len()) || !self.prefix.bytes().all(is_prefix) {
            return problem("prefix", "1 to 32 letters, digits and hyphens".to_owned());
        }
        if ![1, 3, 5].contains(&self.replicas) {
            return problem("replicas", "must be 3 or 5; 1 for trials".to_owned());
        }
        if self.log_bytes < 64 << 20 {
            return problem("log_bytes", "must be at least 64 MiB".to_owned());
        }
        self.check_shards()
    }

    fn check_shards(&self) -> Result<(), Problem> {
        let mut numbers = HashSet::new();
        let mut homes = HashSet::new();
        for (index, shard) in self.shards.iter().enumerate() {
            let problem = |key: &'static str, message: String| {
                Err(Problem::new([Self::NAME.into(), "shard".into(), index.into(), key.into()], message))
            };
            if shard.number >= SHARDS {
                return problem("number", format!("must be below {SHARDS}"));
            }
            if !numbers.insert(shard.number) {
                return problem("number", format!("shard {} is listed twice", shard.number));
            }
            if !is_node(&shard.home) {
                return problem("home", NODE.to_owned());
            }
            if !homes.insert(&shard.home) {
                return problem("home", format!("`{}` is the home of another shard already", shard.home));
            }
            if let Some(wrong) = shard.standbys.iter().find(|node| !is_node(node)) {
                return problem("standbys", format!("`{wrong}`: {NODE}"));
            }
            let members: BTreeSet<&str> = shard.members().collect();
            if members.len() != shard.standbys.len() + 1 {
                return problem("standbys", "a node is named twice".to_owned());
            }
            if shard.standbys.is_empty() {
                return problem(
                    "standbys",
                    "a shard needs a standby: without one, its mail waits with its home".to_owned(),
                );
            }
        }
        match self.home_shard() {
            Some(_) => Ok(()),
            None => {
                let message =
                    format!("no [[cluster.shard]] has `home = \"{}\"`: each node is the home of one", self.node);
                Err(Problem::new([Self::NAME.into(), "node".into()], message))
            }
        }
    }
}

impl ClusterShard {
    /// Members of a shard, its home first.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.home).chain(self.standbys.iter().map(String::as_str))
    }
}

fn is_node(name: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    (1..=64).contains(&name.len()) && name.bytes().all(is_right)
}

/// The host of `host:port`.
fn host(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(host)
}

fn is_loopback(address: &str) -> bool {
    host(address).is_some_and(|host| host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()))
}

const NODE: &str = "a node's name has 1 to 64 letters, digits, hyphens and dots";
const SHARDS: u16 = 1 << 15;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    const SHARD: &str = "[[cluster.shard]]\nnumber = 1\nhome = \"n1\"\nstandbys = [\"n2\"]\n";
    const DOMAIN: &str = "[[domain]]\nname = \"a.example\"\naliases = { postmaster = \"ops@other.example\" }\n";

    fn text(keys: &str, rest: &str) -> String {
        format!("[cluster]\nnode = \"n1\"\n{keys}{SHARD}{rest}")
    }

    const ENGINE: &str =
        "servers = [\"127.0.0.1:4222\", \"localhost:4223\", \"[::1]:4224\"]\nmonitors = [\"127.0.0.1:8222\"]\n";

    #[track_caller]
    fn refused(text: &str, why: &str) {
        let told = Config::parse(Path::new("x"), text).expect_err(text).to_string();
        assert!(told.contains(why), "{told}");
    }

    #[test]
    fn a_node_knows_its_shards() {
        let config = Config::parse(Path::new("x"), &text(ENGINE, DOMAIN)).unwrap();
        let cluster = config.cluster.as_ref().unwrap();
        assert_eq!(cluster.home_shard().unwrap().number, 1);
        assert_eq!(cluster.own_shards().count(), 1);
        assert_eq!((cluster.replicas, cluster.log_bytes, &*cluster.prefix), (3, 16 << 30, "posthaste"));
        assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    }

    #[test]
    fn an_engine_elsewhere_needs_tls_and_a_login() {
        let far = "servers = [\"192.0.2.1:4222\"]\nmonitors = [\"192.0.2.1:8222\"]\n";
        refused(&text(far, DOMAIN), "`192.0.2.1:4222` is not a loopback address");
        refused(&text(&format!("{far}tls = true\n"), DOMAIN), "is not a loopback address");
        let login = "user = \"ph\"\npassword_file = \"/etc/ph\"\n";
        refused(&text(&format!("{far}{login}"), DOMAIN), "is not a loopback address");
        Config::parse(Path::new("x"), &text(&format!("{far}{login}tls = true\n"), DOMAIN)).unwrap();
        refused(&text(&ENGINE.replace("localhost", "nats.example"), DOMAIN), "is not a loopback address");
    }

    #[test]
    fn mail_that_would_stay_here_is_refused() {
        let refused = |domain: &str, why: &str| refused(&text(ENGINE, domain), why);
        // Without a domain, any user at the host name.
        refused("", "mailboxes here");
        refused("[[domain]]\nname = \"a.example\"\n", "postmaster@a.example has a mailbox here");
        refused(&DOMAIN.replace("aliases", "users = [\"ann\"]\naliases"), "ann@a.example has a mailbox here");
        let piped = DOMAIN.replace("{ ", "{ robot = \"|/bin/robot\", ");
        refused(&piped, "has mail for `|/bin/robot`");
        let forwarded = "users = [\"ann\"]\naccounts = { ann = { forward = [\"ann@other.example\"] } }\naliases";
        Config::parse(Path::new("x"), &text(ENGINE, &DOMAIN.replace("aliases", forwarded))).unwrap();
    }

    #[test]
    fn limits_are_divided_among_all_shards() {
        let second = "[[cluster.shard]]\nnumber = 2\nhome = \"n2\"\nstandbys = [\"n1\"]\n";
        let of = |per_site: usize| {
            let relay = format!("[relay]\nconnections_per_site = {per_site}\n");
            text(ENGINE, &format!("{second}{DOMAIN}{relay}"))
        };
        let config = Config::parse(Path::new("x"), &of(5)).unwrap();
        assert_eq!((config.limit_shares(), config.site_connections()), (2, 2));
        assert_eq!(Config::default().limit_shares(), 1);
        refused(&of(1), "2 shards share it");
    }

    #[test]
    fn wrong_shards_are_refused() {
        let other = |keys: &str| format!("[[cluster.shard]]\n{keys}");
        let refused = |shard: &str, why: &str| refused(&text(ENGINE, &format!("{shard}{DOMAIN}")), why);
        refused(&other("number = 1\nhome = \"n2\"\nstandbys = [\"n1\"]\n"), "shard 1 is listed twice");
        refused(&other("number = 2\nhome = \"n1\"\nstandbys = [\"n2\"]\n"), "the home of another shard");
        refused(&other("number = 2\nhome = \"n2\"\nstandbys = [\"n2\"]\n"), "named twice");
        refused(&other("number = 2\nhome = \"n2\"\nstandbys = []\n"), "needs a standby");
        refused(&other("number = 40000\nhome = \"n2\"\nstandbys = [\"n1\"]\n"), "below 32768");
        let homeless = format!("[cluster]\nnode = \"n9\"\n{ENGINE}{SHARD}{DOMAIN}");
        super::tests::refused(&homeless, "no [[cluster.shard]] has `home = \"n9\"`");
    }
}
