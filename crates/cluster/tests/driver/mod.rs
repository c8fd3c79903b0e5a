//! Nodes that keep leases over real spools: an engine in memory, and a clock that the test sets.

pub mod nodes;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::world::{Place, append, content, inline, start};
use nodes::{Nodes, SHARD, Service, TRANSACTIONS, name, settings};
use posthaste_cluster::memory::{LogFaults, MemoryCells, MemoryLog};
use posthaste_cluster::{
    BootTime, CallThreads, Cells, ClusterNode, DriverWorld, HandOpening, HandOpeningError, LogPosition, NodeDriver,
    NodeNews, NodeShard, OpeningRisk, OwnershipTimes, ShardLog, add_node, look_at_opening,
};
use posthaste_spool::{AppendError, Body, Lsn, Spool};

const BEFORE_LEASE_ENDS: Duration = Duration::from_secs(15);

#[test]
fn the_home_opens_a_new_shard_and_a_standby_joins() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    assert_eq!(nodes.owner(), Some(0));
    assert_eq!((nodes.service(0).promotions(), nodes.service(1).promotions()), (1, 0));
    let lease = nodes.service(0).lease().unwrap();
    assert!(lease.may_act() && lease.begin().is_some());
    assert_eq!((lease.shard(), lease.epoch()), (SHARD, 1));
}

/// Appends one batch for each permit, at whichever node lets it begin, until there are no more.
fn run_client(client: usize, services: &[Arc<Service>], permits: &Mutex<Receiver<()>>) -> Vec<(Lsn, String)> {
    let mut sent = Vec::new();
    loop {
        let permit = permits.lock().unwrap().recv();
        if permit.is_err() {
            return sent;
        }
        let (service, _begun) = loop {
            match services.iter().find_map(|it| Some((it, it.lease()?.begin()?))) {
                Some(found) => break found,
                None => std::thread::yield_now(),
            }
        };
        let stream = service.spool.stream("a").unwrap();
        let name = format!("{client}.{}", sent.len());
        let outcome = start(&*service.spool, stream, inline(sent.len() % 5 * 100), &name).recv().unwrap();
        sent.push((outcome.unwrap(), name));
    }
}

/// All that clients append is stored, while the shard goes to and fro.
#[test]
fn a_planned_hand_over_fails_no_batch() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    nodes.spool(0).stream("a").unwrap();
    let services = [nodes.service(0), nodes.service(1)];
    let (permit, permits) = channel();
    let permits = Arc::new(Mutex::new(permits));
    let clients = (0..4).map(|client| {
        let services = services.clone();
        let permits = permits.clone();
        std::thread::spawn(move || run_client(client, &services, &permits))
    });
    let clients: Vec<_> = clients.collect();
    for round in 0..6 {
        let from = round % 2;
        let to = 1 - round % 2;
        let before = nodes.now();
        (0..100).for_each(|_| permit.send(()).unwrap());
        nodes.hand_over(from, to);
        nodes.until("it is handed over", |it| it.owner() == Some(to));
        assert!(nodes.now() - before <= Duration::from_secs(1), "it took {:?}", nodes.now() - before);
        // The next hand-over needs a standby that is near.
        nodes.until_in_sync();
    }
    drop(permit);
    let mut sent: Vec<(Lsn, String)> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    sent.sort();
    nodes.meet();
    for node in 0..2 {
        let spool = nodes.spool(node);
        let stored = content(&spool, spool.stream("a").unwrap());
        assert_eq!(stored.into_iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(), sent);
    }
}

#[test]
fn a_hand_over_waits_for_transactions_and_their_batches() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let spool = nodes.spool(0);
    let stream = spool.stream("a").unwrap();
    let lease = nodes.service(0).lease().unwrap();
    let begun = lease.begin().unwrap();
    nodes.hand_over(0, 1);
    nodes.turn();
    assert!(lease.may_act() && lease.begin().is_none());
    nodes.log.set_away(true);
    let told = start(&*spool, stream, inline(10), "one");
    nodes.turn();
    assert_eq!(nodes.holder(), Some(name(0)), "a transaction is under way");
    assert_eq!(nodes.service(0).releases(), 0, "its client gets an answer first");
    drop(begun);
    nodes.turn();
    assert_eq!(nodes.service(0).releases(), 1);
    assert_eq!(nodes.holder(), Some(name(0)), "a batch is undecided");
    nodes.log.set_away(false);
    nodes.until("it is handed over", |it| it.owner() == Some(1));
    assert!(told.recv().unwrap().is_ok());
}

