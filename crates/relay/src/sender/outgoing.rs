//! A message on its way into the queue.

use std::sync::Arc;

use posthaste_spool::{Entry, StreamId};

use posthaste_queue::entry::Forwarded;
use posthaste_queue::{QueueEntry, Queued, QueuedRecipient, QueuedRet, Secs};

/// A message for the relay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// The sender's address; empty for none. It receives the notifications of all recipients.
    pub sender: Arc<str>,
    /// Recipients that it leaves for with another sender, if any.
    pub forwarded: Option<Box<Forwarded>>,
    /// True if it came with BODY=8BITMIME (RFC 6152).
    pub is_8bit: bool,
    /// True if its header needs SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// True if its author may sign it: it is signed again if its header changes as it leaves.
    pub may_sign: bool,
    /// RET (RFC 3461 section 4.3).
    pub ret: Option<QueuedRet>,
    /// ENVID as received; empty for none.
    pub envid: Arc<str>,
    /// The tenant; empty for none.
    pub tenant: Arc<str>,
    /// The mailing that it belongs to; empty for none.
    pub campaign: Arc<str>,
    /// The pool of sources that it is sent from; empty for that of its tenant.
    pub pool: Arc<str>,
    /// Seconds before its first attempt (RFC 4865 FUTURERELEASE).
    pub hold_secs: Secs,
    /// Seconds until it is given up; 0 for the maximum age of its schedule, counted from its release.
    pub expires_secs: Secs,
    /// The recipients, numbers ascending; 1 to 65,535.
    pub recipients: Vec<QueuedRecipient>,
}

impl Outgoing {
    /// The entry for the batch that keeps it. `now`: when it is received.
    pub(super) fn into_entry(self, stream: StreamId, now: Secs) -> Entry {
        let Outgoing {
            sender,
            forwarded,
            is_8bit,
            smtputf8,
            may_sign,
            ret,
            envid,
            tenant,
            campaign,
            pool,
            hold_secs,
            expires_secs,
            recipients,
        } = self;
        let at = |secs: Secs| if secs == 0 { 0 } else { now.saturating_add(secs) };
        let queued = Queued {
            received: now,
            not_before: at(hold_secs),
            expires: at(expires_secs),
            sender,
            forwarded,
            is_8bit,
            smtputf8,
            may_sign,
            ret,
            envid,
            tenant,
            campaign,
            pool,
            recipients,
        };
        let payload = QueueEntry::Queued(queued).encode().into();
        Entry { stream, needs_body: true, payload }
    }
}
