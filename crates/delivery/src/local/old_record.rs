//! Records of a journal of the first format, for the takeover: a message and what was noted of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::Fields;

use super::message::{LineEnds, Target};
use crate::session::SessionTag;

/// The bytes of a message.
#[derive(Debug, Clone)]
pub(crate) enum OldBody {
    /// In the record.
    Inline(Bytes),
    /// In a file of its own, synced.
    File(OldFile),
}

/// A body in a file of its own.
#[derive(Debug, Clone)]
pub(crate) struct OldFile {
    /// Number of the file.
    pub file: u64,
    /// Bytes of the body.
    pub len: u64,
    /// CRLF pairs in it, if it is lossless.
    pub line_ends: u64,
    /// Whether all its CRs and LFs are in such pairs.
    pub lossless: bool,
    /// LFs, if it has no CR at all; otherwise 0. What it has more on the wire when it is kept as it is.
    pub lone_lfs: u64,
}

/// A message as it was read back.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub secs: u64,
    /// Random for each opening, and part of every file name, so that no two journals make the same one.
    pub nonce: u32,
    pub host: Arc<str>,
    pub line_ends: LineEnds,
    /// With their numbers: a message that was written again after some were done keeps the others'.
    pub targets: Vec<(u16, Target)>,
    pub body: OldBody,
}

pub(crate) const KIND_MESSAGE: u8 = posthaste_journal::KIND_USER;
pub(crate) const KIND_DELIVERED: u8 = posthaste_journal::KIND_USER + 1;
/// A note with a session's tag: a sync of the mail begins. A checkpoint that succeeds forgets it; where it is found, the sync has failed or was
/// never heard of again, and what the page cache shows of earlier mail may not be on disk.
pub(crate) const KIND_DISTRUST: u8 = posthaste_journal::KIND_USER + 2;

/// An attempt at a mailbox failed; a later note for the same mailbox replaces it.
pub(crate) const KIND_WAITS: u8 = posthaste_journal::KIND_USER + 3;

const VERSION: u8 = 1;
const BODY_INLINE: u8 = 0;
const BODY_SPOOLED: u8 = 1;

impl Stored {
    /// Bytes that it takes in memory, nearly: its body unless that is a file, and what there is of each target.
    pub fn memory_bytes(&self) -> u64 {
        let body = if let OldBody::Inline(body) = &self.body { body.len() } else { 0 };
        let targets = self.targets.iter().map(|(_, target)| target.mailbox.len() + target.prefix.len());
        (body + targets.sum::<usize>()) as u64
    }

    /// Reads a payload; `None` if it is none of ours.
    pub fn decode(payload: Bytes) -> Option<Self> {
        let mut rest = Fields::of(&payload);
        if rest.u8()? != VERSION {
            return None;
        }
        let line_ends = if rest.u8()? == 0 { LineEnds::AsGiven } else { LineEnds::ToLf };
        let secs = rest.u64()?;
        let nonce = rest.u32()?;
        let host = text(&mut rest)?;
        let count = rest.u16()?;
        let mut targets = Vec::new();
        for _ in 0..count {
            let (number, mailbox) = (rest.u16()?, text(&mut rest)?);
            targets.push((number, Target { mailbox, prefix: payload.slice_ref(bytes(&mut rest)?) }));
        }
        let body = match rest.u8()? {
            BODY_INLINE => OldBody::Inline(payload.slice_ref(rest.bytes(rest.len())?)),
            BODY_SPOOLED => OldBody::File(OldFile {
                file: rest.u64()?,
                len: rest.u64()?,
                line_ends: rest.u64()?,
                lossless: rest.u8()? != 0,
                lone_lfs: rest.u64()?,
            }),
            _ => return None,
        };
        Some(Stored { secs, nonce, host, line_ends, targets, body })
    }
}

/// Which targets of which messages became visible, and in which life of the page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub session: SessionTag,
    pub done: Vec<(u64, u16)>,
}

impl Delivered {
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut rest = Fields::of(payload);
        let (session, mut done) = (SessionTag(rest.array()?), Vec::new());
        while !rest.is_empty() {
            done.push((rest.u64()?, rest.u16()?));
        }
        Some(Delivered { session, done })
    }
}

/// Why mail for a mailbox waits; for people who inspected the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waits {
    pub mailbox: Arc<str>,
    pub attempts: u32,
    pub next_try_secs: u64,
    pub error: Arc<str>,
}

impl Waits {
    pub fn decode(payload: Bytes) -> Option<Self> {
        let mut rest = Fields::of(&payload);
        let (attempts, next_try_secs) = (rest.u32()?, rest.u64()?);
        Some(Waits { attempts, next_try_secs, mailbox: text(&mut rest)?, error: text(&mut rest)? })
    }
}

