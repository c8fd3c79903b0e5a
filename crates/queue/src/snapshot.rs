//! Snapshots: the queue as a byte stream, written while the queue changes.
//!
//! A snapshot is made in parts. It may or may not include changes made meanwhile: entries have absolute values, so
//! replaying those after the snapshot's position gives the same queue. Numbers are little-endian, texts as in
//! [`entry`](super::entry).
//!
//! | record | fields in order |
//! | --- | --- |
//! | first | magic `PHQUEUE\1`; position (u64) |
//! | 1 *queue* | serial (u32); tenant, campaign, domain, pool (texts). Before the first recipient of it |
//! | 2 *message* | LSN (u64); received, expires (u32 each, 0: by its schedule); number of recipients (u16); each: number (u16), serial of its queue, next attempt, or reason or end of the hold (u32 each), code, enhanced code (u16 each), attempts, bits (u8 each: 1 open, 2 held, 4 delay told, 8 attempt begun, 64 and 128 crashes). A message of many recipients has several |
//! | 3 *suspension* | length (u32); entry *suspended* |
//! | 5 *diversion* | length (u32); entry *diverted* |
//! | 6 *slow* | length (u32); entry *slowed* |
//! | 7 *imported* | number (u16); each: recipient (16 bytes), when (u32) |
//! | 8 *owed* | number (u16); each: LSN of the message (u64), number of the recipient (u16), notice (u8: 0 failed, 1 relayed), code, enhanced code (u16 each) |
//! | 4 *end* | LSN of the last message that came (u64); time (u32) |

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};

use posthaste_spool::{Lsn, put_text};

use super::change::{OwedNotice, RecipientKey, Status};
use super::clock::Secs;
use super::codec::QueueDecodeError;
use super::entry::QueueEntry;
use super::queue::Queue;
use super::recipient::{BEGUN, BUSY, CRASHES_SHIFT, DUE, HELD, Id, OPEN, Recipient, TOLD};
use super::schedule::Schedules;
use super::temporary::{Diversion, Slow};

/// A snapshot in progress.
#[derive(Debug)]
pub struct QueueSnapshot {
    position: Lsn,
    stage: Stage,
    /// Serials of queues written so far, by place: one look-up per recipient, in a queue of millions.
    queues: Vec<Option<u32>>,
}

#[derive(Debug)]
enum Stage {
    Head,
    Imports(u128),
    Owed(RecipientKey),
    Messages(RecipientKey),
    Done,
}

/// Error in restoring a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueRestoreError {
    /// Read error; a snapshot cut short is `UnexpectedEof`.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is damaged, or of a later version.
    #[error(transparent)]
    Format(#[from] QueueDecodeError),
}

const MAGIC: [u8; 8] = *b"PHQUEUE\x01";
const QUEUE: u8 = 1;
const MESSAGE: u8 = 2;
const SUSPENSION: u8 = 3;
const END: u8 = 4;
const DIVERSION: u8 = 5;
const SLOW: u8 = 6;
const IMPORTED: u8 = 7;
const OWED: u8 = 8;
const BITS: u8 = OPEN | HELD | TOLD | BEGUN | 3 << CRASHES_SHIFT;
/// Longest suspension or diversion, in bytes: a scope, a next hop and a reason.
const SUSPENSION_BYTES_MAX: u32 = 1 << 18;

impl QueueSnapshot {
    /// Begins a snapshot of the applied state.
    pub fn begin(queue: &Queue) -> Self {
        QueueSnapshot { position: queue.seen(), stage: Stage::Head, queues: Vec::new() }
    }

