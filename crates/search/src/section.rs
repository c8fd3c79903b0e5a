//! `[search]` of the configuration.

use std::path::PathBuf;

use posthaste_units::values::Table;
use serde::{Deserialize, Serialize};

/// The search index of all mail, for `posthaste find`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Index mail as it is delivered, for `posthaste find --index DIR`: one index of all mailboxes, about a second behind. Indexing runs on a thread
    /// of the lowest priority and takes about 250 bytes of memory for each message.
    pub index: bool,
    /// Directory of the index; only its owner can read it. Default: `search` in `storage.data`.
    pub dir: PathBuf,
}

impl Table for Section {
    const NAME: &str = "search";
}
