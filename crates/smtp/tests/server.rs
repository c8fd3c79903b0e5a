//! The server on real sockets: limits on connections, back-pressure, time, shutdown.
#![cfg(feature = "tokio")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use posthaste_smtp::client::{self, Transfer};
use posthaste_smtp::driver::{
    Body, Client, ClientTimeouts, Handler, Peer, RunningServer, Server, ServerBuilder, Session,
};
use posthaste_smtp::server::Config;
use posthaste_smtp::{
    BodyError, Envelope, ForwardPath, Limits, MailFrom, MessageOutcome, Protocol, RcptTo, Reply, ReversePath, Timeouts,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

/// Nothing here takes longer unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// Tells what arrived, and waits where it is told to.
struct Recorder {
    events: mpsc::UnboundedSender<(Session, Envelope, Result<Vec<u8>, BodyError>)>,
    /// After the first piece of a body.
    hold: Option<Arc<Notify>>,
    /// After the body was read.
    stall: bool,
}

impl Handler for Recorder {
    type State = ();
    type Transaction = ();

    async fn connect(&self, session: &mut Session) -> Result<(), Reply> {
        assert!(session.peer.ip().is_none_or(|ip| ip.is_loopback()));
        Ok(())
    }

    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, rcpt: &RcptTo) -> Result<(), Reply> {
        match &rcpt.forward_path {
            ForwardPath::Address(a) if a.local_part() == "unknown" => Err(Reply::new(550, "5.1.1", "unknown")),
            _ => Ok(()),
        }
    }

    async fn message(&self, session: &mut Session, _: (), envelope: Envelope, body: &mut Body<'_>) -> MessageOutcome {
        let mut hold = self.hold.as_ref();
        let mut whole = Ok(Vec::new());
        while let (Ok(bytes), Some(chunk)) = (&mut whole, body.chunk().await) {
            match chunk {
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(error) => whole = Err(error),
            }
            if let Some(hold) = hold.take() {
                hold.notified().await;
            }
        }
        self.events.send((session.clone(), envelope, whole)).unwrap();
        if self.stall {
            std::future::pending::<()>().await;
        }
        MessageOutcome::accepted("kept")
    }
}

type Events = mpsc::UnboundedReceiver<(Session, Envelope, Result<Vec<u8>, BodyError>)>;

async fn start(builder: ServerBuilder) -> (RunningServer, Events) {
    let (events, received) = mpsc::unbounded_channel();
    (builder.start(Recorder { events, hold: None, stall: false }).await.unwrap(), received)
}

fn local() -> ServerBuilder {
    limited(Limits::default())
}

fn limited(limits: Limits) -> ServerBuilder {
    Server::builder().config(Config { limits, ..Config::new("mx.example.org") }).listen("127.0.0.1:0")
}

fn fast(change: impl FnOnce(&mut Timeouts)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits.timeouts);
    limits
}

struct Talk {
    stream: TcpStream,
}

impl Talk {
    async fn to(server: &RunningServer) -> Self {
        Self { stream: TcpStream::connect(server.local_addrs()[0]).await.unwrap() }
    }

    async fn say(&mut self, text: &str) -> &mut Self {
        self.stream.write_all(text.as_bytes()).await.unwrap();
        self
    }

    /// Reads to the end of a last line that begins with `code`.
    async fn hear(&mut self, code: &str) -> String {
        let mut heard = Vec::new();
        let ends = |heard: &[u8]| {
            let text = String::from_utf8_lossy(heard);
            text.ends_with("\r\n") && text.lines().last().is_some_and(|line| line.starts_with(&format!("{code} ")))
        };
        while !ends(&heard) {
            let reading = timeout(LONG, self.stream.read_buf(&mut heard)).await;
            let Ok(read) = reading else { panic!("no {code} in time, only {:?}", String::from_utf8_lossy(&heard)) };
            let read = read.unwrap();
            assert_ne!(read, 0, "closed instead of {code}: {:?}", String::from_utf8_lossy(&heard));
        }
        String::from_utf8(heard).unwrap()
    }

    async fn hear_close(&mut self) {
        let mut rest = Vec::new();
        timeout(LONG, self.stream.read_to_end(&mut rest)).await.expect("closed in time").expect("no reset");
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }

    async fn open(&mut self) {
        self.hear("220").await;
        self.say("EHLO client.example\r\n").await.hear("250").await;
        self.say("MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n").await.hear("354").await;
    }
}

fn mail() -> MailFrom {
    MailFrom::new(ReversePath::parse("<a@example.org>").unwrap())
}

