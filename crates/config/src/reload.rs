//! Changes of a section that a running server applies, and those that need a restart.

use std::fmt;

use posthaste_delivery::local::Storage;
use posthaste_directory::Domain;
use posthaste_dns::Settings as Dns;
use posthaste_events::Section as Events;
use posthaste_pickup::Section as Pickup;
use posthaste_relay::sender::Section as Relay;
use posthaste_search::Section as Search;
use posthaste_smtp::section::Policy;
use posthaste_transport::Section as Transport;
use posthaste_units::values::Table;
use serde::Serialize;
use serde_json::Value;

/// A change that needs a restart, by its key: `storage.mail`, or `tls of listener 127.0.0.1:25`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedsRestart(String);

impl NeedsRestart {
    /// A change of this key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// True for a key of this section.
    pub fn is_of(&self, section: &str) -> bool {
        self.0.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl fmt::Display for NeedsRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A section that knows which of its changes a running server can apply.
pub(super) trait Reload: Sized {
    /// The section in force after reading `new`, and the keys that still need a restart. These are named again at the
    /// next reload.
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>);
}

/// All of the section can be reloaded.
pub(super) fn all_of<S: Clone>(new: &S) -> (S, Vec<NeedsRestart>) {
    (new.clone(), Vec::new())
}

/// None of the section can be reloaded.
pub(super) fn none_of<S: Table + Serialize + Clone>(running: &S, new: &S) -> (S, Vec<NeedsRestart>) {
    part_of(running.clone(), new)
}

/// The keys of `new` that are in `merged` can be reloaded.
pub(super) fn part_of<S: Table + Serialize>(merged: S, new: &S) -> (S, Vec<NeedsRestart>) {
    let mut restart = Vec::new();
    differing(S::NAME, &json(&merged), &json(new), &mut restart);
    (merged, restart)
}

impl Reload for Storage {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        none_of(self, new)
    }
}

impl Reload for Transport {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        none_of(self, new)
    }
}

impl Reload for Search {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        none_of(self, new)
    }
}

impl Reload for Events {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        none_of(self, new)
    }
}

impl Reload for Pickup {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        none_of(self, new)
    }
}

impl Reload for Relay {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        part_of(self.merged_with(new), new)
    }
}

impl Reload for Policy {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Reload for Dns {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Reload for Vec<Domain> {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

fn json(section: &impl Serialize) -> Value {
    serde_json::to_value(section).expect("every value of a configuration has a JSON form")
}

/// Keys of differing values, down to values that are not tables.
fn differing(key: &str, one: &Value, other: &Value, found: &mut Vec<NeedsRestart>) {
    match (one, other) {
        (Value::Object(one_table), Value::Object(other_table)) => {
            let more = other_table.keys().filter(|name| !one_table.contains_key(*name));
            for name in one_table.keys().chain(more) {
                differing(&format!("{key}.{name}"), &one[name], &other[name], found);
            }
        }
        _ if one != other => found.push(NeedsRestart::new(key)),
        _ => {}
    }
}
