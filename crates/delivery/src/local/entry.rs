//! Entries of a batch for the stream of a mail mount, as bytes. docs/formats.md has the table.
//!
//! Every entry begins with a version and a kind; numbers are little-endian.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use posthaste_intake::LargeBody;
use posthaste_spool::{Fields, Lsn, put_text};

use super::message::{LineEnds, MailboxTarget};
use crate::session::{SessionTag, TAG_BYTES};

/// An entry in the stream of a mail mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalEntry {
    /// A message to deliver.
    Deliver(MailboxDelivery),
    /// Targets became visible. Nobody waits for this entry; without it each kill would bring back mail that its owner
    /// has removed.
    Visible(Visible),
    /// A sync of the mount begins; durable before it does. Until the sync is known to have succeeded, visible mail may
    /// be in the page cache only.
    SyncBegun {
        /// Tag of the page cache's session.
        session: SessionTag,
    },
    /// A sync succeeded. Nobody waits for this entry: without it mail is rewritten.
    Synced {
        /// LSN of the [`SyncBegun`](Self::SyncBegun) entry.
        begun: Lsn,
    },
    /// An attempt at a mailbox failed; for `posthaste spool inspect`. A later entry for the same mailbox replaces it.
    Trouble(MailboxTrouble),
    /// A mailbox was removed: earlier mail for it is not delivered any more.
    Removal(Removal),
}

/// A message for the mailboxes of one mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxDelivery {
    /// Time of reception, in seconds since 1970; part of the file names.
    pub secs: u64,
    /// INTERNALDATE in seconds since 1970: the files' time of modification.
    pub internal_date: u32,
    /// Random number in the file names, new at each opening, so that no two spools make the same name.
    pub nonce: u32,
    /// Host name in the file names.
    pub host: Arc<str>,
    /// Conversion of the line ends.
    pub line_ends: LineEnds,
    /// The batch with its body. `None`: this one. A replacement of an older entry names that entry's body.
    pub body: Option<OlderBody>,
    /// Facts about a large body, so that its sizes on disk need no second count.
    pub large: Option<LargeBody>,
    /// The mailboxes that lack the message, each with its number among the message's targets.
    pub targets: Vec<(u16, MailboxTarget)>,
}

/// The body of an older batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OlderBody {
    /// LSN of the batch.
    pub lsn: Lsn,
    /// Length of the body in bytes.
    pub len: u64,
}

/// Targets that became visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    /// Tag of the page cache's session.
    pub session: SessionTag,
    /// The targets: LSN of the body's batch, and number of the target.
    pub targets: Vec<(Lsn, u16)>,
}

/// The reason why mail for a mailbox waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxTrouble {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Consecutive failed attempts, of any messages.
    pub attempts: u32,
    /// Time of the next try, in seconds since 1970.
    pub next_try_secs: u64,
    /// Error of the last attempt.
    pub error: Arc<str>,
}

/// The removal of a mailbox, and of all mailboxes below it. Path and batch of the last removal form an identity that no
/// later mailbox has: batch numbers are unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Mail with a body in an earlier batch is not delivered. `None`: earlier than the batch of this entry.
    pub before: Option<Lsn>,
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
}

const VERSION: u8 = 1;

const DELIVER: u8 = 1;
const VISIBLE: u8 = 2;
const SYNC_BEGUN: u8 = 3;
const SYNCED: u8 = 4;
const TROUBLE: u8 = 5;
const REMOVAL: u8 = 6;

const TO_LF: u8 = 1;
const HAS_BODY: u8 = 2;
const IS_LARGE: u8 = 4;
const IS_LOSSLESS: u8 = 8;
const FLAGS: u8 = TO_LF | HAS_BODY | IS_LARGE | IS_LOSSLESS;

