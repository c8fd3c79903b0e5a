//! Questions and events of a handler: its state, the end of a session, questions on request; and the cost of its
//! panics.
#![cfg(feature = "tokio")]

use std::time::Duration;

use posthaste_smtp::client;
use posthaste_smtp::driver::{
    AbortCause, Aborted, Client, ClientTimeouts, Handler, IncomingBody, RunningServer, Server, Session, SmtpSessionEnd,
};
use posthaste_smtp::server::Config;
use posthaste_smtp::{Address, Envelope, MailFrom, MessageOutcome, Protocol, RcptTo, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Far longer than any step takes unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// Notes its questions, and panics if the client's name says so.
struct Noting {
    ends: mpsc::UnboundedSender<(Vec<String>, SmtpSessionEnd)>,
    /// The number of the session whose connection hook panics.
    panics_at: u64,
}

fn note(session: &mut Session<Vec<String>>, method: &str) -> Result<(), Reply> {
    session.state.push(method.to_owned());
    let panics = session.helo.as_deref().and_then(|name| name.strip_prefix("panic-"));
    assert_ne!(panics, Some(method), "as the client wished");
    if session.helo.as_deref() == Some(&*format!("refuse-{method}")) {
        Err(Reply::new(550, "5.7.1", "no"))
    } else {
        Ok(())
    }
}

impl Handler for Noting {
    type State = Vec<String>;
    type Transaction = ();

    async fn connect(&self, session: &mut Session<Vec<String>>) -> Result<(), Reply> {
        assert_ne!(session.id, self.panics_at, "one too many");
        note(session, "connect")
    }
    async fn hello(&self, session: &mut Session<Vec<String>>) -> Result<(), Reply> {
        note(session, "hello")
    }
    async fn mail(&self, session: &mut Session<Vec<String>>, _: &mut (), _: &MailFrom) -> Result<(), Reply> {
        note(session, "mail")
    }
    async fn rcpt(
        &self,
        session: &mut Session<Vec<String>>,
        _: &mut (),
        _: &Envelope,
        _: &RcptTo,
    ) -> Result<(), Reply> {
        note(session, "rcpt")
    }
    async fn data(&self, session: &mut Session<Vec<String>>, _: &mut (), _: &Envelope) -> Result<(), Reply> {
        note(session, "data")
    }
    async fn message(
        &self,
        session: &mut Session<Vec<String>>,
        _: (),
        _: Envelope,
        body: &mut IncomingBody<'_>,
    ) -> MessageOutcome {
        let _ = body.chunk().await;
        tokio::task::yield_now().await;
        note(session, "message").map_or_else(MessageOutcome::from, |()| MessageOutcome::accepted("kept"))
    }
    fn aborted(&self, session: &mut Session<Vec<String>>, (): (), aborted: Aborted) {
        let cause = match aborted.cause {
            AbortCause::Command(command) => format!("{command:?}"),
            AbortCause::SessionEnd(end) => format!("{end:?}"),
            other => panic!("{other:?}"),
        };
        session.state.push(format!("abort:{:?}:{cause}", aborted.stage));
        assert_ne!(session.helo.as_deref(), Some("panic-abort"), "as the client wished");
    }
    fn ended(&self, session: Session<Vec<String>>, end: SmtpSessionEnd) {
        // The test may end before its last session.
        let _ = self.ends.send((session.state, end));
    }
}

struct Fixture {
    server: RunningServer,
    ends: mpsc::UnboundedReceiver<(Vec<String>, SmtpSessionEnd)>,
}

async fn start(change: impl FnOnce(&mut Config)) -> Fixture {
    start_with(0, change).await
}

async fn start_with(panics_at: u64, change: impl FnOnce(&mut Config)) -> Fixture {
    let mut config = Config::new("mx.example.org");
    change(&mut config);
    let (ends, received) = mpsc::unbounded_channel();
    let server =
        Server::builder().config(config).listen("127.0.0.1:0").start(Noting { ends, panics_at }).await.unwrap();
    Fixture { server, ends: received }
}

impl Fixture {
    async fn end(&mut self) -> (String, SmtpSessionEnd) {
        let (state, end) = timeout(LONG, self.ends.recv()).await.expect("in time").unwrap();
        (state.join(" "), end)
    }

    async fn dialogue(&self, text: &str) -> Vec<String> {
        dialogue(&self.server, text).await
    }
}

/// Sends all of it, closes the sending side, and returns the codes of the replies.
async fn dialogue(server: &RunningServer, text: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(server.local_addrs()[0]).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = Vec::new();
    timeout(LONG, stream.read_to_end(&mut heard)).await.expect("in time").expect("no reset");
    let text = String::from_utf8(heard).unwrap();
    text.lines().filter(|line| line.as_bytes()[3] == b' ').map(|line| line[..9].trim().to_owned()).collect()
}

fn message(name: &str, octets: usize) -> String {
    let open = format!("EHLO {name}\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n");
    format!("{open}{}\r\n.\r\n", "text\r\n".repeat(octets / 6))
}

#[tokio::test]
async fn a_session_has_a_state_and_an_end() {
    let mut fixture = start(|_| {}).await;
    let twice = format!("{}RSET\r\n{}", message("c.example", 6), &message("c.example", 6));
    fixture.dialogue(&format!("{twice}QUIT\r\n")).await;
    let each = "hello mail rcpt data message";
    assert_eq!(fixture.end().await, (format!("connect {each} {each}"), SmtpSessionEnd::Quit));
    fixture.dialogue("EHLO c.example\r\nMAIL FROM:<a@example.org>\r\n").await;
    let lost = "connect hello mail abort:Mail:Disconnected";
    assert_eq!(fixture.end().await, (lost.into(), SmtpSessionEnd::Disconnected));
    fixture.dialogue("GET / HTTP/1.1\r\n").await;
    assert_eq!(fixture.end().await, ("connect".into(), SmtpSessionEnd::Closed));
    let stream = TcpStream::connect(fixture.server.local_addrs()[0]).await.unwrap();
    stream.readable().await.unwrap();
    assert!(fixture.server.shutdown(LONG).await);
    assert_eq!(fixture.ends.recv().await, Some((vec!["connect".into()], SmtpSessionEnd::ShutDown)));
    assert_eq!(fixture.ends.recv().await, None, "each is told once");
}

#[tokio::test]
async fn a_session_that_says_nothing_times_out() {
    let mut fixture = start(|config| config.limits.timeouts.command = Duration::from_millis(200)).await;
    let _silent = TcpStream::connect(fixture.server.local_addrs()[0]).await.unwrap();
    assert_eq!(fixture.end().await, ("connect".into(), SmtpSessionEnd::TimedOut));
}

/// Never returns from `message`; reports the call, the drop of its future, and the end of the session.
struct Stuck(mpsc::UnboundedSender<&'static str>);

struct Dropped<'a>(&'a Stuck);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.0.send("dropped").unwrap();
    }
}

