//! The states of a client session.

mod transaction;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::stuff::whole_lines;
use super::{
    ClientError, Config, Event, Extensions, MessageBody, Outcome, RecipientOutcome, Stage, Step, Stuffer, Transfer,
};
use crate::command::{MailFrom, RcptTo};
use crate::reply::{Reply, ReplyParser};
use crate::sasl::{self, Credentials};
use crate::server::Protocol;

/// One client session. See the [module](super) for how it is driven.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    replies: ReplyParser,
    /// Commands sent whose replies have not come.
    expected: VecDeque<Expect>,
    text: BytesMut,
    out: Vec<Bytes>,
    extensions: Extensions,
    transaction: Option<Box<Transaction>>,
    /// A transaction is open at the server that we have given up.
    needs_reset: bool,
    closed: bool,
    /// For the questions of LOGIN.
    login: Option<Credentials>,
    #[cfg(feature = "scram")]
    scram: Option<sasl::scram::Client>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Greeting,
    Hello,
    Helo,
    Tls,
    /// LOGIN's question for the name.
    AuthUser,
    /// LOGIN's question for the password.
    AuthPassword,
    /// The server's first message of SCRAM.
    #[cfg(feature = "scram")]
    ScramFirst,
    /// The server's last message of SCRAM.
    #[cfg(feature = "scram")]
    ScramLast,
    Auth,
    Reset,
    Mail,
    Rcpt(usize),
    Data,
    /// The verdict on the message; in LMTP one of several.
    Verdict,
    Quit,
}

#[derive(Debug)]
struct Transaction {
    mail: MailFrom,
    recipients: Vec<RcptTo>,
    outcomes: Vec<Option<RecipientOutcome>>,
    body: MessageBody,
    chunked: bool,
    /// Recipients whose RCPT has been sent.
    asked: usize,
    /// Recipients whose RCPT was accepted and whose verdict has not come.
    accepted: VecDeque<usize>,
    mail_sent: bool,
    body_commanded: bool,
    stuffer: Option<Stuffer>,
}

/// Commands sent ahead of their replies: enough to hide the round trip, few enough that the replies fit the sockets'
/// buffers while nobody reads them.
const WINDOW_COMMANDS: usize = 100;

