//! The part of a queue that a request is about, and the act.

use posthaste_spool::Lsn;
use serde::{Deserialize, Serialize};

/// Recipients that are meant. Nothing set: all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    /// The number of their message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Lsn>,
    /// Their number within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u16>,
    /// From this sender; empty for notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    /// Recipient address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    /// Recipient domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Tenant of the mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Campaign of the mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// Held ones, or those that are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
}

/// Scope of a suspension: a tenant or a campaign, a domain or a site, or one of the former at one of the latter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Named {
    /// Mail of a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// A mailing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// Mail to a domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Mail to a set of mail hosts, as the log names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// An action on recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Hold: no attempts, no expiry.
    Hold,
    /// Held ones are tried again.
    Release,
    /// Try now.
    Flush,
    /// Try now, with the attempts reset.
    Requeue,
    /// Remove without a notice.
    Delete,
    /// Give up, with a notice to the sender.
    Bounce,
}

/// The name that recipients are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Their domain.
    #[default]
    Domain,
    /// Group by tenant.
    Tenant,
    /// The mailing.
    Campaign,
    /// The set of mail hosts; an empty name for those of which none is known yet.
    Site,
}

impl By {
    /// The key of the name in an answer.
    pub fn key(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Tenant => "tenant",
            Self::Campaign => "campaign",
            Self::Site => "site",
        }
    }
}
