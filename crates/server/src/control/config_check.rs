//! Findings of `config check` about a configuration that can be used.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_directory::{Transport, TransportKind};
use posthaste_dns::SetupError;
use posthaste_units::{about_bytes, show_bytes};
use rustix::fs::{Access, access};
use rustix::thread::{CapabilitySet, capabilities};

use crate::config::dkim::DomainSigners;
use crate::config::privileges::{LOW_PORTS, PrivilegeError, is_low};
use crate::config::start_files::StartFiles;
use posthaste_config::{Config, DEFAULT_FILE, Listener, Loaded, OwnerRules, Rights, SYSTEM_FILE, Storage, Users};

/// Findings of `config check`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigFindings {
    /// Reasons for which a server would not start.
    pub errors: Vec<String>,
    /// Lines with notes and warnings, and the confirmation if there are no errors.
    pub text: String,
}

/// Reads everything that a server reads at its start, and checks everything that it opens. Returns errors that would
/// stop it, defaults in use, and checks that may differ for the server's user or on its machine.
pub fn check_config(loaded: &Loaded) -> ConfigFindings {
    let config = &loaded.config;
    let (errors, of_user): (Vec<_>, Vec<_>) = problems(loaded).into_iter().partition(|problem| !problem.is_of_user);
    let mut out = match &loaded.file {
        _ if !errors.is_empty() => String::new(),
        Some(file) => format!("{}: ok\n", file.display()),
        None => format!("no {DEFAULT_FILE} here and no {SYSTEM_FILE}: the defaults apply\n"),
    };
    if let Some(why) = &loaded.passed_over {
        let _ = writeln!(out, "note: root does not read {DEFAULT_FILE} in this directory: {why}");
    }
    if !loaded.names_listeners {
        let each: Vec<_> =
            config.listeners.iter().map(|listener| format!("{} on {listener}", listener.protocol.name())).collect();
        let _ = writeln!(out, "note: no [[listener]], so {}", each.join(", "));
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
    let of_user = of_user.into_iter().map(|problem| problem.text);
    for warning in of_user.chain(warnings(config)).chain(unknown_logins(loaded)).chain(out_of_reach(loaded)) {
        let _ = writeln!(out, "warning, on this machine and for this user: {warning}");
    }
    ConfigFindings { errors: errors.into_iter().map(|problem| problem.text).collect(), text: out }
}

/// A reason why a server would not start.
struct Problem {
    text: String,
    /// True if the server's user may have further rights, or if a supervisor creates the missing file.
    is_of_user: bool,
}

/// Everything that would stop a start, except binding sockets and opening the spool, which may be in use. The spool's
/// kind is compared.
fn problems(loaded: &Loaded) -> Vec<Problem> {
    let config = &loaded.config;
    // Root reads what it names, and then becomes the user of the configuration: that is the start itself.
    let own = rustix::process::geteuid();
    let is_servers_user =
        own.is_root() || config.identity().ok().flatten().is_some_and(|identity| identity.uid == own.as_raw());
    let denied = std::io::Error::from(rustix::io::Errno::ACCESS).to_string();
    let problem = |text: String| Problem { is_of_user: !is_servers_user && text.contains(&denied), text };
    let mut all = Vec::new();
    if let Err(errors) = StartFiles::read(config, &loaded.directory) {
        all.extend(errors.iter().map(|error| problem(error.to_string())));
    }
    let of_privileges = |checked: Result<(), PrivilegeError>| {
        let why = checked.err()?.to_string();
        Some(Problem { text: why, is_of_user: !is_servers_user })
    };
    all.extend(of_privileges(crate::config::privileges::check_file(loaded)));
    all.extend(of_privileges(crate::config::privileges::check_storage(config)));
    all.extend(
        config
            .listeners
            .iter()
            .filter_map(unix_listener)
            .map(|(text, is_of_user)| Problem { is_of_user: is_of_user || problem(text.clone()).is_of_user, text }),
    );
    let storage = &config.storage;
    for (key, path) in [("spool", &storage.spool), ("mail", &storage.mail), ("data", &storage.data)] {
        all.extend(unmakeable(&format!("storage.{key}"), path).map(problem));
    }
    all.extend(storage.kind.check(&storage.spool).err().map(|error| problem(format!("storage.kind: {error}"))));
    all
}

/// Files that root can read and the server's user cannot. The server reads them at a reload, and also at its start if root does not start it.
fn out_of_reach(loaded: &Loaded) -> Vec<String> {
    let read = || StartFiles::read(&loaded.config, &loaded.directory).err().unwrap_or_default();
    let denied = std::io::Error::from(rustix::io::Errno::ACCESS).to_string();
    let Some((user, errors)) = crate::config::privileges::as_servers_user(&loaded.config, read) else {
        return Vec::new();
    };
    let errors = errors.iter().map(ToString::to_string).filter(|error| error.contains(&denied));
    errors.map(|error| format!("the server's user, uid {}, cannot read this: {error}", user.uid)).collect()
}

/// Why a directory, or a file in it, could not be made.
fn unmakeable(key: &str, path: &Path) -> Option<String> {
    // It is made with all that lies above it.
    let there = path.ancestors().map(here).find(|path| path.exists())?;
    takes_directories(there).err().map(|why| format!("{key} = {}: {} {why}", path.display(), there.display()))
}

/// Names of `auth.recipient_rates` that the file of passwords does not have.
fn unknown_logins(loaded: &Loaded) -> Vec<String> {
    let Ok(logins) = crate::config::start_files::load_logins(&loaded.config, &loaded.directory) else {
        return Vec::new();
    };
    let is_unknown = |name: &&String| loaded.directory.login_name(name).is_none_or(|name| logins.get(&name).is_none());
    let unknown = loaded.config.auth.recipient_rates.keys().filter(is_unknown);
    unknown.map(|name| format!("auth.recipient_rates: there is no login `{name}`")).collect()
}

/// Warnings that depend on the machine and may differ when the server is started, or that do not prevent a start.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings: Vec<String> = config.listeners.iter().filter_map(tcp_listener).collect();
    let storage = &config.storage;
    let owners = OwnerRules::of(&config.domains);
    if config.rights().is_none()
        && let Err(why) = owners.check(&Rights::of_this_process())
    {
        warnings.push(why.to_string());
    }
    warnings.extend(owners.barred(&storage.mail));
    warnings.extend(config.transports().iter().filter_map(unusable));
    if let Err(why) = crate::config::privileges::check_transports(config)
        && crate::config::privileges::servers_user(config).is_none()
    {
        warnings.push(why.to_string());
    }
    let index = Some(("search.dir", &config.search.dir)).filter(|_| config.search.index);
    let events = Some(("events.dir", &config.events.dir)).filter(|_| config.events.enabled);
    warnings.extend(index.into_iter().chain(events).filter_map(|(key, path)| unmakeable(key, path)));
    warnings.extend(crate::config::certificates::exposed_keys(config));
    if let Ok(signers) = DomainSigners::read(config) {
        warnings.extend(
            signers.unreadable().map(|why| format!("a DKIM key cannot be used, mail of its domain waits: {why}")),
        );
    }
    let of_certificates = crate::config::expiry::warnings(config, std::time::SystemTime::now());
    warnings.extend(of_certificates.iter().map(ToString::to_string));
    let program = config.acme.dns_program.as_deref().filter(|_| config.acme.enabled);
    warnings.extend(program.and_then(cannot_run).map(|why| format!("acme.dns_program: {why}")));
    warnings.extend(floors(storage));
    warnings.extend(log_size(storage));
    warnings.extend(pickup(config));
    warnings.extend(config.webhooks.iter().filter_map(crate::services::webhooks::unusable));
    if config.dns.trust_ad
        && let Ok(resolver) = crate::config::resolver::resolver(config)
    {
        warnings.extend(resolver.believed_from_afar().map(|server| {
            format!("dns.trust_ad: the resolver {server} is not on this machine: its answers can be forged on the way")
        }));
    }
    if config.lets_clients_relay()
        && let Err(why @ SetupError::System(_)) = crate::config::resolver::resolver(config)
    {
        warnings.push(format!("the relay: {why}"));
    }
    warnings
}

