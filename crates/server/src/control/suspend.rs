//! What is not tried for a time.

use posthaste_relay::queue::{QueueEntry, Scope, Secs};
use posthaste_relay::sender::{By, ControlError, Relay};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Answer, Outcome};

/// What is suspended, by kind and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Named {
    /// Mail of a tenant.
    Tenant(String),
    /// A mailing.
    Campaign(String),
    /// Mail to a domain.
    Domain(String),
    /// Mail to a set of mail hosts, as the log names it.
    Site(String),
}

impl Named {
    pub(super) fn scope(&self) -> Scope {
        match self {
            Self::Tenant(name) => Scope::Tenant(name.as_str().into()),
            Self::Campaign(name) => Scope::Campaign(name.as_str().into()),
            Self::Domain(name) => Scope::Domain(name.to_lowercase().into()),
            Self::Site(name) => Scope::Site(name.as_str().into()),
        }
    }
}

/// Tries nothing of a scope.
pub(super) fn suspend(relay: &Relay, uid: u32, scope: &Named, secs: Option<Secs>, reason: &str) -> Outcome {
    let by = By { uid, reason: reason.to_owned() };
    relay.suspend(scope.scope(), secs, &by).map_err(failed)?;
    tracing::info!(uid, scope = ?scope, secs, reason, "the operator has suspended mail");
    Ok(json!({ "done": 1 }))
}

/// Tries it again.
pub(super) fn resume(relay: &Relay, uid: u32, scope: &Named) -> Outcome {
    let had = relay.resume(scope.scope(), &By { uid, ..By::default() }).map_err(failed)?;
    tracing::info!(uid, scope = ?scope, "the operator has resumed mail");
    Ok(json!({ "done": u8::from(had) }))
}

/// What is suspended, one on each line.
pub(super) fn list(relay: &Relay, answer: Answer<'_>) -> Outcome {
    let all = relay.suspensions();
    let _ = all.iter().all(|entry| answer(suspension(entry)));
    Ok(json!({ "done": all.len() }))
}

pub(super) fn failed(error: ControlError) -> String {
    error.to_string()
}

fn suspension(entry: &QueueEntry) -> Value {
    let (scope, until, reason, slow) = match entry {
        QueueEntry::Suspended { scope, until, reason } => (scope, until, reason, None),
        QueueEntry::Slowed { scope, until, message_rate, connections, reason } => {
            (scope, until, reason, Some((message_rate, *connections)))
        }
        _ => return Value::Null,
    };
    let (kind, name) = kind_and_name(scope);
    let until = Some(*until).filter(|until| *until < Secs::MAX);
    let mut line = json!({ "kind": kind, "name": name, "until": until, "reason": &**reason });
    if let Some((rate, connections)) = slow {
        line["message_rate"] = Some(&**rate).filter(|rate| !rate.is_empty()).into();
        line["connections"] = Some(connections).filter(|most| *most > 0).into();
    }
    line
}

pub(super) fn kind_and_name(scope: &Scope) -> (&'static str, &str) {
    match scope {
        Scope::Tenant(name) => ("tenant", name),
        Scope::Campaign(name) => ("campaign", name),
        Scope::Domain(name) => ("domain", name),
        Scope::Site(name) => ("site", name),
    }
}
