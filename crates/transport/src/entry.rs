//! Entries of a batch for the stream of the transports, as bytes. docs/formats.md has the table.
//!
//! Every entry begins with a version and a kind; numbers are little-endian.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use posthaste_spool::{Fields, Lsn, put_text};

use crate::reason::FailureReason;

/// How an attempt for one target failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Retried after a pause that doubles.
    Temporary,
    /// The other side refuses the message permanently. It stays in the spool and is retried after a long pause.
    Refused,
    /// The attempt failed, and the message is older than [`Config::max_age`](crate::Config::max_age). It stays in the
    /// spool and is retried after a long pause.
    Overdue,
    /// The worker panicked, which is a bug. Retried as after a temporary failure.
    Panicked,
}

impl Failure {
    /// True if the message is held: an operator has to look at it.
    pub fn is_held(self) -> bool {
        matches!(self, Failure::Refused | Failure::Overdue)
    }
}

/// A target: the batch that has the message's body, and the target's number within the message.
pub type TargetKey = (Lsn, u16);

/// An entry in the stream of the transports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportEntry {
    /// A message to deliver.
    Deliver(Deliver),
    /// Targets have got it, or no longer need it. Nobody waits for this entry: without it they get it once more.
    Done(Vec<TargetKey>),
    /// A file is about to be appended to: durable before the first byte is written, so that a partial message is
    /// recognised after a kill.
    Begun {
        /// The target.
        key: TargetKey,
        /// Length of the file in bytes before the append.
        file_bytes: u64,
    },
    /// A failed attempt, for `spool inspect`. A later one for the same target replaces it. The first refusal of a
    /// target also says *notice owed*: a notice is due until [`Told`](Self::Told) records it.
    Trouble(TargetTrouble),
    /// Notices of refusals were made, in the same batch: these targets need no more.
    Told(Vec<TargetKey>),
    /// Targets that may or may not have their message: not tried until they are [released](Self::Released).
    Held(Vec<TargetKey>),
    /// An operator releases these targets for another attempt.
    Released(Vec<TargetKey>),
}

/// A message for some transports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliver {
    /// When it was received, in seconds since 1970.
    pub secs: u64,
    /// The sender's address; empty for none.
    pub sender: Arc<str>,
    /// True if it came with BODY=8BITMIME.
    pub is_8bit: bool,
    /// True if its header needs SMTPUTF8.
    pub smtputf8: bool,
    /// The batch with its body, and the body's length. `None`: this one. A replacement of an older entry names that
    /// entry's batch.
    pub body: Option<(Lsn, u64)>,
    /// Remaining targets, each with its number.
    pub targets: Vec<(u16, Target)>,
}

/// One recipient at one transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The transport as configured.
    pub transport: Arc<str>,
    /// The address that the transport gets it for.
    pub recipient: Arc<str>,
    /// The recipient as the client gave it.
    pub original: Arc<str>,
    /// The detail after the separator in `recipient`.
    pub detail: Arc<str>,
}

/// Why a target waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetTrouble {
    /// The target. `None`: all mail for the transport waits.
    pub key: Option<TargetKey>,
    /// The transport.
    pub transport: Arc<str>,
    /// Attempts in a row that failed.
    pub attempts: u32,
    /// When it is tried next, in seconds since 1970.
    pub next_try_secs: u64,
    /// Failure of the last attempt. A panic is recorded as an ordinary failure.
    pub failure: Failure,
    /// The error of the last attempt, at most [`ERROR_BYTES_MAX`](crate::ERROR_BYTES_MAX).
    pub error: FailureReason,
}

const VERSION: u8 = 1;

const DELIVER: u8 = 1;
const DONE: u8 = 2;
const BEGUN: u8 = 3;
const TROUBLE: u8 = 4;
const TOLD: u8 = 5;
const HELD: u8 = 6;
const RELEASED: u8 = 7;

const HAS_BODY: u8 = 1;
const IS_8BIT: u8 = 2;
const SMTPUTF8: u8 = 4;
const FLAGS: u8 = HAS_BODY | IS_8BIT | SMTPUTF8;

const HAS_KEY: u8 = 1;
const IS_REFUSED: u8 = 2;
const IS_OVERDUE: u8 = 4;

