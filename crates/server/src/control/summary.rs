//! What waits, counted in the server: however much it is, a line for each name crosses the socket.

use posthaste_control::{By, Which};
use posthaste_relay::queue::Secs;
use posthaste_relay::sender::{CountBy, Relay, RoomNow, Standing};
use serde_json::json;

use super::scopes::filter;
use super::{Answer, Outcome};

/// Those that fit, most first.
pub(super) fn summary(relay: &Relay, of: &Which, by: By, top: Option<u32>, answer: Answer<'_>) -> Outcome {
    let count_by = match by {
        By::Domain => CountBy::Domain,
        By::Tenant => CountBy::Tenant,
        By::Campaign => CountBy::Campaign,
        By::Site => CountBy::Site,
    };
    let all = relay.summary(&filter(of), count_by);
    let line = |name: &str, count: &posthaste_relay::sender::Count| {
        let mut line = json!({
            by.key(): name, "recipients": count.recipients, "oldest": relay.wall(count.oldest), "deferred": count.deferred, "held": count.held,
            "suspended": count.suspended, "under_way": count.under_way,
            "next": Some(count.next).filter(|next| *next < Secs::MAX).map(|next| relay.wall(next)),
        });
        if top.is_some() {
            let Standing { reply, limit } = relay.standing(count);
            line["last_reply"] = reply.as_deref().into();
            line["limit"] = limit.into();
        }
        line
    };
    let most = top.map_or(usize::MAX, |top| top as usize);
    let _ = all.iter().take(most).all(|(name, count)| answer(line(name, count)));
    let recipients: u64 = all.iter().map(|(_, count)| count.recipients).sum();
    let room = |of: RoomNow| {
        let RoomNow { tenant, recipients, max, refused, is_full } = of;
        json!({ "tenant": &*tenant, "recipients": recipients, "max": max, "refused": refused, "full": is_full })
    };
    let room: Vec<serde_json::Value> = relay.room().into_iter().map(room).collect();
    Ok(json!({ "done": all.len(), "recipients": recipients, "room": room }))
}
