//! `[dkim]`: signatures of outgoing mail.

use std::path::PathBuf;

use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, check_bounds};
use serde::{Deserialize, Serialize};

use super::values;
use crate::reload::{NeedsRestart, Reload, all_of};

/// Signatures of mail from domains that have a key, made by `posthaste dkim new`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dkim {
    /// Directory of the keys. Default: `dkim` in `storage.data`.
    pub dir: PathBuf,
    /// Sign mail of all programs on this machine.
    pub local_users_sign: bool,
    /// Accept mail without its signature while a key of its domain cannot be read. Otherwise its sender is told to try again later.
    pub unsigned: bool,
    /// Lifetime of a signature (`x=`), from the time at which the message may leave, such as `"30 days"`; `0`:
    /// unlimited.
    #[serde(deserialize_with = "values::secs")]
    pub expire: u64,
}

impl Table for Dkim {
    const NAME: &str = "dkim";
}

impl Reload for Dkim {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Default for Dkim {
    fn default() -> Self {
        Self { dir: PathBuf::new(), local_users_sign: true, unsigned: false, expire: 0 }
    }
}

impl Dkim {
    pub(super) fn check(&self) -> Result<(), Problem> {
        let is_set = self.expire > 0;
        check_bounds(Self::NAME, &[("expire", self.expire, if is_set { 3600 } else { 0 }, 10 * A_YEAR)])
    }
}