#[test]
fn a_hand_over_waits_for_no_idle_client_for_long() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let lease = nodes.service(0).lease().unwrap();
    let begun = lease.begin().unwrap();
    nodes.hand_over(0, 1);
    nodes.pass(TRANSACTIONS - Duration::from_secs(1));
    assert_eq!((nodes.service(0).releases(), nodes.holder()), (0, Some(name(0))));
    nodes.pass(Duration::from_secs(1));
    nodes.until("it is handed over", |it| it.owner() == Some(1));
    drop(begun);
    nodes.run_for(Duration::from_secs(1));
    assert_eq!(nodes.service(0).releases(), 1);
}

#[test]
fn an_owner_that_cannot_act_gives_its_shard_up() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let before = nodes.now();
    nodes.service(0).set_failed(true);
    nodes.until("the other owns it", |it| it.owner() == Some(1));
    assert!(nodes.now() - before <= Duration::from_secs(1));
    // Its home does not ask for it.
    nodes.run_for(Duration::from_secs(90));
    assert_eq!(nodes.owner(), Some(1));
    nodes.service(0).set_failed(false);
    let well_at = nodes.now();
    nodes.until("its home has it again", |it| it.owner() == Some(0));
    assert!(nodes.now() - well_at >= OwnershipTimes::default().pause);
}

#[test]
fn a_standby_that_cannot_act_takes_nothing_over() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    nodes.service(1).set_failed(true);
    nodes.kill(0);
    nodes.run_for(Duration::from_secs(120));
    assert_eq!((nodes.owner(), nodes.service(1).promotions()), (None, 0));
    nodes.service(1).set_failed(false);
    nodes.until("it is well again", |it| it.owner() == Some(1));
}

#[test]
fn members_that_differ_are_told_of_and_take_nothing_over() {
    let times = OwnershipTimes { digest: Duration::from_secs(5), ..Default::default() };
    let mut nodes = Nodes::new(3, times);
    nodes.until_in_sync();
    nodes.run_for(Duration::from_secs(20));
    assert_eq!(nodes.in_sync(), [0, 1, 2]);
    nodes.service(2).set_sum(7);
    nodes.until("the third needs seeding", |it| it.in_sync() == [0, 1]);
    for node in 0..3 {
        assert_eq!((nodes.is_told_of(node, 1), nodes.is_told_of(node, 2)), (false, true), "{node}");
    }
    nodes.kill(0);
    nodes.kill(1);
    nodes.run_for(Duration::from_secs(90));
    assert_eq!((nodes.owner(), nodes.service(2).promotions()), (None, 0));
}

#[test]
fn a_member_that_finds_a_hole_says_so_once_and_leaves() {
    let mut nodes = Nodes::new(3, OwnershipTimes::default());
    nodes.until_in_sync();
    nodes.kill(2);
    append(&nodes.spool(0), nodes.spool(0).stream("a").unwrap(), inline(100), "one");
    nodes.settle();
    let lost = nodes.log.records().last().unwrap().0;
    nodes.log.lose(lost);
    nodes.start(2);
    // It never has all, so nobody waits for it.
    while nodes.stops(2) == 0 || nodes.in_sync() != [0, 1] {
        nodes.pass(Duration::from_secs(1));
    }
    nodes.pass(Duration::from_secs(10));
    assert_eq!([0, 1, 2].map(|node| nodes.stops(node)), [0, 0, 1]);
}

/// Two nodes, of which the second differs, and the first is dead: nobody takes the shard.
fn without_a_member_in_sync() -> (Nodes, Lsn) {
    let times = OwnershipTimes { digest: Duration::from_secs(5), ..Default::default() };
    let mut nodes = Nodes::new(2, times);
    nodes.until_in_sync();
    let lsn = append(&nodes.spool(0), nodes.spool(0).stream("a").unwrap(), inline(100), "one");
    nodes.settle();
    nodes.service(1).set_sum(7);
    nodes.until("the second needs seeding", |it| it.in_sync() == [0]);
    nodes.kill(0);
    nodes.run_for(Duration::from_secs(60));
    assert_eq!(nodes.owner(), None);
    (nodes, lsn)
}

fn look(nodes: &Nodes, pause: &dyn Fn(Duration)) -> Result<HandOpening, HandOpeningError> {
    look_at_opening((&nodes.cells, &nodes.log), SHARD, &name(1), &[name(0), name(1)], pause)
}

