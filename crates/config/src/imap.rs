//! `[imap]`: settings of all listeners for IMAP.

use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, check_bounds};
use serde::{Deserialize, Serialize};

use super::values;
use crate::reload::{NeedsRestart, Reload, all_of};

/// Settings that all listeners for IMAP share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Imap {
    /// The form of mailbox names that clients see: `"/"` as in `Work/2026`, `"."` as in `Work.2026`, or `"INBOX."` as in
    /// `INBOX.Work.2026`.
    pub names: MailboxNames,
    /// Sessions that one login may have at the same time, at all listeners for IMAP together. A further one is refused
    /// after its password. 0: any number.
    #[serde(deserialize_with = "values::count")]
    pub connections_per_login: usize,
    /// Time without a command after which a session ends, except in IDLE.
    #[serde(deserialize_with = "values::secs")]
    pub idle_secs: u64,
    /// Time that one SEARCH may take. SORT and THREAD, which read the header of each message, may take a minute, or this if it is longer.
    #[serde(deserialize_with = "values::secs")]
    pub search_secs: u64,
}

impl Default for Imap {
    fn default() -> Self {
        Self { names: MailboxNames::default(), connections_per_login: 30, idle_secs: 1800, search_secs: 10 }
    }
}

/// The form of mailbox names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MailboxNames {
    /// `Work/2026`.
    #[default]
    #[serde(rename = "/")]
    Slash,
    /// `Work.2026`.
    #[serde(rename = ".")]
    Dot,
    /// `INBOX.Work.2026`.
    #[serde(rename = "INBOX.")]
    DotBelowInbox,
}

impl Table for Imap {
    const NAME: &str = "imap";
}

impl Imap {
    /// Validates the section.
    pub(super) fn check(&self) -> Result<(), Problem> {
        // RFC 9051 section 5.4.
        let values = [("idle_secs", self.idle_secs, 1800, A_YEAR), ("search_secs", self.search_secs, 1, 3600)];
        check_bounds(Self::NAME, &values)
    }
}

impl Reload for Imap {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    #[test]
    fn times_are_within_their_bounds() {
        let parse = |keys: &str| Config::parse(Path::new("x"), &format!("[imap]\n{keys}\n"));
        let imap = parse("idle_secs = '1h'\nsearch_secs = 60\nconnections_per_login = 0").unwrap().imap;
        assert_eq!((imap.idle_secs, imap.search_secs, imap.connections_per_login), (3600, 60, 0));
        for (keys, message) in [
            ("idle_secs = '29m'", "must be between 1800 seconds and 365 days"),
            ("search_secs = 0", "must be between 1 seconds and 3600 seconds"),
            ("connections_per_login = -1", "connections_per_login"),
        ] {
            let error = parse(keys).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
