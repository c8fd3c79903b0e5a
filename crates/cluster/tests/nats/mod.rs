//! The engine NATS JetStream, on a server of its own. Without the program `nats-server` (or `NATS_SERVER`) these tests
//! say so and pass; with `CI_REQUIRE_NATS` they fail.

mod network;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::driver::nodes::{Service, settings};
use crate::world::{Place, Replicated, append, content, in_file, inline, start};
use bytes::Bytes;
use posthaste_cluster::memory::LogFaults;
use posthaste_cluster::nats::{NatsConfig, NatsEngine, NatsError, NatsLog};
use posthaste_cluster::{
    BootTime, CallThreads, Cells, ClusterNode, DriverWorld, LogError, LogPosition, NodeDriver, NodeName, NodeNews,
    NodeShard, OwnerIdentity, OwnershipTimes, PeerName, Peers, QUESTION_BYTES_MAX, ShardCell, ShardLog,
};
use posthaste_nats_server::{NatsServer, SYNCED, UNSYNCED, three};
use posthaste_spool::{Spool, StreamError};

/// A connection to one server.
pub fn config(server: &NatsServer) -> NatsConfig {
    config_of(std::slice::from_ref(server))
}

/// As many replicas as there are servers.
fn config_of(servers: &[NatsServer]) -> NatsConfig {
    NatsConfig {
        servers: servers.iter().map(|server| server.address().to_owned()).collect(),
        monitors: servers.iter().map(|server| server.monitor().to_owned()).collect(),
        tls: None,
        login: None,
        prefix: "test".to_owned(),
        replicas: servers.len() as u64,
        log_bytes_max: 1 << 30,
        timeout: Duration::from_secs(1),
    }
}

/// A server and a connection; `None` if there is no program.
fn engine(disk: &'static str) -> Option<(NatsServer, NatsEngine)> {
    let server = NatsServer::start(disk)?;
    let engine = NatsEngine::connect(config(&server)).unwrap();
    Some((server, engine))
}

fn put(log: &NatsLog, after: u64, record: &[u8]) -> std::sync::mpsc::Receiver<Result<LogPosition, LogError>> {
    let (tell, told) = channel();
    let then = Box::new(move |outcome| drop(tell.send(outcome)));
    log.append(LogPosition::new(after), Bytes::copy_from_slice(record), then);
    told
}

fn read(log: &NatsLog, from: u64, count: usize) -> Result<Vec<Bytes>, LogError> {
    let mut records = Vec::new();
    log.follow(LogPosition::new(from), &mut |position, bytes| {
        assert_eq!(position.get(), from + records.len() as u64);
        records.push(bytes);
        records.len() < count
    })?;
    Ok(records)
}

#[test]
fn a_stream_that_the_engine_rejects_is_not_asked_for_again() {
    let Some((server, engine)) = engine(SYNCED) else { return };
    let rejected = |made: Result<(), LogError>| assert!(matches!(made, Err(LogError::Rejected(_))), "{made:?}");
    let with = |config| NatsEngine::connect(config).unwrap();
    rejected(with(NatsConfig { replicas: 3, ..config(&server) }).cells().map(drop));
    rejected(with(NatsConfig { log_bytes_max: 1 << 60, ..config(&server) }).log(3).map(drop));
    // One that exists is kept as it is.
    engine.log(3).unwrap();
    with(NatsConfig { log_bytes_max: 1 << 20, ..config(&server) }).log(3).unwrap();
}

#[test]
fn a_log_keeps_the_contract() {
    let Some((_server, engine)) = engine(SYNCED) else { return };
    let log = engine.log(3).unwrap();
    assert_eq!((log.first().unwrap().get(), log.end().unwrap().get()), (1, 0));
    assert_eq!(put(&log, 0, b"one").recv().unwrap(), Ok(LogPosition::new(1)));
    assert!(matches!(put(&log, 0, b"other").recv().unwrap(), Err(LogError::Refused(_))));
    assert!(matches!(put(&log, 5, b"other").recv().unwrap(), Err(LogError::Refused(_))));
    // Sent without waiting, and in order.
    let told: Vec<_> = (1..40).map(|after| put(&log, after, &[after as u8; 700])).collect();
    for (after, told) in (1..).zip(told) {
        assert_eq!(told.recv().unwrap(), Ok(LogPosition::new(after + 1)));
    }
    let large = vec![7; 1 << 20];
    assert_eq!(put(&log, 40, &large).recv().unwrap(), Ok(LogPosition::new(41)));
    let records = read(&log, 1, 41).unwrap();
    assert_eq!((&records[0][..], &records[1][..], records[40].len()), (&b"one"[..], &[1; 700][..], 1 << 20));
    assert!(matches!(read(&log, 43, 1), Err(LogError::Gap(at)) if at.get() == 42));
    log.cut(LogPosition::new(5)).unwrap();
    assert_eq!((log.first().unwrap().get(), log.end().unwrap().get()), (5, 41));
    assert!(matches!(read(&log, 4, 1), Err(LogError::Cut { first }) if first.get() == 5));
    assert_eq!(read(&log, 5, 1).unwrap().len(), 1);
    log.cut(LogPosition::new(42)).unwrap();
    assert_eq!((log.first().unwrap().get(), log.end().unwrap().get()), (42, 41));
    // One that waits is shown what comes.
    let reader = std::thread::spawn({
        let log = log.clone();
        move || read(&log, 42, 1)
    });
    assert_eq!(put(&log, 41, b"next").recv().unwrap(), Ok(LogPosition::new(42)));
    assert_eq!(reader.join().unwrap().unwrap(), ["next"]);
    let (used, limit) = log.room().unwrap();
    assert!(used > 0 && used < 1000 && limit == config(&_server).log_bytes_max, "{used} of {limit}");
    assert!(log.is_current().unwrap());
}

