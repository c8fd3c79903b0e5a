//! One client session as a state machine without IO: replies go in, commands and bodies come out.
//!
//! `posthaste_smtp::client::Machine` is a client for mail that matters: it keeps texts, outcomes of every recipient and
//! the bodies' memory apart. This one is for the same few commands a million times; it allocates nothing for a message.

use std::collections::VecDeque;
use std::io::Write as _;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use posthaste_smtp::Protocol;
use posthaste_smtp::client::Extensions;
use posthaste_smtp::reply::ReplyParser;

use super::failure::{Cause, Failure, Stage};
use super::output::Output;
use super::plan::{AuthMechanism, Pipelining, Plan};
use super::replies::Reply;
use super::schedule::Turn;
use crate::stamp::Id;
use crate::values::TlsStart;

/// What the session wants after a reply.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// More replies.
    Wait,
    /// A message: [`Session::begin`].
    Ready,
    /// The handshake, then [`Session::tls_started`].
    StartTls,
    /// [`Session::send_body`].
    SendBody,
    /// The message's fate is known. If [`Session::is_closing`] the connection has to go, otherwise a message may follow.
    Done(Fate),
    /// QUIT was answered.
    Closed,
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fate {
    pub turn: Turn,
    /// Recipients for whom the server said 2yz to the whole message.
    pub acked: u16,
    /// Recipients for whom it may have the message, as the connection was lost before the verdict.
    pub uncertain: u16,
    /// Octets of the message, if it was sent.
    pub octets: u64,
    /// Why it was not taken for all.
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Greeting,
    Hello,
    Helo,
    StartTls,
    /// Steps that are still to be answered after this reply.
    Auth(u8),
    Rset,
    Mail,
    Rcpt,
    Data,
    /// The verdict on the message; in LMTP one for each accepted recipient.
    Verdict,
    Quit,
}

#[derive(Debug)]
struct Transaction {
    turn: Turn,
    asked: usize,
    accepted: u16,
    /// Verdicts still to come, once the first has.
    verdicts_left: Option<u16>,
    acked: u16,
    octets: u64,
    body_sent: bool,
    /// The final dot ended nothing: 354 came though no recipient was accepted.
    is_void: bool,
    failure: Option<Failure>,
}

/// One client session.
#[derive(Debug)]
pub(super) struct Session {
    server: usize,
    expected: VecDeque<Expect>,
    pub output: Output,
    current: Option<Transaction>,
    /// The next message, whose MAIL, RCPT and DATA are already out.
    ahead: Option<Transaction>,
    pipelining: Pipelining,
    extensions: Extensions,
    is_encrypted: bool,
    needs_reset: bool,
    is_ready: bool,
    is_closing: bool,
    /// Messages begun.
    pub begun: u64,
    /// Recipients refused since somebody looked; the caller empties it.
    pub refusals: Vec<Failure>,
}

impl Session {
    /// A session with server number `server` of the plan, waiting for its greeting.
    pub fn new(server: usize, is_encrypted: bool) -> Self {
        Self {
            server,
            expected: VecDeque::from([Expect::Greeting]),
            output: Output::default(),
            current: None,
            ahead: None,
            pipelining: Pipelining::Off,
            extensions: Extensions::default(),
            is_encrypted,
            needs_reset: false,
            is_ready: false,
            is_closing: false,
            begun: 0,
            refusals: Vec::new(),
        }
    }

    /// Whether the connection is of no use after this message.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Whether a message may begin now.
    pub fn is_idle(&self) -> bool {
        self.is_ready && self.current.is_none() && !self.is_closing && !self.expected.contains(&Expect::Quit)
    }

    /// Messages under way.
    pub fn in_flight(&self) -> usize {
        usize::from(self.current.is_some()) + usize::from(self.ahead.is_some())
    }

