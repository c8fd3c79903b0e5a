//! Encoding of entries.

use bytes::{BufMut, Bytes};
use posthaste_spool::Fields;

use super::{
    AccountFields, BodyKind, BodyOrigin, BodyPlace, EntryKind, GoneReason, MailEntry, MailboxFields, MessageFacts,
    NewMessage, StateGroup, VERSION, WireSize,
};
use crate::row::NumberRange;

impl MailEntry {
    /// The entry as bytes.
    ///
    /// # Panics
    /// If a name has more than 65,535 octets, or a list more than `u32::MAX` parts. Both are checked on input.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        out.put_u8(VERSION);
        match self {
            Self::New { mailbox, first_uid, messages } => {
                begin(&mut out, 1, &[*mailbox, *first_uid, count(messages.len())]);
                messages.iter().for_each(|message| message.put(&mut out));
            }
            Self::State { mailbox, groups } => {
                begin(&mut out, 2, &[*mailbox, count(groups.len())]);
                for group in groups {
                    put_set(&mut out, &group.set);
                    out.put_u64_le(group.flags);
                    out.put_u32_le(group.letters);
                }
            }
            Self::Gone { mailbox, set, reason, when } => {
                begin(&mut out, 3, &[*mailbox]);
                put_set(&mut out, set);
                out.put_u8(*reason as u8);
                out.put_u32_le(*when);
            }
            Self::Mailbox(fields) => fields.put(&mut out),
            Self::MailboxGone { id } => begin(&mut out, 6, &[*id]),
            Self::Keyword { mailbox, bit, name } => {
                begin(&mut out, 7, &[*mailbox]);
                out.put_u8(*bit);
                put_octets(&mut out, name);
            }
            Self::Found { mailbox, first_uid, messages } => {
                begin(&mut out, 8, &[*mailbox, *first_uid, count(messages.len())]);
                for (facts, name) in messages {
                    facts.put(&mut out);
                    put_octets(&mut out, name);
                }
            }
            Self::Name { mailbox, uid, name } => {
                begin(&mut out, 9, &[*mailbox, *uid]);
                put_octets(&mut out, name);
            }
            Self::Size { mailbox, uid, wire_size, line_feeds } => {
                begin(&mut out, 17, &[*mailbox, *uid, wire_size.stored(), *line_feeds]);
            }
            Self::Account(fields) => fields.put(&mut out),
            Self::Opening { nonce, host } => {
                begin(&mut out, 12, &[*nonce]);
                put_octets(&mut out, host);
            }
            Self::Subscription { account, name, is_on } => {
                begin(&mut out, 14, &[*account]);
                put_octets(&mut out, name);
                out.put_u8(u8::from(*is_on));
            }
            Self::UniqueIds { mailbox, ids } => {
                begin(&mut out, 16, &[*mailbox, count(ids.len())]);
                for (uid, id) in ids {
                    out.put_u32_le(*uid);
                    put_octets(&mut out, id);
                }
            }
        }
        out.into()
    }

    /// Subject of an entry; `None` if this version does not know its kind.
    pub fn kind(payload: &[u8]) -> Option<EntryKind> {
        let (&[version, kind], rest) = payload.split_first_chunk()?;
        let mailbox = || rest.first_chunk().copied().map(u32::from_le_bytes);
        Some(match kind {
            _ if version != VERSION => return None,
            1..=3 | 7..=9 | 16 | 17 => EntryKind::OfMailbox(mailbox()?),
            5 | 6 => EntryKind::Mailbox(mailbox()?),
            _ => EntryKind::Other,
        })
    }

    /// Decodes an entry; `None` if this version does not know its kind.
    pub fn decode(payload: &Bytes) -> Option<Self> {
        let mut fields = Reader { fields: Fields::of(payload), payload };
        if fields.u8()? != VERSION {
            return None;
        }
        let entry = match fields.u8()? {
            1 => {
                Self::New { mailbox: fields.u32()?, first_uid: fields.u32()?, messages: fields.list(NewMessage::read)? }
            }
            2 => Self::State { mailbox: fields.u32()?, groups: fields.list(StateGroup::read)? },
            3 => Self::Gone {
                mailbox: fields.u32()?,
                set: fields.set()?,
                reason: GoneReason::of(fields.u8()?)?,
                when: fields.u32()?,
            },
            5 => Self::Mailbox(MailboxFields {
                id: fields.u32()?,
                account: fields.u32()?,
                uid_validity: fields.u32()?,
                form: fields.u8()?,
                special_use: fields.u8()?,
                name: fields.octets()?,
                directory: fields.octets()?,
            }),
            6 => Self::MailboxGone { id: fields.u32()? },
            7 => Self::Keyword {
                mailbox: fields.u32()?,
                bit: fields.u8().filter(|bit| (8..64).contains(bit))?,
                name: fields.octets()?,
            },
            8 => Self::Found {
                mailbox: fields.u32()?,
                first_uid: fields.u32()?,
                messages: fields.list(|fields| Some((MessageFacts::read(fields)?, fields.octets()?)))?,
            },
            9 => Self::Name { mailbox: fields.u32()?, uid: fields.u32()?, name: fields.octets()? },
            11 => Self::Account(AccountFields {
                id: fields.u32()?,
                name: fields.octets()?,
                quota_bytes: fields.u64()?,
                quota_messages: fields.u32()?,
                is_gone: fields.flag()?,
            }),
            12 => Self::Opening { nonce: fields.u32()?, host: fields.octets()? },
            14 => Self::Subscription { account: fields.u32()?, name: fields.octets()?, is_on: fields.flag()? },
            16 => Self::UniqueIds {
                mailbox: fields.u32()?,
                ids: fields.list(|fields| Some((fields.u32()?, fields.octets()?)))?,
            },
            17 => Self::Size {
                mailbox: fields.u32()?,
                uid: fields.u32()?,
                wire_size: WireSize::of_stored(fields.u32()?),
                line_feeds: fields.u32()?,
            },
            _ => return None,
        };
        fields.fields.end()?;
        Some(entry)
    }
}

