//! Sites whose sets of hosts overlap share connections that are idle.

use posthaste_relay::sender::OfMail;

use super::shaping::rules;
use super::*;

/// Domains `d0.example` and so on with the same first host and different second ones. All hosts have one address.
fn overlapping(count: usize) -> Zone {
    (0..count).fold(Zone::default().a("mx.example", LOOPBACK), |zone, number| {
        let domain = format!("d{number}.example");
        let second = format!("mx{number}.example");
        zone.mx(&domain, 10, "mx.example").mx(&domain, 20, &second).a(&second, LOOPBACK)
    })
}

/// A rig whose connections stay idle for longer than any test takes.
fn rig(shaping: &str, sink: &Sink) -> Rig {
    let shaping = rules(shaping);
    rig_with(overlapping(10), sink.port(), |config| {
        (config.shaping, config.timeouts.idle) = (shaping, Duration::from_secs(600));
    })
}

impl Rig {
    fn wait_idle(&self, count: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.relay.stats().idle != count {
            assert!(Instant::now() < end, "{count} idle connections do not come: {:?}", self.relay.stats());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a message, and waits until it has arrived and its connection is idle.
    fn send_and_rest(&self, to: &str, sink: &Sink, idle: usize) {
        let before = sink.taken().len();
        self.send("ann@here.example", &[to], "x\r\n");
        sink.wait_taken(before + 1);
        self.wait_empty();
        self.wait_idle(idle);
    }
}

/// Waits a little longer than the idle time at which a session is handed over.
fn rest() {
    std::thread::sleep(Duration::from_millis(1100));
}

/// There may be no second connection to the address: an idle one is taken at once.
const ONE: &str = "[default]\nconnections_per_address = 1\n";

#[test]
fn a_site_reuses_an_idle_connection_to_the_same_address() {
    let sink = Sink::start();
    let rig = rig("", &sink);
    rig.send_and_rest("bob@d0.example", &sink, 1);
    rest();
    rig.send_and_rest("bob@d1.example", &sink, 1);
    assert_eq!((sink.connections(), rig.relay.stats().connections), (1, 1));
    rest();
    rig.send_and_rest("bob@d0.example", &sink, 1);
    assert_eq!((sink.connections(), rig.relay.stats().delivered), (1, 3));
}

#[test]
fn a_connection_that_is_taken_over_spends_no_token() {
    let sink = Sink::start();
    let rig = rig(&format!("{ONE}connection_rate = '1000/s, burst 1'\n"), &sink);
    rig.send_and_rest("bob@d0.example", &sink, 1);
    rig.send_and_rest("bob@d1.example", &sink, 1);
    let left = || {
        ["d0.example", "d1.example"].map(|domain| {
            let now = rig.relay.explain(OfMail { domain, ..OfMail::default() }).unwrap().now;
            let limit = now.into_iter().find(|now| now.what.starts_with("connections to site")).unwrap();
            limit.state.split(" left").next().unwrap().to_owned()
        })
    };
    wait("both have a token", || left() == ["1 of 1", "1 of 1"]);
    // Tokens spent now come back tomorrow.
    rig.relay.set_shaping(rules(&format!("{ONE}connection_rate = '1/day, burst 1'\n")));
    for _ in 0..3 {
        rig.send_and_rest("bob@d0.example", &sink, 1);
        rig.send_and_rest("bob@d1.example", &sink, 1);
    }
    assert_eq!((left(), sink.connections()), (["1 of 1".to_owned(), "1 of 1".to_owned()], 1));
}

#[test]
fn messages_of_a_connection_are_counted_over_all_its_sites() {
    let sink = Sink::start();
    let rig = rig(&format!("{ONE}messages_per_connection = 3\n"), &sink);
    for round in 1..=3 {
        rig.send_and_rest("bob@d0.example", &sink, 1);
        rig.send_and_rest("bob@d1.example", &sink, 1);
        rig.send_and_rest("bob@d2.example", &sink, 0);
        sink.wait_quits(round);
        assert_eq!(sink.connections(), round);
    }
    // The site that takes it over has a lower limit.
    rig.relay.set_shaping(rules(&format!("{ONE}[domain.'d1.example']\nmessages_per_connection = 2\n")));
    rig.send_and_rest("bob@d0.example", &sink, 1);
    rig.send_and_rest("bob@d1.example", &sink, 0);
    sink.wait_quits(4);
    assert_eq!(sink.connections(), 4);
}

#[test]
fn the_limit_of_an_address_holds_across_reuse_by_sites() {
    let sink = Sink::start();
    let rig = rig("[default]\nconnections_per_address = 2\n", &sink);
    for round in 0..30 {
        for domain in 0..10 {
            rig.send("ann@here.example", &[&format!("bob@d{domain}.example")], "x\r\n");
        }
        // Now and then all are idle.
        if round % 3 == 0 {
            rig.wait_empty();
        }
    }
    sink.wait_taken(300);
    rig.wait_empty();
    assert!(sink.open_max() <= 2, "{}", sink.open_max());
    assert_eq!((rig.relay.stats().delivered, rig.relay.stats().deferred), (300, 0));
}

#[test]
fn a_connection_lost_at_reuse_does_not_count_against_the_host() {
    let sink = Sink::start();
    let rig = rig(ONE, &sink);
    rig.send_and_rest("bob@d0.example", &sink, 1);
    rig.send_and_rest("once@d1.example", &sink, 1);
    assert_eq!((sink.connections(), sink.rcpts("once@d1.example")), (2, 2));
    assert_eq!((rig.relay.stats().deferred, rig.relay.stats().delivered), (0, 2));
}

#[test]
fn a_connection_serves_nobody_with_another_password() {
    let sink = Sink::start();
    let zone = Zone::default().a("hub.example", LOOPBACK).a("spare.example", LOOPBACK);
    let route = |domain: &str, hosts: &[&str], user: &str| {
        Arc::new(FixedRoute {
            domain: domain.to_owned(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            auth: Some(Credentials::new(user, "secret")),
            ..FixedRoute::new("hub.example", sink.port())
        })
    };
    let routes = vec![
        route("d0.example", &["hub.example"], "ann"),
        route("d1.example", &["hub.example"], "eve"),
        route("d2.example", &["hub.example", "spare.example"], "ann"),
    ];
    let rig = rig_with(zone, sink.port(), |config| {
        (config.routing.routes, config.timeouts.idle) = (routes, Duration::from_secs(600));
    });
    rig.send_and_rest("bob@d0.example", &sink, 1);
    rest();
    rig.send_and_rest("bob@d1.example", &sink, 2);
    rest();
    rig.send_and_rest("bob@d2.example", &sink, 2);
    let users: Vec<String> = sink.taken().into_iter().map(|taken| taken.logged_in).collect();
    assert_eq!(users, ["ann", "eve", "ann"]);
    assert_eq!((sink.connections(), sink.logins()), (2, 2));
}

#[test]
fn an_idle_connection_yields_to_a_site_that_cannot_reuse_it() {
    let sink = Sink::start();
    let zone = Zone::default().a("hub.example", LOOPBACK);
    let route = |domain: &str, user: &str| {
        let auth = Some(Credentials::new(user, "secret"));
        Arc::new(FixedRoute { domain: domain.to_owned(), auth, ..FixedRoute::new("hub.example", sink.port()) })
    };
    let routes = vec![route("d0.example", "ann"), route("d1.example", "eve")];
    let rig = rig_with(zone, sink.port(), |config| {
        (config.shaping, config.routing.routes) = (rules(ONE), routes);
        config.timeouts.idle = Duration::from_secs(600);
    });
    for round in 1..=3 {
        rig.send_and_rest("bob@d0.example", &sink, 1);
        rig.send_and_rest("bob@d1.example", &sink, 1);
        assert_eq!((sink.connections(), sink.open_max()), (2 * round, 1));
    }
}
