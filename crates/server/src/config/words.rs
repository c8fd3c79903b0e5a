//! What the reader of TOML says, in words of the file instead of the program's.

use serde_json::Value;

use super::{Config, Domain, Listener, Table};

/// The message of an error, for whoever wrote the file.
pub(super) fn plain(message: &str) -> String {
    let message = message.trim_end().replace('\n', ", ");
    let said = if let Some(rest) = message.strip_prefix("unknown field `") {
        split_name(rest, "`, ").map(|(name, expected)| unknown_key(name, &quoted(expected)))
    } else if let Some(rest) = message.strip_prefix("unknown variant `") {
        split_name(rest, "`, ").map(|(name, expected)| unknown_word(name, &quoted(expected)))
    } else if let Some(rest) = message.strip_prefix("missing field `") {
        split_name(rest, "`").map(|(name, _)| match name {
            "name" => "a domain needs a name, such as name = \"example.org\"".to_owned(),
            _ => format!("`{name}` is missing"),
        })
    } else if message == "integer number overflowed" {
        Some("the number is too large".to_owned())
    } else if message == "wanted string or table" {
        Some("this has to be text in quotes".to_owned())
    } else {
        let typed = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
        typed.and_then(|rest| rest.rsplit_once(", expected ")).map(|(found, wanted)| wrong_type(found, wanted))
    };
    said.unwrap_or(message)
}

fn split_name<'a>(rest: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    // A key may hold anything; what is expected may not.
    rest.rsplit_once("`, expected ").filter(|_| mark == "`, ").or_else(|| rest.rsplit_once(mark))
}

/// What stands between back quotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn unknown_key(name: &str, known: &[&str]) -> String {
    if let Some(near) = nearest(name, known) {
        return format!("there is no key `{name}` here; did you mean `{near}`?");
    }
    if let Some(home) = home_of(name) {
        return format!("there is no key `{name}` here; it belongs {home}");
    }
    format!("there is no key `{name}` here; there are {}", known.join(", "))
}

fn unknown_word(name: &str, known: &[&str]) -> String {
    let all = known.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    match nearest(name, known) {
        Some(near) => format!("\"{name}\" is not possible here; did you mean \"{near}\"? There are {all}"),
        None => format!("\"{name}\" is not possible here; there are {all}"),
    }
}

fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    const ALIKE: f64 = 0.8;
    let scored = known.iter().map(|word| (strsim::jaro_winkler(&name.to_lowercase(), word), *word));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > ALIKE).map(|(_, word)| word)
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

fn wrong_type(found: &str, wanted: &str) -> String {
    // More than a number of TOML can be has a type of its own there.
    if let Some(number) = found.strip_suffix(" as i128").or_else(|| found.strip_suffix(" as u128")) {
        let number = number.trim_start_matches("integer ");
        let is_number = ["a size", "a time", "a whole number", "a share", "a name in quotes, or a number"];
        return match is_number.iter().any(|kind| wanted.starts_with(kind)) {
            true => format!("{number} is too large"),
            false => wrong_type(number, wanted),
        };
    }
    let wanted = match wanted {
        "a string" | "path string" => "text in quotes",
        "a boolean" => "true or false, without quotes",
        "a sequence" => "a list in brackets, such as [\"a\", \"b\"]",
        "a map" => "a table",
        other => other,
    };
    let found = match found {
        "map" => "a table",
        "sequence" => "a list",
        other => ["string ", "integer ", "boolean ", "floating point "]
            .iter()
            .find_map(|kind| other.strip_prefix(kind))
            .unwrap_or(other),
    };
    format!("this has to be {wanted}; it is {found}")
}
