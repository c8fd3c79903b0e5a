//! A spool whose batches are stored in a shard's log before they are in the local spool.

mod as_spool;

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use posthaste_spool::AppendError;

use crate::follower::ShardThread;
use crate::guard::{EngineState, Guard};
use crate::hub::{Failure, Hub, LogProgress};
use crate::keeper::Keeper;
use crate::local::LocalSpool;
use crate::member::Member;
use crate::opening;
use crate::queue::{Ending, Item, Order, Promoted};
use crate::sender::{OwnerIdentity, SenderEnd};
use crate::settings::ReplicatedConfig;
use crate::{LogPosition, ShardLog, ShardOpenError};

/// A member's spool of a shard. The owner acknowledges a batch when the log has it on a quorum and the local spool has
/// it on its disk. A standby applies the log and takes no batches.
///
/// LSNs are those of the cluster: the shard and the number of the batch in it. A batch whose fate the engine leaves
/// open is held until that is decided.
pub struct ReplicatedSpool<L: LocalSpool> {
    hub: Arc<Hub<L>>,
    /// Registers and forgets streams, one at a time.
    registering: Mutex<()>,
    config: ReplicatedConfig,
    writer: Option<JoinHandle<()>>,
    keeper: Option<Keeper>,
    engine: Arc<EngineState>,
    /// Random for each local spool.
    id: u64,
    /// Stops when the spool is dropped.
    _guard: Guard,
}

/// A member's position in the log of its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberPlace {
    /// The log id.
    pub log: u64,
    /// Records up to here are durable in the local spool; a restart needs none of them.
    pub applied: LogPosition,
    /// The number of the last batch.
    pub number: u64,
}

impl<L: LocalSpool> ReplicatedSpool<L> {
    /// Opens the log as its owner: applies the records that the local spool lacks, and appends an `open`. An empty log
    /// is begun. Blocks until the engine has answered.
    ///
    /// # Errors
    /// See [`ShardOpenError`].
    pub fn open(local: L, log: Arc<dyn ShardLog>, config: ReplicatedConfig) -> Result<Self, ShardOpenError> {
        let identity = config.identity;
        let spool = Self::follow(local, log, config)?;
        spool.promote_when(false, identity)?;
        Ok(spool)
    }

    /// Opens the log as a standby: applies it, and takes no batches.
    ///
    /// # Errors
    /// See [`ShardOpenError`]. Records that cannot be applied close the spool later: see [`Spool::poisoned`](posthaste_spool::Spool::poisoned).
    pub fn follow(local: L, log: Arc<dyn ShardLog>, config: ReplicatedConfig) -> Result<Self, ShardOpenError> {
        let wrong = log.check()?;
        if !wrong.is_empty() {
            return Err(ShardOpenError::Settings(wrong));
        }
        let engine = Arc::<EngineState>::default();
        engine.ask_room(&*log);
        let guard = Guard::start(log.clone(), engine.clone(), config.engine_pace)?;
        let (stream, id) = opening::private_stream(&local, posthaste_random::mix(config.identity.nonce))?;
        let (applied, covered) = opening::applied(&local, stream)?;
        let resumed = opening::resume(&*log, &applied, config.shard)?;
        let keeper_bell = Arc::new(crate::keeper::Bell::default());
        let wanted = keeper_bell.clone();
        let streams = applied.streams.clone();
        let member = Member::new(config.shard, applied, covered.get(), Box::new(move || wanted.ring()));
        let member = Arc::new(member);
        opening::register(&local, &member, &streams)?;
        local.attach(stream, covered, member.clone())?;
        let hub = Arc::new(Hub::new(local, log, member, stream, config.segment_bytes));
        let writer = std::thread::Builder::new().name("cluster-writer".to_owned()).spawn({
            let hub = hub.clone();
            let config = config.clone();
            let reader = resumed.reader.with_rules(config.reader_rules);
            move || ShardThread { hub, config }.run(reader, resumed.again)
        })?;
        let mut spool = ReplicatedSpool {
            hub: hub.clone(),
            registering: Mutex::default(),
            config,
            writer: Some(writer),
            keeper: None,
            engine,
            id,
            _guard: guard,
        };
        spool.keeper = Some(Keeper::start(hub, keeper_bell)?);
        Ok(spool)
    }

    /// Makes this node the owner: applies the rest of the log and appends an `open`. Blocks until the engine has
    /// answered.
    ///
    /// # Errors
    /// See [`SenderEnd`]; [`SenderEnd::GivenUp`] if [`demote`](Self::demote) was called meanwhile. After any other
    /// error, call `demote`.
    pub fn promote(&self, identity: OwnerIdentity) -> Result<(), SenderEnd> {
        self.promote_when(true, identity)
    }

