//! `[checks]`: the checks of mail from strangers.

use posthaste_directory::names::folded_domain;
use posthaste_message::address::is_domain;
use posthaste_units::check_bounds;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::values;

/// SPF, DKIM and DMARC of mail from strangers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checks {
    /// Check SPF, DKIM and DMARC of strangers' mail, and write the results into its header.
    pub enabled: bool,
    /// Time for answers of DNS once a message is here, at most 50. A check without an answer by then is a `temperror`; the mail is taken.
    #[serde(deserialize_with = "values::secs")]
    pub timeout_secs: u64,
    /// Other names of this service, such as an earlier `host_name`. Fields Authentication-Results with one of them, or with `host_name`, are taken out of strangers' mail.
    pub authserv_ids: Vec<String>,
}

impl Table for Checks {
    const NAME: &str = "checks";
}

impl Default for Checks {
    fn default() -> Self {
        Self { enabled: true, timeout_secs: 20, authserv_ids: Vec::new() }
    }
}

impl Checks {
    pub(super) fn check(&self) -> Result<(), Problem> {
        // All checks at the end of a message have 60 s.
        check_bounds(Self::NAME, &[("timeout_secs", self.timeout_secs, 1, 50)])?;
        let wrong = self.authserv_ids.iter().position(|id| !is_domain(id) || folded_domain(id).is_none());
        wrong.map_or(Ok(()), |index| {
            let at = [Self::NAME.into(), "authserv_ids".into(), index.into()];
            Err(Problem::new(at, "not the name of a service, such as mx.example.org"))
        })
    }
}
