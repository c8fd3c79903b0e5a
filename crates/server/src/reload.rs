//! What a reload changes in a running server, and which changes need a restart.

use crate::config::{Config, Limits, Listener};

/// The configuration that is in force after a reload of `new`, and which of its changes need a restart. Listeners keep their order, as
/// sessions and sockets name them by number.
pub(crate) fn merged(running: &Config, new: Config) -> (Config, Vec<String>) {
    let changed = [
        ("user", running.user != new.user),
        ("group", running.group != new.group),
        ("storage", running.storage != new.storage),
        ("search", running.search != new.search),
        ("log", running.log != new.log),
        ("limits.memory_bytes", running.limits.memory_bytes != new.limits.memory_bytes),
    ];
    let mut restart: Vec<String> =
        changed.into_iter().filter_map(|(key, changed)| changed.then_some(key.to_owned())).collect();
    // What is not in force is reported again at the next reload.
    let merged = Config {
        user: running.user.clone(),
        group: running.group.clone(),
        storage: running.storage.clone(),
        search: running.search.clone(),
        log: running.log.clone(),
        limits: Limits { memory_bytes: running.limits.memory_bytes, ..new.limits },
        listeners: merged_listeners(&running.listeners, new.listeners, &mut restart),
        ..new
    };
    (merged, restart)
}

/// The running listeners, with the new settings of those that are still configured. Sockets are neither opened nor closed.
fn merged_listeners(running: &[Listener], mut new: Vec<Listener>, restart: &mut Vec<String>) -> Vec<Listener> {
    let mut merged = Vec::with_capacity(running.len());
    for old in running {
        let Some(found) = new.iter().position(|new| (&new.address, &new.unix) == (&old.address, &old.unix)) else {
            restart.push(format!("listener {old} (removed)"));
            merged.push(old.clone());
            continue;
        };
        let listener = new.remove(found);
        let changed = [
            ("protocol", listener.protocol != old.protocol),
            ("mode", listener.mode != old.mode),
            ("group", listener.group != old.group),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        restart.extend(changed.map(|(key, _)| format!("{key} of listener {old}")));
        let (mode, group) = (old.mode.clone(), old.group.clone());
        merged.push(Listener { protocol: old.protocol, mode, group, ..listener });
    }
    restart.extend(new.iter().map(|new| format!("listener {new} (added)")));
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(std::path::Path::new("test.toml"), text).unwrap()
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
        assert_eq!(merged.limits.recipients, 7);
        assert_eq!(merged.listeners[0], new.listeners[2], "the new settings, in the old order");
        assert_eq!(merged.listeners[1..], running.listeners[1..]);
    }
}
