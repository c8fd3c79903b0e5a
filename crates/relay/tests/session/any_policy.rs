//! A property: a message accepted by our server, by any policy and in any transfer, goes out as exactly one message.
//! Its lines end with CRLF on the wire, so a next hop that takes a bare CR or LF for a line end sees the same message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_random::Random;
use posthaste_relay::session::{Endpoint, OutgoingSession, RecipientFate, RunEnd};
use posthaste_smtp::client::Transfer;
use posthaste_smtp::driver::{RunningServer, Server};
use posthaste_smtp::server::Config;
use posthaste_smtp::{BareNewlines, LongLines, NulOctets, Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::smuggling::{Keeper, Shared, mended};
use crate::support::{List, message, settings};

const PIECES: [&[u8]; 24] = [
    b"\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\r\n",
    b".",
    b"..",
    b"\r\n.\r\n",
    b"\n.\n",
    b"\r.\r",
    b"\r\n.\n",
    b"\n.\r\n",
    b"\r\n.\r",
    b"\r\n..\r\n",
    b"\0",
    b"\r\n.\0\r\n",
    b"\xff\x80\xc3\xa9",
    b"a: b\r\n\r\n",
    b"MAIL FROM:<evil@d>\r\nRCPT TO:<b@d>\r\nDATA\r\nevil",
    b"MAIL FROM:<evil@d>\nRCPT TO:<b@d>\nDATA\nevil",
    b"RSET\r\n",
    b"BDAT 3 LAST\r\nx\n.",
    b"QUIT\r\n",
    b"words of a line",
];

/// A body of up to 30 pieces, now and then with a line of up to 70,000 octets. Half of them break no rule but that of
/// the longest line.
fn any_body(random: &mut Random) -> Vec<u8> {
    let mut body = Vec::new();
    let is_clean = |piece: &&&[u8]| bare_newline(piece).is_none() && !piece.contains(&0);
    let clean: Vec<&[u8]> = PIECES.iter().filter(is_clean).copied().collect();
    let (pieces, kinds) = if random.one_in(2) { (&clean[..], 60) } else { (&PIECES[..], 40) };
    for _ in 0..random.below(30) {
        match random.below(kinds) {
            0 if kinds == 40 => {
                let octet = [b'x', b'.', b'\r', b'\n', 0xe9][random.below(5) as usize];
                body.resize(body.len() + random.below(3000) as usize, octet);
            }
            1 if random.one_in(10) => body.resize(body.len() + 70_000, b'x'),
            _ => body.extend_from_slice(pieces[random.below(pieces.len() as u64) as usize]),
        }
    }
    body
}

/// A whole session with a body, by a hostile client: dots are stuffed or not, chunks end anywhere.
fn any_session(random: &mut Random, protocol: Protocol) -> Vec<u8> {
    let hello = if protocol == Protocol::Lmtp { "LHLO" } else { "EHLO" };
    let eight_bit = if random.one_in(2) { " BODY=8BITMIME" } else { "" };
    let mut said = format!("{hello} c\r\nMAIL FROM:<a@d>{eight_bit}\r\nRCPT TO:<b@d>\r\n").into_bytes();
    let body = any_body(random);
    if random.one_in(2) {
        let mut rest = &body[..];
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(1 + random.below(rest.len() as u64) as usize);
            said.extend_from_slice(format!("BDAT {}\r\n", chunk.len()).as_bytes());
            said.extend_from_slice(chunk);
            rest = behind;
        }
        said.extend_from_slice(b"BDAT 0 LAST\r\nQUIT\r\n");
        return said;
    }
    said.extend_from_slice(b"DATA\r\n");
    let is_stuffed = random.one_in(2);
    for (at, octet) in body.iter().enumerate() {
        if is_stuffed && *octet == b'.' && (at == 0 || body[..at].ends_with(b"\r\n")) {
            said.push(b'.');
        }
        said.push(*octet);
    }
    said.extend_from_slice(b"\r\n.\r\nQUIT\r\n");
    said
}

/// All settings that affect acceptance.
fn receivers() -> Vec<Config> {
    let mut configs = Vec::new();
    for protocol in [Protocol::Smtp, Protocol::Lmtp] {
        for bare_newlines in [BareNewlines::Reject, BareNewlines::Fix, BareNewlines::Accept] {
            for nul_octets in [NulOctets::Reject, NulOctets::Accept] {
                for long_lines in [LongLines::Accept, LongLines::Reject] {
                    let mut config = Config { protocol, bare_newlines, nul_octets, long_lines, ..Config::new("mx.d") };
                    config.forbidden_commands.clear();
                    configs.push(config);
                }
            }
        }
    }
    configs
}

async fn start(config: Config, keeper: &Arc<Keeper>) -> RunningServer {
    let server = Server::builder().config(config).listen("127.0.0.1:0");
    server.start(Shared(Arc::clone(keeper))).await.unwrap()
}

