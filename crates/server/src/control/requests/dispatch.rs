//! The answer of each request.

use posthaste_admin::{AskRefusal, Token};
use posthaste_control::Request;
use posthaste_spool::Lsn;
use serde_json::{Value, json};

use super::answering::{Answer, OpenRequest, Outcome, PATIENCE};
use super::asker::Asker;
use super::{cluster, domains, everywhere, find, logins, mail, search, shared, this_node};
use crate::receive::handler::Receiver;

/// Answers an HTTP request with this token. Blocks.
///
/// # Errors
/// The selection has changed, or the request is refused.
pub(crate) fn ask(
    receiver: &Receiver,
    request: &Request,
    token: &Token,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    let (uid, tenant) = (rustix::process::geteuid().as_raw(), token.tenant().map(str::to_owned));
    let asker = Asker { uid, token: token.name().to_owned(), tenant, is_peer: false };
    perform(OpenRequest { request, asker: &asker, receiver, answer })
}

/// The last line of the answer. It names streams that are stuck.
pub(super) fn perform(open: OpenRequest<'_>) -> Result<Value, AskRefusal> {
    let outcome = match beside_the_queue(open) {
        Some(outcome) => outcome.map_err(AskRefusal::Refused),
        None => of_the_queue(open),
    };
    let OpenRequest { request, asker, receiver, .. } = open;
    let is_unknown = |message| {
        let relay = receiver.remote().relay_with(message);
        relay.is_some_and(|relay| !asker.knows(&relay, message))
    };
    let mut last = outcome.map_err(|refusal| match (refusal, wanted_message(request)) {
        (AskRefusal::Refused(why), Some(message)) if is_unknown(message) => AskRefusal::Unknown(why),
        (refusal, _) => refusal,
    })?;
    let stuck = receiver.destinations().stuck().all();
    if !stuck.is_empty() && asker.tenant.is_none() {
        last["stuck"] = stuck.into();
    }
    Ok(last)
}

/// The waiting message whose content a request needs.
fn wanted_message(request: &Request) -> Option<Lsn> {
    match request {
        Request::Cat { message, .. } => Some(*message),
        Request::Mail { of } | Request::File { of, .. } => {
            of.message.filter(|_| of.mailbox.is_empty() && of.name.is_empty())
        }
        _ => None,
    }
}

/// `None` if it concerns waiting mail.
fn beside_the_queue(open: OpenRequest<'_>) -> Option<Outcome> {
    let OpenRequest { request, asker, receiver, answer } = open;
    Some(match request {
        Request::ForgetMailbox { mailbox } => forget_mailbox(receiver, mailbox),
        Request::Logins { .. } => logins::list(receiver, answer),
        Request::Domains {} => domains::list(receiver, answer),
        Request::Cluster { order } => cluster::perform(receiver, asker, order.as_ref(), answer),
        Request::Records { domain } => domains::records(receiver, domain, answer),
        Request::Find { what, user, events, secs, limit } => {
            let settings = receiver.settings();
            let wanted = find::wanted(&settings.directory, what.as_ref(), user.as_ref(), events);
            let bounds = find::Bounds { secs: *secs, limit: *limit, tenant: asker.tenant.as_deref() };
            find::find(settings.events.as_deref(), &wanted, &bounds, answer)
        }
        Request::Mail { of } => mail::mail(receiver, asker, of),
        Request::File { of, number } => mail::file(receiver, asker, of, *number, answer),
        Request::Search { query, secs, skip, limit } => {
            search::search(receiver, query, &search::Part { secs: *secs, skip: *skip, limit: *limit }, answer)
        }
        Request::Subjects { of } => mail::subjects(receiver, of, answer),
        Request::ForgetGuesses { of } => logins::forget(receiver, asker.uid, of),
        _ => return None,
    })
}

fn of_the_queue(open: OpenRequest<'_>) -> Result<Value, AskRefusal> {
    if let Some(node) = open.receiver.cluster() {
        let is_everywhere = everywhere::concerns(open.request) && !open.asker.is_peer;
        if is_everywhere || shared::concerns(open.request) {
            everywhere::changed(&**node, open).map_or(Ok(()), Err)?;
        }
        if is_everywhere {
            return everywhere::perform(&**node, open);
        }
    }
    this_node::perform(open)
}

fn forget_mailbox(receiver: &Receiver, mailbox: &str) -> Outcome {
    let deadline = std::time::Instant::now() + PATIENCE;
    receiver.destinations().forget_mailbox(mailbox, deadline)?;
    tracing::info!(mailbox, "mail accepted so far for a removed mailbox will not be delivered");
    Ok(json!({ "done": 1 }))
}
