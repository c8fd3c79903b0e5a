//! The configuration in force after a reload.

use crate::config::Config;
use crate::reload::{NeedsRestart, Reload};

/// Changes that need a restart, collected while configurations are merged.
#[derive(Default)]
struct Reloading(Vec<NeedsRestart>);

impl Reloading {
    fn section<S: Reload>(&mut self, running: &S, new: &S) -> S {
        let (section, restart) = running.reloaded(new);
        self.0.extend(restart);
        section
    }

    /// A key that needs a restart.
    fn key<T: Clone + PartialEq>(&mut self, key: &str, running: &T, new: &T) -> T {
        if running != new {
            self.0.push(NeedsRestart::new(key));
        }
        running.clone()
    }
}

impl Config {
    /// The configuration in force after a reload of `new`, and the changes that need a restart.
    pub fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        let mut at = Reloading::default();
        // Each section by its name, so that one which is added has its place here.
        let merged = Self {
            // In names of mail files, in greetings and in what other hosts are told: at no time two names at once.
            host_name: at.key("host_name", &self.host_name, &new.host_name),
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
            listeners: at.section(&self.listeners, &new.listeners),
            policy: at.section(&self.policy, &new.policy),
            tls: at.section(&self.tls, &new.tls),
            acme: at.section(&self.acme, &new.acme),
            auth: at.section(&self.auth, &new.auth),
            quota: at.section(&self.quota, &new.quota),
            mailstore: at.section(&self.mailstore, &new.mailstore),
            imap: at.section(&self.imap, &new.imap),
            http: at.section(&self.http, &new.http),
            checks: at.section(&self.checks, &new.checks),
            dkim: at.section(&self.dkim, &new.dkim),
            dns: at.section(&self.dns, &new.dns),
            cluster: at.key("cluster", &self.cluster, &new.cluster),
            networks: at.section(&self.networks, &new.networks),
            webhooks: at.section(&self.webhooks, &new.webhooks),
            domains: at.section(&self.domains, &new.domains),
        };
        (merged, at.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(std::path::Path::new("test.toml"), text).unwrap()
    }

    fn reloaded(running: &Config, new: &Config) -> (Config, Vec<String>) {
        let (merged, restart) = running.reloaded(new);
        (merged, restart.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_reload_applies_relay_routes_and_sources_but_not_sizes() {
        let running = config("[relay]\nport = 2525\n[[relay.route]]\nhost = \"a.example\"\n");
        let new =
            config("[relay]\nport = 2526\n[[relay.source]]\nname = \"s\"\n[[relay.tls_policy]]\npolicy = \"off\"\n");
        let (merged, restart) = reloaded(&running, &new);
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
        let (merged, restart) = reloaded(&running, &new);
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
        let text = "host_name = \"other.example\"\n[storage]\nmail_free_bytes_min = \"1G\"\n[log]\nlevel = \"warn\"\n[relay.bounces]\nsuppress_bounces = true\n\
                    [search]\nindex = true\n[policy]\nbare_newlines = \"fix\"\n[limits]\nshutdown_secs = 7\n";
        let (merged, restart) = reloaded(&running, &config(text));
        let expected = [
            "host_name",
            "storage.mail_free_bytes_min",
            "relay.bounces.suppress_bounces",
            "search.index",
            // It is the host's name where the file has none.
            "pickup.origin",
            "log.level",
        ];
        assert_eq!(restart, expected);
        assert_eq!((&merged.storage, &merged.log, &merged.search), (&running.storage, &running.log, &running.search));
        assert_eq!(merged.host_name, running.host_name);
        assert_eq!((&merged.policy, merged.limits.process.shutdown_secs), (&config(text).policy, 7));
        assert_eq!(reloaded(&merged, &config(text)).1, expected);
        assert_eq!(reloaded(&merged, &running), (running.clone(), Vec::new()));
    }

    #[test]
    fn tls_of_reading_listeners_changes_at_restart_smtp_at_once() {
        let text = |tls: &str, proxy: bool| {
            let tls = format!("tls = \"{tls}\"\ncertificate = \"c\"\nkey = \"k\"\n");
            let proxy = if proxy { "proxy_protocol = true\nproxies = \"127.0.0.1\"\n" } else { "" };
            format!(
                "[auth]\nfile = \"p\"\n[[listener]]\naddress = \"127.0.0.1:2501\"\n{tls}\
                 [[listener]]\naddress = \"127.0.0.1:2502\"\nprotocol = \"imap\"\n{tls}{proxy}"
            )
        };
        let running = config(&text("starttls", false));
        let new = config(&text("required", true));
        let (merged, restart) = reloaded(&running, &new);
        assert_eq!(restart, ["tls of listener 127.0.0.1:2502", "proxy_protocol of listener 127.0.0.1:2502"]);
        assert_eq!(merged.listeners, [new.listeners[0].clone(), running.listeners[1].clone()]);
        assert_eq!(reloaded(&merged, &running).1, [] as [String; 0]);
    }

    #[test]
    fn sections_read_for_each_message_apply_at_once() {
        let text = "[policy]\nlong_lines = \"reject\"\n[auth]\nrecipient_rate = \"5/hour\"\nfile = \"p\"\n[quota]\nbytes = 1\n\
                    [http]\nnames = [\"a.example\"]\n[dkim]\nexpire = 7200\n[dns]\ntimeout_secs = 7\n[tls]\ncertificate = \"c\"\n\
                    [[network]]\ncidr = \"192.0.2.0/24\"\n[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n";
        let listener = "[[listener]]\naddress = \"127.0.0.1:2501\"\n";
        let (running, new) = (config(listener), config(&format!("{text}{listener}")));
        assert_eq!(reloaded(&running, &new), (new, Vec::new()));
    }

    #[test]
    fn a_key_is_of_its_section() {
        let of = |key: &str| NeedsRestart::new(key).is_of("relay");
        assert_eq!(["relay", "relay.port", "relays.port", "log"].map(of), [true, true, false, false]);
    }
}
