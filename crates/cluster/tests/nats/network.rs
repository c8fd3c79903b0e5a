//! The engine behind a network that fails.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;

use crate::driver::nodes::{Service, settings};
use crate::nats::{config, stream_of};
use crate::world::{Place, Replicated, append, content, inline, start};
use posthaste_cluster::memory::LogFaults;
use posthaste_cluster::nats::{NatsConfig, NatsEngine, NatsLog};
use posthaste_cluster::{
    Appended, BootTime, CallThreads, Cells, ClusterNode, DriverWorld, LogError, LogPosition, NodeDriver, NodeNews,
    NodeShard, OwnerIdentity, OwnershipTimes, ShardCell, ShardLog,
};
use posthaste_nats_server::{NatsServer, SYNCED};
use posthaste_spool::{AppendError, Lsn, Spool, StreamId};
use posthaste_tcp_relay::{TcpRelay, Way};

/// An owner whose connection goes through a relay, and the log by a connection of its own.
struct Cut {
    spool: Replicated,
    stream: StreamId,
    direct: Arc<NatsLog>,
    /// Told of each append without an answer.
    unknown: Receiver<()>,
    relay: TcpRelay,
    _place: Place,
    _server: NatsServer,
}

impl Cut {
    fn new() -> Option<Self> {
        let server = NatsServer::start(SYNCED)?;
        let relay = TcpRelay::start(server.address().parse().unwrap()).unwrap();
        let through = NatsConfig { servers: vec![relay.address().to_string()], ..config(&server) };
        let log = NatsEngine::connect(through).unwrap().log(3).unwrap();
        let direct = Arc::new(NatsEngine::connect(config(&server)).unwrap().log(3).unwrap());
        let mut place = Place::new(LogFaults::default());
        (place.segments, place.config.identity.nonce) = (64, 1);
        let (tell, unknown) = channel();
        let spool = place.open_on(Arc::new(ToldLog { log, unknown: tell })).unwrap();
        let stream = spool.stream("a").unwrap();
        Some(Cut { spool, stream, direct, unknown, relay, _place: place, _server: server })
    }

    fn append(&self, round: usize) -> Vec<Receiver<Result<Lsn, AppendError>>> {
        let one = |n: usize| start(&self.spool, self.stream, inline(n * 30), &format!("{round}.{n}"));
        (0..20).map(one).collect()
    }

    /// Each batch is stored once, in order, here and by another member.
    fn check(&self, lsns: &[Lsn]) {
        let stored = content(&self.spool, self.stream);
        assert_eq!(stored.iter().map(|it| it.0).collect::<Vec<_>>(), lsns);
        let names: Vec<_> = stored.iter().map(|it| it.1.clone()).collect();
        let wanted: Vec<_> = (0..lsns.len()).map(|at| format!("{}.{}", at / 20, at % 20)).collect();
        assert_eq!(names, wanted);
        let mut other = Place::new(LogFaults::default());
        (other.segments, other.config.identity.nonce) = (64, 1000);
        let other = other.follow_on(self.direct.clone()).unwrap();
        self.spool.demote();
        other.promote(OwnerIdentity { nonce: 5, log: 0x1061d, epoch: None }).unwrap();
        assert!(content(&other, stream_of(&other, "a")) == stored);
    }
}

/// Tells of appends whose fate is unknown.
struct ToldLog {
    log: NatsLog,
    unknown: Sender<()>,
}

impl ShardLog for ToldLog {
    fn append(&self, after: LogPosition, record: Bytes, then: Appended) {
        let unknown = self.unknown.clone();
        let then = move |outcome| {
            let is_unknown = matches!(outcome, Err(LogError::Unknown(_)));
            then(outcome);
            if is_unknown {
                // Nobody waits at the end of a test.
                let _ = unknown.send(());
            }
        };
        self.log.append(after, record, Box::new(then));
    }

    fn follow(&self, from: LogPosition, each: &mut dyn FnMut(LogPosition, Bytes) -> bool) -> Result<(), LogError> {
        self.log.follow(from, each)
    }

    fn first(&self) -> Result<LogPosition, LogError> {
        self.log.first()
    }

    fn end(&self) -> Result<LogPosition, LogError> {
        self.log.end()
    }

    fn cut(&self, below: LogPosition) -> Result<(), LogError> {
        self.log.cut(below)
    }

    fn room(&self) -> Result<(u64, u64), LogError> {
        self.log.room()
    }

    fn is_current(&self) -> Result<bool, LogError> {
        self.log.is_current()
    }

    fn check(&self) -> Result<Vec<String>, LogError> {
        self.log.check()
    }
}

fn decided(told: Vec<Receiver<Result<Lsn, AppendError>>>) -> Vec<Lsn> {
    told.into_iter().map(|told| told.recv().unwrap().unwrap()).collect()
}

