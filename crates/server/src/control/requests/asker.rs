//! The asker of a request: a user of the system, or the holder of a token.

use bytes::Bytes;
use posthaste_queue::Selection;
use posthaste_relay::sender::{ControlError, Filter, Originator, Relay};
use posthaste_spool::Lsn;

/// The user or the token that a request came from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asker {
    /// The user of the system.
    pub uid: u32,
    /// The name of the token of who asks by HTTP; empty at the socket.
    pub token: String,
    /// Only this tenant's mail exists for it. Requests select nothing else already.
    pub tenant: Option<String>,
    /// Another node of the cluster passes the request on: it wants this node's part alone.
    pub is_peer: bool,
}

impl Asker {
    /// The octets of a message that waits, in pieces. One of another tenant is as one that does not wait. Blocks.
    pub(super) fn content(&self, relay: &Relay, message: Lsn, bytes_max: u64) -> Result<Vec<Bytes>, String> {
        if self.tenant.is_some() && !self.knows(relay, message) {
            return Err(ControlError::NotWaiting(message).to_string());
        }
        relay.content(message, bytes_max).map_err(|error| error.to_string())
    }

    /// True if a message waits that it may know of.
    pub(super) fn knows(&self, relay: &Relay, message: Lsn) -> bool {
        let tenant = self.tenant.as_deref().map(Into::into);
        let selection = Selection { tenant, ..Selection::default() };
        relay.count(&Filter { selection, message: Some(message), ..Filter::default() }) > 0
    }

    /// The asker with a reason, for the event log.
    pub(super) fn by(&self, reason: &str) -> Originator {
        Originator { uid: self.uid, token: self.token.clone(), reason: reason.to_owned() }
    }
}
