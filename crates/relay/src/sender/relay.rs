//! The relay for its owner: opened on a spool, changed while it runs, and ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste_consumer::{
    AttachedStream, BudgetGate, ConsumerRuntime, NewRuntime, ReplayedEntry, StreamHandle, StreamOpenError, StreamState,
};
use posthaste_message::address::Address;
use posthaste_message::rewrite::AddressMap;
use posthaste_notify::dsn::Wording;
use posthaste_spool::{Damage, Entry, Lsn, SnapshotReader, Spool};

use super::ahead::Ahead;
use super::ask_ahead;
use super::bounces::Bounces;
use super::config::Config;
use super::notices::Notices;
use super::observer::RelayStats;
use super::queue_limit::{QueueLimitNow, QueueLimits};
use super::record::Time;
use super::replies::Replies;
use super::reroute::{set_resolver, set_routing};
use super::routing::Routing;
use super::shaping::{self, set_shaping};
use super::shared::{Parts, Shared};
use super::snapshots::{self, advance};
use super::suppress::flush_bounces;
use super::{dispatch, gather, round};
use posthaste_dns::Resolver;
use posthaste_queue::{Queue, QueueEntry, QueueRestoreError, Queued, Schedules, Secs};
use posthaste_shaping::ShapingRules;

/// The name of the queue's stream.
pub const STREAM: &str = "queue";

/// An open relay. Clones share it.
#[derive(Clone)]
pub struct Relay(pub(super) Arc<Opened>);

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("host_name", &self.0.shared.config.host_name).finish_non_exhaustive()
    }
}

/// State of the last handle; dropping it ends the relay.
pub(super) struct Opened {
    pub shared: Arc<Shared>,
    attached: AttachedStream,
    /// The runtime, whose main task is the dispatcher.
    pub runtime: ConsumerRuntime,
}

/// Findings of [`Relay::open`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RelayOpenReport {
    /// Waiting recipients.
    pub recipients: u64,
    /// Recipients held because they were in flight during several crashes.
    pub quarantined: usize,
    /// Unreadable batches.
    pub damaged: Vec<Lsn>,
    /// Missing or damaged snapshots.
    pub unreadable: Vec<Damage>,
    /// The last batch up to which settlements, suspensions, diversions or slow-downs may be lost. `None`: nothing was
    /// lost.
    pub uncertain: Option<Lsn>,
    /// Recipients held because of `uncertain`: they may have been delivered. Some may have been settled since.
    pub uncertain_recipients: u64,
}

/// Mode of an open relay.
enum Acting {
    /// Sends mail, while the gate is open.
    Sends(Option<BudgetGate>),
    /// It accepts entries and requests, but sends nothing.
    Waits,
    /// It applies the entries of another relay.
    Applies,
}

/// The queue while its entries are applied.
struct Restoring {
    queue: Queue,
    replies: Replies,
    uncertain: Option<Lsn>,
    uncertain_recipients: u64,
}

impl StreamState for Restoring {
    type Error = StreamOpenError;

    fn apply(&mut self, ReplayedEntry { lsn, payload, .. }: ReplayedEntry<'_>) -> Result<(), StreamOpenError> {
        let entry = QueueEntry::decode(payload).map_err(|error| StreamOpenError::State {
            what: format!("batch {lsn} of the queue"),
            error: error.into(),
        })?;
        self.queue.apply(lsn, &entry);
        self.replies.apply(lsn, &entry);
        Ok(())
    }

    fn uncertain(&mut self, stream: &StreamHandle, through: Lsn) {
        self.uncertain = Some(through);
        let needs = |message| stream.spool().needs_body(stream.id(), message);
        self.uncertain_recipients = self.queue.make_uncertain(needs);
    }
}

