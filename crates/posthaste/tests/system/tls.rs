//! TLS at listeners: its start, its limits for clients, and new certificates.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::support::{Client, MESSAGE, PATIENCE, Server, command};

/// Writes a new certificate for `localhost` and its key into `dir`.
pub fn certify(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(dir.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
    made.cert.der().clone()
}

/// Clients that trust this certificate alone.
fn trusting(
    certificate: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

pub fn tls13(certificate: &CertificateDer<'static>) -> Arc<ClientConfig> {
    trusting(certificate, &[&rustls::version::TLS13])
}

pub fn tls12(certificate: &CertificateDer<'static>) -> Arc<ClientConfig> {
    trusting(certificate, &[&rustls::version::TLS12])
}

/// Five listeners: STARTTLS by default, required, implicit, off, and LMTP with STARTTLS.
const LISTENERS: &str = "host_name = \"mx.example.org\"\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"localhost:0\"\ntls = \"required\"\n\
    [[listener]]\naddress = \"127.0.0.2:0\"\ntls = \"implicit\"\n\
    [[listener]]\naddress = \"127.0.0.3:0\"\ntls = \"off\"\n\
    [[listener]]\naddress = \"127.0.0.4:0\"\nprotocol = \"lmtp\"\n\
    [[domain]]\nname = \"example.org\"\nusers = \"any\"\n[events]\nenabled = true\n";

/// The addresses of [`LISTENERS`]; only the first one of a name.
fn addresses(server: &Server) -> [SocketAddr; 5] {
    let of = |ip: &str| *server.addresses.iter().find(|at| at.ip().to_string() == ip).unwrap();
    [server.addresses[0], server.addresses[1], of("127.0.0.2"), of("127.0.0.3"), of("127.0.0.4")]
}

/// A client after EHLO, and the answer.
fn hello(at: SocketAddr, hello: &str) -> (Client, String) {
    let mut client = Client::open(at).unwrap();
    assert_eq!(client.reply().code, 220);
    let text = client.expect(&format!("{hello} client.example.net"), 250).text;
    (client, text)
}

/// A client after STARTTLS and a second EHLO.
fn encrypted(at: SocketAddr, word: &str, config: &Arc<ClientConfig>) -> Client {
    let (mut client, text) = hello(at, word);
    assert!(text.lines().any(|line| line == "STARTTLS"), "{text}");
    client.expect("STARTTLS", 220);
    client.encrypt(config).expect("a handshake");
    // What was said before is forgotten.
    client.expect("MAIL FROM:<s@example.net>", 503);
    let text = client.expect(&format!("{word} client.example.net"), 250).text;
    assert!(!text.contains("STARTTLS"), "{text}");
    client
}

#[test]
fn mail_comes_encrypted_at_each_listener_with_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = certify(dir.path());
    let server = Server::start(dir.path(), LISTENERS);
    let [offered, required, implicit, off, lmtp] = addresses(&server);
    let config = tls13(&certificate);
    let received = |user: &str| server.wait_for_mail("example.org", user, 1)[0].text();

    encrypted(offered, "EHLO", &config).deliver(&["offered@example.org"], MESSAGE);
    let text = received("offered");
    assert!(text.contains(" with ESMTPS id ") && text.contains("\tfor <offered@example.org> tls TLS_"), "{text}");
    assert!(text.contains(" (TLSv1.3); "), "{text}");
    let line = server.wait_for_log("to=\"<offered@example.org>\"");
    assert!(line.contains("with=\"ESMTPS\" tls=\"TLSv1.3\""), "{line}");

    let old = tls12(&certificate);
    encrypted(offered, "EHLO", &old).deliver(&["old@example.org"], MESSAGE);
    assert!(received("old").contains(" (TLSv1.2); "));

    let (mut plain, _) = hello(offered, "EHLO");
    plain.deliver(&["plain@example.org"], MESSAGE);
    let text = received("plain");
    assert!(text.contains(" with ESMTP id ") && !text.contains("TLS"), "{text}");

    let (mut refused, _) = hello(required, "EHLO");
    assert!(refused.expect("MAIL FROM:<s@example.net>", 530).text.starts_with("5.7.0"));
    encrypted(required, "EHLO", &config).deliver(&["required@example.org"], MESSAGE);
    assert!(received("required").contains(" with ESMTPS "));

    let mut client = Client::open(implicit).unwrap();
    client.encrypt(&config).expect("a handshake");
    assert_eq!(client.reply().code, 220);
    assert!(!client.expect("EHLO client.example.net", 250).text.contains("STARTTLS"));
    client.deliver(&["implicit@example.org"], MESSAGE);
    assert!(received("implicit").contains(" with ESMTPS "));

    let (mut client, text) = hello(off, "EHLO");
    assert!(!text.contains("STARTTLS"));
    client.expect("STARTTLS", 502);
    encrypted(lmtp, "LHLO", &config).deliver(&["lmtp@example.org"], MESSAGE);
    assert!(received("lmtp").contains(" with LMTPS "));

    drop((plain, refused, client));
    server.stop();
    let events = std::fs::read_to_string(dir.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    let of = |user: &str| events.lines().find(|line| line.contains(&format!("\"<{user}@example.org>\""))).unwrap();
    assert!(of("offered").contains("\"with\":\"ESMTPS\",\"tls\":\"TLSv1.3\","), "{events}");
    assert!(!of("plain").contains("\"tls\""), "{events}");
}

/// All input until the connection ends.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::new();
    // A reset ends it too.
    if let Err(error) = stream.read_to_end(&mut all) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the connection stays open");
    }
    all
}