    /// The stream position that the durable snapshot stands for.
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// Appends the next part, about 30 KiB, to `out`. `false` if none is left.
    pub fn write(&mut self, queue: &Queue, out: &mut Vec<u8>) -> bool {
        self.stage = match self.stage {
            Stage::Head => {
                out.extend(MAGIC);
                out.extend(self.position.get().to_le_bytes());
                let suspensions = queue.suspensions().map(|entry| (SUSPENSION, entry));
                for (record, entry) in suspensions
                    .chain(queue.diversion_entries().map(|entry| (DIVERSION, entry)))
                    .chain(queue.slowed_entries().map(|entry| (SLOW, entry)))
                {
                    let entry = entry.encode();
                    out.push(record);
                    out.extend((entry.len() as u32).to_le_bytes());
                    out.extend(entry);
                }
                Stage::Imports(0)
            }
            Stage::Imports(from) => {
                let part: Vec<_> = queue.imports.part(from).collect();
                match part.last().and_then(|(recipient, _)| recipient.checked_add(1)) {
                    Some(next) => {
                        out.push(IMPORTED);
                        out.extend((part.len() as u16).to_le_bytes());
                        for (recipient, at) in part {
                            out.extend(recipient.to_le_bytes());
                            out.extend(at.to_le_bytes());
                        }
                        Stage::Imports(next)
                    }
                    None => Stage::Owed(RecipientKey::FIRST),
                }
            }
            Stage::Owed(from) => {
                let part: Vec<_> = queue.owed.part(from).collect();
                match part.last() {
                    Some(&(last, ..)) => {
                        out.push(OWED);
                        out.extend((part.len() as u16).to_le_bytes());
                        for (key, notice, status) in part {
                            key.put(out);
                            out.push(notice.number());
                            status.put(out);
                        }
                        Stage::Owed(last.next())
                    }
                    None => Stage::Messages(RecipientKey::FIRST),
                }
            }
            Stage::Messages(from) => match queue.table.open_from(from) {
                // In the same part as the check for more: a message that came in between would be taken for a settled
                // one.
                None => {
                    out.push(END);
                    out.extend(queue.last_message.get().to_le_bytes());
                    out.extend(queue.recorded.max(queue.now).to_le_bytes());
                    Stage::Done
                }
                Some((ids, next)) => {
                    let message = |id: &Id| queue.table.message(*id).0;
                    ids.chunk_by(|one, other| message(one) == message(other))
                        .for_each(|ids| self.message(queue, ids, out));
                    Stage::Messages(next)
                }
            },
            Stage::Done => return false,
        };
        true
    }

    /// Marks a queue as written; false if it was already.
    fn defines(&mut self, place: usize, serial: u32) -> bool {
        if self.queues.len() <= place {
            self.queues.resize(place + 1, None);
        }
        self.queues[place].replace(serial) != Some(serial)
    }

    fn message(&mut self, queue: &Queue, ids: &[Id], out: &mut Vec<u8>) {
        for id in ids {
            let place = queue.table.get(*id).queue;
            let destination = queue.destinations.at(place);
            if self.defines(place as usize, destination.serial) {
                let name = destination.key.map(|name| &**queue.names.get(name));
                out.push(QUEUE);
                out.extend(destination.serial.to_le_bytes());
                name.iter().for_each(|text| put_text(out, text));
            }
        }
        let (message, received) = queue.table.message(ids[0]);
        out.push(MESSAGE);
        out.extend(message.get().to_le_bytes());
        out.extend(received.to_le_bytes());
        out.extend(queue.expires.get(&message).copied().unwrap_or(0).to_le_bytes());
        out.extend((ids.len() as u16).to_le_bytes());
        for id in ids {
            let recipient = queue.table.get(*id);
            out.extend(recipient.number.to_le_bytes());
            out.extend(queue.destinations.at(recipient.queue).serial.to_le_bytes());
            out.extend(recipient.due.to_le_bytes());
            out.extend(recipient.status.code.to_le_bytes());
            out.extend(recipient.status.enhanced.to_le_bytes());
            out.extend([recipient.attempts, recipient.bits & !(BUSY | DUE)]);
        }
    }
}

