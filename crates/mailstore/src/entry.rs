//! Entries of the stream `mailstore` as bytes. docs/formats.md has the table.
//!
//! An entry is a version, a kind, and the kind's fields. Numbers are little-endian; names, paths and directories are octets with their length in
//! front. All values are absolute, so an entry may be applied twice.

use bytes::{BufMut, Bytes};
use posthaste_spool::Fields;

use crate::row::NumberRange;

/// The name of the stream.
pub const STREAM: &str = "mailstore";
/// The most messages of one [`MailEntry::Found`].
pub const FOUND_MAX: usize = 65_536;

const VERSION: u8 = 1;

/// An entry of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailEntry {
    /// Messages that a door of intake, COPY or MOVE put into a mailbox: UIDs from `first_uid` on.
    New {
        /// The mailbox.
        mailbox: u32,
        /// UID of the first message.
        first_uid: u32,
        /// The messages.
        messages: Vec<NewMessage>,
    },
    /// Flags of messages, one group for each distinct result.
    State {
        /// The mailbox.
        mailbox: u32,
        /// The groups.
        groups: Vec<StateGroup>,
    },
    /// Messages that left a mailbox. UIDs that no message had count as given: the next UID is above all of them.
    Gone {
        /// The mailbox.
        mailbox: u32,
        /// UIDs, ascending.
        set: Vec<NumberRange>,
        /// Why.
        reason: GoneReason,
        /// Seconds since 1970.
        when: u32,
    },
    /// The batch's body is in no mailbox yet.
    Held {
        /// Whose it is.
        owner: u64,
    },
    /// A mailbox was made, renamed or changed; the last one counts.
    Mailbox(MailboxFields),
    /// A mailbox was deleted.
    MailboxGone {
        /// Its id.
        id: u32,
    },
    /// The keyword of a bit.
    Keyword {
        /// The mailbox.
        mailbox: u32,
        /// 8 to 63.
        bit: u8,
        /// The keyword.
        name: Bytes,
    },
    /// Files that another program put into a Maildir: UIDs from `first_uid` on. Their LSN is this batch, their target the position in it.
    Found {
        /// The mailbox.
        mailbox: u32,
        /// UID of the first message.
        first_uid: u32,
        /// Facts and file names, at most [`FOUND_MAX`].
        messages: Vec<(MessageFacts, Bytes)>,
    },
    /// Another program gave a message's file another key.
    Name {
        /// The mailbox.
        mailbox: u32,
        /// The message.
        uid: u32,
        /// The file's name now.
        name: Bytes,
    },
    /// An account was made or changed.
    Account(AccountFields),
    /// The store was opened.
    Opening {
        /// Random for each opening.
        nonce: u32,
        /// The name of this host.
        host: Bytes,
    },
    /// A name was subscribed to, or no longer.
    Subscription {
        /// The account.
        account: u32,
        /// The mailbox's name.
        name: Bytes,
        /// True if it is subscribed to.
        is_on: bool,
    },
    /// Digests of imported messages, in the batch of their *new* or *found*.
    Imported {
        /// The import's name.
        import: Bytes,
        /// The mailbox.
        mailbox: u32,
        /// UID of the first message.
        first_uid: u32,
        /// A digest of each message's source.
        digests: Vec<[u8; 32]>,
    },
}

/// An entry's subject, known without reading all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// The messages of a mailbox, or its keywords.
    OfMailbox(u32),
    /// A mailbox itself.
    Mailbox(u32),
    /// An account, or the store.
    Other,
}

impl EntryKind {
    /// The mailbox that it concerns.
    pub fn mailbox(self) -> Option<u32> {
        match self {
            Self::OfMailbox(mailbox) | Self::Mailbox(mailbox) => Some(mailbox),
            Self::Other => None,
        }
    }
}

/// A message's numbers that never change, and its flags when it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageFacts {
    /// Bits as in [`MessageFlags`](crate::MessageFlags), and bits 5 to 7 of the table.
    pub flags: u64,
    /// INTERNALDATE in seconds since 1970.
    pub internal_date: u32,
    /// When it came into this mailbox, in seconds since 1970.
    pub save_date: u32,
    /// RFC822.SIZE.
    pub wire_size: u32,
    /// Line ends that have no CR in the file: its length is the wire size less these.
    pub line_feeds: u32,
}

