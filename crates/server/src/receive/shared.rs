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
        /// Tenant of the entry; empty: all tenants.
        tenant: String,
        /// Address of the entry.
        address: String,
    },
    /// Suspends or resumes mail of a scope.
    Suspend(Named, SharedSuspension),
}

/// An operator's suspension.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedSuspension {
    /// End of the suspension, in seconds since 1970; `None`: unlimited.
    pub until: Option<u64>,
    /// The reason, for people.
    pub reason: String,
    /// Id of the system user who made the change.
    pub uid: u32,
    /// Name of the token used over HTTP.
    pub token: String,
    /// Time at which the suspension was ended, in seconds since 1970.
    pub resumed: Option<u64>,
}

/// How far a change has spread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Nodes on the list.
    pub nodes: usize,
    /// Listed nodes that have not applied it yet.
    pub missing: Vec<String>,
}
