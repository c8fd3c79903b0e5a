//! Limits of connections, and their listeners.

use std::sync::Arc;
use std::time::Duration;

use posthaste_smtp::Protocol;
use posthaste_smtp::driver::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::support::{LONG, RecordingHandler, Talk, local, start};

#[tokio::test]
async fn too_many_connections_are_told_so() {
    let (server, _events) = start(local().max_connections(3).max_connections_per_address(2)).await;
    let mut inside = Vec::new();
    for _ in 0..2 {
        let mut talk = Talk::to(&server).await;
        talk.hear("220").await;
        inside.push(talk);
    }
    for _ in 0..50 {
        let mut outside = Talk::to(&server).await;
        // Input from a client meanwhile must not reset the connection before it has read the reason.
        outside.say("EHLO client.example\r\n").await;
        assert!(outside.hear("421").await.starts_with("421 4.7.0 "));
        outside.hear_close().await;
    }
    // Clients inside are served, and a free place is given out again.
    inside[0].say("NOOP\r\n").await.hear("250").await;
    inside.pop().unwrap().say("QUIT\r\n").await.hear("221").await;
    while server.connections() > 1 {
        tokio::task::yield_now().await;
    }
    Talk::to(&server).await.hear("220").await;
}

#[tokio::test]
async fn the_total_is_told_apart_from_the_address() {
    let (server, _events) = start(local().max_connections(1)).await;
    let mut first = Talk::to(&server).await;
    first.hear("220").await;
    let mut second = Talk::to(&server).await;
    assert!(second.hear("421").await.starts_with("421 4.3.2 "));
    second.hear_close().await;
}

#[tokio::test]
async fn a_slow_reader_stops_its_client_and_nobody_else() {
    let hold = Arc::new(Notify::new());
    let (events, mut received) = mpsc::unbounded_channel();
    let handler = RecordingHandler { events, hold: Some(Arc::clone(&hold)), stall: false };
    let server = local().start(handler).await.unwrap();
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    let line = b"a line of a message that does not want to end and is 64 octets\r\n";
    let text = line.repeat(1024);
    talk.say("Subject: x\r\n\r\n").await;
    let mut sent = 0;
    // Socket buffers take some megabytes; then nothing moves until the handler reads.
    while let Ok(written) = timeout(Duration::from_millis(500), talk.stream.write(&text[sent % line.len()..])).await {
        sent += written.unwrap();
        assert!(sent < 40 << 20, "the server reads what nobody asked for");
    }
    let mut other = Talk::to(&server).await;
    other.hear("220").await;
    hold.notify_one();
    let rest = String::from_utf8_lossy(&line[sent % line.len()..]);
    talk.say(&rest).await.say(".\r\n").await.hear("250").await;
    assert_eq!(received.recv().await.unwrap().2.unwrap().len(), 14 + sent + rest.len());
}

#[tokio::test]
async fn ipv4_and_ipv6_are_listened_on_side_by_side() {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        eprintln!("left out, there is no IPv6 here: {error}");
        return;
    }
    // A port that is free in both; another process may take it in between, so a few are tried.
    for _ in 0..20 {
        let port = std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let builder = Server::builder().listen(format!("[::]:{port}")).listen(format!("0.0.0.0:{port}"));
        let (events, _received) = mpsc::unbounded_channel();
        let Ok(server) = builder.start(RecordingHandler { events, hold: None, stall: false }).await else { continue };
        for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
            Talk { stream: TcpStream::connect(address).await.unwrap() }.hear("220").await;
        }
        assert!(server.shutdown(LONG).await);
        return;
    }
    panic!("no port was free in both");
}

#[tokio::test]
async fn two_protocols_share_one_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lmtp");
    let (server, _events) = start(local().max_connections(1).protocol(Protocol::Lmtp).listen_unix(&path)).await;
    let mut smtp = Talk::to(&server).await;
    assert!(smtp.hear("220").await.contains(" ESMTP "));
    let words = async || {
        let mut words = String::new();
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"QUIT\r\n").await.unwrap();
        timeout(LONG, stream.read_to_string(&mut words)).await.unwrap().unwrap();
        words
    };
    assert!(words().await.starts_with("421 4.3.2 "));
    smtp.say("QUIT\r\n").await.hear("221").await;
    while server.connections() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(words().await.contains(" LMTP "));
}

#[tokio::test]
async fn a_socket_that_is_passed_in_gets_the_same_backlog() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // The caller's own choice; `ss` and this table show the limit of a listening socket only in the queue itself.
    rustix::net::listen(&listener, 1).unwrap();
    let address = listener.local_addr().unwrap();
    let (server, _events) = start(Server::builder().listener(listener)).await;
    // All wait in the backlog: the only thread of this runtime accepts nobody while it makes them.
    let waiting: Vec<_> =
        (0..50).map(|_| std::net::TcpStream::connect_timeout(&address, LONG).expect("room to wait")).collect();
    assert_eq!(waiting.len(), 50);
    assert!(server.backlog().granted >= 50);
}

#[tokio::test]
async fn the_backlog_is_what_the_kernel_grants() {
    let (server, _events) = start(local().max_connections(usize::MAX)).await;
    let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    assert_eq!(server.backlog().granted.to_string(), somaxconn.trim());
    // Whatever the system's limit, a backlog of 4096 is enough.
    let is_less: bool = somaxconn.trim().parse::<u32>().unwrap() < 4096;
    assert_eq!(server.backlog().is_limited_by_somaxconn(), is_less);
    let (server, _events) = start(local().max_connections(1)).await;
    assert!(!server.backlog().is_limited_by_somaxconn());
}
