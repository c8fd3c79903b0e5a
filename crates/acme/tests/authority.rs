//! Certificates from an authority of the test's own: each way of validation, renewal, and what is never asked.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use posthaste_acme::{
    AcmeHandle, AcmeSettings, Challenges, LookupAnswer, LookupError, NameLookup, Ports, Way, certificate_file,
    next_key_file, start,
};
use posthaste_acme_stub::{AcmeStub, Challenge, by_http, by_tls};
use posthaste_net::{Certificate, CertificateList, Stream, tls, x509};
use rcgen::{KeyPair, PublicKeyData};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const HOST: &str = "mx.example.org";
/// Nobody answers for it.
const SILENT: &str = "silent.example.org";
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Names and their addresses. They change while a test goes on.
#[derive(Clone, Default)]
struct Zone {
    addresses: Arc<Mutex<BTreeMap<String, IpAddr>>>,
    expected: Arc<Mutex<Option<Vec<u8>>>>,
    /// Nobody answers about keys.
    is_silent: Arc<AtomicBool>,
}

impl Zone {
    fn put(&self, name: &str, address: IpAddr) {
        self.addresses.lock().unwrap().insert(name.to_owned(), address);
    }

    /// Clients expect the key in this file and no other.
    fn expect(&self, file: &Path) {
        let key = KeyPair::from_pem(&std::fs::read_to_string(file).unwrap()).unwrap();
        *self.expected.lock().unwrap() = Some(key.subject_public_key_info());
    }
}

impl NameLookup for Zone {
    fn addresses<'a>(&'a self, name: &'a str) -> LookupAnswer<'a, Vec<IpAddr>> {
        let found = self.addresses.lock().unwrap().get(name).copied();
        let answer = match found {
            _ if name == SILENT => Err(silent()),
            Some(address) => Ok(vec![address]),
            None => Err(LookupError::Missing(format!("{name} has no address"))),
        };
        Box::pin(async move { answer })
    }

    fn allows_key<'a>(&'a self, _: &'a str, key: &'a [u8]) -> LookupAnswer<'a, ()> {
        let answer = match &*self.expected.lock().unwrap() {
            _ if self.is_silent.load(Ordering::Relaxed) => Err(silent()),
            Some(expected) if expected != key => Err(LookupError::Missing("no record has it".to_owned())),
            _ => Ok(()),
        };
        Box::pin(async move { answer })
    }
}

fn silent() -> LookupError {
    LookupError::Unknown("no answer".to_owned())
}

/// A host that shows challenges, with its directory.
struct World {
    dir: tempfile::TempDir,
    zone: Zone,
    challenges: Challenges,
    list: Arc<CertificateList>,
    ports: Ports,
    working: Option<JoinHandle<()>>,
}

impl World {
    async fn new() -> Self {
        let challenges = Challenges::default();
        let ports = Ports { http: serve_http(challenges.clone()).await, tls: serve_tls(&challenges).await };
        let (dir, zone) = (tempfile::tempdir().unwrap(), Zone::default());
        zone.put(HOST, NEAR);
        Self { dir, zone, challenges, list: Arc::default(), ports, working: None }
    }

    /// Loopback is never ours, so tests are behind NAT unless they are about just that.
    fn settings(&self, stub: &AcmeStub, way: Way) -> AcmeSettings {
        let root = self.dir.path().join("root.pem");
        std::fs::write(&root, &stub.root_pem).unwrap();
        AcmeSettings {
            names: vec![HOST.to_owned()],
            directory: stub.directory.clone(),
            ca_file: root,
            contact: Some("postmaster@example.org".to_owned()),
            dir: self.dir.path().join("acme"),
            way,
            addresses: vec![NEAR],
            new_key: false,
            ports: self.ports,
        }
    }

    fn start(&mut self, settings: AcmeSettings) -> AcmeHandle {
        self.stop();
        let (zone, list) = (Arc::new(self.zone.clone()), Arc::clone(&self.list));
        let (handle, working) = start(settings, self.challenges.clone(), zone, list).unwrap();
        self.working = Some(working);
        handle
    }

    fn stop(&mut self) {
        self.working.take().into_iter().for_each(|working| working.abort());
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        certificate_file(&self.dir.path().join("acme"), name)
    }

    fn in_force(&self) -> Vec<Vec<u8>> {
        self.list.get().iter().map(|one| one.cert[0].to_vec()).collect()
    }
}