/// Bytes behind their length (u32).
fn bytes<'a>(rest: &mut Fields<'a>) -> Option<&'a [u8]> {
    let len = rest.u32()?;
    rest.bytes(len as usize)
}

fn text(rest: &mut Fields<'_>) -> Option<Arc<str>> {
    Some(std::str::from_utf8(bytes(rest)?).ok()?.into())
}

/// For the fuzz target alone: bytes that a message takes in memory; `None` if it cannot be read.
#[doc(hidden)]
pub fn old_message_bytes(payload: Bytes) -> Option<u64> {
    Stored::decode(payload).map(|stored| stored.memory_bytes())
}

/// Where the body with this number is, `dir` being the journal's.
pub(crate) fn body_path(dir: &Path, number: u64) -> PathBuf {
    bodies(dir).join(format!("{number:016x}.body"))
}

/// The journal's directory of bodies.
pub(crate) fn bodies(dir: &Path) -> PathBuf {
    dir.join("spool")
}

/// Writes records, for tests of the takeover.
#[cfg(test)]
pub(crate) mod encode {
    use bytes::{BufMut, BytesMut};

    use super::*;

    impl Stored {
        pub(crate) fn encode(&self) -> Bytes {
            let mut out = BytesMut::new();
            out.put_u8(VERSION);
            out.put_u8(matches!(self.line_ends, LineEnds::ToLf).into());
            out.put_u64_le(self.secs);
            out.put_u32_le(self.nonce);
            put_bytes(&mut out, self.host.as_bytes());
            out.put_u16_le(self.targets.len() as u16);
            for (number, target) in &self.targets {
                out.put_u16_le(*number);
                put_bytes(&mut out, target.mailbox.as_bytes());
                put_bytes(&mut out, &target.prefix);
            }
            match &self.body {
                OldBody::Inline(body) => {
                    out.put_u8(BODY_INLINE);
                    out.put_slice(body);
                }
                OldBody::File(file) => {
                    out.put_u8(BODY_SPOOLED);
                    out.put_u64_le(file.file);
                    out.put_u64_le(file.len);
                    out.put_u64_le(file.line_ends);
                    out.put_u8(file.lossless.into());
                    out.put_u64_le(file.lone_lfs);
                }
            }
            out.freeze()
        }
    }

    impl Delivered {
        pub(crate) fn encode(&self) -> Bytes {
            let mut out = BytesMut::new();
            out.put_slice(&self.session.0);
            for (id, number) in &self.done {
                out.put_u64_le(*id);
                out.put_u16_le(*number);
            }
            out.freeze()
        }
    }

    impl Waits {
        pub(crate) fn encode(&self) -> Bytes {
            let mut out = BytesMut::new();
            out.put_u32_le(self.attempts);
            out.put_u64_le(self.next_try_secs);
            put_bytes(&mut out, self.mailbox.as_bytes());
            put_bytes(&mut out, self.error.as_bytes());
            out.freeze()
        }
    }

    fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
        out.put_u32_le(bytes.len() as u32);
        out.put_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::TAG_BYTES;

    #[test]
    fn a_record_reads_back_as_written_and_not_if_it_is_cut_short() {
        let target =
            |mailbox: &str| Target { mailbox: mailbox.into(), prefix: Bytes::from_static(b"Delivered-To: x\r\n") };
        let body = OldBody::File(OldFile { file: 7, len: 9, line_ends: 1, lossless: true, lone_lfs: 0 });
        let stored = Stored {
            secs: 1_700_000_000,
            nonce: 0xfeed,
            host: "mx.example".into(),
            line_ends: LineEnds::ToLf,
            targets: vec![(0, target("a/Maildir")), (3, target("b/Maildir"))],
            body,
        };
        let whole = stored.encode();
        let after = Stored::decode(whole.clone()).expect("decodes");
        assert_eq!((after.secs, &*after.host, after.targets), (1_700_000_000, "mx.example", stored.targets));
        assert!((0..whole.len()).all(|len| Stored::decode(whole.slice(..len)).is_none()));
    }

    #[test]
    fn notes_read_back() {
        let note = Delivered { session: SessionTag([7; TAG_BYTES]), done: vec![(1, 0), (1 << 40, 9)] };
        assert_eq!(Delivered::decode(&note.encode()), Some(note.clone()));
        assert_eq!(Delivered::decode(&note.encode()[1..]), None);
        let waits =
            Waits { mailbox: "a/Maildir".into(), attempts: 3, next_try_secs: 1 << 40, error: "no space".into() };
        assert_eq!(Waits::decode(waits.encode()), Some(waits.clone()));
        assert_eq!(Waits::decode(waits.encode().slice(1..)), None);
    }
}
