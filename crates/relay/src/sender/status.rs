//! Replies as the queue stores them, with their origin, and replies for failed look-ups.

use std::sync::Arc;

use posthaste_smtp::Reply;

use posthaste_dns::DnsError;
use posthaste_queue::{AttemptOutcome, RecipientKey, Status, Transaction};

/// The origin of a reply: the host and the step of the session. An empty host: this relay.
#[derive(Clone, Copy)]
pub(super) struct ReplyPlace<'a> {
    pub host: &'a Arc<str>,
    pub stage: &'static str,
}

impl<'a> ReplyPlace<'a> {
    /// Outside any step of a session.
    pub fn of(host: &'a Arc<str>) -> Self {
        ReplyPlace { host, stage: "" }
    }

    /// The displayed reply.
    pub fn said(&self, reply: &Reply) -> String {
        let ReplyPlace { host, stage } = self;
        match (host.is_empty(), stage.is_empty()) {
            (true, _) => reply.to_string(),
            (false, true) => format!("{host}: {reply}"),
            (false, false) => format!("{host} ({stage}): {reply}"),
        }
    }
}

/// The queue's form of a reply.
pub(super) fn status_of(reply: &Reply) -> Status {
    let enhanced = reply.enhanced().map_or(0, |code| code.subject.min(64) * 1000 + code.detail.min(999));
    Status { code: reply.code(), enhanced }
}

/// The reply for a domain without a host.
pub(super) fn reply_for(error: &DnsError) -> Reply {
    let code = if error.is_final() { 550 } else { 450 };
    Reply::new(code, error.status(), error.to_string())
}

/// The outcome of a failed look-up for recipients.
pub(super) fn outcome_for(error: &DnsError) -> AttemptOutcome {
    let status = status_of(&reply_for(error));
    if error.is_final() { AttemptOutcome::Failed(status) } else { AttemptOutcome::Deferred(status) }
}

/// The recipients of a transaction.
pub(super) fn keys_of(transaction: &Transaction) -> impl Iterator<Item = RecipientKey> + '_ {
    transaction.recipients.iter().map(|taken| RecipientKey { message: transaction.message, number: taken.number })
}
