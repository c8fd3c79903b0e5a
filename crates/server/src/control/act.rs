//! What an operator does with recipients.

use posthaste_control::{Doing, Which};
use posthaste_relay::queue::{Action, Secs, Status};
use posthaste_relay::sender::Relay;
use posthaste_smtp::Reply;
use serde_json::json;

use super::scopes::filter;
use super::{Asker, Outcome};

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

/// The number of recipients that fit, if it is no longer the one that was shown, by more than a tenth.
pub(super) fn changed(relay: &Relay, of: &Which, expected: u64) -> Option<u64> {
    let now = relay.count(&filter(of));
    (now.abs_diff(expected) > expected / 10).then_some(now)
}

/// Those that fit; what is done is in the log. `secs`: after which a hold ends by itself. `others`: those of transports that were changed.
pub(super) fn act(
    relay: &Relay,
    asker: &Asker,
    of: &Which,
    action: Doing,
    secs: Option<Secs>,
    reason: &str,
    others: usize,
) -> Outcome {
    if secs.is_some() && action != Doing::Hold {
        return Err("only a hold has an end".to_owned());
    }
    let of_queue = of_queue(action, secs.map(|secs| relay.after(secs)));
    let text = if reason.is_empty() { "given up by the operator" } else { reason };
    let text: String = text.chars().filter(|c| matches!(c, ' '..='~')).take(REASON_CHARS_MAX).collect();
    let by = asker.by(reason);
    let reply = Reply::new(GIVEN_UP, "5.0.0", text);
    let done = relay.act(&filter(of), of_queue, &reply, &by).map_err(|error| error.to_string())?;
    let of = serde_json::to_string(of).unwrap_or_default();
    let (changed, follow, outranked) = (done.changed, done.follows, done.outranked);
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, action = ?action, of, secs, reason, changed, follow, outranked, "the operator has changed the queue");
    let changed = changed + others as u64;
    Ok(json!({ "done": changed, "changed": changed, "follow": follow, "outranked": outranked }))
}

/// What stands in the notification of an operator's bounce; no client is told.
const GIVEN_UP: u16 = 554;
const REASON_CHARS_MAX: usize = 200;
