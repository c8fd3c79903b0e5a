//! A small mail host shared by the tests: its rules, and a driver that replays bytes on the state machine.

use std::sync::Arc;

use bytes::BytesMut;
use posthaste_smtp::sasl::{Credentials, Exchange, Step};
use posthaste_smtp::server::{Config, Event, Machine};
use posthaste_smtp::{BodyError, Envelope, ForwardPath, MailFrom, MessageOutcome, RcptTo, Reply};

/// Senders called `blocked` are refused.
pub fn judge_mail(mail: &MailFrom) -> Result<(), Reply> {
    match mail.reverse_path.address() {
        Some(address) if address.local_part() == "blocked" => Err(Reply::new(550, "5.7.1", "blocked")),
        _ => Ok(()),
    }
}

/// Recipients called `unknown` and `full` are refused.
pub fn judge_rcpt(rcpt: &RcptTo) -> Result<(), Reply> {
    match local_part(rcpt) {
        "unknown" => Err(Reply::new(550, "5.1.1", "no such user")),
        "full" => Err(Reply::new(452, "4.2.2", "mailbox full")),
        "goaway" => Err(Reply::new(421, "4.3.2", "go away")),
        _ => Ok(()),
    }
}

/// Messages cannot be stored for recipients called `broken`.
pub fn judge_message(envelope: &Envelope) -> MessageOutcome {
    let judge = |rcpt: &RcptTo| match local_part(rcpt) {
        "broken" => Reply::new(451, "4.3.0", "cannot store"),
        name => Reply::ok(format!("kept for {name}")),
    };
    MessageOutcome::Each(envelope.recipients.iter().map(judge).collect())
}

/// The password of `ann` is `secret`; there are no other users.
pub fn judge_credentials(credentials: &Credentials) -> Result<String, Reply> {
    match (credentials.user.as_str(), credentials.password.as_str()) {
        ("ann", "secret") => Ok("ann".into()),
        _ => Err(Reply::new(535, "5.7.8", "Authentication credentials invalid")),
    }
}

fn local_part(rcpt: &RcptTo) -> &str {
    match &rcpt.forward_path {
        ForwardPath::Local(local_part) => local_part.as_str(),
        ForwardPath::Address(address) => address.local_part(),
    }
}

/// A message received by the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub envelope: Envelope,
    /// The body, if complete. Its part before an abort depends on the reads and is left out.
    pub body: Result<Vec<u8>, ()>,
}

/// The state machine with an owner.
pub struct Host {
    pub machine: Machine,
    pub input: BytesMut,
    pub output: Vec<u8>,
    pub messages: Vec<Message>,
    pub closed: bool,
    pub error: Option<BodyError>,
    current: Option<(Envelope, Vec<u8>)>,
    exchange: Exchange,
}

impl Host {
    pub fn new(config: Config) -> Self {
        let mut machine = Machine::new(Arc::new(config));
        machine.greet(Ok(()));
        Self {
            machine,
            input: BytesMut::new(),
            output: Vec::new(),
            messages: Vec::new(),
            closed: false,
            error: None,
            current: None,
            exchange: Exchange::default(),
        }
    }

    /// Gives the machine one read and answers all its questions.
    pub fn read(&mut self, bytes: &[u8]) {
        if self.closed {
            return;
        }
        self.input.extend_from_slice(bytes);
        loop {
            match self.machine.step(&mut self.input) {
                Event::NeedInput => break,
                Event::Flush => self.flush(),
                Event::Mail => {
                    let verdict = judge_mail(self.machine.mail().unwrap());
                    self.machine.answer(verdict);
                }
                Event::Rcpt => {
                    let verdict = judge_rcpt(self.machine.recipient().unwrap());
                    self.machine.answer(verdict);
                }
                Event::BodyBegin(envelope) => self.current = Some((envelope, Vec::new())),
                Event::Body(chunk) => self.current.as_mut().unwrap().1.extend_from_slice(&chunk),
                Event::BodyEnd => {
                    let (envelope, body) = self.current.take().unwrap();
                    self.machine.finish(&judge_message(&envelope));
                    self.messages.push(Message { envelope, body: Ok(body) });
                }
                Event::BodyAborted(error) => {
                    let (envelope, _) = self.current.take().unwrap();
                    self.error = Some(error);
                    self.messages.push(Message { envelope, body: Err(()) });
                }
                Event::Hello => {
                    let name = self.machine.helo().unwrap();
                    let refused = name.starts_with("unwelcome");
                    self.machine.answer(if refused { Err(Reply::new(550, "5.7.1", "Go away")) } else { Ok(()) });
                }
                Event::Data => {
                    let refused = self.machine.mail().unwrap().size == Some(4);
                    self.machine.answer(if refused { Err(Reply::new(451, "4.3.0", "Not now")) } else { Ok(()) });
                }
                Event::TransactionAborted(_) => assert!(self.machine.envelope().is_none() && self.current.is_none()),
                Event::StartTls => self.machine.tls_started(),
                Event::Auth(step) => match self.exchange.step(step) {
                    Step::Challenge(challenge) => self.machine.auth_challenge(&challenge),
                    Step::Refuse(reply) => self.machine.auth_done(Err(reply)),
                    Step::Check(credentials) => self.machine.auth_done(judge_credentials(&credentials).map(drop)),
                    other => panic!("{other:?} is not offered"),
                },
                Event::Close => {
                    self.closed = true;
                    break;
                }
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        self.output.append(self.machine.output_mut());
    }
}
