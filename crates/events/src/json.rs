//! Events as lines: one JSON object each.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste_spool::Lsn;

use crate::entry;
use crate::event::{
    Admin, Event, EventKind, Fate, Feedback, LeftOut, LoginEvent, MailboxRef, OfRelay, OfTransport, ReceivedEvent,
    RefusalStage, RefusedEvent, RelayFate, ShardTrouble, TlsFailed, TransportTarget, WaitingEvent,
};

/// The JSON lines of an entry of the log's stream, each with a line feed: at least one, even for an unreadable entry.
pub fn lines(lsn: Lsn, payload: Bytes) -> Vec<u8> {
    let mut lines = Vec::new();
    write_entry(&mut lines, lsn, payload);
    lines
}

/// Appends the lines of an entry: at least one, even if it is unreadable.
pub(crate) fn write_entry(out: &mut Vec<u8>, lsn: Lsn, payload: Bytes) {
    match entry::decode(payload) {
        Some(events) => events.iter().for_each(|event| write_event(out, lsn, event)),
        None => write_unreadable(out, lsn),
    }
}

/// A line for events that are unreadable, or that a later version wrote.
pub(crate) fn write_unreadable(out: &mut Vec<u8>, lsn: Lsn) {
    Object::begin(out, lsn, None, "unreadable").end();
}

fn write_event(out: &mut Vec<u8>, lsn: Lsn, event: &Event) {
    let at_us = Some(event.at_us);
    match &event.kind {
        EventKind::Received(received) => write_received(Object::begin(out, lsn, at_us, "received"), lsn, received),
        EventKind::Delivered(delivered) => {
            for target in &delivered.targets {
                Object::begin(out, lsn, at_us, "delivered").target(target).end();
            }
        }
        EventKind::Waiting(WaitingEvent { target, error }) => {
            Object::begin(out, lsn, at_us, "waiting").target(target).text("error", error).end();
        }
        EventKind::GivenUp(WaitingEvent { target, error }) => {
            Object::begin(out, lsn, at_us, "given_up").target(target).text("error", error).end();
        }
        EventKind::Transport(of) => write_of_transport(out, lsn, at_us, of),
        EventKind::Relay(of) => write_of_relay(out, lsn, at_us, of),
        EventKind::Admin(admin) => write_admin(out, lsn, at_us, admin),
        EventKind::Feedback(of) => write_feedback(Object::begin(out, lsn, at_us, "feedback"), of),
        EventKind::Refused(refused) => write_refused(out, lsn, at_us, refused),
        EventKind::Login(login) => write_login(out, lsn, at_us, login),
        EventKind::TlsFailed(failed) => write_tls_failed(out, lsn, at_us, failed),
        EventKind::Shard(ShardTrouble { shard, state, node, why }) => {
            let object = Object::begin(out, lsn, at_us, "shard").number("shard", (*shard).into());
            object.text("state", state).text("node", node).text("why", why).end();
        }
        EventKind::LeftOut(LeftOut { refused, others }) => {
            Object::begin(out, lsn, at_us, "left_out").number("refused", *refused).number("others", *others).end();
        }
    }
}

fn write_received(object: Object<'_>, lsn: Lsn, received: &ReceivedEvent) {
    let facts = &received.facts;
    object
        .lsn("message", received.message.unwrap_or(lsn))
        .text("received_id", &facts.id)
        .text("peer", &facts.peer)
        .text("helo", &facts.helo)
        .text("with", &facts.with)
        .text("tls", &facts.tls)
        .text("auth", &facts.auth)
        .text("user", &facts.user)
        .text("from", &facts.sender)
        .list("to", &facts.recipients)
        .number("recipients", facts.recipient_count.into())
        .number("bytes", facts.bytes)
        .text("message_id", &facts.message_id)
        .text("junk", &facts.junk)
        .list("mailboxes", &received.mailboxes)
        .number("mailbox_count", received.mailbox_count.into())
        .text("tenant", &received.tenant)
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
            .lsn("message", *message)
            .number("transport_target", (*number).into())
            .text("transport", transport)
            .text("recipient", recipient)
            .text("stage", &of.stage)
            .text("error", &of.error)
            .end();
    }
}

