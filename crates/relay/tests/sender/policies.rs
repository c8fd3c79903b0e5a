//! TLS policies by the domain of the mail, with certificates, and limits that hosts announce.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use posthaste_dns_stub::Zone;
use posthaste_relay::sender::{FixedRoute, RouteTls, Section, opportunistic_tls};
use posthaste_relay::session::TlsPolicy;
use posthaste_smtp::sasl::Credentials;
use rcgen::CertificateParams;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::sink::Sink;
use super::{LOOPBACK, Rig, rig_with, schedules, wait};

/// A session of the server: its messages, and their path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Came {
    pub recipient: String,
    pub is_encrypted: bool,
    /// The name in SNI.
    pub name: Option<String>,
    has_certificate: bool,
}

/// A mail server with STARTTLS. Ends with the process.
pub struct TlsSink {
    pub address: SocketAddr,
    came: Arc<Mutex<Vec<Came>>>,
    handshakes: Arc<Mutex<usize>>,
    /// Number of connections.
    connections: Arc<Mutex<usize>>,
}

/// The server's answer to a command, in the clear or within TLS; none: it closes the connection.
#[derive(Debug, Clone, Copy)]
pub struct Odd {
    pub is_encrypted: bool,
    pub command: &'static str,
    pub reply: &'static str,
}

/// Files of a certificate and its key, which is its own authority.
pub struct Files {
    made: rcgen::CertifiedKey<rcgen::KeyPair>,
    dir: tempfile::TempDir,
}

fn pem(kind: &str, der: &[u8]) -> String {
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", BASE64.encode(der))
}

impl Files {
    pub fn new(name: &str) -> Self {
        Self::with(name, |_| {})
    }

    /// A certificate with something else than usual.
    pub fn with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let signing_key = rcgen::KeyPair::generate().unwrap();
        let made = rcgen::CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key };
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cert.pem"), pem("CERTIFICATE", made.cert.der())).unwrap();
        std::fs::write(dir.path().join("key.pem"), pem("PRIVATE KEY", &made.signing_key.serialize_der())).unwrap();
        Files { made, dir }
    }

    pub fn cert(&self) -> String {
        self.dir.path().join("cert.pem").display().to_string()
    }

    fn key(&self) -> String {
        self.dir.path().join("key.pem").display().to_string()
    }

    /// The SHA-256 of its public key, for a TLSA record with the numbers 1 and 1.
    pub fn key_digest(&self) -> Vec<u8> {
        let key = rcgen::PublicKeyData::subject_public_key_info(&self.made.signing_key);
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &key).as_ref().to_vec()
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.made.cert.der().clone()).unwrap();
        roots.into()
    }

    pub fn server(&self, clients: &Files) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(clients.roots(), provider.clone());
        let verifier = verifier.allow_unauthenticated().build().unwrap();
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivatePkcs8KeyDer::from(self.made.signing_key.serialize_der());
        let chain: Vec<CertificateDer<'static>> = vec![self.made.cert.der().clone()];
        Arc::new(builder.with_client_cert_verifier(verifier).with_single_cert(chain, key.into()).unwrap())
    }
}

impl TlsSink {
    /// `None`: it offers STARTTLS and breaks off each handshake.
    pub fn start(config: Option<Arc<ServerConfig>>) -> Self {
        TlsSink::at("127.0.0.1:0".parse().unwrap(), config)
    }

    pub fn at(address: SocketAddr, config: Option<Arc<ServerConfig>>) -> Self {
        TlsSink::odd(address, config, None)
    }

