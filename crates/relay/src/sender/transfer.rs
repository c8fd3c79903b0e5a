//! Transfer of messages between queues: export and import.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use posthaste_spool::{AppendError, Batch, Body, Entry, Lsn, MessageReader, Upload};

use super::control::{ControlError, Filter, append, each, note_hold};
use super::messages::{Envelope, LoadError};
use super::observer::{ActedOn, Originator};
use super::relay::Relay;
use super::shared::Shared;
use posthaste_queue::entry::{Forwarded, HoldReason};
use posthaste_queue::{
    ImportNoted, Imported, ImportedState, Origin, QueueAction, QueueEntry, Queued, QueuedRecipient, RecipientKey, Secs,
    Status, Waits,
};

/// A message with the state of its recipients. Times are Unix seconds, as queues differ in their clocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Its number in the original queue.
    pub message: Lsn,
    /// The message as received; recipients (including forwarded ones) and times are in the fields below.
    pub queued: Queued,
    /// When it was received.
    pub received: u64,
    /// Earliest time of an attempt; 0 for at once.
    pub not_before: u64,
    /// Time of giving up; 0 for the maximum age of its schedule.
    pub expires: u64,
    /// Exported recipients, numbers ascending.
    pub recipients: Vec<ExportedRecipient>,
}

/// A recipient of an exported message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedRecipient {
    /// The recipient as received.
    pub to: QueuedRecipient,
    /// True if it is sent to this recipient with the forwarding sender of `queued`.
    pub is_forwarded: bool,
    /// Attempts so far.
    pub attempts: u8,
    /// Time of the next attempt; for a hold its end, 0 without one.
    pub next: u64,
    /// Result of the last attempt.
    pub status: Status,
    /// The reason of its hold, if it is held; without the hold's end.
    pub held: Option<HoldReason>,
    /// The sender was notified of the delay.
    pub delay_told: bool,
    /// The next hop's last reply; empty if unknown.
    pub reply: Arc<str>,
}

/// The counts of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportedCount {
    /// Exported recipients.
    pub recipients: u64,
    /// Recipients left out because an attempt is in flight.
    pub under_way: u64,
}

/// Result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Import {
    /// Its number here; `None` if all of its recipients were here already.
    pub message: Option<Lsn>,
    /// Imported recipients.
    pub recipients: u64,
    /// Recipients imported before, or waiting here.
    pub duplicates: u64,
}

/// Error of an import.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The queue, or its memory of imports, is full.
    #[error("the queue has no room for it")]
    NoRoom,
    /// The spool refuses it now.
    #[error("the spool cannot record it: {0}")]
    Spool(String),
    /// Its envelope is too large for a batch.
    #[error("it is too large: {0}")]
    TooLarge(String),
}

impl Relay {
    /// Passes matching messages to `show`, in the order of their numbers, until it returns false; one with many
    /// recipients may come in parts. `hold`: the operator for whom they are first held here, durably; what is shown is
    /// their state before that. Recipients in flight are left out. Blocks.
    ///
    /// # Errors
    /// The spool refuses to hold them.
    pub fn export(
        &self,
        filter: &Filter,
        hold: Option<&Originator>,
        show: &mut dyn FnMut(Exported) -> bool,
    ) -> Result<ExportedCount, ControlError> {
        let shared = &self.0.shared;
        let mut count = ExportedCount::default();
        let mut failed = None;
        each(shared, filter, true, &mut |found| {
            for of_message in found.chunk_by(|(one, _), (other, _)| one.message == other.message) {
                let message = of_message[0].0.message;
                // An unreadable one was settled meanwhile, or is damaged, which its attempts report.
                let Some(envelope) = &of_message[0].1 else { continue };
                let keys = of_message.iter().map(|(key, _)| *key);
                let exported = match exported(shared, message, envelope, keys, hold, &mut count) {
                    Ok(exported) => exported,
                    Err(error) => {
                        failed = Some(error);
                        return false;
                    }
                };
                if !exported.recipients.is_empty() && !show(exported) {
                    return false;
                }
            }
            true
        });
        failed.map_or(Ok(count), Err)
    }

    /// Bytes of a waiting message.
    ///
    /// # Errors
    /// It cannot be read, or no longer waits.
    pub fn content_len(&self, message: Lsn) -> Result<u64, ControlError> {
        self.0.shared.messages.body_len(message).map_err(unreadable)
    }

    /// A piece of a message from `at` on; empty beyond its end. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or no longer waits.
    pub fn content_piece(&self, message: Lsn, at: u64, len: u64) -> Result<Bytes, ControlError> {
        let reader = MessageReader::in_spool(self.0.shared.spool.clone(), message, len);
        reader.piece(at, PIECE_BYTES).map_err(|error| ControlError::Unreadable(error.to_string()))
    }

