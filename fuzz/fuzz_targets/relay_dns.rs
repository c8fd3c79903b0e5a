//! Any octets as the answer of a resolver: hosts that can be connected to, or an error; never a panic, and never more than a bound.
#![no_main]

use std::cell::LazyCell;
use std::net::UdpSocket;

use libfuzzer_sys::fuzz_target;
use posthaste_dns::{Resolver, Settings};
use tokio::runtime::{Builder, Runtime};

const HOSTS_MAX: usize = 20;

struct World {
    runtime: Runtime,
    server: UdpSocket,
}

thread_local! {
    static WORLD: LazyCell<World> = LazyCell::new(|| {
        // Timeouts pass at once when nothing else is to be done.
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        let server = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        server.set_nonblocking(true).expect("a socket");
        World { runtime, server }
    });
}

fuzz_target!(|data: &[u8]| WORLD.with(|world| {
    let address = world.server.local_addr().expect("bound");
    let settings = Settings { servers: vec![address], timeout_secs: 1, mx_hosts_max: HOSTS_MAX, ..Settings::default() };
    world.runtime.block_on(async {
        let resolver = Resolver::new(&settings).expect("good settings");
        let asked = async {
            if let Ok(destination) = resolver.destination("example.org").await {
                assert!((1..=HOSTS_MAX).contains(&destination.site.hosts().len()));
                for host in destination.site.hosts() {
                    assert!(host.name.len() <= 255 && !host.name.bytes().any(|octet| octet <= b' ' || octet == 0x7f));
                }
            }
            let _ = resolver.addresses("mx.example.org").await;
        };
        let answers = async {
            let server =
                tokio::net::UdpSocket::from_std(world.server.try_clone().expect("a socket")).expect("a socket");
            let mut question = [0; 1024];
            while let Ok((len, client)) = server.recv_from(&mut question).await {
                let _ = server.send_to(&answer(&question[..len], data), client).await;
            }
        };
        tokio::select! { () = asked => (), () = answers => () }
    });
}));

/// The question with its id, flags and counts from the input, and the rest of the input behind it.
fn answer(question: &[u8], data: &[u8]) -> Vec<u8> {
    let [flags, code, answers, more, rest @ ..] = data else { return question.to_vec() };
    let mut out = question.to_vec();
    if out.len() < 12 {
        return out;
    }
    // An answer to a question of one.
    (out[2], out[3]) = (0x80 | flags & 0x7f, *code);
    (out[7], out[9], out[11]) = (*answers, more & 0x0f, more >> 4);
    // What the client says of EDNS is behind its question.
    let end = out[12..].iter().position(|octet| *octet == 0).map_or(out.len(), |at| (12 + at + 5).min(out.len()));
    out.truncate(end);
    out.extend_from_slice(rest);
    out
}