    pub fn odd(address: SocketAddr, config: Option<Arc<ServerConfig>>, odd: Option<Odd>) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let sink = TlsSink {
            address: listener.local_addr().unwrap(),
            came: Arc::default(),
            handshakes: Arc::default(),
            connections: Arc::default(),
        };
        let came = sink.came.clone();
        let handshakes = sink.handshakes.clone();
        let connections = sink.connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                *connections.lock().unwrap() += 1;
                let config = config.clone();
                let came = came.clone();
                let handshakes = handshakes.clone();
                std::thread::spawn(move || serve(stream, config, odd, &came, &handshakes));
            }
        });
        sink
    }

    /// All messages so far.
    pub fn all(&self) -> Vec<Came> {
        self.came.lock().unwrap().clone()
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    pub fn wait(&self, count: usize) -> Vec<Came> {
        wait("messages", || self.came.lock().unwrap().len() >= count);
        self.came.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    config: Option<Arc<ServerConfig>>,
    odd: Option<Odd>,
    came: &Mutex<Vec<Came>>,
    handshakes: &Mutex<usize>,
) -> std::io::Result<()> {
    stream.write_all(b"220 sink\r\n")?;
    let clear = Came { recipient: String::new(), is_encrypted: false, name: None, has_certificate: false };
    // Octet for octet, so that nothing of the handshake is read.
    if !talk(&mut BufReader::with_capacity(1, stream.try_clone()?), &mut stream, &clear, odd, came)? {
        return Ok(());
    }
    *handshakes.lock().unwrap() += 1;
    let Some(config) = config else { return Ok(()) };
    let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    let mut one = Came { is_encrypted: true, ..clear };
    one.name = tls.conn.server_name().map(str::to_owned);
    one.has_certificate = tls.conn.peer_certificates().is_some();
    let tls = std::cell::RefCell::new(tls);
    struct Half<'a>(&'a std::cell::RefCell<StreamOwned<ServerConnection, TcpStream>>);
    impl Read for Half<'_> {
        fn read(&mut self, octets: &mut [u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().read(octets)
        }
    }
    impl Write for Half<'_> {
        fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().write(octets)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            self.0.borrow_mut().flush()
        }
    }
    talk(&mut BufReader::new(Half(&tls)), &mut Half(&tls), &one, odd, came).map(drop)
}

/// Talks to a client; returns true after STARTTLS.
fn talk(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    one: &Came,
    odd: Option<Odd>,
    came: &Mutex<Vec<Came>>,
) -> std::io::Result<bool> {
    let mut recipient = String::new();
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        let odd = odd.filter(|odd| odd.is_encrypted == one.is_encrypted && line.starts_with(odd.command));
        if let Some(Odd { reply, .. }) = odd {
            output.write_all(reply.as_bytes())?;
            if reply.is_empty() {
                return Ok(false);
            }
            continue;
        }
        match line.get(..4).unwrap_or("") {
            "EHLO" if one.is_encrypted => output.write_all(b"250 sink\r\n")?,
            "EHLO" => output.write_all(b"250-sink\r\n250 STARTTLS\r\n")?,
            "STAR" => {
                output.write_all(b"220 go\r\n")?;
                return Ok(true);
            }
            "RCPT" => {
                recipient = line.split(['<', '>']).nth(1).unwrap_or("").to_owned();
                output.write_all(b"250 ok\r\n")?;
            }
            "DATA" => {
                output.write_all(b"354 go\r\n")?;
                while line != ".\r\n" {
                    line.clear();
                    input.read_line(&mut line)?;
                }
                came.lock().unwrap().push(Came { recipient: recipient.clone(), ..one.clone() });
                output.write_all(b"250 ok\r\n")?;
            }
            "QUIT" => return output.write_all(b"221 bye\r\n").map(|()| false),
            _ => output.write_all(b"250 ok\r\n")?,
        }
    }
}

/// All domains have the same host.
fn zone() -> Zone {
    let mut zone = Zone::default().a("mx.example", LOOPBACK);
    for domain in ["any", "off", "required", "verified", "other", "named"] {
        zone = zone.mx(&format!("{domain}.example"), 1, "mx.example");
    }
    zone
}

/// A site pauses at once.
const ONE_FAILURE: &str = "[default]\nfailures_before_pause = 1\n";

fn rig(sink: &TlsSink, policies: &str) -> Rig {
    let section: Section = toml::from_str(policies).unwrap();
    section.check().unwrap();
    rig_with(zone(), sink.address.port(), |config| {
        config.tls = Some(opportunistic_tls().unwrap());
        config.schedules = schedules(3600, 86_400);
        (config.shaping, config.site_pause_secs) = (super::shaping::rules(ONE_FAILURE), 3600);
        config.routing = section.routing().unwrap();
    })
}

