//! `docs/configuration.md` has each key in its section, and the default that its doc comment names is the one in force.

use std::collections::BTreeMap;

use posthaste_units::keys::Keys;
use serde_json::Value;

use super::{Config, Domain, Listener};

const MANUAL: &str = include_str!("../../../docs/configuration.md");

/// The keys of a section of the manual, and what stands there as their default.
fn section(heading: &str) -> BTreeMap<&'static str, &'static str> {
    let begin = format!("\n## {heading}\n");
    let (_, rest) = MANUAL.split_once(&begin).unwrap_or_else(|| panic!("no section {heading}"));
    let text = rest.split_once("\n## ").map_or(rest, |(text, _)| text);
    let text = text.split_once("\n### ").map_or(text, |(text, _)| text);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(key, rest)| (key, rest.split_once('|').expect("three columns").0.trim())).collect()
}

/// `heading` has these keys; of those in `defaults` it has the value.
fn check(heading: &str, keys: &[&str], defaults: &Value) {
    let rows = section(heading);
    let missing: Vec<_> = keys.iter().filter(|key| !rows.contains_key(**key)).collect();
    assert!(missing.is_empty(), "{heading} lacks {missing:?}");
    for (key, cell) in rows {
        if let Some(value) = defaults.get(key) {
            assert!(agrees(cell, value), "{heading}: the default of `{key}` is {value}, and not {cell}");
        }
    }
}

fn agrees(cell: &str, value: &Value) -> bool {
    match serde_json::from_str::<Value>(cell.trim_matches('`')) {
        Ok(Value::String(text)) if value.is_number() => posthaste_units::bytes(&text).ok() == value.as_u64(),
        Ok(written) => written == *value,
        Err(_) => match value {
            Value::Null => cell == "not set",
            // Described below the table.
            Value::Object(_) => cell.contains("](#"),
            // What the machine has decides.
            Value::Number(_) => cell == "a sixteenth of the memory",
            // A directory or a name, which may depend on others.
            value => value.is_string(),
        },
    }
}

#[test]
fn the_manual_has_each_key_with_its_default() {
    let all = serde_json::to_value(Config::default()).unwrap();
    let top = ["host_name", "user", "group"];
    check("Top level", &top, &all);
    let mut sections = 0;
    for (name, defaults) in all.as_object().unwrap() {
        if let Value::Object(keys) = defaults {
            let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
            check(&format!("`[{name}]`"), &keys, defaults);
            sections += 1;
        } else {
            assert!(["listener", "domain"].contains(&name.as_str()) || top.contains(&name.as_str()), "{name}");
        }
    }
    assert_eq!(sections, 19, "{all}");
    let check_list = |table: &str, keys: &[&str], defaults: Value| check(&format!("`[[{table}]]`"), keys, &defaults);
    check_list("listener", &Listener::keys(), serde_json::to_value(Listener::default()).unwrap());
    check_list("network", &["cidr", "tenant", "campaign", "pool", "relay", "auth", "limits", "policy"], Value::Null);
    check_list("domain", &Domain::KEYS, serde_json::to_value(Domain::named("a.example")).unwrap());
}