    /// The identity in all queues of a message that waits here. `content` is the SHA-256 of its body. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or no longer waits.
    pub fn origin(&self, message: Lsn, content: &[u8]) -> Result<Origin, ControlError> {
        let shared = &self.0.shared;
        let entries = shared.spool.entries(shared.stream, message);
        let entries = entries.map_err(|error| ControlError::Unreadable(error.to_string()))?;
        let origin = entries.iter().find_map(|payload| match QueueEntry::decode(payload) {
            Ok(QueueEntry::Queued(_)) => Some(Origin::of(message, payload, content)),
            Ok(QueueEntry::Imported(imported)) => Some(imported.origin),
            _ => None,
        });
        origin.ok_or(ControlError::NotWaiting(message))
    }

    /// Reserves space for the body of an import, of `bytes` at most. Blocks.
    ///
    /// # Errors
    /// The spool has no space.
    pub fn upload(&self, bytes: u64) -> std::io::Result<Upload> {
        self.0.shared.spool.upload(bytes)
    }

    /// Imports a message, unless its recipients were imported before or wait here. Blocks until it is durable.
    ///
    /// # Errors
    /// See [`ImportError`]; then nothing of it is kept.
    pub fn import(
        &self,
        by: &Originator,
        origin: Origin,
        mut message: Exported,
        message_id: &str,
        body: Body,
    ) -> Result<Import, ImportError> {
        let shared = &self.0.shared;
        let _one = shared.operator.importing();
        let all = message.recipients.len();
        let is_from_here = self.is_here(message.message, origin);
        {
            let queue = shared.queue();
            message.recipients.retain(|recipient| {
                let key = RecipientKey { message: message.message, number: recipient.to.number };
                !(queue.was_imported(origin, recipient.to.number) || is_from_here && queue.show(key).is_some())
            });
            let new = message.recipients.len();
            if new > 0 && !queue.can_import(new) {
                return Err(ImportError::NoRoom);
            }
        }

        let recipients = message.recipients.len() as u64;
        let duplicates = all as u64 - recipients;
        if recipients == 0 {
            return Ok(Import { message: None, recipients, duplicates });
        }
        if !self.has_room(recipients) {
            return Err(ImportError::NoRoom);
        }
        let bytes = body.len();
        let imported = imported(shared, origin, message);
        let observer = shared.config.observer.as_ref();
        let event = observer.and_then(|observer| observer.imported(by, &imported, message_id, bytes));
        let noted = QueueEntry::ImportNoted(ImportNoted::of(&imported)).encode().into();
        let payload = QueueEntry::Imported(Box::new(imported)).encode().into();
        let stream = shared.stream;
        let entry = Entry { stream, needs_body: true, payload };
        let noted = Entry { stream, needs_body: false, payload: noted };
        let (tell, told) = sync_channel(1);
        let then = move |outcome: Result<Lsn, AppendError>| drop(tell.send(outcome));
        shared.spool.append(Batch { entries: [entry, noted].into_iter().chain(event).collect(), body }, Box::new(then));
        match told.recv() {
            Ok(Ok(lsn)) => Ok(Import { message: Some(lsn), recipients, duplicates }),
            Ok(Err(error @ AppendError::TooLarge { .. })) => Err(ImportError::TooLarge(error.to_string())),
            Ok(Err(error)) => Err(ImportError::Spool(error.to_string())),
            Err(_) => Err(ImportError::Spool("it has ended".to_owned())),
        }
    }

    /// True if a message with that number was received here, and waits.
    fn is_here(&self, message: Lsn, origin: Origin) -> bool {
        let shared = &self.0.shared;
        let waits = shared.queue().has_message(message);
        waits && self.digest(message).and_then(|content| self.origin(message, &content)).is_ok_and(|own| own == origin)
    }

    fn digest(&self, message: Lsn) -> Result<Vec<u8>, ControlError> {
        let len = self.content_len(message)?;
        let mut at = 0;
        let mut digest = Context::new(&SHA256);
        loop {
            let piece = self.content_piece(message, at, len)?;
            if piece.is_empty() {
                return Ok(digest.finish().as_ref().to_vec());
            }
            digest.update(&piece);
            at += piece.len() as u64;
        }
    }
}

