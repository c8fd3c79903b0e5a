//! State shared by all tasks of the relay.
//!
//! It holds the owners of the relay's state, which do not know it. Functions that take it do the relay's work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_consumer::BudgetGate;
use posthaste_message::rewrite::AddressMap;
use posthaste_spool::{Consumer, Entry, Lsn, Published, Spool, StreamId};
use posthaste_watch::Watch;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::ahead::CallAhead;
use super::config::{Config, FixedConfig};
use super::messages::Messages;
use super::notices::NoticesInForce;
use super::observer::{RecipientAttempt, SiteState};
use super::operator::OperatorRequests;
use super::outcomes::Outcomes;
use super::queue_limit::QueueBounds;
use super::record::{OutcomeRecorder, Time};
use super::replies::Replies;
use super::route_table::RouteTable;
use super::signatures::Signatures;
use super::site::{Admitted, Alarm, Shaper, Site};
use super::sites::Sites;
use super::status::keys_of;
use posthaste_queue::{AttemptOutcome, Change, Queue, QueueEntry, Queued, RecipientKey, Transaction};
use posthaste_shaping::explain::Defaults;

pub(super) struct Shared {
    pub spool: Arc<dyn Spool>,
    pub stream: StreamId,
    pub config: FixedConfig,
    pub messages: Messages,
    pub outcomes: Outcomes,
    pub ahead: CallAhead,
    pub shaper: Shaper,
    /// Wakes waiters for a token.
    pub alarm: Alarm,
    pub queue_limits: QueueBounds,
    pub time: Time,
    pub runtime: Handle,
    /// Watches connections, the dispatcher and records for being stuck.
    pub watch: Watch,
    pub wake: Notify,
    /// The ring needs space: take a snapshot. The flag stays until one is taken.
    pub snapshot_wanted: Notify,
    pub is_snapshot_wanted: AtomicBool,
    pub sites: Sites,
    pub routes: RouteTable,
    /// Address map for outgoing mail; the flag is true if it has entries.
    generic: (AtomicBool, Mutex<Arc<AddressMap>>),
    /// Signatures of mail that the relay changed.
    pub signatures: Signatures,
    pub seed: u64,
    /// Messages up to here are noted before each attempt.
    pub careful_through: Lsn,
    queue: Mutex<Queue>,
    is_ending: AtomicBool,
    /// Starts the task of a connection. The opener supplies it, because such a task starts others.
    pub start_connection: StartConnection,
    /// Number of connections started.
    pub serial: AtomicU64,
    /// Numbers for the names of snapshots.
    pub snapshots: AtomicU64,
    pub operator: OperatorRequests,
}

/// Starts the task of a connection that its site has counted; the number seeds its random choices.
pub(super) type StartConnection = fn(&Arc<Shared>, &Arc<Site>, Admitted, u64);

/// The parts of [`Shared`].
pub(super) struct Parts {
    pub spool: Arc<dyn Spool>,
    pub stream: StreamId,
    pub config: Config,
    pub queue: Queue,
    pub replies: Replies,
    pub time: Time,
    pub runtime: Handle,
    pub watch: Watch,
    pub seed: u64,
    pub gate: Option<BudgetGate>,
    pub start_connection: StartConnection,
}

impl Shared {
    pub fn new(parts: Parts) -> Self {
        let Parts { spool, stream, config, queue, replies, time, runtime, watch, seed, gate, start_connection } = parts;
        let recorder = OutcomeRecorder::new(spool.clone(), stream, config.observer.clone(), &watch).gated(gate);
        let careful_through = if config.has_crashed { spool.stats().published } else { Lsn::ZERO };
        let defaults = Defaults {
            connections: config.site_connections_max,
            messages_per_connection: config.session_messages_max,
            recipients_per_message: config.recipients_max,
        };
        Shared {
            messages: Messages::new(spool.clone(), stream, config.memory_bytes),
            outcomes: Outcomes::new(recorder, replies, NoticesInForce::new(config.notices)),
            sites: Sites::new(config.connections_max),
            ahead: CallAhead::default(),
            queue_limits: QueueBounds::new(&config.queue_limits, config.observer.clone()),
            routes: RouteTable::new(config.resolver, &config.routing, config.port, config.tls, config.mta_sts),
            shaper: Shaper::new(config.shaping, defaults, config.lender),
            alarm: Alarm::new(),
            config: FixedConfig {
                host_name: config.host_name,
                recipients_max: config.recipients_max,
                timeouts: config.timeouts,
                eight_bit: config.eight_bit,
                site_pause_secs: config.site_pause_secs,
                returned_bytes_max: config.returned_bytes_max,
                bounces: config.bounces,
                notifier: config.notifier,
                signer: config.signer,
                witnesses: config.witnesses,
                observer: config.observer,
            },
            spool,
            stream,
            time,
            runtime,
            watch,
            wake: Notify::new(),
            snapshot_wanted: Notify::new(),
            is_snapshot_wanted: AtomicBool::new(false),
            careful_through,
            seed,
            queue: Mutex::new(queue),
            generic: Default::default(),
            signatures: Signatures::default(),
            is_ending: AtomicBool::new(false),
            start_connection,
            serial: AtomicU64::new(0),
            snapshots: AtomicU64::new(seed),
            operator: OperatorRequests::default(),
        }
    }

