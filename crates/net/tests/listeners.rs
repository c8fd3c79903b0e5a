//! A protocol of one line on real sockets: who is served, who is turned away, what a proxy may say, how it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_net::{
    Admission, Connection, ConnectionRefusal, GateLimits, Goodbye, IpNet, ListenPlace, Listeners, NetworkLimits, Peer,
    Phase, Proxies, Rules, Service, UnixAccess, bind, network,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Timeout of a wait; only a hang takes this long.
const LONG: Duration = Duration::from_secs(60);

/// Says who the client is, and then what it says, until there is a shutdown.
struct Echo(mpsc::UnboundedSender<ConnectionRefusal>);

impl Service for Echo {
    async fn serve(&self, mut connection: Connection) {
        let ip = connection.peer.ip().map_or("nobody".to_owned(), |ip| ip.to_string());
        let _ = connection.stream.write_all(format!("hello {ip}\n").as_bytes()).await;
        let mut buffer = [0; 100];
        while let Ok(count @ 1..) = connection.stream.read(&mut buffer).await {
            if connection.phase.reached(Phase::Draining) {
                break;
            }
            let _ = connection.stream.write_all(&buffer[..count]).await;
        }
    }

    fn refuse(&self, _: &Peer, why: &ConnectionRefusal) -> Goodbye {
        self.0.send(why.clone()).unwrap();
        if matches!(why, ConnectionRefusal::Proxy(_)) { Goodbye::default() } else { Goodbye::new(format!("{why}\n")) }
    }
}

struct Fixture {
    listeners: Listeners,
    admission: Arc<Admission>,
    address: SocketAddr,
    refusals: mpsc::UnboundedReceiver<ConnectionRefusal>,
}

fn start(limits: GateLimits, rules: Rules) -> Fixture {
    let (sender, refusals) = mpsc::unbounded_channel();
    let (bound, ()) = bind(vec![(ListenPlace::Tcp("127.0.0.1:0".into()), ())], &limits).unwrap().remove(0);
    let address = bound.local_addr().unwrap();
    let mut listeners = Listeners::new(limits).unwrap();
    let admission = Admission::new(rules);
    listeners.serve(bound.listen().unwrap(), &admission, Echo(sender));
    Fixture { listeners, admission, address, refusals }
}

impl Fixture {
    /// Says all of `octets`, one by one or at once, and reads a line.
    async fn line(&self, octets: &[u8], at_once: bool) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in octets.chunks(if at_once { 1000 } else { 1 }) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let line = line(&mut stream).await;
        (stream, line)
    }
}

/// To the next line's end, or the end.
async fn line(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut heard = Vec::new();
    while !heard.ends_with(b"\n") && timeout(LONG, stream.read_buf(&mut heard)).await.unwrap().unwrap_or(0) > 0 {}
    String::from_utf8(heard).unwrap()
}

fn networks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| network(text).unwrap()).collect()
}

fn behind(trusted: &[&str]) -> Rules {
    Rules { proxies: Some(Proxies::new(networks(trusted))), ..Rules::default() }
}

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn version_2(command: u8, rest: &[u8]) -> Vec<u8> {
    [SIGNATURE, &[command, 0x11, 0, rest.len() as u8], rest].concat()
}

