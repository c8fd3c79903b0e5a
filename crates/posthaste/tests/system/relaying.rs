//! Two servers for tests: one at `here.example` that relays, and its next hop for `there.example`.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use serde_json::Value;

use crate::support::{PATIENCE, Server, command};

/// The configuration of a server for `here.example`, user eve, that relays for 127.0.0.1. Mail hosts of the other domains are at a port of loopback.
/// `relay` has more keys of `[relay]`, then tables. Text appended to it begins with keys of `[dns]`.
pub fn config(port: u16, relay: &str) -> String {
    format!(
        "host_name = \"mx.here.example\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[domain]]\nname = \"here.example\"\nusers = [\"eve\"]\n\
         [relay]\nnetworks = [\"127.0.0.1\"]\nport = {port}\nunreachable_secs = 1\n{relay}\
         [dns]\nservers = [\"127.0.0.1:9\"]\n\
         hosts = {{ \"there.example\" = [\"127.0.0.1\"], \"other.example\" = [\"127.0.0.1\"], \"open.example\" = [\"127.0.0.1\"] }}\n"
    )
}

/// A server that receives for `there.example`, users ann and bob, at an address with a port; slow is refused for now.
pub fn next_hop(dir: &Path, address: &str) -> Server {
    let domain = "[[domain]]\nname = \"there.example\"\nusers = [\"ann\", \"bob\", \"carol\"]\n\
                  [domain.aliases]\nslow = { refuse = \"450 4.2.1 Come back\" }\n";
    Server::start(dir, &format!("host_name = \"mx.there.example\"\n[[listener]]\naddress = \"{address}\"\n{domain}"))
}

/// The event log is on: tables for [`config`].
pub const EVENTS: &str = "[events]\nenabled = true\n";

/// Any port of loopback, for [`next_hop`].
pub const ANYWHERE: &str = "127.0.0.1:0";

/// An unused port of loopback, reserved for a server of this test.
///
/// A bound socket that does not listen holds it until this program ends, so no other test gets it as a free port. With
/// SO_REUSEADDR, which servers set, it can be bound again by its number.
pub fn unused_port() -> u16 {
    static HELD: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let held = TcpListener::from(socket);
    let port = held.local_addr().unwrap().port();
    HELD.lock().unwrap().push(held);
    port
}

/// Runs `posthaste queue`. Returns its exit status and output.
pub fn queue(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = command(dir, &[&["queue"], args].concat()).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

/// The lines of `posthaste queue list`.
pub fn list(dir: &Path, args: &[&str]) -> Vec<Value> {
    let (_, text) = queue(dir, &[&["list", "--json"], args].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Waits until the queue satisfies a condition. Mail accepted by a next hop stays in flight until its outcome is
/// recorded.
pub fn wait_for_queue(dir: &Path, what: &str, holds: impl Fn(&[Value]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let waiting = list(dir, &[]);
        if holds(&waiting) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {waiting:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the hosts of this many sites could not be reached, and no mail for them is in flight.
pub fn wait_until_unreachable(server: &Server, dir: &Path, sites: usize) {
    server.wait_for_log_again("mail waits for these hosts", sites);
    wait_for_queue(dir, "none is under way", |waiting| waiting.iter().all(|line| line["state"] != "under way"));
}
