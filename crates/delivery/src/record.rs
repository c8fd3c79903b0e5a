//! A message as the journal keeps it: where it is to go, and its bytes or the name of the file that has them.
//!
//! ARCHITECTURE.md shows the layout as a table.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::session::{SessionTag, TAG_BYTES};

/// A message to be kept: one copy in the journal however many mailboxes it goes to.
#[derive(Debug, Clone)]
pub struct Message {
    /// Where it goes; at least one.
    pub targets: Vec<Target>,
    /// Its bytes.
    pub body: Body,
    /// What to do with its line ends.
    pub line_ends: LineEnds,
}

/// One mailbox that gets the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Header fields that stand in front of the body in this mailbox alone.
    pub prefix: Bytes,
}

/// The bytes of a message.
#[derive(Debug, Clone)]
pub enum Body {
    /// In memory, in the pieces in which they came.
    Memory(Vec<Bytes>),
    /// In a file of the spool, synced.
    Spooled(Spooled),
}

impl Body {
    /// Bytes of the body.
    pub fn len(&self) -> u64 {
        match self {
            Body::Memory(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            Body::Spooled(spooled) => spooled.len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A body in a file of its own.
#[derive(Debug, Clone)]
pub struct Spooled {
    /// Number of the file in the spool.
    pub(crate) file: u64,
    /// Bytes of the body.
    pub(crate) len: u64,
    /// CRLF pairs in it, if it is lossless.
    pub(crate) line_ends: u64,
    /// Whether all its CRs and LFs are in such pairs.
    pub(crate) lossless: bool,
    /// LFs, if it has no CR at all; otherwise 0. What it has more on the wire when it is kept as it is.
    pub(crate) lone_lfs: u64,
    /// Removes the file when the last handle goes and no record took it over.
    pub(crate) guard: Option<Arc<crate::spool::Guard>>,
}

/// How a body is put into a Maildir file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnds {
    /// Byte by byte as it was given.
    AsGiven,
    /// CRLF becomes LF, unless the body has a bare CR or LF and would not come back the same.
    ToLf,
}

/// A message as it was read back.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub secs: u64,
    /// Random for each opening, and part of every file name, so that no two journals make the same one.
    pub nonce: u32,
    pub host: Arc<str>,
    pub message: Message,
    /// Numbers of the targets; a message that was written again after some were done keeps the others' numbers.
    pub numbers: Vec<u16>,
}

pub(crate) const KIND_MESSAGE: u8 = posthaste_journal::KIND_USER;
pub(crate) const KIND_DELIVERED: u8 = posthaste_journal::KIND_USER + 1;
/// A note with a session's tag: a sync of the mail begins. A checkpoint that succeeds forgets it; where it is found, the sync has failed or was
/// never heard of again, and what the page cache shows of earlier mail may not be on disk.
pub(crate) const KIND_DISTRUST: u8 = posthaste_journal::KIND_USER + 2;

/// A note that a mailbox was tried in vain; a later one for the same mailbox takes its place.
pub(crate) const KIND_WAITS: u8 = posthaste_journal::KIND_USER + 3;

const VERSION: u8 = 1;
const BODY_INLINE: u8 = 0;
const BODY_SPOOLED: u8 = 1;

impl Stored {
    /// The record's payload, ready to be written without another copy of the body.
    pub fn encode(&self) -> Vec<Bytes> {
        let mut head = BytesMut::with_capacity(256);
        head.put_u8(VERSION);
        head.put_u8(matches!(self.message.line_ends, LineEnds::ToLf).into());
        head.put_u64_le(self.secs);
        head.put_u32_le(self.nonce);
        put_bytes(&mut head, self.host.as_bytes());
        head.put_u16_le(self.numbers.len() as u16);
        for (number, target) in self.numbers.iter().zip(&self.message.targets) {
            head.put_u16_le(*number);
            put_bytes(&mut head, target.mailbox.as_bytes());
            put_bytes(&mut head, &target.prefix);
        }
        match &self.message.body {
            Body::Memory(parts) => {
                head.put_u8(BODY_INLINE);
                let mut payload = vec![head.freeze()];
                payload.extend(parts.iter().cloned());
                payload
            }
            Body::Spooled(spooled) => {
                head.put_u8(BODY_SPOOLED);
                head.put_u64_le(spooled.file);
                head.put_u64_le(spooled.len);
                head.put_u64_le(spooled.line_ends);
                head.put_u8(spooled.lossless.into());
                head.put_u64_le(spooled.lone_lfs);
                vec![head.freeze()]
            }
        }
    }

    /// Bytes that it takes in memory, nearly: its body unless that is spooled, and what there is of each target.
    pub fn memory_bytes(&self) -> u64 {
        let body = match &self.message.body {
            Body::Memory(_) => self.message.body.len(),
            Body::Spooled(_) => 0,
        };
        let targets = self.message.targets.iter().map(|target| (target.mailbox.len() + target.prefix.len()) as u64);
        body + targets.sum::<u64>()
    }

    /// The same message for those of its targets alone whose numbers these are.
    pub fn only(mut self, numbers: &[u16]) -> Self {
        let targets = std::mem::take(&mut self.message.targets);
        (self.numbers, self.message.targets) = std::mem::take(&mut self.numbers)
            .into_iter()
            .zip(targets)
            .filter(|(number, _)| numbers.contains(number))
            .unzip();
        self
    }

    /// Reads a payload; `None` if it is none of ours.
    pub fn decode(payload: Bytes) -> Option<Self> {
        let mut rest = Reader(payload);
        if rest.u8()? != VERSION {
            return None;
        }
        let line_ends = if rest.u8()? == 0 { LineEnds::AsGiven } else { LineEnds::ToLf };
        let secs = rest.u64()?;
        let nonce = rest.u32()?;
        let host = rest.text()?;
        let count = rest.u16()?;
        let (mut numbers, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..count {
            numbers.push(rest.u16()?);
            targets.push(Target { mailbox: rest.text()?, prefix: rest.bytes()? });
        }
        let body = match rest.u8()? {
            BODY_INLINE => Body::Memory(vec![rest.0]),
            BODY_SPOOLED => Body::Spooled(Spooled {
                file: rest.u64()?,
                len: rest.u64()?,
                line_ends: rest.u64()?,
                lossless: rest.u8()? != 0,
                lone_lfs: rest.u64()?,
                guard: None,
            }),
            _ => return None,
        };
        Some(Stored { secs, nonce, host, message: Message { targets, body, line_ends }, numbers })
    }
}

/// Which targets of which messages became visible, and in which life of the page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub session: SessionTag,
    pub done: Vec<(u64, u16)>,
}

impl Delivered {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(TAG_BYTES + self.done.len() * 10);
        out.put_slice(&self.session.0);
        for (id, number) in &self.done {
            out.put_u64_le(*id);
            out.put_u16_le(*number);
        }
        out.freeze()
    }

    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (tag, pairs) = payload.split_first_chunk::<TAG_BYTES>()?;
        let pair = |bytes: &[u8]| {
            let id = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            (id, u16::from_le_bytes([bytes[8], bytes[9]]))
        };
        let done = pairs.chunks_exact(10).map(pair).collect();
        pairs.len().is_multiple_of(10).then_some(Delivered { session: SessionTag(*tag), done })
    }
}

