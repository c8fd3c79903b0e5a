//! Tests with a server behind the relay that does as they say.

use std::io::{ErrorKind, Read, Write};

use super::*;

/// A relay, and the server's listener behind it.
fn relay() -> (TcpRelay, TcpListener) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let relay = TcpRelay::start(listener.local_addr().unwrap()).unwrap();
    (relay, listener)
}

/// A client and its peer, connected.
fn pair(relay: &TcpRelay, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(relay.address()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn read(mut socket: &TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

fn has_nothing(mut socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let outcome = socket.read(&mut [0]);
    socket.set_nonblocking(false).unwrap();
    outcome.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn bytes_and_ends_pass_both_ways() {
    let (relay, listener) = relay();
    let (client, server) = pair(&relay, &listener);
    let text: Vec<u8> = (0..3_000_000u32).map(|n| (n * 31 / 256) as u8).collect();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        (&server).read_to_end(&mut all).unwrap();
        (&server).write_all(b"done").unwrap();
        all
    });
    (&client).write_all(&text).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(reader.join().unwrap() == text);
    let mut answer = Vec::new();
    (&client).read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"done");
}

#[test]
fn a_one_way_stall_holds_that_way_alone() {
    let (relay, listener) = relay();
    let (client, server) = pair(&relay, &listener);
    relay.stall(Way::ToClient);
    (&client).write_all(b"question").unwrap();
    assert_eq!(read(&server, 8), b"question");
    (&server).write_all(b"answer").unwrap();
    drop(server);
    relay.wait_until_held(Way::ToClient, 6);
    assert!(has_nothing(&client));
    relay.resume(Way::ToClient);
    let mut answer = Vec::new();
    (&client).read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"answer", "the end came behind it");
}

#[test]
fn a_stalled_way_holds_a_bounded_number_of_bytes() {
    let (relay, listener) = relay();
    let (client, server) = pair(&relay, &listener);
    relay.stall(Way::ToServer);
    let writer = std::thread::spawn(move || (&client).write_all(&vec![7; 32 << 20]));
    relay.wait_until_held(Way::ToServer, 1 << 20);
    assert!(relay.shared.state().ways[0].held < (1 << 20) + (16 << 10));
    assert!(has_nothing(&server) && !writer.is_finished());
    relay.resume(Way::ToServer);
    assert_eq!(read(&server, 32 << 20).len(), 32 << 20);
    writer.join().unwrap().unwrap();
}

#[test]
fn a_reset_ends_both_sides_and_loses_held_bytes() {
    let (relay, listener) = relay();
    let (client, server) = pair(&relay, &listener);
    relay.stall(Way::ToServer);
    (&client).write_all(b"lost").unwrap();
    relay.wait_until_held(Way::ToServer, 4);
    relay.reset();
    for socket in [&client, &server] {
        let mut socket = socket;
        assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    relay.resume(Way::ToServer);
    let (client, server) = pair(&relay, &listener);
    (&client).write_all(b"next").unwrap();
    assert_eq!(read(&server, 4), b"next");
    relay.wait_until_accepted(2);
}

#[test]
fn a_peers_reset_passes() {
    let (relay, listener) = relay();
    let (client, server) = pair(&relay, &listener);
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!((&server).read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_delay_moves_bytes_and_not_their_order() {
    let (relay, listener) = relay();
    let (client, server) = pair(&relay, &listener);
    let delay = Duration::from_millis(150);
    relay.delay(Way::ToServer, delay);
    let began = Instant::now();
    (&client).write_all(b"one").unwrap();
    relay.wait_until_held(Way::ToServer, 3);
    relay.delay(Way::ToServer, Duration::ZERO);
    (&client).write_all(b" two").unwrap();
    assert_eq!(read(&server, 7), b"one two");
    assert!(began.elapsed() >= delay);
    (&server).write_all(b"answer").unwrap();
    assert_eq!(read(&client, 6), b"answer");
}

#[test]
fn a_client_of_a_server_that_is_away_is_closed() {
    let (relay, listener) = relay();
    drop(listener);
    let client = TcpStream::connect(relay.address()).unwrap();
    assert!(matches!((&client).read(&mut [0]), Ok(0) | Err(_)));
}