impl LocalEntry {
    /// The entry's payload.
    ///
    /// # Panics
    /// A host name, mailbox or error of more than 65,535 bytes, or more than 65,535 targets: all are checked on
    /// acceptance.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        out.put_u8(VERSION);
        match self {
            LocalEntry::Deliver(deliver) => deliver.put(&mut out),
            LocalEntry::Visible(Visible { session, targets }) => {
                out.reserve(TAG_BYTES + targets.len() * VISIBLE_BYTES);
                out.put_u8(VISIBLE);
                out.put_slice(&session.0);
                for (lsn, number) in targets {
                    out.put_u64_le(lsn.get());
                    out.put_u16_le(*number);
                }
            }
            LocalEntry::SyncBegun { session } => {
                out.put_u8(SYNC_BEGUN);
                out.put_slice(&session.0);
            }
            LocalEntry::Synced { begun } => {
                out.put_u8(SYNCED);
                out.put_u64_le(begun.get());
            }
            LocalEntry::Trouble(MailboxTrouble { mailbox, attempts, next_try_secs, error }) => {
                out.put_u8(TROUBLE);
                out.put_u32_le(*attempts);
                out.put_u64_le(*next_try_secs);
                put_text(&mut out, mailbox);
                put_text(&mut out, error);
            }
            LocalEntry::Removal(Removal { before, mailbox }) => {
                out.put_u8(REMOVAL);
                out.put_u64_le(before.map_or(0, Lsn::get));
                put_text(&mut out, mailbox);
            }
        }
        out.freeze()
    }

    /// Reads a payload; `None` if this version does not know it.
    pub fn decode(payload: Bytes) -> Option<Self> {
        let mut rest = Fields::of(&payload);
        if rest.u8()? != VERSION {
            return None;
        }
        let entry = match rest.u8()? {
            DELIVER => LocalEntry::Deliver(MailboxDelivery::take(&mut rest, &payload)?),
            VISIBLE => {
                let session = session(&mut rest)?;
                let count = rest.len() / VISIBLE_BYTES;
                let mut targets = Vec::with_capacity(count);
                for _ in 0..count {
                    targets.push((rest.lsn()?, rest.u16()?));
                }
                LocalEntry::Visible(Visible { session, targets })
            }
            SYNC_BEGUN => LocalEntry::SyncBegun { session: session(&mut rest)? },
            SYNCED => LocalEntry::Synced { begun: rest.lsn()? },
            TROUBLE => LocalEntry::Trouble(MailboxTrouble {
                attempts: rest.u32()?,
                next_try_secs: rest.u64()?,
                mailbox: rest.text()?,
                error: rest.text()?,
            }),
            REMOVAL => LocalEntry::Removal(Removal {
                before: Some(rest.lsn()?).filter(|before| *before != Lsn::ZERO),
                mailbox: rest.text()?,
            }),
            _ => return None,
        };
        rest.end().map(|()| entry)
    }
}

impl MailboxDelivery {
    fn put(&self, out: &mut BytesMut) {
        let flag = |holds: bool, flag: u8| if holds { flag } else { 0 };
        out.put_u8(DELIVER);
        out.put_u8(
            flag(self.line_ends == LineEnds::ToLf, TO_LF)
                | flag(self.body.is_some(), HAS_BODY)
                | flag(self.large.is_some(), IS_LARGE)
                | flag(self.large.is_some_and(|large| large.is_lossless), IS_LOSSLESS),
        );
        out.put_u64_le(self.secs);
        out.put_u32_le(self.internal_date);
        out.put_u32_le(self.nonce);
        put_text(out, &self.host);
        if let Some(OlderBody { lsn, len }) = self.body {
            out.put_u64_le(lsn.get());
            out.put_u64_le(len);
        }
        if let Some(large) = self.large {
            out.put_u64_le(large.crlfs);
            out.put_u64_le(large.lone_lfs);
        }
        out.put_u16_le(u16::try_from(self.targets.len()).expect("the number of targets is checked"));
        for (number, target) in &self.targets {
            out.put_u16_le(*number);
            put_text(out, &target.mailbox);
            out.put_u32_le(u32::try_from(target.prefix.len()).expect("a prefix is a few header fields"));
            out.put_slice(&target.prefix);
        }
    }

    /// `payload` contains `rest`.
    fn take(rest: &mut Fields<'_>, payload: &Bytes) -> Option<Self> {
        let flags = rest.u8()?;
        let has = |flag: u8| flags & flag != 0;
        if flags & !FLAGS != 0 {
            return None;
        }
        let line_ends = if has(TO_LF) { LineEnds::ToLf } else { LineEnds::AsGiven };
        let secs = rest.u64()?;
        let internal_date = rest.u32()?;
        let nonce = rest.u32()?;
        let host = rest.text()?;
        let body = if has(HAS_BODY) { Some(OlderBody { lsn: rest.lsn()?, len: rest.u64()? }) } else { None };
        let large = if has(IS_LARGE) {
            Some(LargeBody { crlfs: rest.u64()?, lone_lfs: rest.u64()?, is_lossless: has(IS_LOSSLESS) })
        } else {
            None
        };
        let mut targets = Vec::new();
        for _ in 0..rest.u16()? {
            let number = rest.u16()?;
            let mailbox = rest.text()?;
            let prefix = rest.u32()?;
            targets.push((number, MailboxTarget { mailbox, prefix: payload.slice_ref(rest.bytes(prefix as usize)?) }));
        }
        Some(MailboxDelivery { secs, internal_date, nonce, host, line_ends, body, large, targets })
    }
}

fn session(rest: &mut Fields<'_>) -> Option<SessionTag> {
    rest.array().map(SessionTag)
}

