//! Mail for other hosts, for the receiver: the relay, once it is open, and its signed and rewritten addresses.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use posthaste_dns::Resolver;
use posthaste_intake::GatheredBody;
use posthaste_notify::dsn::Wording;
pub(crate) use posthaste_relay::sender::Ahead;
use posthaste_relay::sender::Relay;
use posthaste_smtp::{Address, ForwardPath};
use posthaste_spool::Lsn;

use crate::config::forward::{Back, Forwarding};
use crate::receive::events::EventRecorder;
use crate::receive::relay_slot::RelaySlot;
use crate::receive::returned::{self, ReturnPath, ReturnedMail};
use crate::receive::shards::ShardQueue;

/// Other hosts. Open if anybody may use the relay.
#[derive(Default)]
pub(crate) struct RemoteHosts {
    /// In a cluster, the queue of this node's home shard.
    relay: Arc<RelaySlot>,
    /// Shards of a cluster that have this node as a member, by number.
    shards: OnceLock<Vec<Arc<ShardQueue>>>,
    /// Shared with the relay. `None`: the machine has no resolver.
    resolver: RwLock<Option<Arc<Resolver>>>,
    /// Set once mail for other hosts is accepted.
    forwarding: OnceLock<Forwarding>,
    /// Why the relay is not open although it should be.
    stuck: OnceLock<String>,
}

impl RemoteHosts {
    /// Takes mail for other hosts from now on.
    pub fn open(&self, relay: Relay, forwarding: Forwarding) {
        self.relay.set(Some(relay));
        // Opened once.
        let _ = self.forwarding.set(forwarding);
    }

    /// Takes mail for other hosts while the [queue](Self::queue) is open, and defers it otherwise.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn open_now_and_then(&self, forwarding: Forwarding) {
        let _ = self.forwarding.set(forwarding);
    }

    /// Asks this resolver from now on.
    pub fn set_resolver(&self, resolver: Arc<Resolver>) {
        *self.resolver.write().unwrap_or_else(PoisonError::into_inner) = Some(resolver);
    }

    /// Resolver for hosts, and for the records used in checks.
    pub fn resolver(&self) -> Option<Arc<Resolver>> {
        self.resolver.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the relay cannot be opened. Until a restart, refusals that an open relay might not make are
    /// temporary.
    pub fn set_stuck(&self, why: String) {
        let _ = self.stuck.set(why);
    }

    /// Why the relay is not open although it should be.
    pub fn stuck(&self) -> Option<&str> {
        self.stuck.get().map(String::as_str)
    }

    /// The queue as a destination.
    pub fn queue(&self) -> &Arc<RelaySlot> {
        &self.relay
    }

    /// Sets the shards of this node, once.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn set_shards(&self, mut shards: Vec<Arc<ShardQueue>>) {
        shards.sort_by_key(|shard| shard.number());
        let _ = self.shards.set(shards);
    }

    /// The shards of this node, by number; empty without a cluster.
    pub fn shards(&self) -> &[Arc<ShardQueue>] {
        self.shards.get().map_or(&[], Vec::as_slice)
    }

    /// An open relay, if any: in a cluster that of this node's own shard, or of another owned one.
    pub fn relay(&self) -> Option<Relay> {
        self.relay.opened().or_else(|| self.shards().iter().find_map(|shard| shard.owner().opened()))
    }

    /// All open relays, in the order of the ids of their messages.
    pub fn relays(&self) -> Vec<Relay> {
        self.numbered_relays().into_iter().map(|(_, relay)| relay).collect()
    }

    /// All open relays, each with its shard in a cluster.
    pub fn numbered_relays(&self) -> Vec<(Option<u16>, Relay)> {
        match self.shards() {
            [] => self.relay.opened().map(|relay| (None, relay)).into_iter().collect(),
            shards => {
                let numbered = |shard: &Arc<ShardQueue>| Some((Some(shard.number()), shard.owner().opened()?));
                shards.iter().filter_map(numbered).collect()
            }
        }
    }

    /// The relay that a message would wait in, if it is open.
    pub fn relay_with(&self, message: Lsn) -> Option<Relay> {
        match self.shards() {
            [] => self.relay.opened(),
            shards => shards.iter().find(|shard| shard.number() == message.shard())?.owner().opened(),
        }
    }

    /// True if mail for other hosts is accepted at all.
    pub fn is_open(&self) -> bool {
        self.forwarding.get().is_some()
    }

    /// The rewriting of senders of forwarded mail.
    pub fn forwarding(&self) -> Option<&Forwarding> {
        self.forwarding.get()
    }

    /// Asks the next hop about an address.
    pub async fn ask_ahead(&self, address: &Address) -> Ahead {
        match self.relay() {
            Some(relay) => relay.ask_ahead(address).await,
            None => Ahead::Taken,
        }
    }

    /// Classifies a recipient. May read from the disk.
    pub fn return_path(&self, path: &ForwardPath) -> ReturnPath {
        ReturnPath::of(self.relay().as_ref(), path)
    }

    /// Classifies a recipient in the domain of rewritten senders.
    pub fn back(&self, path: &ForwardPath) -> Back {
        self.forwarding().map_or(Back::Ordinary, |forwarding| forwarding.back(path))
    }

    /// True if senders get signed return paths, which identify complaints.
    pub fn signs_return_paths(&self) -> bool {
        self.relay().is_some_and(|relay| relay.bounces().return_path.is_some())
    }

    /// A complaint about sent mail, in a message to an ordinary address.
    pub async fn complaint(&self, body: &GatheredBody) -> Option<ReturnedMail> {
        let relay = self.relay();
        returned::complaint(relay.as_ref(), body).await
    }

    /// Logs mail to signed return paths in the message `report`, and suppresses addresses as configured.
    pub fn note_returned(&self, recorder: Option<&EventRecorder>, mail: &ReturnedMail, report: Lsn) {
        if let Some(relay) = self.relay() {
            returned::note(&relay, recorder, mail, report);
        }
    }

    /// The words of notifications.
    pub fn wording(&self) -> Arc<Wording> {
        self.relay().map_or_else(Default::default, |relay| relay.wording())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_comes_and_goes_refuses_nobody_for_good() {
        let remote = RemoteHosts::default();
        assert!(!remote.is_open());
        remote.forwarding.set(Forwarding::default()).unwrap();
        assert!(remote.is_open() && remote.relay().is_none());
    }
}
