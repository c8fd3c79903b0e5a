//! What the types cannot say: values that are well formed and still make no sense.

use std::net::{Ipv6Addr, SocketAddr};

use posthaste_directory::Directory;
use posthaste_smtp::address::is_domain;
use posthaste_units::words::Problem;

use super::{Config, LimitOverrides, Limits, Listener, Network, PolicyOverrides, Storage};
use crate::owners::{OwnerRules, Rights};

/// Finds the first problem of a completed configuration.
pub(super) fn check(config: &Config) -> Result<(), Problem> {
    if !is_domain(&config.host_name) || !config.host_name.is_ascii() {
        let message = "not a host name, such as mx.example.org: letters, digits and hyphens, with dots between";
        return Err(Problem::new(["host_name".into()], message));
    }
    config.identity().map_err(|(key, message)| Problem::new([key.into()], message))?;
    check_storage(&config.storage)?;
    check_limits(&config.limits)?;
    check_forbidden(&config.policy.forbidden_commands)?;
    for (index, network) in config.networks.iter().enumerate() {
        let at = || vec!["network".into(), index.into()];
        check_network(network, &config.networks[..index]).map_err(|problem| problem.within(at()))?;
        check_overrides(config, &network.limits, &network.policy).map_err(|problem| problem.within(at()))?;
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        check_listener(index, listener, &config.listeners[..index])?;
        let at = || vec!["listener".into(), index.into()];
        listener.check_rules().map_err(|(key, message)| Problem::new([key.into()], message).within(at()))?;
        check_overrides(config, &listener.limits, &listener.policy).map_err(|problem| problem.within(at()))?;
    }
    crate::logging::filter(&config.log.level).map_err(|why| Problem::new(["log".into(), "level".into()], why))?;
    Directory::new(&config.domains, crate::MAILDIR)?;
    check_owners(config)
}

/// Checks what differs from `[limits]` and `[policy]`, which are in order themselves.
fn check_overrides(config: &Config, limits: &LimitOverrides, policy: &PolicyOverrides) -> Result<(), Problem> {
    check_limits(&limits.over(&config.limits))?;
    policy.forbidden_commands.as_ref().map_or(Ok(()), |commands| check_forbidden(commands))
}

fn check_network(network: &Network, before: &[Network]) -> Result<(), Problem> {
    if network.cidr.0.is_empty() {
        return Err(Problem::new(["cidr".into()], "a network needs `cidr`, such as cidr = \"10.0.0.0/8\""));
    }
    for (index, cidr) in network.cidr.0.iter().enumerate() {
        let is_here = network.cidr.0[..index].contains(cidr);
        if is_here || before.iter().any(|other| other.cidr.0.contains(cidr)) {
            return Err(Problem::new(["cidr".into(), index.into()], format!("there is a network {cidr} already")));
        }
    }
    Ok(())
}

/// Who starts the server may be root; whom it becomes then is in the configuration.
fn check_owners(config: &Config) -> Result<(), Problem> {
    let rules = OwnerRules::new(config)?;
    let Some(rights) = Rights::to_be(config) else { return Ok(()) };
    rules.check(&rights).map_err(|why| {
        let message = format!("the server drops root for this user, but {why}: leave out `user` or `owner`");
        Problem::new(["user".into()], message)
    })
}

fn check_storage(storage: &Storage) -> Result<(), Problem> {
    check_bounds(
        "storage",
        &[
            // A record is at most a body that is kept in memory, with its envelope, and has to fit into one segment.
            ("spool_segment_bytes", storage.spool_segment_bytes, 4 << 20, 1 << 30),
            // One in use, one that only a checkpoint may take, and one to move on to.
            ("spool_segments", storage.spool_segments as u64, 4, 1 << 20),
            ("checkpoint_bytes", storage.checkpoint_bytes, 1 << 20, u64::MAX),
            ("checkpoint_secs", storage.checkpoint_secs, 1, 86_400),
        ],
    )?;
    if !storage.spool_segment_bytes.is_multiple_of(BLOCK) {
        let message = format!("must be a multiple of {}", posthaste_units::show_bytes(BLOCK));
        return Err(Problem::new(["storage".into(), "spool_segment_bytes".into()], message));
    }
    Ok(())
}

/// Each of `values` is a key of `table`, what it is, and the least and most that it may be.
fn check_bounds(table: &str, values: &[(&str, u64, u64, u64)]) -> Result<(), Problem> {
    for &(name, value, least, most) in values {
        if !(least..=most).contains(&value) {
            let message = match most {
                u64::MAX => format!("must be at least {}", shown(name, least)),
                _ => format!("must be between {} and {}", shown(name, least), shown(name, most)),
            };
            return Err(Problem::new([table.into(), name.into()], message));
        }
    }
    Ok(())
}

