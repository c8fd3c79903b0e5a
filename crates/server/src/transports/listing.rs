//! The targets of transports that wait, and why.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_control::Which;
use posthaste_transport::{TransportWaits, Transports, WaitingTarget};
use serde_json::{Value, json};

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
        && held.is_none_or(|held| held == matches!(target.waits, TransportWaits::Held(_)))
}

/// `now`: since 1970.
fn of_transport(target: &WaitingTarget, now: Duration) -> Value {
    let (kind, pause) = match target.waits {
        TransportWaits::Due => ("due", None),
        TransportWaits::Running => ("under way", None),
        TransportWaits::Retry(pause) => ("scheduled", Some(pause)),
        TransportWaits::Held(pause) => ("held", Some(pause)),
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
        "held_by": matches!(target.waits, TransportWaits::Held(_)).then_some("transport"),
        "why": target.why.as_deref(),
    })
}
