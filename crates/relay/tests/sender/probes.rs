//! A site that cannot be reached pauses. One probe at a time checks if it answers again.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use posthaste_queue::Selection;
use posthaste_relay::sender::Routing;

use super::*;

/// A host that sends nothing to its clients until told to hang up.
struct Mute {
    address: SocketAddr,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    streams: VecDeque<TcpStream>,
    /// Connections so far.
    connections: usize,
}

impl Mute {
    fn start(address: SocketAddr) -> Mute {
        let listener = TcpListener::bind(address).unwrap();
        let mute = Mute { address: listener.local_addr().unwrap(), waiting: Arc::default() };
        let waiting = mute.waiting.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut waiting = waiting.lock().unwrap();
                waiting.connections += 1;
                waiting.streams.push_back(stream);
            }
        });
        mute
    }

    fn connections(&self) -> usize {
        self.waiting.lock().unwrap().connections
    }

    fn wait_connections(&self, count: usize) {
        wait("a connection comes", || self.connections() >= count);
    }

    /// Ends the connection that came first.
    fn hang_up(&self) {
        let stream = self.waiting.lock().unwrap().streams.pop_front().expect("a connection");
        let _ = (&stream).write_all(b"421 4.3.2 closed\r\n");
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[test]
fn an_unreachable_site_pauses_and_comes_back() {
    let port = unused_port(LOOPBACK);
    let rig = rig_with(zone(), port, |_| ());
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    wait("it is told", || rig.log().iter().any(|line| line.starts_with("unreachable 10 mx.a.example")));
    assert_eq!(rig.relay.stats().unreachable, 1);
    let sink = Sink::at((LOOPBACK, port).into());
    sink.wait_taken(1);
    rig.wait_empty();
    assert_eq!(rig.relay.stats().unreachable, 0);
    assert!(!rig.log().iter().any(|line| line.contains("deferred")), "{:?}", rig.log());
}

#[test]
fn a_flush_after_a_new_route_ends_the_pause_of_its_sites() {
    let port = unused_port(LOOPBACK);
    let zone = zone().mx("b.example", 10, "mx.b.example").a("mx.b.example", Ipv4Addr::new(127, 0, 0, 2));
    let rig = rig_with(zone.mx("hub.example", 10, "mx.a.example"), port, |config| config.site_pause_secs = 3600);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    rig.send("ann@here.example", &["bob@b.example"], "x\r\n");
    let unreachable = |site: &str| rig.log().iter().any(|line| line.starts_with(&format!("unreachable 10 {site}")));
    wait("both sites pause", || unreachable("mx.a.example") && unreachable("mx.b.example"));
    let sink = Sink::at((LOOPBACK, port).into());
    // Mail of the first goes to the other from now on, whose address is not found before the flush.
    rig.dns.hold();
    let route = FixedRoute { domain: "b.example".to_owned(), use_mx: true, ..FixedRoute::new("hub.example", port) };
    rig.relay.set_routing(&Routing { routes: vec![route.into()], ..Routing::default() });
    let selection = Selection { domain: Some("b.example".into()), ..Selection::default() };
    let filter = Filter { selection, ..Filter::default() };
    let done =
        rig.relay.act(&filter, QueueAction::Flush, &Reply::new(554, "5.0.0", ""), &Originator::default()).unwrap();
    assert_eq!(done.changed, 1);
    rig.dns.release();
    sink.wait_taken(2);
    rig.wait_empty();
}

#[test]
fn a_paused_site_is_probed_with_one_connection() {
    let mute = Mute::start((LOOPBACK, 0).into());
    let port = mute.address.port();
    let other = Sink::at((Ipv4Addr::new(127, 0, 0, 2), port).into());
    // Two domains of one site, and another site that shows that the relay goes on meanwhile.
    let zone = zone().mx("b.example", 10, "mx.a.example");
    let zone = zone.mx("c.example", 10, "mx.c.example").a("mx.c.example", Ipv4Addr::new(127, 0, 0, 2));
    let shaping = super::shaping::rules("[default]\nfailures_before_pause = 1\n");
    let rig = rig_with(zone, port, |config| {
        (config.site_pause_secs, config.site_connections_max, config.shaping) = (3600, 8, shaping);
    });
    let probes = 4;
    let more_waits = |times: usize| {
        for time in 0..times {
            rig.send("ann@here.example", &[&format!("bob{time}@a.example")], "x\r\n");
            rig.send("ann@here.example", &[&format!("eve{time}@b.example")], "x\r\n");
        }
        let taken = other.taken().len();
        rig.send("ann@here.example", &["bob@c.example"], "x\r\n");
        other.wait_taken(taken + 1);
    };
    for probe in 1..=probes {
        rig.flush();
        more_waits(10);
        mute.wait_connections(probe);
        for _ in 0..3 {
            rig.flush();
            more_waits(1);
        }
        assert_eq!(mute.connections(), probe, "one while nobody knows whether the site answers");
        mute.hang_up();
        let paused = || rig.log().iter().filter(|line| line.starts_with("unreachable 10 mx.a.example")).count();
        wait("the site pauses", || paused() == probe);
        more_waits(3);
    }
    // A flush of held mail tries nothing.
    rig.relay
        .act(&Filter::default(), QueueAction::Hold(None), &Reply::new(554, "5.0.0", ""), &Originator::default())
        .unwrap();
    rig.flush();
    more_waits(3);
    assert_eq!(mute.connections(), probes, "none during a pause");
    assert_eq!(rig.relay.stats().deferred, 0, "no attempt is counted");
}
