//! Events as bytes: an entry of the log's stream. docs/formats.md has the table.
//!
//! An entry is a version and one or more events, each with its kind and length; numbers are little-endian.

mod relay;
mod text;

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use posthaste_intake::ArrivalFacts;
use posthaste_spool::{Fields, Lsn};

use self::text::{put_short, text};
use crate::event::{
    Delivered, Event, EventKind, Fate, LIST_MAX, LeftOut, LoginEvent, MailboxRef, OfTransport, ReceivedEvent,
    RefusalStage, RefusedEvent, ShardTrouble, TlsFailed, TransportTarget, WaitingEvent,
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
const LOGIN: u8 = 11;
const TLS_FAILED: u8 = 12;
const SHARD: u8 = 13;

/// Begins an entry.
pub(crate) fn begin() -> BytesMut {
    let mut out = BytesMut::with_capacity(512);
    out.put_u8(VERSION);
    out
}

/// Appends an event to an entry.
pub(crate) fn put(out: &mut BytesMut, event: &Event) {
    let kind = match &event.kind {
        EventKind::Received(_) => RECEIVED,
        EventKind::Delivered(_) => DELIVERED,
        EventKind::Waiting(_) => WAITING,
        EventKind::Refused(_) => REFUSED,
        EventKind::LeftOut(_) => LEFT_OUT,
        EventKind::GivenUp(_) => GIVEN_UP,
        EventKind::Transport(_) => OF_TRANSPORT,
        EventKind::Relay(_) => OF_RELAY,
        EventKind::Admin(_) => ADMIN,
        EventKind::Feedback(_) => FEEDBACK,
        EventKind::Login(_) => LOGIN,
        EventKind::TlsFailed(_) => TLS_FAILED,
        EventKind::Shard(_) => SHARD,
    };
    out.put_u8(kind);
    let at = out.len();
    out.put_u32_le(0);
    out.put_u64_le(event.at_us);
    match &event.kind {
        EventKind::Received(received) => {
            let ArrivalFacts { id, peer, helo, with, sender, message_id, .. } = &received.facts;
            [id, peer, helo, with, sender, message_id].into_iter().for_each(|text| put_short(out, text));
            out.put_u64_le(received.facts.bytes);
            put_list(out, &received.facts.recipients, received.facts.recipient_count);
            put_list(out, &received.mailboxes, received.mailbox_count);
            let facts = &received.facts;
            let rest = [&facts.tls, &facts.user, &received.tenant, &facts.auth, &facts.junk];
            rest.into_iter().for_each(|text| put_short(out, text));
            out.put_u64_le(received.message.map_or(0, Lsn::get));
        }
        EventKind::Delivered(Delivered { targets }) => targets.iter().for_each(|target| put_target(out, target)),
        EventKind::Waiting(WaitingEvent { target, error }) | EventKind::GivenUp(WaitingEvent { target, error }) => {
            put_target(out, target);
            put_short(out, error);
        }
        EventKind::Transport(OfTransport { fate, stage, error, targets }) => {
            out.put_u8(fate_number(*fate));
            put_short(out, stage);
            put_short(out, error);
            for TransportTarget { message, number, transport, recipient } in targets {
                out.put_u64_le(message.get());
                out.put_u16_le(*number);
                put_short(out, transport);
                put_short(out, recipient);
            }
        }
        EventKind::Relay(of) => relay::put_of_relay(out, of),
        EventKind::Admin(admin) => relay::put_admin(out, admin),
        EventKind::Feedback(feedback) => relay::put_feedback(out, feedback),
        EventKind::Refused(refused) => {
            let RefusedEvent { id, peer, helo, sender, reply, why, .. } = refused;
            out.put_u8(stage_number(refused.stage));
            [id, peer, helo, sender, reply, why].into_iter().for_each(|text| put_short(out, text));
            put_list(out, &refused.recipients, refused.recipient_count);
            put_short(out, &refused.user);
        }
        EventKind::Login(login) => {
            let LoginEvent { peer, helo, listener, tls, mechanism, user, reply, why } = login;
            [peer, helo, listener, tls, mechanism, user, reply, why].into_iter().for_each(|text| put_short(out, text));
        }
        EventKind::TlsFailed(TlsFailed { host, site, demand, result, error }) => {
            [host, site, demand, result, error].into_iter().for_each(|text| put_short(out, text));
        }
        EventKind::Shard(ShardTrouble { shard, state, node, why }) => {
            out.put_u16_le(*shard);
            [state, node, why].into_iter().for_each(|text| put_short(out, text));
        }
        EventKind::LeftOut(LeftOut { refused, others }) => {
            out.put_u64_le(*refused);
            out.put_u64_le(*others);
        }
    }
    let len = u32::try_from(out.len() - at - 4).expect("texts and lists are bounded");
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Reads an entry; `None` if this version does not know it.
pub(crate) fn decode(payload: Bytes) -> Option<Vec<Event>> {
    let mut rest = Fields::of(&payload);
    if rest.u8()? != VERSION {
        return None;
    }
    let mut events = Vec::new();
    while !rest.is_empty() {
        let kind = rest.u8()?;
        let len = rest.u32()?;
        let mut fields = Fields::of(rest.bytes(len as usize)?);
        let event = Event { at_us: fields.u64()?, kind: of_kind(&mut fields, kind)? };
        fields.end()?;
        events.push(event);
    }
    Some(events)
}

fn stage_number(stage: RefusalStage) -> u8 {
    match stage {
        RefusalStage::Connection => 1,
        RefusalStage::Mail => 2,
        RefusalStage::Recipient => 3,
        RefusalStage::Message => 4,
        RefusalStage::Aborted => 5,
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

fn put_list(out: &mut BytesMut, texts: &[Arc<str>], count: u32) {
    let texts = &texts[..texts.len().min(LIST_MAX)];
    out.put_u32_le(count);
    out.put_u16_le(texts.len() as u16);
    texts.iter().for_each(|text| put_short(out, text));
}

fn put_target(out: &mut BytesMut, target: &MailboxRef) {
    out.put_u64_le(target.message.get());
    out.put_u16_le(target.number);
    put_short(out, &target.mailbox);
}

fn of_kind(rest: &mut Fields<'_>, kind: u8) -> Option<EventKind> {
    Some(match kind {
        RECEIVED => EventKind::Received(received(rest)?),
        DELIVERED => {
            let mut targets = Vec::new();
            while !rest.is_empty() {
                targets.push(target(rest)?);
            }
            EventKind::Delivered(Delivered { targets })
        }
        WAITING => EventKind::Waiting(WaitingEvent { target: target(rest)?, error: text(rest)? }),
        GIVEN_UP => EventKind::GivenUp(WaitingEvent { target: target(rest)?, error: text(rest)? }),
        OF_TRANSPORT => EventKind::Transport(of_transport(rest)?),
        REFUSED => EventKind::Refused(refused(rest)?),
        LOGIN => EventKind::Login(LoginEvent {
            peer: text(rest)?,
            helo: text(rest)?,
            listener: text(rest)?,
            tls: text(rest)?,
            mechanism: text(rest)?,
            user: text(rest)?,
            reply: text(rest)?,
            why: text(rest)?,
        }),
        TLS_FAILED => EventKind::TlsFailed(TlsFailed {
            host: text(rest)?,
            site: text(rest)?,
            demand: text(rest)?,
            result: text(rest)?,
            error: text(rest)?,
        }),
        SHARD => EventKind::Shard(ShardTrouble {
            shard: rest.u16()?,
            state: text(rest)?,
            node: text(rest)?,
            why: text(rest)?,
        }),
        OF_RELAY => EventKind::Relay(relay::of_relay(rest)?),
        ADMIN => EventKind::Admin(relay::admin(rest)?),
        FEEDBACK => EventKind::Feedback(relay::feedback(rest)?),
        LEFT_OUT => EventKind::LeftOut(LeftOut { refused: rest.u64()?, others: rest.u64()? }),
        _ => return None,
    })
}

fn received(rest: &mut Fields<'_>) -> Option<ReceivedEvent> {
    let id = text(rest)?;
    let peer = text(rest)?;
    let helo = text(rest)?;
    let with = text(rest)?;
    let sender = text(rest)?;
    let message_id = text(rest)?;
    let bytes = rest.u64()?;
    let (recipients, recipient_count) = list(rest)?;
    let (mailboxes, mailbox_count) = list(rest)?;
    let tls = text(rest)?;
    let user = text(rest)?;
    let tenant = text(rest)?;
    let auth = text(rest)?;
    let junk = text(rest)?;
    let facts = ArrivalFacts {
        id,
        peer,
        helo,
        with,
        tls,
        user,
        sender,
        recipients,
        recipient_count,
        bytes,
        message_id,
        auth,
        junk,
    };
    let message = Some(rest.u64()?).filter(|number| *number > 0).map(Lsn::new);
    Some(ReceivedEvent { facts, mailboxes, mailbox_count, tenant, message })
}

fn of_transport(rest: &mut Fields<'_>) -> Option<OfTransport> {
    let fate = match rest.u8()? {
        1 => Fate::Delivered,
        2 => Fate::Waiting,
        3 => Fate::Held,
        4 => Fate::GivenUp,
        _ => return None,
    };
    let stage = text(rest)?;
    let error = text(rest)?;
    let mut targets = Vec::new();
    while !rest.is_empty() {
        let message = rest.lsn()?;
        let number = rest.u16()?;
        targets.push(TransportTarget { message, number, transport: text(rest)?, recipient: text(rest)? });
    }
    Some(OfTransport { fate, stage, error, targets })
}

fn refused(rest: &mut Fields<'_>) -> Option<RefusedEvent> {
    let stage = match rest.u8()? {
        1 => RefusalStage::Connection,
        2 => RefusalStage::Mail,
        3 => RefusalStage::Recipient,
        4 => RefusalStage::Message,
        5 => RefusalStage::Aborted,
        _ => return None,
    };
    let id = text(rest)?;
    let peer = text(rest)?;
    let helo = text(rest)?;
    let sender = text(rest)?;
    let reply = text(rest)?;
    let why = text(rest)?;
    let (recipients, recipient_count) = list(rest)?;
    let user = text(rest)?;
    Some(RefusedEvent { stage, id, peer, helo, user, sender, recipients, recipient_count, reply, why })
}

fn list(rest: &mut Fields<'_>) -> Option<(Vec<Arc<str>>, u32)> {
    let count = rest.u32()?;
    let listed = rest.u16()?;
    if usize::from(listed) > LIST_MAX {
        return None;
    }
    let texts = (0..listed).map(|_| text(rest)).collect::<Option<_>>()?;
    Some((texts, count))
}

fn target(rest: &mut Fields<'_>) -> Option<MailboxRef> {
    Some(MailboxRef { message: rest.lsn()?, number: rest.u16()?, mailbox: text(rest)? })
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
