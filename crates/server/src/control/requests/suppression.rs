//! The suppression list.

use posthaste_notify::suppression::{Suppressed, SuppressionError, SuppressionFilter, Suppressions};
use posthaste_relay::sender::{Relay, wall_secs};
use serde_json::json;

use super::answering::{Answer, Outcome};
use super::asker::Asker;

/// Matching entries, one on each line.
pub(super) fn list(relay: &Relay, wanted: &SuppressionFilter, answer: Answer<'_>) -> Outcome {
    let mut count = 0;
    let shown = list_of(relay)?.list(wanted, wall_secs(), &mut |entry| {
        count += 1;
        serde_json::to_value(entry).is_ok_and(answer)
    });
    shown.map_err(failed)?;
    Ok(json!({ "done": count }))
}

/// Adds entries; those without a time get the present one.
pub(super) fn add(relay: &Relay, asker: &Asker, entries: &[Suppressed]) -> Outcome {
    let now = wall_secs();
    let entries: Vec<Suppressed> = entries.iter().map(|entry| dated(entry, now)).collect();
    let new = list_of(relay)?.add(&entries, now).map_err(failed)?;
    let (count, first) = (entries.len(), entries.first().map_or("", |entry| &*entry.address));
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, entries = count, new, first, "the operator has added to the suppression list");
    Ok(json!({ "done": count, "new": new }))
}

/// The entry, added now if it has no time.
pub(super) fn dated(entry: &Suppressed, now: u64) -> Suppressed {
    let added = if entry.added == 0 { now } else { entry.added };
    Suppressed { added, ..entry.clone() }
}

/// Removes addresses of a tenant, or of everybody.
pub(super) fn remove(relay: &Relay, asker: &Asker, tenant: &str, addresses: &[String]) -> Outcome {
    let removed = list_of(relay)?.remove(tenant, addresses, wall_secs()).map_err(failed)?;
    let first = addresses.first().map_or("", String::as_str);
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, tenant, removed, first, "the operator has removed from the suppression list");
    Ok(json!({ "done": removed }))
}

fn list_of(relay: &Relay) -> Result<&Suppressions, String> {
    relay.bounces().suppressions.as_deref().ok_or_else(|| "this server has no suppression list".to_owned())
}

fn failed(error: SuppressionError) -> String {
    error.to_string()
}
