//! Messages, and what a handler does with them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use posthaste_smtp::client::{self, Transfer};
use posthaste_smtp::driver::{Client, ClientTimeouts, Handler, IncomingBody, Peer, Server, Session};
use posthaste_smtp::server::Config;
use posthaste_smtp::{BodyError, Envelope, MessageOutcome, Protocol, RcptTo, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::{LONG, RecordingHandler, Talk, local, mail, rcpt, start};

#[tokio::test]
async fn a_message_arrives_as_it_was_sent() {
    let (server, mut events) = start(local()).await;
    for transfer in [Transfer::Data, Transfer::Bdat, Transfer::BdatAtOnce] {
        let config = client::Config { transfer, ..client::Config::new("client.example") };
        let mut client = Client::connect(server.local_addrs()[0], config, ClientTimeouts::default()).await.unwrap();
        for length in [0, 1, 100, 10_000, 1_000_000] {
            let line = Bytes::from_static(b".a line that starts with a dot and is otherwise harmless\r\n");
            let body: Vec<Bytes> = std::iter::once(Bytes::from_static(b"Subject: x\r\n\r\n"))
                .chain(std::iter::repeat_n(line, length / 58))
                .collect();
            let outcome = client.send(mail(), vec![rcpt("unknown"), rcpt("b")], body.clone()).await.unwrap();
            assert_eq!(outcome.recipients[0].reply.code(), 550);
            assert!(outcome.recipients[1].is_delivered(), "{outcome:?}");
            let (session, envelope, got) = events.recv().await.unwrap();
            assert_eq!(got.unwrap(), body.concat());
            assert_eq!(envelope.recipients, [rcpt("b")]);
            assert_eq!(session.helo.as_deref(), Some("client.example"));
            assert_eq!(session.with_keyword(false), "ESMTP");
        }
        client.quit().await.unwrap();
    }
    assert!(server.shutdown(LONG).await);
}

#[tokio::test]
async fn lmtp_runs_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lmtp");
    // A name left by a server that died.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let builder = || Server::builder().protocol(Protocol::Lmtp).listen_unix(&path);
    let (server, mut events) = start(builder()).await;
    let taken =
        builder().start(RecordingHandler { events: mpsc::unbounded_channel().0, hold: None, stall: false }).await;
    assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AddrInUse, "a living server keeps its socket");
    let config = client::Config { protocol: Protocol::Lmtp, ..client::Config::new("client.example") };
    let mut client = Client::connect_unix(&path, config, ClientTimeouts::default()).await.unwrap();
    let rcpts = vec![rcpt("b"), rcpt("unknown"), rcpt("c")];
    let outcome = client.send(mail(), rcpts, vec!["x\r\n".into()]).await.unwrap();
    let delivered: Vec<_> = outcome.recipients.iter().map(|r| r.is_delivered()).collect();
    assert_eq!(delivered, [true, false, true]);
    let (session, _, body) = events.recv().await.unwrap();
    assert_eq!((session.peer, body.unwrap()), (Peer::Unix, b"x\r\n".to_vec()));
    client.quit().await.unwrap();
    assert!(server.shutdown(LONG).await);
    assert!(UnixStream::connect(&path).await.is_err());
    assert!(!path.exists());
}

#[tokio::test]
async fn what_comes_behind_quit_costs_no_reply() {
    let (server, _events) = start(local()).await;
    let mut talk = Talk::to(&server).await;
    talk.hear("220").await;
    // More than one read, so that some is unread when the session ends: closing then would reset the connection.
    let behind = "x".repeat(1 << 20);
    talk.say(&format!("EHLO client.example\r\nQUIT\r\n{behind}")).await.hear("221").await;
    talk.hear_close().await;
    drop(talk);
    assert!(server.shutdown(LONG).await);
}

#[tokio::test]
async fn a_lost_connection_is_an_error_of_the_body() {
    let (server, mut events) = start(local()).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    talk.say("half a mess").await;
    drop(talk);
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::Disconnected));
}

#[tokio::test]
async fn a_refused_message_is_an_error_of_the_body_alone() {
    let (server, mut events) = start(local()).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    let reply = talk.say("a: b\r\n\r\nbare\nnewline\r\n.\r\n").await.hear("550").await;
    assert!(reply.starts_with("550 5.6.11 "), "{reply}");
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::BareNewline));
    talk.say("NOOP\r\n").await.hear("250").await;
}