#[test]
fn an_operator_opens_a_shard_that_nobody_takes() {
    let (mut nodes, lsn) = without_a_member_in_sync();
    let opening = look(&nodes, &|_| ()).unwrap();
    assert_eq!(opening.risks, [OpeningRisk::Differs(name(1)), OpeningRisk::Away(name(0))]);
    opening.clone().order(&nodes.cells, 5).unwrap();
    let again = opening.order(&nodes.cells, 6);
    assert_eq!(again, Err(HandOpeningError::Written { shard: SHARD }), "once");
    nodes.until("it is opened", |it| it.owner() == Some(1));
    let spool = nodes.spool(1);
    let stream = spool.stream("a").unwrap();
    assert_eq!(content(&spool, stream)[0].0, lsn);
    append(&spool, stream, inline(100), "two");
    // The opened copy counts now: its home, whose state was another, needs seeding.
    nodes.start(0);
    nodes.run_for(Duration::from_secs(60));
    assert_eq!((nodes.owner(), nodes.in_sync()), (Some(1), vec![1]));
}

#[test]
fn a_shard_with_an_owner_or_a_short_log_is_not_opened() {
    let (nodes, _) = without_a_member_in_sync();
    let key = format!("shard.{SHARD}");
    let write = |_| {
        let (value, revision) = nodes.cells.get(&key).unwrap();
        nodes.cells.swap(&key, revision, value).unwrap();
    };
    assert_eq!(look(&nodes, &write), Err(HandOpeningError::Written { shard: SHARD }));
    let cells = (&nodes.cells as &dyn Cells, &nodes.log as &dyn ShardLog);
    let stopped = look_at_opening(cells, SHARD, &name(7), &[name(0)], &|_| ());
    assert_eq!(stopped, Err(HandOpeningError::NoCopy(name(7))));
    assert_eq!(look_at_opening(cells, 9, &name(1), &[], &|_| ()), Err(HandOpeningError::New(9)));
    nodes.log.delete();
    let short = look(&nodes, &|_| ()).unwrap_err();
    assert!(matches!(short, HandOpeningError::Short { end: LogPosition::START, .. }), "{short}");
}

/// An idle owner appends nothing, so no refused append tells it.
fn loses_its_log(lose: impl Fn(&MemoryLog), words: &str) {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let spool = nodes.spool(0);
    let stream = spool.stream("a").unwrap();
    let lsn = append(&spool, stream, inline(100), "one");
    nodes.settle();
    lose(&nodes.log);
    let lost_at = nodes.now();
    nodes.until("it has stopped", |it| it.stopped(0).is_some());
    assert!(nodes.now() - lost_at >= OwnershipTimes::default().short, "a server may lag");
    let why = nodes.stopped(0).unwrap().to_string();
    assert!(why.contains(words), "{why}");
    let refused = start(&*spool, stream, inline(100), "two").recv().unwrap().unwrap_err();
    assert!(matches!(refused, AppendError::Poisoned(_) | AppendError::NotOwner), "{refused}");
    assert!(nodes.service(0).lease().is_none_or(|lease| !lease.may_act() && lease.begin().is_none()));
    // Nobody begins another history over what the members have.
    nodes.run_for(Duration::from_secs(90));
    assert_eq!(nodes.owner(), None);
    for node in 0..2 {
        let spool = nodes.spool(node);
        let kept = content(&spool, spool.stream("a").unwrap());
        assert_eq!(kept.into_iter().map(|it| it.0).collect::<Vec<_>>(), [lsn], "{node}");
    }
}

#[test]
fn an_owner_whose_log_is_gone_gives_the_shard_up() {
    loses_its_log(MemoryLog::delete, "the log is gone, and n0 has applied position");
}

#[test]
fn an_owner_whose_log_is_rolled_back_gives_the_shard_up() {
    loses_its_log(|log| log.roll_back(1), "the log ends at position");
}

#[test]
fn silence_between_two_looks_is_no_proof_of_a_short_log() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let spool = nodes.spool(0);
    append(&spool, spool.stream("a").unwrap(), inline(100), "one");
    nodes.settle();
    let short = OwnershipTimes::default().short;
    nodes.log.roll_back(1);
    nodes.run_for(Duration::from_secs(2));
    nodes.set_log_away(0, true);
    nodes.run_for(short);
    nodes.set_log_away(0, false);
    let seen_again_at = nodes.now();
    nodes.until("it has stopped", |it| it.stopped(0).is_some());
    assert!(nodes.now() - seen_again_at >= short, "one look after the silence");
}

