//! What a reload changes in a running server, and which changes need a restart.

use crate::config::{Config, Limits, Listener, ListenerTls, ProcessLimits, Socket};

/// The configuration that is in force after a reload of `new`, and which of its changes need a restart. Listeners keep their order, as
/// sessions and sockets name them by number.
pub(crate) fn merged(running: &Config, new: Config) -> (Config, Vec<String>) {
    let changed = [
        ("user", running.user != new.user),
        ("group", running.group != new.group),
        ("storage", running.storage != new.storage),
        ("transport", running.transport != new.transport),
        ("relay", running.relay.reloaded(&new.relay) != new.relay),
        ("search", running.search != new.search),
        ("events", running.events != new.events),
        ("pickup", running.pickup != new.pickup),
        ("log", running.log != new.log),
        ("limits.memory_bytes", running.limits.process.memory_bytes != new.limits.process.memory_bytes),
    ];
    let mut restart: Vec<String> =
        changed.into_iter().filter_map(|(key, changed)| changed.then_some(key.to_owned())).collect();
    // What is not in force is reported again at the next reload.
    let memory_bytes = running.limits.process.memory_bytes;
    let process = ProcessLimits { memory_bytes, ..new.limits.process };
    let merged = Config {
        user: running.user.clone(),
        group: running.group.clone(),
        storage: running.storage.clone(),
        transport: running.transport.clone(),
        relay: running.relay.reloaded(&new.relay),
        search: running.search.clone(),
        events: running.events.clone(),
        pickup: running.pickup.clone(),
        log: running.log.clone(),
        limits: Limits { process, ..new.limits },
        listeners: merged_listeners(&running.listeners, new.listeners, &mut restart),
        ..new
    };
    (merged, restart)
}

/// The running listeners, with the new settings of those that are still configured. Sockets are neither opened nor closed.
fn merged_listeners(running: &[Listener], mut new: Vec<Listener>, restart: &mut Vec<String>) -> Vec<Listener> {
    let mut merged = Vec::with_capacity(running.len());
    for old in running {
        let Some(found) = new
            .iter()
            .position(|new| (&new.socket.address, &new.socket.unix) == (&old.socket.address, &old.socket.unix))
        else {
            restart.push(format!("listener {old} (removed)"));
            merged.push(old.clone());
            continue;
        };
        let listener = new.remove(found);
        let changed = [
            ("protocol", listener.protocol != old.protocol),
            ("mode", listener.socket.mode != old.socket.mode),
            ("group", listener.socket.group != old.socket.group),
            ("tls", is_implicit(&listener) != is_implicit(old)),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        restart.extend(changed.map(|(key, _)| format!("{key} of listener {old}")));
        let (mode, group) = (old.socket.mode.clone(), old.socket.group.clone());
        let socket = Socket { mode, group, ..listener.socket };
        let mut listener = Listener { socket, protocol: old.protocol, ..listener };
        if is_implicit(&listener) != is_implicit(old) {
            let Listener { tls, certificate, key, .. } = old.clone();
            listener = Listener { tls, certificate, key, ..listener };
        }
        merged.push(listener);
    }
    restart.extend(new.iter().map(|new| format!("listener {new} (added)")));
    merged
}

/// Whether TLS begins with the first octet.
fn is_implicit(listener: &Listener) -> bool {
    listener.tls_mode() == ListenerTls::Implicit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(std::path::Path::new("test.toml"), text).unwrap()
    }

    #[test]
    fn routes_and_sources_of_the_relay_are_applied_and_its_sizes_are_not() {
        let running = config("[relay]\nport = 2525\n[[relay.route]]\nhost = \"a.example\"\n");
        let new =
            config("[relay]\nport = 2526\n[[relay.source]]\nname = \"s\"\n[[relay.tls_policy]]\npolicy = \"off\"\n");
        let (merged, restart) = merged(&running, new.clone());
        assert_eq!((restart, merged.relay.port), (vec!["relay".to_owned()], 2525));
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
        let (merged, restart) = merged(&running, new.clone());
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
}
