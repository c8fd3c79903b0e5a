//! The receiver: settings, destinations, checks and counters that all listeners share.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use posthaste_accounts::{LoginGate, Quotas};
use posthaste_intake::{MemoryBudget, STORE_PATIENCE, SpoolShares};
use tokio::sync::watch;

use super::checks::CheckList;
use crate::config::first_password::FirstPassword;
use crate::ids::Ids;
use crate::receive::cluster::NodeControl;
use crate::receive::destinations::Destinations;
use crate::receive::events::EventRecorder;
use crate::receive::live::Live;
use crate::receive::meters::Meters;
use crate::receive::remote::RemoteHosts;
use crate::receive::settings::Settings;
use crate::repeats::{LeftOut, Repeats};

/// A receiver without strong references to the others: held by the relay.
#[derive(Clone, Default)]
pub(crate) struct WeakReceiver(Weak<Shared>);

impl WeakReceiver {
    pub fn upgrade(&self) -> Option<Receiver> {
        self.0.upgrade().map(Receiver)
    }
}

/// Receives for all listeners. Clones share everything.
#[derive(Clone)]
pub(crate) struct Receiver(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) settings: RwLock<Arc<Settings>>,
    /// Tells open sessions of readers of other settings.
    pub(super) replaced: watch::Sender<()>,
    pub(super) destinations: Destinations,
    pub(super) checks: CheckList,
    pub(super) store_patience: Duration,
    pub(super) memory: MemoryBudget,
    pub(super) shares: SpoolShares,
    pub(super) ids: Ids,
    pub(super) turned_away: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) repeats: Arc<Repeats>,
    /// Directory of the spool, for messages to the operator.
    pub(super) spool: String,
    pub(super) live: Live,
    pub(super) meters: Arc<Meters>,
    pub(super) gate: LoginGate,
    pub(super) first_password: Option<FirstPassword>,
    pub(super) quotas: Quotas,
    /// Of a node of a cluster.
    pub(super) cluster: OnceLock<Arc<dyn NodeControl>>,
}

impl Receiver {
    pub fn new(
        settings: Settings,
        destinations: Destinations,
        memory: MemoryBudget,
        spool: &Path,
        repeats: Arc<Repeats>,
    ) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        let spool = spool.display().to_string();
        Self(Arc::new(Shared {
            settings,
            replaced: watch::Sender::new(()),
            destinations,
            checks: CheckList::default(),
            store_patience: STORE_PATIENCE,
            memory,
            shares: SpoolShares::default(),
            ids: Ids::new(),
            turned_away: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            repeats,
            spool,
            live: Live::default(),
            meters: Arc::default(),
            gate: LoginGate::default(),
            first_password: None,
            quotas: Quotas::default(),
            cluster: OnceLock::new(),
        }))
    }

    /// Checks passwords at this gate.
    ///
    /// # Panics
    /// When it was cloned already.
    pub fn gated(mut self, gate: LoginGate) -> Self {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet").gate = gate;
        self
    }

    /// The gate against guessing.
    pub fn gate(&self) -> &LoginGate {
        &self.0.gate
    }

    /// Like [`new`](Self::new), with another patience than [`STORE_PATIENCE`].
    #[cfg(test)]
    pub fn with_patience(settings: Settings, destinations: Destinations, patience: Duration) -> Self {
        let memory = MemoryBudget::new(0);
        let mut shared = Self::new(settings, destinations, memory, Path::new("spool"), Arc::default()).0;
        Arc::get_mut(&mut shared).expect("nobody else has it").store_patience = patience;
        Self(shared)
    }

    /// Replaces the checks.
    ///
    /// # Panics
    /// When it was cloned already.
    #[cfg(test)]
    pub(super) fn with_checks(mut self, checks: CheckList) -> Self {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet").checks = checks;
        self
    }

    /// The onlookers.
    pub fn live(&self) -> &Live {
        &self.0.live
    }

    /// This server's cluster node, if any.
    pub fn cluster(&self) -> Option<&Arc<dyn NodeControl>> {
        self.0.cluster.get()
    }

    /// Sets the cluster node, once.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn set_cluster(&self, node: Arc<dyn NodeControl>) {
        let _ = self.0.cluster.set(node);
    }

    /// Histograms of its work.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.0.meters
    }

    /// The event log, if there is one.
    pub fn events(&self) -> Option<&EventRecorder> {
        self.0.destinations.events()
    }

    /// Repeats that the log has omitted since the last call; `all`: including the running interval.
    pub fn left_out(&self, all: bool) -> Vec<LeftOut> {
        self.0.repeats.left_out(Instant::now(), all)
    }

    /// Applies new settings to everything that begins from now on, and ends sessions of readers whose login has
    /// changed.
    pub fn replace(&self, settings: Settings) {
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.0.replaced.send_replace(());
    }

    /// The destinations of mail.
    pub fn destinations(&self) -> &Destinations {
        &self.0.destinations
    }

    /// Mail for other hosts.
    pub fn remote(&self) -> &RemoteHosts {
        self.0.destinations.remote()
    }

    /// A weak handle for the relay, which the receiver holds.
    pub fn downgrade(&self) -> WeakReceiver {
        WeakReceiver(Arc::downgrade(&self.0))
    }

    /// The budget of messages in memory.
    pub fn memory(&self) -> &MemoryBudget {
        &self.0.memory
    }

    /// Clients refused since the start because of too many connections.
    pub fn turned_away(&self) -> u64 {
        self.0.turned_away.load(Ordering::Relaxed)
    }

    /// Senders, recipients and messages since the start that were refused.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(super) fn count_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// An id for `Received`, or for all messages of one request.
    pub(crate) fn new_id(&self) -> String {
        self.0.ids.next()
    }
}
