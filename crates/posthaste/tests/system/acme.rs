//! Certificates from an authority, and their files for the server and for other programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste_acme_stub::AcmeStub;
use posthaste_dns_stub::{Server as Dns, Zone};
use rcgen::{KeyPair, PublicKeyData};
use rustix::process::Signal;

use crate::certificates::shown;
use crate::http::{ask, page_of};
use crate::support::{Server, command};

/// A server that gets its certificates by a program for DNS, as tests have neither port 443 nor port 80.
pub fn config(dir: &Path, stub: &AcmeStub) -> String {
    std::fs::write(dir.join("root.pem"), &stub.root_pem).unwrap();
    std::fs::write(dir.join("program"), "#!/bin/sh\n[ $# = 2 ]\n").unwrap();
    std::fs::set_permissions(dir.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "host_name = \"mx.example.org\"\n[acme]\nenabled = true\ndirectory = \"{}\"\nca_file = \"root.pem\"\n\
         dns_program = \"{}\"\n[dns]\nservers = [\"127.0.0.1:9\"]\n[[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"implicit\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\n[[domain]]\nname = \"example.org\"\nusers = \"any\"\n",
        stub.directory,
        dir.join("program").display()
    )
}

fn renew(dir: &Path, all: bool) -> (bool, String) {
    let mut renew = command(dir, &["acme", "renew"]);
    let output = renew.args(all.then_some("--all")).output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn certificates_of_an_authority_are_in_force_without_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let answers = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&answers);
    let stub = AcmeStub::start(move |challenge| match (&*challenge.kind, seen.load(Ordering::SeqCst)) {
        ("dns-01", true) => Ok(()),
        _ => Err("no such record".to_owned()),
    });
    let server = Server::start(dir.path(), &config(dir.path(), &stub));
    let at = server.addresses[0];
    let made = shown(at, Some("mx.example.org"));

    // Until the authority agrees there is the self-made one, and the log and `acme renew` say why.
    let line = server.wait_for_log("cannot renew the certificate of this name; retrying automatically");
    assert!(line.contains("no such record") && line.contains("minutes=60"), "{line}");
    let (is_done, text) = renew(dir.path(), false);
    assert!(
        !is_done && text.contains("mx.example.org  no: the authority says: ") && text.contains("no such record"),
        "{text}"
    );
    let check = command(dir.path(), &["config", "check"]).output().unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(text.contains("self-made certificate") && text.contains("no new certificate for mx.example.org"), "{text}");
    assert_eq!(shown(at, None), made);

    // A reload tries at once.
    answers.store(true, Ordering::SeqCst);
    server.signal(Signal::HUP);
    server.wait_for_log_again("a new certificate is in force", 3);
    let names = ["mx.example.org", "mta-sts.example.org", "autoconfig.example.org"];
    let first = names.map(|name| shown(at, Some(name)));
    assert!(first[0] != made && first[0] != first[1] && first[1] != first[2]);
    assert_eq!(shown(at, Some("unknown.example")), first[0], "the first is the host's own");
    let file = dir.path().join("posthaste-data/acme/mx.example.org.pem");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let check = command(dir.path(), &["config", "check"]).output().unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(!text.contains("self-made") && !text.contains("no new certificate"), "{text}");

    let orders = stub.orders().len();
    let (is_done, text) = renew(dir.path(), false);
    assert!(is_done && text.contains("mx.example.org  not due, 89 days left"), "{text}");
    assert_eq!(stub.orders().len(), orders);
    let (is_done, text) = renew(dir.path(), true);
    assert!(is_done && text.contains("mx.example.org  new, for 89 days"), "{text}");
    let second = shown(at, Some("mx.example.org"));
    assert_ne!(second, first[0]);

    // Kept over a restart.
    server.stop();
    let server = Server::start_as_it_is(dir.path());
    assert_eq!(shown(server.addresses[0], None), second);
    server.stop();
    assert_eq!(stub.accounts(), 1);
}

/// The digest of the key in a file, as a TLSA record `3 1 1` has it.
fn digest_of_key(file: &Path) -> Vec<u8> {
    let key = KeyPair::from_pem(&std::fs::read_to_string(file).unwrap()).unwrap();
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &key.subject_public_key_info()).as_ref().to_vec()
}

#[test]
fn a_next_key_waits_for_its_tlsa_record() {
    let (dir, stub) = (tempfile::tempdir().unwrap(), AcmeStub::start(|_| Ok(())));
    let zone = |digest: &[u8]| Zone::default().tlsa("_25._tcp.mx.example.org", [3, 1, 1], digest);
    let dns = Dns::start(zone(&[7; 32]));
    let text = config(dir.path(), &stub).replace("127.0.0.1:9", &dns.address().to_string());
    let server = Server::start(dir.path(), &text.replace("[acme]\n", "[acme]\nnew_key = true\n"));
    server.wait_for_log_again("a new certificate is in force", 3);
    let file = dir.path().join("posthaste-data/acme/mx.example.org.pem");
    let next = file.with_extension("next-key");
    let first = digest_of_key(&file);
    let renewed = || {
        let (is_done, text) = renew(dir.path(), true);
        assert!(is_done, "{text}");
        text.contains(
            "mx.example.org  new, for 89 days; other hosts expect another key: the TLSA records of _25._tcp.mx",
        )
    };

    dns.change(zone(&first));
    assert!(renewed());
    assert_eq!(digest_of_key(&file), first);
    server.wait_for_log("that other hosts may refuse: see `posthaste dns check`");
    let second = digest_of_key(&next);
    dns.change(zone(&second));
    assert!(!renewed());
    assert!(digest_of_key(&file) == second && digest_of_key(&next) != second);
    server.stop();
}

#[test]
fn mta_sts_policy_is_served_for_our_domains_without_token() {
    let dir = tempfile::tempdir().unwrap();
    let text = "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
                protocol = \"http\"\n[[domain]]\nname = \"example.org\"\nusers = \"any\"\n";
    let server = Server::start(dir.path(), text);
    let get = |method: &str, host: &str, path: &str| {
        ask(page_of(&server), &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    let policy = "/.well-known/mta-sts.txt";
    let (code, text) = get("GET", "mta-sts.example.org", policy);
    assert_eq!((code, &*text), (200, "version: STSv1\r\nmode: testing\r\nmx: mx.example.org\r\nmax_age: 604800\r\n"));
    assert_eq!(get("GET", "MTA-STS.Example.org:443", policy).0, 200);
    for (host, path) in [
        ("mta-sts.example.net", policy),
        ("mx.example.org", policy),
        ("mta-sts.example.org", "/.well-known/mta-sts.txt/"),
        ("mta-sts.example.org", "/.well-known/acme-challenge/unknown"),
        ("mta-sts.example.org", "/.well-known/acme-challenge/../../x"),
        ("autoconfig.example.org", "/mail/config-v1.1.xml"),
    ] {
        assert_eq!(get("GET", host, path).0, 404, "{host} {path}");
    }
    assert_eq!(get("POST", "mta-sts.example.org", policy).0, 405);
    assert_eq!(get("GET", "mta-sts.example.org", "/").0, 421, "only these files are for other names");
    server.stop();
}