fn rcpt(name: &str) -> RcptTo {
    RcptTo::new(ForwardPath::parse(&format!("<{name}@example.org>")).unwrap())
}

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
    // A name left behind by a server that died.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let builder = || Server::builder().protocol(Protocol::Lmtp).listen_unix(&path);
    let (server, mut events) = start(builder()).await;
    let taken = builder().start(Recorder { events: mpsc::unbounded_channel().0, hold: None, stall: false }).await;
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
    // More than is read at once, so that some of it is unread when the session ends: closing then would reset the connection.
    let behind = "x".repeat(1 << 20);
    talk.say(&format!("EHLO client.example\r\nQUIT\r\n{behind}")).await.hear("221").await;
    talk.hear_close().await;
    drop(talk);
    assert!(server.shutdown(LONG).await);
}

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
        // What a client says meanwhile must not reset the connection before it has read why.
        outside.say("EHLO client.example\r\n").await;
        assert!(outside.hear("421").await.starts_with("421 4.7.0 "));
        outside.hear_close().await;
    }
    // Those inside are served, and a place that comes free is given out again.
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
    let handler = Recorder { events, hold: Some(Arc::clone(&hold)), stall: false };
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
async fn a_lost_connection_is_an_error_of_the_body() {
    let (server, mut events) = start(local()).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    talk.say("half a mess").await;
    drop(talk);
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::Disconnected));
}

#[tokio::test]
async fn a_refused_message_is_an_error_of_the_body_and_of_nothing_else() {
    let (server, mut events) = start(local()).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    let reply = talk.say("a: b\r\n\r\nbare\nnewline\r\n.\r\n").await.hear("550").await;
    assert!(reply.starts_with("550 5.6.11 "), "{reply}");
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::BareNewline));
    talk.say("NOOP\r\n").await.hear("250").await;
}

#[tokio::test]
async fn silence_and_trickle_end_a_session() {
    let limits = fast(|t| t.command = Duration::from_millis(200));
    let (server, _events) = start(limited(limits)).await;
    let mut silent = Talk::to(&server).await;
    silent.hear("220").await;
    assert!(silent.hear("421").await.starts_with("421 4.4.2 "));
    silent.hear_close().await;
    let mut trickle = Talk::to(&server).await;
    trickle.hear("220").await;
    let mut octets = 0;
    // Octets that end no line do not buy time.
    while timeout(Duration::from_millis(20), trickle.stream.readable()).await.is_err() {
        trickle.say("x").await;
        octets += 1;
        assert!(octets < 500, "a trickle holds the session");
    }
    trickle.hear("421").await;
}

#[tokio::test]
async fn silence_within_a_body_ends_it() {
    let limits = fast(|t| t.body_read = Duration::from_millis(100));
    let (server, mut events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    talk.say("half a message").await.hear("421").await;
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::TimedOut));
}

#[tokio::test]
async fn a_refused_chunk_has_the_time_of_a_body() {
    let (server, mut events) = start(local()).await;
    let mut talk = Talk::to(&server).await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    // Nobody asked for it, and its octets come in a packet of their own.
    talk.say("BDAT 6 LAST\r\n").await;
    assert!(timeout(Duration::from_millis(50), talk.stream.readable()).await.is_err(), "answered before it came");
    assert!(talk.say("QUIT\r\n").await.hear("503").await.starts_with("503 5.5.1 "));
    talk.say("MAIL FROM:<a@example.org>\r\nRCPT TO:<unknown@example.org>\r\nBDAT 4 LAST\r\n").await.hear("550").await;
    assert!(timeout(Duration::from_millis(50), talk.stream.readable()).await.is_err(), "answered before it came");
    assert!(talk.say("x\r\n\n").await.hear("554").await.starts_with("554 5.5.1 "));
    talk.say("QUIT\r\n").await.hear("221").await;
    assert!(server.shutdown(LONG).await);
    assert!(events.recv().await.is_none());
}

#[tokio::test]
async fn a_refused_chunk_cannot_be_spun_out() {
    let limits = fast(|t| t.body_total = Duration::from_millis(200));
    let (server, _events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.hear("220").await;
    talk.say("BDAT 100000 LAST\r\n").await;
    let mut octets = 0;
    while timeout(Duration::from_millis(20), talk.stream.readable()).await.is_err() {
        talk.say("x").await;
        octets += 1;
        assert!(octets < 500, "a trickle holds the session");
    }
    assert!(talk.hear("421").await.starts_with("421 4.4.2 "));
}

#[tokio::test]
async fn a_message_in_chunks_cannot_be_spun_out() {
    let limits = fast(|t| t.body_total = Duration::from_millis(200));
    let (server, mut events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\n").await.hear("250").await;
    talk.say("BDAT 1\r\nx").await;
    // The time for a command has not passed, the time for the message has.
    assert!(talk.hear("421").await.contains("421 4.4.2 "));
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::TimedOut));
}

