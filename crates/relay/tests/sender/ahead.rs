//! Call-ahead: the next hop is asked whether it takes mail for an address.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_dns_stub::Zone;
use posthaste_queue::QueueEntry;
use posthaste_relay::sender::{Ahead, FixedRoute, Relay, Routing};
use posthaste_shaping::MailScope;
use posthaste_smtp::{Address, Protocol};
use tokio::runtime::{Builder, Runtime};

use crate::failing::{Act, At, Ending};
use crate::shaping::rules;
use crate::sink::Sink;
use crate::{LOOPBACK, Rig, rig_with, wait, zone};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn address(text: &str) -> Address {
    Address::parse(text).unwrap()
}

impl Rig {
    fn ask(&self, to: &str) -> Ahead {
        runtime().block_on(self.relay.ask_ahead(&address(to)))
    }
}

fn not_known(answer: Ahead) -> String {
    match answer {
        Ahead::NotKnown(why) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_next_hop_decides_and_is_asked_once() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    for _ in 0..3 {
        assert_eq!(rig.ask("ann@a.example"), Ahead::Taken);
        assert_eq!(rig.ask("ann@A.Example"), Ahead::Taken);
        let Ahead::Refused(reply) = rig.ask("nobody@a.example") else { panic!("it exists") };
        assert_eq!(reply.to_string(), "550 5.1.1 The next host refuses this address: no such user");
        assert!(not_known(rig.ask("never@a.example")).starts_with("451 4.2.0 never now"));
    }
    for to in ["ann@a.example", "nobody@a.example", "never@a.example"] {
        assert_eq!(sink.rcpts(to), 1, "{to}");
    }
    assert!(sink.taken().is_empty());
    // One that is idle for seconds ends, and this thread may have stood still.
    let connections = sink.connections();
    assert!(connections < 3, "a session is used again");
    sink.wait_quits(connections);
    assert_eq!(rig.ask("Ann@a.example"), Ahead::Taken);
    let more = (sink.rcpts("Ann@a.example"), sink.connections() - connections);
    assert_eq!(more, (1, 1), "the case of a local part is its host's");
    rig.relay.set_routing(&Routing::default());
    assert_eq!(rig.ask("ann@a.example"), Ahead::Taken);
    assert_eq!(sink.rcpts("ann@a.example"), 2, "other routes, other answers");
}

#[test]
fn a_next_hop_that_cannot_be_asked_is_left_alone_for_a_while() {
    let sink = Sink::start();
    let zone = zone().mx("dead.example", 1, "dead.mx.example").a("dead.mx.example", Ipv4Addr::new(127, 0, 0, 77));
    let rig = rig_with(zone, sink.port(), |_| ());
    let why = not_known(rig.ask("cut@a.example"));
    assert!(why.contains("mx.a.example (127.0.0.1)") && why.contains("before the reply to RCPT"), "{why}");
    assert_eq!(not_known(rig.ask("ann@a.example")), why, "nobody asks it");
    assert_eq!((sink.connections(), sink.rcpts("ann@a.example")), (1, 0));
    assert!(not_known(rig.ask("ann@dead.example")).contains("while connecting"));
    assert!(not_known(rig.ask("ann@gone.example")).contains("does not exist"));
    rig.relay.set_routing(&Routing::default());
    assert_eq!(rig.ask("ann@a.example"), Ahead::Taken);
}

const SLOW_DOWN: &str = "421 4.7.0 slow down\r\n";
const SUSPENDS: &str = "[[default.automation]]\npatterns = ['^421 4\\.7\\.0']\naction = 'suspend'\nfor = '1 hour'\n";

#[test]
fn a_421_to_a_question_is_seen_with_its_stage_and_host() {
    let acts: [(Act, &str); 3] = [
        (|_| (At::Greeting, SLOW_DOWN), "greeting"),
        (|_| (At::Mail, SLOW_DOWN), "MAIL"),
        (|_| (At::Rcpt, SLOW_DOWN), "RCPT"),
    ];
    for (act, stage) in acts {
        let ending = Ending::start(act);
        let rig = rig_with(zone(), ending.address.port(), |config| config.shaping = rules(SUSPENDS));
        let why = not_known(rig.ask("bob@a.example"));
        assert!(why.contains("mx.a.example (127.0.0.1): ") && why.contains("4.7.0 slow down"), "{stage}: {why}");
        wait(stage, || !rig.log.interrupted.lock().unwrap().is_empty());
        let told = rig.log.interrupted.lock().unwrap().clone();
        assert_eq!(told, [format!(" mx.a.example {stage}: 421 4.7.0 slow down")]);
        wait(stage, || !rig.relay.suspensions().is_empty());
        let QueueEntry::Suspended { scope, reason, .. } = rig.relay.suspensions().remove(0) else { panic!("{stage}") };
        assert_eq!(scope, MailScope::Site(format!("10 mx.a.example :{}", ending.address.port()).into()), "{stage}");
        assert!(reason.contains("421 4.7.0 slow down"), "{stage}: {reason}");
        // No other address is asked for at the same time.
        assert_eq!((not_known(rig.ask("eve@a.example")), ending.connections()), (why, 1), "{stage}");
    }
}

#[test]
fn a_host_that_says_421_leaves_the_question_to_the_next() {
    let first = Ending::start(|_| (At::Rcpt, SLOW_DOWN));
    let next = Ending::at(((Ipv4Addr::new(127, 0, 0, 2)), first.address.port()).into(), |_| (At::Never, ""));
    let zone = Zone::default().mx("a.example", 10, "mx1.example").mx("a.example", 20, "mx2.example");
    let zone = zone.a("mx1.example", LOOPBACK).a("mx2.example", Ipv4Addr::new(127, 0, 0, 2));
    let rig = rig_with(zone, first.address.port(), |_| ());
    assert_eq!(rig.ask("bob@a.example"), Ahead::Taken);
    assert_eq!((first.connections(), next.connections()), (1, 1));
    assert_eq!(*rig.log.interrupted.lock().unwrap(), [" mx1.example RCPT: 421 4.7.0 slow down"]);
}

#[test]
fn a_421_in_a_session_that_waits_for_questions_is_seen() {
    // After its answer to the first question.
    let ending = Ending::start(|number| match number {
        0 => (At::Rcpt, "250 2.1.5 ok\r\n421 4.7.0 slow down\r\n"),
        _ => (At::Never, ""),
    });
    let rig = rig_with(zone(), ending.address.port(), |_| ());
    assert_eq!(rig.ask("bob@a.example"), Ahead::Taken);
    assert_eq!(rig.ask("eve@a.example"), Ahead::Taken);
    assert_eq!(ending.connections(), 2);
    let told = rig.log.interrupted.lock().unwrap().clone();
    assert!(told.len() == 1 && told[0].ends_with(": 421 4.7.0 slow down"), "{told:?}");
}

#[test]
fn a_closed_session_and_a_dead_host_are_passed_over() {
    let sink = Sink::start();
    // The first host has no listener at that port.
    let zone = zone().mx("b.example", 10, "dead.example").mx("b.example", 20, "mx.a.example");
    let rig = rig_with(zone.a("dead.example", Ipv4Addr::new(127, 0, 0, 77)), sink.port(), |_| ());
    assert_eq!(rig.ask("ann@b.example"), Ahead::Taken);
    // It cuts the reused session, and answers in a new one.
    assert_eq!(rig.ask("once@b.example"), Ahead::Taken);
    assert_eq!((sink.rcpts("once@b.example"), sink.connections()), (2, 2));
}

#[test]
fn a_silent_next_hop_holds_up_nobody_else() {
    let sink = Sink::start();
    let other = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| {
        config.routing.routes =
            vec![FixedRoute { domain: "b.example".to_owned(), ..FixedRoute::new("[127.0.0.1]", other.port()) }.into()];
    });
    let relay = rig.relay.clone();
    let asking = std::thread::spawn(move || runtime().block_on(relay.ask_ahead(&address("hang@a.example"))));
    sink.wait_hanging(1);
    assert_eq!(rig.ask("ann@b.example"), Ahead::Taken);
    sink.release();
    asking.join().unwrap();
}

