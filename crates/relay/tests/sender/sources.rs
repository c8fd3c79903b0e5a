//! Several sources: addresses, names, weights, and the behaviour without one.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_relay::sender::{Config, OutgoingSource, Pool, Routing, WarmUp};

use super::shaping::{TestLender, rules};
use super::sink::Sink;
use super::{rig_with, schedules, wait, zone};

fn source(name: &str, last_octet: u8) -> OutgoingSource {
    let ehlo = Some(format!("{name}.example"));
    OutgoingSource { ipv4: Some(Ipv4Addr::new(127, 0, 0, last_octet)), ehlo, ..OutgoingSource::new(name) }
}

fn pool(tenants: &[&str], sources: &[(&str, u32)]) -> Pool {
    Pool {
        name: "pool".to_owned(),
        tenants: (!tenants.is_empty()).then(|| tenants.iter().map(|tenant| (*tenant).to_owned()).collect()),
        sources: sources.iter().map(|(name, weight)| (Arc::from(*name), *weight)).collect(),
    }
}

fn of_tenant(tenants: &[&str]) -> Routing {
    let pools = vec![pool(tenants, &[("one", 1), ("two", 3)]), pool(&[], &[("rest", 1)])];
    Routing { sources: vec![source("one", 11), source("two", 12), source("rest", 13)], pools, ..Routing::default() }
}

#[test]
fn mail_leaves_from_its_tenants_sources_under_their_names() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.routing = of_tenant(&["t"]));
    for _ in 0..200 {
        rig.send_for("t", "ann@here.example", &["bob@a.example"]);
    }
    rig.send_for("", "ann@here.example", &["rest@a.example"]);
    let taken = sink.wait_taken(201);
    rig.wait_empty();
    let from = |octet: u8, name: &str| {
        let is_it = |taken: &&super::Taken| taken.from == Ipv4Addr::new(127, 0, 0, octet) && taken.hello == name;
        taken.iter().filter(is_it).count()
    };
    let one = from(11, "one.example");
    let two = from(12, "two.example");
    assert_eq!((one + two, from(13, "rest.example")), (200, 1));
    assert!((25..75).contains(&one), "a quarter of them: {one}");
}

#[test]
fn a_message_is_tried_from_the_same_source_each_time() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.routing = of_tenant(&["t"]));
    let addresses: Vec<String> = (0..20).map(|number| format!("later{number}@a.example")).collect();
    for address in &addresses {
        rig.send_for("t", "ann@here.example", &[address]);
    }
    sink.wait_taken(20);
    rig.wait_empty();
    let asked = sink.asked();
    for address in &addresses {
        let from: Vec<_> = asked.iter().filter(|(to, _)| to == address).map(|(_, from)| *from).collect();
        assert_eq!(from.len(), 2, "{address}: {from:?}");
        assert_eq!(from[0], from[1], "{address}");
    }
    let all: std::collections::HashSet<_> = asked.iter().map(|(_, from)| *from).collect();
    assert_eq!(all.len(), 2, "both sources have some");
}

/// RFC 5737 gives this address to documentation.
fn not_here() -> OutgoingSource {
    OutgoingSource { ipv4: Some(Ipv4Addr::new(192, 0, 2, 1)), ..OutgoingSource::new("gone") }
}

#[test]
fn mail_of_an_unbindable_source_goes_to_others_of_its_pool() {
    let sink = Sink::start();
    let routing = Routing {
        sources: vec![not_here(), source("one", 11)],
        pools: vec![pool(&[], &[("gone", 1), ("one", 1)])],
        ..Routing::default()
    };
    let rig = rig_with(zone(), sink.port(), |config| config.routing = routing);
    for _ in 0..20 {
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    }
    let taken = sink.wait_taken(20);
    rig.wait_empty();
    assert!(taken.iter().all(|taken| taken.from == Ipv4Addr::new(127, 0, 0, 11)), "{taken:?}");
    let log = rig.log();
    let told = log.iter().filter(|line| line.starts_with("source gone: ")).count();
    assert_eq!((told, rig.relay.stats().unreachable), (1, 0), "the host is not to blame: {log:?}");
    assert!(!log.iter().any(|line| line.contains("deferred")), "{log:?}");
}