/// With the unit that the key's name ends in.
fn shown(name: &str, value: u64) -> String {
    match name {
        _ if name.ends_with("_bytes") => posthaste_units::show_bytes(value),
        _ if name.ends_with("_secs") && value > 0 && value.is_multiple_of(86_400) => format!("{} days", value / 86_400),
        _ if name.ends_with("_secs") => format!("{value} seconds"),
        _ => value.to_string(),
    }
}

/// The spool writes whole blocks.
const BLOCK: u64 = 4096;

fn check_listener(index: usize, listener: &Listener, before: &[Listener]) -> Result<(), Problem> {
    let at = |key: &str| vec!["listener".into(), index.into(), key.into()];
    match (&listener.address, &listener.unix) {
        (None, None) => {
            let example = "such as address = \"0.0.0.0:25\" or unix = \"/run/posthaste/lmtp.sock\"";
            Err(Problem::new(at(""), format!("a listener needs `address` or `unix`, {example}")))
        }
        (Some(_), Some(_)) => Err(Problem::new(at("unix"), "a listener has `address` or `unix`, not both")),
        (Some(address), None) if check_address(address).is_err() => {
            Err(Problem::new(at("address"), check_address(address).unwrap_err()))
        }
        (Some(address), None)
            if !address.ends_with(":0") && before.iter().any(|other| other.address == listener.address) =>
        {
            Err(Problem::new(at("address"), format!("there is a listener on {address} already")))
        }
        (None, Some(path)) if before.iter().any(|other| other.unix.as_ref() == Some(path)) => {
            Err(Problem::new(at("unix"), format!("there is a listener on {} already", path.display())))
        }
        (None, Some(path)) if path.as_os_str().is_empty() || path.as_os_str().len() > UNIX_PATH_MAX => {
            Err(Problem::new(at("unix"), format!("a socket's path has 1 to {UNIX_PATH_MAX} octets")))
        }
        (Some(_), None) if listener.mode.is_some() => Err(Problem::new(at("mode"), "only for `unix`")),
        (Some(_), None) if listener.group.is_some() => Err(Problem::new(at("group"), "only for `unix`")),
        _ => listener.unix_access().map(drop).map_err(|(key, message)| Problem::new(at(key), message)),
    }
}

fn check_forbidden(commands: &[String]) -> Result<(), Problem> {
    for (index, command) in commands.iter().enumerate() {
        let at = || ["policy".into(), "forbidden_commands".into(), index.into()];
        if command.is_empty() || !command.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
            return Err(Problem::new(at(), "a command is one word, such as \"GET\""));
        }
        if posthaste_smtp::command::is_known(command) {
            return Err(Problem::new(at(), format!("{command} is a command of SMTP or LMTP and cannot be forbidden")));
        }
    }
    Ok(())
}

/// Whether a listener can be told so where to listen. A name is looked up when the server starts.
fn check_address(text: &str) -> Result<(), String> {
    const EXAMPLES: &str = "such as \"127.0.0.1:25\", \"[::]:25\" or \"localhost:25\"";
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(format!("an IPv6 address stands in brackets and needs a port: \"[{text}]:25\""));
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

fn check_limits(limits: &Limits) -> Result<(), Problem> {
    const ANY: u64 = u64::MAX;
    check_bounds(
        "limits",
        &[
            ("connections", limits.connections as u64, 1, ANY),
            ("connections_per_address", limits.connections_per_address as u64, 1, ANY),
            ("header_bytes", limits.header_bytes, 1024, ANY),
            ("recipients", limits.recipients as u64, 1, ANY),
            ("command_line_bytes", limits.command_line_bytes as u64, 512, ANY),
            ("text_line_bytes", limits.text_line_bytes, 998, ANY),
            ("errors", limits.errors.into(), 1, ANY),
            ("deferred_recipients", limits.deferred_recipients.into(), 1, ANY),
            ("idle_commands", limits.idle_commands.into(), 5, ANY),
            ("hops", limits.hops as u64, 1, ANY),
            ("memory_bytes", limits.memory_bytes, crate::memory::LARGE_BODY_BYTES as u64, ANY),
            ("command_secs", limits.command_secs, 1, A_YEAR),
            ("body_read_secs", limits.body_read_secs, 1, A_YEAR),
            ("body_total_secs", limits.body_total_secs, 1, A_YEAR),
            ("write_secs", limits.write_secs, 1, A_YEAR),
            ("linger_secs", limits.linger_secs, 0, A_YEAR),
            ("shutdown_secs", limits.shutdown_secs, 0, A_YEAR),
        ],
    )
}

/// In seconds: longer than anybody waits, and far from what a clock can hold.
const A_YEAR: u64 = 365 * 86_400;
/// `sun_path` of Linux, its final NUL left out.
const UNIX_PATH_MAX: usize = 107;