#[test]
fn a_silent_next_hop_is_given_up_in_time() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.timeouts.rcpt = Duration::from_millis(300));
    let why = not_known(rig.ask("hang@a.example"));
    assert!(why.contains("timed out"), "{why}");
    sink.release();
}

#[test]
fn one_asks_for_all_who_want_the_same_and_four_at_a_time() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    let runtime = runtime();
    let ask = |relay: &Relay, to: String| {
        let relay = relay.clone();
        runtime.spawn(async move { relay.ask_ahead(&address(&to)).await })
    };
    let same: Vec<_> = (0..20).map(|_| ask(&rig.relay, "hang@a.example".to_owned())).collect();
    let others: Vec<_> = (0..20).map(|number| ask(&rig.relay, format!("hang{number}@a.example"))).collect();
    sink.wait_hanging(4);
    sink.release();
    for asking in same.into_iter().chain(others) {
        assert_eq!(runtime.block_on(asking).unwrap(), Ahead::Taken);
    }
    assert_eq!(sink.rcpts("hang@a.example"), 1);
    assert!(sink.open_max() <= 4, "{} connections at a time", sink.open_max());
}

#[test]
fn who_goes_away_leaves_the_question_to_the_others() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    let runtime = runtime();
    let relay = rig.relay.clone();
    let first = runtime.spawn(async move { relay.ask_ahead(&address("hang@a.example")).await });
    sink.wait_hanging(1);
    let relay = rig.relay.clone();
    let second = runtime.spawn(async move { relay.ask_ahead(&address("hang@a.example")).await });
    first.abort();
    sink.wait_hanging(2);
    sink.release();
    assert_eq!(runtime.block_on(second).unwrap(), Ahead::Taken);
}

#[test]
fn a_route_is_asked_as_its_mail_would_be_sent() {
    let sink = Sink::at((LOOPBACK, 0).into());
    let rig = rig_with(Zone::default(), 1, |config| {
        let route = FixedRoute { protocol: Protocol::Lmtp, ..FixedRoute::new("[127.0.0.1]", sink.port()) };
        config.routing.routes = vec![Arc::new(route)];
    });
    assert_eq!(rig.ask("ann@unknown.example"), Ahead::Taken);
    assert!(matches!(rig.ask("nobody@unknown.example"), Ahead::Refused(_)));
    rig.send("x@y.example", &["ann@unknown.example"], "x\r\n");
    sink.wait_taken(1);
    rig.wait_empty();
}
