//! A shaping file as it is written.

use std::collections::BTreeMap;

use posthaste_units::{Rate, values};
use serde::{Deserialize, Serialize};

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// For all sites.
    #[serde(skip_serializing_if = "is_default")]
    pub default: Section,
    /// For the sites of a provider, by its name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub provider: BTreeMap<String, Section>,
    /// For a domain, or with a dot in front for the domains below it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub domain: BTreeMap<String, Section>,
    /// Limits that sections share, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limit: BTreeMap<String, Total>,
    /// For mail of a tenant, by name; `*` is any other.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant: BTreeMap<String, Tenant>,
}

/// The rules for some sites.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// What earlier files say in this section is dropped.
    #[serde(skip_serializing_if = "is_default")]
    pub replace: bool,
    /// Of a provider: all hosts of its sites match one of these; with a dot in front all names below it do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mx: Vec<String>,
    /// Of a provider: sites of these domains, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// Connections at a time.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// How often connections are opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_rate: Option<Rate>,
    /// Connections at a time to one address of a host, whichever sites it belongs to.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<u32>,
    /// How many messages are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
    /// Messages that one connection carries.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub messages_per_connection: Option<u32>,
    /// Recipients of one message that go in one transaction.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub recipients_per_message: Option<u32>,
    /// Tries of all hosts of a site, in a row, that come to nothing before it pauses.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub failures_before_pause: Option<u32>,
    /// Whether messages are sent with BDAT (RFC 3030) to hosts that offer CHUNKING.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunking: Option<bool>,
    /// Limits of this name apply as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// Of a provider: for all of its sites together.
    #[serde(skip_serializing_if = "is_default")]
    pub total: Total,
    /// What follows from replies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub automation: Vec<Automation>,
    /// For mail that leaves from a source, by its name: limits that stand before those of the section.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub source: BTreeMap<String, Section>,
}

/// A limit for everything that it belongs to, together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Total {
    /// Connections at a time.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// How often connections are opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_rate: Option<Rate>,
    /// How many messages are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
}

/// The rules for a tenant's mail, wherever it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tenant {
    /// How many messages are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
    /// Limits of this name apply as well, but for their connections.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}

/// What follows from a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Automation {
    /// Regular expressions on the line `code enhanced text`, in any case of letters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    /// Classes of replies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// How many such replies in which time; not set: the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// What is done.
    pub action: Action,
    /// For what.
    #[serde(default)]
    pub of: Target,
    /// For how long.
    #[serde(rename = "for", deserialize_with = "values::secs")]
    pub secs: u64,
    /// To be slow: how many messages are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_rate: Option<Rate>,
    /// To be slow: connections at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
}

/// What is done for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Nothing is sent.
    Suspend,
    /// Less is sent.
    Slow,
    /// What waits is given up, and what comes.
    Bounce,
}

/// For what something is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The set of mail hosts.
    #[default]
    Site,
    /// The domain of the recipient.
    Domain,
    /// The tenant's mail to the set of mail hosts; to the domain, if it is given up.
    Tenant,
    /// The campaign's mail to the set of mail hosts; to the domain, if it is given up.
    Campaign,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn some_count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    values::count(deserializer).map(Some)
}
