//! Which recipients a request means.

use std::sync::Arc;

use posthaste_relay::queue::Selection;
use posthaste_relay::sender::Filter;
use posthaste_spool::Lsn;
use serde::{Deserialize, Serialize};

/// Recipients that are meant. Nothing set: all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    /// The number of their message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// Their number within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u16>,
    /// From this sender; empty for notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    /// To this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    /// To this domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Of this campaign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// Held ones, or those that are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
}

impl Which {
    pub(super) fn filter(&self) -> Filter {
        let text = |text: &Option<String>| text.as_deref().map(Arc::from);
        Filter {
            selection: Selection {
                tenant: text(&self.tenant),
                campaign: text(&self.campaign),
                domain: self.domain.as_ref().map(|domain| domain.to_lowercase().into()),
                is_held: self.held,
            },
            message: self.message.map(Lsn::new),
            number: self.number,
            sender: self.sender.clone(),
            recipient: self.recipient.clone(),
        }
    }
}