fn exported(
    shared: &Shared,
    message: Lsn,
    envelope: &Envelope,
    keys: impl Iterator<Item = RecipientKey>,
    hold: Option<&Originator>,
    count: &mut ExportedCount,
) -> Result<Exported, ControlError> {
    let wall = shared.time.wall_clock();
    let forwarded = envelope.queued.forwarded.as_deref();
    let to_wall = |secs| wall(secs).max(1).cast_unsigned();
    let mut recipients = Vec::new();
    let mut changes = Vec::new();
    let mut told = Vec::new();
    let expires = {
        let mut queue = shared.queue();
        for key in keys {
            let (Some(state), Some(to)) = (queue.show(key), envelope.recipient(key.number)) else { continue };
            let (next, held) = match state.waits {
                Waits::Busy => {
                    count.under_way += 1;
                    continue;
                }
                Waits::Held(HoldReason::Until(until)) => (to_wall(until), Some(HoldReason::Operator)),
                Waits::Held(reason) => (0, Some(reason)),
                Waits::Until(next) => (to_wall(next), None),
                Waits::Due | Waits::Suspended(_) => (to_wall(queue.now()), None),
            };
            let change = hold.and_then(|_| queue.act(key, HOLD));
            if change.is_some() {
                told.push(ActedOn { key, recipient: to.address.clone() });
            }
            changes.extend(change);
            recipients.push(ExportedRecipient {
                to: to.clone(),
                is_forwarded: forwarded.is_some_and(|forwarded| forwarded.has(key.number)),
                attempts: state.attempts,
                next,
                status: state.status,
                held,
                delay_told: queue.is_delay_told(key),
                reply: Arc::default(),
            });
        }
        queue.own_expiry(message)
    };
    for recipient in recipients.iter_mut().take(REPLIES_MAX) {
        let said = shared.outcomes.replies.of(RecipientKey { message, number: recipient.to.number });
        recipient.reply = said.map_or_else(Arc::default, |said| said.text);
    }
    if let (Some(by), false) = (hold, changes.is_empty()) {
        let mut entries = vec![shared.outcomes.recorder.entry(shared.time.now(), &changes)];
        let observer = shared.config.observer.as_ref().filter(|observer| observer.wants_acted());
        entries.extend(observer.and_then(|observer| observer.acted(by, HOLD, told)));
        if let Err(error) = append(shared, entries) {
            let mut queue = shared.queue();
            changes.iter().for_each(|change| queue.abandon(change.key));
            return Err(error);
        }
        let keys: Vec<RecipientKey> = changes.iter().map(|change| change.key).collect();
        note_hold(shared, HOLD, &keys, by)?;
    }
    count.recipients += recipients.len() as u64;
    let or_none = |secs: Secs| if secs == 0 { 0 } else { to_wall(secs) };
    let forwarded = forwarded.map(|of| Box::new(Forwarded { sender: of.sender.clone(), numbers: Vec::new() }));
    let queued = Queued { recipients: Vec::new(), forwarded, ..envelope.queued.clone() };
    let received = to_wall(queued.received);
    let not_before = or_none(queued.not_before);
    Ok(Exported { message, queued, received, not_before, expires: or_none(expires), recipients })
}

fn imported(shared: &Shared, origin: Origin, message: Exported) -> Imported {
    let now = shared.time.now();
    let wall = wall_secs();
    let from_wall = |secs: u64, wall: u64| {
        let at = i64::from(now) + secs.min(i64::MAX as u64).cast_signed().saturating_sub(wall.cast_signed());
        Secs::try_from(at.max(1)).unwrap_or(Secs::MAX - 1)
    };
    let or_none = |secs: u64| if secs == 0 { 0 } else { from_wall(secs, wall) };
    let mut recipients = Vec::new();
    let mut states = Vec::new();
    let mut forwarded = message.queued.forwarded;
    for recipient in message.recipients {
        if let Some(forwarded) = forwarded.as_mut().filter(|_| recipient.is_forwarded) {
            forwarded.numbers.push(recipient.to.number);
        }
        let next = from_wall(recipient.next, wall).max(now);
        let held = match recipient.held {
            Some(HoldReason::Operator) if recipient.next > 0 => Some(HoldReason::Until(next)),
            held => held,
        };
        states.push(ImportedState {
            attempts: recipient.attempts,
            next: if held.is_some() { 0 } else { next },
            status: recipient.status,
            held,
            delay_told: recipient.delay_told,
            reply: recipient.reply.into(),
        });
        recipients.push(recipient.to);
    }
    let received = from_wall(message.received, wall).min(now);
    let not_before = or_none(message.not_before);
    let expires = or_none(message.expires);
    let queued = Queued { received, not_before, expires, recipients, forwarded, ..message.queued };
    Imported { origin, at: now, queued, states }
}

fn unreadable(error: LoadError) -> ControlError {
    ControlError::Unreadable(error.to_string())
}

fn wall_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The hold of exported mail, until an operator changes it.
const HOLD: QueueAction = QueueAction::Hold(None);
/// Bytes of one read.
const PIECE_BYTES: u64 = 1 << 20;
/// Recipients of one message whose replies are exported.
const REPLIES_MAX: usize = 1000;
