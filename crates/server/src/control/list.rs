//! The recipients that wait, and why.

use posthaste_relay::queue::entry::HoldReason;
use posthaste_relay::queue::{Secs, Status, Waits};
use posthaste_relay::sender::{Relay, Waiting};
use serde_json::{Value, json};

use super::{Answer, Outcome, Which};

/// Those that fit, one on each line.
pub(super) fn list(relay: &Relay, of: &Which, limit: Option<u64>, answer: Answer<'_>) -> Outcome {
    let mut count = 0;
    let most = limit.unwrap_or(u64::MAX);
    if most > 0 {
        relay.waiting(&of.filter(), &mut |waiting| {
            count += 1;
            answer(as_json(&waiting, relay)) && count < most
        });
    }
    Ok(json!({ "done": count }))
}

fn as_json(waiting: &Waiting, relay: &Relay) -> Value {
    let state = &waiting.state;
    let name = relay.queue_name(state.queue);
    let name = name.as_ref();
    let (kind, until) = match state.waits {
        Waits::Until(next) => ("scheduled", Some(next)),
        Waits::Due => ("due", None),
        Waits::Suspended(until) => ("suspended", Some(until).filter(|until| *until < Secs::MAX)),
        Waits::Held(HoldReason::Until(until)) => ("held", Some(until)),
        Waits::Held(_) => ("held", None),
        Waits::Busy => ("under way", None),
    };
    let held_by = match state.waits {
        Waits::Held(HoldReason::Operator | HoldReason::Until(_)) => Some("operator"),
        Waits::Held(HoldReason::Quarantine) => Some("quarantine"),
        Waits::Held(HoldReason::Policy) => Some("policy"),
        _ => None,
    };
    let status = match state.status {
        Status { code: 0, .. } => None,
        Status { code, enhanced: 0 } => Some(code.to_string()),
        Status { code, enhanced } => Some(format!("{code} {}.{}.{}", code / 100, enhanced / 1000, enhanced % 1000)),
    };
    json!({
        "id": format!("{}.{}", state.key.message.get(), state.key.number),
        "sender": &*waiting.sender,
        "leaves_from": Some(&*waiting.leaves_from).filter(|from| *from != &*waiting.sender),
        "recipient": &*waiting.recipient,
        "domain": name.map(|name| &*name.domain),
        "tenant": name.map(|name| &*name.tenant),
        "campaign": name.map(|name| &*name.campaign),
        "pool": name.map(|name| &*name.pool),
        "bytes": waiting.bytes,
        "received": state.received,
        "expires": state.expires,
        "attempts": state.attempts,
        "status": status,
        "state": kind,
        "until": until,
        "held_by": held_by,
        "why": waiting.why.as_deref(),
        "class": waiting.class.as_deref(),
    })
}
