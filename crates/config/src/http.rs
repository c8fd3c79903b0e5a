//! `[http]`.

use posthaste_message::address::is_domain;
use posthaste_units::Rate;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use crate::reload::{NeedsRestart, Reload, all_of};

/// Settings that all HTTP listeners share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Host names by which browsers may ask, beside `host_name` and `localhost`, without ports. A request by another name gets 421, so that no other site
    /// can reach the page through its own DNS.
    pub names: Vec<String>,
    /// Requests that each token may make; more get 429.
    pub token_rate: Rate,
}

impl Default for Http {
    fn default() -> Self {
        // Above what the spool takes on fast disks, one message a request.
        Self { names: Vec::new(), token_rate: Rate::new(20_000, 1, 20_000).expect("a rate") }
    }
}

impl Table for Http {
    const NAME: &str = "http";
}

impl Reload for Http {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Http {
    /// Validates the section.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let wrong = self.names.iter().position(|name| !name.is_ascii() || !is_domain(name));
        wrong.map_or(Ok(()), |index| {
            let message = "not a host name, such as mail.example.org: letters, digits and hyphens, without a port";
            Err(Problem::new([Self::NAME.into(), "names".into(), index.into()], message))
        })
    }
}
