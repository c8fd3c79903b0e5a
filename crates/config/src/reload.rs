//! The changes that a running server takes, and those that need a restart.

use std::fmt;

use posthaste_units::values::Table;
use serde::Serialize;
use serde_json::Value;

use super::{Config, Events, Listener, ListenerTls, Pickup, Relay, Search, Socket, Storage, Transport};

/// A change that a running server cannot take, by its key: `storage.mail`, or `tls of listener 127.0.0.1:25`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedsRestart(String);

impl NeedsRestart {
    /// A change of this key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// True for a key of this section.
    pub fn is_of(&self, section: &str) -> bool {
        self.0.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl fmt::Display for NeedsRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A section of which a running server does not take all.
pub(super) trait Reload: Table + Serialize + Clone {
    /// The section in force once `new` was read. The default is `self`: all of it takes a restart.
    fn merged(&self, new: &Self) -> Self {
        let _ = new;
        self.clone()
    }

    /// The section in force once `new` was read, and the keys of `new` that are not: these are named again at the next reload.
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        let merged = self.merged(new);
        let mut restart = Vec::new();
        differing(Self::NAME, &json(&merged), &json(new), &mut restart);
        (merged, restart)
    }
}

impl Reload for Storage {}
impl Reload for Transport {}
impl Reload for Search {}
impl Reload for Events {}
impl Reload for Pickup {}

impl Reload for Relay {
    fn merged(&self, new: &Self) -> Self {
        self.merged_with(new)
    }
}

fn json(section: &impl Serialize) -> Value {
    serde_json::to_value(section).expect("every value of a configuration has a JSON form")
}

/// The keys of values that differ, down to those that are no tables.
fn differing(key: &str, one: &Value, other: &Value, found: &mut Vec<NeedsRestart>) {
    match (one, other) {
        (Value::Object(one_table), Value::Object(other_table)) => {
            let more = other_table.keys().filter(|name| !one_table.contains_key(*name));
            for name in one_table.keys().chain(more) {
                differing(&format!("{key}.{name}"), &one[name], &other[name], found);
            }
        }
        _ if one != other => found.push(NeedsRestart::new(key)),
        _ => {}
    }
}

/// The changes that need a restart, while a configuration is put together.
#[derive(Default)]
struct Reloading(Vec<NeedsRestart>);

impl Reloading {
    fn section<S: Reload>(&mut self, running: &S, new: &S) -> S {
        let (section, restart) = running.reloaded(new);
        self.0.extend(restart);
        section
    }

