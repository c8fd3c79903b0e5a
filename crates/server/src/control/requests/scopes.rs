//! Recipients and scopes of requests, in the queue's own types.

use std::sync::Arc;

use posthaste_control::{Named, Which};
use posthaste_queue::Selection;
use posthaste_relay::sender::Filter;

pub(super) use crate::receive::scope_names::{named, scope};

/// The queue's selection of recipients.
pub(super) fn filter(of: &Which) -> Filter {
    let text = |text: &Option<String>| text.as_deref().map(Arc::from);
    Filter {
        selection: Selection {
            tenant: text(&of.tenant),
            campaign: text(&of.campaign),
            domain: of.domain.as_ref().map(|domain| domain.to_lowercase().into()),
            is_held: of.held,
        },
        message: of.message,
        number: of.number,
        sender: of.sender.clone(),
        recipient: of.recipient.clone(),
        after: None,
        pages_max: None,
    }
}

/// The recipients that are in a scope without a site.
pub(super) fn which(of: &Named) -> Which {
    let Named { tenant, campaign, domain, site: _ } = of.clone();
    Which { tenant, campaign, domain, ..Which::default() }
}
