//! `quota` of a domain or an account.

use posthaste_units::values;
use serde::{Deserialize, Deserializer, Serialize};

/// Storage limits of an account. A limit that is not set is that of the domain, or of all accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccountQuota {
    /// The size of all its messages. 0: any.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_bytes")]
    pub bytes: Option<u64>,
    /// The number of its messages. 0: any.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_count")]
    pub messages: Option<u64>,
}

impl AccountQuota {
    /// True if it changes no limit.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::bytes(deserializer).map(Some)
}

fn some_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::count(deserializer).map(Some)
}
