//! What waits, counted in the server: however much it is, a line for each name crosses the socket.

use posthaste_control::{By, Which};
use posthaste_relay::sender::{CountBy, Relay, RoomNow};
use serde_json::json;

use super::scopes::filter;
use super::{Answer, Outcome};

/// Those that fit, most first.
pub(super) fn summary(relay: &Relay, of: &Which, by: By, answer: Answer<'_>) -> Outcome {
    let count_by = match by {
        By::Domain => CountBy::Domain,
        By::Tenant => CountBy::Tenant,
        By::Campaign => CountBy::Campaign,
        By::Site => CountBy::Site,
    };
    let all = relay.summary(&filter(of), count_by);
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