/// Messages that a server accepts in some sessions.
async fn accepted(config: Config, random: &mut Random, sessions: usize) -> Vec<Vec<u8>> {
    let protocol = config.protocol;
    let keeper = Arc::new(Keeper::default());
    let server = start(config, &keeper).await;
    for _ in 0..sessions {
        let said = any_session(random, protocol);
        let (mut read, mut write) = TcpStream::connect(server.local_addrs()[0]).await.unwrap().into_split();
        let writing = tokio::spawn(async move {
            // It may hang up before the end.
            let _ = write.write_all(&said).await;
            let _ = write.shutdown().await;
        });
        let mut replies = Vec::new();
        let _ = read.read_to_end(&mut replies).await;
        writing.await.unwrap();
    }
    assert!(server.shutdown(Duration::from_secs(60)).await);
    keeper.take()
}

/// Forwards connections to `to`. Returns its address, and the clients' input.
async fn tap(to: std::net::SocketAddr) -> (std::net::SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = TcpStream::connect(to).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let heard = heard.clone();
            tokio::spawn(async move {
                let mut part = [0; 4096];
                while let Ok(count @ 1..) = from_client.read(&mut part).await {
                    heard.lock().unwrap().extend_from_slice(&part[..count]);
                    if to_server.write_all(&part[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, said)
}

fn bare_newline(wire: &[u8]) -> Option<usize> {
    (0..wire.len()).find(|&at| match wire[at] {
        b'\r' => wire.get(at + 1) != Some(&b'\n'),
        b'\n' => at == 0 || wire[at - 1] != b'\r',
        _ => false,
    })
}

fn count(wire: &[u8], what: &[u8]) -> usize {
    wire.windows(what.len()).filter(|octets| *octets == what).count()
}

#[tokio::test]
async fn what_was_accepted_by_any_policy_goes_out_as_one_message() {
    let mut bare_lines = 0;
    for (number, config) in receivers().into_iter().enumerate() {
        let mut random = Random::new(number as u64);
        let what = format!("{config:?}");
        let bodies = accepted(config, &mut random, 60).await;
        assert!(bodies.len() > 10, "{what}: {} accepted", bodies.len());
        bare_lines += bodies.iter().filter(|body| bare_newline(body).is_some()).count();
        for protocol in [Protocol::Smtp, Protocol::Lmtp] {
            let keeper = Arc::new(Keeper::default());
            // It refuses bare line ends itself.
            let sink = Config { protocol, nul_octets: NulOctets::Accept, ..Config::new("sink.d") };
            let sink = start(sink, &keeper).await;
            for transfer in [Transfer::Data, Transfer::Bdat, Transfer::BdatAtOnce] {
                let (address, wire) = tap(sink.local_addrs()[0]).await;
                let mut settings = settings();
                (settings.protocol, settings.transfer) = (protocol, transfer);
                let mut list = List::default();
                for (key, body) in bodies.iter().enumerate() {
                    let mut message = message(key, &["b"]);
                    message.body = pieces(body, &mut random);
                    list.messages.push_back(message);
                }
                let mut session = OutgoingSession::open(&Endpoint::Tcp(address), &settings).await.unwrap();
                assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
                session.quit().await;
                assert_eq!(list.fates.len(), bodies.len());
                for ((key, fates), body) in list.fates.iter().zip(&bodies) {
                    let shown = body.escape_ascii();
                    assert!(matches!(fates[..], [RecipientFate::Delivered(_)]), "{what}, {key}: {fates:?}, {shown}");
                }
                let kept = keeper.take();
                assert_eq!(kept.len(), bodies.len(), "{what}, {transfer:?}: messages");
                for (got, body) in kept.iter().zip(&bodies) {
                    let expected = mended(body, transfer == Transfer::Data && !body.is_empty());
                    assert!(*got == expected, "{what}, {transfer:?}: {}", body.escape_ascii());
                }
                // The view of another reader.
                let wire = std::mem::take(&mut *wire.lock().unwrap());
                assert_eq!(bare_newline(&wire), None, "{what}, {transfer:?}");
                if transfer == Transfer::Data {
                    // The end of an empty message follows the line of DATA, which also ends with CRLF.
                    assert_eq!(count(&wire, b"\r\n.\r\n"), bodies.len(), "{what}");
                }
            }
            assert!(sink.shutdown(Duration::from_secs(60)).await);
        }
    }
    assert!(bare_lines > 100, "{bare_lines} with bare line ends");
}

/// Cut anywhere.
fn pieces(body: &[u8], random: &mut Random) -> Vec<Bytes> {
    let mut rest = body;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let most = rest.len().min(1 << random.below(17));
        let (piece, behind) = rest.split_at(1 + random.below(most as u64) as usize);
        pieces.push(Bytes::copy_from_slice(piece));
        rest = behind;
    }
    pieces
}
