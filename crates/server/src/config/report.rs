//! What `config check` says of a configuration that can be used.

use std::fmt::Write as _;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Access, access};
use rustix::thread::{CapabilitySet, capabilities};

use crate::owners::{OwnerRules, Rights};

use super::{Config, DEFAULT_FILE, Listener, Loaded, Users};

/// Says that it can be used, what is left to the defaults, and what on this machine would stop a server all the same.
pub fn check(loaded: &Loaded) -> String {
    let config = &loaded.config;
    let mut out = match &loaded.file {
        Some(file) => format!("{}: ok\n", file.display()),
        None => format!("no {DEFAULT_FILE}: the defaults apply\n"),
    };
    if !loaded.names_listeners {
        let listeners: Vec<String> = config.listeners.iter().map(ToString::to_string).collect();
        let _ = writeln!(out, "note: no [[listener]], so SMTP on {}", listeners.join(", "));
    }
    if !loaded.names_domains {
        let domains: Vec<&str> = config.domains.iter().map(|domain| domain.name.as_str()).collect();
        let _ = writeln!(out, "note: no [[domain]], so mail for any user at {}", domains.join(" and "));
    }
    for domain in &config.domains {
        if domain.users == Users::Listed(Vec::new()) && domain.catch_all.is_none() {
            let only = if domain.aliases.is_empty() && domain.patterns.is_empty() {
                "postmaster is"
            } else {
                "its aliases and postmaster are"
            };
            let _ = writeln!(out, "note: `{}` has no users and no catch_all, so only {only} taken there", domain.name);
        }
    }
    for warning in warnings(config) {
        let _ = writeln!(out, "warning, on this machine and for this user: {warning}");
    }
    out
}

/// What depends on the machine and may be otherwise where, or when, the server is started.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings: Vec<String> = config.listeners.iter().filter_map(listener).collect();
    let storage = &config.storage;
    let owners = OwnerRules::of(config);
    if Rights::to_be(config).is_none()
        && let Err(why) = owners.check(&Rights::of_this_process())
    {
        warnings.push(why.to_string());
    }
    warnings.extend(owners.barred(&storage.mail));
    let index = Some(("search.dir", &config.search.dir)).filter(|_| config.search.index);
    for (key, path) in [("storage.spool", &storage.spool), ("storage.mail", &storage.mail)].into_iter().chain(index) {
        // It is made with all that lies above it.
        let Some(there) = path.ancestors().find(|path| here(path).exists()) else { continue };
        if let Err(why) = takes_directories(here(there)) {
            warnings.push(format!("{key} = {}: {} {why}", path.display(), here(there).display()));
        }
    }
    warnings
}

/// Whether directories can be made in this one: tried, as that tells of /proc and the like as well.
fn takes_directories(dir: &Path) -> Result<(), String> {
    match std::fs::metadata(dir) {
        Ok(metadata) if !metadata.is_dir() => return Err("is not a directory".to_owned()),
        _ if access(dir, Access::WRITE_OK | Access::EXEC_OK).is_err() => return Err("cannot be written to".to_owned()),
        _ => {}
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let probe = dir.join(format!(".posthaste-check-{}-{number}", std::process::id()));
    std::fs::create_dir(&probe).map_err(|error| format!("takes no directories: {error}"))?;
    std::fs::remove_dir(&probe).map_err(|error| format!("does not let go of {}: {error}", probe.display()))
}

fn listener(listener: &Listener) -> Option<String> {
    if let Some(address) = &listener.address {
        return tcp(address).map(|why| format!("listener {address}: {why}"));
    }
    let path = listener.unix.as_ref()?;
    let dir = here(path.parent().unwrap_or(Path::new("")));
    let shown = path.display();
    match std::fs::metadata(dir) {
        Err(error) => Some(format!("listener {shown}: {}: {error}", dir.display())),
        Ok(metadata) if !metadata.is_dir() => Some(format!("listener {shown}: {} is not a directory", dir.display())),
        Ok(_) if access(dir, Access::WRITE_OK | Access::EXEC_OK).is_err() => {
            Some(format!("listener {shown}: {} cannot be written to", dir.display()))
        }
        Ok(_) => None,
    }
}

/// Why the server could not listen there.
fn tcp(address: &str) -> Option<String> {
    let found: Vec<SocketAddr> = match address.to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) => return Some(format!("the host name cannot be resolved, so the server would not start: {error}")),
    };
    // Without a port of ours in it, this says only whether the address is one of this machine.
    let is_here = |address: &SocketAddr| match UdpSocket::bind((address.ip(), 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::AddrNotAvailable,
    };
    if !found.iter().any(is_here) {
        let found: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
        return Some(format!("this machine does not have the address {}", found.join(" or ")));
    }
    let is_barred = found.iter().any(|address| is_low(address.port())) && !may_take_low_ports();
    is_barred.then(|| LOW_PORTS.to_owned())
}

/// What a process without the right to a port is told.
pub(crate) const LOW_PORTS: &str =
    "ports below 1024 need root (with `user`, to drop it after binding) or CAP_NET_BIND_SERVICE";

/// Whether only some may listen on this port: the kernel's limit can be moved.
pub(crate) fn is_low(port: u16) -> bool {
    let limit = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
    port != 0 && port < limit.and_then(|limit| limit.trim().parse().ok()).unwrap_or(1024)
}

fn may_take_low_ports() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_BIND_SERVICE))
}

/// The directory that a relative path begins in has an empty name.
fn here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}
