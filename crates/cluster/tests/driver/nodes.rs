//! Nodes on one engine. Each step of time ends when nothing is left to do.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_cluster::memory::{LogFaults, MemoryCells, MemoryLog};
use posthaste_cluster::{
    Appended, CallLane, Cells, Digest, DriverConfig, DriverWorld, EngineCall, EngineCalls, Lease, LeaseClock, LogError,
    LogPosition, NodeDriver, NodeName, NodeNews, NodeShard, OwnershipConfig, OwnershipRules, OwnershipTimes,
    RosterError, ShardCell, ShardLog, ShardService, StopReason, remove_node,
};
use posthaste_fsops::Machine;
use posthaste_spool::Spool;

use crate::world::{Place, Replicated};

/// The shard of [`Place`].
pub const SHARD: u16 = 3;
/// A hand-over waits so long for transactions.
pub const TRANSACTIONS: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(250);
const STEPS_MAX: usize = 4000;

pub fn settings(node: usize, incarnation: u64, times: OwnershipTimes) -> DriverConfig {
    let node = name(node);
    let rules = OwnershipRules::ALL;
    let ownership = OwnershipConfig { node, incarnation, times, rules };
    DriverConfig { ownership, transactions: TRANSACTIONS, release: Duration::from_secs(30) }
}

pub fn name(node: usize) -> NodeName {
    NodeName::new(&format!("n{node}")).unwrap()
}

/// Set by the test.
#[derive(Default)]
pub struct HandClock(Mutex<Duration>);

