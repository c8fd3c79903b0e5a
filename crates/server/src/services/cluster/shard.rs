//! The relay of a shard: applies entries on a standby, and sends for the owner.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use posthaste_cluster::{Digest, Lease, LogPosition, ShardService};
use posthaste_consumer::StreamOpenError;
use posthaste_intake::{Destination, Intake};
use posthaste_relay::sender::{Config as RelayConfig, Delivering, Notifier, OutgoingNotice, Relay};
use posthaste_spool::{Spool, StreamError};

use super::health::QueueHealth;
use super::lending::{Lending, ShardLending};
use crate::lifecycle::Alive;
use crate::receive::cluster::Begun;
use crate::receive::handler::WeakReceiver;
use crate::receive::relay_slot::RelaySlot;
use crate::receive::shards::ShardQueue;
use crate::services::relay::tell_opened;

/// Present settings of all relays of this node.
pub(super) struct RelaySettings {
    pub config: RelayConfig,
    pub section: posthaste_config::Relay,
}

/// The relay of a shard, as the node's thread and the server see it.
pub(super) struct ShardRelay {
    pub state: Arc<ShardState>,
    orders: Sender<Order>,
}

/// The state of a shard's relay.
pub(super) struct ShardState {
    /// The lease, while the owner's relay is open.
    lease: Mutex<Option<Lease>>,
    queue: Arc<ShardQueue>,
    health: Mutex<QueueHealth>,
    /// The last digest of the queue.
    digest: Mutex<Option<Digest>>,
}

/// The parts of a shard's relay.
pub(super) struct ShardParts {
    pub queue: Arc<ShardQueue>,
    pub spool: Arc<dyn Spool>,
    /// The directory of the local spool.
    pub dir: PathBuf,
    pub settings: Arc<Mutex<RelaySettings>>,
    pub notifier: Arc<dyn Notifier>,
    /// Lends and borrows tokens of limits. `None` with a single shard.
    pub lending: Option<Arc<Lending>>,
}

/// Stops the server when a panic drops it, or when it is [rung](Self::ring). Clones share it.
#[derive(Clone)]
pub(super) struct Alarm(Arc<Mutex<Option<Alive>>>);

impl Alarm {
    pub fn new(alive: Alive) -> Self {
        Self(Arc::new(Mutex::new(Some(alive))))
    }

    pub fn ring(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ring();
        }
    }
}

enum Order {
    Promote(Lease),
    Release(Box<dyn FnOnce() + Send>),
    Demote,
    End(Instant, Sender<()>),
}

impl ShardState {
    fn new(queue: Arc<ShardQueue>) -> Self {
        let (lease, health, digest) = Default::default();
        Self { lease, queue, health, digest }
    }

    /// Begins a transaction, if the owner's relay is open and its lease allows it.
    pub fn begin(&self) -> Option<Begun> {
        let begun = self.lease.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.begin()?;
        Some(Begun::new(self.queue.clone(), Box::new(begun)))
    }

    /// True if a transaction may begin once the engine answers. The owner's relay must be open and its lease not given
    /// up, and the engine silent for less than `patience`.
    pub fn may_begin_within(&self, patience: Duration) -> bool {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.as_ref().is_some_and(|lease| lease.may_begin_within(patience))
    }

    /// Recipients that wait, if a relay is open.
    pub fn queued(&self) -> Option<u64> {
        Some(self.opened()?.stats().recipients)
    }

    /// The open relay, if any.
    pub fn opened(&self) -> Option<Relay> {
        self.queue.owner().opened().or_else(|| self.queue.standby().opened())
    }

    /// Why the queue could not be opened here.
    pub fn queue_error(&self) -> Option<String> {
        self.health().error().map(str::to_owned)
    }

    fn health(&self) -> MutexGuard<'_, QueueHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_lease(&self, lease: Option<Lease>) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }
}