/// A message of [`MailEntry::New`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Its numbers.
    pub facts: MessageFacts,
    /// Recipient number of the body.
    pub target: u16,
    /// The kind of the body.
    pub kind: BodyKind,
    /// Where the body is.
    pub place: BodyPlace,
}

/// Where the body of a new message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyPlace {
    /// In this batch. Its file follows; until it is there the message is in the spool.
    Batch {
        /// Header fields that stand in front of the body in this mailbox alone.
        prefix: Bytes,
    },
    /// In an earlier batch that was *held* or *arrived*.
    Earlier(BodyOrigin),
    /// The body of another message: COPY or MOVE.
    Copied(BodyOrigin),
}

/// A body of an earlier batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyOrigin {
    /// The batch.
    pub lsn: u64,
    /// E-mail id: LSN and target; zeros if it is that of the body.
    pub email_id: (u64, u16),
    /// The file's name.
    pub name: Bytes,
}

/// The kind of a message's body: column `kind` of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
#[repr(u8)]
pub enum BodyKind {
    /// A file of ours: LF is sent as CRLF.
    #[default]
    Own = 0,
    /// A file of ours that is sent as it is.
    OwnVerbatim = 1,
    /// A file that another program made.
    Foreign = 2,
}

/// Flags that some messages have now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateGroup {
    /// UIDs, ascending.
    pub set: Vec<NumberRange>,
    /// Their flags.
    pub flags: u64,
    /// Letters that their files' names had last: bits 0-25 `a`-`z`, then D, F, P, R, S, T.
    pub letters: u32,
}

/// Why messages left a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GoneReason {
    /// A client expunged them.
    Expunged = 0,
    /// Moved to another mailbox.
    Moved = 1,
    /// Another program removed the files.
    Missing = 2,
    /// Too old.
    Expired = 3,
    /// The operator removed them.
    Removed = 4,
}

/// A mailbox, as its last entry has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MailboxFields {
    /// Its id, never used again.
    pub id: u32,
    /// Its account.
    pub account: u32,
    /// UIDVALIDITY.
    pub uid_validity: u32,
    /// 0: Maildir, 1: packed.
    pub form: u8,
    /// 0: none; else `\Drafts`, `\Sent`, `\Junk`, `\Trash`, `\Archive` as 1 to 5.
    pub special_use: u8,
    /// Its name, UTF-8 in normal form C.
    pub name: Bytes,
    /// Its directory below the mail directory.
    pub directory: Bytes,
}

/// An account, as its last entry has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountFields {
    /// Its id, never used again.
    pub id: u32,
    /// The path of its INBOX below the mail directory.
    pub name: Bytes,
    /// Bytes that its mail may have; 0: no limit.
    pub quota_bytes: u64,
    /// Messages that it may have; 0: no limit.
    pub quota_messages: u32,
    /// True if it was removed.
    pub is_gone: bool,
}

impl BodyKind {
    /// The kind of a number; `None` for one that this version does not know.
    pub fn of(number: u8) -> Option<Self> {
        [Self::Own, Self::OwnVerbatim, Self::Foreign].get(usize::from(number)).copied()
    }
}

impl GoneReason {
    /// The reason of a number; `None` for one that this version does not know.
    pub fn of(number: u8) -> Option<Self> {
        [Self::Expunged, Self::Moved, Self::Missing, Self::Expired, Self::Removed].get(usize::from(number)).copied()
    }
}

impl MailEntry {
    /// The place of the first UID in entries that give UIDs.
    pub const FIRST_UID_AT: usize = 6;

