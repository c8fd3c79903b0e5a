//! The layers of the workspace: a crate uses only crates below it, and only certain files may name certain crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From top to bottom. Crates of one row do not use each other.
const LAYERS: &[&[&str]] = &[
    &["posthaste"],
    &["server"],
    &["admin"],
    &["control"],
    &["config"],
    &["receive"],
    &["inject"],
    &["imap", "pop3"],
    &["policy"],
    &["relay"],
    &["notify"],
    &["queue"],
    &["shaping"],
    &["mailstore"],
    &["delivery"],
    &["transport", "events", "pickup"],
    &["search"],
    &["intake"],
    &["cluster"],
    &["accounts"],
    &["directory"],
    &["consumer"],
    &["spool"],
    &["ring"],
    &["smtp", "acme", "mta-sts", "dane"],
    &["dns"],
    &["net"],
    &["maildir"],
    &["text"],
    &["message", "dkim", "authres"],
    &["fsops"],
    &["units", "random", "scram", "watch", "rocksdb"],
];
/// Owners of streams. Traits that two of them share are in a crate below, and the server joins them.
const CONSUMERS: [&str; 5] = ["delivery", "transport", "relay", "events", "mailstore"];
/// The files and folders of the server that may name the crate of a destination or a door: the list of destinations and the wiring of each.
const WIRING: [(&str, &[&str]); 6] = [
    ("delivery", &["receive/destinations.rs", "services/maildirs/"]),
    ("transport", &["control/requests/transports.rs", "receive/destinations.rs", "services/transports/"]),
    (
        "relay",
        &[
            "config/error.rs",
            "config/forward.rs",
            "config/start_files.rs",
            "control/outbound.rs",
            "control/overview.rs",
            "control/requests/",
            "receive/live.rs",
            "receive/maps.rs",
            "receive/relay_slot.rs",
            "receive/remote.rs",
            "receive/returned.rs",
            "receive/tenants.rs",
            "services/cluster/",
            "services/relay.rs",
            "services/relay_log.rs",
            "services/relay_signatures.rs",
        ],
    ),
    (
        "events",
        &[
            "control/overview.rs",
            "control/requests/find.rs",
            "control/requests/list.rs",
            "receive/events.rs",
            "receive/returned.rs",
            "services/cluster/",
            "services/maildirs/outcomes.rs",
            "services/relay_log.rs",
            "services/transports/mod.rs",
            "services/webhooks/",
        ],
    ),
    (
        "mailstore",
        &[
            "control/requests/account.rs",
            "control/server.rs",
            "listen/reading.rs",
            "listen/text_search.rs",
            "receive/destinations.rs",
            "receive/detail_folders.rs",
            "services/mailboxes.rs",
        ],
    ),
    ("inject", &["services/inject/", "receive/handler/injected.rs"]),
];
/// The folders of the server, from top to bottom. The files beside them serve all folders, and use none.
const FOLDERS: [&str; 5] = ["control", "services", "listen", "receive", "config"];
/// The names of the server in the program's `server.rs`, the one file that imports it: `serve`, and what is a part of it. `config check` is a start that ends before
/// it binds; `open_closed` answers one request without listeners; `open_routes` asks the rules of a start's files. The types of requests and answers are
/// those of `control`.
const SERVER: [&str; 9] = [
    "ServeError",
    "ServeFailure",
    "ServeOptions",
    "check_config",
    "logging::error_line",
    "open_closed",
    "open_routes",
    "serve",
    "set_copy_aside",
];
/// The files of owners of streams that start threads by themselves, and what tells of one that hangs there. All others have theirs in the watch.
const THREADS: [(&str, &str); 3] = [
    ("delivery/src/flusher.rs", "it has no stream"),
    ("delivery/src/local/delivery.rs", "the mail that waits for its mount"),
    ("delivery/src/local/mount.rs", "the mail that waits for the mount"),
];
/// Signs of IO. Outside its driver, a protocol is a state machine without clock, file and socket.
const IO: [&str; 7] =
    ["Instant::now", "SystemTime", "std::fs", "std::net::Tcp", "std::os::unix::net", "tokio::net", "tokio::time"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The product's crates, by name without prefix, and the crates that each uses.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(dir.join("Cargo.toml")) else { continue };
        let (mut used, mut section) = (BTreeSet::new(), String::new());
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']).to_owned();
            }
            // Also `[dependencies.name]` and those of one platform.
            let (of, name) = match section.split_once("dependencies") {
                Some((of, "")) if line.starts_with("posthaste-") => (of, line),
                Some((of, rest)) if line.starts_with('[') && rest.starts_with('.') => (of, &rest[1..]),
                _ => continue,
            };
            let name = name.split(['.', '=', ' ']).next().unwrap_or_default();
            if let Some(name) = name.strip_prefix("posthaste-").filter(|_| !of.ends_with("dev-")) {
                used.insert(name.to_owned());
            }
        }
        all.insert(dir.file_name().unwrap().to_str().unwrap().to_owned(), used);
    }
    assert!(all.len() > 20 && all["server"].contains("intake"), "{all:?}");
    all
}

