//! More sites than connections: each gets its turn.

use std::net::Ipv4Addr;
use std::time::Duration;

use posthaste_dns_stub::Zone;
use posthaste_relay::session::SessionTimeouts;

use crate::sink::Sink;
use crate::{Rig, rig_with};

/// One site per domain, `0.example`, `1.example` and so on, with a limit of connections in all.
fn crowd(sites: usize, connections_max: usize) -> (Sink, Rig) {
    let zone = (0..sites).fold(Zone::default(), |zone, number| {
        let domain = format!("{number}.example");
        let host = format!("mx.{number}.example");
        zone.mx(&domain, 10, &host).a(&host, Ipv4Addr::LOCALHOST)
    });
    let sink = Sink::start();
    let rig = rig_with(zone, sink.port(), |config| {
        config.connections_max = connections_max;
        config.timeouts = SessionTimeouts { idle: LONG, ..SessionTimeouts::default() };
    });
    (sink, rig)
}

fn send_to(rig: &Rig, site: usize) {
    rig.send("ann@here.example", &[&format!("bob@{site}.example")], "Subject: x\r\n\r\n");
}

/// Keeps idle connections so long that they would be in the way.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn an_idle_connection_gives_way_to_a_site_that_has_none() {
    let (sink, rig) = crowd(5, 2);
    (0..5).for_each(|site| send_to(&rig, site));
    rig.wait_empty();
    assert_eq!(sink.taken().len(), 5);
}

#[test]
fn steady_mail_for_many_sites_waits_for_no_idle_connection() {
    let (sink, rig) = crowd(100, 5);
    for turn in 0..20 {
        // Some sites have mail for more than one connection, so that they ask for others.
        for number in 0..100 {
            send_to(&rig, number * 7 % (100 - turn));
        }
    }
    rig.wait_empty();
    assert_eq!(sink.taken().len(), 2000);
    // The next begins before the sink has seen the end of the one before.
    assert!(sink.open_max() <= 10, "{}", sink.open_max());
}

#[test]
fn idle_connections_make_room_for_sites_that_want_more() {
    let (sink, rig) = crowd(20, 16);
    (0..20).for_each(|site| send_to(&rig, site));
    rig.wait_empty();
    // Twelve may stay: three quarters.
    sink.wait_quits(8);
    assert_eq!(sink.taken().len(), 20);
}