async fn serve_http(challenges: Challenges) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
            let head = String::from_utf8_lossy(&head).into_owned();
            let token = head.split(' ').nth(1).and_then(|path| path.strip_prefix(posthaste_acme::CHALLENGE_PATH));
            let answer = match token.and_then(|token| challenges.answer(token)) {
                Some(answer) => format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{answer}"),
                None => "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n".to_owned(),
            };
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

async fn serve_tls(challenges: &Challenges) -> u16 {
    let own = rcgen::generate_simple_self_signed(vec!["other.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let config = tls::server_config_from(vec![own.cert.der().clone()], key.into()).unwrap();
    let certificate = Certificate::new(config).with_validations(challenges.certificates()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let certificate = certificate.clone();
            tokio::spawn(async move { certificate.accept(Stream::Tcp(stream)).await.map(drop) });
        }
    });
    port
}

/// Validates where the world shows challenges.
fn at(ports: Ports) -> impl Fn(&Challenge) -> Result<(), String> {
    move |challenge| match &*challenge.kind {
        "http-01" => by_http(SocketAddr::new(NEAR, ports.http), challenge),
        "tls-alpn-01" => by_tls(SocketAddr::new(NEAR, ports.tls), challenge),
        kind => Err(format!("no {kind} here")),
    }
}