    /// A key that takes a restart.
    fn key<T: Clone + PartialEq>(&mut self, key: &str, running: &T, new: &T) -> T {
        if running != new {
            self.0.push(NeedsRestart::new(key));
        }
        running.clone()
    }
}

impl Config {
    /// The configuration in force after a reload of `new`, and the changes that need a restart. Listeners keep their order, as sessions and sockets name them by number.
    pub fn reloaded(&self, new: Self) -> (Self, Vec<NeedsRestart>) {
        let mut at = Reloading::default();
        let merged = Self {
            user: at.key("user", &self.user, &new.user),
            group: at.key("group", &self.group, &new.group),
            storage: at.section(&self.storage, &new.storage),
            transport: at.section(&self.transport, &new.transport),
            relay: at.section(&self.relay, &new.relay),
            search: at.section(&self.search, &new.search),
            events: at.section(&self.events, &new.events),
            pickup: at.section(&self.pickup, &new.pickup),
            log: at.section(&self.log, &new.log),
            limits: at.section(&self.limits, &new.limits),
            listeners: merged_listeners(&self.listeners, new.listeners, &mut at.0),
            // Read for each connection, message or look-up. Named one by one, so that a section which is added has its place here.
            host_name: new.host_name,
            policy: new.policy,
            tls: new.tls,
            acme: new.acme,
            auth: new.auth,
            quota: new.quota,
            http: new.http,
            checks: new.checks,
            dkim: new.dkim,
            dns: new.dns,
            networks: new.networks,
            webhooks: new.webhooks,
            domains: new.domains,
        };
        (merged, at.0)
    }
}

/// The running listeners, with the new settings of those that are still configured. Sockets are neither opened nor closed.
fn merged_listeners(running: &[Listener], mut new: Vec<Listener>, restart: &mut Vec<NeedsRestart>) -> Vec<Listener> {
    let mut merged = Vec::with_capacity(running.len());
    for old in running {
        let is_same =
            |new: &Listener| (&new.socket.address, &new.socket.unix) == (&old.socket.address, &old.socket.unix);
        let Some(found) = new.iter().position(is_same) else {
            restart.push(NeedsRestart::new(format!("listener {old} (removed)")));
            merged.push(old.clone());
            continue;
        };
        let (listener, changed) = old.reloaded(new.remove(found));
        restart.extend(changed);
        merged.push(listener);
    }
    restart.extend(new.iter().map(|new| NeedsRestart::new(format!("listener {new} (added)"))));
    merged
}

impl Listener {
    /// This listener with the settings of `new` that its socket can take, and the keys that it cannot.
    fn reloaded(&self, new: Self) -> (Self, Vec<NeedsRestart>) {
        let changed = [
            ("protocol", new.protocol != self.protocol),
            ("mode", new.socket.mode != self.socket.mode),
            ("group", new.socket.group != self.socket.group),
            ("tls", new.is_implicit() != self.is_implicit()),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        let restart = changed.map(|(key, _)| NeedsRestart::new(format!("{key} of listener {self}"))).collect();
        let (mode, group) = (self.socket.mode.clone(), self.socket.group.clone());
        let socket = Socket { mode, group, ..new.socket.clone() };
        let mut listener = Self { socket, protocol: self.protocol, ..new };
        if listener.is_implicit() != self.is_implicit() {
            let Self { tls, certificate, key, .. } = self.clone();
            listener = Self { tls, certificate, key, ..listener };
        }
        (listener, restart)
    }

    /// True if TLS begins with the first octet.
    fn is_implicit(&self) -> bool {
        self.tls_mode() == ListenerTls::Implicit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(std::path::Path::new("test.toml"), text).unwrap()
    }

    fn reloaded(running: &Config, new: Config) -> (Config, Vec<String>) {
        let (merged, restart) = running.reloaded(new);
        (merged, restart.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn routes_and_sources_of_the_relay_are_applied_and_its_sizes_are_not() {
        let running = config("[relay]\nport = 2525\n[[relay.route]]\nhost = \"a.example\"\n");
        let new =
            config("[relay]\nport = 2526\n[[relay.source]]\nname = \"s\"\n[[relay.tls_policy]]\npolicy = \"off\"\n");
        let (merged, restart) = reloaded(&running, new.clone());
        assert_eq!((restart, merged.relay.port), (vec!["relay.port".to_owned()], 2525));
        assert!(merged.relay.route.is_empty() && merged.relay.source == new.relay.source);
        assert_eq!(merged.relay.tls_policy, new.relay.tls_policy);
    }

    #[test]
    fn what_can_be_applied_is_and_the_rest_is_named() {
        let running = config(
            "[[listener]]\naddress = \"127.0.0.1:2501\"\n[[listener]]\naddress = \"127.0.0.1:2502\"\nallow = \"192.0.2.1\"\n\
             [[listener]]\nunix = \"s\"\nprotocol = \"lmtp\"\n",
        );
        let new = config(
            "[limits]\nmemory_bytes = \"8M\"\nrecipients = 7\n\
             [[listener]]\naddress = \"127.0.0.1:2503\"\n[[listener]]\nunix = \"s\"\nmode = \"0600\"\n\
             [[listener]]\naddress = \"127.0.0.1:2501\"\nallow = \"192.0.2.2\"\n",
        );
        let (merged, restart) = reloaded(&running, new.clone());
        assert_eq!(
            restart,
            [
                "limits.memory_bytes",
                "listener 127.0.0.1:2502 (removed)",
                "protocol of listener s",
                "mode of listener s",
                "listener 127.0.0.1:2503 (added)"
            ]
        );
        assert_eq!(merged.limits.session.recipients, 7);
        assert_eq!(merged.listeners[0], new.listeners[2], "the new settings, in the old order");
        assert_eq!(merged.listeners[1..], running.listeners[1..]);
    }

    #[test]
    fn each_key_that_needs_a_restart_is_named_until_it_is_back() {
        let running = config("");
        let text = "[storage]\nmail_free_bytes_min = \"1G\"\n[log]\nlevel = \"warn\"\n[relay.bounces]\nsuppress_bounces = true\n\
                    [search]\nindex = true\n[policy]\nbare_newlines = \"fix\"\n[limits]\nshutdown_secs = 7\n";
        let (merged, restart) = reloaded(&running, config(text));
        let expected = ["storage.mail_free_bytes_min", "relay.bounces.suppress_bounces", "search.index", "log.level"];
        assert_eq!(restart, expected);
        assert_eq!((&merged.storage, &merged.log, &merged.search), (&running.storage, &running.log, &running.search));
        assert_eq!((&merged.policy, merged.limits.process.shutdown_secs), (&config(text).policy, 7));
        assert_eq!(reloaded(&merged, config(text)).1, expected);
        assert_eq!(reloaded(&merged, running.clone()), (running, Vec::new()));
    }

    #[test]
    fn a_key_is_of_its_section() {
        let of = |key: &str| NeedsRestart::new(key).is_of("relay");
        assert_eq!(["relay", "relay.port", "relays.port", "log"].map(of), [true, true, false, false]);
    }
}
