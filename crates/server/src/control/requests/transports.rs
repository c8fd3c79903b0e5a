//! The targets of transports that wait, and why.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_control::{Doing, HeldBy, WaitState, WaitingLine, Which};
use posthaste_transport::{TransportWaits, Transports, WaitingTarget};
use serde_json::Value;

use super::answering::as_json;
use super::asker::Asker;

/// Passes matching waiting targets, at most `most`, to `answer` until that returns false. Returns the number of all
/// matches.
pub(crate) fn list(transports: &Transports, of: &Which, most: u64, answer: &dyn Fn(Value) -> bool) -> u64 {
    let (mut count, now) = (0, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    transports.waiting(&mut |target| {
        if !is_meant(&target, of) {
            return ControlFlow::Continue(());
        }
        count += 1;
        let goes_on = answer(as_json(&of_transport(&target, now))) && count < most;
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    count
}

/// Number of matching targets that an action would change, like [`release`] and [`delete`].
pub(crate) fn count(transports: &Transports, of: &Which, action: Doing) -> u64 {
    let is_concerned = |held: Option<HeldBy>| match action {
        Doing::Release => held == Some(HeldBy::Uncertain),
        Doing::Delete => held.is_some(),
        Doing::Hold | Doing::Flush | Doing::Requeue | Doing::Bounce => false,
    };
    let mut count = 0;
    transports.waiting(&mut |target| {
        count += u64::from(is_meant(&target, of) && is_concerned(held_by(&target)));
        ControlFlow::Continue(())
    });
    count
}

/// Releases matching targets that are held because their delivery is uncertain. Durable on return. Blocks.
///
/// # Errors
/// The spool accepts nothing.
pub(crate) fn release(transports: &Transports, asker: &Asker, of: &Which, reason: &str) -> Result<usize, String> {
    let released = transports.release(&|target| is_meant(target, of))?;
    if released > 0 {
        let of = serde_json::to_string(of).unwrap_or_default();
        let Asker { uid, token, .. } = asker;
        tracing::info!(uid, token, of, reason, released, "the operator has released mail for transports");
    }
    Ok(released)
}

/// Drops matching held targets: they get no message, and their senders no notice. Durable on return. Blocks.
///
/// # Errors
/// The spool accepts nothing.
pub(crate) fn delete(transports: &Transports, asker: &Asker, of: &Which, reason: &str) -> Result<usize, String> {
    let why = if reason.is_empty() { "deleted by the operator" } else { reason };
    let deleted = transports.drop_held(&|target| is_meant(target, of), &why.into())?;
    if deleted > 0 {
        let of = serde_json::to_string(of).unwrap_or_default();
        let Asker { uid, token, .. } = asker;
        tracing::info!(uid, token, of, reason, deleted, "the operator has deleted mail for transports");
    }
    Ok(deleted)
}

fn is_meant(target: &WaitingTarget, of: &Which) -> bool {
    let Which { message, number, sender, recipient, domain, tenant, campaign, held } = of;
    let is =
        |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(text));
    message.is_none_or(|message| message.get() == target.id)
        // Numbers are those of recipients of the relay.
        && number.is_none()
        && is(sender, &target.sender)
        && is(recipient, &target.recipient)
        && is(domain, target.recipient.rsplit_once('@').map_or("", |(_, domain)| domain))
        && tenant.as_ref().is_none_or(String::is_empty)
        && campaign.as_ref().is_none_or(String::is_empty)
        && held.is_none_or(|held| held == held_by(target).is_some())
}

fn held_by(target: &WaitingTarget) -> Option<HeldBy> {
    match target.waits {
        TransportWaits::Held(_) => Some(HeldBy::Transport),
        TransportWaits::Uncertain => Some(HeldBy::Uncertain),
        _ => None,
    }
}

/// `now`: since 1970.
fn of_transport(target: &WaitingTarget, now: Duration) -> WaitingLine {
    let (state, pause) = match target.waits {
        TransportWaits::Due => (WaitState::Due, None),
        TransportWaits::Running => (WaitState::UnderWay, None),
        TransportWaits::Retry(pause) => (WaitState::Scheduled, Some(pause)),
        TransportWaits::Held(pause) => (WaitState::Held, Some(pause)),
        TransportWaits::Uncertain => (WaitState::Held, None),
    };
    WaitingLine {
        id: target.id.to_string(),
        shard: None,
        sender: target.sender.to_string(),
        leaves_from: None,
        recipient: target.recipient.to_string(),
        domain: target.recipient.rsplit_once('@').map(|(_, domain)| domain.to_owned()),
        tenant: None,
        campaign: None,
        pool: None,
        transport: Some(target.transport.to_string()),
        bytes: target.bytes,
        received: target.received_secs.cast_signed(),
        expires: None,
        attempts: target.attempts,
        status: None,
        state,
        until: pause.map(|pause| (now + pause).as_secs().cast_signed()),
        held_by: held_by(target),
        held_reason: held_by(target).and_then(HeldBy::reason).map(str::to_owned),
        why: target.why.as_deref().map(str::to_owned),
        class: None,
        why_unknown: None,
    }
}
