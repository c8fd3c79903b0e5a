//! What is not tried for a time.

use std::sync::Arc;

use posthaste_relay::queue::{Label, Place, QueueEntry, Scope, Secs};
use posthaste_relay::sender::{By, ControlError, Relay};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Answer, Outcome};

/// What is suspended: a tenant or a campaign, a domain or a site, or one of the former at one of the latter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Named {
    /// Mail of a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// A mailing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// Mail to a domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Mail to a set of mail hosts, as the log names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

impl Named {
    pub(super) fn scope(&self) -> Result<Scope, String> {
        let text = |name: &Option<String>| name.as_deref().map(Arc::<str>::from);
        let domain = self.domain.as_ref().map(|name| name.to_lowercase().into());
        let label = match (text(&self.tenant), text(&self.campaign)) {
            (None, None) => None,
            (Some(name), None) => Some(Label::Tenant(name)),
            (None, Some(name)) => Some(Label::Campaign(name)),
            _ => return Err("a tenant or a campaign, not both".to_owned()),
        };
        let place = match (domain, text(&self.site)) {
            (None, None) => None,
            (Some(name), None) => Some(Place::Domain(name)),
            (None, Some(name)) => Some(Place::Site(name)),
            _ => return Err("a domain or a site, not both".to_owned()),
        };
        match (label, place) {
            (Some(label), Some(place)) => Ok(Scope::At(label, place)),
            (Some(Label::Tenant(name)), None) => Ok(Scope::Tenant(name)),
            (Some(Label::Campaign(name)), None) => Ok(Scope::Campaign(name)),
            (None, Some(Place::Domain(name))) => Ok(Scope::Domain(name)),
            (None, Some(Place::Site(name))) => Ok(Scope::Site(name)),
            (None, None) => Err("of a domain, site, tenant or campaign".to_owned()),
        }
    }

    /// As [`scope`](Self::scope) reads it.
    pub(super) fn of(scope: &Scope) -> Self {
        let mut named = Named::default();
        let text = |name: &Arc<str>| Some(name.to_string());
        match scope {
            Scope::Tenant(name) | Scope::At(Label::Tenant(name), _) => named.tenant = text(name),
            Scope::Campaign(name) | Scope::At(Label::Campaign(name), _) => named.campaign = text(name),
            Scope::Domain(_) | Scope::Site(_) => {}
        }
        match scope {
            Scope::Domain(name) | Scope::At(_, Place::Domain(name)) => named.domain = text(name),
            Scope::Site(name) | Scope::At(_, Place::Site(name)) => named.site = text(name),
            Scope::Tenant(_) | Scope::Campaign(_) => {}
        }
        named
    }
}

/// Tries nothing of a scope.
pub(super) fn suspend(relay: &Relay, uid: u32, scope: &Named, secs: Option<Secs>, reason: &str) -> Outcome {
    let by = By { uid, reason: reason.to_owned() };
    relay.suspend(scope.scope()?, secs, &by).map_err(failed)?;
    tracing::info!(uid, scope = ?scope, secs, reason, "the operator has suspended mail");
    Ok(json!({ "done": 1 }))
}

/// Tries it again.
pub(super) fn resume(relay: &Relay, uid: u32, scope: &Named) -> Outcome {
    let had = relay.resume(scope.scope()?, &By { uid, ..By::default() }).map_err(failed)?;
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
    let (kind, name, of) = (scope.kind(), scope.name(), Named::of(scope));
    let mut line = json!({ "kind": kind, "name": name, "scope": of, "until": until, "reason": &**reason });
    if let Some((rate, connections)) = slow {
        line["message_rate"] = Some(&**rate).filter(|rate| !rate.is_empty()).into();
        line["connections"] = Some(connections).filter(|most| *most > 0).into();
    }
    line
}
