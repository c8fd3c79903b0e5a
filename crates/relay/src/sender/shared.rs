//! State shared by all tasks of the relay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use posthaste_consumer::BudgetGate;
use posthaste_message::rewrite::AddressMap;
use posthaste_random::mix;
use posthaste_spool::{Consumer, Entry, Lsn, Published, Spool, StreamId};
use posthaste_watch::Watch;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::Outgoing;
use super::ahead::CallAhead;
use super::broken_tls::BrokenTls;
use super::config::Config;
use super::connection_sharing::ConnectionSharing;
use super::messages::Messages;
use super::notices::NoticesInForce;
use super::observer::{Attempt, SiteState};
use super::operator::OperatorRequests;
use super::outcomes::Outcomes;
use super::queue_limit::QueueBounds;
use super::record::{OutcomeRecorder, Time};
use super::replies::Replies;
use super::reuse::Reuse;
use super::round::connect;
use super::route_table::RouteTable;
use super::shape::{Base, Shaper};
use super::site::{Admitted, Site, SiteKey, State, Wanted};
use super::status::keys_of;
use super::tls_counts::TlsCounts;
use posthaste_dns::Resolver;
use posthaste_queue::{Change, Key, Outcome, Queue, QueueEntry, Queued, Secs, Transaction};

pub(super) struct Shared {
    pub spool: Arc<dyn Spool>,
    pub stream: StreamId,
    pub config: Config,
    pub messages: Messages,
    pub outcomes: Outcomes,
    pub sharing: Arc<ConnectionSharing>,
    pub reuse: Arc<Reuse>,
    pub ahead: CallAhead,
    pub shaper: Shaper,
    pub room: QueueBounds,
    pub time: Time,
    pub runtime: Handle,
    /// Watches connections, the dispatcher and records for being stuck.
    pub watch: Watch,
    pub wake: Notify,
    /// The ring needs space: take a snapshot.
    pub room_wanted: Notify,
    pub wanted: AtomicU64,
    pub sites: Mutex<HashMap<SiteKey, Arc<Site>>>,
    pub routes: RouteTable,
    /// Addresses of mail that leaves; the flag says whether there are any.
    generic: (AtomicBool, Mutex<Arc<AddressMap>>),
    pub seed: u64,
    /// Messages up to here are noted before each attempt.
    pub careful_through: Lsn,
    queue: Mutex<Queue>,
    is_ending: AtomicBool,
    connections: Mutex<usize>,
    /// Notified when a connection has ended.
    ended: Condvar,
    serial: AtomicU64,
    /// Numbers for the names of snapshots.
    pub snapshots: AtomicU64,
    pub broken_tls: BrokenTls,
    pub tls_counts: TlsCounts,
    pub operator: OperatorRequests,
    pub unreachable: AtomicUsize,
}

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
}

impl Shared {
    pub fn new(parts: Parts) -> Self {
        let Parts { spool, stream, config, queue, replies, time, runtime, watch, seed, gate } = parts;
        let recorder = OutcomeRecorder::new(spool.clone(), stream, config.observer.clone(), &watch).gated(gate);
        let notices = NoticesInForce::new(config.notices.clone());
        let careful_through = if config.has_crashed { spool.stats().published } else { Lsn::ZERO };
        Shared {
            messages: Messages::new(spool.clone(), stream, config.memory_bytes),
            outcomes: Outcomes::new(recorder, replies, notices),
            sharing: Arc::default(),
            reuse: Arc::default(),
            ahead: CallAhead::default(),
            room: QueueBounds::new(&config.room),
            routes: RouteTable::new(&config),
            shaper: Shaper::new(config.shaping.clone(), Base::of(&config)),
            spool,
            stream,
            config,
            time,
            runtime,
            watch,
            wake: Notify::new(),
            room_wanted: Notify::new(),
            wanted: AtomicU64::new(0),
            sites: Mutex::default(),
            careful_through,
            seed,
            queue: Mutex::new(queue),
            generic: Default::default(),
            is_ending: AtomicBool::new(false),
            connections: Mutex::new(0),
            ended: Condvar::new(),
            serial: AtomicU64::new(0),
            snapshots: AtomicU64::new(seed),
            broken_tls: BrokenTls::default(),
            tls_counts: TlsCounts::default(),
            operator: OperatorRequests::default(),
            unreachable: AtomicUsize::new(0),
        }
    }

    /// The entry of a message.
    pub fn entry(&self, message: Outgoing) -> Entry {
        let Outgoing {
            sender,
            forwarded,
            is_8bit,
            smtputf8,
            ret,
            envid,
            tenant,
            campaign,
            pool,
            hold_secs,
            expires_secs,
            recipients,
        } = message;
        let now = self.time.now();
        let at = |secs: Secs| if secs == 0 { 0 } else { now.saturating_add(secs) };
        let queued = Queued {
            received: now,
            not_before: at(hold_secs),
            expires: at(expires_secs),
            sender,
            forwarded,
            is_8bit,
            smtputf8,
            ret,
            envid,
            tenant,
            campaign,
            pool,
            recipients,
        };
        let payload = QueueEntry::Queued(queued).encode().into();
        Entry { stream: self.stream, needs_body: true, payload }
    }

