//! The bare state machine with its owner, over messages in memory.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use bytes::BytesMut;
use posthaste_pop3::session::{
    Pop3Config, Pop3Credentials, Pop3Event, Pop3LoginRefusal, Pop3Machine, Pop3Refusal, Pop3Row,
};
use posthaste_scram::{ScramFirst, ScramKeys, ScramProof, ScramSecret, ScramServer};

pub const SIMPLE: &str = "Subject: Lunch\r\n\r\nToday at noon?\r\n.\r\n..\r\nAnn\r\n";
pub const OPEN_END: &str = "Subject: one\r\n\r\nno line end";

/// INBOX of `ann`; the second message cannot be read, the fourth is gone.
pub fn inbox() -> Vec<Result<Vec<u8>, Pop3Refusal>> {
    vec![Ok(SIMPLE.into()), Err(Pop3Refusal::Impossible), Ok(OPEN_END.into()), Err(Pop3Refusal::Gone)]
}

/// `ann` has the password `secret`.
pub fn judge(credentials: &Pop3Credentials) -> Result<String, Pop3LoginRefusal> {
    match (credentials.user.as_str(), credentials.password.as_str()) {
        (_, "busy") => Err(Pop3LoginRefusal::Busy),
        (_, "closed") => Err(Pop3LoginRefusal::Unavailable),
        (_, "blocked") => Err(Pop3LoginRefusal::Blocked),
        ("ann", "secret" | "two words ") if credentials.acts_for.is_none() => Ok("ann".into()),
        _ => Err(Pop3LoginRefusal::Wrong),
    }
}

/// `user` has the password `pencil`, as in RFC 7677 section 3, and the mailboxes of `ann`.
pub fn scram_keys(user: &str) -> Result<Option<ScramKeys>, Pop3LoginRefusal> {
    const KEYS: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    match user {
        "blocked" => Err(Pop3LoginRefusal::Blocked),
        "user" => Ok(Some(KEYS.parse().unwrap())),
        _ => Ok(None),
    }
}

pub fn scram_login(proof: &ScramProof) -> Result<String, Pop3LoginRefusal> {
    proof.check().map(|()| "ann".into()).map_err(|_| Pop3LoginRefusal::Wrong)
}

/// The exchange that a client begins, with the nonce of the RFC.
fn scram_begun(first: ScramFirst) -> Result<ScramServer, Pop3LoginRefusal> {
    let keys = scram_keys(first.user())?;
    let secret = ScramSecret::like(&scram_keys("user")?.expect("it has keys"));
    let keys = keys.unwrap_or_else(|| ScramKeys::of_nobody(first.user(), &secret));
    Ok(ScramServer::new(first, keys, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"))
}

/// Answer of the store to a deletion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Works,
    Fails,
    Impossible,
}

pub struct Host {
    pub machine: Pop3Machine,
    pub input: BytesMut,
    pub output: Vec<u8>,
    pub closed: bool,
    pub inbox: Vec<Result<Vec<u8>, Pop3Refusal>>,
    pub removal: Removal,
    /// Octets of one read of a message.
    pub piece: usize,
    /// The first message breaks off after so many octets.
    pub breaks_off: Option<usize>,
    /// Messages that QUIT sets \Seen on.
    pub seen: Vec<u32>,
    rows: Vec<u32>,
    open: usize,
}

impl Host {
    pub fn new(config: Pop3Config, trusted: bool) -> Self {
        Self::offering(config, trusted, false)
    }

    /// `scram`: SCRAM-SHA-256 is offered.
    pub fn offering(config: Pop3Config, trusted: bool, scram: bool) -> Self {
        let machine = Pop3Machine::new(Arc::new(config), trusted);
        let mut machine = if scram { machine.with_scram() } else { machine };
        machine.greet();
        assert_eq!(machine.output(), b"+OK mail.example.org ready\r\n");
        machine.output_mut().clear();
        Self {
            machine,
            input: BytesMut::new(),
            output: Vec::new(),
            closed: false,
            inbox: inbox(),
            removal: Removal::Impossible,
            piece: 7,
            breaks_off: None,
            seen: Vec::new(),
            rows: Vec::new(),
            open: 0,
        }
    }

    fn flush(&mut self) {
        self.output.append(self.machine.output_mut());
    }

    pub fn read(&mut self, octets: &[u8]) {
        self.input.extend_from_slice(octets);
        while !self.closed {
            match self.machine.step(&mut self.input) {
                Pop3Event::NeedInput => break,
                event => self.answer(event),
            }
        }
        self.flush();
    }

    fn answer(&mut self, event: Pop3Event) {
        match event {
            Pop3Event::NeedInput => unreachable!(),
            Pop3Event::Flush => self.flush(),
            Pop3Event::Close => self.closed = true,
            Pop3Event::StartTls => {
                assert!(self.input.is_empty());
                self.flush();
                self.machine.tls_started();
            }
            Pop3Event::Login(credentials) => {
                self.machine.logged_in(judge(&credentials).map(|_| self.inbox.len() as u32));
            }
            Pop3Event::ScramKeys(first) => self.machine.scram_begun(scram_begun(*first)),
            Pop3Event::ScramProof(proof) => {
                self.machine.scram_checked(scram_login(&proof).map(|_| self.inbox.len() as u32));
            }
            Pop3Event::Rows { first, last, .. } => self.rows = (first..=last).rev().collect(),
            Pop3Event::NextRow => {
                let row = self.rows.pop().map(|message| {
                    let size = self.inbox[message as usize - 1].as_ref().ok().map(|octets| octets.len() as u64);
                    Pop3Row { message, size, unique_id: format!("{message:08x}000003e9") }
                });
                self.machine.row(Ok(row.as_ref()));
            }
            Pop3Event::Open { message } => {
                self.open = message as usize - 1;
                self.machine
                    .opened(self.inbox[self.open].as_ref().map(|octets| octets.len() as u64).map_err(|why| *why));
            }
            Pop3Event::Read { from } => {
                let octets = self.inbox[self.open].as_deref().unwrap();
                let end = self.breaks_off.unwrap_or(octets.len()).min(octets.len());
                let from = (from as usize).min(end);
                self.machine.octets(Ok(&octets[from..end.min(from + self.piece)]));
            }
            Pop3Event::Update => {
                self.seen = self.machine.retrieved().unwrap().iter().collect();
                self.machine.updated(match self.removal {
                    Removal::Works => Ok(()),
                    Removal::Fails => Err(Pop3Refusal::Unavailable),
                    Removal::Impossible => Err(Pop3Refusal::Impossible),
                });
            }
        }
    }
}
