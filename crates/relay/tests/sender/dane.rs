//! DANE (RFC 7672): TLSA records of mail hosts, in zones that are signed or not.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_dns::{Resolver, Settings};
use posthaste_dns_stub::{Kind, Zone};
use posthaste_mta_sts::Policies;
use posthaste_net::tls::{TlsTrust, client_config};
use posthaste_relay::sender::{MtaSts, opportunistic_tls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::policies::{Files, Odd, TlsSink};
use super::{LOOPBACK, Rig, rig_with, schedules, wait};

/// One domain with one host, without records of its certificate. Answers are not kept: changes show at once.
fn zone() -> Zone {
    Zone::default().ttl(0).mx("a.example", 1, "mx.example").a("mx.example", LOOPBACK)
}

/// A site pauses at once.
const ONE_FAILURE: &str = "[default]\nfailures_before_pause = 1\n";

fn tlsa_name(sink: &TlsSink) -> String {
    format!("_{}._tcp.mx.example", sink.address.port())
}

/// With the record `3 1 1` of this certificate.
fn naming(zone: Zone, sink: &TlsSink, certificate: &Files) -> Zone {
    zone.tlsa(&tlsa_name(sink), [3, 1, 1], &certificate.key_digest())
}

/// A relay that believes the resolver.
fn rig(sink: &TlsSink, zone: Zone) -> Rig {
    rig_of(sink, zone, None)
}

fn rig_of(sink: &TlsSink, zone: Zone, mta_sts: Option<MtaSts>) -> Rig {
    let rig = rig_with(zone, sink.address.port(), |config| {
        config.tls = Some(opportunistic_tls().unwrap());
        config.mta_sts = mta_sts;
        config.schedules = schedules(3600, 86_400);
        (config.shaping, config.site_pause_secs) = (super::shaping::rules(ONE_FAILURE), 3600);
    });
    let servers = vec![rig.dns.address()];
    let settings =
        Settings { servers, trust_ad: true, ttl_min_secs: 0, failure_secs: 1, timeout_secs: 90, ..Settings::default() };
    rig.relay.set_resolver(Arc::new(Resolver::new(&settings).unwrap()));
    rig
}

fn send(rig: &Rig) {
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
}

/// Waits until the hosts could not be used for this reason.
fn wait_for_trouble(rig: &Rig, why: &str) {
    let is_told = |line: &String| line.starts_with("unreachable") && line.contains("dnssec") && line.contains(why);
    wait(why, || rig.log().iter().any(is_told));
    assert_eq!(rig.relay.stats().recipients, 1, "it waits");
}

fn is_counted(rig: &Rig, policy: &str, result: &str) -> bool {
    rig.relay.tls_counts().iter().any(|(of, is, _)| (*of, *is) == (policy, result))
}

#[test]
fn a_certificate_named_by_a_record_is_taken_with_any_name() {
    let host = Files::new("elsewhere.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let rig = rig(&sink, naming(zone().signed("example"), &sink, &host));
    send(&rig);
    let came = sink.wait(1);
    assert_eq!((came[0].is_encrypted, came[0].name.as_deref()), (true, Some("mx.example")));
    rig.wait_empty();
    assert!(is_counted(&rig, "dane", "verified"), "{:?}", rig.relay.tls_counts());
}

#[test]
fn another_certificate_gets_nothing_until_a_record_names_it() {
    let host = Files::new("mx.example");
    let other = Files::new("mx.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let zone = zone().signed("example");
    let rig = rig(&sink, naming(zone.clone(), &sink, &other));
    send(&rig);
    wait_for_trouble(
        &rig,
        "mx.example (127.0.0.1): TLS handshake: no certificate of the server matches the TLSA records",
    );
    assert!(is_counted(&rig, "dane", "certificate"), "{:?}", rig.relay.tls_counts());
    assert!(rig.log().iter().any(|line| line.starts_with("TLS dane certificate mx.example: TLS handshake: no cert")));
    rig.dns.change(naming(naming(zone, &sink, &other), &sink, &host));
    rig.flush();
    assert!(sink.wait(1)[0].is_encrypted);
}

#[test]
fn records_that_nobody_has_validated_demand_nothing() {
    let host = Files::new("mx.example");
    let other = Files::new("mx.example");
    for zone in [
        zone(),
        zone().signed("mx.example"),
        // The list of hosts is signed, their addresses are not.
        zone().signed("a.example"),
    ] {
        let sink = TlsSink::start(Some(host.server(&host)));
        let rig = rig(&sink, naming(zone, &sink, &other));
        send(&rig);
        assert!(sink.wait(1)[0].is_encrypted);
        rig.wait_empty();
        assert!(is_counted(&rig, "opportunistic", "encrypted"), "{:?}", rig.relay.tls_counts());
        assert_eq!(rig.dns.asked(&tlsa_name(&sink), Kind::Tlsa), 0);
    }
}

#[test]
fn a_domain_without_mx_records_is_judged_by_its_addresses() {
    let host = Files::new("mx.example");
    let other = Files::new("mx.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let bare = Zone::default().ttl(0).a("a.example", LOOPBACK);
    let name = format!("_{}._tcp.a.example", sink.address.port());
    let rig = rig(&sink, bare.signed("example").tlsa(&name, [3, 1, 1], &other.key_digest()));
    send(&rig);
    wait_for_trouble(&rig, "no certificate of the server matches");
}

#[test]
fn addresses_that_nobody_knows_yet_are_not_unsigned() {
    let host = Files::new("mx.example");
    let other = Files::new("mx.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let name = format!("_{}._tcp.a.example", sink.address.port());
    let bare = Zone::default().ttl(0).a("a.example", LOOPBACK).signed("example");
    let bare = bare.tlsa(&name, [3, 1, 1], &other.key_digest());
    let rig = rig(&sink, bare.clone().fails_for("a.example", Kind::A));
    send(&rig);
    wait_for_trouble(&rig, "a.example");
    rig.dns.change(bare);
    // The failure is remembered for a second.
    wait("it is tried again", || {
        rig.flush();
        rig.log().iter().any(|line| line.contains("no certificate of the server matches"))
    });
    assert!(sink.all().is_empty());
}

#[test]
fn unusable_records_demand_tls_with_any_certificate() {
    let host = Files::new("mx.example");
    let unusable = |sink: &TlsSink| zone().signed("example").tlsa(&tlsa_name(sink), [1, 1, 1], &[7; 32]);
    let sink = TlsSink::start(Some(host.server(&host)));
    let with_tls = rig(&sink, unusable(&sink));
    send(&with_tls);
    assert!(sink.wait(1)[0].is_encrypted);
    with_tls.wait_empty();
    assert!(is_counted(&with_tls, "dane", "encrypted"), "{:?}", with_tls.relay.tls_counts());
    let broken = TlsSink::start(None);
    let without = rig(&broken, unusable(&broken));
    send(&without);
    wait_for_trouble(&without, "TLS handshake");
}

#[test]
fn a_host_whose_records_nobody_gives_is_not_connected_to() {
    let host = Files::new("mx.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let signed = zone().signed("example");
    let rig = rig(&sink, signed.clone().fails_for(&tlsa_name(&sink), Kind::Tlsa));
    send(&rig);
    wait_for_trouble(&rig, &format!("DNS has no answer for {}", tlsa_name(&sink)));
    assert!(sink.connections() == 0 && is_counted(&rig, "dane", "no_answer"));
    assert!(rig.log().iter().any(|line| line.starts_with("TLS dane no_answer mx.example: DNS has no answer")));
    rig.dns.change(naming(signed, &sink, &host));
    // The failure is remembered for a second.
    wait("it is tried again", || {
        rig.flush();
        rig.relay.stats().recipients == 0
    });
    assert!(sink.wait(1)[0].is_encrypted);
}

#[test]
fn another_host_takes_mail_of_one_with_missing_records() {
    let host = Files::new("mx2.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let zone = zone().mx("a.example", 2, "mx2.example").a("mx2.example", LOOPBACK).signed("example");
    let rig = rig(&sink, zone.fails_for(&tlsa_name(&sink), Kind::Tlsa));
    send(&rig);
    assert_eq!(sink.wait(1)[0].name.as_deref(), Some("mx2.example"));
    rig.wait_empty();
}

#[test]
fn changed_records_count_at_the_next_connection() {
    let host = Files::new("mx.example");
    let other = Files::new("mx.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let rig = rig(&sink, naming(zone().signed("example"), &sink, &host));
    send(&rig);
    sink.wait(1);
    wait("the connection has ended", || rig.relay.stats().connections == 0);
    rig.dns.change(naming(zone().signed("example"), &sink, &other));
    send(&rig);
    wait_for_trouble(&rig, "no certificate of the server matches");
    assert_eq!(sink.wait(1).len(), 1);
}

#[test]
fn a_host_with_records_is_never_spoken_to_in_the_clear() {
    let host = Files::new("mx.example");
    let loses = |is_encrypted, command| Odd { is_encrypted, command, reply: "" };
    for odd in [loses(false, "STARTTLS"), loses(true, "EHLO"), loses(true, "MAIL")] {
        let sink = TlsSink::odd("127.0.0.1:0".parse().unwrap(), Some(host.server(&host)), Some(odd));
        let rig = rig(&sink, naming(zone().signed("example"), &sink, &host));
        send(&rig);
        wait_for_trouble(&rig, "mx.example");
        rig.flush();
        wait("it is tried again", || sink.connections() >= 2);
        assert!(sink.all().is_empty(), "{odd:?}");
    }
}

/// An authority, and a server with a certificate by it.
fn chain(name: &str) -> (Vec<u8>, Arc<ServerConfig>) {
    let mut of_authority = CertificateParams::new(Vec::<String>::new()).unwrap();
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let key = KeyPair::generate().unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &authority_key.subject_public_key_info());
    let authority = of_authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(of_authority, authority_key);
    let server = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let sent: Vec<CertificateDer<'static>> = vec![server.der().clone(), authority.der().clone()];
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = builder.with_no_client_auth().with_single_cert(sent, key.into()).unwrap();
    (digest.as_ref().to_vec(), Arc::new(config))
}

#[test]
fn a_chain_to_a_recorded_authority_needs_the_hosts_name() {
    let zone = |sink: &TlsSink, digest: &[u8]| zone().signed("example").tlsa(&tlsa_name(sink), [2, 1, 1], digest);
    let (digest, config) = chain("mx.example");
    let sink = TlsSink::start(Some(config));
    let rig = rig(&sink, zone(&sink, &digest));
    send(&rig);
    assert!(sink.wait(1)[0].is_encrypted);
    rig.wait_empty();
    let (digest, config) = chain("elsewhere.example");
    let sink = TlsSink::start(Some(config));
    let rig = self::rig(&sink, zone(&sink, &digest));
    send(&rig);
    wait_for_trouble(&rig, "not valid for name");
}

#[test]
fn a_chain_with_the_recipients_domain_is_for_its_mail_alone() {
    let (digest, config) = chain("a.example");
    let sink = TlsSink::start(Some(config));
    let zone = zone().mx("b.example", 1, "mx.example").signed("example");
    let rig = rig(&sink, zone.tlsa(&tlsa_name(&sink), [2, 1, 1], &digest));
    // Both domains share a site, until its host has shown the certificate.
    rig.send("ann@here.example", &["bob@b.example"], "x\r\n");
    wait_for_trouble(&rig, "not valid for name");
    send(&rig);
    assert_eq!(sink.wait(1)[0].name.as_deref(), Some("mx.example"), "SNI has the name of the records");
    wait("the other waits at a site of its own", || {
        rig.log().iter().any(|line| line.starts_with("unreachable") && line.contains("for b.example"))
    });
    rig.flush();
    wait("it is tried again", || sink.connections() >= 4);
    assert_eq!((sink.all().len(), rig.relay.stats().recipients), (1, 1));
}

#[test]
fn a_chain_with_the_name_behind_an_alias_is_taken() {
    for (certified, is_taken) in [("mail.example", true), ("a.example", true), ("other.example", false)] {
        let (digest, config) = chain(certified);
        let sink = TlsSink::start(Some(config));
        let zone = Zone::default().ttl(0).a("mx.example", LOOPBACK).cname("a.example", "mail.example");
        let zone = zone.mx("mail.example", 1, "mx.example").signed("example");
        let rig = rig(&sink, zone.tlsa(&tlsa_name(&sink), [2, 1, 1], &digest));
        send(&rig);
        let site = "for a.example = mail.example";
        if is_taken {
            assert!(sink.wait(1)[0].is_encrypted, "{certified}")
        } else {
            wait("it waits at a site of its own", || {
                rig.log().iter().any(|line| line.starts_with("unreachable") && line.contains(site))
            })
        }
    }
}

/// MTA-STS with a policy in force that permits the host. `authority` is trusted.
fn enforcing(authority: &Files) -> (tempfile::TempDir, MtaSts) {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let policy = "version: STSv1\nmode: enforce\nmx: mx.example\nmax_age: 86400\n";
    let kept = posthaste_fsops::with_checksum(format!("id: 1\nfetched: {now}\n{policy}"));
    std::fs::write(dir.path().join("a.example"), kept).unwrap();
    let ca_file = Path::new(&authority.cert()).to_owned();
    let policies = Arc::new(Policies::open(dir.path(), &ca_file).unwrap());
    let tls = client_config(&TlsTrust::Authorities(ca_file)).unwrap();
    (dir, MtaSts { policies, tls })
}

#[test]
fn records_go_before_a_policy_of_mta_sts() {
    let host = Files::new("mx.example");
    let other = Files::new("mx.example");
    let (_dir, by_host) = enforcing(&host);
    let (_dir_of_other, by_other) = enforcing(&other);
    let signed = || zone().signed("example").txt("_mta-sts.a.example", "v=STSv1; id=1;");
    // Not trusted by the policy, but named by a record.
    let sink = TlsSink::start(Some(host.server(&host)));
    let rig = rig_of(&sink, naming(signed(), &sink, &host), Some(by_other.clone()));
    send(&rig);
    assert!(sink.wait(1)[0].is_encrypted);
    rig.wait_empty();
    // Trusted, but not named.
    let sink = TlsSink::start(Some(host.server(&host)));
    let rig = rig_of(&sink, naming(signed(), &sink, &other), Some(by_host));
    send(&rig);
    wait_for_trouble(&rig, "no certificate of the server matches");
    // Records of which none is usable do not weaken the policy.
    let sink = TlsSink::start(Some(host.server(&host)));
    let unusable = signed().tlsa(&tlsa_name(&sink), [0, 1, 1], &[7; 32]);
    let rig = rig_of(&sink, unusable, Some(by_other));
    send(&rig);
    wait_for_trouble(&rig, "invalid peer certificate");
}