fn write_of_relay(out: &mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, of: &OfRelay) {
    let event = match of.fate {
        RelayFate::Delivered => "delivered",
        RelayFate::Deferred | RelayFate::Unknown => "deferred",
        RelayFate::Interrupted => "interrupted",
        RelayFate::Bounced => "bounced",
        RelayFate::Expired => "expired",
        RelayFate::Suppressed => "suppressed",
        RelayFate::DoubleBounced => "double_bounced",
    };
    let mut object = Object::begin(out, lsn, at_us, event);
    let has_message = of.message != Lsn::ZERO;
    if has_message {
        object = object
            .lsn("message", of.message)
            .number("relay_target", of.number.into())
            .text("recipient", &of.recipient)
            .text("from", &format!("<{}>", of.sender));
    }
    object = object
        .text("tenant", &of.tenant)
        .text("campaign", &of.campaign)
        .text("host", &of.host)
        .text("stage", &of.stage)
        .text("source", &of.source);
    if of.code != 0 {
        object = object.number("code", of.code.into());
    }
    object = object.text("status", &of.status).text("reply", &of.reply).text("class", &of.class);
    if of.fate == RelayFate::Unknown {
        object = object.truth("maybe_delivered");
    }
    if !has_message {
        return object.end();
    }
    object.number("attempts", of.attempts.into()).number("age_secs", of.age_secs.into()).seconds("next", of.next).end();
}

fn write_admin(out: &mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, admin: &Admin) {
    if admin.targets.is_empty() {
        return Object::begin(out, lsn, at_us, "admin").admin(admin).end();
    }
    for target in &admin.targets {
        Object::begin(out, lsn, at_us, "admin")
            .admin(admin)
            .lsn("message", target.message)
            .number("relay_target", target.number.into())
            .text("recipient", &target.recipient)
            .end();
    }
}

fn write_feedback(object: Object<'_>, of: &Feedback) {
    let mut object = object.text("kind", &of.kind).lsn("report", of.report);
    if of.message != Lsn::ZERO {
        object = object.lsn("message", of.message).number("relay_target", of.number.into());
    }
    object
        .text("reporter", &of.reporter)
        .text("from", &of.sender)
        .text("recipient", &of.recipient)
        .text("message_id", &of.message_id)
        .text("status", &of.status)
        .text("text", &of.text)
        .text("tenant", &of.tenant)
        .text("campaign", &of.campaign)
        .end();
}

fn write_refused(out: &mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, refused: &RefusedEvent) {
    let stage = match refused.stage {
        RefusalStage::Connection => "connection",
        RefusalStage::Mail => "mail",
        RefusalStage::Recipient => "recipient",
        RefusalStage::Message => "message",
        RefusalStage::Aborted => "aborted",
    };
    let event = if refused.stage == RefusalStage::Aborted { "aborted" } else { "refused" };
    let mut object = Object::begin(out, lsn, at_us, event);
    if refused.stage != RefusalStage::Aborted {
        object = object.text("stage", stage);
    }
    object
        .text("id", &refused.id)
        .text("peer", &refused.peer)
        .text("helo", &refused.helo)
        .text("user", &refused.user)
        .text("from", &refused.sender)
        .list("to", &refused.recipients)
        .number("recipients", refused.recipient_count.into())
        .text("reply", &refused.reply)
        .text("why", &refused.why)
        .end();
}

fn write_login(out: &mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, login: &LoginEvent) {
    // Clients of other protocols than SMTP are told in words of these.
    let object = if login.reply.is_empty() && login.why.is_empty() {
        Object::begin(out, lsn, at_us, "login")
    } else {
        Object::begin(out, lsn, at_us, "refused").text("stage", "login")
    };
    object
        .text("peer", &login.peer)
        .text("helo", &login.helo)
        .text("listener", &login.listener)
        .text("tls", &login.tls)
        .text("mechanism", &login.mechanism)
        .text("user", &login.user)
        .text("reply", &login.reply)
        .text("why", &login.why)
        .end();
}

