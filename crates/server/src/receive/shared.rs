//! Changes that hold at all nodes of a cluster.

use posthaste_control::{Named, Suppressed};
use serde::{Deserialize, Serialize};

/// A change of what all nodes have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SharedChange {
    /// Nothing is sent to an address.
    Suppress(Suppressed),
    /// An entry of the suppression list is removed.
    Unsuppress {
        /// Its tenant; empty: everybody.
        tenant: String,
        /// Its address.
        address: String,
    },
    /// Mail of a scope is not tried, or is tried again.
    Suspend(Named, SharedSuspension),
}

/// A suspension that an operator has made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedSuspension {
    /// Its end, in Unix seconds; `None`: none.
    pub until: Option<u64>,
    /// The reason, for people.
    pub reason: String,
    /// The system user's id.
    pub uid: u32,
    /// Name of the token used over HTTP.
    pub token: String,
    /// It was ended, then.
    pub resumed: Option<u64>,
}

/// How far a change has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Nodes on the list.
    pub nodes: usize,
    /// Nodes on the list that have not applied it yet.
    pub missing: Vec<String>,
}