impl Handler for Stuck {
    type State = ();
    type Transaction = ();

    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }
    async fn message(&self, _: &mut Session, _: (), _: Envelope, _: &mut IncomingBody<'_>) -> MessageOutcome {
        let _dropped = Dropped(self);
        self.0.send("at work").unwrap();
        std::future::pending().await
    }
    fn ended(&self, _: Session, end: SmtpSessionEnd) {
        assert_eq!(end, SmtpSessionEnd::ShutDown);
        self.0.send("ended").unwrap();
    }
}

#[tokio::test]
async fn a_session_that_is_dropped_has_an_end_too() {
    let (events, mut received) = mpsc::unbounded_channel();
    let server = Server::builder().listen("127.0.0.1:0").start(Stuck(events)).await.unwrap();
    let mut stream = TcpStream::connect(server.local_addrs()[0]).await.unwrap();
    stream.write_all(message("c.example", 6).as_bytes()).await.unwrap();
    assert_eq!(timeout(LONG, received.recv()).await.expect("in time"), Some("at work"));
    assert!(!timeout(LONG, server.shutdown(Duration::ZERO)).await.expect("a handler that hangs holds no shutdown"));
    assert_eq!([received.recv().await, received.recv().await], [Some("dropped"), Some("ended")]);
    assert_eq!(received.recv().await, None, "told once");
}

