//! Mail that cannot reach its usual next hop, and routes with several hosts.

use std::net::Ipv4Addr;
use std::sync::Arc;

use posthaste_dns_stub::Zone;
use posthaste_relay::sender::{Config, FixedRoute, Routing};

use super::sink::Sink;
use super::{LOOPBACK, rig_in, rig_with, schedules, unused_port, wait, zone};

/// An address without a listener.
const DEAD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

fn fallback(sink: &Sink) -> Arc<FixedRoute> {
    FixedRoute { is_fallback: true, ..FixedRoute::new("[127.0.0.1]", sink.port()) }.into()
}

#[test]
fn mail_falls_back_while_no_host_answers_and_returns() {
    let other = Sink::start();
    let own = Ipv4Addr::new(127, 0, 0, 78);
    let zone = Zone::default().mx("a.example", 1, "mx.a.example").a("mx.a.example", own);
    let port = unused_port(own);
    let rig = rig_with(zone, port, |config| {
        config.schedules = schedules(3600, 86_400);
        config.site_pause_secs = 2;
        config.routing = Routing { routes: vec![fallback(&other)], ..Routing::default() };
    });
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    other.wait_taken(1);
    rig.wait_empty();
    assert!(!rig.log().iter().any(|line| line.contains("deferred")), "{:?}", rig.log());
    // The pause ends sooner or later; then mail goes to its own host again.
    let sink = Sink::at((own, port).into());
    let number = std::cell::Cell::new(0);
    wait("its own host gets some", || {
        number.set(number.get() + 1);
        rig.send("ann@here.example", &["bob@a.example"], "y\r\n");
        !sink.taken().is_empty()
    });
    rig.wait_empty();
    assert_eq!(sink.taken().len() + other.taken().len(), number.get() + 1, "each once");
}

#[test]
fn a_missing_domain_has_no_fallback_and_a_silent_one_has() {
    let other = Sink::start();
    let zone =
        Zone::default().mx("here.example", 1, "mx.here.example").a("mx.here.example", LOOPBACK).fails("lost.example");
    let rig = rig_with(zone, other.port(), |config| {
        config.routing = Routing { routes: vec![fallback(&other)], ..Routing::default() };
    });
    rig.send("ann@here.example", &["bob@gone.example"], "x\r\n");
    let taken = other.wait_taken(1);
    assert!(taken[0].sender.is_empty(), "the notification: {taken:?}");
    rig.send("ann@here.example", &["bob@lost.example"], "x\r\n");
    let taken = other.wait_taken(2);
    assert_eq!(taken[1].recipients, ["bob@lost.example"]);
}

#[test]
fn hosts_of_a_route_are_tried_in_order_and_by_tenant() {
    let first = Sink::at((Ipv4Addr::new(127, 0, 0, 21), 0).into());
    let second = Sink::start();
    let of_tenant = Sink::start();
    let zone = Zone::default()
        .a("dead.example", DEAD)
        .a("one.example", Ipv4Addr::new(127, 0, 0, 21))
        .a("two.example", LOOPBACK);
    let rig = rig_with(zone, 1, |config| {
        let hosts = ["dead.example", "one.example", "two.example"].map(str::to_owned).into();
        let all = FixedRoute { hosts, ..FixedRoute::new("", first.port()) };
        let tenants = vec!["t".to_owned()];
        let of_tenant = FixedRoute { tenants, ..FixedRoute::new("[127.0.0.1]", of_tenant.port()) };
        config.routing.routes = vec![of_tenant.into(), all.into()];
    });
    for _ in 0..10 {
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    }
    rig.send_for("t", "ann@here.example", &["eve@a.example"]);
    assert_eq!(of_tenant.wait_taken(1)[0].recipients, ["eve@a.example"]);
    first.wait_taken(10);
    rig.wait_empty();
    assert_eq!((of_tenant.taken().len(), second.taken().len()), (1, 0));
}

#[test]
fn what_has_had_its_attempts_falls_back_also_behind_a_restart() {
    let own = Sink::start();
    let other = Sink::start();
    let change = |config: &mut Config| {
        let route = FixedRoute { is_fallback: true, after_attempts: 2, ..FixedRoute::new("[127.0.0.1]", other.port()) };
        config.routing = Routing { routes: vec![route.into()], ..Routing::default() };
    };
    let rig = rig_with(zone(), own.port(), change);
    rig.send("ann@here.example", &["never1@a.example", "bob@a.example", "later@a.example"], "x\r\n");
    own.wait_taken(2);
    other.wait_rcpts("never1@a.example", 2);
    assert_eq!((own.rcpts("never1@a.example"), own.rcpts("later@a.example")), (2, 2));
    assert!(other.taken().is_empty(), "one attempt more was enough for the others");
    let rig = rig_in(rig.end(), zone(), own.port(), change);
    let before = other.rcpts("never1@a.example");
    rig.flush();
    other.wait_rcpts("never1@a.example", before + 1);
    rig.send("ann@here.example", &["eve@a.example"], "y\r\n");
    own.wait_taken(3);
    assert_eq!(own.rcpts("never1@a.example"), 2);
    // Without the route it takes its usual path.
    rig.relay.set_routing(&Routing::default());
    rig.flush();
    own.wait_rcpts("never1@a.example", 3);
}