impl Queue {
    /// Restores a queue from a snapshot, to be followed by a replay from the snapshot's position. Buffer `from`.
    ///
    /// # Errors
    /// See [`QueueRestoreError`].
    pub fn restore(from: impl Read, schedules: Schedules, seed: u64) -> Result<Queue, QueueRestoreError> {
        let mut from = Source(from);
        let mut queue = Queue::new(schedules, seed);
        if from.array()? != MAGIC {
            return Err(QueueDecodeError::Unknown("version").into());
        }
        queue.seen = Lsn::new(from.u64()?);
        let mut places = HashMap::new();
        let mut last = None;
        loop {
            match from.array::<1>()? {
                [QUEUE] => {
                    let serial = from.u32()?;
                    let names = [from.text()?, from.text()?, from.text()?, from.text()?];
                    let names = names.each_ref().map(|name| &**name);
                    let place = queue.destinations.take(&mut queue.names, &queue.schedules, names);
                    queue.destinations.uncount(place);
                    places.insert(serial, place);
                }
                [MESSAGE] => queue.restore_message(&mut from, &places, &mut last)?,
                [record @ (SUSPENSION | DIVERSION | SLOW)] => {
                    let len = from.u32()?;
                    if len > SUSPENSION_BYTES_MAX {
                        return Err(QueueDecodeError::Bound("bytes of a suspension").into());
                    }
                    let mut entry = vec![0; len as usize];
                    from.0.read_exact(&mut entry)?;
                    match (record, QueueEntry::decode(&entry)?) {
                        (SUSPENSION, QueueEntry::Suspended { scope, until, reason }) => {
                            drop(queue.suspended.insert(scope, (until, reason)))
                        }
                        (DIVERSION, QueueEntry::Diverted { scope, until, to, reason }) => {
                            queue.diverted.insert(scope.clone(), Diversion { scope, until, to, reason })
                        }
                        (SLOW, QueueEntry::Slowed { scope, until, message_rate, connections, reason }) => {
                            queue.slowed.insert(scope, Slow { until, message_rate, connections, reason })
                        }
                        _ => return Err(QueueDecodeError::Unknown("suspension").into()),
                    }
                }
                [IMPORTED] => {
                    for _ in 0..u16::from_le_bytes(from.array()?) {
                        let recipient = u128::from_le_bytes(from.array()?);
                        queue.imports.restore(recipient, from.u32()?);
                    }
                }
                [OWED] => queue.restore_owed(&mut from)?,
                [END] => break,
                _ => return Err(QueueDecodeError::Unknown("record").into()),
            }
        }
        (queue.last_message, queue.recorded) = (Lsn::new(from.u64()?), from.u32()?);
        let last = last.map(|last: RecipientKey| last.message).into_iter().chain(queue.owed.last_message()).max();
        if last.is_some_and(|last| last > queue.last_message) {
            return Err(QueueDecodeError::Order.into());
        }
        places.retain(|_, place| queue.destinations.at(*place).open == 0);
        let unused: HashSet<u32> = places.into_values().collect();
        unused.into_iter().for_each(|place| drop(queue.destinations.remove(&mut queue.names, place)));
        Ok(queue)
    }

    fn restore_owed(&mut self, from: &mut Source<impl Read>) -> Result<(), QueueRestoreError> {
        for _ in 0..u16::from_le_bytes(from.array()?) {
            let message = Lsn::new(from.u64()?);
            let number = u16::from_le_bytes(from.array()?);
            let [notice] = from.array()?;
            let status =
                Status { code: u16::from_le_bytes(from.array()?), enhanced: u16::from_le_bytes(from.array()?) };
            self.owed.insert(RecipientKey { message, number }, OwedNotice::of(notice)?, status);
        }
        Ok(())
    }

    fn restore_message(
        &mut self,
        from: &mut Source<impl Read>,
        places: &HashMap<u32, u32>,
        last: &mut Option<RecipientKey>,
    ) -> Result<(), QueueRestoreError> {
        let message = Lsn::new(from.u64()?);
        let received: Secs = from.u32()?;
        let expires: Secs = from.u32()?;
        let mut recipients = Vec::new();
        for _ in 0..u16::from_le_bytes(from.array()?) {
            let number = u16::from_le_bytes(from.array()?);
            let serial = from.u32()?;
            let due = from.u32()?;
            let status =
                Status { code: u16::from_le_bytes(from.array()?), enhanced: u16::from_le_bytes(from.array()?) };
            let [attempts, bits] = from.array()?;
            let key = RecipientKey { message, number };
            if last.replace(key).is_some_and(|last| last >= key) {
                return Err(QueueDecodeError::Order.into());
            }
            if bits & OPEN == 0 || bits & !BITS != 0 {
                return Err(QueueDecodeError::Unknown("bits").into());
            }
            let place = *places.get(&serial).ok_or(QueueDecodeError::Unknown("queue"))?;
            self.destinations.count(place);
            let mut recipient = Recipient::new(number, place, due);
            (recipient.status, recipient.attempts, recipient.bits) = (status, attempts, bits);
            recipients.push(recipient);
        }
        if !self.has_room(recipients.len() as u64) {
            return Err(QueueDecodeError::Bound("recipients").into());
        }
        if expires != 0 {
            self.expires.insert(message, expires);
        }
        self.table.push(message, received, &recipients, |_, _| ());
        Ok(())
    }
}

/// Takes fields from a reader.
struct Source<R>(R);

impl<R: Read> Source<R> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, QueueRestoreError> {
        let mut text = vec![0; usize::from(u16::from_le_bytes(self.array()?))];
        self.0.read_exact(&mut text)?;
        String::from_utf8(text).map_err(|_| QueueDecodeError::Text.into())
    }
}
