//! Sources behind proxies, with tiny proxies.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use posthaste_net::ProxyHeader;
use posthaste_random::Random;
use posthaste_relay::sender::{OutgoingSource, Pool, Routing};
use posthaste_relay::session::{Endpoint, OutgoingSession, Proxy, SessionOpenError, SessionSettings};
use posthaste_smtp::sasl::Credentials;

use super::sink::Sink;
use super::{LOOPBACK, rig_with, schedules, unused_port, wait, zone};

/// A proxy's dialogue with a connection: reads the request, and returns the destination.
type Greet = fn(&mut TcpStream, &Asked) -> io::Result<Option<SocketAddr>>;

/// Requested destinations, with the source or the name sent along.
type Asked = Mutex<Vec<(SocketAddr, String)>>;

/// Ends with the process.
fn proxy(greet: Greet) -> (SocketAddr, Arc<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Asked::default());
    let of_thread = asked.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let asked = of_thread.clone();
            thread::spawn(move || -> io::Result<()> {
                let Some(to) = greet(&mut stream, &asked)? else { return Ok(()) };
                let mut other = TcpStream::connect(to)?;
                let mut back = other.try_clone()?;
                let mut forth = stream.try_clone()?;
                thread::spawn(move || {
                    let _ = io::copy(&mut back, &mut forth);
                    let _ = forth.shutdown(Shutdown::Both);
                });
                let _ = io::copy(&mut stream, &mut other);
                other.shutdown(Shutdown::Both)
            });
        }
    });
    (address, asked)
}

fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut octets = [0; N];
    stream.read_exact(&mut octets)?;
    Ok(octets)
}

fn text(stream: &mut TcpStream) -> io::Result<String> {
    let [len] = read(stream)?;
    let mut octets = vec![0; len.into()];
    stream.read_exact(&mut octets)?;
    Ok(String::from_utf8_lossy(&octets).into_owned())
}

/// Demands the name `ann` and the password `secret` from clients that offer them.
fn socks5(stream: &mut TcpStream, asked: &Asked) -> io::Result<Option<SocketAddr>> {
    let [5, 1, method] = read(stream)? else { return Ok(None) };
    stream.write_all(&[5, method])?;
    let mut user = String::new();
    if method == 2 {
        assert_eq!(read(stream)?, [1]);
        user = text(stream)?;
        let is_right = text(stream)? == "secret" && user == "ann";
        stream.write_all(&[1, u8::from(!is_right)])?;
        if !is_right {
            return Ok(None);
        }
    }
    let [5, 1, 0, 1, a, b, c, d, p, q] = read(stream)? else { return Ok(None) };
    let to = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([p, q])));
    asked.lock().unwrap().push((to, user));
    // One of the zone's hosts has no listener at its port.
    let is_dead = to.ip() == Ipv4Addr::new(127, 0, 0, 77);
    // A name as its own address: only its length tells it from the host's greeting.
    stream.write_all(&[5, if is_dead { 5 } else { 0 }, 0, 3, 4, b'h', b'o', b's', b't', 0, 0])?;
    Ok((!is_dead).then_some(to))
}

fn proxy_protocol(stream: &mut TcpStream, asked: &Asked) -> io::Result<Option<SocketAddr>> {
    let fixed: [u8; 16] = read(stream)?;
    let mut rest = vec![0; u16::from_be_bytes([fixed[14], fixed[15]]).into()];
    stream.read_exact(&mut rest)?;
    let header = ProxyHeader::parse(&[&fixed[..], &rest].concat()).unwrap().expect("a whole header");
    let (from, to) = header.addresses.expect("addresses");
    asked.lock().unwrap().push((to, from.ip().to_string()));
    Ok(Some(to))
}

fn through(proxy: Proxy, ipv4: Option<Ipv4Addr>) -> Routing {
    let source = OutgoingSource { proxy: Some(proxy), ipv4, ..OutgoingSource::new("far") };
    let pools = vec![Pool { name: "p".to_owned(), tenants: None, sources: vec![("far".into(), 1)] }];
    Routing { sources: vec![source], pools, ..Routing::default() }
}