#[test]
fn each_domain_has_its_policy_and_certificate_at_one_host() {
    let host = Files::new("mx.example");
    let client = Files::new("client.example");
    let sink = TlsSink::start(Some(host.server(&client)));
    let rig = rig(
        &sink,
        &format!(
            "[[tls_policy]]\ndomain = 'off.example'\npolicy = 'off'\n\
         [[tls_policy]]\ndomain = 'required.example'\npolicy = 'required'\ncert_file = '{}'\nkey_file = '{}'\n\
         [[tls_policy]]\ndomain = 'verified.example'\npolicy = 'verified'\nca_file = '{ca}'\n\
         [[tls_policy]]\ndomain = 'other.example'\npolicy = 'verified'\nca_file = '{}'\n\
         [[tls_policy]]\ndomain = 'named.example'\npolicy = 'verified'\nca_file = '{ca}'\nname = 'else.example'\n",
            client.cert(),
            client.key(),
            client.cert(),
            ca = host.cert(),
        ),
    );
    for domain in ["any", "off", "required", "verified", "other", "named"] {
        rig.send("ann@here.example", &[&format!("bob@{domain}.example")], "x\r\n");
    }
    let mut came = sink.wait(4);
    came.sort_by(|one, other| one.recipient.cmp(&other.recipient));
    let one = |domain: &str, is_encrypted: bool, has_certificate: bool| Came {
        recipient: format!("bob@{domain}.example"),
        is_encrypted,
        name: is_encrypted.then(|| "mx.example".to_owned()),
        has_certificate,
    };
    let expected =
        [one("any", true, false), one("off", false, false), one("required", true, true), one("verified", true, false)];
    assert_eq!(came, expected);
    // A host that another authority has signed, and one without the name, get nothing.
    let is_told = |text: &str| rig.log().iter().any(|line| line.starts_with("unreachable") && line.contains(text));
    wait("both wait", || is_told(" verified (2)") && is_told(" verified as else.example"));
    wait("the others are done", || rig.relay.stats().recipients == 2);
    assert_eq!(sink.came.lock().unwrap().len(), 4);
}

#[test]
fn a_broken_handshake_falls_back_to_clear_text_unless_forbidden() {
    let sink = TlsSink::start(None);
    let rig = rig(&sink, "[[tls_policy]]\ndomain = 'required.example'\npolicy = 'required'\n");
    rig.send("ann@here.example", &["bob@any.example"], "x\r\n");
    assert!(sink.wait(1).iter().all(|one| !one.is_encrypted));
    wait("the connection has ended", || rig.relay.stats().connections == 0);
    rig.send("ann@here.example", &["bob@other.example"], "x\r\n");
    sink.wait(2);
    assert_eq!(*sink.handshakes.lock().unwrap(), 2, "one failure is not remembered");
    rig.send("ann@here.example", &["bob@required.example"], "x\r\n");
    wait("it waits", || rig.log().iter().any(|line| line.contains("encrypted") && line.contains("handshake")));
    assert_eq!((*sink.handshakes.lock().unwrap(), sink.came.lock().unwrap().len()), (3, 2));
}

/// Sends a message to a host that misbehaves, under a policy. `arrives`: in the clear, with this many connections.
fn check_odd(odd: Odd, policy: &str, arrives: Option<usize>) {
    let host = Files::new("mx.example");
    let client = Files::new("client.example");
    let sink = TlsSink::odd("127.0.0.1:0".parse().unwrap(), Some(host.server(&client)), Some(odd));
    let rig = rig(&sink, policy);
    rig.send("ann@here.example", &["bob@any.example"], "x\r\n");
    match arrives {
        Some(connections) => {
            assert!(sink.wait(1).iter().all(|one| !one.is_encrypted), "{odd:?}");
            rig.wait_empty();
            assert_eq!(*sink.connections.lock().unwrap(), connections, "{odd:?}");
        }
        None => {
            wait("it waits", || rig.log().iter().any(|line| line.starts_with("unreachable")));
            assert!(sink.came.lock().unwrap().is_empty() && *sink.connections.lock().unwrap() == 1, "{odd:?}");
        }
    }
}

#[test]
fn tls_that_loses_the_connection_is_followed_by_clear_text() {
    for odd in [
        Odd { is_encrypted: false, command: "STARTTLS", reply: "" },
        Odd { is_encrypted: false, command: "STARTTLS", reply: "421 4.3.0 bye\r\n" },
        Odd { is_encrypted: true, command: "EHLO", reply: "" },
        Odd { is_encrypted: true, command: "MAIL", reply: "" },
    ] {
        check_odd(odd, "", Some(2));
        check_odd(odd, "[[tls_policy]]\npolicy = 'required'\n", None);
    }
}

