//! `folders` of a domain.

use posthaste_units::values;
use serde::{Deserialize, Serialize};

/// Names of the folders that first logins make. A name that is not set is that of all accounts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainFolders {
    /// Folder of `\Archive`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub archive: Option<String>,
    /// Folder of `\Drafts`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub drafts: Option<String>,
    /// Folder of `\Junk`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub junk: Option<String>,
    /// Folder of `\Sent`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub sent: Option<String>,
    /// Folder of `\Trash`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub trash: Option<String>,
}

impl DomainFolders {
    /// True if it changes no name.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}
