//! The client against servers that hang, refuse or disconnect within a message.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use posthaste_smtp::client::{self, Transfer};
use posthaste_smtp::driver::{Client, ClientTimeouts, SendError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{LONG, mail, rcpt};

#[tokio::test]
async fn a_client_names_what_became_of_a_lost_message() {
    let dialogue = [("EHLO", "500 what\r\n"), ("HELO", "250 x\r\n"), ("MAIL", "250 x\r\n"), ("RCPT", "250 x\r\n")];
    let address = half_a_server(dialogue, |mut stream| async move {
        stream.read_buf(&mut Vec::new()).await.unwrap();
    })
    .await;
    let mut client =
        Client::connect(address, client::Config::new("c.example"), ClientTimeouts::default()).await.unwrap();
    let outcome = client.send(mail(), vec![rcpt("b")], vec!["x\r\n".into()]).await.unwrap();
    assert_eq!(outcome.recipients[0].reply.code(), 451);
    assert!(!outcome.recipients[0].is_delivered());
    assert!(!client.is_open());
}

#[tokio::test]
async fn a_message_that_is_given_up_half_way_ends_the_session() {
    let address = half_a_server([("EHLO", "250 x\r\n")], |stream| async move {
        let _open = stream;
        std::future::pending().await
    })
    .await;
    let connecting = Client::connect(address, client::Config::new("c.example"), ClientTimeouts::default());
    let mut client = connecting.await.unwrap();
    let sending = client.send(mail(), vec![rcpt("b")], vec!["x\r\n".into()]);
    // It is polled once, which says MAIL.
    timeout(Duration::ZERO, sending).await.expect_err("nobody answers");
    assert!(!client.is_open());
    let again = client.send(mail(), vec![rcpt("b")], vec!["x\r\n".into()]).await;
    assert_eq!(again.expect_err("the session is over"), SendError::Closed);
    client.quit().await.unwrap();
}

#[tokio::test]
async fn a_client_sends_no_more_messages_than_the_server_takes() {
    let dialogue = [
        ("EHLO", "250-x\r\n250 LIMITS MAILMAX=1\r\n"),
        ("MAIL", "250 x\r\n"),
        ("RCPT", "250 x\r\n"),
        ("DATA", "354 x\r\n"),
        ("x\r\n.\r\n", "250 x\r\n"),
        ("QUIT", "221 x\r\n"),
    ];
    let address = half_a_server(dialogue, |_| async {}).await;
    let config = client::Config::new("c.example");
    let mut client = Client::connect(address, config, ClientTimeouts::default()).await.unwrap();
    let outcome = client.send(mail(), vec![rcpt("b")], vec!["x\r\n".into()]).await.unwrap();
    assert!(outcome.recipients[0].is_delivered());
    assert!(!client.is_open());
    let more = client.send(mail(), vec![rcpt("b")], vec!["x\r\n".into()]).await;
    assert_eq!(more.expect_err("it takes one"), SendError::Closed);
    client.quit().await.unwrap();
}

/// The dialogue up to a message's body.
const TO_THE_BODY: [(&str, &str); 4] =
    [("EHLO", "250 x\r\n"), ("MAIL", "250 x\r\n"), ("RCPT", "250 x\r\n"), ("DATA", "354 x\r\n")];

/// Reads each command of the dialogue, gives its reply, and then runs `then`.
async fn half_a_server<F: Future<Output = ()> + Send, const N: usize>(
    dialogue: [(&'static str, &'static str); N],
    then: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"220 x\r\n").await.unwrap();
        let mut heard = Vec::new();
        for (command, reply) in dialogue {
            heard.clear();
            stream.read_buf(&mut heard).await.unwrap();
            assert!(heard.starts_with(command.as_bytes()));
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
        then(stream).await;
    });
    address
}

fn patient(write: Duration) -> ClientTimeouts {
    ClientTimeouts { write, ..ClientTimeouts::default() }
}

#[tokio::test]
async fn a_client_waits_for_each_block_and_not_for_all() {
    const BODY_BYTES: usize = 24 << 20;
    // The clock advances only where this says so: a slow machine must not look like a slow server. While a blocking
    // task runs, a stopped clock does not advance by itself.
    tokio::time::pause();
    let (_clock_stands, moves) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || moves.recv());
    let address = half_a_server(TO_THE_BODY, |mut stream| async move {
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
        let (mut sink, mut read) = (vec![0; 64 << 10], 0);
        while read < BODY_BYTES {
            let before = read >> 20;
            read += stream.read(&mut sink).await.unwrap();
            // A second for each MiB: all of it takes longer than the limit for a block, and no block does.
            if read >> 20 > before {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
        stream.write_all(b"250 x\r\n").await.unwrap();
        let _ = stream.read(&mut sink).await;
    })
    .await;
    let config = client::Config::new("c.example");
    let mut client = Client::connect(address, config, patient(Duration::from_secs(12))).await.unwrap();
    let line = Bytes::from_static(b"sixty-four octets, counted with the line end, as a test needs.\r\n");
    let body = vec![line; BODY_BYTES / 64];
    let outcome = client.send(mail(), vec![rcpt("b")], body).await.unwrap();
    assert!(outcome.recipients[0].is_delivered(), "{outcome:?}");
}

#[tokio::test]
async fn a_client_hears_why_a_server_takes_no_more() {
    let address = half_a_server(TO_THE_BODY, |mut stream| async move {
        stream.write_all(b"552 too much\r\n").await.unwrap();
        std::future::pending().await
    })
    .await;
    let config = client::Config::new("c.example");
    let mut client = Client::connect(address, config, patient(Duration::from_millis(200))).await.unwrap();
    let outcome = client.send(mail(), vec![rcpt("b")], vec![Bytes::from(vec![b'x'; 64 << 20])]).await.unwrap();
    assert_eq!(outcome.recipients[0].reply.code(), 552, "{outcome:?}");
    assert!(!client.is_open(), "whatever came next would be a part of the body");
}

#[tokio::test]
async fn a_client_that_could_not_write_all_awaits_no_verdict() {
    let extended = [("EHLO", "250-x\r\n250-PIPELINING\r\n250 CHUNKING\r\n"), ("MAIL", "250 x\r\n250 x\r\n")];
    let address = half_a_server(extended, |_stream| std::future::pending()).await;
    let config = client::Config { transfer: Transfer::BdatAtOnce, ..client::Config::new("c.example") };
    let mut client = Client::connect(address, config, patient(Duration::from_millis(200))).await.unwrap();
    let sending = client.send(mail(), vec![rcpt("b")], vec![Bytes::from(vec![b'x'; 64 << 20])]);
    // A reply may take ten minutes.
    let outcome = timeout(LONG, sending).await.expect("it gives up").unwrap();
    assert_eq!(outcome.recipients[0].reply.code(), 451, "{outcome:?}");
    assert!(!client.is_open());
}