#[test]
fn cells_keep_the_contract() {
    let Some((_server, engine)) = engine(SYNCED) else { return };
    let cells = engine.cells().unwrap();
    assert_eq!(cells.get("shard.3").unwrap(), (Bytes::new(), 0));
    let first = cells.swap("shard.3", 0, "one".into()).unwrap();
    assert_eq!(cells.swap("shard.3", 0, "two".into()), Err(LogError::Conflict));
    let second = cells.swap("shard.3", first, "two".into()).unwrap();
    assert!(second > first);
    assert_eq!(cells.swap("shard.3", first, "three".into()), Err(LogError::Conflict));
    assert_eq!(cells.get("shard.3").unwrap(), ("two".into(), second));
    // Another key has revisions of its own.
    cells.swap("node.a.example", 0, "of a node".into()).unwrap();
    let (tell, told) = channel();
    let watcher = std::thread::spawn({
        let cells = cells.clone();
        move || {
            cells.watch(&mut |key, value, revision| {
                tell.send((key.to_owned(), value.to_vec(), revision)).unwrap();
                value != b"end"
            })
        }
    });
    let mut shown = [told.recv().unwrap(), told.recv().unwrap()].map(|it| (it.0, it.1));
    shown.sort();
    assert_eq!(shown, [("node.a.example".into(), b"of a node".to_vec()), ("shard.3".into(), b"two".to_vec())]);
    let last = cells.swap("shard.3", second, "end".into()).unwrap();
    assert_eq!(told.recv().unwrap(), ("shard.3".into(), b"end".to_vec(), last));
    assert_eq!(watcher.join().unwrap(), Ok(()));
}

#[test]
fn nodes_answer_questions_while_they_run() {
    let Some((server, engine)) = engine(SYNCED) else { return };
    let [one, two] = ["a", "b.example"].map(|name| PeerName::Node(NodeName::new(name).unwrap()));
    let other = NatsEngine::connect(config(&server)).unwrap();
    let patience = Duration::from_secs(10);
    let ask = |node: &PeerName| engine.peers().ask(node, "who?".into(), patience);
    let (tell, told) = channel::<()>();
    let told = std::sync::Mutex::new(told);
    // It answers once it is told to. Subscriptions are made in their order.
    let _slow = other.peers().answer(
        &two,
        Arc::new(move |_| {
            let _ = told.lock().unwrap().recv();
            Bytes::from_static(b"two")
        }),
    );
    let answers = other.peers().answer(&one, Arc::new(|question| [b"one ".as_slice(), &question].concat().into()));
    // They begin soon.
    let first = loop {
        match ask(&one) {
            Err(why) if why.to_string().contains("not connected") => std::thread::yield_now(),
            first => break first,
        }
    };
    assert_eq!(first.unwrap(), "one who?");
    let why = engine.peers().ask(&two, Bytes::new(), Duration::from_millis(50)).unwrap_err();
    assert!(why.to_string().contains("not answered in time"), "{why}");
    let large = Bytes::from(vec![0; QUESTION_BYTES_MAX + 1]);
    let why = engine.peers().ask(&one, large, patience).unwrap_err();
    assert!(why.to_string().contains("too many questions"), "{why}");
    // The one before has a place of its own.
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| ask(&two));
        tell.send(()).unwrap();
        tell.send(()).unwrap();
        late.join().unwrap()
    });
    assert_eq!(late.unwrap(), "two");
    drop(answers);
    // A question that comes while it ends is lost.
    let ask = || engine.peers().ask(&one, "who?".into(), Duration::from_secs(1));
    while !ask().is_err_and(|why| why.to_string().contains("not connected")) {}
}

#[test]
fn settings_that_do_not_keep_the_promise_are_named() {
    let Some((_server, engine)) = engine(SYNCED) else { return };
    assert_eq!(engine.log(3).unwrap().check(), Ok(Vec::new()));
    assert_eq!(engine.cells().unwrap().check(), Ok(Vec::new()));
    let (_other, engine) = self::engine(UNSYNCED).unwrap();
    let wrong = engine.log(3).unwrap().check().unwrap();
    assert!(matches!(&wrong[..], [line] if line.contains("sync_interval")), "{wrong:?}");
}

