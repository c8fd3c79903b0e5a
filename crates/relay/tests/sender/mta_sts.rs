//! MTA-STS (RFC 8461): modes, and faults of certificates and hosts.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_dns_stub::Zone;
use posthaste_mta_sts::Policies;
use posthaste_net::tls::{TlsTrust, client_config};
use posthaste_relay::sender::{MtaSts, Section, opportunistic_tls};

use super::policies::{Came, Files, Odd, TlsSink};
use super::{LOOPBACK, Rig, rig_with, schedules, wait};

/// Stores a policy as fetched just now.
fn keep(dir: &Path, domain: &str, mode: &str, host: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let policy = format!("version: STSv1\nmode: {mode}\nmx: {host}\nmax_age: 86400\n");
    std::fs::write(dir.join(domain), posthaste_fsops::with_checksum(format!("id: 1\nfetched: {now}\n{policy}")))
        .unwrap();
}

/// Domains with the same host, and a policy each except for the last; a domain is named by the mode of its policy.
fn zone() -> Zone {
    let mut zone = Zone::default().a("mx.example", LOOPBACK);
    for domain in ["enforce", "elsewhere", "testing", "none", "bare"] {
        zone = zone.mx(&format!("{domain}.example"), 1, "mx.example");
        if domain != "bare" {
            zone = zone.txt(&format!("_mta-sts.{domain}.example"), "v=STSv1; id=1;");
        }
    }
    zone
}

/// A relay that trusts `authority`. `section`: rules of the operator.
fn rig(sink: &TlsSink, dir: &Path, authority: &Files, section: &str) -> Rig {
    for (domain, mode, host) in [
        ("enforce.example", "enforce", "*.example"),
        ("elsewhere.example", "enforce", "mx.elsewhere.example"),
        ("testing.example", "testing", "mx.elsewhere.example"),
        ("none.example", "none", "mx.elsewhere.example"),
    ] {
        keep(dir, domain, mode, host);
    }
    let section: Section = toml::from_str(section).unwrap();
    let ca_file = Path::new(&authority.cert()).to_owned();
    let policies = Arc::new(Policies::open(dir, &ca_file).unwrap());
    let tls = client_config(&TlsTrust::Authorities(ca_file)).unwrap();
    rig_with(zone(), sink.address.port(), |config| {
        config.tls = Some(opportunistic_tls().unwrap());
        config.mta_sts = Some(MtaSts { policies, tls });
        config.schedules = schedules(3600, 86_400);
        config.routing = section.routing().unwrap();
    })
}

fn send_to_all(rig: &Rig) {
    for domain in ["enforce", "elsewhere", "testing", "none", "bare"] {
        rig.send("ann@here.example", &[&format!("bob@{domain}.example")], "x\r\n");
    }
}

fn who(came: &[Came]) -> Vec<&str> {
    let mut who: Vec<&str> = came.iter().map(|one| one.recipient.as_str()).collect();
    who.sort_unstable();
    who
}

const FREE: [&str; 3] = ["bob@bare.example", "bob@none.example", "bob@testing.example"];

