//! The states of a client session.

mod sending;
mod transaction;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use transaction::{Expect, Transaction};

use super::{ClientError, Config, Event, Extensions, MessageBody, Outcome, Output, Step};
use crate::command::{MailFrom, RcptTo};
use crate::reply::{EnhancedCode, Reply, ReplyParser, ShortReply};
use crate::sasl::{self, Credentials};
use crate::server::Protocol;
use crate::witness::{self, Witness};

/// One client session. See the [module](super) for how it is driven.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    replies: ReplyParser,
    /// Commands sent without a reply so far.
    expected: VecDeque<Expect>,
    /// Number of replies received.
    replied: u64,
    out: Output,
    extensions: Extensions,
    /// At most [`TRANSACTIONS_MAX`]. A reply belongs to the first one.
    transactions: VecDeque<Transaction>,
    /// Transactions begun in this session.
    begun: u64,
    /// True if the server has an open transaction that we gave up.
    needs_reset: bool,
    closed: bool,
    /// The 421 that ended the session, and the step that it answers.
    farewell: Option<(Step, ShortReply)>,
    witness: Option<Arc<dyn Witness>>,
    /// Set while AUTH is in progress.
    credentials: Option<Credentials>,
    /// Mechanisms not tried yet, best first.
    untried: &'static [&'static str],
    #[cfg(feature = "scram")]
    scram: Option<sasl::scram::ScramClient>,
}

/// Best first.
const MECHANISMS: &[&str] = &[
    #[cfg(feature = "scram")]
    sasl::scram::NAME,
    "PLAIN",
    "LOGIN",
];

/// True if a refusal of AUTH blames the mechanism, not the password. By its code (RFC 4954 section 4: 504; 500 and 502
/// from servers that do not know the command in this form), its enhanced code or its text.
fn is_about_mechanism(reply: &Reply) -> bool {
    const WORDS: [&str; 5] =
        ["mechanism", "authentication type", "auth type", "authentication method", "not supported"];
    let is_of_mechanism = |code: EnhancedCode| (code.class, code.subject, code.detail) == (5, 7, 4);
    match reply.code() {
        500 | 502 | 504 => true,
        503 | 534 | 535 | 538 | 550 | 554 => {
            let text = reply.text().to_ascii_lowercase();
            reply.enhanced().is_some_and(is_of_mechanism) || WORDS.iter().any(|words| text.contains(words))
        }
        _ => false,
    }
}

