//! Suspended mail, which is not tried for some time.

use posthaste_control::Named;
use posthaste_queue::{QueueEntry, Secs};
use posthaste_relay::sender::{ControlError, Relay};
use serde_json::{Value, json};

use super::answering::{Answer, Outcome};
use super::asker::Asker;
use super::scopes;

/// Suspends a scope.
pub(super) fn suspend(relay: &Relay, asker: &Asker, scope: &Named, secs: Option<Secs>, reason: &str) -> Outcome {
    relay.suspend(scopes::scope(scope)?, secs, &asker.by(reason)).map_err(failed)?;
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, scope = ?scope, secs, reason, "the operator has suspended mail");
    Ok(json!({ "done": 1 }))
}

/// Ends a suspension.
pub(super) fn resume(relay: &Relay, asker: &Asker, scope: &Named) -> Outcome {
    let had = relay.resume(scopes::scope(scope)?, &asker.by("")).map_err(failed)?;
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, scope = ?scope, "the operator has resumed mail");
    Ok(json!({ "done": u8::from(had) }))
}

/// Lists the suspensions, one on each line; for a tenant, only those of its mail.
pub(super) fn list(relay: &Relay, asker: &Asker, answer: Answer<'_>) -> Outcome {
    let mut all = relay.suspensions();
    all.retain(|entry| asker.tenant.as_deref().is_none_or(|tenant| is_of(entry, tenant)));
    let _ = all.iter().all(|entry| answer(suspension(relay, entry)));
    Ok(json!({ "done": all.len() }))
}

/// True if a suspension concerns only this tenant's mail.
pub(crate) fn is_of(entry: &QueueEntry, tenant: &str) -> bool {
    let (QueueEntry::Suspended { scope, .. } | QueueEntry::Slowed { scope, .. }) = entry else { return false };
    scopes::named(scope).tenant.as_deref() == Some(tenant)
}

pub(super) fn failed(error: ControlError) -> String {
    error.to_string()
}

fn suspension(relay: &Relay, entry: &QueueEntry) -> Value {
    let (scope, until, reason, slow) = match entry {
        QueueEntry::Suspended { scope, until, reason } => (scope, until, reason, None),
        QueueEntry::Slowed { scope, until, message_rate, connections, reason } => {
            (scope, until, reason, Some((message_rate, *connections)))
        }
        _ => return Value::Null,
    };
    let until = Some(*until).filter(|until| *until < Secs::MAX).map(|until| relay.wall(until));
    let (kind, name, of) = (scope.kind(), scope.name(), scopes::named(scope));
    let mut line = json!({ "kind": kind, "name": name, "scope": of, "until": until, "reason": &**reason });
    if let Some((rate, connections)) = slow {
        line["message_rate"] = Some(&**rate).filter(|rate| !rate.is_empty()).into();
        line["connections"] = Some(connections).filter(|most| *most > 0).into();
    }
    line
}
