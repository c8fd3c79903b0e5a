//! `[search]` of the configuration.

use std::path::PathBuf;

use posthaste_units::values::Table;
use serde::{Deserialize, Serialize};

/// The search index of all mail, for `posthaste find`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Whether mail is indexed as it is delivered.
    pub index: bool,
    /// The index's directory. Not set: `search` in `storage.data`.
    pub dir: PathBuf,
}

impl Table for Section {
    const NAME: &str = "search";
}
