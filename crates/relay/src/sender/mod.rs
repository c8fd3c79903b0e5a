//! The relay: takes messages from a spool's stream `queue` and sends them to the hosts responsible for them.
//!
//! [`Relay::open`] restores the queue and attaches to the stream. A message enters by [`Relay::entry`], in the batch
//! that keeps it. The path of a message:
//!
//! ```text
//! spool ─published─► Queue ─unrouted─► DNS ─route─► ready queue of a site ─► connections ─fates─► OutcomeRecorder ─changes─► spool
//!   │                                                                            ▲
//!   └───────── body and envelope: from memory, else from the spool ──────────────┘
//! ```
//!
//! No part of a message leaves before its batch is durable, and a recipient is settled only once that is durable. After
//! a crash in between, the next hop gets the message once more: the only duplicate.
mod ahead;
mod automation;
mod backlog;
mod bounces;
mod bounces_to_follow;
mod broken_tls;
mod careful;
mod config;
mod connection;
mod connection_sharing;
mod control;
mod count;
mod destination;
mod dial;
mod dispatch;
mod ended;
mod explain;
mod gather;
mod idle;
mod last_words;
mod look;
mod maps;
mod messages;
mod mta_sts;
mod notices;
mod observer;
mod operator;
mod outcomes;
mod preview;
mod queue_limit;
mod ranking;
mod record;
mod replies;
mod reuse;
mod round;
mod route;
mod route_section;
mod route_table;
mod router;
mod routing;
mod section;
mod shape;
mod shaping;
mod shared;
mod site;
mod sites;
mod snapshots;
mod source;
mod source_section;
mod standing;
mod status;
mod summary;
mod suppress;
mod tell;
mod tenants;
#[cfg(test)]
mod test_relay;
mod tls_counts;
mod traffic;
mod transfer;
mod unrouted;
mod warm_up;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use posthaste_consumer::{
    AttachedStream, BudgetGate, ConsumerRuntime, NewRuntime, ReplayedEntry, StreamHandle, StreamOpenError, StreamState,
};
use posthaste_message::rewrite::AddressMap;
use posthaste_notify::dsn::Wording;
use posthaste_spool::{Damage, Entry, Lsn, SnapshotReader, Spool};

pub use ahead::Ahead;
pub use bounces::{
    BounceFiles, BounceSection, Bounces, BouncesError, Classes, ReturnPathSection, SignedPaths, wall_secs,
};
pub use config::{Config, Delivering, Notice, Notifier, Witnesses};
pub use control::{Acted, ControlError, Filter, Waiting};
pub use count::Count;
pub use explain::{OfMail, UnknownName};
pub use maps::{MapsSection, Pairs, RecipientsSection, Users};
pub use mta_sts::{MtaSts, MtaStsError};
pub use notices::{NoticeSection, Notices};
pub use observer::{
    ActedOn, Attempt, AttemptResult, By, Observer, QueueLimitState, RecordingState, SiteState, Stats, TlsFailure,
};
pub use preview::{
    HopPreview, HostPreview, HostSettings, MtaStsPreview, PreviewOf, RoutePreview, SourcePreview, TlsPreview,
};
pub use queue_limit::{QueueLimitNow, QueueLimits};
pub use ranking::Ranking;
pub use route::{Route, RouteTls, TlsRule};
pub use route_section::{Hosts, RouteEncryption, RouteError, RouteSection};
pub use routing::Routing;
pub use section::{EightBitMail, Section, SrsSection};
pub use source::{Pool, Source};
pub use source_section::{PoolSection, SourceSection, TlsSection, WarmUpSection};
pub use summary::{CountBy, Standing};
pub use tenants::TenantSection;
pub use transfer::{Exported, ExportedCount, ExportedRecipient, Import, ImportError};
pub use warm_up::WarmUp;

use posthaste_dns::Resolver;
use posthaste_queue::entry::Forwarded;
use posthaste_queue::{Queue, QueueEntry, QueuedRecipient, RestoreError, Ret, Schedules, Secs};
use record::Time;
use replies::Replies;
use shared::{Parts, Shared};

/// TLS for hosts that offer it, without verifying them (RFC 7435): for [`Config::tls`].
///
/// # Errors
/// Opening fails without a certificate library.
pub fn opportunistic_tls() -> Result<Arc<rustls::ClientConfig>, posthaste_net::tls::TlsError> {
    posthaste_net::tls::client_config(&posthaste_net::tls::TlsTrust::Anything)
}

/// The name of the queue's stream.
pub const STREAM: &str = "queue";

/// An open relay. Clones share it.
#[derive(Clone)]
pub struct Relay(Arc<Opened>);

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("config", &self.0.shared.config).finish_non_exhaustive()
    }
}

/// State of the last handle; dropping it ends the relay.
struct Opened {
    shared: Arc<Shared>,
    attached: AttachedStream,
    /// Its main task is the dispatcher.
    runtime: ConsumerRuntime,
}

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
    /// RET (RFC 3461 section 4.3).
    pub ret: Option<Ret>,
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

/// Findings of [`Relay::open`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct OpenReport {
    /// Waiting recipients.
    pub recipients: u64,
    /// Recipients held because they were in flight in several crashes.
    pub quarantined: usize,
    /// Unreadable batches.
    pub damaged: Vec<Lsn>,
    /// Missing or damaged snapshots.
    pub unreadable: Vec<Damage>,
    /// The last batch up to which settlements, suspensions, diversions or slow-downs may be lost. `None`: nothing was
    /// lost.
    pub uncertain: Option<Lsn>,
    /// Recipients held because of that: they may have been delivered already. Some were settled since.
    pub uncertain_recipients: u64,
}

