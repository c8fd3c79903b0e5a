//! Events as lines: one JSON object each.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste_spool::Lsn;

use crate::entry;
use crate::event::{
    Event, Fate, Kind, LeftOut, OfTransport, Received, Refused, Stage, Target, TransportTarget, Waiting,
};

/// Appends the lines of an entry: at least one where it cannot be read.
pub(crate) fn write_entry(out: &mut Vec<u8>, lsn: Lsn, payload: Bytes) {
    match entry::decode(payload) {
        Some(events) => events.iter().for_each(|event| write_event(out, lsn, event)),
        None => write_unreadable(out, lsn),
    }
}

/// What stands for events that cannot be read any more, or that a later version wrote.
pub(crate) fn write_unreadable(out: &mut Vec<u8>, lsn: Lsn) {
    Object::begin(out, lsn, None, "unreadable").end();
}

fn write_event(out: &mut Vec<u8>, lsn: Lsn, event: &Event) {
    let at_us = Some(event.at_us);
    match &event.kind {
        Kind::Received(received) => write_received(Object::begin(out, lsn, at_us, "received"), lsn, received),
        Kind::Delivered(delivered) => {
            for target in &delivered.targets {
                Object::begin(out, lsn, at_us, "delivered").target(target).end();
            }
        }
        Kind::Waiting(Waiting { target, error }) => {
            Object::begin(out, lsn, at_us, "waiting").target(target).text("error", error).end();
        }
        Kind::GivenUp(Waiting { target, error }) => {
            Object::begin(out, lsn, at_us, "given_up").target(target).text("error", error).end();
        }
        Kind::Transport(of) => write_of_transport(out, lsn, at_us, of),
        Kind::Refused(refused) => write_refused(out, lsn, at_us, refused),
        Kind::LeftOut(LeftOut { refused, others }) => {
            Object::begin(out, lsn, at_us, "left_out").number("refused", *refused).number("others", *others).end();
        }
    }
}

fn write_received(object: Object<'_>, lsn: Lsn, received: &Received) {
    object
        .number("message", lsn.get())
        .text("id", &received.id)
        .text("peer", &received.peer)
        .text("helo", &received.helo)
        .text("with", &received.with)
        .text("from", &received.sender)
        .list("to", &received.recipients)
        .number("recipients", received.recipient_count.into())
        .number("bytes", received.bytes)
        .text("message_id", &received.message_id)
        .list("mailboxes", &received.mailboxes)
        .number("mailbox_count", received.mailbox_count.into())
        .end();
}

fn write_of_transport(out: &mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, of: &OfTransport) {
    let event = match of.fate {
        Fate::Delivered => "delivered",
        Fate::Waiting => "waiting",
        Fate::Held => "held",
        Fate::GivenUp => "given_up",
    };
    for TransportTarget { message, number, transport, recipient } in &of.targets {
        Object::begin(out, lsn, at_us, event)
            .number("message", message.get())
            .number("transport_target", (*number).into())
            .text("transport", transport)
            .text("recipient", recipient)
            .text("error", &of.error)
            .end();
    }
}

fn write_refused(out: &mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, refused: &Refused) {
    let stage = match refused.stage {
        Stage::Connection => "connection",
        Stage::Mail => "mail",
        Stage::Recipient => "recipient",
        Stage::Message => "message",
        Stage::Aborted => "aborted",
    };
    let event = if refused.stage == Stage::Aborted { "aborted" } else { "refused" };
    let mut object = Object::begin(out, lsn, at_us, event);
    if refused.stage != Stage::Aborted {
        object = object.text("stage", stage);
    }
    object
        .text("id", &refused.id)
        .text("peer", &refused.peer)
        .text("helo", &refused.helo)
        .text("from", &refused.sender)
        .list("to", &refused.recipients)
        .number("recipients", refused.recipient_count.into())
        .text("reply", &refused.reply)
        .text("why", &refused.why)
        .end();
}

/// A line under way. A text that is empty has no key.
struct Object<'a>(&'a mut Vec<u8>);

