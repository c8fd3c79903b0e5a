//! The host of a message, by DNS: chains of names, many hosts, dead ones, none.

use super::*;

#[test]
fn domains_without_a_host_fail_with_their_codes() {
    let sink = Sink::start();
    let zone = zone().null_mx("null.example").mx("empty.example", 1, "nowhere.example");
    let rig = rig_with(zone, sink.port(), |_| ());
    rig.send("ann@a.example", &["x@null.example"], "x\r\n");
    rig.send("ann@a.example", &["x@gone.example"], "x\r\n");
    rig.send("ann@a.example", &["x@empty.example"], "x\r\n");
    let taken = sink.wait_taken(3);
    let texts: Vec<String> = taken.iter().map(|taken| String::from_utf8_lossy(&taken.body).into_owned()).collect();
    for status in ["Status: 5.1.10", "Status: 5.1.2", "Status: 5.4.4"] {
        assert!(texts.iter().any(|text| text.contains(status)), "{status} in {texts:?}");
    }
    rig.wait_empty();
}

#[test]
fn the_next_host_follows_a_dead_one_and_no_attempt_counts() {
    let sink = Sink::start();
    // The first host has no listener at that port; the second takes the mail.
    let zone = Zone::default()
        .mx("a.example", 10, "dead.example")
        .mx("a.example", 20, "mx.a.example")
        .a("dead.example", Ipv4Addr::new(127, 0, 0, 77))
        .a("mx.a.example", LOOPBACK);
    let rig = rig_with(zone, sink.port(), |_| ());
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    sink.wait_taken(1);
    rig.send("ann@here.example", &["once@a.example"], "y\r\n");
    sink.wait_taken(2);
    rig.wait_empty();
    let log = rig.log();
    assert!(!log.iter().any(|line| line.contains("deferred")), "{log:?}");
}

#[test]
fn a_cname_chain_leads_to_the_host_and_keeps_the_address() {
    let sink = Sink::start();
    let zone = Zone::default().cname("alias.example", "more.example").cname("more.example", "real.example");
    let zone = zone.mx("real.example", 10, "mx.example").cname("mx.example", "host.example");
    let rig = rig_with(zone.a("host.example", LOOPBACK), sink.port(), |_| ());
    rig.send("ann@here.example", &["bob@alias.example"], "x\r\n");
    assert_eq!(sink.wait_taken(1)[0].recipients, ["bob@alias.example"]);
    rig.wait_empty();
    assert_eq!(rig.relay.stats().delivered, 1);
}

#[test]
fn a_cname_loop_ends_and_the_next_host_is_reached() {
    let sink = Sink::start();
    let zone = zone().cname("round.example", "turn.example").cname("turn.example", "round.example");
    let zone = zone.mx("b.example", 10, "round.example").mx("b.example", 20, "mx.a.example");
    let rig = rig_with(zone, sink.port(), |config| config.schedules = schedules(3600, 86_400));
    rig.send("ann@here.example", &["bob@round.example"], "x\r\n");
    rig.send("ann@here.example", &["bob@b.example"], "x\r\n");
    assert_eq!(sink.wait_taken(1)[0].recipients, ["bob@b.example"]);
    wait("the loop has its outcome", || rig.log().iter().any(|line| line.starts_with("bob@round.example")));
    let log = rig.log();
    assert!(log.iter().any(|line| line == "bob@round.example failed 550"), "{log:?}");
}

#[test]
fn a_domain_with_1000_hosts_reaches_the_first_that_answers() {
    let sink = Sink::start();
    let mut zone = Zone::default();
    for number in 0..1000_u16 {
        let host = format!("mx{number}.many.example");
        zone = zone.mx("many.example", number, &host);
        // The first ones have addresses without a listener, the next have none.
        zone = match number {
            0..5 => zone.a(&host, Ipv4Addr::new(127, 0, 0, 70 + number as u8)),
            10.. => zone.a(&host, LOOPBACK),
            _ => zone,
        };
    }
    let rig = rig_with(zone, sink.port(), |_| ());
    for _ in 0..20 {
        rig.send("ann@here.example", &["bob@many.example"], "x\r\n");
    }
    sink.wait_taken(20);
    rig.wait_empty();
    let asked = rig.dns.questions();
    let beyond = asked.iter().find(|asked| asked.name == "mx11.many.example");
    assert!(beyond.is_none() && asked.iter().any(|asked| asked.name == "mx10.many.example"), "{asked:?}");
    assert_eq!(rig.relay.stats().deferred, 0, "a host that does not answer counts no attempt");
}
