//! Requests about the queues of this node.

use posthaste_admin::AskRefusal;
use posthaste_control::{Doing, Request, Which};
use posthaste_relay::sender::OfMail;
use serde_json::{Value, json};

use super::answering::{OpenRequest, Outcome};
use super::queues::{no_relay, of_each, on_each, relays_for};
use super::{act, cat, divert, explain, export, list, scopes, shared, summary, suppression, suspend, transports};
use crate::receive::handler::Receiver;

/// Answers for the queues that this node has.
pub(super) fn perform(open: OpenRequest<'_>) -> Result<Value, AskRefusal> {
    let OpenRequest { request, receiver, .. } = open;
    if let Some(door) = receiver.cluster().filter(|_| shared::concerns(request)) {
        return shared::perform(&**door, open).map_err(AskRefusal::Refused);
    }
    if receiver.remote().stuck().is_some() && !concerns_transports(open) {
        return Err(AskRefusal::Refused(no_relay(receiver)));
    }
    match changed(receiver, request) {
        Some(changed) => Err(changed),
        None => on_waiting_mail(open).map_err(AskRefusal::Refused),
    }
}

/// True if the transports answer a request, at least in part, even while the queue for other hosts is stuck. Tenants
/// have no mail there.
fn concerns_transports(open: OpenRequest<'_>) -> bool {
    let OpenRequest { request, asker, receiver, .. } = open;
    let of = match request {
        Request::List { of, .. }
        | Request::Count { of, .. }
        | Request::Act { of, action: Doing::Release | Doing::Delete, .. } => of,
        _ => return false,
    };
    let Some(transports) = receiver.destinations().transports() else { return false };
    let is_theirs = |message| {
        let of = Which { message: Some(message), ..Which::default() };
        transports::list(transports, &of, 1, &|_| true) > 0
    };
    // Numbers are those of recipients of the relay.
    asker.tenant.is_none() && of.number.is_none() && of.message.is_none_or(is_theirs)
}

fn on_waiting_mail(open: OpenRequest<'_>) -> Outcome {
    let OpenRequest { request, asker, receiver, answer } = open;
    let numbered = &relays_for(receiver, request)?;
    let relays = &numbered.iter().map(|(_, relay)| relay.clone()).collect::<Vec<_>>();
    if let Request::Count { of, action } = request {
        return Ok(json!({ "done": act::concerned(receiver, of, *action) }));
    }
    if let Request::List { of, limit, after } = request {
        let (most, events) = (limit.unwrap_or(u64::MAX), receiver.settings().events.clone());
        let after = after.as_deref().map(list::key).transpose()?;
        // At the socket a list is whole.
        let is_bounded = !asker.token.is_empty() || asker.is_peer;
        let wanted = list::Page { of, after, most, is_bounded, events: events.as_deref() };
        let listed = list::list_all(relays, &wanted, answer);
        let transports = receiver.destinations().transports().filter(|_| listed.count < most);
        let others = transports.map_or(0, |transports| transports::list(transports, of, most - listed.count, answer));
        let mut end = json!({ "done": listed.count + others });
        if let Some(next) = listed.next {
            end["next"] = next.into();
        }
        return Ok(end);
    }
    let [relay, ..] = &relays[..] else { return without_relay(open) };
    match request {
        Request::Summary { of, by, top } => summary::summary(relays, asker, of, (*by, *top), answer),
        Request::Cat { message, header } => cat::cat(relay, asker, *message, *header, answer),
        Request::Export { of, hold, .. } => {
            export::export(relays, asker, &receiver.settings().host_name, of, *hold, answer)
        }
        Request::Import { .. } => Err("an import is answered elsewhere".to_owned()),
        Request::Act { of, action, secs, reason, .. } => {
            let others = act::on_transports(open)?;
            act::act(numbered, asker, of, *action, *secs, reason, others)
        }
        Request::Suspend { scope, secs, reason, .. } => {
            on_each(numbered, &|relay| suspend::suspend(relay, asker, scope, *secs, reason))
        }
        Request::Resume { scope } => on_each(numbered, &|relay| suspend::resume(relay, asker, scope)),
        Request::Suspensions { .. } => of_each(numbered, answer, &|relay, answer| suspend::list(relay, asker, answer)),
        Request::List { .. }
        | Request::Count { .. }
        | Request::Trace { .. }
        | Request::ForgetMailbox { .. }
        | Request::Logins { .. }
        | Request::Domains {}
        | Request::Cluster { .. }
        | Request::Records { .. }
        | Request::ForgetGuesses { .. }
        | Request::Find { .. }
        | Request::Mail { .. }
        | Request::File { .. }
        | Request::Subjects { .. }
        | Request::Search { .. }
        | Request::Account { .. }
        | Request::Reload {}
        | Request::Page { .. }
        | Request::Acme { .. } => Err("answered elsewhere".to_owned()),
        Request::Divert { scope, to, secs, reason, .. } => {
            on_each(numbered, &|relay| divert::divert(relay, asker, scope, to, *secs, reason))
        }
        Request::Undivert { scope } => on_each(numbered, &|relay| divert::end(relay, asker, scope)),
        Request::Diversions { .. } => of_each(numbered, answer, &|relay, answer| divert::list(relay, answer)),
        Request::Explain { domain, tenant, pool, source } => {
            explain::explain(relay, OfMail { domain, tenant, pool, source }, answer)
        }
        Request::Suppressions { of } => suppression::list(relay, of, answer),
        Request::Suppress { entries } => suppression::add(relay, asker, entries),
        Request::Unsuppress { tenant, addresses } => suppression::remove(relay, asker, tenant, addresses),
    }
}

fn without_relay(open: OpenRequest<'_>) -> Outcome {
    let OpenRequest { request, asker, receiver, .. } = open;
    match request {
        Request::Summary { .. } | Request::Suspensions { .. } | Request::Diversions { .. } => Ok(json!({ "done": 0 })),
        Request::Act { action: Doing::Flush, .. } => Ok(json!({ "done": 0 })),
        Request::Act { .. } | Request::Divert { .. } | Request::Undivert { .. } if asker.is_peer => {
            Ok(json!({ "done": 0 }))
        }
        Request::Act { action: Doing::Release | Doing::Delete, .. }
            if receiver.destinations().transports().is_some() =>
        {
            act::on_transports(open).map(|done| json!({ "done": done, "changed": done }))
        }
        _ => Err(no_relay(receiver)),
    }
}

/// The refusal of a request whose selection has changed by more than a tenth since it was shown.
fn changed(receiver: &Receiver, request: &Request) -> Option<AskRefusal> {
    let (expected, now) = match request {
        Request::Act { of, action, expect, .. } => ((*expect)?, act::concerned(receiver, of, *action)),
        // Which mail hosts a recipient has is known for some only.
        Request::Suspend { scope, expect, .. } | Request::Divert { scope, expect, .. } if scope.site.is_none() => {
            let (relays, filter) = (receiver.remote().relays(), scopes::filter(&scopes::which(scope)));
            relays.first()?;
            ((*expect)?, relays.iter().map(|relay| relay.count(&filter)).sum())
        }
        _ => return None,
    };
    is_other(expected, now).then_some(AskRefusal::Changed { expected, now })
}

/// True if a number is no longer that which was shown, by more than a tenth.
pub(super) fn is_other(expected: u64, now: u64) -> bool {
    now.abs_diff(expected) > expected / 10
}
