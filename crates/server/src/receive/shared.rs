//! Changes for all nodes of a cluster.

use posthaste_control::{Named, Suppressed};
use serde::{Deserialize, Serialize};

/// A change of shared data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SharedChange {
    /// An address must get no mail.
    Suppress(Suppressed),
    /// An entry of the suppression list is removed.
    Unsuppress {
        /// Its tenant; empty: everybody.
        tenant: String,
        /// Its address.
        address: String,
    },
    /// Suspends or resumes mail of a scope.
    Suspend(Named, SharedSuspension),
}

/// An operator's suspension.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedSuspension {
    /// Its end, in Unix seconds; `None`: unlimited.
    pub until: Option<u64>,
    /// The reason, for people.
    pub reason: String,
    /// The system user's id.
    pub uid: u32,
    /// Name of the token used over HTTP.
    pub token: String,
    /// It was ended, at this time.
    pub resumed: Option<u64>,
}

/// Progress of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Nodes on the list.
    pub nodes: usize,
    /// Listed nodes that have not applied it yet.
    pub missing: Vec<String>,
}