#[tokio::test]
async fn hello_and_data_may_be_refused() {
    let fixture = start(|_| {}).await;
    let refused = fixture.dialogue(&message("refuse-hello", 0)).await;
    assert_eq!(refused[..3], ["220 mx.ex", "550 5.7.1", "503 5.5.1"]);
    let refused = fixture.dialogue("EHLO refuse-data\r\nMAIL FROM:<a@b>\r\nRCPT TO:<b@b>\r\nDATA\r\nQUIT\r\n").await;
    assert_eq!(refused[3..], ["250 2.1.5", "550 5.7.1", "221 2.0.0"]);
}

/// The dialogue after the greeting, with `HI` for the protocol's hello; the events of the handler, and the end of the
/// session.
const DIALOGUES: [(&str, &str, SmtpSessionEnd); 14] = [
    ("HI c\nMAIL\nRSET\nQUIT\n", "hello mail abort:Mail:Reset", SmtpSessionEnd::Quit),
    ("HI c\nMAIL\nRCPT\nHI c\nQUIT\n", "hello mail rcpt abort:Rcpt:Hello hello", SmtpSessionEnd::Quit),
    ("HI c\nMAIL\nRCPT\nQUIT\n", "hello mail rcpt abort:Rcpt:Quit", SmtpSessionEnd::Quit),
    // The second MAIL is refused, and ends nothing (RFC 5321 section 4.1.4).
    ("HI c\nMAIL\nMAIL\nRSET\nRSET\nQUIT\n", "hello mail abort:Mail:Reset", SmtpSessionEnd::Quit),
    ("HI c\nMAIL\nGET / HTTP/1.1\n", "hello mail abort:Mail:Closed", SmtpSessionEnd::Closed),
    ("HI c\nMAIL\nRCPT\n", "hello mail rcpt abort:Rcpt:Disconnected", SmtpSessionEnd::Disconnected),
    ("HI c\nMAIL\nRCPT\nNO", "hello mail rcpt abort:Rcpt:Disconnected", SmtpSessionEnd::Disconnected),
    ("HI refuse-mail\nMAIL\nRSET\nQUIT\n", "hello mail", SmtpSessionEnd::Quit),
    ("HI refuse-rcpt\nMAIL\nRCPT\nDATA\nQUIT\n", "hello mail rcpt abort:Rcpt:Quit", SmtpSessionEnd::Quit),
    ("HI refuse-data\nMAIL\nRCPT\nDATA\nRSET\nQUIT\n", "hello mail rcpt data", SmtpSessionEnd::Quit),
    ("HI refuse-hello\nMAIL\nQUIT\n", "hello", SmtpSessionEnd::Quit),
    // From the first octet of the message on, the body reports it.
    ("HI c\nMAIL\nRCPT\nDATA\nx\n", "hello mail rcpt data message", SmtpSessionEnd::Disconnected),
    ("HI c\nMAIL\nRCPT\nBDAT 1\nxRSET\nQUIT\n", "hello mail rcpt message", SmtpSessionEnd::Quit),
    (
        "HI c\nMAIL\nRCPT\nDATA\nx\n.\nMAIL\nRCPT\nBDAT 1 LAST\nxMAIL\nQUIT\n",
        "hello mail rcpt data message mail rcpt message mail abort:Mail:Quit",
        SmtpSessionEnd::Quit,
    ),
];

#[tokio::test]
async fn each_transaction_has_one_end_in_either_protocol() {
    for protocol in [Protocol::Smtp, Protocol::Lmtp] {
        let mut fixture = start(|config| config.protocol = protocol).await;
        for (said, told, end) in DIALOGUES {
            let hello = if protocol == Protocol::Smtp { "EHLO" } else { "LHLO" };
            let said = said.replace("HI", hello).replace("MAIL", "MAIL FROM:<a@example.org>");
            let said = said.replace("RCPT", "RCPT TO:<b@example.org>").replace('\n', "\r\n");
            fixture.dialogue(&said).await;
            assert_eq!(fixture.end().await, (format!("connect {told}"), end), "{protocol:?}: {said}");
        }
    }
}

