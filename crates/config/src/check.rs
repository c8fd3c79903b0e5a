//! Checks across sections: values that are valid alone and conflict with each other.

use std::collections::HashSet;
use std::net::{Ipv6Addr, SocketAddr};

use posthaste_directory::{Directory, Place, Route, Users};
use posthaste_message::address::is_domain;
use posthaste_smtp::driver::IpNet;
use posthaste_smtp::section::PolicyOverrides;
use posthaste_units::is_name;
use posthaste_units::words::Problem;

use super::config::{Config, MAILDIR};
use super::limits::LimitOverrides;
use super::listeners::{Listener, Network};
use super::owners::OwnerRules;

/// Finds the first problem of a completed configuration. Without one it returns the directory, which the check of
/// domains needs.
pub(super) fn check(config: &Config) -> Result<Directory, Problem> {
    if !is_domain(&config.host_name) || !config.host_name.is_ascii() {
        let message = "not a host name, such as mx.example.org: letters, digits and hyphens, with dots between";
        return Err(Problem::new(["host_name".into()], message));
    }
    config.identity().map_err(|(key, message)| Problem::new([key.into()], message))?;
    config.storage.check()?;
    config.events.check()?;
    super::webhooks::check(&config.webhooks, config.events.enabled)?;
    config.pickup.check()?;
    config.limits.check()?;
    config.policy.check()?;
    config.tls.check()?;
    config.acme.check(&config.host_name)?;
    config.mailstore.usual_folders(&config.domains)?;
    config.imap.check()?;
    config.http.check()?;
    config.transport.check()?;
    config.relay.check()?;
    config.checks.check()?;
    config.dkim.check()?;
    config.dns.check()?;
    let mut networks = HashSet::new();
    for (index, network) in config.networks.iter().enumerate() {
        let at = || vec!["network".into(), index.into()];
        check_network(network, &mut networks).map_err(|problem| problem.within(at()))?;
        network.check_auth(&config.listeners).map_err(|problem| problem.within(at()))?;
        check_label("tenant", network.tenant.as_deref()).map_err(|problem| problem.within(at()))?;
        check_label("campaign", network.campaign.as_deref()).map_err(|problem| problem.within(at()))?;
        check_pool(config, network.pool.as_deref()).map_err(|problem| problem.within(at()))?;
        check_overrides(config, &network.limits, &network.policy).map_err(|problem| problem.within(at()))?;
    }
    // The listeners of a configuration that names none have a password of their own.
    let is_default = config.has_default_listeners();
    for (index, listener) in config.listeners.iter().enumerate() {
        let at = || vec!["listener".into(), index.into()];
        check_listener(listener, &config.listeners[..index]).map_err(|problem| problem.within(at()))?;
        listener.check_http(config.acme.enabled).map_err(|problem| problem.within(at()))?;
        listener.check_auth(&config.auth).map_err(|problem| problem.within(at()))?;
        if !is_default {
            listener.check_reading(&config.auth).map_err(|problem| problem.within(at()))?;
        }
        check_label("tenant", listener.tenant.as_deref()).map_err(|problem| problem.within(at()))?;
        check_label("campaign", listener.campaign.as_deref()).map_err(|problem| problem.within(at()))?;
        check_pool(config, listener.pool.as_deref()).map_err(|problem| problem.within(at()))?;
        check_overrides(config, &listener.limits, &listener.policy).map_err(|problem| problem.within(at()))?;
    }
    super::trust::check(config)?;
    config.log.check()?;
    let directory = Directory::new(&config.domains, MAILDIR)?;
    config.auth.rates_by_login(&directory)?;
    config.quota.table(&config.domains, &directory)?;
    check_owners(config)?;
    check_cluster(config, &directory)?;
    Ok(directory)
}

/// Checks the settings that override `[limits]` and `[policy]`, which were checked before.
fn check_overrides(config: &Config, limits: &LimitOverrides, policy: &PolicyOverrides) -> Result<(), Problem> {
    limits.over(&config.limits).check()?;
    policy.over(&config.policy).check()
}

fn check_label(key: &'static str, name: Option<&str>) -> Result<(), Problem> {
    let message = "a name has 1 to 100 visible ASCII characters, no blanks";
    if name.is_none_or(is_name) { Ok(()) } else { Err(Problem::new([key.into()], message)) }
}

fn check_pool(config: &Config, name: Option<&str>) -> Result<(), Problem> {
    match name.filter(|name| config.relay.pool.iter().all(|pool| pool.name != *name)) {
        Some(name) => Err(Problem::new(["pool".into()], format!("there is no pool `{name}`"))),
        None => Ok(()),
    }
}

/// `known` are the networks before this one.
fn check_network(network: &Network, known: &mut HashSet<IpNet>) -> Result<(), Problem> {
    if network.cidr.0.is_empty() {
        return Err(Problem::new(["cidr".into()], "a network needs `cidr`, such as cidr = \"10.0.0.0/8\""));
    }
    for (index, cidr) in network.cidr.0.iter().enumerate() {
        if !known.insert(*cidr) {
            return Err(Problem::new(["cidr".into(), index.into()], format!("the network {cidr} is listed twice")));
        }
    }
    Ok(())
}