    fn promote_when(&self, waits_for_room: bool, identity: OwnerIdentity) -> Result<(), SenderEnd> {
        let (tell, opened) = sync_channel(1);
        let tell = Box::new(move |outcome| drop(tell.send(outcome)));
        self.order_promotion(identity, Promoted { tell, waits_for_room });
        opened.recv().unwrap_or(Err(SenderEnd::GivenUp))
    }

    fn order_promotion(&self, identity: OwnerIdentity, promoted: Promoted) {
        self.hub.queue.put(|state| state.orders.push_back(Order::Promote(identity, promoted)));
    }

    /// Like [`promote`](Self::promote), but does not block: calls `then` on the shard's thread, which must not block
    /// either. Orders are followed in turn.
    pub fn promote_then(&self, identity: OwnerIdentity, then: Box<dyn FnOnce(Result<(), SenderEnd>) + Send>) {
        self.order_promotion(identity, Promoted { tell: then, waits_for_room: true });
    }

    /// Makes this node a standby. Undecided batches fail, and may be stored nevertheless. Waits for the local spool,
    /// not for the engine.
    pub fn demote(&self) {
        let (tell, told) = sync_channel(1);
        self.demote_then(Box::new(move || {
            let _ = tell.send(());
        }));
        let _ = told.recv();
    }

    /// Like [`demote`](Self::demote), but does not block: calls `then` on the shard's thread.
    pub fn demote_then(&self, then: Box<dyn FnOnce() + Send>) {
        self.hub.queue.put(|state| state.orders.push_back(Order::Demote(then)));
    }

    /// Calls `then` on the shard's thread once all accepted batches are decided and the stored ones are in the local
    /// spool. At once if this node is a standby.
    pub fn drain_then(&self, then: Box<dyn FnOnce() + Send>) {
        self.hub.queue.put(|state| state.drains.push(then));
    }

    /// Why the log accepts nothing more from this owner; `None` for an active owner and for a standby.
    pub fn ended(&self) -> Option<SenderEnd> {
        self.hub.ended()
    }

    /// Appends a `digest` record as the owner: members compare their digests at it.
    pub fn log_digest(&self) {
        self.hub.queue.put(|state| {
            if state.is_owner {
                state.items.push_back(Item::Digest);
            }
        });
    }

    /// Sets a callback for the position of each `digest` record, on the ring's thread, when consumers have seen exactly
    /// the entries before it. It must not block. `None` removes it, once no call is running.
    pub fn on_digest(&self, hook: Option<Box<dyn Fn(LogPosition) + Send + Sync>>) {
        self.member().on_digest(hook);
    }

    /// The random id of the local spool.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of the shard.
    pub fn shard(&self) -> u16 {
        self.config.shard
    }

    pub(crate) fn log(&self) -> &Arc<dyn ShardLog> {
        &self.hub.log
    }

    /// Why nothing more is applied or accepted until the spool is reopened. A fenced owner continues as a standby.
    pub(crate) fn poison(&self) -> Option<Arc<str>> {
        match self.hub.failure()? {
            Failure::Poisoned(why) => Some(why),
            Failure::Fenced(_) => None,
        }
    }

    pub(crate) fn progress(&self) -> &LogProgress {
        &self.hub.progress
    }

    /// The log position that this member has stored durably; `None` if it has nothing.
    pub fn place(&self) -> Option<MemberPlace> {
        let last = self.member().last()?;
        let whole = if last.is_last() { last.position } else { last.position.before() };
        let applied = if last.resume < last.position { last.resume.before() } else { whole };
        Some(MemberPlace { log: last.log, applied, number: last.number })
    }

    /// Ends at once, like a kill, and returns the local spool.
    ///
    /// # Panics
    /// If another handle to the local spool exists, which is a bug.
    pub fn abandon(mut self) -> L {
        self.stop(Ending::Killed);
        let hub = self.hub.clone();
        drop(self);
        Arc::into_inner(hub).expect("its threads have ended").local
    }

    /// The local spool. Its LSNs differ from those of the cluster.
    pub fn local(&self) -> &L {
        &self.hub.local
    }

    /// The error for batches with a body while the engine lacks room or has wrong settings.
    pub fn engine_refusal(&self) -> Option<AppendError> {
        self.engine.refusal()
    }

    fn stop(&mut self, ending: Ending) {
        if let Some(writer) = self.writer.take() {
            self.hub.queue.put(|state| state.ending = ending);
            let ended = writer.join();
            self.keeper = None;
            self.hub.local.detach(self.hub.stream);
            let left = std::mem::take(&mut self.hub.queue.state().items);
            drop(left);
            if !std::thread::panicking() {
                ended.expect("the writer does not panic");
            }
        }
    }

    fn is_owner(&self) -> bool {
        self.hub.queue.is_owner()
    }

    fn member(&self) -> &Member {
        &self.hub.member
    }
}

impl<L: LocalSpool> Drop for ReplicatedSpool<L> {
    fn drop(&mut self) {
        self.stop(Ending::Closing);
    }
}
