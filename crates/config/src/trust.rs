//! Networks whose clients may send mail anywhere without a login.

use posthaste_net::section::Networks;
use posthaste_net::{IpNet, is_much_of_the_internet};
use posthaste_units::words::{Key, Problem};

use super::config::Config;

/// Refuses an open relay. All trusted networks are checked together, as spam needs only one: clients that may relay,
/// and proxies, which can claim any address.
pub(super) fn check(config: &Config) -> Result<(), Problem> {
    let trusted = trusted(config);
    let networks: Vec<IpNet> = trusted.iter().map(|(_, network)| *network).collect();
    if !is_much_of_the_internet(&networks) {
        return Ok(());
    }
    let counts: Vec<usize> = (1..=networks.len()).collect();
    let index = counts.partition_point(|&count| !is_much_of_the_internet(&networks[..count]));
    let (at, network) = &trusted[index];
    let what = if is_much_of_the_internet(&[*network]) {
        format!("{network} is")
    } else {
        format!("{network} and the trusted networks before it are together")
    };
    let message = format!(
        "an open relay: {what} more than a /8 of the internet's IPv4 addresses or a /16 of its IPv6 addresses; list the networks of your own clients and proxies"
    );
    Err(Problem::new(at.clone(), message))
}

/// Each network with its position in the configuration.
fn trusted(config: &Config) -> Vec<(Vec<Key>, IpNet)> {
    let mut all = Vec::new();
    let mut add = |at: Vec<Key>, networks: &Networks| {
        for (index, network) in networks.0.iter().enumerate() {
            all.push(([at.as_slice(), &[index.into()]].concat(), *network));
        }
    };
    add(vec!["relay".into(), "networks".into()], &config.relay.networks);
    for (index, network) in config.networks.iter().enumerate().filter(|(_, network)| network.relay == Some(true)) {
        add(vec!["network".into(), index.into(), "cidr".into()], &network.cidr);
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let at = |key: &'static str| vec!["listener".into(), index.into(), key.into()];
        if let Some(allow) = listener.socket.allow.as_ref().filter(|_| listener.relay == Some(true)) {
            add(at("allow"), allow);
        }
        if let Some(from) = &listener.inject_from {
            add(at("inject_from"), from);
        }
        if let Some(proxies) = &listener.socket.proxies {
            add(at("proxies"), proxies);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::error_of;
    use super::Config;

    #[test]
    fn an_open_relay_is_refused_wherever_addresses_are_trusted() {
        for (text, place) in [
            ("[relay]\nnetworks = ['0.0.0.0/0']\n", "2:13"),
            ("[relay]\nnetworks = '::/0'\n", "2:12"),
            ("[relay]\nnetworks = ['0.0.0.0/2', '64.0.0.0/2', '128.0.0.0/1']\n", "2:13"),
            ("[[network]]\ncidr = ['10.0.0.0/8', '8.0.0.0/7']\nrelay = true\n", "2:23"),
            ("[[listener]]\naddress = '[::]:587'\nallow = ['10.0.0.0/8', '2000::/3']\nrelay = true\n", "3:24"),
            ("[[listener]]\naddress = '[::]:25'\nproxy_protocol = true\nproxies = '128.0.0.0/1'\n", "4:11"),
            ("[[listener]]\naddress = '127.0.0.1:1'\nprotocol = 'http'\ninject_from = '0.0.0.0/0'\n", "4:15"),
        ] {
            let error = error_of(text);
            assert!(error.contains(&format!(":{place}: an open relay: ")), "{text}{error}");
        }
    }

    #[test]
    fn trusted_networks_of_all_places_count_together() {
        let text = "[relay]\nnetworks = ['12.0.0.0/9']\n[[network]]\ncidr = '12.128.0.0/10'\nrelay = true\n\
                    [[listener]]\naddress = '[::]:25'\nproxy_protocol = true\nproxies = '12.192.0.0/11'\n\
                    [[listener]]\naddress = '[::]:587'\nrelay = true\nallow = ['12.224.0.0/11']\n";
        Config::parse(Path::new("x"), text).unwrap();
        let error = error_of(&text.replace("'12.224.0.0/11'", "'12.224.0.0/11', '192.0.2.7'"));
        assert!(error.contains(":13:27: an open relay: 192.0.2.7/32 and the trusted networks before it"), "{error}");
    }

    #[test]
    fn forwarders_are_not_the_whole_internet() {
        for (forwarders, place) in [
            ("'0.0.0.0/0'", "2:23"),
            ("'::/0'", "2:23"),
            ("'lists.example', '12.0.0.0/9', '192.0.2.7', '12.128.0.0/9', '13.0.0.0/8'", "2:67"),
        ] {
            let error = error_of(&format!("[checks]\ntrusted_forwarders = [{forwarders}]\n"));
            assert!(error.contains(&format!(":{place}: the networks up to this one are more than a /8")), "{error}");
        }
        let text = "[checks]\ntrusted_forwarders = ['lists.example', '12.0.0.0/8', '10.0.0.0/8', '2001:db8::/32']\n";
        Config::parse(Path::new("x"), text).unwrap();
    }

    #[test]
    fn networks_that_may_only_connect_are_not_judged() {
        let parsed = |text: &str| Config::parse(Path::new("x"), text);
        let listener = "[[listener]]\naddress = '[::]:25'\nallow = ['0.0.0.0/0', '::/0']\n";
        assert!(parsed(listener).is_ok());
        assert!(parsed(&format!("{listener}relay = false\n")).is_ok());
        assert!(parsed("[[network]]\ncidr = ['0.0.0.0/0']\nrelay = false\n").is_ok());
        let local = "'10.0.0.0/8', '127.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7', 'fe80::/10', '::1'";
        assert!(parsed(&format!("[relay]\nnetworks = [{local}, '12.0.0.0/8']\n")).is_ok());
    }
}
