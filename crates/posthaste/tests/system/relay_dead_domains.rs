//! Domains whose DNS does not answer, beside domains that are well and not in the cache.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use posthaste_dns_stub::{Server as Dns, Zone};

use crate::relaying::{self, queue};
use crate::support::{Client, PATIENCE, Server};

const DEAD: usize = 4000;
/// Of each message.
const RECIPIENTS: usize = 100;

fn dead(number: usize) -> String {
    format!("{number}.dead.example")
}

#[test]
fn thousands_of_dead_domains_do_not_delay_a_healthy_one() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let healthy = ["first.example", "second.example"];
    let zone = healthy.iter().fold(Zone::default().a("mx.there.example", Ipv4Addr::LOCALHOST), |zone, name| {
        zone.mx(name, 10, "mx.there.example")
    });
    let dns = Dns::start((0..DEAD).fold(zone, |zone, number| zone.is_silent(&dead(number))));
    let domains = healthy.map(|name| format!("[[domain]]\nname = \"{name}\"\nusers = [\"ann\"]\n")).concat();
    let listener = "host_name = \"mx.there.example\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let next = Server::start(there.path(), &format!("{listener}{domains}"));
    let config = relaying::config(next.addresses[0].port(), "[relay.schedule.default]\nfirst_secs = 3600\n");
    let server = Server::start(here.path(), &config.replace("127.0.0.1:9", &dns.address().to_string()));
    let mut client = server.hello();
    let send = |client: &mut Client, to: &[&str]| {
        let reply = client.try_message("eve@here.example", to, b"Subject: x\r\n\r\nx\r\n").unwrap();
        assert_eq!(reply.code, 250, "{reply:?}");
    };
    let names: Vec<String> = (0..DEAD).map(|number| format!("bob@{}", dead(number))).collect();
    for names in names.chunks(RECIPIENTS) {
        send(&mut client, &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let deadline = Instant::now() + PATIENCE;
    while dns.asked_before(0, "").len() < 256 {
        assert!(Instant::now() < deadline, "as many are asked for as may be at a time");
        std::thread::sleep(Duration::from_millis(20));
    }
    // In one line of all, each of the dead would be asked for before it.
    let mut is_in_front = |name: &str| {
        send(&mut client, &[&format!("ann@{name}")]);
        // From here on: the dead are asked for all the time, and this thread may have stood still before.
        let after = dns.questions().len();
        next.wait_for_mail(name, "ann", 1);
        if dns.questions()[..after].iter().any(|asked| asked.name == name) {
            return;
        }
        let before = dns.asked_before(after, name).len();
        assert!(before < DEAD / 2, "{before} of {DEAD} were asked for before {name}");
    };
    is_in_front(healthy[0]);
    // Names without an answer are known to the next that comes.
    server.wait_for_log_again("not delivered yet", 128);
    assert_eq!(queue(here.path(), &["flush", "--all"]).0, 0);
    is_in_front(healthy[1]);
    server.stop();
    next.stop();
}
