//! `[events]` of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, check_bounds};
use serde::{Deserialize, Serialize};

use crate::Config;

/// The event log: one JSON line for each message received, delivered or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Write the event log. It takes about 3 % of the CPU of a relayed message, and at most `files` times `file_bytes` of disk: 1 GiB.
    pub enabled: bool,
    /// Directory of its files; only its owner can read it, unless it exists already. Default: `events` in `storage.data`.
    pub dir: PathBuf,
    /// A file is followed by the next at this size; at least 1M. Default: `"64M"`.
    #[serde(deserialize_with = "values::bytes")]
    pub file_bytes: u64,
    /// Files that are kept; at least 2.
    #[serde(deserialize_with = "values::count")]
    pub files: usize,
    /// Compress files by gzip once they are closed.
    pub compress: bool,
    /// Remove closed files when their last line is so old, such as `"30 days"`; `0`: only by number.
    #[serde(deserialize_with = "values::secs")]
    pub max_age_secs: u64,
}

impl Table for Section {
    const NAME: &str = "events";
}

impl Default for Section {
    fn default() -> Self {
        Self { enabled: true, dir: PathBuf::new(), file_bytes: 64 << 20, files: 16, compress: true, max_age_secs: 0 }
    }
}

impl Section {
    /// Validates the section.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), Problem> {
        check_bounds(
            Self::NAME,
            &[
                ("file_bytes", self.file_bytes, 1 << 20, 1 << 40),
                // The one that is written, and the one before.
                ("files", self.files as u64, 2, 1_000_000),
                ("max_age_secs", self.max_age_secs, 0, 100 * A_YEAR),
            ],
        )
    }
}

impl From<&Section> for Config {
    fn from(section: &Section) -> Self {
        Self {
            file_bytes: section.file_bytes,
            files: section.files as u64,
            compress: section.compress,
            max_age: Duration::from_secs(section.max_age_secs),
            ..Self::new(&section.dir)
        }
    }
}