impl<'a> Object<'a> {
    fn begin(out: &'a mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, event: &str) -> Self {
        let _ = write!(out, "{{\"lsn\":{}", lsn.get());
        if let Some(time) = at_us.and_then(|at_us| Timestamp::from_microsecond(at_us.try_into().ok()?).ok()) {
            let _ = write!(out, ",\"time\":\"{time:.6}\"");
        }
        let _ = write!(out, ",\"event\":\"{event}\"");
        Object(out)
    }

    fn end(self) {
        self.0.extend_from_slice(b"}\n");
    }

    fn key(&mut self, key: &str) {
        let _ = write!(self.0, ",\"{key}\":");
    }

    fn value(&mut self, text: &str) {
        serde_json::to_writer(&mut *self.0, text).expect("a text is written to memory");
    }

    fn text(mut self, key: &str, text: &str) -> Self {
        if !text.is_empty() {
            self.key(key);
            self.value(text);
        }
        self
    }

    fn number(mut self, key: &str, number: u64) -> Self {
        self.key(key);
        let _ = write!(self.0, "{number}");
        self
    }

    fn list(mut self, key: &str, texts: &[Arc<str>]) -> Self {
        self.key(key);
        for (index, text) in texts.iter().enumerate() {
            self.0.push(if index == 0 { b'[' } else { b',' });
            self.value(text);
        }
        self.0.extend_from_slice(if texts.is_empty() { b"[]" } else { b"]" });
        self
    }

    fn target(self, target: &Target) -> Self {
        self.number("message", target.message.get())
            .number("target", target.number.into())
            .text("mailbox", &target.mailbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Delivered, Event};

    #[test]
    fn lines_are_as_documented() {
        let mut out = Vec::new();
        let at_us = 1_700_000_000_000_001;
        let received = Received {
            id: "t.1".into(),
            peer: "192.0.2.1:25".into(),
            with: "ESMTP".into(),
            sender: "<>".into(),
            recipients: vec!["<\"a b\"@example.org>".into()],
            recipient_count: 1,
            bytes: 10,
            mailboxes: vec!["example.org/a/Maildir".into()],
            mailbox_count: 1,
            ..Received::default()
        };
        let target = Target { message: Lsn::new(3), number: 0, mailbox: "example.org/a/Maildir".into() };
        let of = |fate, error: &str| {
            let (transport, recipient) = ("lmtp:d:24".into(), "a@example.org".into());
            let target = TransportTarget { message: Lsn::new(3), number: 1, transport, recipient };
            Kind::Transport(OfTransport { fate, error: error.into(), targets: vec![target] })
        };
        let kinds = [
            Kind::Received(received),
            Kind::Delivered(Delivered { targets: vec![target.clone()] }),
            Kind::GivenUp(Waiting { target, error: "lost".into() }),
            of(Fate::Delivered, ""),
            of(Fate::Held, "550 no"),
        ];
        for kind in kinds {
            write_event(&mut out, Lsn::new(3), &Event { at_us, kind });
        }
        write_entry(&mut out, Lsn::new(4), Bytes::from_static(b"\xff"));
        let expected = r#"{"lsn":3,"time":"2023-11-14T22:13:20.000001Z","event":"received","message":3,"id":"t.1","peer":"192.0.2.1:25","with":"ESMTP","from":"<>","to":["<\"a b\"@example.org>"],"recipients":1,"bytes":10,"mailboxes":["example.org/a/Maildir"],"mailbox_count":1}
{"lsn":3,"time":"2023-11-14T22:13:20.000001Z","event":"delivered","message":3,"target":0,"mailbox":"example.org/a/Maildir"}
{"lsn":3,"time":"2023-11-14T22:13:20.000001Z","event":"given_up","message":3,"target":0,"mailbox":"example.org/a/Maildir","error":"lost"}
{"lsn":3,"time":"2023-11-14T22:13:20.000001Z","event":"delivered","message":3,"transport_target":1,"transport":"lmtp:d:24","recipient":"a@example.org"}
{"lsn":3,"time":"2023-11-14T22:13:20.000001Z","event":"held","message":3,"transport_target":1,"transport":"lmtp:d:24","recipient":"a@example.org","error":"550 no"}
{"lsn":4,"event":"unreadable"}
"#;
        assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
    }
}
