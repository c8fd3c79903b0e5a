//! Acts of an operator on recipients.

use posthaste_control::{Doing, Request, Which};
use posthaste_queue::{QueueAction, Secs, Status};
use posthaste_relay::sender::Relay;
use posthaste_smtp::Reply;
use serde_json::json;

use super::answering::{OpenRequest, Outcome};
use super::asker::Asker;
use super::queues::{NumberedRelay, change_each};
use super::scopes::filter;
use crate::receive::handler::Receiver;

/// `until`: end of a hold.
fn of_queue(action: Doing, until: Option<Secs>) -> QueueAction {
    match action {
        Doing::Hold => QueueAction::Hold(until),
        Doing::Release => QueueAction::Release,
        Doing::Flush => QueueAction::Flush,
        Doing::Requeue => QueueAction::Requeue,
        Doing::Delete => QueueAction::Delete,
        Doing::Bounce => QueueAction::Bounce(Status { code: 554, enhanced: 0 }),
    }
}

/// Number of recipients that an action would concern, at other hosts and at transports. Blocks.
pub(super) fn concerned(receiver: &Receiver, of: &Which, action: Doing) -> u64 {
    let is_held = match action {
        Doing::Release => Some(true),
        Doing::Flush | Doing::Requeue => Some(false),
        Doing::Hold | Doing::Delete | Doing::Bounce => None,
    };
    let held = match (of.held, is_held) {
        (Some(wanted), Some(needed)) if wanted != needed => return 0,
        (wanted, needed) => needed.or(wanted),
    };
    let filter = filter(&Which { held, ..of.clone() });
    let at_hosts: u64 = receiver.remote().relays().iter().map(|relay| relay.count(&filter)).sum();
    let at_transports =
        receiver.destinations().transports().map_or(0, |transports| super::transports::count(transports, of, action));
    at_hosts + at_transports
}

/// Acts on the recipients that fit, in all queues, and logs it. `secs`: time after which a hold ends by itself. `others`: changed recipients of transports.
///
/// # Errors
/// The request makes no sense, or a queue is not changed: see [`change_each`].
pub(super) fn act(
    relays: &[NumberedRelay],
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
    let text = if reason.is_empty() { "given up by the operator" } else { reason };
    let text: String = text.chars().filter(|c| matches!(c, ' '..='~')).take(REASON_CHARS_MAX).collect();
    let by = asker.by(reason);
    let reply = Reply::new(GIVEN_UP, "5.0.0", text);
    let (mut changed, mut follow, mut outranked) = (0, 0, 0);
    let acted = change_each(relays, &mut |relay: &Relay| {
        let of_queue = of_queue(action, secs.map(|secs| relay.after(secs)));
        let done = relay.act(&filter(of), of_queue, &reply, &by).map_err(|error| error.to_string())?;
        changed += done.changed;
        follow += done.follows;
        outranked += done.outranked;
        Ok(())
    });
    let of = serde_json::to_string(of).unwrap_or_default();
    let Asker { uid, token, .. } = asker;
    tracing::info!(uid, token, action = ?action, of, secs, reason, changed, follow, outranked, "the operator has changed the queue");
    acted?;
    let changed = changed + others as u64;
    Ok(json!({ "done": changed, "changed": changed, "follow": follow, "outranked": outranked }))
}

/// Releases or drops held mail for transports, if requested; returns the number of recipients.
pub(super) fn on_transports(open: OpenRequest<'_>) -> Result<usize, String> {
    let OpenRequest { request, asker, receiver, .. } = open;
    let Request::Act { of, action, secs: None, reason, .. } = request else { return Ok(0) };
    let Some(transports) = receiver.destinations().transports() else { return Ok(0) };
    match action {
        Doing::Release => super::transports::release(transports, asker, of, reason),
        Doing::Delete => super::transports::delete(transports, asker, of, reason),
        _ => Ok(0),
    }
}

/// Reply code in the notification of an operator's bounce; no client sees it.
const GIVEN_UP: u16 = 554;
const REASON_CHARS_MAX: usize = 200;
