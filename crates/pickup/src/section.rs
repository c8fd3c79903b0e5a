//! `[pickup]` of the configuration.

use std::path::PathBuf;

use posthaste_message::address::is_domain;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

/// Mail from programs on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Take mail from the directory.
    pub enabled: bool,
    /// Directory of messages from `posthaste sendmail`. The server makes it with mode 0700, so that by default only root and the server's own user can send;
    /// to open it to others, see [sendmail.md](sendmail.md#for-all-programs-of-a-machine). Default: `pickup` in `storage.data`.
    pub directory: PathBuf,
    /// The domain of addresses without one. Default: `host_name`.
    pub origin: String,
}

impl Table for Section {
    const NAME: &str = "pickup";
}

impl Default for Section {
    fn default() -> Self {
        Self { enabled: true, directory: PathBuf::new(), origin: String::new() }
    }
}

impl Section {
    /// Validates the section, once defaults are filled in.
    ///
    /// # Errors
    /// The origin is not a domain.
    pub fn check(&self) -> Result<(), Problem> {
        if is_domain(&self.origin) {
            return Ok(());
        }
        Err(Problem::new([Self::NAME.into(), "origin".into()], "not a domain, such as example.org"))
    }
}