/// The part of a relay that is open.
enum Acting {
    /// It sends, while the gate is open.
    Sends(Option<BudgetGate>),
    /// It takes entries and requests, and sends nothing.
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
    pub fn open(spool: Arc<dyn Spool>, config: Config) -> Result<(Self, OpenReport), StreamOpenError> {
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
    ) -> Result<(Self, OpenReport), StreamOpenError> {
        Self::restore(spool, config, Acting::Sends(Some(may_act)))
    }

    /// Restores the queue on a spool that takes no batches here. It only applies entries and keeps snapshots, so a
    /// later [`open`](Self::open) finds little to replay.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open_standby(spool: Arc<dyn Spool>, config: Config) -> Result<(Self, OpenReport), StreamOpenError> {
        Self::restore(spool, config, Acting::Applies)
    }

    /// Restores the queue without sending: for export to another queue, or import from one.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open_idle(spool: Arc<dyn Spool>, config: Config) -> Result<(Self, OpenReport), StreamOpenError> {
        Self::restore(spool, config, Acting::Waits)
    }

    fn restore(spool: Arc<dyn Spool>, config: Config, acting: Acting) -> Result<(Self, OpenReport), StreamOpenError> {
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
        let (unreadable, damaged) = (restored.unreadable, std::mem::take(&mut replayed.damaged));
        let mut report = OpenReport { unreadable, damaged, uncertain, uncertain_recipients, ..OpenReport::default() };
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
        let (handle, watch) = (runtime.handle().clone(), runtime.watch().clone());
        let stream = stream.id();
        let gate = match &acting {
            Acting::Sends(gate) => gate.clone(),
            Acting::Waits | Acting::Applies => None,
        };
        let parts = Parts { spool, stream, config, queue, replies, time, runtime: handle, watch, seed, gate };
        let shared = Arc::new(Shared::new(parts));
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

    /// The entry of a message for the batch that keeps it.
    pub fn entry(&self, message: Outgoing) -> Entry {
        self.0.shared.entry(message)
    }

    /// Replaces routes, sources and pools. Waiting mail is routed anew; connections end after their transactions.
    pub fn set_routing(&self, routing: &Routing) {
        self.0.shared.set_routing(routing);
    }

    /// Replaces the resolver of mail hosts. Waiting mail is routed anew; connections go on.
    pub fn set_resolver(&self, resolver: Arc<Resolver>) {
        self.0.shared.set_resolver(resolver);
    }

    /// The resolver in use.
    pub fn resolver(&self) -> Arc<Resolver> {
        self.0.shared.routes.resolver()
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

    /// Converts the queue's time to Unix seconds, by the wall clock as it is set now.
    pub fn wall(&self, secs: Secs) -> i64 {
        self.0.shared.time.wall_clock()(secs)
    }

    /// Counts since opening, and the state of the queue now.
    pub fn stats(&self) -> Stats {
        let shared = &self.0.shared;
        let (recipients, owed_notices) = {
            let queue = shared.queue();
            (queue.recipients(), queue.owed_notices())
        };
        let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            delivered: count(&shared.outcomes.delivered),
            deferred: count(&shared.outcomes.deferred),
            failed: count(&shared.outcomes.failed),
            recipients,
            owed_notices,
            connections: shared.sites.connections(),
            idle: shared.sites.reuse.idle(),
            unreachable: shared.sites.unreachable(),
            looked_at: shared.operator.looked_at(),
            now: shared.time.now(),
        }
    }

    /// A sum over the recipients that are not settled: equal on all members of a shard whose relays have applied the same entries.
    pub fn queue_digest(&self) -> u64 {
        self.0.shared.queue().digest()
    }

    /// Sessions since opening, including failures for lack of TLS: the demand on TLS, the result, the count.
    pub fn tls_counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.0.shared.sites.tls_counts.read()
    }

    /// MTA-STS policies fetched since opening, and fetches that failed.
    pub fn policy_fetches(&self) -> (u64, u64) {
        self.0.shared.config.mta_sts.as_ref().map_or((0, 0), |mta_sts| mta_sts.policies.counts())
    }
}

impl Opened {
    fn end_by(&self, deadline: Instant) {
        let Some(ending) = self.runtime.begin_end() else { return };
        let shared = &self.shared;
        shared.begin_end();
        shared.sites.wait_for_connections(deadline);
        let recorder = &shared.outcomes.recorder;
        recorder.wait_until(deadline);
        let left = recorder.budget.wait_recorded(deadline, || recorder.retry(shared.time.now()));
        // A poisoned spool has been reported already.
        if left > 0 && !recorder.budget.is_closed() {
            let what =
                format!("{left} outcomes are not recorded at the end: the next start sends those messages again");
            shared.warn(shared.spool.stats().published, &what);
        }
        shared.outcomes.notices_to_make.end(deadline);
        shared.flush_bounces();
        self.attached.detach();
        if let Err(error) = shared.advance() {
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
    let unknown =
        |error: RestoreError| StreamOpenError::State { what: "the snapshot of the queue".into(), error: error.into() };
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
