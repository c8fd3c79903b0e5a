//! Certificates of listeners: several by name, and one of our own.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use posthaste_smtp::tls::{TlsTrust, client_config};
use rustix::process::Signal;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::auth::line;
use crate::http::token;
use crate::imap::address_of;
use crate::support::{Client, PATIENCE, Server, command};

/// A client that accepts every certificate, with or without SNI.
pub fn unverified(asks_by_name: bool) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(&client_config(&TlsTrust::Anything).unwrap());
    config.enable_sni = asks_by_name;
    Arc::new(config)
}

/// The certificate of a listener with implicit TLS for `name`; `None`: without SNI.
pub fn shown(at: SocketAddr, name: Option<&str>) -> CertificateDer<'static> {
    let asked: ServerName = name.unwrap_or("localhost").to_owned().try_into().unwrap();
    let mut session = rustls::ClientConnection::new(unverified(name.is_some()), asked).unwrap();
    let mut tcp = TcpStream::connect(at).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    while session.is_handshaking() {
        session.complete_io(&mut tcp).unwrap_or_else(|error| panic!("{at}, {name:?}: {error}"));
    }
    session.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Writes a new certificate for `names` and its key into one file.
fn one_file(file: &Path, names: &[&str]) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    std::fs::write(file, made.signing_key.serialize_pem() + &made.cert.pem()).unwrap();
    made.cert.der().clone()
}

/// A listener for each protocol, all with TLS from the first octet, and one with STARTTLS.
const EACH_PROTOCOL: &str = "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"implicit\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"implicit\"\nprotocol = \"lmtp\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"starttls\"\nauth = \"offered\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"implicit\"\nprotocol = \"imap\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"implicit\"\nprotocol = \"pop3\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"implicit\"\nprotocol = \"http\"\n\
    [[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n";

/// The addresses of [`EACH_PROTOCOL`] with implicit TLS.
fn implicit(server: &Server) -> Vec<SocketAddr> {
    let page = server.banner.lines().find_map(|line| line.trim().strip_prefix("page ")).expect("a page");
    let port = page.trim().trim_end_matches('/').rsplit_once(':').unwrap().1.parse().unwrap();
    let reading = ["imap", "pop3"].map(|protocol| address_of(server, protocol));
    [server.addresses[0], server.addresses[1]]
        .into_iter()
        .chain(reading)
        .chain([([127, 0, 0, 1], port).into()])
        .collect()
}