#[test]
fn a_killed_owners_shard_is_taken_over_after_its_lease() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let lsn = append(&nodes.spool(0), nodes.spool(0).stream("a").unwrap(), inline(100), "one");
    nodes.settle();
    let lease = nodes.service(0).lease().unwrap();
    let killed_at = nodes.now();
    nodes.kill(0);
    nodes.until("the standby owns it", |it| it.owner() == Some(1));
    let time = nodes.now() - killed_at;
    assert!(time > BEFORE_LEASE_ENDS && time < Duration::from_secs(25), "{time:?}");
    assert!(!lease.may_act());
    let spool = nodes.spool(1);
    let stream = spool.stream("a").unwrap();
    assert_eq!(content(&spool, stream).iter().map(|it| it.0).collect::<Vec<_>>(), [lsn]);
    append(&spool, stream, Body::None, "two");
    // Its process starts again, and is a standby first. After a minute it has its shard back.
    nodes.start(0);
    nodes.until("it is back", |it| it.service(1).demotions() == 1 && it.owner() == Some(0));
    assert_eq!(content(&nodes.spool(0), nodes.spool(0).stream("a").unwrap()).len(), 2);
}

/// The log is cut without it, and nobody waits for it.
#[test]
fn a_removed_nodes_shard_is_taken_over_and_it_is_refused() {
    let mut nodes = Nodes::new(3, OwnershipTimes::default());
    nodes.until_in_sync();
    nodes.set_stopped(0, true);
    nodes.remove(0).unwrap();
    nodes.until("another owns it, without the removed node", |it| {
        matches!(it.owner(), Some(1 | 2)) && it.in_sync() == [1, 2]
    });
    // It was not dead, and wakes.
    let lease = nodes.service(0).lease().unwrap();
    nodes.set_stopped(0, false);
    nodes.until("it is told", |it| it.refusals(0) == 1);
    assert!(!lease.may_act());
    // Its next process is refused, too, until it is added.
    nodes.kill(0);
    nodes.start(0);
    nodes.until("it is told again", |it| it.refusals(0) == 2);
    nodes.kill(0);
    add_node(&nodes.cells, &name(0)).unwrap();
    nodes.start(0);
    nodes.until_in_sync();
    nodes.until("its home has it again", |it| it.owner() == Some(0));
}

/// The process is stopped for half a minute. When it wakes it knows nothing of that.
#[test]
fn a_stopped_owner_that_wakes_does_nothing() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let old = nodes.spool(0);
    let stream = old.stream("a").unwrap();
    append(&old, stream, inline(100), "before");
    let lease = nodes.service(0).lease().unwrap();
    nodes.set_stopped(0, true);
    nodes.until("the standby owns it", |it| it.owner() == Some(1));
    // Its threads go on before the one that keeps the lease does.
    assert!(!lease.may_act() && lease.begin().is_none());
    let late = start(&*old, stream, inline(10), "late").recv().unwrap();
    assert!(matches!(late, Err(AppendError::NotOwner)), "{late:?}");
    let epoch = nodes.service(1).lease().unwrap().epoch();
    nodes.set_stopped(0, false);
    nodes.run_for(Duration::from_secs(10));
    assert_eq!((nodes.service(0).promotions(), nodes.service(0).demotions()), (1, 1));
    assert_eq!(nodes.owner(), Some(1));
    assert_eq!(nodes.service(1).lease().unwrap().epoch(), epoch);
    assert!(!lease.may_act());
    let new = nodes.spool(1);
    append(&new, new.stream("a").unwrap(), Body::None, "after");
    nodes.meet();
    let names: Vec<_> = content(&old, stream).into_iter().map(|it| it.1).collect();
    assert_eq!(names, ["before", "after"]);
}

#[test]
fn an_engine_that_pauses_moves_no_shard() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let lease = nodes.service(0).lease().unwrap();
    nodes.cells.set_away(true);
    nodes.run_for(Duration::from_secs(60));
    assert!(!lease.may_act() && lease.begin().is_none());
    nodes.cells.set_away(false);
    nodes.until("the owner acts again", |_| lease.may_act());
    nodes.run_for(Duration::from_secs(30));
    assert_eq!(nodes.owner(), Some(0));
    assert_eq!((nodes.service(0).promotions(), nodes.service(1).promotions()), (1, 0));
    // The cells are watched again.
    while nodes.cells.watchers() < 2 {
        std::thread::yield_now();
    }
    nodes.settle();
    let before = nodes.now();
    nodes.hand_over(0, 1);
    nodes.until("it is handed over", |it| it.owner() == Some(1));
    assert!(nodes.now() - before <= Duration::from_secs(1));
}

