//! What an operator does with recipients.

use posthaste_control::{Doing, Which};
use posthaste_relay::queue::{Action, Secs, Status};
use posthaste_relay::sender::{By, Relay};
use posthaste_smtp::Reply;
use serde_json::json;

use super::Outcome;
use super::scopes::filter;

/// `until`: when a hold ends.
fn of_queue(action: Doing, until: Option<Secs>) -> Action {
    match action {
        Doing::Hold => Action::Hold(until),
        Doing::Release => Action::Release,
        Doing::Flush => Action::Flush,
        Doing::Requeue => Action::Requeue,
        Doing::Delete => Action::Delete,
        Doing::Bounce => Action::Bounce(Status { code: 554, enhanced: 0 }),
    }
}

/// Those that fit; what is done is in the log. `secs`: after which a hold ends by itself.
pub(super) fn act(relay: &Relay, uid: u32, of: &Which, action: Doing, secs: Option<Secs>, reason: &str) -> Outcome {
    if secs.is_some() && action != Doing::Hold {
        return Err("only a hold has an end".to_owned());
    }
    let of_queue = of_queue(action, secs.map(|secs| relay.after(secs)));
    let text = if reason.is_empty() { "given up by the operator" } else { reason };
    let text: String = text.chars().filter(|c| matches!(c, ' '..='~')).take(REASON_CHARS_MAX).collect();
    let by = By { uid, reason: reason.to_owned() };
    let reply = Reply::new(GIVEN_UP, "5.0.0", text);
    let done = relay.act(&filter(of), of_queue, &reply, &by).map_err(|error| error.to_string())?;
    let of = serde_json::to_string(of).unwrap_or_default();
    let (changed, follow, outranked) = (done.changed, done.follows, done.outranked);
    tracing::info!(uid, action = ?action, of, secs, reason, changed, follow, outranked, "the operator has changed the queue");
    Ok(json!({ "done": changed, "changed": changed, "follow": follow, "outranked": outranked }))
}

/// What stands in the notification of an operator's bounce; no client is told.
const GIVEN_UP: u16 = 554;
const REASON_CHARS_MAX: usize = 200;
