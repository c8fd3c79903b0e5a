//! Limits as the next hop sees them.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use posthaste_relay::sender::{OfMail, OutgoingSource, Pool, Routing};
use posthaste_shaping::ShapingRules;
use posthaste_shaping::limits::{Lender, Lent};
use posthaste_units::Rate;

use super::*;

pub fn rules(text: &str) -> Arc<ShapingRules> {
    Arc::new(ShapingRules::parse("shaping.toml", text).unwrap())
}

/// All domains are at one address: those below `a.example` at the mail host of `a.example`, and so on.
pub fn two_sites() -> Zone {
    let zone = Zone::default().a("mx.a.example", LOOPBACK).a("mx.b.example", LOOPBACK);
    zone.mx("a.example", 10, "mx.a.example").mx("x.a.example", 10, "mx.a.example").mx("b.example", 10, "mx.b.example")
}

fn limited(text: &str, sink: &Sink) -> Rig {
    let rules = rules(text);
    rig_with(two_sites(), sink.port(), |config| config.shaping = rules)
}

impl Rig {
    fn send_of(&self, tenant: &str, to: &str) {
        let body = Body::inline(vec![Bytes::from_static(b"Subject: x\r\n\r\nx\r\n")]);
        let message = Queued { tenant: Arc::from(tenant), ..outgoing("ann@here.example", &[to], 0) };
        let batch = Batch { entries: vec![self.relay.entry(message)], body };
        let (tell, told) = std::sync::mpsc::channel();
        self.spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
        told.recv().unwrap().unwrap();
    }

    pub fn send_many(&self, count: usize, to: &str) {
        (0..count).for_each(|_| self.send_of("", to));
    }
}

/// Checks that no window has more than `per_sec` for each second plus `burst`. The path to the sink may shorten a
/// window by `late`.
pub fn assert_within(times: &[Instant], per_sec: f64, burst: usize, late: Duration) {
    for (from, begin) in times.iter().enumerate() {
        for (to, end) in times.iter().enumerate().skip(from) {
            let allowed = (*end - *begin + late).as_secs_f64() * per_sec + burst as f64;
            assert!((to - from + 1) as f64 <= allowed, "{} in {:?}", to - from + 1, *end - *begin);
        }
    }
}

