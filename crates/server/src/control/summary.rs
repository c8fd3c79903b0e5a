//! What waits, counted in the server: however much it is, a line for each name crosses the socket.

use posthaste_relay::sender::{CountBy, Relay, RoomNow};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Answer, Outcome, Which};

/// What recipients are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Their domain.
    #[default]
    Domain,
    /// Whose mail it is.
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

/// Those that fit, most first.
pub(super) fn summary(relay: &Relay, of: &Which, by: By, answer: Answer<'_>) -> Outcome {
    let count_by = match by {
        By::Domain => CountBy::Domain,
        By::Tenant => CountBy::Tenant,
        By::Campaign => CountBy::Campaign,
        By::Site => CountBy::Site,
    };
    let all = relay.summary(&of.filter(), count_by);
    let line = |name: &str, count: &posthaste_relay::sender::Count| {
        json!({
            by.key(): name, "recipients": count.recipients, "oldest": relay.wall(count.oldest), "deferred": count.deferred, "held": count.held,
            "suspended": count.suspended,
        })
    };
    let _ = all.iter().all(|(name, count)| answer(line(name, count)));
    let room = |of: RoomNow| {
        let RoomNow { tenant, recipients, max, refused, is_full } = of;
        json!({ "tenant": &*tenant, "recipients": recipients, "max": max, "refused": refused, "full": is_full })
    };
    let room: Vec<serde_json::Value> = relay.room().into_iter().map(room).collect();
    Ok(json!({ "done": all.len(), "room": room }))
}
