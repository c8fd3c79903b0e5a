//! `posthaste dns`: the records of a domain, compared with those at a DNS server, and their check at the domain's own
//! servers.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use posthaste_acme_stub::AcmeStub;
use posthaste_dns_stub::{Kind, Server as Dns, Zone};
use serde_json::{Value, json};

use crate::http::{CONFIG, page_of, token};
use crate::page::control;
use crate::relaying::unused_port;
use crate::support::{ANYBODY, PATIENCE, Server, command, configure};
use crate::tls::certify;

#[test]
fn records_are_printed_with_what_they_replace() {
    let zone = Zone::default()
        .mx("example.org", 10, "mail.old.example")
        .txt("example.org", "v=spf1 include:_spf.old.example -all")
        .a("mx.example.org", [192, 0, 2, 10].into());
    let (dir, dns) = (tempfile::tempdir().unwrap(), Dns::start(zone));
    let config = format!(
        "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n\
         [[listener]]\naddress = \"127.0.0.1:1465\"\ntls = \"implicit\"\nauth = \"required\"\n\
         [[listener]]\naddress = \"127.0.0.1:1993\"\nprotocol = \"imap\"\ntls = \"implicit\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"reports\"]\n[dns]\nservers = [\"{}\"]\n",
        dns.address()
    );
    configure(dir.path(), &config);
    std::fs::create_dir(dir.path().join("posthaste-data")).unwrap();
    let run = |args: &[&str]| {
        let output = command(dir.path(), args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let made: Value = serde_json::from_str(&run(&["dkim", "new", "example.org", "--json"])).unwrap();
    let key = made["made"][0]["record"]["value"].as_str().unwrap().to_owned();
    let selector = made["made"][0]["selector"].as_str().unwrap();
    let text = run(&["dns", "records", "Example.ORG"]);
    for line in [
        "example.org.  MX  10 mx.example.org.  replaces mail.old.example",
        "example.org.  TXT  \"v=spf1 a:mx.example.org include:_spf.old.example -all\"  replaces \"v=spf1 include:_spf.old.example -all\"",
        "mx.example.org.  TXT  \"v=spf1 a -all\"",
        &format!("{selector}._domainkey.example.org.  TXT  \"{key}\""),
        "_dmarc.example.org.  TXT  \"v=DMARC1; p=none; rua=mailto:reports@example.org\"",
        "_smtp._tls.example.org.  TXT  \"v=TLSRPTv1; rua=mailto:reports@example.org\"",
        "_submissions._tcp.example.org.  SRV  0 1 1465 mx.example.org.",
        "_imaps._tcp.example.org.  SRV  0 1 1993 mx.example.org.",
        "10.2.0.192.in-addr.arpa.  PTR  mx.example.org.  (the owner of the address sets it)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let zone = run(&["dns", "records", "example.org", "--zone"]);
    let rsa = zone.lines().find(|line| line.contains("k=rsa")).unwrap();
    let strings: Vec<&str> = rsa.split('"').skip(1).step_by(2).collect();
    assert!(strings.len() == 2 && strings.concat() == key && strings.iter().all(|part| part.len() <= 255), "{rsa}");
    let foreign = command(dir.path(), &["dns", "records", "exmaple.org"]).output().unwrap();
    let told = String::from_utf8(foreign.stderr).unwrap();
    assert!(foreign.status.success() && told.contains("no mail for exmaple.org is received here"), "{told}");
    let foreign = command(dir.path(), &["dkim", "new", "exmaple.org", "--keys", "ed25519"]).output().unwrap();
    let told = String::from_utf8(foreign.stderr).unwrap();
    assert!(foreign.status.success() && told.contains("no mail for exmaple.org is received here"), "{told}");
    // What was added is there at the next look.
    let zone = Zone::default().mx("example.org", 10, "mx.example.org").txt("example.org", "v=spf1 mx -all");
    dns.change(zone);
    let records: Value = serde_json::from_str(&run(&["dns", "records", "example.org", "--json"])).unwrap();
    let states: Vec<&str> =
        records["records"].as_array().unwrap().iter().take(3).map(|of| of["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["there", "there", "missing"], "{records}");
    let output = command(dir.path(), &["dns", "records", "no domain"]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn a_web_server_in_front_has_records_and_lines() {
    let zone = Zone::default().mx("example.org", 10, "mx.example.org").a("mx.example.org", [192, 0, 2, 10].into());
    let (dir, dns) = (tempfile::tempdir().unwrap(), Dns::start(zone));
    let config = format!(
        "host_name = \"mx.example.org\"\n[acme]\nenabled = true\n\
         [[listener]]\naddress = \"127.0.0.1:8025\"\nprotocol = \"http\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n[dns]\nservers = [\"{}\"]\n",
        dns.address()
    );
    configure(dir.path(), &config);
    let run = |port: u16, form: &[&str]| {
        let args = ["dns", "records", "example.org", "--https-port", &port.to_string()];
        let output = command(dir.path(), &args).args(form).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(unused_port(), &[]);
    assert!(!text.contains("mta-sts") && !text.contains("nginx"), "no web server is there: {text}");
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = web.local_addr().unwrap().port();
    let text = run(port, &[]);
    for line in [
        "mta-sts.example.org.  CNAME  mx.example.org.",
        "autoconfig.example.org.  CNAME  mx.example.org.",
        "For the web server of this host (nginx), at ports 80 and 443 of mx.example.org, mta-sts.example.org, autoconfig.example.org:",
        "location ~ ^/(\\.well-known/(acme-challenge/|autoconfig/|mta-sts\\.txt$)|mail/) {",
        "    proxy_pass http://127.0.0.1:8025;",
        "Certificates of these names, once obtained: posthaste-data/acme/NAME.pem",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("_mta-sts."), "nothing answers there: {text}");
    assert!(!run(port, &["--zone"]).contains("nginx"));
    let all: Value = serde_json::from_str(&run(port, &["--json"])).unwrap();
    let nginx = all["web_server"]["nginx"].as_str().unwrap();
    assert!(nginx.contains("proxy_pass http://127.0.0.1:8025;") && text.contains(nginx), "{all:#}");
    assert_eq!(all["web_server"]["names"], json!(["mx.example.org", "mta-sts.example.org", "autoconfig.example.org"]));
    assert_eq!(all["web_server"]["certificates"], "posthaste-data/acme/NAME.pem");
    let none: Value = serde_json::from_str(&run(unused_port(), &["--json"])).unwrap();
    assert!(none["web_server"].is_null() && none["records"].is_array(), "{none:#}");
}

#[test]
fn tlsa_records_of_our_host_that_name_another_key_are_told() {
    let (dir, name) = (tempfile::tempdir().unwrap(), "_25._tcp.mx.example.org");
    let zone = || Zone::default().mx("example.org", 10, "mx.example.org");
    certify(dir.path());
    let dns = Dns::start(zone().tlsa(name, [3, 1, 1], &[7; 32]));
    let config = format!(
        "host_name = \"mx.example.org\"\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n\
         [[listener]]\naddress = \"127.0.0.1:25\"\n[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n\
         [dns]\nservers = [\"{}\"]\n",
        dns.address()
    );
    configure(dir.path(), &config);
    let records = || -> Vec<Value> {
        let output = command(dir.path(), &["dns", "records", "example.org", "--json"]).output().unwrap();
        let records: Value = serde_json::from_slice(&output.stdout).unwrap();
        records["records"].as_array().unwrap().iter().filter(|record| record["type"] == "TLSA").cloned().collect()
    };
    let [wrong] = &records()[..] else { panic!("{:?}", records()) };
    assert_eq!((&wrong["name"], &wrong["state"]), (&name.into(), &"differs".into()), "{wrong}");
    assert_eq!(wrong["found"], format!("3 1 1 {}", "07".repeat(32)));
    let value = wrong["value"].as_str().unwrap();
    let output = command(dir.path(), &["dns", "check", "example.org", "--dns-port", "9"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = format!("different  {name}.  TLSA  {value}  there is: 3 1 1 {}", "07".repeat(32));
    assert!(text.lines().any(|found| found == line), "{line}\n{text}");

    let digest = value.strip_prefix("3 1 1 ").unwrap();
    let octet = |at: usize| u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).unwrap();
    let digest: Vec<u8> = (0..32).map(octet).collect();
    dns.change(zone().tlsa(name, [3, 1, 1], &digest));
    assert_eq!(records(), [json!({ "name": name, "type": "TLSA", "value": value, "state": "there", "found": null })]);
    dns.change(zone());
    assert_eq!(records(), [] as [Value; 0], "a host need not have any");
}

/// A server with a listener for logins whose resolver is `cache`, and the text of its one DKIM key.
fn server_with_key(dir: &Path, cache: &Dns) -> (String, String) {
    let config = format!(
        "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n\
         [[listener]]\naddress = \"127.0.0.1:1993\"\nprotocol = \"imap\"\ntls = \"implicit\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"reports\"]\n[dns]\nservers = [\"{}\"]\n",
        cache.address()
    );
    configure(dir, &config);
    std::fs::create_dir(dir.join("posthaste-data")).unwrap();
    let made = command(dir, &["dkim", "new", "example.org", "--keys", "ed25519", "--json"]).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let key = &made["made"][0];
    (key["selector"].as_str().unwrap().to_owned(), key["record"]["value"].as_str().unwrap().to_owned())
}

const TOP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The zone of the domain without its MX.
fn without_mx((selector, key): &(String, String)) -> Zone {
    Zone::default()
        .txt("example.org", "v=spf1 mx -all")
        .txt("mx.example.org", "v=spf1 a -all")
        .txt("_dmarc.example.org", "v=DMARC1; p=none; rua=mailto:reports@example.org")
        .txt("_smtp._tls.example.org", "v=TLSRPTv1; rua=mailto:reports@example.org")
        .cname(&format!("{selector}._domainkey.example.org"), "key.example.org")
        .txt("key.example.org", key)
        .srv("_imaps._tcp.example.org", 993, "mx.example.org")
        .srv("_imaps._tcp.example.org", 1993, "mx.example.org")
        .a("mx.example.org", [192, 0, 2, 10].into())
}

/// The servers of `org` and of `arpa`, which refer to the domain's servers.
fn top() -> Zone {
    Zone::default().delegate("example.org", "ns1.example.org", Some(OWN)).delegate(
        "2.0.192.in-addr.arpa",
        "ns1.example.org",
        Some(OWN),
    )
}

/// A caching resolver with the old records.
fn stale_cache() -> Zone {
    let zone = Zone::default().ns("org", "ns.top.example").ns("arpa", "ns.top.example").a("ns.top.example", TOP);
    zone.mx("example.org", 10, "mail.old.example")
}

#[test]
fn a_check_asks_the_domains_own_servers() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), Dns::start(stale_cache()));
    let key = server_with_key(dir.path(), &cache);
    let own = without_mx(&key).mx("example.org", 10, "mail.wrong.example");
    let [_top, own] = Dns::start_beside([(TOP, top()), (OWN, own)]);
    let port = own.address().port().to_string();
    let check = |args: &[&str]| {
        let all = [&["dns", "check", "Example.ORG", "--dns-port", &port][..], args].concat();
        let output = command(dir.path(), &all).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text, _) = check(&[]);
    assert_eq!(code, Some(1), "{text}");
    for line in [
        "different  example.org.  MX  10 mx.example.org.  there is: mail.wrong.example",
        // Mail goes elsewhere, so the record needs another term.
        "different  example.org.  TXT  \"v=spf1 a:mx.example.org mx -all\"  there is: v=spf1 mx -all",
        "seen       mx.example.org.  TXT  \"v=spf1 a -all\"",
        &format!("seen       {}._domainkey.example.org.  TXT  \"{}\"", key.0, key.1),
        "missing    10.2.0.192.in-addr.arpa.  PTR  mx.example.org.",
        "seen       _imaps._tcp.example.org.  SRV  0 1 1993 mx.example.org.",
        "3 of 8 records are wrong or missing (asked: ns1.example.org)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert_eq!(cache.asked("example.org", Kind::Txt), 0, "a cache would keep that it is not there");
    own.change(
        without_mx(&key).mx("example.org", 10, "mx.example.org").ptr("10.2.0.192.in-addr.arpa", "mx.example.org"),
    );
    let (code, text, errors) = check(&["--json"]);
    let checked: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
    assert_eq!(checked["complete"], true);
    assert_eq!((&checked["asked"], &checked["servers"][0]), (&"own servers".into(), &"ns1.example.org".into()));
    assert!(checked["records"].as_array().unwrap().iter().all(|record| record["state"] == "there"));
}

#[test]
fn a_key_signs_once_its_record_is_at_the_domains_own_servers() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), Dns::start(stale_cache()));
    let key = server_with_key(dir.path(), &cache);
    let rotated = command(dir.path(), &["dkim", "rotate", "example.org", "--json"]).output().unwrap();
    let rotated: Value = serde_json::from_slice(&rotated.stdout).unwrap();
    let record = &rotated["next"][0]["record"];
    let (name, value) = (record["name"].as_str().unwrap(), record["value"].as_str().unwrap());
    let [_top, own] = Dns::start_beside([(TOP, top()), (OWN, without_mx(&key))]);
    let port = own.address().port().to_string();
    let activate = || {
        let output = command(dir.path(), &["dkim", "activate", "example.org", "--dns-port", &port]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (is_done, why) = activate();
    assert!(!is_done && why.contains(&format!("{name} has no record. Publish it")), "{why}");
    own.change(without_mx(&key).txt(name, "v=DKIM1; k=ed25519; p=AAAA"));
    let (is_done, why) = activate();
    assert!(!is_done && why.contains(&format!("{name} has another record: v=DKIM1")), "{why}");
    own.change(without_mx(&key).txt(name, value));
    let (is_done, why) = activate();
    assert!(is_done, "{why}");
}

#[test]
fn a_watch_ends_when_all_is_there_and_is_quiet_until_then() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), Dns::start(stale_cache()));
    let key = server_with_key(dir.path(), &cache);
    let [_top, own] = Dns::start_beside([(TOP, top()), (OWN, without_mx(&key))]);
    let port = own.address().port().to_string();
    let args = ["dns", "check", "example.org", "--dns-port", &port, "--watch", "--every", "1"];
    let watch = command(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while own.asked("example.org", Kind::Mx) < 2 {
        assert!(std::time::Instant::now() < deadline, "it does not ask again");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    own.change(
        without_mx(&key).mx("example.org", 10, "mx.example.org").ptr("10.2.0.192.in-addr.arpa", "mx.example.org"),
    );
    let output = watch.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.lines().count(), 9, "{text}");
    assert!(text.ends_with("all records are seen (asked: ns1.example.org)\n"), "{text}");
}

#[test]
fn a_blocked_port_53_uses_the_resolver_and_says_so() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), Dns::start(stale_cache()));
    server_with_key(dir.path(), &cache);
    // Nobody listens there, and nobody else can: it takes datagrams of one peer alone.
    let held = std::net::UdpSocket::bind((TOP, 0)).unwrap();
    held.connect((TOP, 9)).unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let output = command(dir.path(), &["dns", "check", "example.org", "--dns-port", &port]).output().unwrap();
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("different  example.org.  MX  10 mx.example.org.  there is: mail.old.example\n"), "{text}");
    assert!(text.contains("missing    mx.example.org.  A or AAAA: the host has no address\n"), "{text}");
    assert!(text.ends_with(" (asked: the resolver)\n"), "{text}");
    assert!(errors.contains("port 53 of other hosts cannot be reached from here"), "{errors}");
}