impl Machine {
    /// A session that waits for the server's greeting.
    ///
    /// # Errors
    /// [`ClientError::BadName`].
    pub fn new(config: Config) -> Result<Self, ClientError> {
        let name = &config.helo_name;
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(ClientError::BadName(name.clone()));
        }
        Ok(Self {
            config,
            replies: ReplyParser::default(),
            expected: VecDeque::from([Expect::Greeting]),
            text: BytesMut::new(),
            out: Vec::new(),
            extensions: Extensions::default(),
            transaction: None,
            needs_reset: false,
            closed: false,
            login: None,
            #[cfg(feature = "scram")]
            scram: None,
        })
    }

    /// What is to be written, in order.
    pub fn take_output(&mut self) -> Vec<Bytes> {
        self.flush_text();
        std::mem::take(&mut self.out)
    }

    /// What the server offered.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Begins a transaction. Parameters that the server did not offer are left out. SMTPUTF8 is said where an address needs it;
    /// if it was not offered, who cannot be reached without it is refused here: [`Stage::Local`], 550 5.6.7.
    ///
    /// # Panics
    /// Without recipients, or when the session is not idle.
    pub fn send(&mut self, mail: MailFrom, recipients: Vec<RcptTo>, body: MessageBody) {
        assert!(!recipients.is_empty(), "no recipients");
        assert!(
            self.expected.is_empty() && self.transaction.is_none() && !self.closed,
            "sent while busy: {:?}",
            self.expected
        );
        let body = match body {
            MessageBody::Whole(chunks) if self.chunks() => MessageBody::Whole(whole_lines(chunks)),
            body => body,
        };
        let mut mail = mail;
        if let MessageBody::Whole(chunks) = &body {
            mail.size = Some(chunks.iter().map(|chunk| chunk.len() as u64).sum());
        }
        let transaction = Transaction {
            outcomes: vec![None; recipients.len()],
            chunked: self.chunks() && matches!(body, MessageBody::Whole(_)),
            mail,
            recipients,
            body,
            asked: 0,
            accepted: VecDeque::new(),
            mail_sent: false,
            body_commanded: false,
            stuffer: None,
        };
        self.transaction = Some(Box::new(transaction));
        self.settle_utf8();
        self.advance();
    }

    /// Gives a piece of a [`MessageBody::Streamed`].
    ///
    /// # Panics
    /// When [`Event::SendBody`] did not ask for it.
    pub fn body(&mut self, chunk: Bytes) {
        self.flush_text();
        let stuffer = self.transaction.as_mut().and_then(|t| t.stuffer.as_mut()).expect("body was asked for");
        stuffer.push(chunk, &mut |piece| self.out.push(piece));
    }

    /// Ends a [`MessageBody::Streamed`].
    ///
    /// # Panics
    /// When [`Event::SendBody`] did not ask for it.
    pub fn body_end(&mut self) {
        self.flush_text();
        let stuffer = self.transaction.as_mut().and_then(|t| t.stuffer.take()).expect("body was asked for");
        stuffer.finish(&mut |piece| self.out.push(piece));
        self.expected.push_back(Expect::Verdict);
    }

    /// Says QUIT.
    ///
    /// # Panics
    /// When the session is not idle.
    pub fn quit(&mut self) {
        self.idle_command(b"QUIT\r\n", Expect::Quit);
    }

    /// Says STARTTLS.
    ///
    /// # Panics
    /// When the session is not idle.
    pub fn start_tls(&mut self) {
        self.idle_command(b"STARTTLS\r\n", Expect::Tls);
    }

    /// Says AUTH with SCRAM-SHA-256 (feature `scram`), or with PLAIN, or with LOGIN, the first of them that was offered; [`Event::Ready`] follows. `false`: none was offered,
    /// and nothing was said. PLAIN and LOGIN show the password to whoever reads along, so have TLS first.
    ///
    /// # Panics
    /// When the session is not idle.
    pub fn authenticate(&mut self, credentials: &Credentials) -> bool {
        let offers = |name: &str| self.extensions.auth.iter().any(|offered| offered.eq_ignore_ascii_case(name));
        #[cfg(feature = "scram")]
        if offers(sasl::scram::NAME)
            && let Some(nonce) = sasl::scram::nonce()
        {
            let scram = sasl::scram::Client::new(credentials, nonce);
            let line = format!("AUTH {} {}\r\n", sasl::scram::NAME, sasl::encode(&scram.first()));
            self.scram = Some(scram);
            self.idle_command(line.as_bytes(), Expect::ScramFirst);
            return true;
        }
        let (plain, login) = (offers("PLAIN"), offers("LOGIN"));
        if plain {
            self.idle_command(format!("AUTH PLAIN {}\r\n", credentials.plain()).as_bytes(), Expect::Auth);
        } else if login {
            // Some servers know no initial response with LOGIN.
            self.login = Some(credentials.clone());
            self.idle_command(b"AUTH LOGIN\r\n", Expect::AuthUser);
        }
        plain || login
    }

    /// What is being waited for.
    pub fn awaits(&self) -> Step {
        match self.expected.front() {
            Some(Expect::Greeting) => Step::Greeting,
            Some(Expect::Hello | Expect::Helo) => Step::Hello,
            Some(Expect::Tls) => Step::StartTls,
            Some(Expect::AuthUser | Expect::AuthPassword | Expect::Auth) => Step::Auth,
            #[cfg(feature = "scram")]
            Some(Expect::ScramFirst | Expect::ScramLast) => Step::Auth,
            Some(Expect::Reset) => Step::Reset,
            Some(Expect::Mail) => Step::Mail,
            Some(Expect::Rcpt(_)) => Step::Rcpt,
            Some(Expect::Data) => Step::Data,
            Some(Expect::Verdict) => Step::Body,
            Some(Expect::Quit) => Step::Quit,
            // Its body is being given.
            None if self.transaction.is_some() => Step::Body,
            None => Step::Idle,
        }
    }

    /// The handshake is done: what was learned in the clear is forgotten, and EHLO is said again.
    pub fn tls_started(&mut self) {
        self.extensions = Extensions::default();
        self.hello();
    }

    /// The connection was lost or given up. Returns the outcome of the open transaction, if there is one: recipients
    /// whose verdict had not come get `reply`, which should be 4yz, as the server may or may not have the message.
    pub fn abort(&mut self, reply: &Reply) -> Option<Outcome> {
        let stage = match self.awaits() {
            // All of the message went out with its commands, and they may all have been good.
            _ if self.expected.contains(&Expect::Verdict) => Stage::Body,
            Step::Rcpt => Stage::Rcpt,
            Step::Data => Stage::Data,
            Step::Body => Stage::Body,
            _ => Stage::Mail,
        };
        self.closed = true;
        self.expected.clear();
        self.transaction.as_ref()?;
        self.decide_rest(reply, stage);
        self.take_outcome()
    }

    /// Goes on with `input`, of which whole replies are taken.
    ///
    /// # Errors
    /// See [`ClientError`]: the connection must be closed; [`Machine::abort`] gives the fate of an open transaction.
    pub fn step(&mut self, input: &mut BytesMut) -> Result<Event, ClientError> {
        loop {
            if let Some(outcome) = self.take_outcome() {
                return Ok(Event::Sent(outcome));
            }
            if self.closed {
                return Ok(Event::Closed);
            }
            if self.transaction.as_ref().is_some_and(|t| t.stuffer.is_some()) {
                return Ok(Event::SendBody);
            }
            let Some(reply) = self.replies.next(input)? else { return Ok(Event::NeedInput) };
            if let Some(event) = self.reply(reply, input)? {
                return Ok(event);
            }
        }
    }

    fn reply(&mut self, reply: Reply, input: &BytesMut) -> Result<Option<Event>, ClientError> {
        let Some(expected) = self.expected.pop_front() else {
            // A server that shuts down may say 421 at any time (RFC 5321 section 3.8).
            if reply.code() != 421 {
                return Err(ClientError::Unexpected(reply));
            }
            self.closed = true;
            return Ok(Some(Event::Closed));
        };
        match expected {
            Expect::Greeting if reply.is_positive() => self.hello(),
            Expect::Greeting => return Err(ClientError::Greeting(reply)),
            Expect::Hello if reply.is_positive() => {
                self.extensions = Extensions::read(&reply);
                return Ok(Some(Event::Ready));
            }
            // A server that does not know EHLO (RFC 5321 section 3.2).
            Expect::Hello if reply.is_permanent() && self.config.protocol == Protocol::Smtp => {
                let line = format!("HELO {}\r\n", self.config.helo_name);
                self.command(line.as_bytes(), Expect::Helo);
            }
            Expect::Helo if reply.is_positive() => return Ok(Some(Event::Ready)),
            Expect::Hello | Expect::Helo => return Err(ClientError::Hello(reply)),
            Expect::AuthUser if reply.code() == 334 => {
                let user = self.login.as_ref().map_or(String::new(), |login| sasl::encode(&login.user));
                self.command(format!("{user}\r\n").as_bytes(), Expect::AuthPassword);
            }
            Expect::AuthPassword if reply.code() == 334 => {
                let password = self.login.take().map_or(String::new(), |login| sasl::encode(&login.password));
                self.command(format!("{password}\r\n").as_bytes(), Expect::Auth);
            }
            #[cfg(feature = "scram")]
            Expect::ScramFirst | Expect::ScramLast => self.scram_reply(expected, reply)?,
            Expect::Auth if reply.is_positive() => return Ok(Some(Event::Ready)),
            Expect::AuthUser | Expect::AuthPassword | Expect::Auth => return Err(ClientError::Auth(reply)),
            Expect::Tls if !reply.is_positive() => return Err(ClientError::Tls(reply)),
            Expect::Tls if !input.is_empty() => return Err(ClientError::TlsInjection),
            Expect::Tls => return Ok(Some(Event::TlsReady)),
            Expect::Quit => {
                self.closed = true;
                return Ok(Some(Event::Closed));
            }
            Expect::Reset | Expect::Mail | Expect::Rcpt(_) | Expect::Data | Expect::Verdict => {
                if reply.code() == 421 {
                    self.closed = true;
                    self.expected.clear();
                    self.decide_rest(&reply, transaction::stage(expected));
                } else {
                    self.transaction_reply(expected, reply);
                }
            }
        }
        Ok(None)
    }

    #[cfg(feature = "scram")]
    fn scram_reply(&mut self, expected: Expect, reply: Reply) -> Result<(), ClientError> {
        let mut scram = self.scram.take().expect("SCRAM has begun");
        if reply.is_positive() {
            return Err(ClientError::NotShown("it accepts without a proof of its own"));
        }
        if reply.code() != 334 {
            return Err(ClientError::Auth(reply));
        }
        let message = sasl::decode(reply.text()).ok_or(ClientError::NotShown("its message is not base64"))?;
        if expected == Expect::ScramFirst {
            let last = scram.last(&message).map_err(ClientError::NotShown)?;
            self.scram = Some(scram);
            self.command(format!("{}\r\n", sasl::encode(&last)).as_bytes(), Expect::ScramLast);
            return Ok(());
        }
        if !scram.is_shown(&message) {
            return Err(ClientError::NotShown("its proof is wrong"));
        }
        self.command(b"\r\n", Expect::Auth);
        Ok(())
    }

    fn hello(&mut self) {
        let verb = if self.config.protocol == Protocol::Lmtp { "LHLO" } else { "EHLO" };
        let line = format!("{verb} {}\r\n", self.config.helo_name);
        self.command(line.as_bytes(), Expect::Hello);
    }

    fn idle_command(&mut self, line: &[u8], expected: Expect) {
        assert!(self.expected.is_empty() && self.transaction.is_none() && !self.closed, "busy: {:?}", self.expected);
        self.command(line, expected);
    }

    fn command(&mut self, line: &[u8], expected: Expect) {
        self.text.extend_from_slice(line);
        self.expected.push_back(expected);
    }

    fn flush_text(&mut self) {
        if !self.text.is_empty() {
            self.out.push(self.text.split().freeze());
        }
    }

    fn chunks(&self) -> bool {
        self.extensions.chunking && self.config.transfer != Transfer::Data
    }
}
