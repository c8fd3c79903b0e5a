//! More sites than connections: each gets its turn.

use std::net::Ipv4Addr;
use std::time::Duration;

use posthaste_dns::Zone;
use posthaste_relay::session::Timeouts;

use crate::rig_with;
use crate::sink::Sink;

/// One site for each domain: `0.example`, `1.example`, …
fn sites(count: usize) -> Zone {
    (0..count).fold(Zone::default(), |zone, number| {
        let (domain, host) = (format!("{number}.example"), format!("mx.{number}.example"));
        zone.mx(&domain, 10, &host).a(&host, Ipv4Addr::LOCALHOST)
    })
}

/// Idle connections would be kept for a long time, and would be in the way for as long.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn an_idle_connection_gives_way_to_a_site_that_has_none() {
    let sink = Sink::start();
    let rig = rig_with(sites(5), sink.port(), |config| {
        config.connections_max = 2;
        config.timeouts = Timeouts { idle: LONG, ..Timeouts::default() };
    });
    for number in 0..5 {
        rig.send("ann@here.example", &[&format!("bob@{number}.example")], "Subject: x\r\n\r\n");
    }
    rig.wait_empty();
    assert_eq!(sink.taken().len(), 5);
}

#[test]
fn mail_that_keeps_coming_for_many_sites_does_not_wait_for_connections_that_do_nothing() {
    let sink = Sink::start();
    let rig = rig_with(sites(100), sink.port(), |config| {
        config.connections_max = 5;
        config.timeouts = Timeouts { idle: LONG, ..Timeouts::default() };
    });
    for turn in 0..20 {
        // Some sites have more than one connection's worth, so that they ask for others.
        for number in 0..100 {
            let site = number * 7 % (100 - turn);
            rig.send("ann@here.example", &[&format!("bob@{site}.example")], "Subject: x\r\n\r\n");
        }
    }
    rig.wait_empty();
    assert_eq!(sink.taken().len(), 2000);
    // Tasks that ask at the same moment may be let through together.
    assert!(sink.open_max() <= 10, "{}", sink.open_max());
}

#[test]
fn idle_connections_leave_room_for_sites_that_want_more_than_they_have() {
    let sink = Sink::start();
    let rig = rig_with(sites(20), sink.port(), |config| {
        config.connections_max = 16;
        config.timeouts = Timeouts { idle: LONG, ..Timeouts::default() };
    });
    for number in 0..20 {
        rig.send("ann@here.example", &[&format!("bob@{number}.example")], "Subject: x\r\n\r\n");
    }
    rig.wait_empty();
    // Twelve may stay: three quarters.
    sink.wait_quits(8);
    assert_eq!(sink.taken().len(), 20);
}