/// Why mail of local programs would be refused, or could be stolen.
fn pickup(config: &Config) -> Option<String> {
    let path = Some(&config.pickup.directory).filter(|_| config.pickup.enabled)?;
    // The first start makes it.
    let found = std::fs::metadata(path).ok()?;
    let (mode, uid) = (found.mode() & 0o7777, found.uid());
    let own = config.identity().ok().flatten().map_or(rustix::process::geteuid().as_raw(), |identity| identity.uid);
    let why = match mode {
        _ if !found.is_dir() => "is not a directory".to_owned(),
        _ if uid != own && own != 0 => format!("belongs to uid {uid}, and not to the server's user"),
        _ if mode & 0o022 == 0 => return None,
        _ if mode & 0o1000 == 0 => "lets users remove the mail of others: it needs mode 3733".to_owned(),
        _ if mode & 0o2000 == 0 => "does not let the server read what others put there: it needs mode 3733".to_owned(),
        _ => return None,
    };
    Some(format!("pickup.directory = {}: it {why}", path.display()))
}

/// Why the log will not reach its size, if the disk is smaller.
fn log_size(storage: &Storage) -> Option<String> {
    let log = storage.spool_segment_bytes.saturating_mul(storage.spool_segments as u64);
    let wanted = log.saturating_add(storage.free_bytes_min);
    let at = storage.spool.ancestors().map(here).find(|path| path.exists())?;
    let disk = rustix::fs::statvfs(at).ok().map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize))?;
    (disk < wanted).then(|| {
        format!(
            "the spool's file system has {}; storage.spool_segments = {} files of {} and storage.free_bytes_min = {} are more: the log will stay smaller, and a burst of mail is deferred sooner",
            about_bytes(disk),
            storage.spool_segments,
            show_bytes(storage.spool_segment_bytes),
            show_bytes(storage.free_bytes_min)
        )
    })
}

