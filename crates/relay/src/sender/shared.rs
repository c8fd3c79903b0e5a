//! State shared by all tasks of the relay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_consumer::BudgetGate;
use posthaste_message::rewrite::AddressMap;
use posthaste_random::mix;
use posthaste_spool::{Consumer, Entry, Lsn, Published, Spool, StreamId};
use posthaste_watch::Watch;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::Outgoing;
use super::ahead::CallAhead;
use super::config::Config;
use super::messages::Messages;
use super::notices::NoticesInForce;
use super::observer::{Attempt, SiteState};
use super::operator::OperatorRequests;
use super::outcomes::Outcomes;
use super::queue_limit::QueueBounds;
use super::record::{OutcomeRecorder, Time};
use super::replies::Replies;
use super::round::connect;
use super::route_table::RouteTable;
use super::shape::{Base, Shaper};
use super::site::{Admitted, Site, State, Wanted};
use super::sites::Sites;
use super::status::keys_of;
use posthaste_dns::Resolver;
use posthaste_queue::{Change, Key, Outcome, Queue, QueueEntry, Queued, Secs, Transaction};

pub(super) struct Shared {
    pub spool: Arc<dyn Spool>,
    pub stream: StreamId,
    pub config: Config,
    pub messages: Messages,
    pub outcomes: Outcomes,
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
    pub sites: Sites,
    pub routes: RouteTable,
    /// Addresses of mail that leaves; the flag says whether there are any.
    generic: (AtomicBool, Mutex<Arc<AddressMap>>),
    pub seed: u64,
    /// Messages up to here are noted before each attempt.
    pub careful_through: Lsn,
    queue: Mutex<Queue>,
    is_ending: AtomicBool,
    serial: AtomicU64,
    /// Numbers for the names of snapshots.
    pub snapshots: AtomicU64,
    pub operator: OperatorRequests,
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
            sites: Sites::new(config.connections_max),
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
            careful_through,
            seed,
            queue: Mutex::new(queue),
            generic: Default::default(),
            is_ending: AtomicBool::new(false),
            serial: AtomicU64::new(0),
            snapshots: AtomicU64::new(seed),
            operator: OperatorRequests::default(),
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
        self.sites.lock().values().for_each(|site| site.state().idle.wake_all());
    }

    /// Starts a connection that its site has counted.
    pub fn connect(self: &Arc<Self>, site: &Arc<Site>, admitted: Admitted) {
        self.sites.begin_connection();
        let seed = mix(self.seed ^ mix(self.serial.fetch_add(1, Ordering::Relaxed)));
        self.runtime.spawn(connect(self.clone(), site.clone(), admitted, seed));
    }

    /// Notes the end of a connection's task, and serves the rest of its site's mail.
    pub fn connection_ended(self: &Arc<Self>, site: &Arc<Site>) {
        self.sites.end_connection();
        self.serve_waiting_sites();
        self.serve(site);
    }

    /// Has a connection serve a site's waiting mail, if there is any.
    pub fn serve(self: &Arc<Self>, site: &Arc<Site>) {
        self.serve_with(site, |state| self.sites.most_connections(site, state));
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

    /// Gives free connections to the sites that have waited longest and still have mail.
    pub fn serve_waiting_sites(self: &Arc<Self>) {
        while self.sites.sharing.is_waiting()
            && self.sites.has_connection_left()
            && let Some(site) = self.sites.sharing.next()
        {
            site.state().waits_for_connection = false;
            self.serve_with(&site, |_| usize::MAX);
        }
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