    /// Lock it after a site, never before.
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("the queue")
    }

    pub fn set_resolver(&self, resolver: Arc<Resolver>) {
        self.routes.set_resolver(resolver);
        self.ahead.forget();
        // New routes: queues being routed by the old ones are routed again.
        self.divert();
    }

    /// The address map for mail that leaves, if there is one. Takes a lock only then.
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
        self.sites.lock().expect("the sites").values().for_each(|site| site.state().idle.wake_all());
    }

    pub fn connections(&self) -> usize {
        *self.connections.lock().expect("the connections")
    }

    /// Waits until no connection is left. Blocks.
    pub fn wait_for_connections(&self, deadline: std::time::Instant) {
        let mut connections = self.connections.lock().expect("the connections");
        while *connections > 0 {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return;
            }
            connections = self.ended.wait_timeout(connections, left).expect("the connections").0;
        }
    }

    /// Starts a connection that its site has counted.
    pub fn connect(self: &Arc<Self>, site: &Arc<Site>, admitted: Admitted) {
        *self.connections.lock().expect("the connections") += 1;
        let seed = mix(self.seed ^ mix(self.serial.fetch_add(1, Ordering::Relaxed)));
        self.runtime.spawn(connect(self.clone(), site.clone(), admitted, seed));
    }

    /// Notes the end of a connection's task, and serves the rest of its site's mail.
    pub fn connection_ended(self: &Arc<Self>, site: &Arc<Site>) {
        *self.connections.lock().expect("the connections") -= 1;
        self.ended.notify_all();
        self.serve_waiting_sites();
        self.serve(site);
    }

    /// Has a connection serve a site's waiting mail, if there is any.
    pub fn serve(self: &Arc<Self>, site: &Arc<Site>) {
        self.serve_with(site, |state| self.most_connections(site, state));
        // If there is room again since the site was queued.
        self.serve_waiting_sites();
    }

    /// `most`: connections that the site may have.
    pub fn serve_with(self: &Arc<Self>, site: &Arc<Site>, most: impl FnOnce(&mut State) -> usize) {
        if self.is_ending() || !self.outcomes.recorder.budget.may_begin() {
            return;
        }
        let wanted = {
            let mut state = site.state();
            if state.is_retired || !site.source.is_usable() || !self.queue().has_waiting(state.ready) {
                return;
            }
            if !state.may_send(site, &self.shaper.alarm) {
                return;
            }
            // It would wait for a connection that it does not make.
            if state.standing.is_paused(tokio::time::Instant::now()) {
                state.idle.wake_latest();
                return;
            }
            let most = most(&mut state);
            state.wanted(site, most, &self.shaper.alarm)
        };
        if let Wanted::Connect(admitted) = wanted {
            self.connect(site, admitted);
        }
    }

    pub fn observe_site(&self, state: &SiteState<'_>) {
        match state {
            SiteState::Unreachable { pauses: 1, .. } => self.unreachable.fetch_add(1, Ordering::Relaxed),
            SiteState::Unreachable { .. } => self.unreachable.load(Ordering::Relaxed),
            SiteState::Reached { .. } => self.unreachable.fetch_sub(1, Ordering::Relaxed),
        };
        if let Some(observer) = &self.config.observer {
            observer.site(state);
        }
    }

    pub fn warn(&self, batch: Lsn, what: &str) {
        if let Some(observer) = &self.config.observer {
            observer.warn(batch, what);
        }
    }

    /// Ends attempts without a report.
    pub fn finish(self: &Arc<Self>, outcomes: Vec<(Key, Outcome)>) {
        let changes: Vec<Change> = {
            let mut queue = self.queue();
            outcomes.into_iter().filter_map(|(key, outcome)| queue.finish(key, outcome)).collect()
        };
        self.record(changes);
    }

    /// Puts back a transaction that nobody was told of.
    pub fn untried(self: &Arc<Self>, transaction: &Transaction) {
        self.finish(keys_of(transaction).map(|key| (key, Outcome::Untried)).collect());
    }

    pub fn record(self: &Arc<Self>, changes: Vec<Change>) {
        self.record_told(changes.into_iter().map(|change| (change, None)).collect());
    }

    pub fn record_told(self: &Arc<Self>, changes: Vec<(Change, Option<Attempt>)>) {
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

    fn advance_wanted(&self, through: Lsn) {
        self.wanted.fetch_max(through.get(), Ordering::AcqRel);
        self.room_wanted.notify_one();
    }
}