#[test]
fn a_standby_too_far_behind_is_not_promoted() {
    let times =
        OwnershipTimes { behind_least: 1000, behind_most: (Duration::from_secs(3600), 5000), ..Default::default() };
    let mut nodes = Nodes::new(2, times);
    nodes.until_in_sync();
    let spool = nodes.spool(0);
    let stream = spool.stream("a").unwrap();
    nodes.meet();
    nodes.set_log_away(1, true);
    for n in 0..10 {
        append(&spool, stream, inline(1000), &n.to_string());
    }
    nodes.until("it is out of sync", |it| it.in_sync() == [0]);
    // Not on request, either.
    nodes.hand_over(0, 1);
    nodes.run_for(Duration::from_secs(10));
    assert_eq!((nodes.owner(), nodes.service(0).promotions()), (Some(0), 1));
    nodes.kill(0);
    drop(spool);
    nodes.run_for(Duration::from_secs(120));
    assert_eq!((nodes.owner(), nodes.service(1).promotions()), (None, 0));
    // A process that has all of it may.
    nodes.start(0);
    nodes.until("its member owns it", |it| it.owner() == Some(0));
    nodes.set_log_away(1, false);
    nodes.until("the other is back in sync", |it| it.in_sync() == [0, 1]);
}

#[test]
fn the_log_is_cut_below_what_all_in_sync_have() {
    let times = OwnershipTimes { keep: (Duration::from_secs(2), 1 << 40), ..Default::default() };
    let mut nodes = Nodes::new(2, times);
    nodes.until_in_sync();
    let spool = nodes.spool(0);
    let stream = spool.stream("a").unwrap();
    nodes.meet();
    nodes.set_log_away(1, true);
    let applied = nodes.spool(1).place().unwrap().applied;
    for n in 0..20 {
        append(&spool, stream, inline(100), &n.to_string());
    }
    nodes.run_for(Duration::from_secs(30));
    assert!(nodes.log.first().unwrap() <= applied, "the standby still needs what is after {applied}");
    nodes.set_log_away(1, false);
    nodes.meet();
    let end = nodes.log.end().unwrap();
    append(&spool, stream, Body::None, "one more");
    nodes.until("the log is cut", |it| it.log.first().unwrap() >= end);
    assert!(nodes.log.first().unwrap() <= nodes.spool(1).place().unwrap().applied.next());
    assert!(nodes.log.first().unwrap() > LogPosition::START.next());
}

#[test]
fn draining_gives_a_shard_away_at_once_and_takes_none() {
    let mut nodes = Nodes::new(2, OwnershipTimes::default());
    nodes.until_in_sync();
    let before = nodes.now();
    let drained = nodes.drain(0);
    nodes.until("it is given away", |it| it.owner() == Some(1));
    assert!(nodes.now() - before <= Duration::from_secs(1));
    drained.recv().unwrap();
    // Neither as its home, nor from an owner that is gone.
    nodes.run_for(Duration::from_secs(90));
    assert_eq!(nodes.owner(), Some(1));
    nodes.kill(1);
    nodes.run_for(Duration::from_secs(60));
    assert_eq!(nodes.owner(), None);
}

/// The whole of it, with threads and the time of the machine.
#[test]
fn a_node_runs_by_itself() {
    let mut place = Place::new(LogFaults::default());
    let spool = Arc::new(place.follow().unwrap());
    let (tell, told) = channel();
    let service = Service::new(spool.clone());
    let world = DriverWorld {
        cells: Arc::new(MemoryCells::default()),
        calls: Arc::new(CallThreads::start().unwrap()),
        clock: Arc::new(BootTime),
    };
    let shards = vec![NodeShard::new(spool.clone(), true, service.clone())];
    let tell = Box::new(move |news: NodeNews| drop(tell.send(news)));
    let driver = NodeDriver::new(settings(0, 7, OwnershipTimes::default()), world, shards, tell).unwrap();
    let node = ClusterNode::start(driver).unwrap();
    assert_eq!(told.recv().unwrap(), NodeNews::Owner { shard: SHARD, epoch: 1 });
    let lease = service.lease().unwrap();
    let begun = lease.begin().unwrap();
    append(&spool, spool.stream("a").unwrap(), inline(10), "one");
    drop(begun);
    node.drain();
    assert!(!lease.may_act());
    assert_eq!(told.recv().unwrap(), NodeNews::Standby { shard: SHARD });
    assert_eq!(service.demotions(), 1);
}