/// Why accepted mail could be undeliverable, if the floor is not below that of the spool.
fn floors(storage: &Storage) -> Option<String> {
    let device_of =
        |path: &Path| path.ancestors().find_map(|path| std::fs::metadata(here(path)).ok()).map(|at| at.dev());
    let is_above = |mail: Option<u64>, spool: u64| mail.is_some_and(|mail| mail > 0 && mail >= spool);
    let (key, other) = match storage {
        _ if is_above(storage.mail_free_bytes_min, storage.free_bytes_min) => ("mail_free_bytes_min", "free_bytes_min"),
        _ if is_above(storage.mail_free_inodes_min, storage.free_inodes_min as u64) => {
            ("mail_free_inodes_min", "free_inodes_min")
        }
        _ => return None,
    };
    (device_of(&storage.spool)? == device_of(&storage.mail)?).then(|| {
        format!(
            "storage.{key} is not below storage.{other}, and spool and mail are on one file system: when it fills up, mail is accepted that cannot be delivered"
        )
    })
}

/// Why this user cannot run a program.
fn cannot_run(program: &Path) -> Option<String> {
    match std::fs::metadata(program) {
        Err(error) => Some(format!("{}: {error}", program.display())),
        Ok(found) if !found.is_file() || access(program, Access::EXEC_OK).is_err() => {
            Some(format!("{} cannot be run", program.display()))
        }
        Ok(_) => None,
    }
}

/// Why this user could not deliver mail there.
fn unusable(transport: &Transport) -> Option<String> {
    let why = match transport.kind() {
        TransportKind::Program(arguments) => cannot_run(Path::new(arguments.first()?))?,
        TransportKind::File(path) => {
            let dir = path.parent().unwrap_or(Path::new("/"));
            match std::fs::metadata(dir) {
                Err(error) => format!("{}: {error}", dir.display()),
                Ok(found) if !found.is_dir() => format!("{} is not a directory", dir.display()),
                _ if path.exists() && (!path.is_file() || access(path, Access::WRITE_OK).is_err()) => {
                    "it cannot be written to".to_owned()
                }
                _ if !path.exists() && access(dir, Access::WRITE_OK | Access::EXEC_OK).is_err() => {
                    format!("{} cannot be written to", dir.display())
                }
                Ok(_) => return None,
            }
        }
        TransportKind::LmtpUnix(path) if path.exists() => return None,
        TransportKind::LmtpUnix(_) => "there is no such socket now".to_owned(),
        TransportKind::LmtpTcp(host, port) => match (host.as_str(), *port).to_socket_addrs() {
            Ok(_) => return None,
            Err(error) => format!("the host name cannot be resolved: {error}"),
        },
        _ => return None,
    };
    Some(format!("transport {transport}: {why}"))
}

