//! A scripted server on the other end of a socket pair, and messages for it. The clock is paused: it moves only when
//! all tasks wait.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::Bytes;
use posthaste_net::Stream;
use posthaste_relay::session::{
    OutgoingMessage, OutgoingSession, RecipientFate, RunEnd, SessionOpenError, SessionSettings, Traffic,
};
use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// The command that the server answers. `Dot` is the end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Greeting,
    Ehlo,
    StartTls,
    Auth,
    Rset,
    Mail,
    Rcpt,
    Data,
    Dot,
    Quit,
}

/// The server's action instead of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    Say(String),
    Close,
    Silence,
}

/// A message that the server had completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    pub recipients: Vec<String>,
    pub body: Vec<u8>,
    /// Recipients with a complete 2yz reply to it.
    pub acknowledged: usize,
}

pub struct Script {
    pub extensions: Vec<&'static str>,
    /// Unusual replies: the kind, its number from 0, and the act.
    pub odd: Vec<(At, usize, Act)>,
    /// Closes after this many octets were read.
    pub reads: usize,
    /// Closes after this many octets were written.
    pub writes: usize,
}

impl Default for Script {
    fn default() -> Self {
        Self { extensions: vec!["PIPELINING"], odd: Vec::new(), reads: usize::MAX, writes: usize::MAX }
    }
}

/// Commands that the server received.
#[derive(Debug, Default)]
pub struct Seen {
    pub kept: Vec<StoredMessage>,
    pub lines: Vec<String>,
    pub read: usize,
    pub written: usize,
    /// The commands of each read.
    pub reads: Vec<Vec<u8>>,
    counts: Vec<At>,
}

impl Seen {
    fn is_lmtp(&self) -> bool {
        self.lines.first().is_some_and(|line| line.starts_with("LHLO"))
    }
}

impl Script {
    pub fn odd(at: At, number: usize, act: Act) -> Self {
        Self { odd: vec![(at, number, act)], ..Self::default() }
    }

    /// Serves the other end.
    pub fn serve(self) -> (Stream, JoinHandle<Seen>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Stream::Unix(ours), tokio::spawn(self.over(Stream::Unix(theirs))))
    }

    pub async fn over(self, mut stream: Stream) -> Seen {
        let mut seen = Seen::default();
        self.talk(&mut stream, &mut seen, true).await;
        seen
    }

    /// Talks until the connection is over.
    pub async fn talk(&self, stream: &mut Stream, seen: &mut Seen, greet: bool) -> Option<()> {
        let mut input = Vec::new();
        if greet {
            self.answer(At::Greeting, "220 mx\r\n", stream, seen).await?;
        }
        let mut recipients = Vec::new();
        let mut has_mail = false;
        let mut in_data = false;
        let mut chunk = None;
        loop {
            let end: &[u8] = if in_data { b"\r\n.\r\n" } else { b"\r\n" };
            // An empty message has no line end before its dot.
            let found = match chunk {
                Some(size) => (input.len() >= size).then_some((size, size)),
                None if in_data && input.starts_with(b".\r\n") => Some((0, 3)),
                None => input.windows(end.len()).position(|window| window == end).map(|at| (at, at + end.len())),
            };
            let Some((at, after)) = found else {
                let mut part = vec![0; (self.reads - seen.read).min(4096)];
                let count = if part.is_empty() { 0 } else { stream.read(&mut part).await.unwrap_or(0) };
                if count == 0 {
                    return None;
                }
                seen.read += count;
                seen.reads.push(part[..count].to_vec());
                input.extend_from_slice(&part[..count]);
                continue;
            };
            let line: Vec<u8> = input.drain(..after).collect();
            if in_data || chunk.is_some() {
                let body = if chunk.take().is_some() { line } else { unstuffed(&line[..at]) };
                (in_data, has_mail) = (false, false);
                let recipients = std::mem::take(&mut recipients);
                let replies = if seen.is_lmtp() { recipients.len() } else { 1 };
                seen.kept.push(StoredMessage { recipients, body, acknowledged: 0 });
                self.answer(At::Dot, &"250 kept\r\n".repeat(replies), stream, seen).await?;
                continue;
            }
            let line = String::from_utf8(line[..at].to_vec()).unwrap();
            seen.lines.push(line.clone());
            match line.split([' ', ':']).next().unwrap() {
                "EHLO" | "LHLO" | "HELO" => {
                    let lines: String = self.extensions.iter().map(|name| format!("250-{name}\r\n")).collect();
                    self.answer(At::Ehlo, &format!("250-mx\r\n{lines}250 HELP\r\n"), stream, seen).await?;
                }
                "MAIL" => has_mail = self.answer(At::Mail, "250 ok\r\n", stream, seen).await?,
                "RCPT" => {
                    let usual = if has_mail { "250 ok\r\n" } else { "503 no sender\r\n" };
                    if self.answer(At::Rcpt, usual, stream, seen).await? {
                        recipients.push(line);
                    }
                }
                "DATA" if recipients.is_empty() => drop(self.answer(At::Data, "503 nobody\r\n", stream, seen).await?),
                "DATA" => in_data = !self.answer(At::Data, "354 go\r\n", stream, seen).await? && self.was_354(seen),
                "BDAT" => {
                    let size = line.strip_prefix("BDAT ").and_then(|rest| rest.strip_suffix(" LAST")).unwrap();
                    chunk = Some(size.parse().unwrap());
                }
                "RSET" => {
                    recipients.clear();
                    self.answer(At::Rset, "250 ok\r\n", stream, seen).await?;
                }
                "STARTTLS" => {
                    let go = self.answer(At::StartTls, "220 go\r\n", stream, seen).await?;
                    if go {
                        return Some(());
                    }
                }
                "AUTH" => drop(self.answer(At::Auth, "235 ok\r\n", stream, seen).await?),
                "QUIT" => {
                    self.answer(At::Quit, "221 bye\r\n", stream, seen).await?;
                    return None;
                }
                other => panic!("{other}: {line}"),
            }
        }
    }

    fn was_354(&self, seen: &Seen) -> bool {
        let number = seen.counts.iter().filter(|at| **at == At::Data).count() - 1;
        self.act(At::Data, number).is_none_or(|act| matches!(act, Act::Say(said) if said.starts_with("354")))
    }

    fn act(&self, at: At, number: usize) -> Option<&Act> {
        self.odd.iter().find(|odd| (odd.0, odd.1) == (at, number)).map(|odd| &odd.2)
    }

    /// Answers; returns true for a positive reply. `None`: the connection is over.
    async fn answer(&self, at: At, usual: &str, stream: &mut Stream, seen: &mut Seen) -> Option<bool> {
        let number = seen.counts.iter().filter(|before| **before == at).count();
        seen.counts.push(at);
        let said = match self.act(at, number) {
            None => usual,
            Some(Act::Say(said)) => said,
            Some(Act::Close) => return None,
            Some(Act::Silence) => {
                // Until the client closes.
                while stream.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {}
                return None;
            }
        };
        let octets = &said.as_bytes()[..said.len().min(self.writes - seen.written)];
        seen.written += octets.len();
        stream.write_all(octets).await.ok()?;
        if at == At::Dot {
            let said = octets.split_inclusive(|octet| *octet == b'\n');
            let positive = said.filter(|line| line.starts_with(b"2") && line.ends_with(b"\n")).count();
            let is_lmtp = seen.is_lmtp();
            let kept = seen.kept.last_mut().unwrap();
            kept.acknowledged = if is_lmtp { positive } else { positive * kept.recipients.len() };
        }
        if octets.len() < said.len() || seen.written == self.writes || said.starts_with("421") {
            return None;
        }
        Some(said.starts_with('2'))
    }
}

