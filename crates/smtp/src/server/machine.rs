//! The states of a server session.
//!
//! A bare LF is refused by `commands.rs` in a command, and by `scan.rs` of the crate in a message.

mod body;
mod commands;
mod secure;
mod state;

use std::io::Write;
use std::sync::Arc;

use bytes::BytesMut;

use self::state::{HOLD_UNTIL_MAX, State, Transaction};
use super::{Abort, Config, Envelope, Event, Protocol, Waiting};
use crate::body_error::BodyError;
use crate::command::{MailFrom, RcptTo};
use crate::reply::Reply;
use crate::witness::{self, Witness};

/// One server session. See the [module](super) for how it is driven.
///
/// Between two calls of [`Machine::step`] it holds the envelope and the unwritten replies, nothing else. The untaken
/// input stays in the caller's buffer, which never needs to hold more than one command line or a few octets of a body.
#[derive(Debug)]
pub struct Machine {
    config: Arc<Config>,
    state: State,
    out: Vec<u8>,
    helo: Option<Box<str>>,
    extended: bool,
    tls: bool,
    has_channel_binding: bool,
    authenticated: bool,
    transaction: Option<Box<Transaction>>,
    errors: u32,
    deferred_recipients: u32,
    idle_commands: u32,
    messages: u32,
    lines: u64,
    bodies: u64,
    said_quit: bool,
    witness: Option<Arc<dyn Witness>>,
    /// The latest date for a hold, in seconds since 1970.
    hold_until_max: i64,
}

/// Reply octets after which they are written before further commands.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

