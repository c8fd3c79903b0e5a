//! Changes while mail is in flight: the server ends, or DNS names other hosts.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use posthaste_dns_stub::Zone;
use posthaste_intake::Destination as _;

use crate::sink::Sink;
use crate::{rig_in, rig_with, zone};

#[test]
fn an_end_finishes_the_message_under_way_and_begins_none() {
    // Without PIPELINING, so that the second message is not taken right after the first.
    let sink = Sink::offering(&["8BITMIME"]);
    let idle = Sink::at((Ipv4Addr::new(127, 0, 0, 2), sink.port()).into());
    let zone = || zone().mx("b.example", 10, "mx.b.example").a("mx.b.example", Ipv4Addr::new(127, 0, 0, 2));
    let change = |config: &mut crate::Config| {
        config.site_connections_max = 1;
        config.timeouts.idle = Duration::from_secs(3600);
    };
    let rig = rig_with(zone(), sink.port(), change);
    rig.send("ann@here.example", &["bob@b.example"], "x\r\n");
    rig.wait_empty();
    rig.send("ann@here.example", &["slow@a.example"], "first\r\n");
    sink.wait_slow(1);
    rig.send("ann@here.example", &["bob@a.example"], "second\r\n");
    let relay = rig.relay.clone();
    let ending = std::thread::spawn(move || relay.end_by(Instant::now() + Duration::from_secs(60)));
    // An idle session ends at once when the end begins.
    idle.wait_quits(1);
    sink.release();
    ending.join().unwrap();
    assert_eq!((sink.taken().len(), rig.relay.stats().recipients), (1, 1), "one is done and recorded, one waits");
    let rig = rig_in(rig.end(), zone(), sink.port(), change);
    let taken = sink.wait_taken(2);
    assert_eq!((&*taken[0].body, &*taken[1].body), (&b"first\r\n"[..], &b"second\r\n"[..]));
    rig.wait_empty();
    assert_eq!(sink.taken().len(), 2, "none of them twice");
}

#[test]
fn the_hosts_are_looked_up_again_once_their_time_is_over() {
    let old = Sink::start();
    let new = Ipv4Addr::new(127, 0, 0, 2);
    let moved = Sink::at((new, old.port()).into());
    let brief = Zone::default().ttl(1).mx("a.example", 10, "mx.a.example").a("mx.a.example", Ipv4Addr::LOCALHOST);
    let rig = rig_with(brief, old.port(), |_| ());
    rig.send("ann@here.example", &["never@a.example"], "x\r\n");
    old.wait_rcpts("never@a.example", 1);
    rig.dns.change(Zone::default().mx("a.example", 10, "mx2.a.example").a("mx2.a.example", new));
    // The same recipient at its next attempts, and mail that comes later.
    moved.wait_rcpts("never@a.example", 1);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    moved.wait_taken(1);
    assert_eq!(old.taken(), []);
}