#[tokio::test]
async fn a_timeout_or_shutdown_of_the_session_ends_a_transaction() {
    let limit = |config: &mut Config| config.limits.timeouts.command = Duration::from_millis(200);
    let mut fixture = start(limit).await;
    let mut stream = TcpStream::connect(fixture.server.local_addrs()[0]).await.unwrap();
    stream.write_all(b"EHLO c\r\nMAIL FROM:<a@example.org>\r\n").await.unwrap();
    assert_eq!(fixture.end().await, ("connect hello mail abort:Mail:TimedOut".into(), SmtpSessionEnd::TimedOut));
    let mut fixture = start(|_| {}).await;
    let mut stream = TcpStream::connect(fixture.server.local_addrs()[0]).await.unwrap();
    stream.write_all(b"EHLO c\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\n").await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"2.1.5 Recipient OK\r\n") {
        assert_ne!(timeout(LONG, stream.read_buf(&mut heard)).await.expect("in time").unwrap(), 0);
    }
    assert!(!fixture.server.shutdown(Duration::ZERO).await);
    let (state, end) = fixture.ends.recv().await.unwrap();
    assert_eq!(
        (state.join(" ").as_str(), end),
        ("connect hello mail rcpt abort:Rcpt:ShutDown", SmtpSessionEnd::ShutDown)
    );
}

/// Refuses each message as soon as it begins, for all, or for the first of its recipients only.
struct Full;

impl Handler for Full {
    type State = ();
    type Transaction = ();

    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }
    async fn message(
        &self,
        session: &mut Session,
        _: (),
        envelope: Envelope,
        _: &mut IncomingBody<'_>,
    ) -> MessageOutcome {
        let full = Reply::new(452, "4.3.1", "no room");
        match (session.helo.as_deref(), envelope.recipients.len()) {
            (Some("leave"), _) => Reply::new(421, "4.3.2", "leave").into(),
            (_, 1) => full.into(),
            _ => MessageOutcome::Each(vec![full, Reply::ok("kept")]),
        }
    }
}

#[tokio::test]
async fn chunks_behind_a_refusal_are_refused_and_the_session_goes_on() {
    for protocol in [Protocol::Smtp, Protocol::Lmtp] {
        let (hello, one_fits) = match protocol {
            Protocol::Smtp => ("EHLO", vec!["250 2.0.0"]),
            Protocol::Lmtp => ("LHLO", vec!["452 4.3.1", "250 2.0.0"]),
        };
        let config = Config { protocol, ..Config::new("mx.example.org") };
        let server = Server::builder().config(config).listen("127.0.0.1:0").start(Full).await.unwrap();
        let chunks = "BDAT 3\r\nabcBDAT 6\r\nQUIT\r\nBDAT 0 LAST\r\n";
        let open = "MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\n";
        let said =
            |name: &str| format!("{hello} {name}\r\n{open}{chunks}{open}RCPT TO:<c@example.org>\r\n{chunks}QUIT\r\n");
        let yes = ["250 2.1.0", "250 2.1.5"];
        let mut expected = [&yes[..], &["452 4.3.1"; 3], &yes, &["250 2.1.5", "250 2.0.0", "250 2.0.0"]].concat();
        expected.extend(one_fits);
        expected.push("221 2.0.0");
        let codes = dialogue(&server, &said("c.example")).await;
        assert_eq!(codes[2..], expected, "{protocol:?}");
        // A 421 closes the session, so it is sent at the end.
        let codes = dialogue(&server, &said("leave")).await;
        assert_eq!(codes[4..], ["250 2.0.0", "250 2.0.0", "421 4.3.2"], "{protocol:?}");
    }
}

