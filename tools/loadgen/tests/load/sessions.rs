//! Every way to send.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use posthaste_loadgen::account::account;
use posthaste_loadgen::load::{Pipelining, Plan, Pool, Progress, Stop, run};
use posthaste_loadgen::values::PerConnection;
use posthaste_smtp::server::Protocol;
use tokio::sync::Semaphore;

use crate::support::{TestServer, Treat, errors, go};

/// Runs `count` messages and expects each of them whole. Returns the number of sessions.
fn check(server: &TestServer, count: u64, change: impl Fn(&mut Plan)) -> u64 {
    let mut plan = server.plan(count);
    change(&mut plan);
    let case = format!("{:?} bdat {} {:?}", plan.pipelining, plan.bdat, plan.per_connection);
    let outcome = go(plan);
    assert_eq!((outcome.total.acked, outcome.total.failed), (count, 0), "{case}: {:?}", outcome.errors);
    let account = account(&outcome.ledger, &server.stores(), &[], None).expect("the store can be read");
    assert!(account.is_clean(), "{case}: {}", account.to_text(5));
    for entry in std::fs::read_dir(server.store.path()).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    outcome.sessions
}

#[test]
fn every_way_to_send_delivers_every_message_whole() {
    for protocol in [Protocol::Smtp, Protocol::Lmtp] {
        let server = TestServer::with(protocol, |_| Treat::Keep, |_| Ok(()), None);
        for pipelining in [Pipelining::Off, Pipelining::On, Pipelining::Ahead] {
            for bdat in [false, true] {
                for recipients in [1, 3] {
                    let sessions = check(&server, 40, |plan| {
                        plan.pipelining = pipelining;
                        plan.bdat = bdat;
                        plan.recipients_per_message = recipients;
                    });
                    assert_eq!(sessions, 4);
                }
            }
        }
    }
}

#[test]
fn connections_carry_as_many_messages_as_asked_for() {
    let server = TestServer::start(|_| Treat::Keep);
    for (pipelining, count) in
        [(Pipelining::On, 1), (Pipelining::Ahead, 1), (Pipelining::On, 10), (Pipelining::Ahead, 10)]
    {
        let sessions = check(&server, 200, |plan| {
            plan.per_connection = PerConnection::Count(NonZeroU64::new(count).unwrap());
            plan.pipelining = pipelining;
        });
        // The last connections may end early, as the messages are used up.
        assert!((200 / count..=200 / count + 3).contains(&sessions), "{sessions} sessions for {count} messages each");
    }
}

#[test]
fn threads_targets_and_sockets_share_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lmtp");
    let unix = TestServer::with(Protocol::Lmtp, |_| Treat::Keep, |_| Ok(()), Some(&path));
    let tcp = TestServer::start(|_| Treat::Keep);
    let mut plan = unix.plan(400);
    plan.servers.extend(tcp.plan(0).servers);
    plan.threads = 2;
    let outcome = go(plan);
    assert_eq!((outcome.total.acked, outcome.errors.len()), (400, 0), "{:?}", outcome.errors);
    let both: Vec<_> = unix.stores().into_iter().chain(tcp.stores()).collect();
    assert!(account(&outcome.ledger, &both, &[], None).unwrap().is_clean());
    for store in &both {
        assert!(std::fs::read_dir(store).unwrap().count() > 0, "both servers have mail");
    }
}

#[test]
fn rounds_and_warm_up_are_told_apart() {
    // A busy machine may need longer until the first message has its reply.
    let (server, outcome) = [1, 4, 16, 64]
        .into_iter()
        .map(|halves| {
            let server = TestServer::start(|_| Treat::Keep);
            let mut plan = server.plan(100);
            plan.rounds = 3;
            plan.pace.warmup = halves * Duration::from_millis(500);
            (server, go(plan))
        })
        .find(|(_, outcome)| outcome.total.warmup > 0)
        .expect("there was time to warm up");
    assert_eq!(outcome.rounds.iter().map(|round| round.acked).collect::<Vec<_>>(), [100, 100, 100]);
    let account = account(&outcome.ledger, &server.stores(), &[], None).unwrap();
    assert!(account.is_clean());
    assert_eq!(account.acked, 300 + outcome.total.warmup, "the warm-up is accounted for as well");
    assert_eq!(outcome.total.latency.count, 300);
}

#[test]
fn a_schedule_is_kept() {
    let server = TestServer::start(|_| Treat::Keep);
    let mut plan = server.plan(200);
    plan.pace.rate = Some(400.0);
    let outcome = go(plan);
    assert_eq!((outcome.total.acked, outcome.total.missed), (200, 0));
    // The last message is due after 199/400 seconds, and none is sent before it is due.
    assert!(outcome.total.elapsed_s >= 0.4975, "{}", outcome.total.elapsed_s);
}

#[test]
fn real_messages_arrive_as_they_are() {
    let server = TestServer::start(|_| Treat::Keep);
    let real =
        vec![b"Subject: dots\r\n\r\n.\r\n..\r\n.x\r\n".to_vec(), "Subject: 8 bit\n\nsm\u{f8}rbr\u{f8}d\n".into()];
    for bdat in [false, true] {
        check(&server, 40, |plan| {
            plan.pool = Arc::new(Pool::of_messages(real.clone(), &["X-Test: yes".into()]));
            plan.bdat = bdat;
        });
    }
}

#[test]
fn a_run_that_is_stopped_still_has_its_figures() {
    let server = TestServer::start(|_| Treat::Keep);
    let mut plan = server.plan(u64::MAX);
    plan.connections = 2;
    let stop = Stop::default();
    let mut watch = |progress: &Progress<'_>| {
        if progress.acked > 0 {
            stop.ask();
        }
    };
    let outcome = run(plan, &[], &stop, Duration::from_millis(20), &mut watch).unwrap();
    assert!(outcome.was_stopped && outcome.total.acked > 0);
    assert_eq!(errors(&outcome), []);
    assert!(account(&outcome.ledger, &server.stores(), &[], None).unwrap().is_clean());
}

#[test]
fn a_stopped_run_waits_for_what_is_in_flight_until_urged() {
    for is_urged in [false, true] {
        let (gate, arrived) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (held, seen) = (Arc::clone(&gate), Arc::clone(&arrived));
        let server = TestServer::start(move |_| {
            seen.fetch_add(1, Relaxed);
            Treat::Hold(Arc::clone(&held))
        });
        let mut plan = server.plan(u64::MAX);
        plan.connections = 2;
        let stop = Stop::default();
        let mut watch = |_: &Progress<'_>| match arrived.load(Relaxed) {
            2 if is_urged => stop.urge(),
            2 => {
                stop.ask();
                gate.add_permits(2);
            }
            _ => {}
        };
        let outcome = run(plan, &[], &stop, Duration::from_millis(20), &mut watch).unwrap();
        let (acked, failed) = if is_urged { (0, 2) } else { (2, 0) };
        assert_eq!((outcome.total.acked, outcome.total.failed), (acked, failed), "{:?}", outcome.errors);
        assert_eq!(errors(&outcome).first().copied(), is_urged.then_some(("body timeout", 2)));
        assert!(outcome.was_stopped);
    }
}