#[tokio::test]
async fn an_announcement_alone_takes_no_memory() {
    /// Tells of what the connection would take before it reads, and of what it keeps while nothing comes.
    struct Frugal(mpsc::UnboundedSender<(&'static str, usize)>);

    impl Handler for Frugal {
        type State = ();
        type Transaction = ();

        async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }

        async fn message(&self, _: &mut Session, _: (), _: Envelope, body: &mut Body<'_>) -> MessageOutcome {
            loop {
                match body.at_hand().await {
                    Some(Some(Ok(piece))) => self.0.send(("came", piece.len())).unwrap(),
                    Some(_) => return MessageOutcome::accepted("read"),
                    None => {
                        if body.readable(|held| self.0.send(("keeps", held)).unwrap()).await {
                            self.0.send(("takes", body.growth_bytes())).unwrap();
                        }
                        body.read().await;
                    }
                }
            }
        }
    }
    for begin in ["BDAT 250000 LAST\r\n", "DATA\r\n"] {
        let (tell, mut told) = mpsc::unbounded_channel();
        let server = local().start(Frugal(tell)).await.unwrap();
        let mut talk = Talk::to(&server).await;
        talk.hear("220").await;
        talk.say("EHLO client.example\r\nMAIL FROM:<a@example.org> SIZE=250000\r\nRCPT TO:<b@example.org>\r\n").await;
        talk.hear("250 2.1.5").await;
        talk.say(begin).await;
        // The first wait; with nothing held, an octet comes, and the wait behind it holds nothing either.
        assert!(matches!(told.recv().await, Some(("keeps", 0..64))));
        talk.say("xxxxxxxx").await;
        let mut events = Vec::new();
        while events.last().is_none_or(|(what, _)| *what != "keeps") || !events.iter().any(|(what, _)| *what == "came")
        {
            events.push(timeout(LONG, told.recv()).await.expect("it goes on").unwrap());
        }
        for (what, octets) in events {
            let most = match what {
                "takes" => 64 << 10,
                _ => 64,
            };
            assert!(octets <= most, "{begin}: {what} {octets}");
        }
    }
}

#[tokio::test]
async fn times_beyond_all_clocks_are_taken_for_long_ones() {
    let limits = Limits {
        timeouts: Timeouts {
            command: Duration::MAX,
            body_read: Duration::MAX,
            body_total: Duration::MAX,
            write: Duration::MAX,
            linger: Duration::MAX,
        },
        ..Limits::default()
    };
    let (server, _events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    talk.say("text\r\n.\r\n").await.hear("250").await;
}

#[tokio::test]
async fn a_client_that_takes_no_replies_is_given_up() {
    let limits = Limits { idle_commands: u32::MAX, ..fast(|t| t.write = Duration::from_millis(200)) };
    let (server, _events) = start(limited(limits)).await;
    let mut deaf = Talk::to(&server).await;
    let commands = b"HELP\r\n".repeat(1000);
    let pouring = async {
        let mut sent = 0;
        while let Ok(written) = deaf.stream.write(&commands[sent % 6..]).await {
            sent += written;
        }
    };
    // When it is given up, its connection is reset, as nobody will read what it still sends.
    timeout(LONG, pouring).await.expect("given up in time");
    while server.connections() > 0 {
        tokio::task::yield_now().await;
    }
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
        async fn message(&self, _: &mut Session, _: (), _: Envelope, body: &mut Body<'_>) -> MessageOutcome {
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
    // Small buffers, so that the kernel takes a part of what is written.
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
    // What stands before these may have been heard with the reply to EHLO.
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
        async fn message(&self, _: &mut Session, _: (), _: Envelope, _: &mut Body<'_>) -> MessageOutcome {
            std::future::pending().await
        }
    }
    let server = local().start(Stuck).await.unwrap();
    let mut talk = Talk::to(&server).await;
    talk.open().await;
}

#[tokio::test]
async fn shutdown_ends_idle_sessions_at_once_and_open_transactions_when_they_are_done() {
    let (server, mut events) = start(local()).await;
    let address = server.local_addrs()[0];
    let mut idle = Talk::to(&server).await;
    idle.hear("220").await;
    let mut busy = Talk::to(&server).await;
    busy.open().await;
    let shutdown = tokio::spawn(server.shutdown(LONG));
    assert!(idle.hear("421").await.starts_with("421 4.3.2 "));
    idle.hear_close().await;
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    busy.say("text\r\n.\r\n").await.hear("421").await;
    busy.hear_close().await;
    assert_eq!(events.recv().await.unwrap().2.unwrap(), b"text\r\n");
    assert!(shutdown.await.unwrap());
}

#[tokio::test]
async fn no_transaction_begins_while_the_server_drains() {
    let hold = Arc::new(Notify::new());
    let (events, mut received) = mpsc::unbounded_channel();
    let server = local().start(Recorder { events, hold: Some(Arc::clone(&hold)), stall: false }).await.unwrap();
    let address = server.local_addrs()[0];
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    // The next message is in the same packet, so that the server never waits for it.
    talk.say("one\r\n.\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nBDAT 3 LAST\r\ntwo").await;
    let shutdown = tokio::spawn(server.shutdown(LONG));
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    hold.notify_one();
    let heard = talk.hear("421").await;
    assert!(heard.starts_with("250 ") && heard.contains("\r\n421 4.3.2 "), "{heard}");
    assert_eq!(received.recv().await.unwrap().2.unwrap(), b"one\r\n");
    assert!(shutdown.await.unwrap());
    assert!(received.recv().await.is_none());
}

#[tokio::test]
async fn what_is_remembered_ends_with_the_transaction() {
    /// Counts those that live.
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
        async fn message(&self, _: &mut Session, one: Remembered, _: Envelope, body: &mut Body<'_>) -> MessageOutcome {
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

#[tokio::test]
async fn ipv4_and_ipv6_are_listened_on_side_by_side() {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        eprintln!("left out, there is no IPv6 here: {error}");
        return;
    }
    // A port that is free in both; somebody else may take it in between, so a few are tried.
    for _ in 0..20 {
        let port = std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let builder = Server::builder().listen(format!("[::]:{port}")).listen(format!("0.0.0.0:{port}"));
        let (events, _received) = mpsc::unbounded_channel();
        let Ok(server) = builder.start(Recorder { events, hold: None, stall: false }).await else { continue };
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
    // The giver's own choice; `ss` and this table tell the limit of a listening socket nowhere but in the queue itself.
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
async fn a_server_that_is_dropped_serves_on() {
    let (server, _events) = start(local()).await;
    let address = server.local_addrs()[0];
    drop(server);
    // Long enough for every task to have seen it.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let mut talk = Talk { stream: TcpStream::connect(address).await.unwrap() };
    talk.open().await;
    talk.say("text\r\n.\r\n").await.hear("250").await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let (events, mut received) = mpsc::unbounded_channel();
    let server = local().start(Recorder { events, hold: None, stall: true }).await.unwrap();
    let mut unfinished = Talk::to(&server).await;
    unfinished.open().await;
    let mut stalled = Talk::to(&server).await;
    stalled.open().await;
    stalled.say("text\r\n.\r\n").await;
    received.recv().await.unwrap().2.unwrap();
    assert!(!timeout(LONG, server.shutdown(Duration::from_millis(50))).await.expect("ends"));
    assert_eq!(received.recv().await.unwrap().2, Err(BodyError::ShuttingDown));
    // Nothing was promised: a handler that was dropped never made a reply.
    stalled.hear_close().await;
}

#[tokio::test]
async fn the_backlog_is_what_the_kernel_grants() {
    let (server, _events) = start(local().max_connections(usize::MAX)).await;
    let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    assert_eq!(server.backlog().granted.to_string(), somaxconn.trim());
    // However many there may be, 4096 that wait are enough.
    let is_less: bool = somaxconn.trim().parse::<u32>().unwrap() < 4096;
    assert_eq!(server.backlog().is_limited_by_somaxconn(), is_less);
    let (server, _events) = start(local().max_connections(1)).await;
    assert!(!server.backlog().is_limited_by_somaxconn());
}

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

/// Takes one message to where its body begins.
const TO_THE_BODY: [(&str, &str); 4] =
    [("EHLO", "250 x\r\n"), ("MAIL", "250 x\r\n"), ("RCPT", "250 x\r\n"), ("DATA", "354 x\r\n")];

/// Hears each command of the dialogue, gives its reply, and then does what `then` does.
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
    // The clock goes on where this says so and nowhere else, so that a slow machine is not taken for a slow server. While a blocking
    // task runs, a clock that was stopped is not moved on by itself.
    tokio::time::pause();
    let (_clock_stands, moves) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || moves.recv());
    let address = half_a_server(TO_THE_BODY, |mut stream| async move {
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
        let (mut sink, mut read) = (vec![0; 64 << 10], 0);
        while read < BODY_BYTES {
            let before = read >> 20;
            read += stream.read(&mut sink).await.unwrap();
            // A second for each MiB: all take longer than a block may, and none does.
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
async fn a_client_that_could_not_write_all_does_not_wait_for_a_verdict() {
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