/// Why mail for a mailbox waits, for whoever looks at the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waits {
    pub mailbox: Arc<str>,
    pub attempts: u32,
    pub next_try_secs: u64,
    pub error: Arc<str>,
}

impl Waits {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(20 + self.mailbox.len() + self.error.len());
        out.put_u32_le(self.attempts);
        out.put_u64_le(self.next_try_secs);
        put_bytes(&mut out, self.mailbox.as_bytes());
        put_bytes(&mut out, self.error.as_bytes());
        out.freeze()
    }

    pub fn decode(payload: Bytes) -> Option<Self> {
        let mut rest = Reader(payload);
        Some(Waits { attempts: rest.u32()?, next_try_secs: rest.u64()?, mailbox: rest.text()?, error: rest.text()? })
    }
}

/// For the fuzz target alone: a record of this kind as it is written again; `None` if it cannot be read.
#[doc(hidden)]
pub fn rewritten_record(kind: u8, payload: Bytes) -> Option<Vec<u8>> {
    match kind {
        KIND_MESSAGE => Stored::decode(payload).map(|stored| stored.encode().concat()),
        KIND_DELIVERED => Delivered::decode(&payload).map(|note| note.encode().to_vec()),
        KIND_WAITS => Waits::decode(payload).map(|note| note.encode().to_vec()),
        _ => None,
    }
}

fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

struct Reader(Bytes);

impl Reader {
    fn take(&mut self, n: usize) -> Option<Bytes> {
        (self.0.len() >= n).then(|| self.0.split_to(n))
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?[..].try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?[..].try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?[..].try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn text(&mut self) -> Option<Arc<str>> {
        Some(std::str::from_utf8(&self.bytes()?).ok()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(body: Body) -> Stored {
        let target =
            |mailbox: &str| Target { mailbox: mailbox.into(), prefix: Bytes::from_static(b"Delivered-To: x\r\n") };
        let message =
            Message { targets: vec![target("a/Maildir"), target("b/Maildir")], body, line_ends: LineEnds::ToLf };
        Stored { secs: 1_700_000_000, nonce: 0xfeed, host: "mx.example".into(), message, numbers: vec![0, 3] }
    }

    #[test]
    fn a_message_reads_back_as_written() {
        let parts = vec![Bytes::from_static(b"Subject: x\r\n"), Bytes::from_static(b"\r\nbody\r\n")];
        let before = stored(Body::Memory(parts));
        let after = Stored::decode(before.encode().concat().into()).expect("decodes");
        assert_eq!((after.secs, &*after.host, &after.numbers[..]), (1_700_000_000, "mx.example", &[0, 3][..]));
        assert_eq!(after.message.targets, before.message.targets);
        let Body::Memory(parts) = after.message.body else { panic!("the body was in memory") };
        assert_eq!(parts.concat(), b"Subject: x\r\n\r\nbody\r\n");
    }

    #[test]
    fn a_payload_cut_short_is_refused() {
        let spooled = Spooled { file: 7, len: 9, line_ends: 1, lossless: true, lone_lfs: 0, guard: None };
        let whole = stored(Body::Spooled(spooled)).encode().concat();
        for len in 0..whole.len() {
            assert!(Stored::decode(Bytes::copy_from_slice(&whole[..len])).is_none(), "length {len}");
        }
        assert!(Stored::decode(whole.into()).is_some());
    }

    #[test]
    fn delivery_notes_read_back() {
        let note = Delivered { session: SessionTag([7; TAG_BYTES]), done: vec![(1, 0), (1 << 40, 9)] };
        assert_eq!(Delivered::decode(&note.encode()), Some(note.clone()));
        assert_eq!(Delivered::decode(&note.encode()[1..]), None);
        let waits =
            Waits { mailbox: "a/Maildir".into(), attempts: 3, next_try_secs: 1 << 40, error: "no space".into() };
        assert_eq!(Waits::decode(waits.encode()), Some(waits.clone()));
        assert_eq!(Waits::decode(waits.encode().slice(1..)), None);
    }
}