#[test]
fn mail_waits_for_its_only_source_until_a_new_configuration() {
    let sink = Sink::start();
    let only = |source: OutgoingSource| {
        let pools = vec![pool(&[], &[(&*source.name, 1)])];
        Routing { sources: vec![source], pools, ..Routing::default() }
    };
    let long = |config: &mut Config| {
        config.schedules = schedules(3600, 86_400);
        config.routing = only(not_here());
    };
    let rig = rig_with(zone(), sink.port(), long);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    wait("it is suspended", || rig.log().iter().any(|line| line.starts_with("source gone: ")));
    let mut why = None;
    rig.relay.waiting(&Default::default(), &mut |waiting| {
        why = waiting.why;
        true
    });
    assert!(why.as_deref().is_some_and(|why| why.starts_with("source gone: ")), "{why:?}");
    assert_eq!((sink.taken().len(), rig.relay.stats().recipients), (0, 1));
    rig.relay.set_routing(&only(source("one", 11)));
    assert_eq!(sink.wait_taken(1)[0].hello, "one.example");
    rig.wait_empty();
}

#[test]
fn a_change_of_the_routes_reaches_open_connections() {
    let sink = Sink::start();
    let other = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| {
        config.timeouts.idle = std::time::Duration::from_secs(3600);
        config.routing.routes = vec![posthaste_relay::sender::FixedRoute::new("[127.0.0.1]", sink.port()).into()];
    });
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    sink.wait_taken(1);
    let routes = vec![posthaste_relay::sender::FixedRoute::new("[127.0.0.1]", other.port()).into()];
    rig.relay.set_routing(&Routing { routes, ..of_tenant(&[]) });
    rig.send("ann@here.example", &["bob@a.example"], "y\r\n");
    assert_eq!(other.wait_taken(1)[0].body, b"y\r\n");
    assert_eq!(sink.taken().len(), 1);
    // The name stays the same, but its route differs.
    let auth = Some(posthaste_smtp::sasl::Credentials::new("ann", "one"));
    let again = |auth| posthaste_relay::sender::FixedRoute {
        auth,
        ..posthaste_relay::sender::FixedRoute::new("[127.0.0.1]", other.port())
    };
    for password in ["one", "two"] {
        let auth = auth.clone().map(|auth| posthaste_smtp::sasl::Credentials::new(auth.user, password));
        let before = other.logins();
        rig.relay.set_routing(&Routing { routes: vec![again(auth).into()], ..of_tenant(&[]) });
        rig.send("ann@here.example", &["bob@a.example"], "z\r\n");
        // A message before it may have to go once more, over a connection of its own.
        wait("a login", || other.logins() > before);
    }
    rig.wait_empty();
}

#[test]
fn what_a_warm_up_does_not_allow_goes_to_the_others_of_the_pool() {
    let sink = Sink::start();
    // Two each second, and nothing at first.
    let warm_up = Some(WarmUp { since: 0, per_day: vec![172_800; 100_000] });
    let new = OutgoingSource { warm_up, ..source("new", 14) };
    let pools = vec![pool(&[], &[("new", 1_000), ("one", 1)])];
    let routing = Routing { sources: vec![new.clone(), source("one", 11)], pools, ..Routing::default() };
    let rig = rig_with(zone(), sink.port(), |config| config.routing = routing);
    let begun = std::time::Instant::now();
    for _ in 0..50 {
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    }
    let from_new = |sink: &Sink| sink.taken().iter().filter(|taken| taken.hello == "new.example").count() as u64;
    sink.wait_taken(50);
    // Nearly all are meant for it; a second may have begun before.
    assert!(from_new(&sink) <= 2 * (begun.elapsed().as_secs() + 2), "{} from it", from_new(&sink));
    rig.wait_empty();
    // Later it takes its part again.
    wait("its turn", || {
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
        from_new(&sink) >= 2
    });
    assert!(from_new(&sink) <= 2 * (begun.elapsed().as_secs() + 2), "{} from it", from_new(&sink));
    rig.wait_empty();
    // Without another source, mail waits for it, and the queue shows the reason.
    let only = |new| Routing { sources: vec![new], pools: vec![pool(&[], &[("new", 1)])], ..Routing::default() };
    let slow = OutgoingSource { warm_up: Some(WarmUp { since: 0, per_day: vec![24; 100_000] }), ..new.clone() };
    rig.relay.set_routing(&only(slow));
    for _ in 0..6 {
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    }
    let is_told = || {
        let mut is_told = false;
        rig.relay.waiting(&Default::default(), &mut |waiting| {
            is_told |= waiting.why.is_some_and(|why| why.contains("warm-up"));
            true
        });
        is_told
    };
    wait("it is told", is_told);
    rig.relay.set_routing(&only(new));
    rig.wait_empty();
    assert!(!rig.log().iter().any(|line| line.contains("deferred")), "{:?}", rig.log());
}