fn key_of(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    text[..text.find("-----BEGIN CERTIFICATE").unwrap()].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_come_by_tls_and_http_and_apply_at_once() {
    for way in [Way::Tls, Way::Http] {
        let mut world = World::new().await;
        let stub = AcmeStub::start(at(world.ports));
        let handle = world.start(world.settings(&stub, way.clone()));
        let outcomes = handle.renew(false).await.unwrap();
        assert_eq!(outcomes.len(), 1);
        assert_eq!(outcomes[0].why, None, "{way:?}");
        let file = world.file(HOST);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let kept = tls::certified_key(&file, &file).unwrap();
        assert_eq!(world.in_force(), [kept.cert[0].to_vec()], "without a reload");
        assert_eq!(handle.states()[0].ends, x509::validity(&kept.cert[0]).map(|(_, end)| end));
        assert!(world.challenges.certificates().is_empty(), "challenges end with their order");

        // Another start has it from the file, and orders nothing.
        world.list.set([]);
        let handle = world.start(world.settings(&stub, way));
        assert_eq!(world.in_force(), [kept.cert[0].to_vec()]);
        let again = handle.renew(false).await.unwrap();
        assert!(!again[0].is_new && again[0].why.is_none() && again[0].ends.is_some());
        assert_eq!((stub.orders().len(), stub.accounts()), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_writes_the_record() {
    let mut world = World::new().await;
    let (program, written) = (world.dir.path().join("program"), world.dir.path().join("record"));
    let script = format!("#!/bin/sh\necho \"$1 $2\" >{}\n", written.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let record = written.clone();
    let stub = AcmeStub::start(move |challenge| {
        let text = std::fs::read_to_string(&record).map_err(|error| error.to_string())?;
        let is_there = challenge.kind == "dns-01" && text.starts_with("_acme-challenge.mx.example.org ");
        if is_there { Ok(()) } else { Err(text) }
    });
    let handle = world.start(world.settings(&stub, Way::Dns(program.clone())));
    let outcome = handle.renew(false).await.unwrap().remove(0);
    assert_eq!(outcome.why, None);
    assert_eq!(std::fs::read_to_string(&written).unwrap().trim().split(' ').nth(1).unwrap().len(), 43);

    // One that fails is told of with its words, and no challenge is begun.
    std::fs::write(&program, "#!/bin/sh\necho no such zone >&2\nexit 3\n").unwrap();
    let outcome = handle.renew(true).await.unwrap().remove(0);
    let why = outcome.why.unwrap();
    assert!(why.contains("acme.dns_program") && why.contains("no such zone"), "{why}");
    std::fs::write(&program, "#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' y >&2\nexit 3\n").unwrap();
    let why = handle.renew(true).await.unwrap().remove(0).why.unwrap();
    assert!(why.contains("exit status: 3: yyy") && why.len() < 600, "{why}");
    assert!(outcome.ends.is_some(), "the old one stays in force");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_ordered_once_its_address_is_ours() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(at(world.ports));
    // Without an address that others reach, a host knows by `addresses` alone that a name is its own: an empty list is a host without NAT.
    let names = [HOST.to_owned(), "mta-sts.example.org".to_owned(), SILENT.to_owned()];
    let strict = AcmeSettings { addresses: Vec::new(), names: names.to_vec(), ..world.settings(&stub, Way::Http) };
    world.zone.put(HOST, "192.0.2.1".parse().unwrap());
    let handle = world.start(strict);
    let outcomes = handle.renew(false).await.unwrap();
    let why: Vec<&str> = outcomes.iter().map(|of| of.why.as_deref().unwrap()).collect();
    assert!(why[0].contains("DNS points to 192.0.2.1, not to this host"), "{why:?}");
    assert!(why[1].contains("mta-sts.example.org has no address"), "{why:?}");
    assert_eq!(why[2], "no answer");
    assert!(stub.orders().is_empty() && stub.accounts() == 0, "the authority was not asked at all");
    assert!(handle.states().iter().all(|state| state.next == 0), "no back-off: it costs nobody anything");

    // The other name goes on without it, and it joins when its record appears.
    let handle = world.start(AcmeSettings { names: names.to_vec(), ..world.settings(&stub, Way::Http) });
    world.zone.put(HOST, NEAR);
    let outcomes = handle.renew(false).await.unwrap();
    assert!(outcomes[0].is_new || outcomes[0].ends.is_some(), "{outcomes:?}");
    assert!(outcomes[1].ends.is_none());
    world.zone.put("mta-sts.example.org", NEAR);
    let outcomes = handle.renew(false).await.unwrap();
    assert!(outcomes[1].is_new, "{outcomes:?}");
    assert_eq!(world.in_force().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_ordered_until_our_own_challenge_is_found() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(at(world.ports));
    // Nobody listens there.
    let ports = Ports { http: 9, tls: 9 };
    for way in [Way::Tls, Way::Http] {
        let own = address_of_this_host();
        let Some(own) = own else { continue };
        world.zone.put(HOST, own);
        let settings = AcmeSettings { addresses: Vec::new(), ports, ..world.settings(&stub, way) };
        let outcome = world.start(settings).renew(false).await.unwrap().remove(0);
        let why = outcome.why.unwrap();
        assert!(why.contains("our own challenge was not found at"), "{why}");
    }
    assert!(stub.orders().is_empty());
    // Behind NAT neither check can be made from here: one order is made, and its failure waits.
    world.zone.put(HOST, "192.0.2.1".parse().unwrap());
    let _ = std::fs::remove_dir_all(world.dir.path().join("acme"));
    let handle = world.start(world.settings(&stub, Way::Http));
    let outcome = handle.renew(false).await.unwrap().remove(0);
    assert!(outcome.why.is_none() && stub.orders() == [HOST], "{outcome:?}");
}

/// An address of this host that is not loopback. A container may have none.
fn address_of_this_host() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_back_off_survives_restarts_and_a_request_tries_at_once() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(|_| Err("the name does not resolve".to_owned()));
    let handle = world.start(world.settings(&stub, Way::Http));
    let outcome = handle.renew(false).await.unwrap().remove(0);
    assert!(outcome.why.unwrap().contains("the name does not resolve"));
    let orders = stub.orders().len();
    let next = handle.states()[0].next;
    assert!(next > 0 && !posthaste_acme::failures(&world.dir.path().join("acme")).is_empty());

    // A restart does not ask the authority: its first look is over when the second answer is there.
    let handle = world.start(world.settings(&stub, Way::Http));
    let tried = handle.renew(false).await.unwrap().remove(0);
    assert!(tried.why.is_some());
    assert_eq!(stub.orders().len(), orders + 1, "only the one that was asked for");
    assert!(handle.states()[0].next >= next + 3600, "and it waits longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_authoritys_words_a_part_is_kept() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(|_| Err("no such host; ".repeat(1000)));
    let handle = world.start(world.settings(&stub, Way::Http));
    let why = handle.renew(false).await.unwrap().remove(0).why.unwrap();
    assert!(why.contains("no such host; no such host; ") && why.len() <= 1000, "{}", why.len());
    assert_eq!(handle.states()[0].why.as_ref(), Some(&why));
    assert_eq!(posthaste_acme::failures(&world.dir.path().join("acme")), [(HOST.to_owned(), why)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_keeps_the_key_unless_a_new_one_is_wanted() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(at(world.ports));
    let handle = world.start(world.settings(&stub, Way::Http));
    handle.renew(false).await.unwrap();
    let (file, first) = (world.file(HOST), world.in_force());
    let key = key_of(&file);
    assert!(handle.renew(true).await.unwrap()[0].is_new);
    assert_ne!(world.in_force(), first);
    assert_eq!(key_of(&file), key);
    let handle = world.start(AcmeSettings { new_key: true, ..world.settings(&stub, Way::Http) });
    assert!(handle.renew(true).await.unwrap()[0].is_new);
    assert_ne!(key_of(&file), key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_key_is_made_early_and_used_once_it_is_expected() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(at(world.ports));
    let handle = world.start(world.settings(&stub, Way::Http));
    handle.renew(false).await.unwrap();
    let (file, next) = (world.file(HOST), next_key_file(&world.dir.path().join("acme"), HOST));
    assert!(!next.exists());
    let (key, handle) =
        (key_of(&file), world.start(AcmeSettings { new_key: true, ..world.settings(&stub, Way::Http) }));
    let made = std::fs::read_to_string(&next).unwrap();
    assert_eq!(std::fs::metadata(&next).unwrap().permissions().mode() & 0o777, 0o600);

    // The certificate is renewed in any case, and with the next key only if clients would take it.
    world.zone.expect(&file);
    let outcome = handle.renew(true).await.unwrap().remove(0);
    assert_eq!(
        (outcome.is_new, outcome.about_key.as_deref()),
        (true, Some("other hosts expect another key: no record has it"))
    );
    assert_eq!((key_of(&file), std::fs::read_to_string(&next).unwrap()), (key.clone(), made.clone()));
    world.zone.is_silent.store(true, Ordering::Relaxed);
    let outcome = handle.renew(true).await.unwrap().remove(0);
    assert_eq!(outcome.about_key.unwrap(), "nobody knows whether other hosts expect another key: no answer");
    assert_eq!(key_of(&file), key);
    world.zone.is_silent.store(false, Ordering::Relaxed);
    world.zone.expect(&next);
    let outcome = handle.renew(true).await.unwrap().remove(0);
    assert_eq!((outcome.is_new, outcome.about_key), (true, None));
    assert_eq!(key_of(&file), made);
    assert_ne!(std::fs::read_to_string(&next).unwrap(), made, "the one after it");
    // A key that is in use, such as after a power cut, is not a next one.
    std::fs::write(&next, &made).unwrap();
    world.start(AcmeSettings { new_key: true, ..world.settings(&stub, Way::Http) });
    let another = std::fs::read_to_string(&next).unwrap();
    assert_ne!(another, made);
    // Nor is one that others may have read.
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o640)).unwrap();
    world.start(AcmeSettings { new_key: true, ..world.settings(&stub, Way::Http) });
    assert_ne!(std::fs::read_to_string(&next).unwrap(), another);
    assert_eq!(std::fs::metadata(&next).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_is_as_the_authority_says_or_at_two_thirds_of_life() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(at(world.ports));
    let day = 86_400;
    // Of six days, four are over when it is signed: due at once, and again.
    stub.set_validity(-4 * day - 60, 2 * day);
    let handle = world.start(world.settings(&stub, Way::Http));
    handle.renew(false).await.unwrap();
    let orders = stub.orders().len();
    assert!(handle.renew(false).await.unwrap()[0].is_new);
    assert_eq!(stub.orders().len(), orders + 1);
    stub.set_validity(-3 * day, 3 * day);
    assert!(handle.renew(false).await.unwrap()[0].is_new);
    assert!(!handle.renew(false).await.unwrap()[0].is_new, "half of its life is left");
    assert_eq!(stub.replacing(), 0);

    // The authority wants it earlier. It is asked once in hours: a start without what it said before asks again.
    stub.set_renewal(Some((-2 * day, -day)));
    world.stop();
    std::fs::remove_file(world.dir.path().join("acme/names.json")).unwrap();
    let handle = world.start(world.settings(&stub, Way::Http));
    let outcome = handle.renew(false).await.unwrap().remove(0);
    assert!(outcome.why.is_none(), "{outcome:?}");
    assert!(stub.replacing() >= 1, "the order says what it replaces");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_others_can_read_is_an_error_at_the_start() {
    let mut world = World::new().await;
    let stub = AcmeStub::start(at(world.ports));
    let settings = world.settings(&stub, Way::Http);
    world.start(settings.clone()).renew(false).await.unwrap();
    world.stop();
    std::fs::set_permissions(world.file(HOST), std::fs::Permissions::from_mode(0o644)).unwrap();
    let started = start(settings, world.challenges.clone(), Arc::new(world.zone.clone()), Arc::clone(&world.list));
    assert!(started.unwrap_err().to_string().contains("others can read this private key"));
}
