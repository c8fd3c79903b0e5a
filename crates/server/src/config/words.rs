//! What the reader of TOML says, in words of the file instead of the program's.

use serde_json::Value;

use super::{Config, Domain, Listener, Table};

/// The message of an error, for whoever wrote the file.
pub(super) fn plain(message: &str) -> String {
    match message.trim_end() {
        "missing field `name`" => "a domain needs a name, such as name = \"example.org\"".to_owned(),
        message => posthaste_units::words::plain(message, home_of),
    }
}

/// The table that has the key, where it is another one.
fn home_of(name: &str) -> Option<String> {
    let listed = |table: &str| format!("below a [[{table}]]");
    match name {
        "address" | "unix" | "mode" | "protocol" => return Some(listed(Listener::NAME)),
        "name" | "users" | "aliases" | "catch_all" | "sub_addressing" | "owner" | "accounts" => {
            return Some(listed(Domain::NAME));
        }
        _ => {}
    }
    let Ok(Value::Object(top)) = serde_json::to_value(Config::default()) else { return None };
    if top.contains_key(name) {
        return Some("to the top of the file, before the first table".to_owned());
    }
    let table = top.iter().find(|(_, value)| value.get(name).is_some())?.0;
    Some(format!("below [{table}]"))
}