/// Validates owners for the user to which the server switches: root may start it.
fn check_owners(config: &Config) -> Result<(), Problem> {
    let rules = OwnerRules::new(&config.domains)?;
    let Some(rights) = config.rights() else { return Ok(()) };
    rules.check(&rights).map_err(|why| {
        let message = format!("the server drops root for this user, but {why}: leave out `user` or `owner`");
        Problem::new(["user".into()], message)
    })
}

/// Checks `[cluster]`. All mail must be for other hosts: mailboxes on one machine would be lost with it.
fn check_cluster(config: &Config, directory: &Directory) -> Result<(), Problem> {
    let Some(cluster) = &config.cluster else { return Ok(()) };
    cluster.check()?;
    if config.site_connections() == 0 {
        let message = format!("{} shards share it: allow that many at least", cluster.shards.len());
        return Err(Problem::new(["relay".into(), "connections_per_site".into()], message));
    }
    for (index, domain) in config.domains.iter().enumerate() {
        let problem = |key: &'static str, message: String| {
            Err(Problem::new(["domain".into(), index.into(), key.into()], message))
        };
        let name = &domain.name;
        if domain.users == Users::Any {
            let message = format!(
                "with [cluster] no mail stays on this machine, and `users = \"any\"` of {name} has mailboxes here: route the domain to its hosts"
            );
            return problem("name", message);
        }
        if let Some(transport) = domain.transports().next() {
            let message = format!(
                "with [cluster] mail goes to other hosts alone, and {name} has mail for `{}`",
                transport.text()
            );
            return problem("name", message);
        }
        let users = match &domain.users {
            Users::Listed(users) => users.iter().map(String::as_str).collect(),
            Users::Any => Vec::new(),
        };
        for user in users.into_iter().chain(["postmaster"]) {
            let Route::Local(mailboxes) = directory.resolve(user, Some(name)) else { continue };
            if mailboxes.iter().any(|mailbox| mailbox.place != Place::Remote) {
                let message = format!(
                    "with [cluster] no mail stays on this machine, and {user}@{name} has a mailbox here: make it an alias of an address at another host"
                );
                return problem("name", message);
            }
        }
    }
    Ok(())
}

fn check_listener(listener: &Listener, before: &[Listener]) -> Result<(), Problem> {
    let socket = &listener.socket;
    socket.check()?;
    let is_taken = before.iter().any(|Listener { socket: other, .. }| match (&socket.address, &socket.unix) {
        (Some(address), _) => !address.ends_with(":0") && other.address.as_ref() == Some(address),
        (None, path) => other.unix == *path,
    });
    let key = if socket.address.is_some() { "address" } else { "unix" };
    if let Some(address) = &socket.address {
        check_address(address).map_err(|message| Problem::new([key.into()], message))?;
    }
    if is_taken {
        return Err(Problem::new([key.into()], format!("another listener already uses {socket}")));
    }
    check_relay(listener)?;
    listener.check_tls()?;
    listener.unix_access().map(drop).map_err(|(key, message)| Problem::new([key.into()], message))
}

/// A listener that relays for all its clients must name their networks. Otherwise it is an open relay, which spammers
/// find within hours.
fn check_relay(listener: &Listener) -> Result<(), Problem> {
    if listener.relay != Some(true) || listener.socket.allow.is_some() || listener.is_local() {
        return Ok(());
    }
    let message = "everybody could send mail anywhere through this listener (an open relay): set `allow` to the networks of your own clients, such as allow = \"10.0.0.0/8\"";
    Err(Problem::new(["relay".into()], message))
}

/// Checks the syntax of a listen address. A name is looked up when the server starts.
fn check_address(text: &str) -> Result<(), String> {
    const EXAMPLES: &str = "such as \"127.0.0.1:25\", \"[::]:25\" or \"localhost:25\"";
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        // The end of it may be meant as the port: `::1:25`.
        let parts = text
            .rsplit_once(':')
            .filter(|(host, port)| host.parse::<Ipv6Addr>().is_ok() && port.parse::<u16>().is_ok_and(|port| port > 0));
        let (host, port) = parts.unwrap_or((text, "25"));
        return Err(format!("an IPv6 address stands in brackets and needs a port: \"[{host}]:{port}\""));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(match text.parse::<u16>() {
            Ok(port) => format!(
                "a port alone is not enough: \"0.0.0.0:{port}\" for all IPv4 addresses, \"[::]:{port}\" for all"
            ),
            Err(_) => format!("`{text}` has no port; write an address and a port, {EXAMPLES}"),
        });
    };
    if port.parse::<u16>().is_err() {
        return Err(format!(
            "`{port}` is not a port, which is a number up to 65535; write an address and a port, {EXAMPLES}"
        ));
    }
    match host {
        "" | "*" => Err(format!("for all addresses write \"[::]:{port}\", for all of IPv4 \"0.0.0.0:{port}\"")),
        _ if is_domain(host) && host.is_ascii() => Ok(()),
        _ => Err(format!("`{host}` is neither an IP address nor a host name; write an address and a port, {EXAMPLES}")),
    }
}
