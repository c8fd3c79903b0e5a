//! Translates messages of the TOML reader into terms of the file.

use posthaste_directory::{AddressPattern, Domain};
use serde_json::Value;

use super::config::Config;
use super::listeners::{Listener, Network};
use super::values::Table;

/// The message of an error, for the author of the file.
pub(super) fn plain(message: &str) -> String {
    match message.trim_end() {
        message if let Some(known) = other_name(message) => known.to_owned(),
        "missing field `name`" => "a domain needs a name, such as name = \"example.org\"".to_owned(),
        message => posthaste_units::words::plain(message, home_of),
    }
}

/// The right key for somebody who uses another name to set up ports 465 and 587.
fn other_name(message: &str) -> Option<&'static str> {
    let (key, _) = message.strip_prefix("unknown field `")?.split_once('`')?;
    match key {
        "starttls" | "implicit_tls" | "tls_certificate" | "tls_key" => Some(
            "a listener has `tls`, which is \"starttls\", \"required\" or \"implicit\"; its certificate is named here or below [tls]",
        ),
        "auth_required" | "authentication" | "passwords" | "password_file" => Some(
            "a listener has `auth`, which is \"offered\" or \"required\", and `file` below [auth] names the file of passwords",
        ),
        _ => None,
    }
}

/// The table that contains the key, if it is another one.
fn home_of(name: &str) -> Option<String> {
    let listed = |table: &str| format!("below a [[{table}]]");
    match name {
        "address" | "unix" | "mode" | "protocol" | "relay" | "auth" | "allow" | "proxy_protocol" | "proxies"
        | "inject_from" => {
            return Some(listed(Listener::NAME));
        }
        "cidr" => return Some(listed(Network::NAME)),
        "match" | "to" => return Some(listed(AddressPattern::NAME)),
        _ if Domain::KEYS.contains(&name) => return Some(listed(Domain::NAME)),
        _ => {}
    }
    let Ok(Value::Object(top)) = serde_json::to_value(Config::default()) else { return None };
    if top.contains_key(name) {
        return Some("to the top of the file, before the first table".to_owned());
    }
    let table = top.iter().find(|(_, value)| value.get(name).is_some())?.0;
    Some(format!("below [{table}]"))
}