/// The transaction whose verdict is due, and the next.
const TRANSACTIONS_MAX: usize = 2;

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
            replied: 0,
            out: Output::default(),
            extensions: Extensions::default(),
            transactions: VecDeque::new(),
            begun: 0,
            needs_reset: false,
            closed: false,
            farewell: None,
            witness: None,
            credentials: None,
            untried: &[],
            #[cfg(feature = "scram")]
            scram: None,
        })
    }

    /// Sets a witness of the dialogue from now on.
    pub fn set_witness(&mut self, witness: Arc<dyn Witness>) {
        self.witness = Some(witness);
    }

    /// Octets to write. The writer reports what it wrote by [`Buf::advance`](bytes::Buf::advance), as tokio's
    /// `write_buf` does.
    pub fn output(&mut self) -> &mut Output {
        self.out.settle();
        &mut self.out
    }

    /// Takes the octets to write, in order, for a driver that writes all of them or gives the machine up: they count as
    /// written.
    pub fn take_output(&mut self) -> Vec<Bytes> {
        self.out.take()
    }

    /// The extensions that the server offers.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// True if the session is over.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// True if [`Machine::send`] may be called: the session is idle, or, with PIPELINING, one message is in flight and
    /// none waits after it.
    pub fn may_send(&self) -> bool {
        let most = if self.extensions.pipelining { TRANSACTIONS_MAX } else { 1 };
        let awaited: usize = self.transactions.iter().map(|transaction| transaction.awaited).sum();
        !self.closed && self.messages_left() > 0 && self.transactions.len() < most && awaited == self.expected.len()
    }

    /// Messages that the server still takes in this session: MAILMAX of LIMITS (RFC 9422 section 4.1), otherwise `u64::MAX`.
    pub fn messages_left(&self) -> u64 {
        self.extensions.messages_max.map_or(u64::MAX, |most| most.max(1).saturating_sub(self.begun))
    }

    /// The 421 with which the server ended the session after its opening, and the step that it answers.
    pub fn farewell(&self) -> Option<&(Step, ShortReply)> {
        self.farewell.as_ref()
    }

    /// Messages in flight and waiting.
    pub fn in_flight(&self) -> usize {
        self.transactions.len()
    }

    /// Replies taken since the session began. While the number grows the server is alive.
    pub fn replied(&self) -> u64 {
        self.replied
    }

    /// Begins a transaction, or queues it after the one in flight: its commands follow that message directly, before
    /// the verdict on it (RFC 2920 section 3.1). Outcomes come in order.
    ///
    /// Parameters that the server did not offer are omitted. SMTPUTF8 is sent where an address needs it. Some are
    /// refused here, with [`Stage::Local`](super::Stage::Local). Recipients that need SMTPUTF8 where it was not offered
    /// get 550 5.6.7. A message larger than the SIZE offered gets 552 5.3.4. [`Config::eight_bit`] refuses others.
    /// Recipients above RCPTMAX and in domains above RCPTDOMAINMAX of LIMITS (RFC 9422 sections 4.2 and 4.3) are
    /// [`Stage::TooMany`](super::Stage::TooMany).
    ///
    /// # Panics
    /// Without recipients, or if [`Machine::may_send`] is false.
    pub fn send(&mut self, mail: MailFrom, recipients: Vec<RcptTo>, body: MessageBody) {
        assert!(!recipients.is_empty(), "no recipients");
        assert!(self.may_send(), "sent while busy: {:?}", self.expected);
        self.begun += 1;
        self.begin(mail, recipients, body);
    }

    /// Gives a piece of a [`MessageBody::Streamed`].
    ///
    /// # Panics
    /// If the machine did not request it by [`Event::SendBody`].
    pub fn body(&mut self, chunk: Bytes) {
        let stuffer = self.transactions.front_mut().and_then(|t| t.stuffer.as_mut()).expect("body was asked for");
        stuffer.push(chunk, &mut |piece| self.out.piece(piece));
    }

    /// Ends a [`MessageBody::Streamed`].
    ///
    /// # Panics
    /// If the machine did not request it by [`Event::SendBody`].
    pub fn body_end(&mut self) {
        let stuffer = self.transactions.front_mut().and_then(|t| t.stuffer.take()).expect("body was asked for");
        self.end_data(stuffer);
        self.advance();
    }

    /// Sends QUIT.
    ///
    /// # Panics
    /// If the session is not idle.
    pub fn quit(&mut self) {
        self.idle_command(b"QUIT\r\n", Expect::Quit);
    }

    /// Sends STARTTLS.
    ///
    /// # Panics
    /// If the session is not idle.
    pub fn start_tls(&mut self) {
        self.idle_command(b"STARTTLS\r\n", Expect::Tls);
    }

    /// Sends AUTH with the first offered of SCRAM-SHA-256 (feature `scram`), PLAIN and LOGIN; if the server does not
    /// know that one after all, with the next. [`Event::Ready`] follows. `false`: none was offered, and nothing was
    /// sent. PLAIN and LOGIN send the password in the clear, so start TLS first.
    ///
    /// # Panics
    /// If the session is not idle.
    pub fn authenticate(&mut self, credentials: &Credentials) -> bool {
        assert!(self.expected.is_empty() && self.transactions.is_empty() && !self.closed, "busy: {:?}", self.expected);
        (self.credentials, self.untried) = (Some(credentials.clone()), MECHANISMS);
        self.next_mechanism()
    }

    /// Sends AUTH with the next offered mechanism, if there is one.
    fn next_mechanism(&mut self) -> bool {
        let Some(credentials) = self.credentials.clone() else { return false };
        while let Some((mechanism, untried)) = self.untried.split_first() {
            self.untried = untried;
            if !self.extensions.auth.iter().any(|offered| offered.eq_ignore_ascii_case(mechanism)) {
                continue;
            }
            match *mechanism {
                "PLAIN" => self.command(format!("AUTH PLAIN {}\r\n", credentials.plain()).as_bytes(), Expect::Auth),
                // Some servers accept no initial response with LOGIN.
                "LOGIN" => self.command(b"AUTH LOGIN\r\n", Expect::AuthUser),
                _ if !self.begin_scram(&credentials) => continue,
                _ => {}
            }
            return true;
        }
        false
    }

    #[cfg(feature = "scram")]
    fn begin_scram(&mut self, credentials: &Credentials) -> bool {
        let Some(nonce) = sasl::scram::nonce() else { return false };
        let Credentials { user, password, acts_for } = credentials;
        let scram = sasl::scram::ScramClient::new(user, password, acts_for.as_deref(), nonce);
        let line = format!("AUTH {} {}\r\n", sasl::scram::NAME, sasl::encode(&scram.first()));
        self.scram = Some(scram);
        self.command(line.as_bytes(), Expect::ScramFirst);
        true
    }

    #[cfg(not(feature = "scram"))]
    fn begin_scram(&mut self, _: &Credentials) -> bool {
        false
    }

    /// A refused mechanism is followed by the next one. A refused password is not: some servers lock an account after a
    /// few.
    fn auth_refused(&mut self, reply: Reply) -> Result<(), ClientError> {
        if is_about_mechanism(&reply) && self.next_mechanism() {
            return Ok(());
        }
        self.credentials = None;
        Err(ClientError::Auth(reply.into()))
    }

    /// The step in progress.
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
            // The driver is giving its body.
            None if !self.transactions.is_empty() => Step::Body,
            None => Step::Idle,
        }
    }

    /// Notes the end of the handshake: forgets what came in the clear, and sends EHLO again.
    pub fn tls_started(&mut self) {
        self.extensions = Extensions::default();
        self.hello();
    }

    /// Ends the session after the loss of its connection. Returns the outcomes of the transactions in flight, in order.
    /// Undecided recipients get `reply`, which should be 4yz, and
    /// [`RecipientOutcome::lost`](super::RecipientOutcome::lost).
    pub fn abort(&mut self, reply: &Reply) -> Vec<Outcome> {
        self.close(&reply.clone().into());
        std::iter::from_fn(|| self.take_outcome()).collect()
    }

    /// Proceeds with `input`, taking whole replies from it.
    ///
    /// # Errors
    /// See [`ClientError`]: close the connection; [`Machine::abort`] gives the fate of an open transaction.
    pub fn step(&mut self, input: &mut BytesMut) -> Result<Event, ClientError> {
        loop {
            if let Some(outcome) = self.take_outcome() {
                return Ok(Event::Sent(outcome));
            }
            if self.closed {
                return Ok(Event::Closed);
            }
            if self.transactions.front().is_some_and(|t| t.stuffer.is_some()) {
                return Ok(Event::SendBody);
            }
            let Some(reply) = self.replies.next(input)? else { return Ok(Event::NeedInput) };
            self.replied += 1;
            if let Some(witness) = &self.witness {
                let mut text = Vec::new();
                reply.write(&mut text);
                witness::replies(&**witness, &text);
            }
            if let Some(event) = self.reply(reply, input)? {
                return Ok(event);
            }
        }
    }

    fn reply(&mut self, reply: Reply, input: &BytesMut) -> Result<Option<Event>, ClientError> {
        let Some(expected) = self.expected.pop_front() else {
            // A server that shuts down may say 421 at any time (RFC 5321 section 3.8).
            if reply.code() != 421 {
                return Err(ClientError::Unexpected { step: self.awaits(), reply: reply.into() });
            }
            self.closed = true;
            self.farewell = Some((self.awaits(), reply.into()));
            return Ok(Some(Event::Closed));
        };
        match expected {
            Expect::Greeting if reply.is_positive() => self.hello(),
            Expect::Greeting => return Err(ClientError::Greeting(reply.into())),
            Expect::Hello if reply.is_positive() => {
                self.extensions = Extensions::read(&reply);
                return Ok(Some(Event::Ready));
            }
            // A server without EHLO (RFC 5321 section 3.2).
            Expect::Hello if reply.is_permanent() && self.config.protocol == Protocol::Smtp => {
                let line = format!("HELO {}\r\n", self.config.helo_name);
                self.command(line.as_bytes(), Expect::Helo);
            }
            Expect::Helo if reply.is_positive() => return Ok(Some(Event::Ready)),
            Expect::Hello | Expect::Helo => return Err(ClientError::Hello(reply.into())),
            Expect::AuthUser if reply.code() == 334 => {
                let user = self.credentials.as_ref().map_or(String::new(), |login| sasl::encode(&login.user));
                self.command(format!("{user}\r\n").as_bytes(), Expect::AuthPassword);
            }
            Expect::AuthPassword if reply.code() == 334 => {
                let password = self.credentials.as_ref().map_or(String::new(), |login| sasl::encode(&login.password));
                self.command(format!("{password}\r\n").as_bytes(), Expect::Auth);
            }
            #[cfg(feature = "scram")]
            Expect::ScramFirst | Expect::ScramLast => self.scram_reply(expected, reply)?,
            Expect::Auth if reply.is_positive() => {
                self.credentials = None;
                return Ok(Some(Event::Ready));
            }
            Expect::AuthUser | Expect::AuthPassword | Expect::Auth => self.auth_refused(reply)?,
            Expect::Tls if !reply.is_positive() => return Err(ClientError::Tls(reply.into())),
            Expect::Tls if !input.is_empty() => return Err(ClientError::TlsInjection),
            Expect::Tls => return Ok(Some(Event::TlsReady)),
            Expect::Quit => {
                self.closed = true;
                return Ok(Some(Event::Closed));
            }
            Expect::Reset | Expect::Mail | Expect::Rcpt(_) | Expect::Data | Expect::Verdict => {
                self.transaction_reply(expected, reply.into())?;
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
            return self.auth_refused(reply);
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
        assert!(self.expected.is_empty() && self.transactions.is_empty() && !self.closed, "busy: {:?}", self.expected);
        self.command(line, expected);
    }

    fn command(&mut self, line: &[u8], expected: Expect) {
        if let Some(witness) = &self.witness {
            let is_auth = match expected {
                Expect::AuthUser | Expect::AuthPassword | Expect::Auth => true,
                #[cfg(feature = "scram")]
                Expect::ScramFirst | Expect::ScramLast => true,
                _ => false,
            };
            if is_auth && !line.starts_with(b"AUTH ") {
                witness::secret(&**witness)
            } else {
                witness::command(&**witness, line)
            }
        }
        self.out.text(line);
        self.expected.push_back(expected);
    }
}
