//! Events as bytes: an entry of the log's stream. ARCHITECTURE.md has the table.
//!
//! An entry is a version and one or more events, each with its kind and length; numbers are little-endian.

mod relay;

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
const OF_RELAY: u8 = 8;
const ADMIN: u8 = 9;
const FEEDBACK: u8 = 10;

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
        Kind::Relay(_) => OF_RELAY,
        Kind::Admin(_) => ADMIN,
        Kind::Feedback(_) => FEEDBACK,
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
        Kind::Relay(of) => relay::put_of_relay(out, of),
        Kind::Admin(admin) => relay::put_admin(out, admin),
        Kind::Feedback(feedback) => relay::put_feedback(out, feedback),
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
            OF_RELAY => Kind::Relay(self.of_relay()?),
            ADMIN => Kind::Admin(self.admin()?),
            FEEDBACK => Kind::Feedback(self.feedback()?),
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
#[path = "entry_tests.rs"]
mod tests;