fn unstuffed(body: &[u8]) -> Vec<u8> {
    let text = [b"\r\n", body].concat();
    let mut plain = Vec::new();
    let mut at = 0;
    while at < text.len() {
        plain.push(text[at]);
        at += if text[..=at].ends_with(b"\r\n") && text[at + 1..].starts_with(b".") { 2 } else { 1 };
    }
    plain[2..].to_vec()
}

pub fn message(key: usize, recipients: &[&str]) -> OutgoingMessage<usize> {
    OutgoingMessage {
        key,
        mail: MailFrom::new(ReversePath::parse("<a@d>").unwrap()),
        recipients: recipients
            .iter()
            .map(|name| RcptTo::new(ForwardPath::parse(&format!("<{name}@d>")).unwrap()))
            .collect(),
        body: vec![Bytes::from(format!("Subject: {key}\r\n\r\n")), Bytes::from_static(b".dot\r\nend\r\n")],
    }
}

/// A list of messages, and their fates.
#[derive(Default)]
pub struct List {
    pub messages: VecDeque<OutgoingMessage<usize>>,
    pub fates: Vec<(usize, Vec<RecipientFate>)>,
    /// With an empty list, waits instead of ending.
    pub waits: bool,
}

impl List {
    /// Two messages, each to `b` and `c`.
    pub fn two() -> Self {
        Self { messages: (0..2).map(|key| message(key, &["b", "c"])).collect(), ..Self::default() }
    }
}

impl Traffic for List {
    type Key = usize;

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<OutgoingMessage<usize>>> {
        match self.messages.pop_front() {
            None if self.waits => Poll::Pending,
            next => Poll::Ready(next),
        }
    }

    fn finished(&mut self, key: usize, fates: Vec<RecipientFate>) {
        self.fates.push((key, fates));
    }
}

/// Sends all messages of the list over one session and says QUIT.
pub async fn send_all(
    script: Script,
    list: &mut List,
    settings: &SessionSettings,
) -> (Result<RunEnd, SessionOpenError>, Seen) {
    let (stream, server) = script.serve();
    send_over(stream, server, list, settings).await
}

/// Like `send_all`, over a connection.
pub async fn send_over(
    stream: Stream,
    server: JoinHandle<Seen>,
    list: &mut List,
    settings: &SessionSettings,
) -> (Result<RunEnd, SessionOpenError>, Seen) {
    let end = match OutgoingSession::open_over(stream, settings).await {
        Ok(mut session) => {
            let end = session.run(list).await;
            session.quit().await;
            Ok(end)
        }
        Err(error) => Err(error),
    };
    (end, server.await.unwrap())
}

pub fn settings() -> SessionSettings {
    SessionSettings::new("c.example")
}