/// Each Rust file below `dir` without its tests, by its path there.
fn sources(dir: &Path) -> BTreeMap<String, String> {
    let (mut found, mut left) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(next) = left.pop() {
        for path in fs::read_dir(&next).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                left.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(name, text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned());
            }
        }
    }
    assert!(!found.is_empty(), "{}", dir.display());
    found
}

#[test]
fn a_crate_uses_only_layers_below_it() {
    let layer = |name: &str| LAYERS.iter().position(|row| row.contains(&name));
    for (name, used) in uses() {
        let own = layer(&name).unwrap_or_else(|| panic!("`{name}` has no layer here: add it"));
        for other in used {
            // The load generator is a tool; the program contains it.
            let is_tool = name == "posthaste" && other == "loadgen";
            let below = layer(&other).is_some_and(|other| other > own);
            assert!(is_tool || below, "`{name}` uses `{other}`, which is not below it");
        }
    }
}

#[test]
fn the_map_of_crates_has_each_crate_above_those_it_uses() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let row = |name: &str| rows.iter().position(|row| *row == name);
    for (name, used) in uses() {
        let own = row(&name).unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for `{name}`"));
        for other in used.iter().filter(|other| *other != "loadgen") {
            assert!(row(other).is_some_and(|other| other > own), "`{other}` is not below `{name}` in ARCHITECTURE.md");
        }
    }
}

#[test]
fn owners_of_streams_do_not_use_each_other() {
    let uses = uses();
    for name in CONSUMERS {
        let others: Vec<_> = uses[name].iter().filter(|other| CONSUMERS.contains(&other.as_str())).collect();
        assert!(others.is_empty(), "`{name}` uses {others:?}");
    }
}

#[test]
fn the_program_imports_the_server_for_serve_alone() {
    let sources = sources(&root().join("crates/posthaste/src"));
    let naming = sources.iter().filter(|(_, text)| text.contains("posthaste_server"));
    let naming: Vec<&str> = naming.map(|(file, _)| file.as_str()).collect();
    assert_eq!(naming, ["server.rs"], "commands ask by the requests of `control`");
    let mut named = BTreeSet::new();
    for rest in sources["server.rs"].split("posthaste_server").skip(1) {
        let rest = rest.strip_prefix("::").expect("no other name for the server");
        match rest.strip_prefix('{').and_then(|list| list.split_once('}')) {
            Some((list, _)) => named.extend(list.split(',').map(str::trim).filter(|name| !name.is_empty())),
            None => named.extend(rest.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).next()),
        }
    }
    assert_eq!(named, BTreeSet::from(SERVER), "found and allowed: another entry belongs to a crate below");
}

