//! Events as bytes: an entry of the log's stream. ARCHITECTURE.md has the table.
//!
//! An entry is a version and one or more events, each with its kind and length; numbers are little-endian.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use posthaste_spool::Lsn;

use crate::event::{
    Delivered, Event, Fate, Kind, LIST_MAX, LeftOut, OfTransport, Received, Refused, Stage, Target, TransportTarget,
    Waiting,
};

const VERSION: u8 = 1;

const RECEIVED: u8 = 1;
const DELIVERED: u8 = 2;
const WAITING: u8 = 3;
const REFUSED: u8 = 4;
const LEFT_OUT: u8 = 5;
const GIVEN_UP: u8 = 6;
const OF_TRANSPORT: u8 = 7;

/// Bytes of one text: longer ones are cut off.
pub(crate) const TEXT_MAX: usize = 1000;

/// Begins an entry.
pub(crate) fn begin() -> BytesMut {
    let mut out = BytesMut::with_capacity(512);
    out.put_u8(VERSION);
    out
}

/// Appends an event to an entry.
pub(crate) fn put(out: &mut BytesMut, event: &Event) {
    let kind = match &event.kind {
        Kind::Received(_) => RECEIVED,
        Kind::Delivered(_) => DELIVERED,
        Kind::Waiting(_) => WAITING,
        Kind::Refused(_) => REFUSED,
        Kind::LeftOut(_) => LEFT_OUT,
        Kind::GivenUp(_) => GIVEN_UP,
        Kind::Transport(_) => OF_TRANSPORT,
    };
    out.put_u8(kind);
    let at = out.len();
    out.put_u32_le(0);
    out.put_u64_le(event.at_us);
    match &event.kind {
        Kind::Received(received) => {
            let Received { id, peer, helo, with, sender, message_id, .. } = received;
            [id, peer, helo, with, sender, message_id].into_iter().for_each(|text| put_text(out, text));
            out.put_u64_le(received.bytes);
            put_list(out, &received.recipients, received.recipient_count);
            put_list(out, &received.mailboxes, received.mailbox_count);
        }
        Kind::Delivered(Delivered { targets }) => targets.iter().for_each(|target| put_target(out, target)),
        Kind::Waiting(Waiting { target, error }) | Kind::GivenUp(Waiting { target, error }) => {
            put_target(out, target);
            put_text(out, error);
        }
        Kind::Transport(OfTransport { fate, error, targets }) => {
            out.put_u8(fate_number(*fate));
            put_text(out, error);
            for TransportTarget { message, number, transport, recipient } in targets {
                out.put_u64_le(message.get());
                out.put_u16_le(*number);
                put_text(out, transport);
                put_text(out, recipient);
            }
        }
        Kind::Refused(refused) => {
            let Refused { id, peer, helo, sender, reply, why, .. } = refused;
            out.put_u8(stage_number(refused.stage));
            [id, peer, helo, sender, reply, why].into_iter().for_each(|text| put_text(out, text));
            put_list(out, &refused.recipients, refused.recipient_count);
        }
        Kind::LeftOut(LeftOut { refused, others }) => {
            out.put_u64_le(*refused);
            out.put_u64_le(*others);
        }
    }
    let len = u32::try_from(out.len() - at - 4).expect("texts and lists are bounded");
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Reads an entry; `None` if this version does not know it.
pub(crate) fn decode(payload: Bytes) -> Option<Vec<Event>> {
    let mut rest = Fields(payload);
    if rest.u8()? != VERSION {
        return None;
    }
    let mut events = Vec::new();
    while !rest.0.is_empty() {
        let (kind, len) = (rest.u8()?, rest.u32()?);
        let mut fields = Fields(rest.bytes(len as usize)?);
        let event = Event { at_us: fields.u64()?, kind: fields.kind(kind)? };
        if !fields.0.is_empty() {
            return None;
        }
        events.push(event);
    }
    Some(events)
}

fn stage_number(stage: Stage) -> u8 {
    match stage {
        Stage::Connection => 1,
        Stage::Mail => 2,
        Stage::Recipient => 3,
        Stage::Message => 4,
        Stage::Aborted => 5,
    }
}

fn fate_number(fate: Fate) -> u8 {
    match fate {
        Fate::Delivered => 1,
        Fate::Waiting => 2,
        Fate::Held => 3,
        Fate::GivenUp => 4,
    }
}

/// As much of a text as an entry holds.
pub(crate) fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

fn put_text(out: &mut BytesMut, text: &str) {
    let text = short(text);
    out.put_u16_le(text.len() as u16);
    out.put_slice(text.as_bytes());
}

fn put_list(out: &mut BytesMut, texts: &[Arc<str>], count: u32) {
    let texts = &texts[..texts.len().min(LIST_MAX)];
    out.put_u32_le(count);
    out.put_u16_le(texts.len() as u16);
    texts.iter().for_each(|text| put_text(out, text));
}

fn put_target(out: &mut BytesMut, target: &Target) {
    out.put_u64_le(target.message.get());
    out.put_u16_le(target.number);
    put_text(out, &target.mailbox);
}

/// Takes fields from the front; `None` where the bytes end too early.
struct Fields(Bytes);

impl Fields {
    fn kind(&mut self, kind: u8) -> Option<Kind> {
        Some(match kind {
            RECEIVED => {
                let (id, peer, helo, with) = (self.text()?, self.text()?, self.text()?, self.text()?);
                let (sender, message_id, bytes) = (self.text()?, self.text()?, self.u64()?);
                let (recipients, recipient_count) = self.list()?;
                let (mailboxes, mailbox_count) = self.list()?;
                Kind::Received(Received {
                    id,
                    peer,
                    helo,
                    with,
                    sender,
                    recipients,
                    recipient_count,
                    bytes,
                    message_id,
                    mailboxes,
                    mailbox_count,
                })
            }
            DELIVERED => {
                let mut targets = Vec::new();
                while !self.0.is_empty() {
                    targets.push(self.target()?);
                }
                Kind::Delivered(Delivered { targets })
            }
            WAITING => Kind::Waiting(Waiting { target: self.target()?, error: self.text()? }),
            GIVEN_UP => Kind::GivenUp(Waiting { target: self.target()?, error: self.text()? }),
            OF_TRANSPORT => {
                let fate = match self.u8()? {
                    1 => Fate::Delivered,
                    2 => Fate::Waiting,
                    3 => Fate::Held,
                    4 => Fate::GivenUp,
                    _ => return None,
                };
                let (error, mut targets) = (self.text()?, Vec::new());
                while !self.0.is_empty() {
                    let (message, number) = (Lsn::new(self.u64()?), self.u16()?);
                    targets.push(TransportTarget { message, number, transport: self.text()?, recipient: self.text()? });
                }
                Kind::Transport(OfTransport { fate, error, targets })
            }
            REFUSED => {
                let stage = match self.u8()? {
                    1 => Stage::Connection,
                    2 => Stage::Mail,
                    3 => Stage::Recipient,
                    4 => Stage::Message,
                    5 => Stage::Aborted,
                    _ => return None,
                };
                let (id, peer, helo) = (self.text()?, self.text()?, self.text()?);
                let (sender, reply, why) = (self.text()?, self.text()?, self.text()?);
                let (recipients, recipient_count) = self.list()?;
                Kind::Refused(Refused { stage, id, peer, helo, sender, recipients, recipient_count, reply, why })
            }
            LEFT_OUT => Kind::LeftOut(LeftOut { refused: self.u64()?, others: self.u64()? }),
            _ => return None,
        })
    }

    fn bytes(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.0.len()).then(|| self.0.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?[..].try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text that could have been written: not over the bound.
    fn text(&mut self) -> Option<Arc<str>> {
        let len = usize::from(self.u16()?);
        let bytes = self.bytes(len).filter(|_| len <= TEXT_MAX)?;
        Some(std::str::from_utf8(&bytes).ok()?.into())
    }

    fn list(&mut self) -> Option<(Vec<Arc<str>>, u32)> {
        let (count, listed) = (self.u32()?, self.u16()?);
        if usize::from(listed) > LIST_MAX {
            return None;
        }
        let texts = (0..listed).map(|_| self.text()).collect::<Option<_>>()?;
        Some((texts, count))
    }

    fn target(&mut self) -> Option<Target> {
        Some(Target { message: Lsn::new(self.u64()?), number: self.u16()?, mailbox: self.text()? })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json;

    fn text() -> impl Strategy<Value = Arc<str>> {
        prop_oneof![".{0,20}", "[a-z]{0,9}", Just("\u{1}\n\"\\\u{2028}".to_owned())].prop_map(Arc::from)
    }

    fn list() -> impl Strategy<Value = (Vec<Arc<str>>, u32)> {
        (prop::collection::vec(text(), 0..5), any::<u32>())
    }

    fn target() -> impl Strategy<Value = Target> {
        (any::<u64>(), any::<u16>(), text()).prop_map(|(message, number, mailbox)| Target {
            message: Lsn::new(message),
            number,
            mailbox,
        })
    }

    fn of_transport() -> impl Strategy<Value = Kind> {
        let target = (target(), text()).prop_map(|(Target { message, number, mailbox }, recipient)| TransportTarget {
            message,
            number,
            transport: mailbox,
            recipient,
        });
        let fates = vec![Fate::Delivered, Fate::Waiting, Fate::Held, Fate::GivenUp];
        (prop::sample::select(fates), text(), prop::collection::vec(target, 0..4))
            .prop_map(|(fate, error, targets)| Kind::Transport(OfTransport { fate, error, targets }))
    }

    fn kind() -> impl Strategy<Value = Kind> {
        let received = ([text(), text(), text(), text(), text(), text()], any::<u64>(), list(), list()).prop_map(
            |([id, peer, helo, with, sender, message_id], bytes, recipients, mailboxes)| {
                let (recipients, recipient_count) = recipients;
                let (mailboxes, mailbox_count) = mailboxes;
                Kind::Received(Received {
                    id,
                    peer,
                    helo,
                    with,
                    sender,
                    recipients,
                    recipient_count,
                    bytes,
                    message_id,
                    mailboxes,
                    mailbox_count,
                })
            },
        );
        let stages = [Stage::Connection, Stage::Mail, Stage::Recipient, Stage::Message, Stage::Aborted];
        let refused = ([text(), text(), text(), text(), text(), text()], list(), prop::sample::select(stages.to_vec()))
            .prop_map(|([id, peer, helo, sender, reply, why], (recipients, recipient_count), stage)| {
                Kind::Refused(Refused { stage, id, peer, helo, sender, recipients, recipient_count, reply, why })
            });
        prop_oneof![
            received,
            refused,
            prop::collection::vec(target(), 0..4).prop_map(|targets| Kind::Delivered(Delivered { targets })),
            (target(), text()).prop_map(|(target, error)| Kind::Waiting(Waiting { target, error })),
            (target(), text()).prop_map(|(target, error)| Kind::GivenUp(Waiting { target, error })),
            of_transport(),
            any::<(u64, u64)>().prop_map(|(refused, others)| Kind::LeftOut(LeftOut { refused, others })),
        ]
    }

    fn encode(events: &[Event]) -> Bytes {
        let mut out = begin();
        events.iter().for_each(|event| put(&mut out, event));
        out.freeze()
    }

    proptest! {
        #[test]
        fn an_entry_reads_back_as_written_and_each_event_is_json(
            events in prop::collection::vec((any::<u64>(), kind()), 0..4)
        ) {
            let events: Vec<Event> = events.into_iter().map(|(at_us, kind)| Event { at_us, kind }).collect();
            let bytes = encode(&events);
            prop_assert_eq!(decode(bytes.clone()), Some(events.clone()));
            prop_assert_eq!(decode([&bytes[..], &[0]].concat().into()), None);
            let mut lines = Vec::new();
            json::write_entry(&mut lines, Lsn::new(7), bytes);
            let text = String::from_utf8(lines).expect("UTF-8");
            let expected: usize = events.iter().map(|event| match &event.kind {
                Kind::Delivered(delivered) => delivered.targets.len(),
                Kind::Transport(of) => of.targets.len(),
                _ => 1,
            }).sum();
            prop_assert_eq!(text.lines().count(), expected);
            for line in text.lines() {
                let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
                prop_assert_eq!(&value["lsn"], 7);
            }
        }

        #[test]
        fn hostile_bytes_are_an_entry_or_none_and_a_line_in_any_case(
            bytes in prop::collection::vec(any::<u8>(), 0..200), known in any::<bool>()
        ) {
            let mut bytes = bytes;
            if let (true, [version, kind, len @ ..]) = (known, &mut bytes[..]) {
                (*version, *kind) = (VERSION, *kind % (OF_TRANSPORT + 1));
                let left = len.len().saturating_sub(4) as u32;
                if let Some(len) = len.first_chunk_mut() {
                    *len = left.to_le_bytes();
                }
            }
            let bytes = Bytes::from(bytes);
            if let Some(events) = decode(bytes.clone()) {
                prop_assert_eq!(decode(encode(&events)), Some(events));
            }
            let mut lines = Vec::new();
            json::write_entry(&mut lines, Lsn::new(7), bytes);
            for line in String::from_utf8(lines).expect("UTF-8").lines() {
                serde_json::from_str::<serde_json::Value>(line).expect("JSON");
            }
        }
    }

    #[test]
    fn long_texts_and_lists_are_cut_off() {
        let long: Arc<str> = "ä".repeat(TEXT_MAX).into();
        let received = Received {
            sender: long.clone(),
            recipients: vec![long; 2 * LIST_MAX],
            recipient_count: 2 * LIST_MAX as u32,
            ..Received::default()
        };
        let bytes = encode(&[Event { at_us: 1, kind: Kind::Received(received) }]);
        assert!(bytes.len() < (LIST_MAX + 2) * (TEXT_MAX + 2));
        let [Event { kind: Kind::Received(received), .. }] = &decode(bytes).expect("an entry")[..] else {
            panic!("another event")
        };
        assert_eq!((received.sender.len(), received.recipients.len()), (TEXT_MAX, LIST_MAX));
        assert_eq!(received.recipient_count, 2 * LIST_MAX as u32);
    }
}