    /// Whether a reply is due.
    pub fn is_waiting(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Whether QUIT is out.
    pub fn is_quitting(&self) -> bool {
        self.expected.back() == Some(&Expect::Quit)
    }

    /// What the session waits for.
    pub fn stage(&self) -> Stage {
        match self.expected.front() {
            Some(Expect::Greeting) => Stage::Greeting,
            Some(Expect::Hello | Expect::Helo) => Stage::Hello,
            Some(Expect::StartTls) => Stage::StartTls,
            Some(Expect::Auth(_)) => Stage::Auth,
            Some(Expect::Rset) => Stage::Rset,
            Some(Expect::Mail) | None => Stage::Mail,
            Some(Expect::Rcpt) => Stage::Rcpt,
            Some(Expect::Data) => Stage::Data,
            Some(Expect::Verdict | Expect::Quit) => Stage::Body,
        }
    }

    /// Begins a message.
    pub fn begin(&mut self, turn: Turn, plan: &Plan) {
        assert!(self.is_idle(), "a message is begun while one is under way: {self:?}");
        self.current = Some(self.envelope(turn, plan));
    }

    /// Sends the message that 354 asked for, and the envelope of the next behind it.
    pub fn send_body(&mut self, next: Option<Turn>, plan: &Plan) {
        let current = self.current.as_mut().expect("354 belongs to a message");
        let id = Id { run: plan.run, number: current.turn.number };
        let message = plan.pool.pick(id.number);
        let text = self.output.text();
        let before = text.len();
        plan.pool.write_front(id, message, text);
        current.octets = (text.len() - before + message.plain.len()) as u64;
        current.body_sent = true;
        self.output.body(message.stuffed.clone());
        self.output.text().extend_from_slice(b".\r\n");
        self.expected.push_back(Expect::Verdict);
        if let Some(turn) = next {
            self.ahead = Some(self.envelope(turn, plan));
        }
    }

    /// Whether the next message's envelope may go out behind this one's body.
    pub fn may_send_ahead(&self) -> bool {
        self.pipelining == Pipelining::Ahead && self.ahead.is_none()
    }

    /// Says QUIT.
    pub fn quit(&mut self) {
        self.command(b"QUIT\r\n", Expect::Quit);
    }

    /// The handshake is done. Everything learned in the clear is forgotten (RFC 3207 section 4.2).
    pub fn tls_started(&mut self, plan: &Plan) {
        self.is_encrypted = true;
        self.hello(plan);
    }

    /// The connection is lost. Returns the messages that were under way.
    pub fn lost(&mut self, failure: &Failure) -> impl Iterator<Item = Fate> + use<> {
        self.is_closing = true;
        self.expected.clear();
        self.output.clear();
        let protocol_fate = |transaction: Transaction| {
            let uncertain = if transaction.body_sent { transaction.accepted - transaction.acked } else { 0 };
            fate(transaction, uncertain, Some(failure.clone()))
        };
        let fates: Vec<Fate> = self.current.take().into_iter().chain(self.ahead.take()).map(protocol_fate).collect();
        fates.into_iter()
    }

    /// Takes a reply.
    ///
    /// # Errors
    /// The session is of no further use; [`Session::lost`] gives the messages under way.
    pub fn reply(&mut self, reply: Reply<'_>, plan: &Plan) -> Result<Event, Failure> {
        let is_positive = reply.code / 100 == 2;
        let stage = self.stage();
        let Some(expect) = self.expected.pop_front() else {
            // A server may say 421 at any time (RFC 5321 section 3.8).
            return Err(match reply.code {
                421 => Failure::reply(Stage::Mail, 421, reply.wire),
                _ => Failure::new(Stage::Mail, Cause::Garbage, String::from_utf8_lossy(reply.wire).trim_end()),
            });
        };
        let refused = || Err(Failure::reply(stage, reply.code, reply.wire));
        match expect {
            Expect::Quit => return Ok(Event::Closed),
            Expect::Greeting if is_positive => self.hello(plan),
            Expect::Hello if is_positive => return self.after_hello(reply, plan),
            Expect::Hello if reply.code / 100 == 5 && plan.servers[self.server].protocol == Protocol::Smtp => {
                let line = format!("HELO {}\r\n", plan.helo);
                self.command(line.as_bytes(), Expect::Helo);
            }
            Expect::Helo if is_positive => return self.after_hello(reply, plan),
            Expect::StartTls if is_positive => return Ok(Event::StartTls),
            Expect::Auth(0) if is_positive => return Ok(self.ready()),
            Expect::Auth(left @ 1..) if reply.code == 334 => self.login_step(left, plan),
            Expect::Rset if is_positive => self.needs_reset = false,
            Expect::Greeting | Expect::Hello | Expect::Helo | Expect::StartTls | Expect::Auth(_) | Expect::Rset => {
                return refused();
            }
            Expect::Mail | Expect::Rcpt | Expect::Data | Expect::Verdict if reply.code == 421 => {
                // The server gives up; what it said no to it does not have.
                if let Some(current) = self.current.as_mut().filter(|_| expect == Expect::Verdict) {
                    current.body_sent &= plan.servers[self.server].protocol == Protocol::Lmtp;
                }
                return refused();
            }
            Expect::Mail => return Ok(self.after_mail(reply, plan)),
            Expect::Rcpt => return Ok(self.after_rcpt(reply, plan)),
            Expect::Data => return Ok(self.after_data(reply)),
            Expect::Verdict => return Ok(self.verdict(reply, plan)),
        }
        Ok(Event::Wait)
    }

    fn hello(&mut self, plan: &Plan) {
        let verb = match plan.servers[self.server].protocol {
            Protocol::Smtp => "EHLO",
            Protocol::Lmtp => "LHLO",
        };
        let line = format!("{verb} {}\r\n", plan.helo);
        self.command(line.as_bytes(), Expect::Hello);
    }

    fn after_hello(&mut self, reply: Reply<'_>, plan: &Plan) -> Result<Event, Failure> {
        let garbage = |_| Failure::new(Stage::Hello, Cause::Garbage, String::from_utf8_lossy(reply.wire));
        let parsed = ReplyParser::default().next(&mut BytesMut::from(reply.wire)).map_err(garbage)?;
        self.extensions = parsed.map(|reply| Extensions::read(&reply)).unwrap_or_default();
        let lacks = |stage, what: &str| Err(Failure::new(stage, Cause::Unsupported, format!("{what} is not offered")));
        if plan.servers[self.server].tls == TlsStart::StartTls && !self.is_encrypted {
            if !self.extensions.starttls {
                return lacks(Stage::StartTls, "STARTTLS");
            }
            self.command(b"STARTTLS\r\n", Expect::StartTls);
            return Ok(Event::Wait);
        }
        if plan.bdat && !self.extensions.chunking {
            return lacks(Stage::Hello, "CHUNKING");
        }
        self.pipelining = if self.extensions.pipelining { plan.pipelining } else { Pipelining::Off };
        let Some(auth) = &plan.auth else { return Ok(self.ready()) };
        match auth.mechanism {
            AuthMechanism::Plain => {
                let secret = BASE64.encode(format!("\0{}\0{}", auth.user, auth.password));
                self.command(format!("AUTH PLAIN {secret}\r\n").as_bytes(), Expect::Auth(0));
            }
            AuthMechanism::Login => self.command(b"AUTH LOGIN\r\n", Expect::Auth(2)),
        }
        Ok(Event::Wait)
    }

    fn login_step(&mut self, left: u8, plan: &Plan) {
        let auth = plan.auth.as_ref().expect("AUTH was begun");
        let answer = if left == 2 { &auth.user } else { &auth.password };
        self.command(format!("{}\r\n", BASE64.encode(answer)).as_bytes(), Expect::Auth(left - 1));
    }

    fn ready(&mut self) -> Event {
        self.is_ready = true;
        Event::Ready
    }

    /// Writes the commands of a message that may go out at once.
    fn envelope(&mut self, turn: Turn, plan: &Plan) -> Transaction {
        let mut transaction = Transaction {
            turn,
            asked: 0,
            accepted: 0,
            verdicts_left: None,
            acked: 0,
            octets: 0,
            body_sent: false,
            is_void: false,
            failure: None,
        };
        self.begun += 1;
        if std::mem::take(&mut self.needs_reset) {
            self.command(b"RSET\r\n", Expect::Rset);
        }
        self.mail(turn.number, plan);
        if self.pipelining == Pipelining::Off {
            return transaction;
        }
        for index in 0..plan.recipients_per_message {
            self.rcpt(turn.number, index, plan);
        }
        transaction.asked = plan.recipients_per_message;
        if plan.bdat {
            self.bdat(&mut transaction, plan);
        } else {
            self.command(b"DATA\r\n", Expect::Data);
        }
        transaction
    }

    fn mail(&mut self, number: u64, plan: &Plan) {
        let message = plan.pool.pick(number);
        let text = self.output.text();
        write!(text, "MAIL FROM:<{}>", plan.sender).expect("a Vec takes everything");
        if self.extensions.size.is_some() {
            // An estimate is all that is asked for (RFC 1870 section 6.1).
            write!(text, " SIZE={}", message.plain.len() + 128).expect("a Vec takes everything");
        }
        if message.is_eight_bit && self.extensions.eight_bit_mime {
            text.extend_from_slice(b" BODY=8BITMIME");
        }
        text.extend_from_slice(b"\r\n");
        self.expected.push_back(Expect::Mail);
    }

    fn rcpt(&mut self, number: u64, index: usize, plan: &Plan) {
        let text = self.output.text();
        text.extend_from_slice(b"RCPT TO:<");
        plan.recipients.write(number, index, plan.recipients_per_message, text);
        text.extend_from_slice(b">\r\n");
        self.expected.push_back(Expect::Rcpt);
    }

    fn bdat(&mut self, transaction: &mut Transaction, plan: &Plan) {
        let id = Id { run: plan.run, number: transaction.turn.number };
        let message = plan.pool.pick(id.number);
        let mut front = Vec::with_capacity(128);
        plan.pool.write_front(id, message, &mut front);
        transaction.octets = (front.len() + message.plain.len()) as u64;
        transaction.body_sent = true;
        let text = self.output.text();
        write!(text, "BDAT {} LAST\r\n", transaction.octets).expect("a Vec takes everything");
        text.extend_from_slice(&front);
        self.output.body(message.plain.clone());
        self.expected.push_back(Expect::Verdict);
    }

    fn after_mail(&mut self, reply: Reply<'_>, plan: &Plan) -> Event {
        let is_positive = reply.code / 100 == 2;
        let current = self.current.as_mut().expect("MAIL belongs to a message");
        if is_positive {
            self.needs_reset = true;
        } else {
            current.failure = Some(Failure::reply(Stage::Mail, reply.code, reply.wire));
        }
        match (self.pipelining, is_positive) {
            (Pipelining::Off, true) => {
                current.asked = 1;
                let number = current.turn.number;
                self.rcpt(number, 0, plan);
                Event::Wait
            }
            (Pipelining::Off, false) => self.finish(),
            _ => Event::Wait,
        }
    }

    fn after_rcpt(&mut self, reply: Reply<'_>, plan: &Plan) -> Event {
        let current = self.current.as_mut().expect("RCPT belongs to a message");
        let has_mail = current.failure.as_ref().is_none_or(|failure| failure.class.stage != Stage::Mail);
        if reply.code / 100 == 2 {
            // A server that takes recipients for a sender it has refused is not believed.
            current.accepted += u16::from(has_mail);
        } else if has_mail {
            // Behind a refused MAIL the 503 to RCPT says nothing new.
            let failure = Failure::reply(Stage::Rcpt, reply.code, reply.wire);
            current.failure.get_or_insert_with(|| failure.clone());
            self.refusals.push(failure);
        }
        if self.pipelining != Pipelining::Off {
            return Event::Wait;
        }
        let number = current.turn.number;
        if current.asked < plan.recipients_per_message {
            let index = current.asked;
            current.asked += 1;
            self.rcpt(number, index, plan);
        } else if current.accepted == 0 {
            return self.finish();
        } else if plan.bdat {
            let mut current = self.current.take().expect("checked above");
            self.bdat(&mut current, plan);
            self.current = Some(current);
        } else {
            self.command(b"DATA\r\n", Expect::Data);
        }
        Event::Wait
    }

    fn after_data(&mut self, reply: Reply<'_>) -> Event {
        let current = self.current.as_mut().expect("DATA belongs to a message");
        match (reply.code, current.accepted) {
            (354, 0) => {
                // Nobody was accepted and yet the server waits for a message: it gets an empty one (RFC 2920 section 3.1).
                current.is_void = true;
                self.command(b".\r\n", Expect::Verdict);
                Event::Wait
            }
            (354, _) => Event::SendBody,
            _ => {
                let failure = || Failure::reply(Stage::Data, reply.code, reply.wire);
                current.failure.get_or_insert_with(failure);
                self.finish()
            }
        }
    }

    fn verdict(&mut self, reply: Reply<'_>, plan: &Plan) -> Event {
        let current = self.current.as_mut().expect("a verdict belongs to a message");
        let is_lmtp = plan.servers[self.server].protocol == Protocol::Lmtp;
        let each = if is_lmtp { 1 } else { current.accepted };
        let verdicts = if is_lmtp { current.accepted.max(1) } else { 1 };
        let left = current.verdicts_left.unwrap_or(verdicts) - 1;
        current.verdicts_left = Some(left);
        if reply.code / 100 == 2 && !current.is_void {
            current.acked += each.min(current.accepted);
        } else {
            let failure = || Failure::reply(Stage::Body, reply.code, reply.wire);
            current.failure.get_or_insert_with(failure);
        }
        if left > 0 {
            self.expected.push_front(Expect::Verdict);
            return Event::Wait;
        }
        // A verdict ends the transaction at the server as well, unless BDAT came without any recipient.
        self.needs_reset = current.accepted == 0;
        self.finish()
    }

    fn finish(&mut self) -> Event {
        let transaction = self.current.take().expect("a message is finished once");
        self.current = self.ahead.take();
        Event::Done(fate(transaction, 0, None))
    }

    /// When the message whose envelope went ahead has its turn, at `now` in a closed loop.
    pub fn reset_due(&mut self, now: Instant) {
        if let Some(current) = &mut self.current {
            current.turn.due = now;
        }
    }

    fn command(&mut self, line: &[u8], expect: Expect) {
        self.output.text().extend_from_slice(line);
        self.expected.push_back(expect);
    }
}

fn fate(transaction: Transaction, uncertain: u16, lost: Option<Failure>) -> Fate {
    Fate {
        turn: transaction.turn,
        acked: transaction.acked,
        uncertain,
        octets: transaction.octets,
        failure: transaction.failure.or(lost),
    }
}
