//! Replies in the queue's form, and replies for failed look-ups.

use posthaste_smtp::Reply;

use posthaste_dns::DnsError;
use posthaste_queue::{Key, Outcome, Status, Transaction};

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
pub(super) fn outcome_for(error: &DnsError) -> Outcome {
    let status = status_of(&reply_for(error));
    if error.is_final() { Outcome::Failed(status) } else { Outcome::Deferred(status) }
}

/// The recipients of a transaction.
pub(super) fn keys_of(transaction: &Transaction) -> impl Iterator<Item = Key> + '_ {
    transaction.recipients.iter().map(|taken| Key { message: transaction.message, number: taken.number })
}
