//! A server whose handler records what arrives, and the other side of a session.

use std::sync::Arc;
use std::time::Duration;

use posthaste_smtp::driver::{Handler, IncomingBody, RunningServer, Server, ServerBuilder, Session};
use posthaste_smtp::server::Config;
use posthaste_smtp::{
    BodyError, Envelope, ForwardPath, Limits, MailFrom, MessageOutcome, RcptTo, Reply, ReversePath, Timeouts,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

/// Far longer than any step takes unless it hangs.
pub const LONG: Duration = Duration::from_secs(60);

/// Reports the messages that arrive, and waits on request.
pub struct RecordingHandler {
    pub events: mpsc::UnboundedSender<(Session, Envelope, Result<Vec<u8>, BodyError>)>,
    /// Waits after the first piece of a body.
    pub hold: Option<Arc<Notify>>,
    /// Stalls after the body was read.
    pub stall: bool,
}

impl Handler for RecordingHandler {
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

    async fn message(
        &self,
        session: &mut Session,
        _: (),
        envelope: Envelope,
        body: &mut IncomingBody<'_>,
    ) -> MessageOutcome {
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

pub type Events = mpsc::UnboundedReceiver<(Session, Envelope, Result<Vec<u8>, BodyError>)>;

pub async fn start(builder: ServerBuilder) -> (RunningServer, Events) {
    let (events, received) = mpsc::unbounded_channel();
    (builder.start(RecordingHandler { events, hold: None, stall: false }).await.unwrap(), received)
}

pub fn local() -> ServerBuilder {
    limited(Limits::default())
}

pub fn limited(limits: Limits) -> ServerBuilder {
    Server::builder().config(Config { limits, ..Config::new("mx.example.org") }).listen("127.0.0.1:0")
}

pub fn fast(change: impl FnOnce(&mut Timeouts)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits.timeouts);
    limits
}

pub struct Talk {
    pub stream: TcpStream,
}

impl Talk {
    pub async fn to(server: &RunningServer) -> Self {
        Self { stream: TcpStream::connect(server.local_addrs()[0]).await.unwrap() }
    }

    pub async fn say(&mut self, text: &str) -> &mut Self {
        self.stream.write_all(text.as_bytes()).await.unwrap();
        self
    }

    /// Reads to the end of a last line that begins with `code`.
    pub async fn hear(&mut self, code: &str) -> String {
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

    pub async fn hear_close(&mut self) {
        let mut rest = Vec::new();
        timeout(LONG, self.stream.read_to_end(&mut rest)).await.expect("closed in time").expect("no reset");
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }

    pub async fn open(&mut self) {
        self.hear("220").await;
        self.say("EHLO client.example\r\n").await.hear("250").await;
        self.say("MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n").await.hear("354").await;
    }
}

pub fn mail() -> MailFrom {
    MailFrom::new(ReversePath::parse("<a@example.org>").unwrap())
}

pub fn rcpt(name: &str) -> RcptTo {
    RcptTo::new(ForwardPath::parse(&format!("<{name}@example.org>")).unwrap())
}
