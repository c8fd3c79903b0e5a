//! `posthaste dns records`: the records of a domain, beside those that a DNS server has.

use posthaste_dns_stub::{Server as Dns, Zone};
use serde_json::Value;

use crate::support::{command, configure};

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
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    for start in [
        "_submissions._tcp.example.org.  SRV  0 1 1465 mx.example.org.  ",
        "_imaps._tcp.example.org.  SRV  0 1 1993 mx.example.org.  ",
        "10.2.0.192.in-addr.arpa.  PTR  mx.example.org.  ",
    ] {
        assert!(text.lines().any(|found| found.starts_with(start)), "{start}\n{text}");
    }
    let zone = run(&["dns", "records", "example.org", "--zone"]);
    let rsa = zone.lines().find(|line| line.contains("k=rsa")).unwrap();
    let strings: Vec<&str> = rsa.split('"').skip(1).step_by(2).collect();
    assert!(strings.len() == 2 && strings.concat() == key && strings.iter().all(|part| part.len() <= 255), "{rsa}");
    // What was added is there at the next look.
    let zone = Zone::default().mx("example.org", 10, "mx.example.org").txt("example.org", "v=spf1 mx -all");
    dns.change(zone);
    let records: Value = serde_json::from_str(&run(&["dns", "records", "example.org", "--json"])).unwrap();
    let states: Vec<&str> =
        records.as_array().unwrap().iter().take(3).map(|of| of["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["there", "there", "missing"], "{records}");
    let output = command(dir.path(), &["dns", "records", "no domain"]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}
