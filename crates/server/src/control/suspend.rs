//! What is not tried for a time.

use posthaste_control::Named;
use posthaste_relay::queue::{QueueEntry, Secs};
use posthaste_relay::sender::{By, ControlError, Relay};
use serde_json::{Value, json};

use super::{Answer, Outcome, scopes};

/// Tries nothing of a scope.
pub(super) fn suspend(relay: &Relay, uid: u32, scope: &Named, secs: Option<Secs>, reason: &str) -> Outcome {
    let by = By { uid, reason: reason.to_owned() };
    relay.suspend(scopes::scope(scope)?, secs, &by).map_err(failed)?;
    tracing::info!(uid, scope = ?scope, secs, reason, "the operator has suspended mail");
    Ok(json!({ "done": 1 }))
}

/// Tries it again.
pub(super) fn resume(relay: &Relay, uid: u32, scope: &Named) -> Outcome {
    let had = relay.resume(scopes::scope(scope)?, &By { uid, ..By::default() }).map_err(failed)?;
    tracing::info!(uid, scope = ?scope, "the operator has resumed mail");
    Ok(json!({ "done": u8::from(had) }))
}

/// What is suspended, one on each line.
pub(super) fn list(relay: &Relay, answer: Answer<'_>) -> Outcome {
    let all = relay.suspensions();
    let _ = all.iter().all(|entry| answer(suspension(relay, entry)));
    Ok(json!({ "done": all.len() }))
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
