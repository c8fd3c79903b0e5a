//! The selection of a queue for a request, and the action.

use posthaste_spool::Lsn;
use serde::{Deserialize, Serialize};

/// The selected recipients. Nothing set: all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    /// Number of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Lsn>,
    /// Number of the recipient within its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u16>,
    /// Sender address; empty for notifications.
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
    /// `true`: only held recipients; `false`: only others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
}

/// Scope of an action: a tenant or campaign, a domain or site, or one of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Named {
    /// Mail of a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Mail of a campaign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// Mail to a domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Mail to a set of mail hosts, named as in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// An action on recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Hold: no attempts, no expiry.
    Hold,
    /// End a hold.
    Release,
    /// Try now.
    Flush,
    /// Try now, and reset the number of attempts.
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
    /// Group by recipient domain.
    #[default]
    Domain,
    /// Group by tenant.
    Tenant,
    /// Group by campaign.
    Campaign,
    /// Group by set of mail hosts; the name is empty if the set is not known yet.
    Site,
}

impl By {
    /// JSON key of the name in an answer.
    pub fn key(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Tenant => "tenant",
            Self::Campaign => "campaign",
            Self::Site => "site",
        }
    }
}
