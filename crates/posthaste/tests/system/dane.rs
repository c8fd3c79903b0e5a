//! DANE: TLSA records of the next host, through the whole server.

use std::net::Ipv4Addr;
use std::path::Path;

use posthaste_dns_stub::{Kind, Server as Dns, Zone};

use crate::relay_events::wait_for;
use crate::relaying::{self, EVENTS, queue};
use crate::support::{Server, command};
use crate::tls::certify;

const TO: &str = "ann@signed.example";

/// A server with a certificate of its own, for `signed.example` and `plain.example`. Returns the SHA-256 of the certificate, too.
fn next_hop(dir: &Path) -> (Server, Vec<u8>) {
    let certificate = certify(dir);
    let domain = |name: &str| format!("[[domain]]\nname = \"{name}\"\nusers = [\"ann\"]\n");
    let config = "host_name = \"mx.there.example\"\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n\
                  [[listener]]\naddress = \"127.0.0.1:0\"\n";
    let server = Server::start(dir, &format!("{config}{}{}", domain("signed.example"), domain("plain.example")));
    (server, aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &certificate).as_ref().to_vec())
}

fn zone() -> Zone {
    let host = "mx.signed.example";
    let zone = Zone::default().ttl(0).signed("signed.example").a(host, Ipv4Addr::LOCALHOST);
    zone.mx("signed.example", 10, host).mx("plain.example", 10, host)
}

fn tlsa_name(next: &Server) -> String {
    format!("_{}._tcp.mx.signed.example", next.addresses[0].port())
}

/// A relay that asks this server and believes it.
fn relay(dir: &Path, next: &Server, dns: &Dns) -> Server {
    let config = relaying::config(next.addresses[0].port(), EVENTS);
    let config = config.replace("127.0.0.1:9", &dns.address().to_string());
    Server::start(dir, &format!("{config}trust_ad = true\nttl_min_secs = 0\nfailure_secs = 1\ntimeout_secs = 90\n"))
}

fn send(server: &Server, to: &str) {
    let reply = server.hello().try_message("eve@here.example", &[to], b"Subject: x\r\n\r\nx\r\n").unwrap();
    assert_eq!(reply.code, 250, "{reply:?}");
}

fn route(dir: &Path, to: &str) -> String {
    let output = command(dir, &["route", to]).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn a_start_warns_of_a_resolver_that_is_believed_from_afar() {
    let dir = tempfile::tempdir().unwrap();
    let config = relaying::config(25, EVENTS).replace("127.0.0.1:9", "192.0.2.53");
    let server = Server::start(dir.path(), &format!("{config}trust_ad = true\n"));
    let line = server.wait_for_log("dns.trust_ad");
    assert!(line.contains("192.0.2.53") && line.contains("is not on this machine"), "{line}");
}

#[test]
fn mail_goes_to_the_certificate_of_a_signed_record_alone() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (next, digest) = next_hop(there.path());
    let dns = Dns::start(zone().tlsa(&tlsa_name(&next), [3, 0, 1], &[7; 32]));
    let server = relay(here.path(), &next, &dns);
    let text = route(here.path(), TO);
    assert!(text.contains(": 127.0.0.1, DANE: verified by TLSA records\n"), "{text}");
    send(&server, TO);
    let line = server.wait_for_log("mail waits for these hosts");
    assert!(line.contains("no certificate of the server matches the TLSA records of its host"), "{line}");
    // The list of its hosts is not signed.
    send(&server, "ann@plain.example");
    assert!(next.wait_for_mail("plain.example", "ann", 1)[0].text().contains(" with ESMTPS "));
    assert!(!route(here.path(), "ann@plain.example").contains("DANE"));
    assert!(next.mailbox("signed.example", "ann").is_empty());

    let failed = &wait_for(here.path(), "tls_failed", "host", "mx.signed.example")[0];
    assert_eq!((&failed["demand"], &failed["result"]), (&"dane".into(), &"certificate".into()), "{failed}");

    dns.change(zone().tlsa(&tlsa_name(&next), [3, 0, 1], &digest));
    assert_eq!(queue(here.path(), &["flush", "--all"]).0, 0);
    assert!(next.wait_for_mail("signed.example", "ann", 1)[0].text().contains(" with ESMTPS "));
    server.stop();
    next.stop();
}

#[test]
fn a_forged_record_holds_mail_and_an_unusable_one_needs_tls() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (next, _) = next_hop(there.path());
    // A resolver that validates gives no answer it has found forged.
    let dns = Dns::start(zone().fails_for(&tlsa_name(&next), Kind::Tlsa));
    let server = relay(here.path(), &next, &dns);
    send(&server, TO);
    let line = server.wait_for_log("mail waits for these hosts");
    let why = format!("DNS has no answer for {}", tlsa_name(&next));
    assert!(line.contains(&why), "{line}");
    let text = route(here.path(), TO);
    assert!(text.contains(&why), "{text}");

    dns.change(zone().tlsa(&tlsa_name(&next), [1, 1, 1], &[7; 32]));
    let text = route(here.path(), TO);
    assert!(text.contains("DANE: encrypted, no TLSA record is usable"), "{text}");
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    // The failure is remembered for a second.
    while next.mailbox("signed.example", "ann").is_empty() {
        // Nothing may be left to flush.
        queue(here.path(), &["flush", "--all"]);
        assert!(std::time::Instant::now() < deadline, "it is sent");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(next.wait_for_mail("signed.example", "ann", 1)[0].text().contains(" with ESMTPS "));
    server.stop();
    next.stop();
}