#[test]
fn silence_of_dns_is_no_missing_address() {
    let fails = Zone::default().mx("example.org", 10, "mx.example.org").fails("mx.example.org");
    let (dir, dns) = (tempfile::tempdir().unwrap(), Dns::start(fails));
    server_with_key(dir.path(), &dns);
    let check = |more: &[&str]| {
        let args = [&["dns", "check", "example.org", "--dns-port", "9"][..], more].concat();
        let output = command(dir.path(), &args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = check(&[]);
    assert!(text.contains("no answer  mx.example.org.  A or AAAA  DNS has no answer for mx.example.org"), "{text}");
    assert!(!text.contains("no address") && text.contains("DNS did not answer about "), "{text}");
    let round: Value = serde_json::from_str(&check(&["--json"])).unwrap();
    assert_eq!((&round["host_has_address"], &round["complete"]), (&Value::Null, &false.into()), "{round}");
    assert!(round["host_address_error"].as_str().unwrap().contains("no answer"), "{round}");
    // The name has no address, and the name does not exist.
    for zone in [Zone::default().txt("mx.example.org", "x"), Zone::default().txt("other.example.org", "x")] {
        dns.change(zone);
        let text = check(&[]);
        assert!(text.contains("missing    mx.example.org.  A or AAAA: the host has no address\n"), "{text}");
        let round: Value = serde_json::from_str(&check(&["--json"])).unwrap();
        assert_eq!((&round["host_has_address"], &round["host_address_error"]), (&false.into(), &Value::Null));
    }
}

#[test]
fn the_record_of_a_policy_is_wanted_once_the_policy_is_served() {
    let name = "mta-sts.example.org";
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("own.pem"), certificate.pem() + &key.serialize_pem()).unwrap();
    std::fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
    let zone = Zone::default().a("mx.example.org", Ipv4Addr::LOCALHOST).cname(name, "mx.example.org");
    let (dns, port) = (Dns::start(zone), unused_port());
    let config = format!(
        "host_name = \"mx.example.org\"\n[tls]\ncertificate = \"own.pem\"\n[acme]\nca_file = \"ca.pem\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"0.0.0.0:{port}\"\nprotocol = \"http\"\ntls = \"implicit\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n[dns]\nservers = [\"{}\"]\n",
        dns.address()
    );
    let server = Server::start(dir.path(), &config);
    let records = |port: u16| {
        let port = port.to_string();
        // The stub is no server of the domain that can be found, so the resolver is asked.
        let args = ["dns", "check", "example.org", "--json", "--dns-port", "9", "--https-port", &port];
        let output = command(dir.path(), &args).output().unwrap();
        let round: Value = serde_json::from_slice(&output.stdout).unwrap();
        round["records"].as_array().unwrap().clone()
    };
    let of = |records: &[Value], name: &str| records.iter().find(|record| record["name"] == name).cloned();
    let served = records(port);
    let policy = of(&served, "_mta-sts.example.org").unwrap_or_else(|| panic!("{served:#?}"));
    let value = policy["value"].as_str().unwrap();
    assert!(value.starts_with("v=STSv1; id=") && value.len() == 28, "{policy}");
    assert_eq!(of(&served, name).unwrap()["state"], "there");
    assert_eq!(of(&served, "autoconfig.example.org").unwrap()["state"], "missing");
    server.stop();
    assert_eq!(of(&records(port), "_mta-sts.example.org"), None);
}

#[test]
fn a_watch_gets_certificates_and_goes_on_to_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let is_published = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_published);
    let stub = AcmeStub::start(move |_| if seen.load(Relaxed) { Ok(()) } else { Err("no such record".to_owned()) });
    let all = || {
        Zone::default()
            .mx("example.org", 10, "mx.example.org")
            .txt("example.org", "v=spf1 mx -all")
            .txt("mx.example.org", "v=spf1 a -all")
            .txt("_dmarc.example.org", "v=DMARC1; p=none; rua=mailto:postmaster@example.org")
            .txt("_smtp._tls.example.org", "v=TLSRPTv1; rua=mailto:postmaster@example.org")
            .a("mx.example.org", Ipv4Addr::LOCALHOST)
            .ptr("1.0.0.127.in-addr.arpa", "mx.example.org")
            .cname("mta-sts.example.org", "mx.example.org")
            .cname("autoconfig.example.org", "mx.example.org")
            // It is its domains' own server, too: a resolver never asks for the name of 127.0.0.1.
            .ns("org", "ns.top.example")
            .ns("arpa", "ns.top.example")
            .a("ns.top.example", TOP)
    };
    let (dns, port) = (Dns::start(all()), unused_port().to_string());
    let config = crate::acme::config(dir.path(), &stub).replace("127.0.0.1:9", &dns.address().to_string());
    let https = format!("[[listener]]\naddress = \"0.0.0.0:{port}\"\nprotocol = \"http\"\ntls = \"implicit\"\n");
    configure(dir.path(), &(config.clone() + &https));
    std::fs::create_dir(dir.path().join("posthaste-data")).unwrap();
    let made = command(dir.path(), &["dkim", "new", "example.org", "--keys", "ed25519", "--json"]).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let key = &made["made"][0]["record"];
    let (name, value) = (key["name"].as_str().unwrap(), key["value"].as_str().unwrap());
    let all = || all().txt(name, value);
    dns.change(all());
    let server = Server::start(dir.path(), &(config + &https));
    // From now on it waits an hour.
    server.wait_for_log_again("cannot renew the certificate of this name", 3);
    is_published.store(true, Relaxed);

    let dns_port = dns.address().port().to_string();
    let more = ["example.org", "--dns-port", &dns_port, "--https-port", &port];
    let args = [&["dns", "check"][..], &more, &["--watch", "--every", "1"]].concat();
    let mut watch = command(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    while dns.asked("_mta-sts.example.org", Kind::Txt) == 0 {
        if std::time::Instant::now() > deadline {
            watch.kill().unwrap();
            panic!("the policy is not served: {:?}", watch.wait_with_output());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let records = command(dir.path(), &["dns", "records", "example.org", "--https-port", &port, "--json"]).output();
    let records: Value = serde_json::from_slice(&records.unwrap().stdout).unwrap();
    let policy = records["records"].as_array().unwrap().iter().find(|of| of["name"] == "_mta-sts.example.org");
    dns.change(all().txt("_mta-sts.example.org", policy.unwrap()["value"].as_str().unwrap()));
    let output = watch.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for name in ["mx", "mta-sts", "autoconfig"] {
        assert!(text.contains(&format!("certificate {name}.example.org  new, for ")), "{text}");
    }
    assert!(text.contains("\nseen       _mta-sts.example.org.  TXT  \"v=STSv1; id="), "{text}");
    server.stop();
}

#[test]
fn the_page_asks_for_records_of_domains_once_a_minute() {
    let (dir, dns) =
        (tempfile::tempdir().unwrap(), Dns::start(Zone::default().mx("example.org", 10, "mail.old.example")));
    let server = Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}[dns]\nservers = [\"{}\"]\n", dns.address()));
    let (address, secret) = (page_of(&server), token(dir.path(), "me", "server:read"));
    let made = command(dir.path(), &["dkim", "new", "example.org", "--keys", "ed25519"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let ask = |request: Value| control(address, &secret, &request);
    let (status, domains) = ask(json!({ "ask": "domains" }));
    assert_eq!((status, &domains["lines"][0]["domain"]), (200, &"example.org".into()), "{domains}");
    let key = &domains["lines"][0]["keys"][0];
    assert_eq!((&key["algorithm"], &key["state"]), (&"ed25519".into(), &"active".into()), "{domains}");
    assert_eq!(domains["end"]["checks"][0], json!({ "method": "spf", "results": {} }));
    let records = |domain: &str| ask(json!({ "ask": "records", "domain": domain }));
    let deadline = std::time::Instant::now() + PATIENCE;
    let seen = loop {
        let (status, seen) = records("Example.ORG");
        assert_eq!(status, 200, "{seen}");
        if seen["end"]["asking"] == false {
            break seen;
        }
        assert!(std::time::Instant::now() < deadline, "{seen}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let expected = json!({ "name": "example.org", "type": "MX", "value": "10 mx.example.org.", "state": "differs", "found": "mail.old.example" });
    assert_eq!(seen["lines"][0], expected);
    assert_eq!((&seen["end"]["asked"], &seen["end"]["complete"]), (&"resolver".into(), &false.into()), "{seen}");
    // All who ask share what was seen.
    let asked = dns.asked("example.org", Kind::Mx);
    assert_eq!(records("example.org").1, seen);
    assert_eq!(dns.asked("example.org", Kind::Mx), asked);
    // Nobody can have us ask for other domains.
    assert_eq!(records("elsewhere.example").0, 422);
    assert_eq!(dns.asked("elsewhere.example", Kind::Mx), 0);
    server.stop();
}