/// Tests if directories can be made here, which also detects /proc and the like.
fn takes_directories(dir: &Path) -> Result<(), String> {
    match std::fs::metadata(dir) {
        Ok(metadata) if !metadata.is_dir() => return Err("is not a directory".to_owned()),
        _ => access(dir, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| format!("cannot be written to: {}", std::io::Error::from(error)))?,
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let probe = dir.join(format!(".posthaste-check-{}-{number}", std::process::id()));
    std::fs::create_dir(&probe).map_err(|error| format!("cannot hold new directories: {error}"))?;
    std::fs::remove_dir(&probe).map_err(|error| format!("does not let {} be removed: {error}", probe.display()))
}

fn tcp_listener(listener: &Listener) -> Option<String> {
    let address = listener.socket.address.as_ref()?;
    tcp(address).map(|why| format!("listener {address}: {why}"))
}

/// Why the server could not listen there, and true if that is temporary.
fn unix_listener(listener: &Listener) -> Option<(String, bool)> {
    let path = listener.socket.unix.as_ref()?;
    let dir = here(path.parent().unwrap_or(Path::new("")));
    // It is empty after a boot, and units have their directories there only while they run.
    let is_made_at_start = |error: &std::io::Error| error.kind() == ErrorKind::NotFound && dir.starts_with("/run/");
    let why = match std::fs::metadata(dir) {
        Err(error) if is_made_at_start(&error) => {
            let text = format!(
                "listener {}: {} is not there now; `RuntimeDirectory=` of a systemd unit makes it at each start",
                path.display(),
                dir.display()
            );
            return Some((text, true));
        }
        Err(error) => format!("{}: {error}", dir.display()),
        Ok(metadata) if !metadata.is_dir() => format!("{} is not a directory", dir.display()),
        Ok(_) => match access(dir, Access::WRITE_OK | Access::EXEC_OK) {
            Err(error) => format!("{} cannot be written to: {}", dir.display(), std::io::Error::from(error)),
            Ok(()) if path.symlink_metadata().is_ok_and(|found| !found.file_type().is_socket()) => {
                "a file that is not a socket has this name, and is not replaced".to_owned()
            }
            Ok(()) => return None,
        },
    };
    Some((format!("listener {}: {why}", path.display()), false))
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

fn may_take_low_ports() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_BIND_SERVICE))
}