impl Relay {
    /// Restores the queue and starts to send.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open(spool: Arc<dyn Spool>, config: Config) -> Result<(Self, RelayOpenReport), StreamOpenError> {
        Self::restore(spool, config, Acting::Sends(None))
    }

    /// Like [`open`](Self::open), for an owner whose right to act may end: nothing is sent while `may_act` is false.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open_while(
        spool: Arc<dyn Spool>,
        config: Config,
        may_act: BudgetGate,
    ) -> Result<(Self, RelayOpenReport), StreamOpenError> {
        Self::restore(spool, config, Acting::Sends(Some(may_act)))
    }

    /// Restores the queue on a spool that takes no batches here. It only applies entries and keeps snapshots, so a
    /// later [`open`](Self::open) finds little to replay.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open_standby(spool: Arc<dyn Spool>, config: Config) -> Result<(Self, RelayOpenReport), StreamOpenError> {
        Self::restore(spool, config, Acting::Applies)
    }

    /// Restores the queue without sending: for export to another queue, or import from one.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open_idle(spool: Arc<dyn Spool>, config: Config) -> Result<(Self, RelayOpenReport), StreamOpenError> {
        Self::restore(spool, config, Acting::Waits)
    }

    fn restore(
        spool: Arc<dyn Spool>,
        config: Config,
        acting: Acting,
    ) -> Result<(Self, RelayOpenReport), StreamOpenError> {
        let stream = StreamHandle::register(spool.clone(), STREAM)?;
        let seed = seed();
        let restored = spool.restore(stream.id())?;
        let (queue, replies) = match restored.snapshot {
            Some(from) => read_snapshot(from, config.schedules.clone(), seed)?,
            None => (Queue::new(config.schedules.clone(), seed), Replies::default()),
        };
        let mut restoring = Restoring { queue, replies, uncertain: None, uncertain_recipients: 0 };
        let mut replayed = stream.clone().replay(&mut restoring)?;
        let Restoring { mut queue, replies, uncertain, uncertain_recipients } = restoring;
        let unreadable = restored.unreadable;
        let damaged = std::mem::take(&mut replayed.damaged);
        let mut report =
            RelayOpenReport { unreadable, damaged, uncertain, uncertain_recipients, ..RelayOpenReport::default() };
        // The next snapshot records the uncertain range, too.
        queue.pass(stream.position().0.max(uncertain.unwrap_or_default()));
        replies.retain(|key| queue.show(key).is_some() || queue.is_owed(key));
        let time = Time::start(queue.recorded());
        let held = match acting {
            Acting::Applies => {
                queue.keep_owing();
                Vec::new()
            }
            Acting::Sends(_) | Acting::Waits => queue.start(time.now()),
        };
        (report.recipients, report.quarantined) = (queue.recipients(), held.len());
        let runtime =
            NewRuntime::new("relay", BLOCKING_THREADS_MAX).map_err(StreamOpenError::io("threads of the queue"))?;
        let handle = runtime.handle().clone();
        let watch = runtime.watch().clone();
        let stream = stream.id();
        let gate = match &acting {
            Acting::Sends(gate) => gate.clone(),
            Acting::Waits | Acting::Applies => None,
        };
        let shared = Arc::new(Shared::new(Parts {
            spool,
            stream,
            config,
            queue,
            replies,
            time,
            runtime: handle,
            watch,
            seed,
            gate,
            start_connection: round::start,
        }));
        let attached = replayed.attach(shared.clone())?;
        shared.record(held);
        // Connections begin only with the dispatcher.
        let runtime = match acting {
            Acting::Sends(_) => {
                runtime.handle().spawn(shaping::run(shared.clone()));
                runtime.handle().spawn(snapshots::run(shared.clone()));
                shared.outcomes.notices_to_make.begin();
                runtime.handle().spawn(gather::run(shared.clone()));
                runtime.run(dispatch::run(shared.clone()))
            }
            Acting::Applies => runtime.run(snapshots::run(shared.clone())),
            Acting::Waits => runtime.run(std::future::pending()),
        };
        Ok((Relay(Arc::new(Opened { shared, attached, runtime })), report))
    }

    /// The entry of a message for the batch that keeps it. It counts as received now.
    pub fn entry(&self, message: Queued) -> Entry {
        self.0.shared.entry(message)
    }

    /// Time of the queue's clock, by which a message is held and expires.
    pub fn now(&self) -> Secs {
        self.0.shared.time.now()
    }

    /// Replaces routes, sources and pools. Waiting mail is routed anew; connections end after their transactions.
    pub fn set_routing(&self, routing: &Routing) {
        set_routing(&self.0.shared, routing);
    }

    /// Replaces the resolver of mail hosts. Waiting mail is routed anew; connections continue.
    pub fn set_resolver(&self, resolver: Arc<Resolver>) {
        set_resolver(&self.0.shared, resolver);
    }

    /// The resolver in use.
    pub fn resolver(&self) -> Arc<Resolver> {
        self.0.shared.routes.resolver()
    }

    /// Replaces the limits. Counts stay.
    pub fn set_shaping(&self, rules: Arc<ShapingRules>) {
        set_shaping(&self.0.shared, rules);
    }

    /// Asks the next hop for an address, as for mail without a tenant, if it accepts mail for the address. Answers
    /// within half a minute. Dropping the future ends the question.
    pub async fn ask_ahead(&self, address: &Address) -> Ahead {
        ask_ahead::ask(&self.0.shared, address).await
    }

    /// True if `recipients` more fit into the queue; if not, reply 452 4.3.1.
    pub fn has_room(&self, recipients: u64) -> bool {
        let open = self.0.shared.queue().filling();
        self.0.shared.queue_limits.has_room(open, recipients)
    }

    /// True if a tenant's part of the queue has room for `recipients` more; if not, reply 452 4.3.1.
    pub fn has_room_for(&self, tenant: &str, recipients: u64) -> bool {
        let open = || self.0.shared.queue().recipients_of_tenant(tenant);
        self.0.shared.queue_limits.has_room_for(tenant, open, recipients)
    }

    /// Replaces the limits of waiting mail.
    pub fn set_queue_limits(&self, limits: &QueueLimits) {
        self.0.shared.queue_limits.set(limits);
    }

    /// The whole queue, then the tenants that have a limit, by name.
    pub fn queue_limits(&self) -> Vec<QueueLimitNow> {
        let shared = &self.0.shared;
        let filling = shared.queue().filling();
        shared.queue_limits.now(filling, |tenant| shared.queue().recipients_of_tenant(tenant))
    }

    /// Replaces the settings of notices to senders.
    pub fn set_notices(&self, notices: Notices) {
        self.0.shared.outcomes.notices.set(notices);
    }

    /// Wording of notifications.
    pub fn wording(&self) -> Arc<Wording> {
        self.0.shared.outcomes.notices.wording()
    }

    /// Bounce handling.
    pub fn bounces(&self) -> &Bounces {
        &self.0.shared.config.bounces
    }

    /// Replaces the address map for mail that leaves, in envelopes and headers. Notices to senders show the original
    /// addresses.
    pub fn set_generic(&self, map: AddressMap) {
        self.0.shared.set_generic(map);
    }

    /// Converts the queue's time to Unix seconds, by the present wall clock.
    pub fn wall(&self, secs: Secs) -> i64 {
        self.0.shared.time.wall_clock()(secs)
    }

    /// Counts since opening, and the state of the queue now.
    pub fn stats(&self) -> RelayStats {
        let shared = &self.0.shared;
        let (recipients, owed_notices) = {
            let queue = shared.queue();
            (queue.recipients(), queue.owed_notices())
        };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RelayStats {
            delivered: count(&shared.outcomes.delivered),
            deferred: count(&shared.outcomes.deferred),
            failed: count(&shared.outcomes.failed),
            recipients,
            owed_notices,
            connections: shared.sites.sharing.open(),
            idle: shared.sites.reuse.idle(),
            unreachable: shared.sites.unreachable(),
            looked_at: shared.operator.looked_at(),
            now: shared.time.now(),
        }
    }

    /// A checksum over the unsettled recipients: equal on all members of a shard whose relays have applied the same
    /// entries.
    pub fn queue_digest(&self) -> u64 {
        self.0.shared.queue().digest()
    }

    /// Sessions since the opening, including failures for lack of TLS: required TLS, result and count.
    pub fn tls_counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.0.shared.sites.tls_counts.read()
    }

    /// MTA-STS policies fetched since opening, and fetches that failed.
    pub fn policy_fetches(&self) -> (u64, u64) {
        self.0.shared.routes.policy_fetches()
    }
}