    /// Lock order: a site first, then this.
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("the queue")
    }

    /// The address map for outgoing mail, if any. Takes a lock only then.
    pub fn generic(&self) -> Option<Arc<AddressMap>> {
        self.generic.0.load(Ordering::Acquire).then(|| self.generic.1.lock().expect("the map").clone())
    }

    pub fn set_generic(&self, map: AddressMap) {
        let has_any = !map.is_empty();
        *self.generic.1.lock().expect("the map") = Arc::new(map);
        self.generic.0.store(has_any, Ordering::Release);
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Stops new transactions; idle connections end.
    pub fn begin_end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.wake.notify_one();
        self.sites.wake_idle();
    }

    /// Runs blocking work, such as reading the spool.
    pub fn spawn_blocking(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let shared = self.clone();
        self.runtime.spawn_blocking(move || work(&shared));
    }

    pub fn observe_site(&self, state: &SiteState<'_>) {
        self.sites.note(state);
        if let Some(observer) = &self.config.observer {
            observer.site(state);
        }
    }

    pub fn warn(&self, batch: Lsn, what: &str) {
        if let Some(observer) = &self.config.observer {
            observer.warn(batch, what);
        }
    }

    /// The entry of a message received now.
    pub fn entry(&self, message: Queued) -> Entry {
        let queued = Queued { received: self.time.now(), ..message };
        Entry { stream: self.stream, needs_body: true, payload: QueueEntry::Queued(queued).encode().into() }
    }

    /// Ends attempts without a report.
    pub fn finish(self: &Arc<Self>, outcomes: Vec<(RecipientKey, AttemptOutcome)>) {
        let changes: Vec<Change> = {
            let mut queue = self.queue();
            outcomes.into_iter().filter_map(|(key, outcome)| queue.finish(key, outcome)).collect()
        };
        self.record(changes);
    }

    /// Returns a transaction to the queue, with no outcome reported.
    pub fn untried(self: &Arc<Self>, transaction: &Transaction) {
        self.finish(keys_of(transaction).map(|key| (key, AttemptOutcome::Untried)).collect());
    }

    pub fn record(self: &Arc<Self>, changes: Vec<Change>) {
        self.record_told(changes.into_iter().map(|change| (change, None)).collect());
    }

    pub fn record_told(self: &Arc<Self>, changes: Vec<(Change, Option<RecipientAttempt>)>) {
        self.outcomes.recorder.record(changes, self.time.now());
        self.wake.notify_one();
    }
}

impl Consumer for Shared {
    fn published(&self, entry: Published) {
        match QueueEntry::decode(&entry.payload) {
            Ok(decoded) => {
                let (settled, has_owing) = {
                    let mut queue = self.queue();
                    let before = queue.released().len();
                    queue.apply(entry.lsn, &decoded);
                    (queue.released()[before..].to_vec(), queue.has_owing())
                };
                if has_owing {
                    self.outcomes.notices_to_make.wanted.notify_one();
                }
                self.messages.forget(&settled);
                self.outcomes.replies.forget(&settled);
                if let QueueEntry::Imported(_) | QueueEntry::WhyHeld { .. } = decoded {
                    self.outcomes.replies.apply(entry.lsn, &decoded);
                }
                if let Some(queued) = decoded.into_message() {
                    self.messages.keep(entry.lsn, queued, &entry.body);
                }
            }
            Err(error) => self.warn(entry.lsn, &error.to_string()),
        }
        self.wake.notify_one();
    }

    fn advance_wanted(&self, _through: Lsn) {
        self.is_snapshot_wanted.store(true, Ordering::Release);
        self.snapshot_wanted.notify_one();
    }
}