/// The metrics, from the HTTP listener of [`EACH_PROTOCOL`].
fn metrics(dir: &Path, server: &Server) -> String {
    let secret = token(dir, "scraper", "metrics");
    let mut session = rustls::ClientConnection::new(unverified(true), "localhost".try_into().unwrap()).unwrap();
    let mut tcp = TcpStream::connect(implicit(server)[4]).unwrap();
    let mut stream = rustls::Stream::new(&mut session, &mut tcp);
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn passwords(dir: &Path) {
    std::fs::write(dir.join("passwords"), line(dir, "ann@example.org", "secret")).unwrap();
}

/// A client of the listener with STARTTLS, about to begin its handshake.
fn before_handshake(at: SocketAddr) -> Client {
    let mut client = Client::open(at).unwrap();
    assert_eq!(client.reply().code, 220);
    client.expect("EHLO client.example.net", 250);
    client.expect("STARTTLS", 220);
    client
}

#[test]
fn sni_chooses_a_certificate_and_the_first_is_the_default() {
    let dir = tempfile::tempdir().unwrap();
    passwords(dir.path());
    let mx = one_file(&dir.path().join("mx.pem"), &["mx.example.org"]);
    let wild = one_file(&dir.path().join("wild.pem"), &["*.example.net"]);
    let tls = "[tls]\ncertificate = [\"mx.pem\", \"wild.pem\"]\n";
    let server = Server::start(dir.path(), &format!("{EACH_PROTOCOL}{tls}"));
    for at in implicit(&server) {
        assert_eq!(shown(at, Some("mx.example.org")), mx);
        assert_eq!(shown(at, Some("imap.example.net")), wild);
        assert_eq!(shown(at, Some("a.b.example.net")), mx);
        assert_eq!(shown(at, Some("unknown.example")), mx);
        assert_eq!(shown(at, None), mx);
    }
    before_handshake(server.addresses[2]).encrypt(&unverified(true)).unwrap();

    let measured = metrics(dir.path(), &server);
    for file in ["mx.pem", "wild.pem"] {
        assert!(
            measured.contains(&format!("posthaste_certificate_end_timestamp_seconds{{file=\"{file}\"}}")),
            "{measured}"
        );
    }

    // A reload takes another list; sessions go on.
    let mut open = before_handshake(server.addresses[2]);
    open.encrypt(&unverified(true)).unwrap();
    let later = one_file(&dir.path().join("wild.pem"), &["*.example.net", "mta-sts.example.org"]);
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    for at in implicit(&server) {
        assert_eq!(shown(at, Some("mta-sts.example.org")), later);
    }
    open.expect("NOOP", 250);
    drop(open);
    server.stop();
}

#[test]
fn config_check_speaks_of_every_certificate() {
    let dir = tempfile::tempdir().unwrap();
    passwords(dir.path());
    one_file(&dir.path().join("mx.pem"), &["mx.example.org"]);
    let mut params = rcgen::CertificateParams::new(vec!["mx.example.net".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let old = key.serialize_pem() + &params.self_signed(&key).unwrap().pem();
    std::fs::write(dir.path().join("old.pem"), old).unwrap();
    std::fs::set_permissions(dir.path().join("old.pem"), Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(dir.path().join("mx.pem"), Permissions::from_mode(0o600)).unwrap();
    let tls = "[tls]\ncertificate = [\"mx.pem\", \"old.pem\"]\n";
    std::fs::write(dir.path().join("posthaste.toml"), format!("{EACH_PROTOCOL}{tls}")).unwrap();
    let check = || {
        let output = command(dir.path(), &["config", "check"]).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = check();
    assert!(code == Some(0) && text.contains("old.pem: this certificate expired "), "{text}");
    assert!(text.contains("old.pem: every user can read this private key") && !text.contains("mx.pem: "), "{text}");
    std::fs::write(dir.path().join("old.pem"), "").unwrap();
    let (code, text) = check();
    assert!(code == Some(2) && text.contains("cannot read old.pem: no certificate in it"), "{text}");
}

#[test]
fn a_tls_listener_without_a_certificate_uses_a_self_made_one() {
    let dir = tempfile::tempdir().unwrap();
    passwords(dir.path());
    let server = Server::start(dir.path(), EACH_PROTOCOL);
    let made = shown(server.addresses[0], Some("mx.example.org"));
    for at in implicit(&server) {
        assert_eq!(shown(at, None), made, "all listeners have one");
        assert_eq!(shown(at, Some("unknown.example")), made);
    }
    let file = dir.path().join("posthaste-data/self-made.pem");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("-BEGIN PRIVATE KEY-") && text.contains("-BEGIN CERTIFICATE-"), "{text}");

    // It is told of everywhere.
    let line = server.wait_for_log("self-made certificate, which clients do not trust, at 127.0.0.1:0");
    assert!(line.contains("WARN"), "{line}");
    let check = command(dir.path(), &["config", "check"]).output().unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.success() && text.contains("self-made certificate, which clients do not trust"), "{text}");
    let measured = metrics(dir.path(), &server);
    assert!(measured.contains("self-made.pem\"}"), "{measured}");
    assert!(measured.contains("posthaste_attention{urgency=\"warning\"} 1"), "{measured}");

    // A password over it counts as encrypted.
    let mut client = before_handshake(server.addresses[2]);
    client.encrypt(&unverified(true)).unwrap();
    assert!(client.expect("EHLO client.example.net", 250).text.contains("AUTH "));
    drop(client);

    // Kept over a restart; another host name has another certificate, without one.
    server.stop();
    let server = Server::start_as_it_is(dir.path());
    assert_eq!(shown(server.addresses[0], None), made);
    let other = EACH_PROTOCOL.replace("mx.example.org", "mail.example.org");
    server.reload(&other);
    let line = server.wait_for_log("these changes need a restart");
    assert!(line.contains("host_name"), "{line}");
    assert_eq!(shown(server.addresses[0], None), made, "one name for all until then");
    server.stop();
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_log("made a certificate");
    assert_ne!(shown(server.addresses[0], None), made);

    // A better one takes its place at once.
    let better = one_file(&dir.path().join("mx.pem"), &["mail.example.org"]);
    server.reload(&format!("{other}[tls]\ncertificate = \"mx.pem\"\n"));
    server.wait_for_log("configuration reloaded");
    implicit(&server).into_iter().for_each(|at| assert_eq!(shown(at, Some("elsewhere.example")), better));
    server.stop();
}
