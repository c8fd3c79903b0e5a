//! Mail diverted to another next hop than the configured one.

use posthaste_control::Named;
use posthaste_queue::{Diversion, Secs};
use posthaste_relay::sender::Relay;
use serde_json::{Value, json};

use super::answering::{Answer, Outcome};
use super::asker::Asker;
use super::scopes;
use super::suspend::failed;

/// Diverts mail of a scope to another next hop.
pub(super) fn divert(
    relay: &Relay,
    asker: &Asker,
    scope: &Named,
    to: &str,
    secs: Option<Secs>,
    reason: &str,
) -> Outcome {
    relay.divert(scopes::scope(scope)?, to, secs, &asker.by(reason)).map_err(failed)?;
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, scope = ?scope, to, secs, reason, "the operator has diverted mail");
    Ok(json!({ "done": 1 }))
}

/// Ends a diversion.
pub(super) fn end(relay: &Relay, asker: &Asker, scope: &Named) -> Outcome {
    let had = relay.end_diversion(scopes::scope(scope)?, &asker.by("")).map_err(failed)?;
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, scope = ?scope, "the operator has ended a diversion");
    Ok(json!({ "done": u8::from(had) }))
}

/// Lists the diversions, one on each line.
pub(super) fn list(relay: &Relay, answer: Answer<'_>) -> Outcome {
    let all = relay.diversions();
    let _ = all.iter().all(|diversion| answer(line(relay, diversion)));
    Ok(json!({ "done": all.len() }))
}

fn line(relay: &Relay, diversion: &Diversion) -> Value {
    let Diversion { scope, until, to, reason } = diversion;
    let (kind, name, of) = (scope.kind(), scope.name(), scopes::named(scope));
    let until = Some(*until).filter(|until| *until < Secs::MAX).map(|until| relay.wall(until));
    json!({ "kind": kind, "name": name, "scope": of, "to": &**to, "until": until, "reason": &**reason })
}