#[test]
fn enforce_takes_permitted_hosts_and_other_modes_all() {
    let dir = tempfile::tempdir().unwrap();
    let host = Files::new("mx.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let rig = rig(&sink, dir.path(), &host, "");
    send_to_all(&rig);
    let came = sink.wait(4);
    assert_eq!(who(&came), [FREE[0], "bob@enforce.example", FREE[1], FREE[2]]);
    assert!(came.iter().all(|one| one.is_encrypted));
    wait("the last waits", || rig.log().iter().any(|line| line.starts_with("bob@elsewhere.example deferred 4")));
    wait("the others are done", || rig.relay.stats().recipients == 1);
    let counts = rig.relay.tls_counts();
    let of = |policy, result| counts.iter().any(|(of, is, count)| (*of, *is) == (policy, result) && *count > 0);
    assert!(counts.len() == 2 && of("mta-sts", "verified") && of("opportunistic", "encrypted"), "{counts:?}");
}

/// Sends to all domains: those without a policy in force get their mail, encrypted or not; the others wait. Returns the
/// relay's log.
fn only_enforce_minds(sink: &TlsSink, authority: &Files, is_encrypted: bool, fault: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(sink, dir.path(), authority, "");
    send_to_all(&rig);
    let came = sink.wait(3);
    assert_eq!(who(&came), FREE, "{fault}");
    assert!(came.iter().all(|one| one.is_encrypted == is_encrypted), "{fault}: {came:?}");
    let is_told = |line: &String| line.starts_with("unreachable") && line.contains("mta-sts");
    wait("the site of the policy", || rig.log().iter().any(is_told));
    wait("both wait", || rig.relay.stats().recipients == 2);
    let is_failure = |(policy, result, _): &(&str, &str, u64)| *policy == "mta-sts" && *result != "verified";
    assert!(rig.relay.tls_counts().iter().any(is_failure), "{fault}: {:?}", rig.relay.tls_counts());
    assert_eq!(sink.all().len(), 3, "{fault}");
    rig.log()
}

#[test]
fn certificate_faults_hold_up_mail_under_enforce_alone() {
    let mx = || Files::new("mx.example");
    let dated = |from: i32, to: i32| {
        Files::with("mx.example", |params| {
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
        })
    };
    let is_client_only = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    };
    for (fault, host, is_trusted) in [
        ("not trusted", mx(), false),
        ("another name", Files::new("mx2.example"), true),
        ("a name below", Files::new("mx.mx.example"), true),
        ("a star above", Files::new("*.mx.example"), true),
        ("expired", dated(2000, 2001), true),
        ("not valid yet", dated(4000, 4001), true),
        ("for clients", Files::with("mx.example", is_client_only), true),
    ] {
        let sink = TlsSink::start(Some(host.server(&mx())));
        let other = mx();
        let log = only_enforce_minds(&sink, if is_trusted { &host } else { &other }, true, fault);
        assert!(log.iter().any(|line| line.starts_with("TLS mta-sts certificate ")), "{fault}: {log:?}");
    }
}

#[test]
fn enforce_never_goes_on_in_the_clear() {
    let host = Files::new("mx.example");
    only_enforce_minds(&TlsSink::start(None), &host, false, "broken handshakes");
    for (command, reply) in [("STARTTLS", "454 4.7.0 not now\r\n"), ("EHLO", "250 mx.example\r\n")] {
        let odd = Odd { is_encrypted: false, command, reply };
        let sink = TlsSink::odd("127.0.0.1:0".parse().unwrap(), Some(host.server(&host)), Some(odd));
        only_enforce_minds(&sink, &host, false, command);
    }
}

#[test]
fn a_rule_of_the_operator_goes_before_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let host = Files::new("mx.example");
    let sink = TlsSink::start(Some(host.server(&host)));
    let rules = "[[tls_policy]]\ndomain = 'elsewhere.example'\npolicy = 'required'\n";
    let rig = rig(&sink, dir.path(), &host, rules);
    send_to_all(&rig);
    sink.wait(5);
    rig.wait_empty();
}

#[test]
fn routes_and_smarthosts_have_no_policy() {
    let (host, other) = (Files::new("mx.example"), Files::new("mx.example"));
    // The route is for the domain whose policy permits no host of it; for the smarthost no certificate is trusted.
    for (domain, authority) in [("domain = 'elsewhere.example'\n", &host), ("", &other)] {
        let dir = tempfile::tempdir().unwrap();
        let sink = TlsSink::start(Some(host.server(&host)));
        let route = format!("[[route]]\n{domain}host = 'mx.example'\nport = {}\n", sink.address.port());
        let rig = rig(&sink, dir.path(), authority, &route);
        send_to_all(&rig);
        sink.wait(5);
        rig.wait_empty();
    }
}
