//! A client's state machine with a script of both sides.
#![allow(dead_code, reason = "each test file uses a part of it")]

use bytes::{Bytes, BytesMut};
use posthaste_smtp::client::{ClientError, Config, Event, Machine, MessageBody, Outcome, Stage, Transfer};
use posthaste_smtp::{ForwardPath, MailFrom, Protocol, RcptTo, ReversePath};

/// A client, and its server's replies.
pub struct Script {
    pub machine: Machine,
    pub input: BytesMut,
}

impl Script {
    pub fn new(protocol: Protocol, transfer: Transfer) -> Self {
        let machine = Machine::new(Config { protocol, transfer, ..Config::new("c.example") }).unwrap();
        Self { machine, input: BytesMut::new() }
    }

    /// An open session with the given extensions.
    pub fn open(transfer: Transfer, extensions: &[&str]) -> Self {
        let mut script = Self::new(Protocol::Smtp, transfer);
        script.server("220 x\r\n", "EHLO c.example\r\n");
        let lines: String = extensions.iter().map(|name| format!("250-{name}\r\n")).collect();
        assert!(matches!(script.hear(&format!("250-x\r\n{lines}250 HELP\r\n")), Ok(Event::Ready)));
        script
    }

    pub fn hear(&mut self, text: &str) -> Result<Event, ClientError> {
        self.input.extend_from_slice(text.as_bytes());
        self.machine.step(&mut self.input)
    }

    /// The server sends a text, and the client must answer exactly this.
    pub fn server(&mut self, text: &str, answer: &str) {
        let event = self.hear(text).unwrap();
        assert!(matches!(event, Event::NeedInput), "{text:?}: {event:?}");
        self.said(answer);
    }

    pub fn said(&mut self, expected: &str) {
        assert_eq!(String::from_utf8(self.machine.take_output().concat()).unwrap(), expected);
    }

    pub fn sent(&mut self, text: &str) -> Outcome {
        match self.hear(text) {
            Ok(Event::Sent(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&mut self, recipients: &[&str], body: &'static str) {
        self.machine.send(mail("a"), recipients.iter().map(|name| rcpt(name)).collect(), whole(body));
    }
}

pub fn mail(name: &str) -> MailFrom {
    MailFrom::new(ReversePath::parse(&format!("<{name}@d>")).unwrap())
}

pub fn rcpt(name: &str) -> RcptTo {
    RcptTo::new(ForwardPath::parse(&format!("<{name}@d>")).unwrap())
}

pub fn whole(body: &'static str) -> MessageBody {
    MessageBody::Whole(vec![Bytes::from_static(body.as_bytes())])
}

pub fn fates(outcome: &Outcome) -> Vec<(u16, Stage)> {
    outcome.recipients.iter().map(|r| (r.reply.code(), r.stage)).collect()
}