#[test]
fn a_destination_or_door_is_named_in_its_wiring_alone() {
    let sources = sources(&root().join("crates/server/src"));
    for (name, wiring) in WIRING {
        let naming = sources.iter().filter(|(_, text)| text.contains(&format!("posthaste_{name}")));
        let naming: Vec<&str> = naming.map(|(file, _)| file.as_str()).collect();
        let is_of = |file: &str, place: &str| file == place || place.ends_with('/') && file.starts_with(place);
        for file in &naming {
            assert!(wiring.iter().any(|place| is_of(file, place)), "{file} names `{name}`");
        }
        for place in wiring {
            assert!(naming.iter().any(|file| is_of(file, place)), "{place} does not name `{name}` any more: remove it");
        }
    }
}

#[test]
fn a_folder_of_the_server_uses_only_folders_below_it() {
    let place = |name: &str| FOLDERS.iter().position(|folder| *folder == name);
    let mut used = 0;
    for (file, text) in sources(&root().join("crates/server/src")).iter().filter(|(file, _)| *file != "lib.rs") {
        let own = file.split_once('/').map_or(FOLDERS.len(), |(folder, _)| {
            place(folder).unwrap_or_else(|| panic!("`{folder}` has no place here: add it"))
        });
        for path in text.split("crate::").skip(1) {
            let name = path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            assert!(!name.is_empty(), "{file} has a list after `crate::`: write a path a line");
            if let Some(other) = place(name) {
                assert!(other >= own, "{file} uses `{name}`, which is not below it");
                used += usize::from(other > own);
            }
        }
    }
    assert!(used > 100, "only {used} paths into other folders found");
}

#[test]
fn streams_are_replayed_by_consumer_alone() {
    // A replicated spool is a spool.
    for name in uses().into_keys().filter(|name| !["spool", "cluster", "consumer"].contains(&&**name)) {
        for (file, text) in sources(&root().join("crates").join(&name).join("src")) {
            assert!(!text.contains("Replayed::Entry"), "crates/{name}/src/{file} replays a stream by itself");
        }
    }
}

#[test]
fn owners_of_streams_start_threads_in_the_watch() {
    let mut found = BTreeSet::new();
    for (name, _) in uses().into_iter().filter(|(_, used)| used.contains("consumer")) {
        for (file, text) in sources(&root().join("crates").join(&name).join("src")) {
            if name != "server" && ["thread::Builder", "thread::spawn"].iter().any(|start| text.contains(start)) {
                found.insert(format!("{name}/src/{file}"));
            }
        }
    }
    let allowed: BTreeSet<String> = THREADS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, allowed, "found and allowed: see `StreamHandle::start_thread`");
}

#[test]
fn the_interface_of_a_spool_names_no_kind() {
    let sources = sources(&root().join("crates/spool/src"));
    let text = &sources["api.rs"];
    assert!(text.contains("pub trait Spool:"), "the trait is somewhere else");
    for kind in ["posthaste_ring", "FileSpool", "crate::config", "crate::pack"] {
        assert!(!text.contains(kind), "crates/spool/src/api.rs names {kind}");
    }
}

#[test]
fn acceptance_names_no_destination() {
    for dir in ["crates/server/src/receive/handler", "crates/intake/src"] {
        for (file, text) in sources(&root().join(dir)) {
            for name in CONSUMERS {
                assert!(!text.contains(&format!("posthaste_{name}")), "{dir}/{file} names `{name}`");
            }
        }
    }
}

#[test]
fn protocols_have_no_clock_no_file_and_no_socket() {
    for name in ["smtp", "imap", "pop3"] {
        let sources = sources(&root().join("crates").join(name).join("src"));
        for (file, text) in sources.iter().filter(|(file, _)| !file.starts_with("driver")) {
            for io in IO {
                assert!(!text.contains(io), "crates/{name}/src/{file} has {io}");
            }
        }
    }
}
