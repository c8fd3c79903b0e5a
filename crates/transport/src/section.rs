//! `[transport]` of the configuration.

use std::time::Duration;

use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, BackOff, check_bounds};
use serde::{Deserialize, Serialize};

use crate::Config;
use crate::config::RETRY_FIRST;

/// Times of programs, files and LMTP servers that mail goes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Time that a program may run; then its process group is killed.
    #[serde(deserialize_with = "values::secs")]
    pub program_secs: u64,
    /// Time that an LMTP server may take for a reply.
    #[serde(deserialize_with = "values::secs")]
    pub lmtp_secs: u64,
    /// Longest pause between two attempts.
    #[serde(deserialize_with = "values::secs")]
    pub retry_secs: u64,
    /// A message that still fails after this time is held: the log names it once, and it is tried less often.
    #[serde(deserialize_with = "values::secs")]
    pub max_age_secs: u64,
    /// Time until a message is tried again that is held, or was refused for good.
    #[serde(deserialize_with = "values::secs")]
    pub refused_retry_secs: u64,
}

impl Table for Section {
    const NAME: &str = "transport";
}

impl Default for Section {
    fn default() -> Self {
        Self { program_secs: 1000, lmtp_secs: 300, retry_secs: 1800, max_age_secs: 432_000, refused_retry_secs: 86_400 }
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
                ("program_secs", self.program_secs, 1, A_YEAR),
                ("lmtp_secs", self.lmtp_secs, 1, A_YEAR),
                ("retry_secs", self.retry_secs, 1, A_YEAR),
                ("max_age_secs", self.max_age_secs, 1, A_YEAR),
                ("refused_retry_secs", self.refused_retry_secs, 1, A_YEAR),
            ],
        )
    }
}

impl From<&Section> for Config {
    fn from(section: &Section) -> Self {
        Self {
            program_time: Duration::from_secs(section.program_secs),
            lmtp_time: Duration::from_secs(section.lmtp_secs),
            retry: BackOff::new(RETRY_FIRST, Duration::from_secs(section.retry_secs)),
            max_age: Duration::from_secs(section.max_age_secs),
            held_pause: Duration::from_secs(section.refused_retry_secs),
            ..Self::default()
        }
    }
}