/// Size of a target in [`Visible`], in bytes.
const VISIBLE_BYTES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn deliver(body: Option<OlderBody>, large: Option<LargeBody>) -> LocalEntry {
        let target = |mailbox: &str, prefix: &'static [u8]| MailboxTarget {
            mailbox: mailbox.into(),
            prefix: Bytes::from_static(prefix),
        };
        let targets = vec![(0, target("a/Maildir", b"Delivered-To: a\r\n")), (7, target("b", b""))];
        LocalEntry::Deliver(MailboxDelivery {
            secs: 1_700_000_000,
            internal_date: 1_600_000_000,
            nonce: 0xfeed,
            host: "mx.example".into(),
            line_ends: LineEnds::ToLf,
            body,
            large,
            targets,
        })
    }

    fn samples() -> Vec<LocalEntry> {
        let large = |is_lossless| LargeBody { crlfs: 9, lone_lfs: 1 << 40, is_lossless };
        let mut samples = vec![
            LocalEntry::Visible(Visible {
                session: SessionTag([7; TAG_BYTES]),
                targets: vec![(Lsn::new(1), 0), (Lsn::new(1 << 40), 9)],
            }),
            LocalEntry::Visible(Visible { session: SessionTag([0; TAG_BYTES]), targets: Vec::new() }),
            LocalEntry::SyncBegun { session: SessionTag([3; TAG_BYTES]) },
            LocalEntry::Synced { begun: Lsn::new(77) },
            LocalEntry::Trouble(MailboxTrouble {
                mailbox: "a/Maildir".into(),
                attempts: 3,
                next_try_secs: 1 << 40,
                error: "no space".into(),
            }),
            LocalEntry::Removal(Removal { before: None, mailbox: "a".into() }),
            LocalEntry::Removal(Removal { before: Some(Lsn::new(1 << 40)), mailbox: "a/Maildir".into() }),
        ];
        for body in [None, Some(OlderBody { lsn: Lsn::new(6), len: 9 })] {
            samples.extend([None, Some(large(true)), Some(large(false))].map(|large| deliver(body, large)));
        }
        samples
    }

    #[test]
    fn every_entry_reads_back_as_written() {
        for entry in samples() {
            assert_eq!(LocalEntry::decode(entry.encode()), Some(entry));
        }
    }

    #[test]
    fn an_entry_cut_short_or_with_something_behind_it_is_refused() {
        for entry in samples() {
            let whole = entry.encode();
            for len in 0..whole.len() {
                let cut = LocalEntry::decode(whole.slice(..len));
                // A list without its last pairs is a shorter list.
                let is_list = matches!((&entry, &cut), (LocalEntry::Visible(_), Some(LocalEntry::Visible(_))));
                assert!(cut.is_none() || is_list, "{entry:?}: length {len}");
            }
            let longer = [&whole[..], b"x"].concat();
            assert_eq!(LocalEntry::decode(longer.into()), None, "{entry:?}");
        }
    }

    #[test]
    fn what_a_later_version_writes_is_not_guessed_at() {
        let whole = deliver(None, None).encode();
        // Version, kind and flags.
        for (at, value) in [(0, VERSION + 1), (1, REMOVAL + 1), (2, FLAGS + 1)] {
            let mut changed = whole.to_vec();
            changed[at] = value;
            assert_eq!(LocalEntry::decode(changed.into()), None, "byte {at}");
        }
    }

    /// The bytes on disk; every later version must read them alike.
    #[test]
    fn the_bytes_are_those_of_the_table() {
        let target = MailboxTarget { mailbox: "a".into(), prefix: Bytes::from_static(b"P") };
        let deliver = LocalEntry::Deliver(MailboxDelivery {
            secs: 1,
            internal_date: 9,
            nonce: 2,
            host: "h".into(),
            line_ends: LineEnds::ToLf,
            body: Some(OlderBody { lsn: Lsn::new(4), len: 7 }),
            large: Some(LargeBody { crlfs: 5, is_lossless: true, lone_lfs: 6 }),
            targets: vec![(8, target)],
        });
        let expected = [
            &[1, 1, 15][..],
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &[9, 0, 0, 0],
            &[2, 0, 0, 0],
            &[1, 0, b'h'],
            &[4, 0, 0, 0, 0, 0, 0, 0],
            &[7, 0, 0, 0, 0, 0, 0, 0],
            &[5, 0, 0, 0, 0, 0, 0, 0],
            &[6, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0],
            &[8, 0, 1, 0, b'a', 1, 0, 0, 0, b'P'],
        ];
        assert_eq!(deliver.encode()[..], expected.concat());
        let removal = LocalEntry::Removal(Removal { before: Some(Lsn::new(4)), mailbox: "a".into() });
        assert_eq!(removal.encode()[..], [1, 6, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, b'a']);
    }
}