impl ShardRelay {
    /// Opens the relay of a standby on a thread of its own. A panic of that thread rings the alarm.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(parts: ShardParts, alarm: Alarm) -> std::io::Result<Self> {
        let state = Arc::new(ShardState::new(parts.queue.clone()));
        let (orders, received) = channel();
        let worker = Worker { state: state.clone(), parts, role: Role::Standby, lent: None, is_told: false, alarm };
        std::thread::Builder::new().name("cluster-relay".to_owned()).spawn(move || worker.run(&received))?;
        Ok(Self { state, orders })
    }

    /// Ends the relay by the deadline. Blocks.
    pub fn end_by(&self, deadline: Instant) {
        let (tell, told) = channel();
        self.order(Order::End(deadline, tell));
        let _ = told.recv();
    }

    /// Sends an order; has no effect after the end.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }
}

impl ShardService for ShardRelay {
    fn promote(&self, lease: Lease) {
        self.order(Order::Promote(lease));
    }

    fn release(&self, done: Box<dyn FnOnce() + Send>) {
        self.order(Order::Release(done));
    }

    fn demote(&self) {
        self.state.set_lease(None);
        self.order(Order::Demote);
    }

    /// Reports a digest once the relay has applied exactly the earlier entries. A relay being opened has not, and
    /// reports none.
    fn digest_at(&self, position: LogPosition) {
        let digest = self.state.opened().map(|relay| Digest { position, sum: relay.queue_digest() });
        *self.state.digest.lock().unwrap_or_else(PoisonError::into_inner) = digest;
    }

    fn digest(&self) -> Option<Digest> {
        *self.state.digest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_failed(&self) -> bool {
        self.state.health().is_hopeless()
    }
}

enum Role {
    Standby,
    Owner(Lease),
    /// Released as owner; waits to become a standby.
    Released,
}

struct Worker {
    parts: ShardParts,
    state: Arc<ShardState>,
    role: Role,
    /// Of the owner's relay.
    lent: Option<ShardLending>,
    /// True if the failed opening was logged.
    is_told: bool,
    alarm: Alarm,
}

impl Worker {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            if !self.is_open() {
                self.open();
            }
            match orders.recv_timeout(LOOK_EVERY) {
                Ok(Order::Promote(lease)) => {
                    self.close(Instant::now());
                    self.role = Role::Owner(lease);
                }
                Ok(Order::Release(done)) => {
                    self.close(Instant::now() + RELEASE);
                    self.role = Role::Released;
                    done();
                }
                Ok(Order::Demote) => {
                    self.close(Instant::now());
                    self.role = Role::Standby;
                }
                Ok(Order::End(deadline, _told)) => return self.close(deadline),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return self.close(Instant::now()),
            }
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.role, Role::Released) || self.state.opened().is_some()
    }

    /// Raises an alarm if the relay has ended by itself, which means a panic.
    fn look(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        if self.state.opened().is_some_and(|relay| relay.poll_failed(&mut cx).is_ready()) {
            self.alarm.ring();
        }
    }

    /// Tries to open the relay of its role.
    fn open(&mut self) {
        let (config, generic) = {
            let settings = self.parts.settings.lock().unwrap_or_else(PoisonError::into_inner);
            (settings.config.clone(), settings.section.maps.generic.map())
        };
        let spool = self.parts.spool.clone();
        let opened = match &self.role {
            Role::Released => return,
            Role::Standby => {
                let config = RelayConfig { memory_bytes: 0, observer: None, witnesses: None, ..config };
                Relay::open_standby(spool, config)
            }
            Role::Owner(lease) => {
                let lease = lease.clone();
                let notifier = self.parts.notifier.clone();
                let of_home = lease.clone();
                let begin = |lending: &Arc<Lending>| lending.begin(lease.shard(), Arc::new(move || of_home.may_act()));
                self.lent = self.parts.lending.as_ref().map(begin);
                let lender = self.lent.as_ref().map(ShardLending::lender);
                // The owner before may have crashed.
                let config = RelayConfig { has_crashed: true, notifier, lender, ..config };
                Relay::open_while(spool, config, Arc::new(move || lease.may_act()))
            }
        };
        match opened {
            Ok((relay, report)) => {
                self.is_told = false;
                self.state.health().note_open(matches!(self.role, Role::Owner(_)));
                relay.set_generic(generic);
                if let Role::Owner(lease) = &self.role {
                    tell_opened(&report, &self.parts.dir);
                    self.state.queue.owner().set(Some(relay));
                    self.state.set_lease(Some(lease.clone()));
                } else {
                    self.state.queue.standby().set(Some(relay));
                }
            }
            Err(error) => {
                self.lent = None;
                self.tell(&error);
            }
        }
    }

    /// A standby has no queue before its owner has made one.
    fn tell(&mut self, error: &StreamOpenError) {
        let is_new =
            matches!(self.role, Role::Standby) && matches!(error, StreamOpenError::Stream(StreamError::Unknown(_)));
        if is_new {
            return;
        }
        let (shard, error) = (self.parts.queue.number(), error.to_string());
        let as_owner = matches!(self.role, Role::Owner(_));
        if self.state.health().note_failed(as_owner, &error) && as_owner {
            tracing::error!(shard, error, "cannot open the queue of this shard: another member takes over");
        } else if !std::mem::replace(&mut self.is_told, true) {
            tracing::error!(shard, error, "cannot open the queue of this shard; retrying");
        }
    }

    fn close(&mut self, deadline: Instant) {
        self.is_told = false;
        self.state.set_lease(None);
        for slot in [&**self.state.queue.owner(), self.state.queue.standby()] {
            if let Some(relay) = slot.opened() {
                slot.set(None);
                relay.end_by(deadline);
            }
        }
        self.lent = None;
    }
}

