//! A shaping file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use posthaste_units::words::plain;
use posthaste_units::{Rate, values};
use serde::{Deserialize, Serialize};

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Rules for all sites.
    #[serde(skip_serializing_if = "is_default")]
    pub default: Section,
    /// Rules for the sites of a provider, by its name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub provider: BTreeMap<String, Section>,
    /// Rules for a domain, or with a leading dot for the domains below it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub domain: BTreeMap<String, Section>,
    /// Limits that sections share, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limit: BTreeMap<String, Total>,
    /// Rules for a tenant's mail, by name; `*` is any other.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant: BTreeMap<String, Tenant>,
}

/// The rules for some sites.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Drops the values of earlier files in this section.
    #[serde(skip_serializing_if = "is_default")]
    pub replace: bool,
    /// For a provider: patterns that must match all hosts of a site; a leading dot covers all names below.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mx: Vec<String>,
    /// For a provider: sites of these domains belong to it, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// Connections at a time.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Rate of opening connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_rate: Option<Rate>,
    /// Connections at a time to one address of a host, for all its sites together.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<u32>,
    /// Rate of messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
    /// Messages that one connection carries.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub messages_per_connection: Option<u32>,
    /// Recipients in one transaction.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub recipients_per_message: Option<u32>,
    /// Consecutive failed tries of all hosts of a site before it pauses.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub failures_before_pause: Option<u32>,
    /// Sends messages by BDAT (RFC 3030) to hosts that offer CHUNKING.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunking: Option<bool>,
    /// Names of further limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// For a provider: the limit of all its sites together.
    #[serde(skip_serializing_if = "is_default")]
    pub total: Total,
    /// Rules for replies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub automation: Vec<Automation>,
    /// Limits for mail from a source, by its name: they precede those of the section.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub source: BTreeMap<String, Section>,
}

/// A limit that its members share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Total {
    /// Connections at a time.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Rate of opening connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_rate: Option<Rate>,
    /// Rate of messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
}

/// Rules for a tenant's mail, wherever it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tenant {
    /// Rate of messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
    /// Names of further limits, without their connections.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}

/// A rule for replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Automation {
    /// Regular expressions on the line `code enhanced text`, case-insensitive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    /// Classes of replies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Number of such replies, and the time within which they count; not set: the first applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The action.
    pub action: AutomationAction,
    /// Scope of the action.
    #[serde(default)]
    pub of: AutomationTarget,
    /// Duration of the action, in seconds.
    #[serde(rename = "for", deserialize_with = "values::secs")]
    pub secs: u64,
    /// For slowing down: rate of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
    /// For slowing down: connections at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
}

/// A temporary action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AutomationAction {
    /// Send nothing.
    Suspend,
    /// Send less.
    Slow,
    /// Give up waiting and new mail.
    Bounce,
}

/// Scope of an action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AutomationTarget {
    /// The set of mail hosts.
    #[default]
    Site,
    /// The domain of the recipient.
    Domain,
    /// The tenant's mail to the set of mail hosts or, for `bounce`, to the recipient's domain.
    Tenant,
    /// The campaign's mail to the set of mail hosts or, for `bounce`, to the recipient's domain.
    Campaign,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn some_count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    values::count(deserializer).map(Some)
}

/// A mistake in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShapingError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// The read error.
        error: std::io::Error,
    },
    /// Not TOML, or with unknown keys or values.
    #[error("{file}:{line}: {why}")]
    Toml {
        /// Name of the file.
        file: String,
        /// Line of the mistake.
        line: usize,
        /// The mistake.
        why: String,
    },
    /// A value is invalid.
    #[error("{section}: {why}")]
    Meaning {
        /// File and section.
        section: String,
        /// The mistake.
        why: String,
    },
}

/// Parses a file; `name` is for errors.
pub(super) fn parse(name: &str, text: &str) -> Result<File, ShapingError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|octet| **octet == b'\n').count() + 1;
        ShapingError::Toml { file: name.to_owned(), line, why: plain(error.message(), |_| None) }
    })
}

/// Reads a file of up to [`FILE_BYTES_MAX`].
pub(super) fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is larger than 16 MiB"))
    } else {
        Ok(text)
    }
}

/// Largest file.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 20;