#[test]
fn what_a_host_says_within_tls_is_no_reason_for_clear_text() {
    let reply = "421 4.3.2 busy\r\n";
    check_odd(Odd { is_encrypted: true, command: "EHLO", reply }, "", None);
    check_odd(Odd { is_encrypted: true, command: "MAIL", reply }, "", None);
    // Nor a connection that is lost later.
    check_odd(Odd { is_encrypted: true, command: "RCPT", reply: "" }, "", None);
}

#[test]
fn no_password_is_sent_in_the_clear_after_a_broken_handshake() {
    let sink = TlsSink::start(None);
    let route = |domain: &str, auth: Option<Credentials>| {
        let policy = TlsPolicy::Opportunistic;
        let config = opportunistic_tls().unwrap();
        let tls = Some(RouteTls { policy, is_implicit: false, config, name: None });
        let domain = domain.to_owned();
        let to = FixedRoute::new("[127.0.0.1]", sink.address.port());
        Arc::new(FixedRoute { domain, tls, auth, ..to })
    };
    let rig = rig_with(zone(), 1, |config| {
        config.schedules = schedules(3600, 86_400);
        (config.shaping, config.site_pause_secs) = (super::shaping::rules(ONE_FAILURE), 3600);
        let with = route("required.example", Some(Credentials::new("ann", "secret")));
        config.routing.routes = vec![with, route("any.example", None)];
    });
    let is_told = || rig.log().iter().filter(|line| line.starts_with("unreachable") && line.contains("as ann")).count();
    rig.send("ann@here.example", &["bob@required.example"], "x\r\n");
    wait("it waits", || is_told() == 1);
    assert_eq!((*sink.handshakes.lock().unwrap(), sink.came.lock().unwrap().len()), (1, 0));
    // Nor once mail that may go in the clear has shown the host's TLS as broken.
    rig.send("ann@here.example", &["bob@any.example"], "x\r\n");
    assert_eq!(sink.wait(1)[0].recipient, "bob@any.example");
    rig.flush();
    wait("it waits again", || is_told() == 2);
    wait("the other one is recorded", || rig.relay.stats().recipients == 1);
    assert_eq!(sink.came.lock().unwrap().len(), 1);
}

#[test]
fn a_file_that_is_missing_is_an_error_and_no_weaker_policy() {
    let section: Section = toml::from_str("[[tls_policy]]\npolicy = 'verified'\nca_file = '/nonexistent'\n").unwrap();
    assert!(section.routing().is_err() && !Path::new("/nonexistent").exists());
}

#[test]
fn limits_that_a_host_tells_are_kept_without_a_refusal() {
    let limits = |text: &str| Sink::offering(&["PIPELINING", text]);
    let to = ["a@a.example", "b@a.example", "c@b.example", "d@b.example"];
    for (text, messages) in [("LIMITS RCPTDOMAINMAX=1", 2), ("LIMITS RCPTMAX=1", 4), ("LIMITS", 1)] {
        let sink = limits(text);
        let zone = Zone::default().mx("a.example", 1, "mx.example").mx("b.example", 1, "mx.example");
        let rig = rig_with(zone.a("mx.example", Ipv4Addr::LOCALHOST), sink.port(), |config| {
            config.site_connections_max = 1;
            config.schedules = schedules(3600, 86_400);
        });
        // These wait, so that both domains keep their route.
        rig.send("ann@here.example", &["never@a.example"], "x\r\n");
        rig.send("ann@here.example", &["never@b.example"], "x\r\n");
        wait("both have a route", || rig.relay.stats().deferred == 2);
        rig.send("ann@here.example", &to, "x\r\n");
        wait("all are done", || rig.relay.stats().recipients == 2);
        assert_eq!(sink.taken().len(), messages, "{text}: {:?}", sink.taken());
        assert!(to.iter().all(|to| sink.rcpts(to) == 1), "{text}: none was said too often");
    }
    let sink = limits("LIMITS MAILMAX=2");
    let rig = rig_with(super::zone(), sink.port(), |config| config.site_connections_max = 1);
    for _ in 0..6 {
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    }
    sink.wait_taken(6);
    rig.wait_empty();
    assert!(sink.connections() >= 3, "{}", sink.connections());
}