impl Machine {
    /// A session that waits for [`Machine::greet`].
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            state: State::Greeting,
            out: Vec::new(),
            helo: None,
            extended: false,
            tls: false,
            has_channel_binding: false,
            authenticated: false,
            transaction: None,
            errors: 0,
            deferred_recipients: 0,
            idle_commands: 0,
            messages: 0,
            lines: 0,
            bodies: 0,
            said_quit: false,
            witness: None,
            hold_until_max: HOLD_UNTIL_MAX,
        }
    }

    /// Sets the time of the session's beginning, in seconds since 1970. A hold until a date may then last as long as
    /// the longest hold from then on. Both limits are announced, and count for the whole session. Without it any date
    /// of 32 bits is taken.
    #[must_use]
    pub fn begun_at(mut self, unix_secs: i64) -> Self {
        let latest = unix_secs.saturating_add(self.config.limits.future_release_secs.into());
        self.hold_until_max = latest.clamp(0, HOLD_UNTIL_MAX);
        self
    }

    /// Sets a witness of the commands from now on.
    pub fn set_witness(&mut self, witness: Arc<dyn Witness>) {
        self.witness = Some(witness);
    }

    /// The witness of the commands.
    pub fn witness(&self) -> Option<&Arc<dyn Witness>> {
        self.witness.as_ref()
    }

    /// Marks the session as encrypted from its first octet on (RFC 8314 section 3.3).
    pub fn encrypted(mut self) -> Self {
        assert!(matches!(self.state, State::Greeting), "encrypted in {:?}", self.state);
        self.tls = true;
        self
    }

    /// Writes the greeting, or refuses the connection with a 4yz or 5yz reply and closes it.
    pub fn greet(&mut self, verdict: Result<(), Reply>) {
        assert!(matches!(self.state, State::Greeting), "greeted in {:?}", self.state);
        match verdict {
            Ok(()) => {
                let protocol = if self.config.protocol == Protocol::Lmtp { "LMTP" } else { "ESMTP" };
                let config = Arc::clone(&self.config);
                self.write(format_args!("220 {} {protocol} ready\r\n", config.host_name));
                self.state = State::Command;
            }
            Err(reply) => self.close_with(&reply),
        }
    }

    /// The replies to write.
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// The replies to write, for the driver to take.
    pub fn output_mut(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// The client's name as given with HELO, EHLO or LHLO.
    pub fn helo(&self) -> Option<&str> {
        self.helo.as_deref()
    }

    /// True if the client said EHLO or LHLO.
    pub fn is_extended(&self) -> bool {
        self.extended
    }

    /// True if [`Machine::tls_started`] was called.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// True if AUTH succeeded.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// The MAIL command of the open transaction, until [`Event::BodyBegin`] carries its envelope away.
    pub fn mail(&self) -> Option<&MailFrom> {
        self.envelope().map(|envelope| &envelope.mail)
    }

    /// The envelope of the open transaction so far, until [`Event::BodyBegin`] carries it away.
    pub fn envelope(&self) -> Option<&Envelope> {
        self.transaction.as_ref().filter(|t| t.body.is_none()).map(|t| &t.envelope)
    }

    /// The recipient that [`Event::Rcpt`] asks about.
    pub fn recipient(&self) -> Option<&RcptTo> {
        match &self.state {
            State::AnswerRcpt(rcpt) => Some(rcpt),
            _ => None,
        }
    }

    /// The client's expected next step.
    pub fn waiting(&self) -> Waiting {
        match self.state {
            State::Data | State::Chunk { .. } => Waiting::Body,
            _ if self.transaction.is_some() => Waiting::Command,
            State::AuthResponse | State::LongLine { .. } => Waiting::Command,
            _ => Waiting::Idle,
        }
    }

    /// True if a message has begun and not ended. Between its chunks the session waits for a command.
    pub fn is_in_body(&self) -> bool {
        self.transaction.as_ref().is_some_and(|t| t.body.is_some())
    }

    /// True if `input` holds the whole rest of the message. Known only for the last chunk, as DATA does not announce
    /// its length.
    pub fn has_whole_body(&self, input: &[u8]) -> bool {
        matches!(self.state, State::Chunk { left, last: true, .. } if left <= input.len() as u64)
    }

    /// True if the client ended the session with QUIT.
    pub fn said_quit(&self) -> bool {
        self.said_quit
    }

    /// Closes without another reply than those to write.
    pub fn hang_up(&mut self) {
        self.state = State::Closed;
    }

    /// Counts finished command lines: while it does not change, the same command is awaited.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Counts bodies, each message and each refused chunk: while it does not change, octets belong to the same one.
    pub fn bodies(&self) -> u64 {
        self.bodies
    }

    /// Sends `reply` and closes.
    pub fn close(&mut self, reply: &Reply) {
        self.close_with(reply);
    }

    /// Sends 421 4.4.2 and closes: the client took too long.
    pub fn time_out(&mut self) {
        self.close_with(&Reply::new(421, "4.4.2", format!("{} Timeout, closing", self.config.host_name)));
    }

    /// Sends 421 4.3.2 and closes: the server shuts down.
    pub fn shut_down(&mut self) {
        self.close_with(&Reply::new(421, "4.3.2", format!("{} Service shutting down", self.config.host_name)));
    }

    /// Answers [`Event::Hello`], [`Event::Mail`], [`Event::Rcpt`] and [`Event::Data`]. An error is sent unchanged.
    ///
    /// # Panics
    /// Without a question, or if an error is not a 4yz or 5yz reply.
    pub fn answer(&mut self, verdict: Result<(), Reply>) {
        if let Err(reply) = &verdict {
            assert!(reply.is_transient() || reply.is_permanent(), "refused with {reply}");
        }
        let asked = std::mem::replace(&mut self.state, State::Command);
        let rcpt = matches!(asked, State::AnswerRcpt(_));
        let text = match asked {
            State::AnswerHello if verdict.is_ok() => return self.welcome(),
            State::AnswerHello => {
                self.helo = None;
                self.extended = false;
                ""
            }
            State::AnswerData if verdict.is_ok() => return self.ask_for_body(),
            State::AnswerData => {
                self.transaction = None;
                ""
            }
            State::AnswerMail => {
                if verdict.is_err() {
                    self.transaction = None;
                }
                "250 2.1.0 Sender OK\r\n"
            }
            State::AnswerRcpt(rcpt) => {
                let transaction = self.transaction.as_mut().expect("RCPT has a transaction");
                match verdict {
                    Ok(()) => {
                        transaction.recipients += 1;
                        transaction.envelope.recipients.push(*rcpt);
                    }
                    Err(_) => transaction.refused = true,
                }
                "250 2.1.5 Recipient OK\r\n"
            }
            other => panic!("answered in {other:?}"),
        };
        match verdict {
            Ok(()) => self.out.extend_from_slice(text.as_bytes()),
            // A 421 of the handler ends the session (RFC 5321 section 3.8).
            Err(reply) if reply.code() == 421 => self.close_with(&reply),
            Err(reply) if rcpt && reply.is_transient() => self.defer_recipient(&reply),
            Err(reply) => self.refuse(&reply),
        }
    }

    /// Proceeds with `input`, taking as much as it can use.
    ///
    /// # Panics
    /// If a question has no answer so far, or [`Machine::greet`] was not called.
    pub fn step(&mut self, input: &mut BytesMut) -> Event {
        loop {
            let event = match self.state {
                State::Closed => return Event::Close,
                _ if self.out.len() >= OUTPUT_BYTES_MAX => return Event::Flush,
                State::Command | State::AuthResponse | State::LongLine { .. } => match self.take_line(input) {
                    None => return Event::NeedInput,
                    Some(Ok(line)) => {
                        match &self.witness {
                            Some(witness) if matches!(self.state, State::AuthResponse) => witness::secret(&**witness),
                            Some(witness) => witness::command(&**witness, &line),
                            None => {}
                        }
                        self.line(&line, input)
                    }
                    Some(Err(bad)) => self.misread(&bad),
                },
                State::Data | State::Chunk { .. } => {
                    if let Some(event) = self.begin_body() {
                        return event;
                    }
                    if input.is_empty() && !self.chunk_is_done() {
                        return Event::NeedInput;
                    }
                    let before = input.len();
                    let event = if matches!(self.state, State::Data) { self.data(input) } else { self.chunk(input) };
                    let stuck = event.is_none() && input.len() == before && matches!(self.state, State::Data);
                    if stuck {
                        return Event::NeedInput;
                    }
                    event
                }
                State::Complete => {
                    self.state = State::Outcome;
                    Some(Event::BodyEnd)
                }
                State::AskHello => {
                    self.state = State::AnswerHello;
                    Some(Event::Hello)
                }
                State::Greeting
                | State::AnswerHello
                | State::AnswerData
                | State::AnswerMail
                | State::AnswerRcpt(_)
                | State::Outcome
                | State::Tls
                | State::AuthAnswer => panic!("stepped in {:?}", self.state),
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// Forgets the open transaction.
    fn reset(&mut self, cause: Abort) -> Option<Event> {
        match self.transaction.take()?.body {
            None => Some(Event::TransactionAborted(cause)),
            Some(body) => (body.begun && !body.aborted).then_some(Event::BodyAborted(BodyError::Reset)),
        }
    }

    /// Appends to the output.
    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a vector cannot fail.
        let _ = self.out.write_fmt(text);
    }

    fn error(&mut self, code: u16, enhanced: &str, text: &'static str) -> Option<Event> {
        self.refuse(&Reply::new(code, enhanced, text));
        None
    }

    /// Sends a negative reply and counts it.
    fn refuse(&mut self, reply: &Reply) {
        reply.write(&mut self.out);
        if reply.is_permanent() {
            self.count_error();
        }
    }

    fn count_error(&mut self) {
        self.errors += 1;
        if self.errors > self.config.limits.errors {
            self.close_with(&Reply::new(421, "4.7.0", "Too many errors"));
        }
    }

    fn close_with(&mut self, reply: &Reply) {
        reply.write(&mut self.out);
        self.state = State::Closed;
    }
}
