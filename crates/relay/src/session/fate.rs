//! Fates: the outcome of a recipient, and the scope of a reply.

use std::ops::Deref;

use posthaste_smtp::client::{Outcome, RecipientOutcome, Stage};
use posthaste_smtp::{Reply, ShortReply};

/// The scope of a fate, which decides what the queue does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FateScope {
    /// The host or the connection: try the next host. Not an attempt of the message.
    Host,
    /// The message, for all its recipients.
    Message,
    /// This recipient.
    Recipient,
    /// The recipients that the server had accepted, for this message.
    Accepted,
}

/// A reply, and the stage that it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// [`Stage::Local`] for our own.
    pub stage: Stage,
    reply: ShortReply,
}

impl Deref for Said {
    type Target = Reply;

    fn deref(&self) -> &Reply {
        &self.reply
    }
}

/// A reply of our own.
impl From<Reply> for Said {
    fn from(reply: Reply) -> Self {
        Said { stage: Stage::Local, reply: reply.into() }
    }
}

/// The outcome of one recipient. The variant decides the queue's action; the reply explains it, our own if the server
/// gave none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipientFate {
    /// Delivered: the server took responsibility, with 2yz to the whole message.
    Delivered(Said),
    /// 4yz: retry on schedule.
    Deferred(Said, FateScope),
    /// 5yz, or the host lacks what the message needs: no retry.
    Refused(Said, FateScope),
    /// The server takes no more recipients with this message: send it to this one again, at once and to the same host
    /// (RFC 5321 section 4.5.3.1.10). At least one other was accepted, so this terminates.
    TooMany(Said),
    /// The connection ended before the last octet of the message was written: the server does not have it. Try the next
    /// host; no attempt is counted.
    NotSent(Said),
    /// The connection was lost after the last octet of the message was written, before the verdict. The server may have
    /// it: retry on schedule, never at once at another host.
    Unknown(Said),
}

impl RecipientFate {
    /// The scope of the reply.
    pub fn scope(&self) -> FateScope {
        match self {
            Self::Deferred(_, scope) | Self::Refused(_, scope) => *scope,
            Self::TooMany(_) => FateScope::Recipient,
            Self::NotSent(_) => FateScope::Host,
            Self::Delivered(_) | Self::Unknown(_) => FateScope::Accepted,
        }
    }

    /// Only the reply that decided.
    pub fn into_reply(self) -> Reply {
        match self {
            Self::Delivered(reply)
            | Self::Deferred(reply, _)
            | Self::Refused(reply, _)
            | Self::TooMany(reply)
            | Self::NotSent(reply)
            | Self::Unknown(reply) => reply.reply.into(),
        }
    }

    /// The reply that decided.
    pub fn reply(&self) -> &Reply {
        self.said()
    }

    /// The last reply, with the stage that it answers.
    pub fn said(&self) -> &Said {
        match self {
            Self::Delivered(reply)
            | Self::Deferred(reply, _)
            | Self::Refused(reply, _)
            | Self::TooMany(reply)
            | Self::NotSent(reply)
            | Self::Unknown(reply) => reply,
        }
    }
}

/// The fates of a message's recipients, in their order.
pub(super) fn of(outcome: Outcome) -> Vec<RecipientFate> {
    let only_local = outcome.recipients.iter().all(|recipient| recipient.stage == Stage::Local);
    let local = if only_local { FateScope::Message } else { FateScope::Recipient };
    outcome.recipients.into_iter().map(|recipient| fate(recipient, local)).collect()
}

fn fate(recipient: RecipientOutcome, local: FateScope) -> RecipientFate {
    let is_delivered = recipient.is_delivered();
    let is_unknown = recipient.is_unknown();
    let RecipientOutcome { reply, stage, lost } = recipient;
    let reply = Said { stage, reply };
    let scope = match stage {
        _ if is_delivered => return RecipientFate::Delivered(reply),
        _ if is_unknown => return RecipientFate::Unknown(reply),
        _ if lost => return RecipientFate::NotSent(reply),
        // The host closes. After the final dot it is a reply to the message.
        Stage::Mail | Stage::Rcpt | Stage::Data | Stage::Body if reply.code() == 421 => {
            return RecipientFate::NotSent(reply);
        }
        Stage::TooMany => return RecipientFate::TooMany(reply),
        Stage::Local => local,
        Stage::Mail => FateScope::Message,
        Stage::Rcpt => FateScope::Recipient,
        Stage::Data | Stage::Body | Stage::Verdict => FateScope::Accepted,
    };
    if reply.is_permanent() { RecipientFate::Refused(reply, scope) } else { RecipientFate::Deferred(reply, scope) }
}
