//! Limits that apply to a destination.

use posthaste_relay::sender::{OfMail, Relay};
use serde_json::json;

use super::answering::{Answer, Outcome};

/// Looks its mail hosts up.
pub(super) fn explain(relay: &Relay, of: OfMail<'_>, answer: Answer<'_>) -> Outcome {
    let domain = of.domain.to_lowercase();
    let explained = relay.explain(OfMail { domain: &domain, ..of }).map_err(|error| error.to_string())?;
    answer(serde_json::to_value(explained).map_err(|error| error.to_string())?);
    Ok(json!({ "done": 1 }))
}
