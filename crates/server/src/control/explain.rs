//! Which limits apply to a destination.

use posthaste_relay::sender::Relay;
use serde_json::json;

use super::{Answer, Outcome};

/// Looks its mail hosts up.
pub(super) fn explain(relay: &Relay, domain: &str, tenant: &str, answer: Answer<'_>) -> Outcome {
    let explained = relay.explain(&domain.to_lowercase(), tenant);
    answer(serde_json::to_value(explained).map_err(|error| error.to_string())?);
    Ok(json!({ "done": 1 }))
}