#[test]
fn clear_text_before_tls_is_no_command_and_no_place_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = certify(dir.path());
    let implicit = "tls = \"implicit\"\n";
    let server = Server::start(
        dir.path(),
        &LISTENERS.replace(implicit, &format!("{implicit}limits = {{ command_secs = 1 }}\n")),
    );
    let [offered, required, implicit, ..] = addresses(&server);

    for at in [offered, required] {
        let (mut injecting, _) = hello(at, "EHLO");
        injecting.send(b"STARTTLS\r\nEHLO x\r\nMAIL FROM:<s@example.net>\r\n").unwrap();
        assert_eq!(injecting.reply().code, 554);
        assert!(injecting.try_reply().is_err(), "it is closed");
    }
    let (mut late, _) = hello(offered, "EHLO");
    late.expect("STARTTLS", 220);
    late.send(b"MAIL FROM:<s@example.net>\r\n").unwrap();
    assert!(late.try_reply().is_err(), "neither a reply nor a session");
    server.wait_for_log("TLS handshake failed");

    let mut plain = TcpStream::connect(implicit).unwrap();
    plain.write_all(b"EHLO client.example.net\r\nMAIL FROM:<s@example.net>\r\n").unwrap();
    assert!(!rest(plain).starts_with(b"2"), "no reply in the clear");
    // Half a record, and then nothing: the time for a command is over after a second.
    let mut stalled = TcpStream::connect(implicit).unwrap();
    stalled.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).unwrap();
    let silent = TcpStream::connect(implicit).unwrap();
    assert!(rest(stalled).is_empty() && rest(silent).is_empty());

    // A busy machine may need longer than that for a handshake.
    server.reload(LISTENERS);
    server.wait_for_log("configuration reloaded");
    let mut client = Client::open(implicit).unwrap();
    client.encrypt(&tls13(&certificate)).expect("a handshake");
    assert_eq!(client.reply().code, 220);
    drop(client);
    server.stop();
}

#[test]
fn a_reload_takes_a_good_certificate_and_keeps_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let first = certify(dir.path());
    let server = Server::start(dir.path(), LISTENERS);
    let [offered, _, implicit, ..] = addresses(&server);
    let knows = |certificate: &CertificateDer<'static>| {
        let mut client = Client::open(implicit).unwrap();
        let is_known = client.encrypt(&tls13(certificate)).is_ok();
        let (mut other, _) = hello(offered, "EHLO");
        other.expect("STARTTLS", 220);
        assert_eq!(other.encrypt(&tls13(certificate)).is_ok(), is_known);
        is_known
    };
    assert!(knows(&first));
    let mut open = encrypted(offered, "EHLO", &tls13(&first));
    let second = certify(dir.path());
    assert!(knows(&first) && !knows(&second), "only a reload reads it");
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    assert!(knows(&second) && !knows(&first));
    open.deliver(&["open@example.org"], MESSAGE);

    // A certificate without its key, as of a renewal under way.
    let key = std::fs::read(dir.path().join("key.pem")).unwrap();
    let third = certify(dir.path());
    std::fs::write(dir.path().join("key.pem"), key).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log_again("configuration reloaded", 2);
    let line = server.wait_for_log("this listener keeps the old one");
    assert!(line.contains("does not belong to the certificate in cert.pem"), "{line}");
    assert!(knows(&second) && !knows(&third));

    // Listeners begin and end to offer it; to and from implicit TLS takes a restart.
    let mut swapped = LISTENERS.replace("\"off\"", "\"starttls\"").replace("tls = \"implicit\"", "tls = \"off\"");
    swapped = swapped.replacen("[[listener]]\n", "[[listener]]\ntls = \"off\"\n", 1);
    let fourth = certify(dir.path());
    server.reload(&swapped);
    let line = server.wait_for_log("need a restart");
    assert!(line.contains("changes=\"tls of listener 127.0.0.2:0\""), "{line}");
    assert!(!hello(offered, "EHLO").1.contains("STARTTLS"));
    encrypted(addresses(&server)[3], "EHLO", &tls13(&fourth));
    let mut client = Client::open(implicit).unwrap();
    client.encrypt(&tls13(&fourth)).expect("still from the first octet on");
    drop((open, client));
    server.stop();
}