#[test]
fn mail_goes_through_socks5_and_its_refusal_is_the_hosts() {
    let sink = Sink::start();
    let (server, asked) = proxy(socks5);
    let zone = zone().mx("a.example", 5, "dead.example").a("dead.example", Ipv4Addr::new(127, 0, 0, 77));
    let login = Some(Credentials::new("ann", "secret"));
    let rig = rig_with(zone, sink.port(), |config| config.routing = through(Proxy::Socks5 { server, login }, None));
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    assert_eq!(sink.wait_taken(1)[0].body, b"x\r\n");
    rig.wait_empty();
    let asked = asked.lock().unwrap().clone();
    let at = |octet| SocketAddr::from(([127, 0, 0, octet], sink.port()));
    assert_eq!(asked, [(at(77), "ann".to_owned()), (at(1), "ann".to_owned())]);
    assert!(!rig.log().iter().any(|line| line.starts_with("source")), "{:?}", rig.log());
}

#[test]
fn a_proxy_by_proxy_protocol_gets_source_and_destination() {
    let sink = Sink::start();
    let (server, asked) = proxy(proxy_protocol);
    let ipv4 = Some(Ipv4Addr::new(192, 0, 2, 55));
    let rig = rig_with(zone(), sink.port(), |config| config.routing = through(Proxy::Header { server }, ipv4));
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    sink.wait_taken(1);
    let to: SocketAddr = (IpAddr::from([127, 0, 0, 1]), sink.port()).into();
    assert_eq!(*asked.lock().unwrap(), [(to, "192.0.2.55".to_owned())]);
}

#[test]
fn a_proxy_that_cannot_be_used_suspends_its_source_until_it_can() {
    let sink = Sink::start();
    let (server, asked) = proxy(socks5);
    // Neither a proxy without a listener, nor one that refuses the password, is the fault of the host.
    let nobody = SocketAddr::from((LOOPBACK, unused_port(LOOPBACK)));
    for (server, password, word) in [(nobody, "secret", "refused"), (server, "wrong", "password")] {
        let login = Some(Credentials::new("ann", password));
        let rig = rig_with(zone(), sink.port(), |config| {
            config.schedules = schedules(3600, 86_400);
            config.routing = through(Proxy::Socks5 { server, login }, None);
        });
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
        let is_told = |line: &String| line.starts_with("source far: ") && line.contains(word);
        wait("it is suspended", || rig.log().iter().any(is_told));
        assert_eq!((rig.relay.stats().unreachable, rig.relay.stats().recipients), (0, 1));
        assert!(!rig.log().iter().any(|line| line.contains("deferred")), "{:?}", rig.log());
        if server == nobody {
            // It comes up: the suspension ends by itself.
            let listener = TcpListener::bind(nobody).unwrap();
            wait("it is usable", || rig.log().iter().any(|line| line == "source far: usable"));
            drop(listener);
        }
    }
    assert_eq!(*asked.lock().unwrap(), [], "no destination without the password");
}

/// Random SOCKS5-like octets, then the end.
fn babble(stream: &mut TcpStream, _: &Asked) -> io::Result<Option<SocketAddr>> {
    let mut random = Random::new(u64::from(stream.peer_addr()?.port()));
    let right = [5, 0, 5, 0, 0, 1, 127, 0, 0, 1, 0, 25];
    let octets: Vec<u8> = (0..random.below(40) as usize)
        .map(|at| if random.one_in(12) { random.below(256) as u8 } else { right.get(at).copied().unwrap_or(b'2') })
        .collect();
    stream.write_all(&octets)?;
    // The end must not reset the octets sent.
    stream.shutdown(Shutdown::Write)?;
    io::copy(stream, &mut io::sink()).map(|_| None)
}

#[tokio::test]
async fn whatever_a_proxy_says_there_is_an_error_and_no_session() {
    let (server, _) = proxy(babble);
    let endpoint = Endpoint::Tcp("192.0.2.1:25".parse().unwrap());
    let mut of_source = 0;
    let mut of_host = 0;
    for number in 0..300 {
        let login = (number % 4 == 0).then(|| Credentials::new("a".repeat(number), "b"));
        let settings =
            SessionSettings { proxy: Some(Proxy::Socks5 { server, login }), ..SessionSettings::new("here.example") };
        match OutgoingSession::open(&endpoint, &settings).await {
            Err(SessionOpenError::Source(_)) => of_source += 1,
            Err(_) => of_host += 1,
            Ok(session) => panic!("{session:?}"),
        }
    }
    assert!(of_source > 50 && of_host > 50, "{of_source}, {of_host}");
}