impl MessageFacts {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.flags);
        [self.internal_date, self.save_date, self.wire_size.stored(), self.line_feeds]
            .into_iter()
            .for_each(|number| out.put_u32_le(number));
    }

    fn read(fields: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            flags: fields.u64()?,
            internal_date: fields.u32()?,
            save_date: fields.u32()?,
            wire_size: WireSize::of_stored(fields.u32()?),
            line_feeds: fields.u32()?,
        })
    }
}

impl NewMessage {
    fn put(&self, out: &mut Vec<u8>) {
        self.facts.put(out);
        out.put_u16_le(self.target);
        out.put_u8(self.kind as u8);
        match &self.place {
            BodyPlace::Batch { prefix } => {
                out.put_u8(0);
                out.put_u32_le(count(prefix.len()));
                out.put_slice(prefix);
            }
            BodyPlace::Copied(BodyOrigin { lsn, email_id, name }) => {
                out.put_u8(2);
                out.put_u64_le(*lsn);
                out.put_u64_le(email_id.0);
                out.put_u16_le(email_id.1);
                put_octets(out, name);
            }
        }
    }

    fn read(fields: &mut Reader<'_>) -> Option<Self> {
        let facts = MessageFacts::read(fields)?;
        let (target, kind) = (fields.u16()?, BodyKind::of(fields.u8()?)?);
        let place = match fields.u8()? {
            0 => {
                let len = fields.u32()? as usize;
                BodyPlace::Batch { prefix: fields.payload.slice_ref(fields.fields.bytes(len)?) }
            }
            2 => {
                let (lsn, email_id) = (fields.u64()?, (fields.u64()?, fields.u16()?));
                BodyPlace::Copied(BodyOrigin { lsn, email_id, name: fields.octets()? })
            }
            _ => return None,
        };
        Some(Self { facts, target, kind, place })
    }
}

impl StateGroup {
    fn read(fields: &mut Reader<'_>) -> Option<Self> {
        Some(Self { set: fields.set()?, flags: fields.u64()?, letters: fields.u32()? })
    }
}

impl MailboxFields {
    fn put(&self, out: &mut Vec<u8>) {
        begin(out, 5, &[self.id, self.account, self.uid_validity]);
        out.put_slice(&[self.form, self.special_use]);
        put_octets(out, &self.name);
        put_octets(out, &self.directory);
    }
}

impl AccountFields {
    fn put(&self, out: &mut Vec<u8>) {
        begin(out, 11, &[self.id]);
        put_octets(out, &self.name);
        out.put_u64_le(self.quota_bytes);
        out.put_u32_le(self.quota_messages);
        out.put_u8(u8::from(self.is_gone));
    }
}

fn begin(out: &mut Vec<u8>, kind: u8, numbers: &[u32]) {
    out.put_u8(kind);
    numbers.iter().for_each(|number| out.put_u32_le(*number));
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("an entry is at most 32 MiB")
}

fn put_set(out: &mut Vec<u8>, set: &[NumberRange]) {
    out.put_u32_le(count(set.len()));
    for range in set {
        out.put_u32_le(range.first);
        out.put_u32_le(range.last);
    }
}

pub(crate) fn put_octets(out: &mut Vec<u8>, octets: &[u8]) {
    out.put_u16_le(u16::try_from(octets.len()).expect("names are checked when they come in"));
    out.put_slice(octets);
}

/// Fields of a payload, with shared octets.
struct Reader<'a> {
    fields: Fields<'a>,
    payload: &'a Bytes,
}

impl Reader<'_> {
    fn u8(&mut self) -> Option<u8> {
        self.fields.u8()
    }

    fn u16(&mut self) -> Option<u16> {
        self.fields.u16()
    }

    fn u32(&mut self) -> Option<u32> {
        self.fields.u32()
    }

    fn u64(&mut self) -> Option<u64> {
        self.fields.u64()
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().filter(|flag| *flag < 2).map(|flag| flag == 1)
    }

    fn octets(&mut self) -> Option<Bytes> {
        let len = self.u16()?;
        Some(self.payload.slice_ref(self.fields.bytes(len.into())?))
    }

    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        // A count may be a lie: each part that is there takes at least an octet.
        let count = self.u32()? as usize;
        let mut list = Vec::with_capacity(count.min(self.fields.len() / 8));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Some(list)
    }

    /// Ranges of UIDs that ascend and do not overlap.
    fn set(&mut self) -> Option<Vec<NumberRange>> {
        let set = self.list(|fields| Some(NumberRange { first: fields.u32()?, last: fields.u32()? }))?;
        let mut next = 1u64;
        for range in &set {
            if u64::from(range.first) < next || range.last < range.first {
                return None;
            }
            next = u64::from(range.last) + 1;
        }
        Some(set)
    }
}