#[tokio::test]
async fn the_proxy_names_the_client_whose_first_octets_are_kept() {
    let fixture = start(GateLimits::NONE, behind(&["127.0.0.0/8"]));
    let v2 = version_2(0x21, &[192, 0, 2, 7, 127, 0, 0, 1, 0, 1, 0, 25, 4, 0, 0]);
    let health_check = version_2(0x20, &[]);
    for (header, expected) in [
        (&b"PROXY TCP4 192.0.2.7 127.0.0.1 1 25\r\n"[..], "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 ::1 1 25\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (&v2, "192.0.2.7"),
        (&health_check, "127.0.0.1"),
    ] {
        for at_once in [true, false] {
            let (mut stream, hello) = fixture.line(&[header, b"first words\n"].concat(), at_once).await;
            let mut heard = hello;
            while heard.lines().count() < 2 {
                heard += &line(&mut stream).await;
            }
            assert!(heard.starts_with(&format!("hello {expected}\nfirst words")), "{heard:?}");
        }
    }
}

#[tokio::test]
async fn a_proxy_that_does_not_say_who_is_closed() {
    let mut rules = behind(&["127.0.0.1"]);
    rules.proxies.as_mut().unwrap().header_patience = Duration::from_millis(50);
    let mut fixture = start(GateLimits::NONE, rules);
    for octets in [
        &b"EHLO client.example\r\n"[..],
        b"PROXY TCP4 192.0.2.7 127.0.0.1 1 66666\r\n",
        b"PROXY TCP4 192.0.2.7 127.0.0.1 1 25",
        b"",
        &SIGNATURE[..11],
        &[SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat(),
    ] {
        let (_stream, heard) = fixture.line(octets, true).await;
        assert_eq!(heard, "", "{}", octets.escape_ascii());
        assert!(
            matches!(fixture.refusals.recv().await, Some(ConnectionRefusal::Proxy(_))),
            "{}",
            octets.escape_ascii()
        );
    }
    while fixture.listeners.connections() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn nobody_else_may_say_whose_connection_it_is() {
    let fixture = start(GateLimits::NONE, behind(&["192.0.2.0/24"]));
    let (_stream, heard) = fixture.line(b"PROXY TCP4 192.0.2.7 127.0.0.1 1 25\r\n", true).await;
    assert_eq!(heard, "not one of the proxies that may connect here\n");
    // And where no proxy is expected, a header is what the client says.
    fixture.admission.replace(Rules::default());
    let (_stream, heard) = fixture.line(b"PROXY TCP4 192.0.2.7 127.0.0.1 1 25\r\n", true).await;
    assert!(heard.starts_with("hello 127.0.0.1\n"), "{heard}");
}

#[tokio::test]
async fn limits_and_rules_count_the_client_and_not_the_proxy() {
    let rules = Rules { allow: Some(networks(&["192.0.2.0/24", "198.51.100.0/24"])), ..behind(&["127.0.0.1"]) };
    let own = NetworkLimits { connections: Some(2), connections_per_address: Some(2) };
    let limits = GateLimits {
        connections_per_address: 1,
        networks: vec![(networks(&["198.51.100.0/24"])[0], own)],
        ..GateLimits::NONE
    };
    let fixture = start(limits, rules);
    let from = |ip: &str| {
        let header = format!("PROXY TCP4 {ip} 127.0.0.1 1 25\r\n");
        let fixture = &fixture;
        async move { fixture.line(header.as_bytes(), true).await }
    };
    let (_first, heard) = from("192.0.2.7").await;
    assert_eq!(heard, "hello 192.0.2.7\n");
    assert_eq!(from("192.0.2.7").await.1, "too many connections from this address\n");
    let (second, heard) = from("192.0.2.8").await;
    assert_eq!(heard, "hello 192.0.2.8\n");
    let _both = [from("198.51.100.1").await, from("198.51.100.1").await];
    assert_eq!(from("198.51.100.2").await.1, "too many connections from this network\n");
    assert_eq!(from("203.0.113.1").await.1, "clients of this address may not connect here\n");
    drop(second);
    while fixture.listeners.connections() > 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(from("192.0.2.8").await.1, "hello 192.0.2.8\n");
}

#[tokio::test]
async fn a_listener_has_its_own_limits_and_all_can_be_changed() {
    let rules = |connections| Rules { limits: GateLimits { connections, ..GateLimits::NONE }, ..Rules::default() };
    let fixture = start(GateLimits { connections: 2, ..GateLimits::NONE }, rules(1));
    let first = fixture.line(b"", true).await;
    assert_eq!(first.1, "hello 127.0.0.1\n");
    assert_eq!(fixture.line(b"", true).await.1, "too many connections\n");
    fixture.admission.replace(rules(9));
    let second = fixture.line(b"", true).await;
    assert_eq!(second.1, "hello 127.0.0.1\n");
    assert_eq!(fixture.line(b"", true).await.1, "too many connections\n");
    fixture.listeners.set_limits(GateLimits::NONE);
    assert_eq!(fixture.line(b"", true).await.1, "hello 127.0.0.1\n");
}

#[tokio::test]
async fn a_proxy_may_come_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("proxied");
    let place = ListenPlace::Unix(path.clone(), UnixAccess::default());
    let (bound, ()) = bind(vec![(place, ())], &GateLimits::NONE).unwrap().remove(0);
    let mut listeners = Listeners::new(GateLimits::NONE).unwrap();
    let (sender, _refusals) = mpsc::unbounded_channel();
    listeners.serve(bound.listen().unwrap(), &Admission::new(behind(&[])), Echo(sender));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"PROXY TCP4 192.0.2.7 127.0.0.1 1 25\r\n").await.unwrap();
    assert_eq!(line(&mut stream).await, "hello 192.0.2.7\n");
    // Half a header does not hold up the end.
    let mut silent = UnixStream::connect(&path).await.unwrap();
    silent.write_all(b"PROXY").await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(timeout(LONG, listeners.shutdown(LONG)).await.unwrap());
    assert_eq!(line(&mut silent).await, "");
}