impl Opened {
    pub fn end_by(&self, deadline: Instant) {
        let Some(ending) = self.runtime.begin_end() else { return };
        let shared = &self.shared;
        shared.begin_end();
        shared.sites.sharing.wait_until_none(deadline);
        let recorder = &shared.outcomes.recorder;
        recorder.wait_until(deadline);
        let left = recorder.budget.wait_recorded(deadline, || recorder.retry(shared.time.now()));
        // A poisoned spool has been reported already.
        if left > 0 && !recorder.budget.is_closed() {
            let what =
                format!("{left} outcomes were not recorded before the stop: the next start sends those messages again");
            shared.warn(shared.spool.stats().published, &what);
        }
        shared.outcomes.notices_to_make.end(deadline);
        flush_bounces(shared);
        self.attached.detach();
        if let Err(error) = advance(shared) {
            shared.warn(
                shared.spool.stats().published,
                &format!("the last snapshot of the queue cannot be written, so the next start replays more: {error}"),
            );
        }
        ending.shut_down();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.end_by(Instant::now() + Duration::from_secs(5));
    }
}

fn read_snapshot(
    mut from: SnapshotReader,
    schedules: Schedules,
    seed: u64,
) -> Result<(Queue, Replies), StreamOpenError> {
    let unknown = |error: QueueRestoreError| StreamOpenError::State {
        what: "the snapshot of the queue".into(),
        error: error.into(),
    };
    let queue = Queue::restore(&mut from, schedules, seed).map_err(unknown)?;
    Ok((queue, Replies::read(from).map_err(unknown)?))
}

/// A seed that differs at each opening.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// Threads for reading bodies and writing notifications.
const BLOCKING_THREADS_MAX: usize = 16;