/// Measures the lag of the sink: a loaded machine lets any thread wait, this one included.
struct Lag {
    longest_nanos: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Lag {
    fn start() -> Self {
        let lag = Lag { longest_nanos: Arc::default(), is_over: Arc::default() };
        let longest = lag.longest_nanos.clone();
        let is_over = lag.is_over.clone();
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(TICK);
                longest.fetch_max((begun.elapsed() - TICK).as_nanos() as u64, Ordering::Relaxed);
            }
        });
        lag
    }

    fn late(&self) -> Duration {
        Duration::from_millis(150) + 3 * Duration::from_nanos(self.longest_nanos.load(Ordering::Relaxed))
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

const TICK: Duration = Duration::from_millis(5);

#[test]
fn a_site_gets_no_more_messages_than_its_rate_and_reaches_it() {
    let sink = Sink::start();
    let lag = Lag::start();
    let rig = limited("[default]\nmessage_rate = '20/s, burst 5'\n", &sink);
    let begun = Instant::now();
    rig.send_many(30, "bob@a.example");
    sink.wait_taken(30);
    assert!(begun.elapsed() >= Duration::from_millis(1200), "{:?}", begun.elapsed());
    assert_within(&sink.mails(), 20.0, 5, lag.late());
    rig.wait_empty();
    assert_eq!(rig.relay.stats().deferred, 0, "a limit counts no attempt");
}

#[test]
fn a_thousand_messages_a_second_are_reached() {
    let sink = Sink::start();
    let lag = Lag::start();
    let rig = limited("[default]\nmessage_rate = '1/day'\n", &sink);
    rig.send_many(1000, "bob@a.example");
    rig.relay.set_shaping(rules("[default]\nmessage_rate = '1000/s, burst 100'\n"));
    sink.wait_taken(1000);
    assert_within(&sink.mails(), 1000.0, 100, lag.late());
}

#[test]
fn a_domain_that_has_reached_its_rate_is_in_nobodys_way() {
    let sink = Sink::start();
    let rig = limited("[domain.'a.example']\nmessage_rate = '1/day'\n", &sink);
    rig.send_many(5, "bob@a.example");
    rig.send_many(20, "bob@x.a.example");
    let taken = sink.wait_taken(20);
    assert!(taken.iter().all(|taken| taken.recipients == ["bob@x.a.example"]));
    wait("five are left", || rig.relay.stats().recipients == 5);
    // Without the limit they go at once.
    rig.relay.set_shaping(Arc::default());
    sink.wait_taken(25);
    rig.wait_empty();
}

#[test]
fn a_tenant_that_has_reached_its_rate_is_in_nobodys_way() {
    let sink = Sink::start();
    let rig = limited("[tenant.slow]\nmessage_rate = '1/day'\n[tenant.'*']\nmessage_rate = '100/s'\n", &sink);
    (0..5).for_each(|_| rig.send_of("slow", "calm@a.example"));
    (0..5).for_each(|_| rig.send_of("slow", "calm@b.example"));
    for tenant in ["quick", "", "quick"] {
        (0..5).for_each(|_| rig.send_of(tenant, "bob@a.example"));
    }
    assert!(sink.wait_taken(15).iter().all(|taken| taken.recipients == ["bob@a.example"]));
    rig.relay.set_shaping(rules("[tenant.slow]\nmessage_rate = '1000/s'\n"));
    sink.wait_taken(25);
    rig.wait_empty();
}

#[test]
fn a_named_limit_is_shared_and_counts_a_message_once() {
    let sink = Sink::start();
    let lag = Lag::start();
    let text = "[default]\nlimits = ['all']\n[domain.'a.example']\nlimits = ['all']\n[limit.all]\nmessage_rate = '20/s, burst 2'\n";
    let rig = limited(text, &sink);
    rig.send_many(10, "bob@a.example");
    rig.send_many(10, "bob@b.example");
    sink.wait_taken(20);
    assert_within(&sink.mails(), 20.0, 2, lag.late());
}

/// Mail of each of these tenants leaves from a source of its name, at 127.0.0.21 and so on.
fn source_of_each(tenants: &[&str]) -> Routing {
    let source = |(octet, name): (u8, &&str)| OutgoingSource {
        ipv4: Some(Ipv4Addr::new(127, 0, 0, octet)),
        ..OutgoingSource::new(name)
    };
    let pool = |name: &&str| Pool {
        name: (*name).to_owned(),
        tenants: Some(vec![(*name).to_owned()]),
        sources: vec![(Arc::from(*name), 1)],
    };
    let sources = (21..).zip(tenants).map(source).collect();
    Routing { sources, pools: tenants.iter().map(pool).collect(), ..Routing::default() }
}

#[test]
fn limits_of_one_source_bind_it_and_no_other() {
    let sink = Sink::start();
    let lag = Lag::start();
    // The mail of `old` to one domain waits for a day, that of `new` is slow everywhere.
    let text = "[default]\nmessage_rate = '1000/s'\n[default.source.new]\nmessage_rate = '20/s, burst 2'\n\
                [domain.'b.example']\nmessage_rate = '1000/s'\n[domain.'b.example'.source.old]\nmessage_rate = '1/day'\n";
    let rig = rig_with(two_sites(), sink.port(), |config| {
        (config.shaping, config.routing) = (rules(text), source_of_each(&["new", "old"]));
    });
    for tenant in ["new", "old"] {
        (0..40).for_each(|_| rig.send_of(tenant, "bob@a.example"));
        (0..5).for_each(|_| rig.send_of(tenant, "eve@b.example"));
    }
    // All but those of `old` to b.example.
    let taken = sink.wait_taken(85);
    let from = |octet: u8| IpAddr::from([127, 0, 0, octet]);
    assert!(!taken.iter().any(|taken| taken.from == from(22) && taken.recipients == ["eve@b.example"]));
    let count = |octet: u8| taken.iter().filter(|taken| taken.from == from(octet)).count();
    assert_eq!((count(21), count(22)), (45, 40));
    // Two sites.
    assert_within(&sink.mails_from(from(21)), 40.0, 4, lag.late());
    let now = |tenant: &str, domain: &str| rig.relay.explain(OfMail { domain, tenant, ..OfMail::default() }).unwrap();
    let binds = |tenant: &str| now(tenant, "b.example").now.iter().any(|now| now.binds);
    wait("one limit binds", || binds("old") && !binds("new"));
    let rate_of = |tenant: &str| {
        let explained = now(tenant, "a.example");
        explained.values.into_iter().find(|value| value.key == "message_rate").unwrap().value
    };
    assert_eq!((&*rate_of("new"), &*rate_of("old")), ("20/second, burst 2", "1000/second, burst 1000"));
    // Without a restart.
    rig.relay.set_shaping(rules("[domain.'b.example'.source.new]\nmessage_rate = '1/day'\n"));
    sink.wait_taken(90);
    rig.wait_empty();
    // One token is left of the limit before.
    (0..3).for_each(|_| rig.send_of("new", "eve@b.example"));
    wait("the new limit binds", || binds("new"));
    assert!(!binds("old") && sink.taken().len() <= 91);
}

#[test]
fn connections_are_opened_at_their_rate() {
    let sink = Sink::start();
    let lag = Lag::start();
    let rig = limited("[default]\nconnection_rate = '4/s, burst 1'\nmessages_per_connection = 1\n", &sink);
    rig.send_many(6, "bob@a.example");
    sink.wait_taken(6);
    assert_eq!(sink.connections(), 6);
    assert_within(&sink.connected(), 4.0, 1, lag.late());
    rig.wait_empty();
}

#[test]
fn a_host_whose_name_does_not_resolve_costs_no_connection() {
    let sink = Sink::start();
    let rules = rules("[default]\nconnection_rate = '30/minute, burst 1'\n");
    let zone = Zone::default().mx("a.example", 10, "mx.a.example").fails("mx.a.example");
    let rig = rig_with(zone, sink.port(), |config| config.shaping = rules);
    rig.send_of("", "bob@a.example");
    wait("it is out of reach", || rig.log().iter().any(|line| line.starts_with("unreachable")));
    let now = rig.relay.explain(OfMail { domain: "a.example", ..OfMail::default() }).unwrap().now;
    let mut limits = now.iter().filter(|now| now.what.starts_with("connections to site"));
    assert!(limits.next().is_some_and(|limit| limit.state.starts_with("1 of 1 left")), "{now:?}");
    assert_eq!(sink.connections(), 0);
}

#[test]
fn sites_of_a_provider_share_its_connections_in_turn() {
    let sink = Sink::start();
    let text = "[default]\nmessages_per_connection = 3\n\
                [provider.all]\nmx = ['.a.example', '.b.example']\ntotal = { connections = 1 }\n";
    let rig = limited(text, &sink);
    for _ in 0..12 {
        rig.send_of("", "bob@a.example");
        rig.send_of("", "bob@b.example");
    }
    let taken = sink.wait_taken(24);
    assert_eq!(sink.open_max(), 1);
    // Neither waits until the other has no mail left.
    let last = |to: &str| taken.iter().rposition(|taken| taken.recipients == [to]).unwrap();
    assert!(last("bob@a.example").min(last("bob@b.example")) >= 12, "{taken:?}");
    rig.wait_empty();
}

#[test]
fn an_address_has_a_limit_whatever_its_names() {
    let sink = Sink::start();
    let rig = limited("[default]\nconnections_per_address = 1\nmessages_per_connection = 5\n", &sink);
    rig.send_many(20, "bob@a.example");
    rig.send_many(20, "bob@b.example");
    sink.wait_taken(40);
    assert_eq!(sink.open_max(), 1);
    rig.wait_empty();
    let unreachable = rig.log().iter().filter(|line| line.starts_with("unreachable")).count();
    assert_eq!(unreachable, 0, "who has reached a limit is not out of reach");
}

#[test]
fn a_site_has_its_own_number_of_connections() {
    let sink = Sink::start();
    let rules = rules("[domain.'a.example']\nconnections = 1\n");
    // A pause between two messages ends no connection.
    let rig = rig_with(two_sites(), sink.port(), |config| {
        (config.shaping, config.timeouts.idle) = (rules, Duration::from_secs(600));
    });
    rig.send_many(100, "bob@x.a.example");
    rig.send_of("", "bob@a.example");
    sink.wait_taken(101);
    rig.send_many(100, "bob@x.a.example");
    let before = sink.connections();
    sink.wait_taken(201);
    assert!(sink.connections() <= before + 2, "one after the other");
    rig.wait_empty();
}

#[test]
fn bdat_is_used_where_offered_and_configured() {
    let body = b"Subject: \xe9\r\n\r\n.dot\r\n.\r\nbare\nand\rothers\r\xff\r\nend\r";
    let mended = b"Subject: \xe9\r\n\r\n.dot\r\n.\r\nbare\r\nand\r\nothers\r\n\xff\r\nend\r\n";
    let bdat = format!("BDAT {} LAST", mended.len());
    let usual = "PIPELINING 8BITMIME";
    for (extensions, text, expected) in [
        ("PIPELINING CHUNKING 8BITMIME", "[default]\nchunking = true\n", &*bdat),
        ("CHUNKING", "[domain.'a.example']\nchunking = true\n", &bdat),
        ("CHUNKING", "[default]\nchunking = true\n[provider.a]\nmx = ['mx.a.example']\nchunking = false\n", "DATA"),
        ("CHUNKING", "", "DATA"),
        (usual, "[default]\nchunking = true\n", "DATA"),
    ] {
        let sink = Sink::offering(&extensions.split(' ').collect::<Vec<_>>());
        let rig = limited(text, &sink);
        // Two in one session, and a recipient that is refused.
        for to in ["bob@a.example", "eve@a.example"] {
            let message = Queued { is_8bit: true, ..outgoing("", &[to, "no@a.example"], 0) };
            rig.append_octets(message, body);
        }
        for taken in sink.wait_taken(2) {
            assert_eq!(taken.body.escape_ascii().to_string(), mended.escape_ascii().to_string(), "{extensions} {text}");
            assert_eq!(taken.commands.last().unwrap(), expected, "{extensions} {text}");
            let says_8bit = taken.commands[0].contains(" BODY=8BITMIME");
            assert_eq!(says_8bit, extensions.contains("8BITMIME"), "{:?}", taken.commands);
        }
        rig.wait_empty();
        assert_eq!(rig.relay.stats().delivered, 2, "{extensions} {text}");
    }
}

#[test]
fn there_is_no_burst_again_after_a_restart() {
    let sink = Sink::start();
    let lag = Lag::start();
    let text = "[default]\nmessage_rate = '2/s, burst 4'\n";
    let rig = limited(text, &sink);
    rig.send_many(12, "bob@a.example");
    sink.wait_taken(5);
    let dir = rig.end();
    let rules = rules(text);
    let rig = rig_in(dir, two_sites(), sink.port(), |config| config.shaping = rules);
    sink.wait_taken(12);
    assert_within(&sink.mails(), 2.0, 4, lag.late());
    rig.wait_empty();
}

#[test]
fn a_dead_address_of_two_hosts_pauses_the_site() {
    let dead = unused_port(LOOPBACK);
    let zone = Zone::default().mx("a.example", 10, "mx1.a.example").mx("a.example", 20, "mx2.a.example");
    let zone = zone.a("mx1.a.example", LOOPBACK).a("mx2.a.example", LOOPBACK);
    let rules = rules("[default]\nconnections_per_address = 1\n");
    let rig = rig_with(zone, dead, |config| config.shaping = rules);
    rig.send_of("", "bob@a.example");
    wait("it pauses", || rig.log().iter().any(|line| line.starts_with("unreachable")));
}

#[test]
fn a_site_whose_addresses_are_full_spends_no_tokens() {
    let sink = Sink::start();
    let rig = limited("[default]\nconnections_per_address = 1\nconnection_rate = '1/s, burst 4'\n", &sink);
    rig.send_of("", "slow@a.example");
    sink.wait_slow(1);
    rig.send_many(3, "bob@b.example");
    let all_saved = || {
        let now = rig.relay.explain(OfMail { domain: "b.example", ..OfMail::default() }).unwrap().now;
        now.iter().any(|now| now.what.starts_with("connections to site") && now.state.starts_with("4 of 4 left"))
    };
    wait("no token is spent while nothing can be had for it", all_saved);
    assert_eq!(sink.connections(), 1);
    sink.release();
    sink.wait_taken(4);
    rig.wait_empty();
}

/// Lends tokens as the test says.
#[derive(Default)]
pub struct TestLender {
    pub tokens: Arc<AtomicU64>,
    names: Arc<Mutex<Vec<String>>>,
}

struct TestTokens(Arc<AtomicU64>);

impl Lender for TestLender {
    fn limit(&self, name: &Arc<str>, rate: Rate) -> Box<dyn Lent> {
        self.names.lock().unwrap().push(format!("{name}: {rate}"));
        Box::new(TestTokens(self.tokens.clone()))
    }
}

impl Lent for TestTokens {
    fn available(&self) -> u32 {
        self.0.load(Ordering::SeqCst) as u32
    }

    fn take(&self) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
    }

    fn hold(&self, _: bool) {}

    fn want(&self, _: u32) -> u64 {
        1_000_000
    }
}

#[test]
fn messages_wait_for_tokens_that_are_lent() {
    let sink = Sink::start();
    let lender = Arc::new(TestLender::default());
    let (tokens, names) = (lender.tokens.clone(), lender.names.clone());
    let rules = rules("[default]\nmessage_rate = '1/day'\n");
    let rig = rig_with(two_sites(), sink.port(), |config| {
        config.shaping = rules;
        config.lender = Some(lender);
    });
    rig.send_many(30, "bob@a.example");
    tokens.store(20, Ordering::SeqCst);
    sink.wait_taken(20);
    assert_eq!((sink.mails().len(), tokens.load(Ordering::SeqCst)), (20, 0));
    tokens.store(11, Ordering::SeqCst);
    rig.wait_empty();
    assert_eq!((sink.mails().len(), tokens.load(Ordering::SeqCst)), (30, 1));
    let names = names.lock().unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("site ") && name.ends_with(" from default: 1/day, burst 1")));
}