/// The engine has stored the record, and its answer is lost with the connection.
#[test]
fn an_append_whose_answer_is_cut_is_stored_once() {
    let Some(cut) = Cut::new() else { return };
    let mut lsns = Vec::new();
    for round in 0..5 {
        cut.relay.stall(Way::ToClient);
        let end = cut.direct.end().unwrap();
        let told = cut.append(round);
        while cut.direct.end().unwrap() == end {}
        assert!(told.iter().all(|told| told.try_recv().is_err()), "nothing is acknowledged without an answer");
        cut.relay.reset();
        cut.relay.resume(Way::ToClient);
        lsns.extend(decided(told));
    }
    cut.check(&lsns);
}

/// The answer comes only after its time: the owner has asked again by then.
#[test]
fn an_append_whose_answer_is_late_is_stored_once() {
    let Some(cut) = Cut::new() else { return };
    let mut lsns = Vec::new();
    for round in 0..3 {
        cut.relay.stall(Way::ToClient);
        let told = cut.append(round);
        cut.unknown.recv().unwrap();
        cut.relay.resume(Way::ToClient);
        lsns.extend(decided(told));
        // Of other records in flight, and of barriers.
        cut.unknown.try_iter().for_each(drop);
    }
    cut.check(&lsns);
}

/// Requests are lost with the connection: before the engine has them, or after.
#[test]
fn an_append_that_a_reset_loses_is_sent_again() {
    let Some(cut) = Cut::new() else { return };
    let mut lsns = Vec::new();
    for round in 0..5 {
        cut.relay.stall(Way::ToServer);
        let told = cut.append(round);
        cut.relay.wait_until_held(Way::ToServer, 500);
        cut.relay.reset();
        cut.relay.resume(Way::ToServer);
        lsns.extend(decided(told));
    }
    cut.check(&lsns);
}

/// Renewals of the owner reach the engine, and their answers do not come back.
#[test]
fn an_owner_cut_off_one_way_stops_before_another_acts() {
    let Some(server) = NatsServer::start(SYNCED) else { return };
    let relay = TcpRelay::start(server.address().parse().unwrap()).unwrap();
    let through = NatsConfig { servers: vec![relay.address().to_string()], ..config(&server) };
    let [first, second] = [(0, through), (1, config(&server))].map(|(number, config)| start_node(number, config));
    assert_eq!(first.told.recv().unwrap(), NodeNews::Owner { shard: 3, epoch: 1 });
    let stream = first.service.spool.stream("a").unwrap();
    let before = append(&first.service.spool, stream, inline(10), "before");
    let cells = NatsEngine::connect(config(&server)).unwrap().cells().unwrap();
    while ShardCell::decode(&cells.get("shard.3").unwrap().0).unwrap().in_sync.len() < 2 {
        std::thread::yield_now();
    }
    let lease = first.service.lease().unwrap();
    assert!(lease.may_act());
    relay.stall(Way::ToClient);
    let late = start(&*first.service.spool, stream, inline(10), "late");
    assert_eq!(second.told.recv().unwrap(), NodeNews::Owner { shard: 3, epoch: 2 });
    assert!(!lease.may_act() && lease.begin().is_none() && late.try_recv().is_err());
    let stream = second.service.spool.stream("a").unwrap();
    let after = append(&second.service.spool, stream, inline(10), "after");
    relay.resume(Way::ToClient);
    assert_eq!(first.told.recv().unwrap(), NodeNews::Standby { shard: 3 });
    // It reached the log before the next owner did, and counts; or it did not, and never will.
    let late = late.recv().unwrap();
    let stored: Vec<_> = content(&second.service.spool, stream).iter().map(|it| it.0).collect();
    match late {
        Ok(late) => assert_eq!(stored, [before, late, after]),
        Err(AppendError::NotOwner) => assert!(stored.starts_with(&[before]) && stored.ends_with(&[after])),
        Err(error) => panic!("{error}"),
    }
}

struct RunningNode {
    // Ends before its spool does.
    _node: ClusterNode,
    service: Arc<Service>,
    told: Receiver<NodeNews>,
    _place: Place,
}

/// With a quarter of the usual times.
fn start_node(number: usize, config: NatsConfig) -> RunningNode {
    let engine = NatsEngine::connect(config).unwrap();
    let mut place = Place::new(LogFaults::default());
    place.config.identity.nonce = 1 + 1000 * number as u64;
    let spool = Arc::new(place.follow_on(Arc::new(engine.log(3).unwrap())).unwrap());
    let service = Service::new(spool.clone());
    let world = DriverWorld {
        cells: Arc::new(engine.cells().unwrap()),
        calls: Arc::new(CallThreads::start().unwrap()),
        clock: Arc::new(BootTime),
    };
    let (tell, told) = channel();
    let tell = Box::new(move |news: NodeNews| drop(tell.send(news)));
    let usual = OwnershipTimes::default();
    let [renew, lease, begin, report, name, fresh] =
        [usual.renew, usual.lease, usual.begin, usual.report, usual.name, usual.fresh].map(|time| time / 4);
    let times = OwnershipTimes { renew, lease, begin, report, name, fresh, ..usual };
    let shards = vec![NodeShard::new(spool, number == 0, service.clone())];
    let driver = NodeDriver::new(settings(number, 70 + number as u64, times), world, shards, tell).unwrap();
    RunningNode { _node: ClusterNode::start(driver).unwrap(), service, told, _place: place }
}
