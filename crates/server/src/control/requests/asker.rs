//! The asker of a request: a user of the system, or the holder of a token.

use bytes::Bytes;
use posthaste_queue::Selection;
use posthaste_relay::sender::{ControlError, Filter, Originator, Relay};
use posthaste_spool::Lsn;

/// The user or the token of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asker {
    /// The user of the system.
    pub uid: u32,
    /// The name of the HTTP client's token; empty at the socket.
    pub token: String,
    /// Only this tenant's mail is visible. Requests already select nothing else.
    pub tenant: Option<String>,
    /// Another node of the cluster passes the request on: it wants this node's part alone.
    pub is_peer: bool,
}

impl Asker {
    /// The octets of a waiting message, in pieces. One of another tenant counts as missing. Blocks.
    pub(super) fn content(&self, relay: &Relay, message: Lsn, bytes_max: u64) -> Result<Vec<Bytes>, String> {
        if self.tenant.is_some() && !self.knows(relay, message) {
            return Err(ControlError::NotWaiting(message).to_string());
        }
        relay.content(message, bytes_max).map_err(|error| error.to_string())
    }

    /// True if a message waits and is visible to the asker.
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