impl HandClock {
    fn advance(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

impl LeaseClock for HandClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

/// Makes each call at once.
struct AtOnce;

impl EngineCalls for AtOnce {
    fn call(&self, _: CallLane, call: EngineCall) {
        call();
    }
}

/// Acts for the shard: clients of the test, which hold transactions.
pub struct Service {
    pub spool: Arc<Replicated>,
    lease: Mutex<Option<Lease>>,
    promotions: AtomicUsize,
    releases: AtomicUsize,
    demotions: AtomicUsize,
    has_failed: AtomicBool,
    sum: AtomicU64,
    digest: Mutex<Option<Digest>>,
}

impl Service {
    pub fn new(spool: Arc<Replicated>) -> Arc<Self> {
        let (lease, promotions, releases, demotions, has_failed, sum, digest) = Default::default();
        Arc::new(Service { spool, lease, promotions, releases, demotions, has_failed, sum, digest })
    }

    pub fn lease(&self) -> Option<Lease> {
        self.lease.lock().unwrap().clone()
    }

    pub fn promotions(&self) -> usize {
        self.promotions.load(Ordering::SeqCst)
    }

    pub fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    /// The state that its digests are of.
    pub fn set_sum(&self, sum: u64) {
        self.sum.store(sum, Ordering::SeqCst);
    }

    pub fn set_failed(&self, has_failed: bool) {
        self.has_failed.store(has_failed, Ordering::SeqCst);
    }

    pub fn demotions(&self) -> usize {
        self.demotions.load(Ordering::SeqCst)
    }
}

impl ShardService for Service {
    fn promote(&self, lease: Lease) {
        *self.lease.lock().unwrap() = Some(lease);
        self.promotions.fetch_add(1, Ordering::SeqCst);
    }

    fn release(&self, done: Box<dyn FnOnce() + Send>) {
        self.releases.fetch_add(1, Ordering::SeqCst);
        done();
    }

    fn demote(&self) {
        *self.lease.lock().unwrap() = None;
        self.demotions.fetch_add(1, Ordering::SeqCst);
    }

    fn digest_at(&self, position: LogPosition) {
        *self.digest.lock().unwrap() = Some(Digest { position, sum: self.sum.load(Ordering::SeqCst) });
    }

    fn digest(&self) -> Option<Digest> {
        *self.digest.lock().unwrap()
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }
}

/// The log as one node reaches it.
struct NodeLog {
    inner: MemoryLog,
    is_away: Arc<AtomicBool>,
}

impl NodeLog {
    fn reach(&self) -> Result<&MemoryLog, LogError> {
        if self.is_away.load(Ordering::SeqCst) {
            Err(LogError::Unreachable("it is away".to_owned()))
        } else {
            Ok(&self.inner)
        }
    }
}

impl ShardLog for NodeLog {
    fn append(&self, after: LogPosition, record: Bytes, then: Appended) {
        match self.reach() {
            Ok(log) => log.append(after, record, then),
            Err(_) => then(Err(LogError::Unknown("it is away".to_owned()))),
        }
    }

    fn follow(&self, from: LogPosition, each: &mut dyn FnMut(LogPosition, Bytes) -> bool) -> Result<(), LogError> {
        self.reach()?.follow(from, each)
    }

    fn first(&self) -> Result<LogPosition, LogError> {
        self.reach()?.first()
    }

    fn end(&self) -> Result<LogPosition, LogError> {
        self.reach()?.end()
    }

    fn cut(&self, below: LogPosition) -> Result<(), LogError> {
        self.reach()?.cut(below)
    }

    fn room(&self) -> Result<(u64, u64), LogError> {
        self.reach()?.room()
    }

    fn is_current(&self) -> Result<bool, LogError> {
        self.reach()?.is_current()
    }

    fn check(&self) -> Result<Vec<String>, LogError> {
        self.inner.check()
    }
}

struct Node {
    place: Place,
    is_log_away: Arc<AtomicBool>,
    is_stopped: bool,
    process: Option<Process>,
}

struct Process {
    driver: NodeDriver,
    service: Arc<Service>,
}

pub struct Nodes {
    pub cells: MemoryCells,
    pub log: MemoryLog,
    clock: Arc<HandClock>,
    times: OwnershipTimes,
    nodes: Vec<Node>,
    incarnations: u64,
    news: Arc<Mutex<Vec<(usize, NodeNews)>>>,
}

impl Nodes {
    /// The first is the shard's home.
    pub fn new(count: usize, times: OwnershipTimes) -> Self {
        let log = MemoryLog::new(7, LogFaults::default());
        let clock = Arc::new(HandClock(Mutex::new(Duration::from_secs(1000))));
        let (cells, news) = Default::default();
        let mut nodes = Nodes { cells, log, clock, times, nodes: Vec::new(), incarnations: 0, news };
        for number in 0..count {
            let mut place = Place::with(Machine::new().unwrap(), nodes.log.clone());
            (place.config.identity.nonce, place.segments) = (1000 * number as u64 + 1, 64);
            nodes.nodes.push(Node { place, is_log_away: Arc::default(), is_stopped: false, process: None });
            nodes.start(number);
        }
        nodes
    }

    /// Starts a process.
    pub fn start(&mut self, number: usize) {
        self.incarnations += 1;
        let node = &mut self.nodes[number];
        let log = NodeLog { inner: self.log.clone(), is_away: node.is_log_away.clone() };
        let spool = Arc::new(node.place.follow_on(Arc::new(log)).unwrap());
        let service = Service::new(spool.clone());
        let world =
            DriverWorld { cells: Arc::new(self.cells.clone()), calls: Arc::new(AtOnce), clock: self.clock.clone() };
        let shards = vec![NodeShard::new(spool, number == 0, service.clone())];
        let settings = settings(number, self.incarnations, self.times);
        let news = self.news.clone();
        let tell = Box::new(move |told| news.lock().unwrap().push((number, told)));
        let driver = NodeDriver::new(settings, world, shards, tell).unwrap();
        node.process = Some(Process { driver, service });
    }

    pub fn kill(&mut self, number: usize) {
        self.nodes[number].process = None;
    }

    /// Stops a process, or lets it go on. Only the thread that keeps the leases: those of the spool are in the hands of
    /// the engine.
    pub fn set_stopped(&mut self, number: usize, is_stopped: bool) {
        self.nodes[number].is_stopped = is_stopped;
    }

    /// Number of times that a node was told that its member has stopped.
    pub fn stops(&self, number: usize) -> usize {
        let is_stop =
            |news: &&(usize, NodeNews)| matches!(news, (node, NodeNews::MemberStopped { .. }) if *node == number);
        self.news.lock().unwrap().iter().filter(is_stop).count()
    }

    /// The reason for which a node has stopped the shard.
    pub fn stopped(&self, number: usize) -> Option<StopReason> {
        let reason = |(node, news): &(usize, NodeNews)| match news {
            NodeNews::Stopped { why, .. } if *node == number => Some(why.clone()),
            _ => None,
        };
        self.news.lock().unwrap().iter().find_map(reason)
    }

    /// Number of times that processes of a node were told of its removal.
    pub fn refusals(&self, number: usize) -> usize {
        self.news.lock().unwrap().iter().filter(|news| **news == (number, NodeNews::Removed)).count()
    }

    /// Takes a node off the list, which is silent for as long as that needs.
    pub fn remove(&mut self, number: usize) -> Result<(), RosterError> {
        remove_node(&self.cells.clone(), &name(number), &|_| ())
    }

    pub fn set_log_away(&mut self, number: usize, is_away: bool) {
        self.nodes[number].is_log_away.store(is_away, Ordering::SeqCst);
    }

    pub fn service(&self, number: usize) -> Arc<Service> {
        self.nodes[number].process.as_ref().unwrap().service.clone()
    }

    pub fn spool(&self, number: usize) -> Arc<Replicated> {
        self.service(number).spool.clone()
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    fn cell(&self) -> Option<ShardCell> {
        ShardCell::decode(&self.cells.get(&format!("shard.{SHARD}")).ok()?.0)
    }

    /// The node that owns the shard, by the cell, and acts.
    pub fn owner(&self) -> Option<usize> {
        let cell = self.cell()?;
        let owner = cell.owner?.node;
        let owns = |number: &usize| {
            let process = self.nodes[*number].process.as_ref();
            let lease = process.and_then(|it| it.service.lease());
            name(*number) == owner && lease.is_some_and(|lease| lease.epoch() == cell.epoch && lease.may_act())
        };
        (0..self.nodes.len()).find(owns)
    }

    /// The node that has the shard, by the cell.
    pub fn holder(&self) -> Option<NodeName> {
        Some(self.cell()?.owner?.node)
    }

    /// True if a node was told that this member differs.
    pub fn is_told_of(&self, node: usize, member: usize) -> bool {
        self.news.lock().unwrap().contains(&(node, NodeNews::Differs { shard: SHARD, node: name(member) }))
    }

    pub fn in_sync(&self) -> Vec<usize> {
        let cell = self.cell().unwrap_or_default();
        (0..self.nodes.len()).filter(|number| cell.in_sync.contains_key(&name(*number))).collect()
    }

    pub fn hand_over(&mut self, from: usize, to: usize) {
        self.nodes[from].process.as_mut().unwrap().driver.hand_over(SHARD, Some(&name(to)));
    }

    pub fn drain(&mut self, number: usize) -> Receiver<()> {
        let (tell, told) = channel();
        let then = Box::new(move || tell.send(()).unwrap());
        self.nodes[number].process.as_mut().unwrap().driver.drain(then);
        told
    }

    /// Does all that can be done at this time.
    pub fn settle(&mut self) {
        loop {
            self.cells.wait_for_watchers();
            let mut has_acted = false;
            for node in self.nodes.iter_mut().filter(|node| !node.is_stopped) {
                has_acted |= node.process.as_mut().is_some_and(|it| it.driver.turn());
            }
            if has_acted {
                continue;
            }
            let mut running = self.nodes.iter().filter(|node| !node.is_stopped).filter_map(|it| it.process.as_ref());
            match running.find(|it| it.driver.is_waiting()) {
                Some(process) => process.driver.wait(None),
                None => return self.meet(),
            };
        }
    }

    /// Time goes on, and nobody is waited for.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.now() < end {
            self.turn();
            self.clock.advance(STEP);
        }
        self.turn();
    }

    /// Some turns at this time, which wait for nobody.
    pub fn turn(&mut self) {
        for _ in 0..8 {
            self.cells.wait_for_watchers();
            self.nodes.iter_mut().filter_map(|node| node.process.as_mut()).for_each(|it| {
                it.driver.turn();
            });
        }
    }

    /// Waits until each member has all of the log that it can reach.
    pub fn meet(&self) {
        let end = self.log.end().unwrap();
        for node in self.nodes.iter().filter(|node| !node.is_stopped && !node.is_log_away.load(Ordering::SeqCst)) {
            let Some(process) = &node.process else { continue };
            let spool = &process.service.spool;
            while spool.place().is_none_or(|place| place.applied < end) && end > LogPosition::START {
                assert_eq!(spool.poisoned(), None);
                std::thread::yield_now();
            }
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.now() < end {
            self.settle();
            self.clock.advance(STEP);
        }
        self.settle();
    }

    /// Time goes on until something is so.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Nodes) -> bool) {
        for _ in 0..STEPS_MAX {
            self.settle();
            if is_so(self) {
                return;
            }
            self.clock.advance(STEP);
        }
        panic!("never: {what}");
    }

    /// The shard has an owner, and all nodes may take it over.
    pub fn until_in_sync(&mut self) {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.until("all are in sync", |it| it.owner().is_some() && it.in_sync() == all);
    }
}