#[tokio::test]
async fn a_panic_costs_its_own_session_only() {
    let mut fixture = start_with(8, |_| {}).await;
    for (method, replies) in [("hello", 1), ("mail", 2), ("rcpt", 3), ("data", 4), ("message", 5)] {
        // Even if the handler had not read all of the message.
        let codes = fixture.dialogue(&format!("{}QUIT\r\n", message(&format!("panic-{method}"), 600_000))).await;
        assert_eq!(codes.len(), replies + 1, "{codes:?}");
        assert_eq!(codes[replies], "451 4.3.0", "{method}");
        let (state, end) = fixture.end().await;
        let told = match method {
            "rcpt" => "connect hello mail rcpt abort:Rcpt:Panicked",
            "data" => "connect hello mail rcpt data abort:Data:Panicked",
            _ => &state,
        };
        assert_eq!((&*state, end), (told, SmtpSessionEnd::Panicked));
        assert!(told.ends_with(method) || told.ends_with(":Panicked"), "{told}");
    }
    let aborts = "EHLO panic-abort\r\nMAIL FROM:<a@example.org>\r\nRSET\r\nNOOP\r\n";
    assert_eq!(fixture.dialogue(aborts).await[3..], ["250 2.0.0", "421 4.3.0"]);
    assert_eq!(fixture.end().await.1, SmtpSessionEnd::Panicked);
    fixture.dialogue("QUIT\r\n").await;
    assert_eq!(fixture.end().await.1, SmtpSessionEnd::Quit);
    assert_eq!(fixture.dialogue("").await, ["421 4.3.0"], "in connect");
    assert_eq!(fixture.end().await, (String::new(), SmtpSessionEnd::Panicked));
    assert_eq!(fixture.dialogue(&message("c.example", 6)).await.last().unwrap(), "250 2.0.0");
    assert!(fixture.server.shutdown(LONG).await);
}

#[tokio::test]
async fn a_panic_in_lmtp_is_told_for_each_recipient() {
    let fixture = start(|config| config.protocol = Protocol::Lmtp).await;
    let rcpts = "RCPT TO:<b@example.org>\r\nRCPT TO:<c@example.org>\r\n";
    let text = format!("LHLO panic-message\r\nMAIL FROM:<a@example.org>\r\n{rcpts}DATA\r\ntext\r\n.\r\nNOOP\r\n");
    assert_eq!(fixture.dialogue(&text).await[5..], ["354 End d", "451 4.3.0", "451 4.3.0"]);
}

/// Gives each of these replies to a command, then closes.
async fn server_that_leaves(replies: &'static [&'static str]) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for reply in replies {
            stream.write_all(reply.as_bytes()).await.unwrap();
            // The whole command: unread input would reset the connection.
            let mut heard = Vec::with_capacity(1 << 10);
            stream.read_buf(&mut heard).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_lost_session_says_where_it_was_lost() {
    use client::Stage;
    let open =
        async |address| Client::connect(address, client::Config::new("c.example"), ClientTimeouts::default()).await;
    for (replies, expected) in [
        (&[][..], "before the greeting: the server closed the connection"),
        (&["220 x\r\n"], "before the reply to EHLO: the server closed the connection"),
    ] {
        let error = open(server_that_leaves(replies).await).await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    // Bound without listening, so that nobody else gets the port.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nobody = held.local_addr().unwrap();
    let error = open(nobody).await.unwrap_err().to_string();
    assert!(error.starts_with("while connecting: Connection refused"), "{error}");
    let all = ["220 x\r\n", "250 x\r\n", "250 x\r\n", "250 x\r\n", "354 x\r\n"];
    let cases = [
        (2, Stage::Mail, "before the reply to MAIL"),
        (3, Stage::Rcpt, "before the reply to RCPT"),
        (4, Stage::Data, "before the reply to DATA"),
        (5, Stage::Verdict, "before the verdict on the message"),
    ];
    for (count, stage, place) in cases {
        let replies: &'static [&'static str] = Vec::leak(all[..count].to_vec());
        let mut client = open(server_that_leaves(replies).await).await.unwrap();
        let address: Address = "a@example.org".parse().unwrap();
        let (mail, rcpts) = (MailFrom::new(address.clone()), vec![RcptTo::new(address)]);
        let outcome = client.send(mail, rcpts, vec!["x\r\n".into()]).await.unwrap();
        let recipient = &outcome.recipients[0];
        assert_eq!(recipient.stage, stage);
        let expected = format!("451 4.4.2 Connection lost {place}: the server closed the connection");
        assert_eq!(recipient.reply.to_string(), expected);
        assert!(!client.is_open());
    }
}
