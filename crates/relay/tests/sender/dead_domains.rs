//! Domains whose DNS does not answer, next to one that works and is not in the cache.

use posthaste_dns_stub::Kind;
use posthaste_relay::sender::Routing;

use super::*;

#[test]
fn thousands_of_dead_domains_do_not_delay_a_healthy_one() {
    let sink = Sink::start();
    let names: Vec<String> = (0..3000).map(|number| format!("{number}.dead.example")).collect();
    let zone = names.iter().fold(zone(), |zone, name| zone.is_silent(name));
    let rig = rig_with(zone.mx("b.example", 10, "mx.a.example"), sink.port(), |config| {
        config.schedules = schedules(3600, 86_400);
    });
    for names in names.chunks(100) {
        let to: Vec<String> = names.iter().map(|name| format!("bob@{name}")).collect();
        rig.send("ann@here.example", &to.iter().map(String::as_str).collect::<Vec<_>>(), "x\r\n");
    }
    wait("the first are asked for", || rig.dns.asked_before(0, "").len() >= 256);
    // In a single line each of the dead would be asked for before it.
    let is_in_front = |name: &str, count: usize| {
        rig.send("ann@here.example", &[&format!("bob@{name}")], "x\r\n");
        // From here on: the dead are asked for all the time, and this thread may have stood still before.
        let after = rig.dns.questions().len();
        sink.wait_taken(count);
        if rig.dns.questions()[..after].iter().any(|asked| asked.name == name) {
            return;
        }
        let before = rig.dns.asked_before(after, name).len();
        assert!(before < names.len() / 2, "{before} were asked for before {name}");
    };
    is_in_front("a.example", 1);
    // Then all failed ones are asked for again.
    wait("some have failed", || rig.relay.stats().deferred >= 128);
    rig.flush();
    is_in_front("b.example", 2);
}

#[test]
fn all_queues_of_a_domain_wait_for_one_question() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.schedules = schedules(3600, 86_400));
    rig.dns.hold();
    rig.send_for("one", "ann@here.example", &["bob@a.example"]);
    wait("it is asked", || rig.dns.asked("a.example", Kind::Mx) == 1);
    rig.send_for("one", "ann@here.example", &["eve@a.example"]);
    for tenant in ["two", "three", ""] {
        rig.send_for(tenant, "ann@here.example", &["bob@a.example"]);
    }
    wait("all are known", || rig.relay.stats().recipients == 5);
    rig.dns.release();
    sink.wait_taken(5);
    rig.wait_empty();
    assert_eq!(rig.dns.asked("a.example", Kind::Mx), 1);
}

#[test]
fn mail_that_is_routed_elsewhere_does_not_wait_for_dns() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| {
        config.schedules = schedules(3600, 86_400);
    });
    rig.dns.hold();
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    wait("it is asked", || rig.dns.asked("a.example", Kind::Mx) == 1);
    let routing = Routing { routes: vec![FixedRoute::new("[127.0.0.1]", sink.port()).into()], ..Routing::default() };
    rig.relay.set_routing(&routing);
    sink.wait_taken(1);
    rig.dns.release();
    rig.wait_empty();
}