fn write_tls_failed(out: &mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, failed: &TlsFailed) {
    Object::begin(out, lsn, at_us, "tls_failed")
        .text("host", &failed.host)
        .text("site", &failed.site)
        .text("demand", &failed.demand)
        .text("result", &failed.result)
        .text("error", &failed.error)
        .end();
}

/// A line under construction. Empty texts are left out.
struct Object<'a>(&'a mut Vec<u8>);

impl<'a> Object<'a> {
    fn begin(out: &'a mut Vec<u8>, lsn: Lsn, at_us: Option<u64>, event: &str) -> Self {
        let _ = write!(out, "{{\"lsn\":\"{lsn}\"");
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

    /// Writes an LSN as [`Lsn`] is serialised.
    fn lsn(mut self, key: &str, lsn: Lsn) -> Self {
        self.key(key);
        let _ = write!(self.0, "\"{lsn}\"");
        self
    }

    fn truth(mut self, key: &str) -> Self {
        self.key(key);
        self.0.extend_from_slice(b"true");
        self
    }

    /// A time; left out for 0.
    fn seconds(mut self, key: &str, seconds: u32) -> Self {
        if let Some(time) = Timestamp::from_second(seconds.into()).ok().filter(|_| seconds != 0) {
            self.key(key);
            let _ = write!(self.0, "\"{time:.0}\"");
        }
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

    fn admin(self, admin: &Admin) -> Self {
        self.text("action", &admin.action)
            .number("uid", admin.uid.into())
            .text("token", &admin.token)
            .text("reason", &admin.reason)
            .text("scope", &admin.scope)
            .text("name", &admin.name)
            .seconds("until", admin.until)
    }

    fn target(self, target: &MailboxRef) -> Self {
        self.lsn("message", target.message).number("target", target.number.into()).text("mailbox", &target.mailbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArrivalFacts;
    use crate::event::{AdminTarget, Delivered, Event};

    #[test]
    fn lines_are_as_documented() {
        let mut out = Vec::new();
        let at_us = 1_700_000_000_000_001;
        let facts = ArrivalFacts {
            id: "t.1".into(),
            peer: "192.0.2.1:25".into(),
            with: "ESMTP".into(),
            sender: "<>".into(),
            recipients: vec!["<\"a b\"@example.org>".into()],
            recipient_count: 1,
            bytes: 10,
            ..ArrivalFacts::default()
        };
        let mailboxes = vec!["example.org/a/Maildir".into()];
        let received = ReceivedEvent { facts, mailboxes, mailbox_count: 1, tenant: "acme".into(), message: None };
        let target = MailboxRef { message: Lsn::new(3), number: 0, mailbox: "example.org/a/Maildir".into() };
        let of = |fate, stage: &str, error: &str| {
            let (transport, recipient) = ("lmtp:d:24".into(), "a@example.org".into());
            let target = TransportTarget { message: Lsn::new(3), number: 1, transport, recipient };
            EventKind::Transport(OfTransport { fate, stage: stage.into(), error: error.into(), targets: vec![target] })
        };
        let login = |reply: &str| LoginEvent {
            peer: "192.0.2.1:40112".into(),
            listener: "192.0.2.9:587".into(),
            mechanism: "PLAIN".into(),
            user: "ann@example.org".into(),
            reply: reply.into(),
            ..LoginEvent::default()
        };
        let kinds = [
            EventKind::Received(received),
            EventKind::Delivered(Delivered { targets: vec![target.clone()] }),
            EventKind::GivenUp(WaitingEvent { target, error: "lost".into() }),
            of(Fate::Delivered, "", ""),
            of(Fate::Held, "RCPT", "550 no"),
            EventKind::Relay(OfRelay {
                fate: RelayFate::Unknown,
                message: Lsn::new(2),
                number: 1,
                attempts: 2,
                age_secs: 300,
                next: 1_700_000_600,
                code: 451,
                status: "4.4.2".into(),
                reply: "451 4.4.2 lost".into(),
                host: "mx.example".into(),
                sender: "s@example.net".into(),
                recipient: "ann@there.example".into(),
                campaign: "may".into(),
                ..OfRelay::default()
            }),
            EventKind::Relay(OfRelay {
                fate: RelayFate::Interrupted,
                code: 421,
                reply: "421 bye".into(),
                host: "mx.example".into(),
                stage: "idle".into(),
                ..OfRelay::default()
            }),
            EventKind::Admin(Admin {
                action: "hold".into(),
                reason: "look".into(),
                targets: vec![AdminTarget { message: Lsn::new(2), number: 1, recipient: "ann@there.example".into() }],
                ..Admin::default()
            }),
            EventKind::Admin(Admin {
                action: "suspend".into(),
                uid: 1000,
                scope: "domain".into(),
                name: "there.example".into(),
                until: 1_700_000_600,
                ..Admin::default()
            }),
            EventKind::Feedback(Feedback {
                kind: "abuse".into(),
                report: Lsn::new(3),
                message: Lsn::new(2),
                recipient: "ann@there.example".into(),
                ..Feedback::default()
            }),
            EventKind::Login(login("")),
            EventKind::Login(login("535 5.7.8 no")),
            EventKind::TlsFailed(TlsFailed {
                host: "mx.example".into(),
                site: "10 mx.example dnssec".into(),
                demand: "dane".into(),
                result: "certificate".into(),
                error: "no match".into(),
            }),
            EventKind::Shard(ShardTrouble {
                shard: 3,
                state: "differs".into(),
                node: "mx2".into(),
                why: Arc::default(),
            }),
        ];
        for kind in kinds {
            write_event(&mut out, Lsn::new(3), &Event { at_us, kind });
        }
        write_entry(&mut out, Lsn::new(4), Bytes::from_static(b"\xff"));
        let expected = r#"{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"received","message":"3","received_id":"t.1","peer":"192.0.2.1:25","with":"ESMTP","from":"<>","to":["<\"a b\"@example.org>"],"recipients":1,"bytes":10,"mailboxes":["example.org/a/Maildir"],"mailbox_count":1,"tenant":"acme"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"delivered","message":"3","target":0,"mailbox":"example.org/a/Maildir"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"given_up","message":"3","target":0,"mailbox":"example.org/a/Maildir","error":"lost"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"delivered","message":"3","transport_target":1,"transport":"lmtp:d:24","recipient":"a@example.org"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"held","message":"3","transport_target":1,"transport":"lmtp:d:24","recipient":"a@example.org","stage":"RCPT","error":"550 no"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"deferred","message":"2","relay_target":1,"recipient":"ann@there.example","from":"<s@example.net>","campaign":"may","host":"mx.example","code":451,"status":"4.4.2","reply":"451 4.4.2 lost","maybe_delivered":true,"attempts":2,"age_secs":300,"next":"2023-11-14T22:23:20Z"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"interrupted","host":"mx.example","stage":"idle","code":421,"reply":"421 bye"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"admin","action":"hold","uid":0,"reason":"look","message":"2","relay_target":1,"recipient":"ann@there.example"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"admin","action":"suspend","uid":1000,"scope":"domain","name":"there.example","until":"2023-11-14T22:23:20Z"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"feedback","kind":"abuse","report":"3","message":"2","relay_target":0,"recipient":"ann@there.example"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"login","peer":"192.0.2.1:40112","listener":"192.0.2.9:587","mechanism":"PLAIN","user":"ann@example.org"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"refused","stage":"login","peer":"192.0.2.1:40112","listener":"192.0.2.9:587","mechanism":"PLAIN","user":"ann@example.org","reply":"535 5.7.8 no"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"tls_failed","host":"mx.example","site":"10 mx.example dnssec","demand":"dane","result":"certificate","error":"no match"}
{"lsn":"3","time":"2023-11-14T22:13:20.000001Z","event":"shard","shard":3,"state":"differs","node":"mx2"}
{"lsn":"4","event":"unreadable"}
"#;
        assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
    }
}
