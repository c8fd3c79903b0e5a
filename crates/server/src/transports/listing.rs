//! The targets of transports that wait, and why.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_control::Which;
use posthaste_transport::{TransportWaits, Transports, WaitingTarget};
use serde_json::{Value, json};

use crate::control::Asker;

/// Gives the waiting targets that fit, at most `most`, to `answer` until that says no. Returns the number of all that fit.
pub(crate) fn list(transports: &Transports, of: &Which, most: u64, answer: &dyn Fn(Value) -> bool) -> u64 {
    let (mut count, now) = (0, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    transports.waiting(&mut |target| {
        if !is_meant(&target, of) {
            return ControlFlow::Continue(());
        }
        count += 1;
        let goes_on = answer(of_transport(&target, now)) && count < most;
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    count
}

/// Has those tried that fit and are held as nobody knows whether they have had their messages. Durable when this returns. Blocks.
///
/// # Errors
/// The spool takes nothing.
pub(crate) fn release(transports: &Transports, asker: &Asker, of: &Which, reason: &str) -> Result<usize, String> {
    let released = transports.release(&|target| is_meant(target, of))?;
    if released > 0 {
        let of = serde_json::to_string(of).unwrap_or_default();
        let Asker { uid, token } = asker;
        tracing::info!(uid, token, of, reason, released, "the operator has released mail for transports");
    }
    Ok(released)
}

/// Drops those that fit and are held: they get no message, and their senders are not told. Durable when this returns. Blocks.
///
/// # Errors
/// The spool takes nothing.
pub(crate) fn delete(transports: &Transports, asker: &Asker, of: &Which, reason: &str) -> Result<usize, String> {
    let why = if reason.is_empty() { "deleted by the operator" } else { reason };
    let deleted = transports.drop_held(&|target| is_meant(target, of), &why.into())?;
    if deleted > 0 {
        let of = serde_json::to_string(of).unwrap_or_default();
        let Asker { uid, token } = asker;
        tracing::info!(uid, token, of, reason, deleted, "the operator has deleted mail for transports");
    }
    Ok(deleted)
}

fn is_meant(target: &WaitingTarget, of: &Which) -> bool {
    let Which { message, number, sender, recipient, domain, tenant, campaign, held } = of;
    let is =
        |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(text));
    message.is_none_or(|message| message == target.id)
        // Numbers are those of recipients of the relay.
        && number.is_none()
        && is(sender, &target.sender)
        && is(recipient, &target.recipient)
        && is(domain, target.recipient.rsplit_once('@').map_or("", |(_, domain)| domain))
        && tenant.as_ref().is_none_or(String::is_empty)
        && campaign.as_ref().is_none_or(String::is_empty)
        && held.is_none_or(|held| held == held_by(target).is_some())
}

fn held_by(target: &WaitingTarget) -> Option<&'static str> {
    match target.waits {
        TransportWaits::Held(_) => Some("transport"),
        TransportWaits::Uncertain => Some("uncertain"),
        _ => None,
    }
}

/// `now`: since 1970.
fn of_transport(target: &WaitingTarget, now: Duration) -> Value {
    let (kind, pause) = match target.waits {
        TransportWaits::Due => ("due", None),
        TransportWaits::Running => ("under way", None),
        TransportWaits::Retry(pause) => ("scheduled", Some(pause)),
        TransportWaits::Held(pause) => ("held", Some(pause)),
        TransportWaits::Uncertain => ("held", None),
    };
    json!({
        "id": target.id.to_string(),
        "sender": &*target.sender,
        "recipient": &*target.recipient,
        "domain": target.recipient.rsplit_once('@').map(|(_, domain)| domain),
        "transport": &*target.transport,
        "bytes": target.bytes,
        "received": target.received_secs,
        "attempts": target.attempts,
        "state": kind,
        "until": pause.map(|pause| (now + pause).as_secs()),
        "held_by": held_by(target),
        "why": target.why.as_deref(),
    })
}