#[test]
fn what_a_warm_up_refuses_costs_no_tokens() {
    let sink = Sink::start();
    // Nothing at first.
    let warm_up = Some(WarmUp { since: 0, per_day: vec![24; 100_000] });
    let new = OutgoingSource { warm_up, ..source("new", 14) };
    let pools = vec![pool(&[], &[("new", 1_000), ("one", 1)])];
    let routing = Routing { sources: vec![new, source("one", 11)], pools, ..Routing::default() };
    let lender = Arc::new(TestLender::default());
    let tokens = lender.tokens.clone();
    tokens.store(1000, Ordering::SeqCst);
    let rig = rig_with(zone(), sink.port(), |config| {
        config.routing = routing;
        config.shaping = rules("[default]\nmessage_rate = '1/day'\n");
        config.lender = Some(lender);
    });
    for _ in 0..20 {
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    }
    sink.wait_taken(20);
    rig.wait_empty();
    assert_eq!(tokens.load(Ordering::SeqCst), 980);
}

#[test]
fn eight_bit_mail_is_sent_or_given_up_by_the_setting() {
    use posthaste_smtp::client::EightBit;
    for (eight_bit, is_sent) in [(EightBit::Send, true), (EightBit::Refuse, false)] {
        let sink = Sink::offering(&["PIPELINING"]);
        let of_sender = Sink::at((Ipv4Addr::new(127, 0, 0, 2), sink.port()).into());
        let zone = zone().mx("here.example", 1, "mx.here.example").a("mx.here.example", Ipv4Addr::new(127, 0, 0, 2));
        let rig = rig_with(zone, sink.port(), |config| config.eight_bit = eight_bit);
        let message = super::Queued { is_8bit: true, ..super::outgoing("ann@here.example", &["bob@a.example"], 0) };
        rig.append(message, "Subject: x\r\n\r\n\u{e9}\r\n");
        let taken = if is_sent { &sink } else { &of_sender }.wait_taken(1).remove(0);
        if is_sent {
            assert_eq!(taken.body, "Subject: x\r\n\r\n\u{e9}\r\n".as_bytes())
        } else {
            assert!(String::from_utf8_lossy(&taken.body).contains("5.6.3"))
        }
    }
}

#[test]
fn ipv6_comes_first_and_only_families_that_the_source_has() {
    let sink = Sink::start();
    let six = Sink::at((Ipv6Addr::LOCALHOST, sink.port()).into());
    let only = |source: OutgoingSource| {
        let pools = vec![pool(&[], &[(&*source.name, 1)])];
        Routing { sources: vec![source], pools, ..Routing::default() }
    };
    let zone = zone().aaaa("mx.a.example", Ipv6Addr::LOCALHOST);
    let rig =
        rig_with(zone.mx("b.example", 1, "four.example").a("four.example", Ipv4Addr::LOCALHOST), sink.port(), |_| ());
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    six.wait_taken(1);
    rig.wait_empty();
    rig.relay.set_routing(&only(source("four", 11)));
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    sink.wait_taken(1);
    rig.wait_empty();
    assert_eq!((six.connections(), sink.connections()), (1, 1), "nothing else was tried");
    rig.relay.set_routing(&only(OutgoingSource { ipv6: Some(Ipv6Addr::LOCALHOST), ..OutgoingSource::new("six") }));
    rig.send("ann@here.example", &["bob@b.example"], "x\r\n");
    let why = "the source has no address of this family";
    wait("it is told", || rig.log().iter().any(|line| line.starts_with("unreachable") && line.contains(why)));
    assert_eq!((six.connections(), sink.connections(), rig.relay.stats().recipients), (1, 1, 1));
}