impl TransportEntry {
    /// The entry's payload.
    ///
    /// # Panics
    /// An address, a transport or an error of more than 65,535 bytes, or more than 65,535 targets: all of them are
    /// checked on input.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        out.put_u8(VERSION);
        match self {
            Self::Deliver(deliver) => deliver.put(&mut out),
            Self::Done(keys) => put_keys(&mut out, DONE, keys),
            Self::Told(keys) => put_keys(&mut out, TOLD, keys),
            Self::Held(keys) => put_keys(&mut out, HELD, keys),
            Self::Released(keys) => put_keys(&mut out, RELEASED, keys),
            Self::Begun { key, file_bytes } => {
                out.put_u8(BEGUN);
                put_key(&mut out, *key);
                out.put_u64_le(*file_bytes);
            }
            Self::Trouble(trouble) => {
                out.put_u8(TROUBLE);
                let failure = match trouble.failure {
                    Failure::Temporary | Failure::Panicked => 0,
                    Failure::Refused => IS_REFUSED,
                    Failure::Overdue => IS_OVERDUE,
                };
                out.put_u8(failure | if trouble.key.is_some() { HAS_KEY } else { 0 });
                trouble.key.into_iter().for_each(|key| put_key(&mut out, key));
                out.put_u32_le(trouble.attempts);
                out.put_u64_le(trouble.next_try_secs);
                let FailureReason { stage, text } = &trouble.error;
                [&trouble.transport, stage, text].into_iter().for_each(|text| put_text(&mut out, text));
            }
        }
        out.freeze()
    }

    /// Decodes a payload; `None` if this version does not know it.
    pub fn decode(payload: Bytes) -> Option<Self> {
        let mut rest = Fields::of(&payload);
        if rest.u8()? != VERSION {
            return None;
        }
        let entry = match rest.u8()? {
            DELIVER => Self::Deliver(Deliver::take(&mut rest)?),
            DONE => Self::Done(keys(&mut rest)?),
            TOLD => Self::Told(keys(&mut rest)?),
            HELD => Self::Held(keys(&mut rest)?),
            RELEASED => Self::Released(keys(&mut rest)?),
            BEGUN => Self::Begun { key: key(&mut rest)?, file_bytes: rest.u64()? },
            TROUBLE => {
                let flags = rest.u8()?;
                let failure = match flags & !HAS_KEY {
                    0 => Failure::Temporary,
                    IS_REFUSED => Failure::Refused,
                    IS_OVERDUE => Failure::Overdue,
                    _ => return None,
                };
                Self::Trouble(TargetTrouble {
                    key: if flags & HAS_KEY != 0 { Some(key(&mut rest)?) } else { None },
                    failure,
                    attempts: rest.u32()?,
                    next_try_secs: rest.u64()?,
                    transport: rest.text()?,
                    error: FailureReason { stage: rest.text()?, text: rest.text()? },
                })
            }
            _ => return None,
        };
        rest.end().map(|()| entry)
    }
}

impl Deliver {
    fn put(&self, out: &mut BytesMut) {
        let flag = |holds: bool, flag: u8| if holds { flag } else { 0 };
        out.put_u8(DELIVER);
        out.put_u8(flag(self.body.is_some(), HAS_BODY) | flag(self.is_8bit, IS_8BIT) | flag(self.smtputf8, SMTPUTF8));
        out.put_u64_le(self.secs);
        if let Some((lsn, len)) = self.body {
            out.put_u64_le(lsn.get());
            out.put_u64_le(len);
        }
        put_text(out, &self.sender);
        out.put_u16_le(u16::try_from(self.targets.len()).expect("the number of targets is checked"));
        for (number, target) in &self.targets {
            out.put_u16_le(*number);
            for text in [&target.transport, &target.recipient, &target.original, &target.detail] {
                put_text(out, text);
            }
        }
    }

    fn take(rest: &mut Fields<'_>) -> Option<Self> {
        let flags = rest.u8()?;
        if flags & !FLAGS != 0 {
            return None;
        }
        let secs = rest.u64()?;
        let body = if flags & HAS_BODY != 0 { Some((Lsn::new(rest.u64()?), rest.u64()?)) } else { None };
        let sender = rest.text()?;
        let mut targets = Vec::new();
        for _ in 0..rest.u16()? {
            let number = rest.u16()?;
            let transport = rest.text()?;
            let recipient = rest.text()?;
            targets.push((number, Target { transport, recipient, original: rest.text()?, detail: rest.text()? }));
        }
        let is_8bit = flags & IS_8BIT != 0;
        let smtputf8 = flags & SMTPUTF8 != 0;
        Some(Deliver { secs, sender, is_8bit, smtputf8, body, targets })
    }
}

const KEY_BYTES: usize = 10;