#[tokio::test]
async fn a_handler_that_is_impatient_repeats_no_reply() {
    const CHUNKS: usize = 10_000;
    struct Impatient(mpsc::UnboundedSender<()>);
    impl Handler for Impatient {
        type State = ();
        type Transaction = ();

        async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }
        async fn message(&self, _: &mut Session, _: (), _: Envelope, body: &mut IncomingBody<'_>) -> MessageOutcome {
            let mut octets = 0;
            loop {
                match timeout(Duration::from_millis(1), body.chunk()).await {
                    Err(_) => self.0.send(()).unwrap(),
                    Ok(Some(chunk)) => octets += chunk.unwrap().len(),
                    Ok(None) => return MessageOutcome::accepted(format!("{octets} in all")),
                }
            }
        }
    }
    // Small buffers, so that the kernel takes only a part of the output.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(4096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap().into_std().unwrap();
    let (given_up, mut times) = mpsc::unbounded_channel();
    let builder = Server::builder().config(Config::new("mx.example.org")).listener(listener);
    let server = builder.start(Impatient(given_up)).await.unwrap();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut talk = Talk { stream: socket.connect(server.local_addrs()[0]).await.unwrap() };
    talk.say("EHLO client\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\n").await.hear("250").await;
    let (mut replies, mut commands) = talk.stream.into_split();
    let writing = tokio::spawn(async move {
        commands.write_all(&b"BDAT 1\r\nx".repeat(CHUNKS)).await.unwrap();
        commands.write_all(b"BDAT 0 LAST\r\nQUIT\r\n").await.unwrap();
        commands
    });
    for _ in 0..20 {
        timeout(LONG, times.recv()).await.expect("the handler gives up").unwrap();
    }
    let mut heard = String::new();
    timeout(LONG, replies.read_to_string(&mut heard)).await.expect("to the end").unwrap();
    writing.await.unwrap();
    // Earlier replies may have come with the reply to EHLO.
    let heard = heard.trim_start_matches("250 2.1.0 Sender OK\r\n").trim_start_matches("250 2.1.5 Recipient OK\r\n");
    let rest = heard.trim_start_matches("250 2.0.0 1 octets received\r\n");
    assert_eq!(rest, format!("250 2.0.0 {CHUNKS} in all\r\n221 2.0.0 mx.example.org Bye\r\n"));
    assert_eq!((heard.len() - rest.len()) / "250 2.0.0 1 octets received\r\n".len(), CHUNKS);
}

#[tokio::test]
async fn replies_do_not_wait_for_the_handler() {
    struct Stuck;
    impl Handler for Stuck {
        type State = ();
        type Transaction = ();

        async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }
        async fn message(&self, _: &mut Session, _: (), _: Envelope, _: &mut IncomingBody<'_>) -> MessageOutcome {
            std::future::pending().await
        }
    }
    let server = local().start(Stuck).await.unwrap();
    let mut talk = Talk::to(&server).await;
    talk.open().await;
}

#[tokio::test]
async fn what_is_remembered_ends_with_the_transaction() {
    /// Counts the live ones.
    struct Remembered(Arc<AtomicUsize>);
    impl Default for Remembered {
        fn default() -> Self {
            ALIVE.with(|alive| alive.fetch_add(1, Relaxed));
            Self(ALIVE.with(Arc::clone))
        }
    }
    impl Drop for Remembered {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
        }
    }
    std::thread_local!(static ALIVE: Arc<AtomicUsize> = Arc::default());
    struct Forgetful;
    impl Handler for Forgetful {
        type State = ();
        type Transaction = Remembered;

        async fn rcpt(&self, _: &mut Session, _: &mut Remembered, _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }
        async fn message(
            &self,
            _: &mut Session,
            one: Remembered,
            _: Envelope,
            body: &mut IncomingBody<'_>,
        ) -> MessageOutcome {
            while let Some(Ok(_)) = body.chunk().await {}
            MessageOutcome::accepted(format!("{} alive", one.0.load(Relaxed)))
        }
    }
    let server = local().start(Forgetful).await.unwrap();
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    assert!(talk.say("x\r\n.\r\n").await.hear("250").await.contains("1 alive"));
    for end in ["RSET", "EHLO client.example"] {
        talk.say("MAIL FROM:<a@example.org>\r\n").await.hear("250").await;
        assert_eq!(ALIVE.with(|alive| alive.load(Relaxed)), 1);
        talk.say(&format!("{end}\r\n")).await.hear("250").await;
        assert_eq!(ALIVE.with(|alive| alive.load(Relaxed)), 0, "after {end}");
    }
}
