//! Requests to one node that apply to all nodes of its cluster. They are durable in the engine before they are
//! answered.

use posthaste_control::Request;
use posthaste_notify::suppression::Suppressed;
use posthaste_relay::sender::wall_secs;
use serde_json::{Value, json};

use super::answering::{OpenRequest, Outcome, as_json};
use super::asker::Asker;
use super::scopes;
use super::suppression::dated;
use crate::receive::cluster::NodeControl;
use crate::receive::shared::{SharedChange, SharedSuspension};

/// True if the data are shared by all nodes of a cluster.
pub(super) fn concerns(request: &Request) -> bool {
    matches!(
        request,
        Request::Suspend { .. }
            | Request::Resume { .. }
            | Request::Suppress { .. }
            | Request::Suppressions { .. }
            | Request::Unsuppress { .. }
    )
}

/// Changes shared data. The last line has the number of `nodes`, and the `missing` ones, which will catch up once they
/// run. Listings are this node's.
pub(super) fn perform(door: &dyn NodeControl, open: OpenRequest<'_>) -> Outcome {
    let OpenRequest { request, asker, answer, .. } = open;
    if let Request::Suppressions { of } = request {
        let mut count = 0;
        let mut show = |entry| {
            count += 1;
            answer(as_json(&entry))
        };
        // All that is shared, the other node has itself.
        if asker.is_peer { door.unshared(of, &mut show) } else { door.suppressed(of, &mut show) }?;
        return Ok(json!({ "done": count }));
    }
    let now = wall_secs();
    let changes = changes(door, request, asker, now)?;
    let spread = door.share(&changes)?;
    let Asker { uid, token, .. } = asker;
    let (count, missing) = (changes.len(), spread.missing.join(", "));
    let what = kind(request);
    tracing::info!(uid, token, what, count, missing, "the operator has changed settings shared by all nodes");
    let mut last = json!({ "done": count, "nodes": spread.nodes, "missing": spread.missing });
    if matches!(request, Request::Suppress { .. }) {
        // Which are new differs by node.
        last["new"] = Value::from(count);
    }
    Ok(last)
}

fn kind(request: &Request) -> &'static str {
    match request {
        Request::Suspend { .. } => "suspend",
        Request::Resume { .. } => "resume",
        Request::Suppress { .. } => "suppress",
        _ => "unsuppress",
    }
}

/// # Errors
/// It names nothing, or too much.
fn changes(door: &dyn NodeControl, request: &Request, asker: &Asker, now: u64) -> Result<Vec<SharedChange>, String> {
    let (uid, token) = (asker.uid, asker.token.clone());
    Ok(match request {
        Request::Suspend { scope, secs, reason, .. } => {
            let named = scopes::named(&scopes::scope(scope)?);
            let until = secs.map(|secs| now.saturating_add(secs.into()));
            let suspension = SharedSuspension { until, reason: reason.clone(), uid, token, resumed: None };
            vec![SharedChange::Suspend(named, suspension)]
        }
        Request::Resume { scope } => {
            let named = scopes::named(&scopes::scope(scope)?);
            let before = door.suspension(&named).unwrap_or_default();
            vec![SharedChange::Suspend(named, SharedSuspension { uid, token, resumed: Some(now), ..before })]
        }
        Request::Suppress { entries } => {
            let checked = |entry: Suppressed| match entry.check() {
                Ok(()) => Ok(SharedChange::Suppress(entry)),
                Err(error) => Err(error.to_string()),
            };
            entries.iter().map(|entry| checked(dated(entry, now))).collect::<Result<_, _>>()?
        }
        Request::Unsuppress { tenant, addresses } => {
            let change =
                |address: &String| SharedChange::Unsuppress { tenant: tenant.clone(), address: address.clone() };
            addresses.iter().map(change).collect()
        }
        _ => return Err("answered elsewhere".to_owned()),
    })
}