    /// The entry as bytes.
    ///
    /// # Panics
    /// If a name has more than 65,535 octets, or a list more than `u32::MAX` parts. Both are checked where they come in.
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
            Self::Held { owner } => {
                begin(&mut out, 4, &[]);
                out.put_u64_le(*owner);
            }
            Self::Mailbox(MailboxFields { id, account, uid_validity, form, special_use, name, directory }) => {
                begin(&mut out, 5, &[*id, *account, *uid_validity]);
                out.put_slice(&[*form, *special_use]);
                put_octets(&mut out, name);
                put_octets(&mut out, directory);
            }
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
            Self::Account(AccountFields { id, name, quota_bytes, quota_messages, is_gone }) => {
                begin(&mut out, 11, &[*id]);
                put_octets(&mut out, name);
                out.put_u64_le(*quota_bytes);
                out.put_u32_le(*quota_messages);
                out.put_u8(u8::from(*is_gone));
            }
            Self::Opening { nonce, host } => {
                begin(&mut out, 12, &[*nonce]);
                put_octets(&mut out, host);
            }
            Self::Subscription { account, name, is_on } => {
                begin(&mut out, 14, &[*account]);
                put_octets(&mut out, name);
                out.put_u8(u8::from(*is_on));
            }
            Self::Imported { import, mailbox, first_uid, digests } => {
                begin(&mut out, 15, &[]);
                put_octets(&mut out, import);
                [*mailbox, *first_uid, count(digests.len())].into_iter().for_each(|number| out.put_u32_le(number));
                digests.iter().for_each(|digest| out.put_slice(digest));
            }
        }
        out.into()
    }

    /// The mailbox whose sessions see the entry: its LSN is the mailbox's HIGHESTMODSEQ from then on.
    pub fn seen_in(&self) -> Option<u32> {
        match self {
            Self::New { mailbox, .. }
            | Self::State { mailbox, .. }
            | Self::Gone { mailbox, .. }
            | Self::Keyword { mailbox, .. }
            | Self::Found { mailbox, .. }
            | Self::Name { mailbox, .. } => Some(*mailbox),
            Self::Held { .. }
            | Self::Mailbox(_)
            | Self::MailboxGone { .. }
            | Self::Account(_)
            | Self::Opening { .. }
            | Self::Subscription { .. }
            | Self::Imported { .. } => None,
        }
    }

    /// The subject of an entry; `None` if this version does not know it.
    pub fn kind(payload: &[u8]) -> Option<EntryKind> {
        let (&[version, kind], rest) = payload.split_first_chunk()?;
        let mailbox = || rest.first_chunk().copied().map(u32::from_le_bytes);
        Some(match kind {
            _ if version != VERSION => return None,
            1..=3 | 7..=9 => EntryKind::OfMailbox(mailbox()?),
            5 | 6 => EntryKind::Mailbox(mailbox()?),
            _ => EntryKind::Other,
        })
    }

    /// Reads an entry; `None` if this version does not know it.
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
            4 => Self::Held { owner: fields.u64()? },
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
            15 => Self::Imported {
                import: fields.octets()?,
                mailbox: fields.u32()?,
                first_uid: fields.u32()?,
                digests: fields.list(|fields| fields.fields.array())?,
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
        [self.internal_date, self.save_date, self.wire_size, self.line_feeds]
            .into_iter()
            .for_each(|number| out.put_u32_le(number));
    }

    fn read(fields: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            flags: fields.u64()?,
            internal_date: fields.u32()?,
            save_date: fields.u32()?,
            wire_size: fields.u32()?,
            line_feeds: fields.u32()?,
        })
    }
}

impl NewMessage {
    fn put(&self, out: &mut Vec<u8>) {
        self.facts.put(out);
        out.put_u16_le(self.target);
        out.put_u8(self.kind as u8);
        let (place, origin) = match &self.place {
            BodyPlace::Batch { .. } => (0, None),
            BodyPlace::Earlier(origin) => (1, Some(origin)),
            BodyPlace::Copied(origin) => (2, Some(origin)),
        };
        out.put_u8(place);
        if let BodyPlace::Batch { prefix } = &self.place {
            out.put_u32_le(count(prefix.len()));
            out.put_slice(prefix);
        }
        if let Some(BodyOrigin { lsn, email_id, name }) = origin {
            out.put_u64_le(*lsn);
            out.put_u64_le(email_id.0);
            out.put_u16_le(email_id.1);
            put_octets(out, name);
        }
    }

    fn read(fields: &mut Reader<'_>) -> Option<Self> {
        let facts = MessageFacts::read(fields)?;
        let (target, kind) = (fields.u16()?, BodyKind::of(fields.u8()?)?);
        let place = fields.u8()?;
        let origin = |fields: &mut Reader<'_>| {
            let lsn = fields.u64()?;
            Some(BodyOrigin { lsn, email_id: (fields.u64()?, fields.u16()?), name: fields.octets()? })
        };
        let place = match place {
            0 => {
                let len = fields.u32()? as usize;
                BodyPlace::Batch { prefix: fields.payload.slice_ref(fields.fields.bytes(len)?) }
            }
            1 => BodyPlace::Earlier(origin(fields)?),
            2 => BodyPlace::Copied(origin(fields)?),
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

/// Fields of a payload, whose octets are shared and not copied.
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

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
