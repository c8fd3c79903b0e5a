//! One client session as a state machine without IO: replies go in, commands and bodies come out.
//!
//! `posthaste_smtp::client::Machine` is a client for real mail: it keeps texts, outcomes of all recipients, and the
//! bodies' memory separately. This one sends the same few commands a million times, and allocates nothing for a
//! message.

use std::collections::VecDeque;

use posthaste_smtp::client::Extensions;

use super::failure::{Cause, Failure, Stage};
use super::output::Output;
use super::plan::{Pipelining, Plan};
use super::replies::{self, Reply};
use super::schedule::SendSlot;
use crate::values::Protocol;

mod message;
mod opening;

/// Next need of the session after a reply.
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
    /// The message's outcome is known. If [`Session::is_closing`], the connection has to go; otherwise a message may
    /// follow.
    Done(Fate),
    /// The server has no final answer yet: the message is sent again, over another connection.
    Again(SendSlot),
    /// QUIT was answered.
    Closed,
}

/// Outcome of a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fate {
    pub turn: SendSlot,
    /// Recipients for whom the server said 2yz to the whole message.
    pub acked: u16,
    /// Recipients for whom it may have the message, as the connection was lost before the verdict.
    pub uncertain: u16,
    /// Octets of the message, if it was sent.
    pub octets: u64,
    /// The reason why it was not accepted for all.
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Greeting,
    Hello,
    Helo,
    StartTls,
    /// Steps that remain after this reply.
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
    turn: SendSlot,
    asked: usize,
    accepted: u16,
    /// Verdicts still to come after the first.
    verdicts_left: Option<u16>,
    acked: u16,
    octets: u64,
    body_sent: bool,
    /// True if the final dot ended nothing: 354 came though no recipient was accepted.
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
    /// Recipients refused since the caller last emptied it.
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

    /// True if the connection is of no use after this message.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// True if a message may begin now.
    pub fn is_idle(&self) -> bool {
        self.is_ready && self.current.is_none() && !self.is_closing && !self.expected.contains(&Expect::Quit)
    }

    /// Messages in flight.
    pub fn in_flight(&self) -> usize {
        usize::from(self.current.is_some()) + usize::from(self.ahead.is_some())
    }

    /// True if a reply is due.
    pub fn is_waiting(&self) -> bool {
        !self.expected.is_empty()
    }

    /// True if QUIT has been sent.
    pub fn is_quitting(&self) -> bool {
        self.expected.back() == Some(&Expect::Quit)
    }

    /// The step that the session waits for.
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

    /// Sends QUIT.
    pub fn quit(&mut self) {
        self.command(b"QUIT\r\n", Expect::Quit);
    }

    /// Call it when the connection is lost. Returns the messages that were in flight.
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

    /// Consumes the reply at the start of `input`, if it is complete.
    ///
    /// # Errors
    /// See [`Session::reply`], or there is no reply.
    pub fn take(&mut self, input: &[u8], plan: &Plan) -> Result<Option<(usize, Event)>, Failure> {
        let garbage = |replies::Garbage| {
            let start = String::from_utf8_lossy(&input[..input.len().min(80)]).into_owned();
            Failure::new(self.stage(), Cause::Garbage, start)
        };
        let Some(reply) = replies::next(input).map_err(garbage)? else { return Ok(None) };
        self.reply(reply, plan).map(|event| Some((reply.wire.len(), event)))
    }

    /// Processes a reply.
    ///
    /// # Errors
    /// The session is of no further use; [`Session::lost`] returns the messages in flight.
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