#[test]
fn a_server_elsewhere_needs_tls_and_a_login() {
    let Some((server, _engine)) = engine(SYNCED) else { return };
    let mut elsewhere = config(&server);
    elsewhere.servers.push("192.0.2.1:4222".to_owned());
    assert!(matches!(NatsEngine::connect(elsewhere), Err(NatsError::Unprotected(it)) if it.contains("192.0.2.1")));
}

fn stream_of(spool: &Replicated, name: &str) -> posthaste_spool::StreamId {
    loop {
        match spool.stream(name) {
            Ok(stream) => return stream,
            Err(StreamError::Unknown(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The server is killed while batches are on their way, and its disk has what it acknowledged.
#[test]
fn a_shard_survives_kills_of_the_engine_and_changes_hands() {
    let Some((mut server, engine)) = engine(SYNCED) else { return };
    let log = Arc::new(engine.log(3).unwrap());
    let mut place = Place::new(LogFaults::default());
    let mut other = Place::new(LogFaults::default());
    (place.segments, other.segments) = (64, 64);
    (place.config.identity.nonce, other.config.identity.nonce) = (1, 1000);
    let first = place.open_on(log.clone()).unwrap();
    let second = other.follow_on(log.clone()).unwrap();
    let stream = first.stream("a").unwrap();
    let mut told = Vec::new();
    for round in 0..3 {
        for n in 0..50 {
            let body = if n % 20 == 0 { in_file(&first, 1_300_000) } else { inline(n * 10) };
            told.push(start(&first, stream, body, &format!("{round}.{n}")));
        }
        server.kill_and_start();
    }
    let lsns: Vec<_> = told.iter().map(|told| told.recv().unwrap().unwrap()).collect();
    let stored = content(&first, stream);
    assert_eq!(stored.iter().map(|it| it.0).collect::<Vec<_>>(), lsns);
    first.demote();
    second.promote(OwnerIdentity { nonce: 5, log: 0x1061d, epoch: None }).unwrap();
    let stream = stream_of(&second, "a");
    assert!(content(&second, stream) == stored);
    append(&second, stream, inline(10), "after");
}

/// Each of three servers is killed in turn, so also the leader of the log.
#[test]
fn a_log_on_three_servers_survives_the_kill_of_each() {
    let Some(mut servers) = three() else { return };
    let engine = NatsEngine::connect(config_of(&servers)).unwrap();
    let log = loop {
        // The servers have to find each other first.
        if let Ok(log) = engine.log(3) {
            break Arc::new(log);
        }
    };
    let wait = || while !log.is_current().is_ok_and(|is_current| is_current) {};
    wait();
    assert_eq!(log.check(), Ok(Vec::new()));
    let mut place = Place::new(LogFaults::default());
    (place.segments, place.config.identity.nonce) = (64, 1);
    let spool = place.open_on(log.clone()).unwrap();
    let stream = spool.stream("a").unwrap();
    let mut told = Vec::new();
    for (round, server) in servers.iter_mut().enumerate() {
        for n in 0..50 {
            told.push(start(&spool, stream, inline(n * 10), &format!("{round}.{n}")));
        }
        server.kill_and_start();
        wait();
    }
    let lsns: Vec<_> = told.iter().map(|told| told.recv().unwrap().unwrap()).collect();
    assert_eq!(content(&spool, stream).iter().map(|it| it.0).collect::<Vec<_>>(), lsns);
    let mut other = Place::new(LogFaults::default());
    (other.segments, other.config.identity.nonce) = (64, 1000);
    let other = other.follow_on(log.clone()).unwrap();
    other.promote(OwnerIdentity { nonce: 5, log: 0x1061d, epoch: None }).unwrap();
    assert!(content(&other, stream_of(&other, "a")) == content(&spool, stream));
}

/// Two nodes with their own threads and connections: one drains, and the other acts.
#[test]
fn nodes_hand_a_shard_over() {
    let Some(server) = NatsServer::start(SYNCED) else { return };
    let nodes = [0, 1].map(|number| {
        let engine = NatsEngine::connect(config(&server)).unwrap();
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
        let shards = vec![NodeShard::new(spool.clone(), number == 0, service)];
        let settings = settings(number, 70 + number as u64, OwnershipTimes::default());
        let node = ClusterNode::start(NodeDriver::new(settings, world, shards, tell).unwrap()).unwrap();
        (node, spool, told, place)
    });
    let [(first, old, told, _first_place), (_second, new, told_second, _second_place)] = nodes;
    assert_eq!(told.recv().unwrap(), NodeNews::Owner { shard: 3, epoch: 1 });
    let lsn = append(&old, old.stream("a").unwrap(), inline(100), "one");
    let cells = NatsEngine::connect(config(&server)).unwrap().cells().unwrap();
    while ShardCell::decode(&cells.get("shard.3").unwrap().0).unwrap().in_sync.len() < 2 {
        std::thread::yield_now();
    }
    first.drain();
    assert_eq!(told_second.recv().unwrap(), NodeNews::Owner { shard: 3, epoch: 2 });
    let stream = new.stream("a").unwrap();
    assert_eq!(content(&new, stream)[0].0, lsn);
    append(&new, stream, inline(100), "two");
}