#[test]
fn faults_of_files_are_named_by_the_check_and_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        let output = command(dir.path(), args).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    std::fs::write(dir.path().join("posthaste.toml"), LISTENERS).unwrap();
    let wrong = |expected: &str| {
        let (code, text) = said(&["config", "check"]);
        assert!(code == Some(2) && text.contains("TLS of listener 127.0.0.1:0: ") && text.contains(expected), "{text}");
        let (code, text) = said(&["serve"]);
        assert!(code == Some(2) && text.contains("TLS of listener 127.0.0.1:0: ") && text.contains(expected), "{text}");
        assert!(!dir.path().join("posthaste-data").exists(), "nothing is made");
    };
    wrong("cannot read cert.pem: No such file or directory");
    certify(dir.path());
    std::fs::write(dir.path().join("key.pem"), "").unwrap();
    wrong("cannot read key.pem: no private key in it");
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    std::fs::write(dir.path().join("key.pem"), key).unwrap();
    wrong("the private key in key.pem does not belong to the certificate in cert.pem");
    certify(dir.path());
    assert!(!said(&["config", "check"]).1.contains("TLS"));
    std::fs::set_permissions(dir.path().join("key.pem"), Permissions::from_mode(0o604)).unwrap();
    let (code, text) = said(&["config", "check"]);
    assert!(code == Some(0) && text.contains("key.pem: every user can read this private key; run chmod o-r"), "{text}");
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(dir.path().join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
    assert!(said(&["config", "check"]).1.contains("cert.pem: this certificate expired "));
    let server = Server::start(dir.path(), LISTENERS);
    server.wait_for_log("every user can read this private key");
    server.wait_for_log("cert.pem: this certificate expired ");
    server.signal(Signal::HUP);
    server.wait_for_log_again("cert.pem: this certificate expired ", 2);
    server.stop();
}

/// The head of the answer to a request by TLS.
fn head_by_tls(at: SocketAddr, config: &Arc<ClientConfig>) -> String {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let connection = rustls::ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, stream);
    stream.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut answer, mut some) = (Vec::new(), [0; 4096]);
    while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&some[..read]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn browsers_are_held_to_tls_at_port_443_alone() {
    // Others may not listen there.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let named = |name: &str| {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params
    };
    let (of_authority, own) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
    let mut authority = named("Authority");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = authority.self_signed(&of_authority).unwrap().der().clone();
    let signed = named("localhost").signed_by(&own, &rcgen::Issuer::new(authority, of_authority)).unwrap();
    std::fs::write(dir.path().join("cert.pem"), signed.pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), own.serialize_pem()).unwrap();
    std::fs::set_permissions(dir.path().join("key.pem"), Permissions::from_mode(0o600)).unwrap();
    let config = tls13(&root);
    for (port, expected) in [("443", true), ("0", false)] {
        let listener = format!(
            "host_name = \"localhost\"\n[[listener]]\naddress = \"127.86.4.43:{port}\"\nprotocol = \"http\"\ntls = \"implicit\"\n\
             certificate = \"cert.pem\"\nkey = \"key.pem\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n"
        );
        let server = Server::start(dir.path(), &listener);
        let told = server.banner.lines().find_map(|line| line.trim().strip_prefix("page ")).unwrap();
        let at = told.trim().strip_prefix("https://").and_then(|rest| rest.strip_suffix('/')).unwrap();
        let at = if at.contains(':') { at.to_owned() } else { format!("{at}:443") };
        let head = head_by_tls(at.parse().unwrap(), &config).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert_eq!(head.contains("\r\nstrict-transport-security: max-age=31536000\r\n"), expected, "{port}: {head}");
        server.stop();
    }
}