/// Delivers notifications by the shard of the message that they are about.
pub(super) struct ShardSenders {
    receiver: WeakReceiver,
    intake: Intake,
    destinations: [Arc<dyn Destination>; 1],
}

impl ShardSenders {
    pub fn new(receiver: WeakReceiver, intake: Intake, slot: Arc<RelaySlot>) -> Self {
        Self { receiver, intake, destinations: [slot] }
    }
}

impl Notifier for ShardSenders {
    fn knows(&self, sender: &str) -> bool {
        self.receiver.upgrade().is_none_or(|receiver| receiver.knows(sender))
    }

    fn deliver(&self, notice: OutgoingNotice) -> Delivering {
        let (receiver, intake) = (self.receiver.clone(), self.intake.clone());
        let destinations = self.destinations.clone();
        Box::pin(async move {
            let receiver = receiver.upgrade().ok_or("the server ends")?;
            let by = (&intake, &destinations[..]);
            receiver.notify_by(by, &notice.to, notice.written, Some(notice.change), Some(notice.remote)).await
        })
    }
}

/// Interval between attempts to open a relay, and between checks of an open one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time for sending at a planned hand-over, after its transactions have ended.
const RELEASE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use posthaste_config::Config;
    use posthaste_queue::entry::QueueEntry;
    use posthaste_spool::FileSpool;

    use super::*;
    use crate::control::requests::closed::{ClosedQueue, queued};
    use crate::services::opening::intake_config;

    #[test]
    fn the_digest_is_that_of_the_queue_at_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let config = |name: &str| {
            let text = format!("[storage]\ndata = {:?}\n", dir.path().join(name));
            Config::parse(Path::new("x"), &text).unwrap()
        };
        let (queue, _) =
            ClosedQueue::filled(&config("queue"), |append| append(QueueEntry::Queued(queued(1_000_000, 3))));
        let of_intake = config("intake");
        std::fs::create_dir_all(&of_intake.storage.spool).unwrap();
        let (spool, _) = FileSpool::open(&of_intake.storage.spool, (&of_intake.storage).into()).unwrap();
        let intake = Intake::new(Arc::new(spool), intake_config(&of_intake));
        let state = Arc::new(ShardState::new(Arc::new(ShardQueue::new(3, intake, Arc::default(), Vec::new()))));
        let relay = ShardRelay { state: state.clone(), orders: channel().0 };
        relay.digest_at(LogPosition::new(6));
        assert_eq!(relay.digest(), None, "it is not open");
        state.queue.standby().set(Some(queue.relay().clone()));
        relay.digest_at(LogPosition::new(7));
        assert_eq!(relay.digest(), Some(Digest { position: LogPosition::new(7), sum: queue.relay().queue_digest() }));
        assert_ne!(queue.relay().queue_digest(), 0);
        state.queue.standby().set(None);
        relay.digest_at(LogPosition::new(8));
        assert_eq!(relay.digest(), None);
    }
}