/// The directory of a relative path without a parent, whose name is empty.
fn here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use posthaste_spool::StoreKind;

    use super::*;

    fn check_of(text: &str) -> String {
        said_of(&Loaded::parse(Path::new("x"), text).unwrap())
    }

    /// Errors first.
    fn said_of(loaded: &Loaded) -> String {
        let ConfigFindings { errors, text } = check_config(loaded);
        errors.iter().map(|error| format!("error: {error}\n")).collect::<String>() + &text
    }

    #[test]
    fn the_check_names_a_program_for_dns_that_cannot_be_run() {
        let text = "host_name = 'mx.example.org'\n[acme]\nenabled = true\ndns_program = '/nowhere/x'\n";
        assert!(check_of(text).contains("acme.dns_program: /nowhere/x: No such file"));
        assert!(check_of(&text.replace("nowhere/x", "dev/null")).contains("acme.dns_program: /dev/null cannot be run"));
        assert!(!check_of(&text.replace("true", "false")).contains("dns_program"));
    }

    #[test]
    fn the_check_names_defaults_and_what_would_stop_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("posthaste.toml");
        std::fs::write(&file, "host_name = \"mx.example\"\n").unwrap();
        let said = said_of(&Loaded::load(Some(&file)).unwrap());
        assert_eq!(
            said.lines().skip(1).collect::<Vec<_>>(),
            [
                "note: no [[listener]], so SMTP on 127.0.0.1:2525, HTTP on 127.0.0.1:8025, IMAP on 127.0.0.1:1143, POP3 on 127.0.0.1:1110",
                "note: no [[domain]], so mail for any user at localhost and mx.example"
            ]
        );
        let missing = dir.path().join("missing/lmtp.sock");
        let text = format!("[[listener]]\nunix = \"{}\"\n[[domain]]\nname = \"a.example\"\n", missing.display());
        std::fs::write(&file, text).unwrap();
        let said = said_of(&Loaded::load(Some(&file)).unwrap());
        assert!(said.starts_with(&format!("error: listener {}: ", missing.display())), "{said}");
    }

    #[test]
    fn a_directory_that_a_unit_makes_is_no_error() {
        let text = |path: &str| format!("[[listener]]\nunix = \"{path}\"\nprotocol = \"lmtp\"\n");
        let said = check_of(&text("/run/no-such-unit/lmtp.sock"));
        assert!(
            said.contains(": listener /run/no-such-unit/lmtp.sock: /run/no-such-unit is not there now; "),
            "{said}"
        );
        assert!(!said.contains("error: listener"), "{said}");
        let said = check_of(&text("/var/no-such-dir/lmtp.sock"));
        assert!(said.contains("error: listener /var/no-such-dir/lmtp.sock: /var/no-such-dir: No such file"), "{said}");
    }

    #[test]
    fn a_check_warns_of_a_resolver_that_is_believed_from_afar() {
        let said = |servers: &str| check_of(&format!("[dns]\ntrust_ad = true\nservers = {servers}\n"));
        let text = said("['192.0.2.53']");
        assert!(text.contains(": dns.trust_ad: the resolver 192.0.2.53 is not on this machine"), "{text}");
        assert!(!said("['127.0.0.1', '[::1]:53']").contains("trust_ad"));
    }

    #[test]
    fn a_check_names_listeners_that_cannot_be_had_here() {
        let text =
            "[[listener]]\naddress = \"192.0.2.1:2525\"\n[[listener]]\naddress = \"no-such-host.invalid:2525\"\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        let said = said_of(&Loaded::load(Some(file.path())).unwrap());
        assert!(said.contains("listener 192.0.2.1:2525: this machine does not have the address 192.0.2.1\n"), "{said}");
        assert!(said.contains("listener no-such-host.invalid:2525: the host name cannot be resolved"), "{said}");
    }

    #[test]
    fn the_check_names_unmakeable_directories_and_empty_domains() {
        let said = |text: &str| check_of(text);
        let out = said("[storage]\ndata = \"/proc/nope\"\n[[domain]]\nname = \"a.example\"\n");
        for expected in [
            "storage.spool = /proc/nope/spool: /proc ",
            "storage.mail = /proc/nope/mail: /proc ",
            "note: `a.example` has no users and no catch_all, so only postmaster is taken there",
        ] {
            assert!(out.contains(expected), "{out}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let out = said(&format!("[storage]\ndata = \"{}\"\n", dir.path().join("file/data").display()));
        assert!(out.contains("file is not a directory"), "{out}");
        let out = said(&format!("[storage]\ndata = \"{}\"\n", dir.path().join("a/b").display()));
        assert!(!out.contains("storage"), "{out}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left of what was tried");
    }

    #[test]
    fn a_kind_of_spools_that_cannot_be_had_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let said = |kind: StoreKind| check_of(&format!("[storage]\nkind = \"{kind}\"\ndata = {:?}\n", dir.path()));
        for kind in [StoreKind::Ring, StoreKind::Files, StoreKind::Fjall, StoreKind::Rocksdb] {
            let refusal = format!("error: storage.kind: this program was built without spools of the kind \"{kind}\"");
            assert_eq!(said(kind).contains(&refusal), !kind.is_built(), "{}", said(kind));
        }
        std::fs::create_dir_all(dir.path().join("spool/ring")).unwrap();
        assert!(said(StoreKind::Files).contains("error: storage.kind: the spool is of the kind \"ring\""));
        assert!(!said(StoreKind::Ring).contains("storage.kind"));
    }

    #[test]
    fn a_mail_floor_not_below_the_spool_floor_is_warned_of() {
        let warns = |text: &str| check_of(text).contains("mail is accepted that cannot be delivered");
        assert!(
            warns("[storage]\nmail_free_bytes_min = \"64M\"\n") && warns("[storage]\nmail_free_inodes_min = 1000\n")
        );
        assert!(!warns("") && !warns("[storage]\nfree_bytes_min = 0\nfree_inodes_min = 0\n"));
        assert!(!warns("[storage]\nmail_free_bytes_min = \"64M\"\nmail = \"/proc/mail\"\n"), "another file system");
    }

    #[test]
    fn a_log_that_the_disk_has_no_room_for_is_warned_of() {
        let warns = |text: &str| check_of(text).contains("the log will stay smaller");
        assert!(warns("[storage]\nspool = \"/proc/spool\"\n"), "a file system without blocks");
        assert!(!warns("[storage]\nspool_segments = 4\nspool_segment_bytes = \"4M\"\nfree_bytes_min = 0\n"));
    }

    #[test]
    fn a_port_that_needs_missing_privileges_is_named() {
        let limit = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let limit: u16 = limit.ok().and_then(|limit| limit.trim().parse().ok()).unwrap_or(1024);
        assert_eq!([0, limit, 65_535].map(is_low), [false; 3]);
        assert!(limit == 0 || is_low(limit - 1));
        let sets = rustix::thread::capabilities(None).unwrap();
        let has_right = sets.effective.contains(rustix::thread::CapabilitySet::NET_BIND_SERVICE);
        let said = check_of("[[listener]]\naddress = \"127.0.0.1:25\"\n");
        assert_eq!(
            said.contains("listener 127.0.0.1:25: ports below 1024 need root"),
            is_low(25) && !has_right,
            "{said}"
        );
    }
}