fn put_key(out: &mut BytesMut, (lsn, number): TargetKey) {
    out.put_u64_le(lsn.get());
    out.put_u16_le(number);
}

fn key(rest: &mut Fields<'_>) -> Option<TargetKey> {
    Some((rest.lsn()?, rest.u16()?))
}

fn put_keys(out: &mut BytesMut, kind: u8, keys: &[TargetKey]) {
    out.put_u8(kind);
    keys.iter().for_each(|key| put_key(out, *key));
}

/// Reads keys up to the end of the entry.
fn keys(rest: &mut Fields<'_>) -> Option<Vec<TargetKey>> {
    (0..rest.len() / KEY_BYTES).map(|_| key(rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target { transport: "|/t".into(), recipient: "r".into(), original: "o".into(), detail: "d".into() }
    }

    fn deliver(body: Option<(Lsn, u64)>) -> TransportEntry {
        TransportEntry::Deliver(Deliver {
            secs: 1,
            sender: "s".into(),
            is_8bit: true,
            smtputf8: false,
            body,
            targets: vec![(8, target())],
        })
    }

    fn samples() -> Vec<TransportEntry> {
        let key = (Lsn::new(5), 7);
        let trouble = |key, failure| {
            let (transport, error) = ("|/t".into(), FailureReason::at("RCPT", &"no"));
            TransportEntry::Trouble(TargetTrouble { key, transport, attempts: 2, next_try_secs: 3, failure, error })
        };
        vec![
            deliver(None),
            deliver(Some((Lsn::new(4), 9))),
            TransportEntry::Done(vec![key, (Lsn::new(6), 0)]),
            TransportEntry::Told(vec![key]),
            TransportEntry::Held(vec![key]),
            TransportEntry::Released(vec![key]),
            TransportEntry::Begun { key, file_bytes: 1 << 40 },
            trouble(None, Failure::Temporary),
            trouble(None, Failure::Overdue),
            trouble(Some(key), Failure::Refused),
        ]
    }

    #[test]
    fn every_entry_reads_back_and_no_cut_or_longer_one_does() {
        for entry in samples() {
            let whole = entry.encode();
            assert_eq!(TransportEntry::decode(whole.clone()), Some(entry.clone()));
            for len in 0..whole.len() {
                let cut = TransportEntry::decode(whole.slice(..len));
                // Whole keys less are a shorter list.
                let is_list = matches!(entry, TransportEntry::Done(_) | TransportEntry::Told(_))
                    || matches!(entry, TransportEntry::Held(_) | TransportEntry::Released(_));
                assert!(cut.is_none() || is_list, "{entry:?}: length {len}");
            }
            assert_eq!(TransportEntry::decode([&whole[..], b"x"].concat().into()), None, "{entry:?}");
        }
    }

    #[test]
    fn what_a_later_version_writes_is_not_guessed_at() {
        let whole = deliver(None).encode();
        for (at, value) in [(0, VERSION + 1), (1, RELEASED + 1), (2, FLAGS + 1)] {
            let mut changed = whole.to_vec();
            changed[at] = value;
            assert_eq!(TransportEntry::decode(changed.into()), None, "byte {at}");
        }
        let both = [&[VERSION, TROUBLE, IS_REFUSED | IS_OVERDUE][..], &[0; 16]].concat();
        assert_eq!(TransportEntry::decode(both.into()), None);
    }

    /// The bytes on disk, which no later version may read otherwise.
    #[test]
    fn the_bytes_are_those_of_the_table() {
        let expected = [
            &[1, 1, 3][..],
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &[4, 0, 0, 0, 0, 0, 0, 0],
            &[9, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, b's'],
            &[1, 0, 8, 0],
            &[3, 0, b'|', b'/', b't', 1, 0, b'r', 1, 0, b'o', 1, 0, b'd'],
        ];
        assert_eq!(deliver(Some((Lsn::new(4), 9))).encode()[..], expected.concat());
        let refused = samples().pop().expect("the last").encode();
        let expected = [
            &[1, 4, 3][..],
            &[5, 0, 0, 0, 0, 0, 0, 0, 7, 0],
            &[2, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, b'|', b'/', b't', 4, 0, b'R', b'C', b'P', b'T', 2, 0, b'n', b'o'],
        ];
        assert_eq!(refused[..], expected.concat());
        let told = TransportEntry::Told(vec![(Lsn::new(5), 7)]).encode();
        assert_eq!(told[..], [&[1, 5][..], &[5, 0, 0, 0, 0, 0, 0, 0, 7, 0]].concat());
    }
}
