//! A server without free file descriptors still tells its clients. Alone in its process, whose limit it lowers.
#![cfg(feature = "tokio")]

#[path = "common/nobody.rs"]
mod nobody;

use std::time::Duration;

use nobody::Nobody;
use posthaste_smtp::driver::Server;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Far longer than any step takes unless it hangs.
const LONG: Duration = Duration::from_secs(60);

async fn first_words(stream: &mut TcpStream) -> String {
    let mut heard = Vec::new();
    timeout(LONG, stream.read_buf(&mut heard)).await.expect("a reply in time").unwrap();
    String::from_utf8(heard).unwrap()
}

#[tokio::test]
async fn the_last_descriptors_say_421() {
    let server = Server::builder().listen("127.0.0.1:0").start(Nobody).await.unwrap();
    // Each connection costs this process two descriptors, as it is client and server.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let before = getrlimit(Resource::Nofile);
    let mut limit = before;
    limit.current = Some(open + 40);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut clients = Vec::new();
    let mut refused = 0;
    // The clients' sockets are made before the limit is met; then each accept finds no descriptor.
    let sockets: Vec<_> = (0..30).map(|_| tokio::net::TcpSocket::new_v4().unwrap()).collect();
    for socket in sockets {
        let mut client = socket.connect(server.local_addrs()[0]).await.unwrap();
        let words = first_words(&mut client).await;
        match words.get(..3) {
            Some("220") => assert_eq!(refused, 0, "refusals only once descriptors have run out"),
            Some("421") => refused += 1,
            _ => panic!("{words:?}"),
        }
        clients.push(client);
    }
    assert!(refused > 10, "{refused}");
    setrlimit(Resource::Nofile, before).unwrap();
    clients.clear();
    while server.connections() > 0 {
        tokio::task::yield_now().await;
    }
    let mut client = TcpStream::connect(server.local_addrs()[0]).await.unwrap();
    assert!(first_words(&mut client).await.starts_with("220 "));
    assert!(server.shutdown(LONG).await);
}
