//! Rows: numbers of some messages, column by column.
//!
//! A row is a count (u16); for each column a base (i64), a width in octets (u8) and `count` numbers of that width. A value is the base plus the stored
//! number, modulo 2^64. With width 0 all values equal the base.

use bytes::BufMut;
use posthaste_spool::Fields;

use crate::entry::{BodyKind, WireSize};

/// A row with its checksum is at most this long: with its key it fills a page of the table.
pub(crate) const ROW_BYTES_MAX: usize = 3950;
/// Bytes of the checksum that follows a row.
const CRC_BYTES: usize = 4;
const COLUMN_HEAD_BYTES: usize = 9;

/// Messages as rows of numbers.
pub(crate) trait RowMessage: Sized + Clone {
    /// The number of columns.
    const COLUMNS: usize;

    /// The message's UID.
    fn uid(&self) -> u32;
    /// The value of a column; `first` is the key of the row.
    fn value(&self, column: usize, first: u32) -> u64;
    /// A message from its column values; `None` if one is impossible.
    fn of(values: &[u64], first: u32) -> Option<Self>;
}

/// Constant facts of a message: table `fixed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedMessage {
    /// UID.
    pub uid: u32,
    /// RFC822.SIZE.
    pub wire_size: WireSize,
    /// INTERNALDATE in seconds since 1970.
    pub internal_date: u32,
    /// Time of arrival in the mailbox, in seconds since 1970.
    pub save_date: u32,
    /// The batch of the body.
    pub lsn: u64,
    /// Recipient number of the body, or position in *found*.
    pub target: u16,
    /// Line ends without CR in the file.
    pub line_feeds: u32,
    /// The kind of the body.
    pub kind: BodyKind,
}

/// Facts of a message that change: table `state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateMessage {
    /// UID.
    pub uid: u32,
    /// Flags; bits 5 to 7 are the table's own, see [`flag_bits`].
    pub flags: u64,
    /// The batch of the last change.
    pub modseq: u64,
    /// Letters last seen in the file's name, while it does not show the flags.
    pub letters: u32,
}

/// Bits of the column `flags` besides the IMAP flags.
pub mod flag_bits {
    /// The file's name does not show the flags yet.
    pub const BEHIND: u64 = 1 << 5;
    /// The file is in `new/`.
    pub const IN_NEW: u64 = 1 << 6;
    /// The file's name is in the table `foreign`.
    pub const NAMED: u64 = 1 << 7;
}

impl RowMessage for FixedMessage {
    const COLUMNS: usize = 8;

    fn uid(&self) -> u32 {
        self.uid
    }

    fn value(&self, column: usize, first: u32) -> u64 {
        match column {
            0 => u64::from(self.uid.wrapping_sub(first)),
            1 => self.wire_size.stored().into(),
            2 => self.internal_date.into(),
            3 => (i64::from(self.save_date) - i64::from(self.internal_date)) as u64,
            4 => self.lsn,
            5 => self.target.into(),
            6 => self.line_feeds.into(),
            _ => u64::from(self.kind as u8),
        }
    }

    fn of(values: &[u64], first: u32) -> Option<Self> {
        let &[uid, wire_size, internal_date, later, lsn, target, line_feeds, kind] = values else { return None };
        let internal_date = u32::try_from(internal_date).ok()?;
        Some(Self {
            uid: first.checked_add(u32::try_from(uid).ok()?)?,
            wire_size: WireSize::of_stored(u32::try_from(wire_size).ok()?),
            internal_date,
            save_date: u32::try_from(i64::from(internal_date).checked_add(later as i64)?).ok()?,
            lsn,
            target: u16::try_from(target).ok()?,
            line_feeds: u32::try_from(line_feeds).ok()?,
            kind: BodyKind::of(u8::try_from(kind).ok()?)?,
        })
    }
}

impl RowMessage for StateMessage {
    const COLUMNS: usize = 4;

    fn uid(&self) -> u32 {
        self.uid
    }

    fn value(&self, column: usize, first: u32) -> u64 {
        match column {
            0 => u64::from(self.uid.wrapping_sub(first)),
            1 => self.flags,
            2 => self.modseq,
            _ => self.letters.into(),
        }
    }

    fn of(values: &[u64], first: u32) -> Option<Self> {
        let &[uid, flags, modseq, letters] = values else { return None };
        let uid = first.checked_add(u32::try_from(uid).ok()?)?;
        Some(Self { uid, flags, modseq, letters: u32::try_from(letters).ok()? })
    }
}

/// The range of a column's values so far: its base, and the octets of one value.
#[derive(Debug, Clone, Copy)]
struct Span {
    min: i64,
    max: i64,
}

impl Span {
    fn of(value: u64) -> Self {
        Self { min: value as i64, max: value as i64 }
    }

    fn with(self, value: u64) -> Self {
        Self { min: self.min.min(value as i64), max: self.max.max(value as i64) }
    }

    fn width(self) -> usize {
        let most = self.max.wrapping_sub(self.min) as u64;
        (64 - most.leading_zeros() as usize).div_ceil(8)
    }
}

/// The columns of a row that grows.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowSize {
    count: usize,
    spans: Vec<Span>,
}

impl RowSize {
    /// The size of a row of these messages, with its checksum.
    pub fn of<M: RowMessage>(messages: &[M], first: u32) -> Self {
        let mut size = Self::default();
        messages.iter().for_each(|message| size = size.with(message, first));
        size
    }

    /// The size with one more message.
    pub fn with<M: RowMessage>(&self, message: &M, first: u32) -> Self {
        let value = |column| message.value(column, first);
        let spans = if self.spans.is_empty() {
            (0..M::COLUMNS).map(|column| Span::of(value(column))).collect()
        } else {
            self.spans.iter().enumerate().map(|(column, span)| span.with(value(column))).collect()
        };
        Self { count: self.count + 1, spans }
    }

    pub fn bytes(&self) -> usize {
        let columns = self.spans.iter().map(|span| COLUMN_HEAD_BYTES + span.width() * self.count);
        2 + columns.sum::<usize>() + CRC_BYTES
    }

    /// True if the row's length is allowed.
    pub fn fits(&self) -> bool {
        self.bytes() <= ROW_BYTES_MAX && self.count <= usize::from(u16::MAX)
    }
}

/// A row without its checksum. `messages` are not empty, ascend by UID from `first` on, and fit.
pub(crate) fn encode<M: RowMessage>(messages: &[M], first: u32) -> Vec<u8> {
    let RowSize { count, spans } = RowSize::of(messages, first);
    let mut out = Vec::with_capacity(ROW_BYTES_MAX);
    out.put_u16_le(u16::try_from(count).expect("a row that fits has no more"));
    for (column, span) in spans.into_iter().enumerate() {
        let width = span.width();
        out.put_i64_le(span.min);
        out.put_u8(width as u8);
        for message in messages {
            let stored = message.value(column, first).wrapping_sub(span.min as u64);
            out.put_slice(&stored.to_le_bytes()[..width]);
        }
    }
    out
}

/// A stored column.
#[derive(Debug, Clone, Copy)]
struct Column<'r> {
    base: u64,
    width: usize,
    stored: &'r [u8],
}

impl<'r> Column<'r> {
    fn read(fields: &mut Fields<'r>, count: usize) -> Option<Self> {
        let (base, width) = (fields.u64()?, usize::from(fields.u8()?));
        let stored = if width <= 8 { fields.bytes(width * count)? } else { return None };
        Some(Self { base, width, stored })
    }

    fn at(&self, at: usize) -> u64 {
        let stored = match self.width {
            0 => 0,
            1 => u64::from(self.stored[at]),
            width => {
                let mut number = [0; 8];
                number[..width].copy_from_slice(&self.stored[at * width..(at + 1) * width]);
                u64::from_le_bytes(number)
            }
        };
        self.base.wrapping_add(stored)
    }
}

/// UIDs and flags of an encoded row of the table `state`: counting them costs a hundredth of decoding the messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateColumns<'r> {
    first: u32,
    count: usize,
    uids: Column<'r>,
    flags: Column<'r>,
}

impl<'r> StateColumns<'r> {
    /// `None` if the row is malformed or empty.
    pub fn of(bytes: &'r [u8], first: u32) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let count = usize::from(fields.u16()?);
        let (uids, flags) = (Column::read(&mut fields, count)?, Column::read(&mut fields, count)?);
        (count > 0).then_some(Self { first, count, uids, flags })
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// UIDs ascend.
    pub fn uid(&self, at: usize) -> u32 {
        self.first.wrapping_add(self.uids.at(at) as u32)
    }

    pub fn last_uid(&self) -> u32 {
        self.uid(self.count - 1)
    }

    /// Position of the first message whose flags satisfy `is`.
    pub fn position(&self, is: impl Fn(u64) -> bool) -> Option<usize> {
        match self.flags.width {
            0 => is(self.flags.base).then_some(0),
            _ => (0..self.count).find(|at| is(self.flags.at(*at))),
        }
    }

    /// Count of messages with a lower UID.
    pub fn below(&self, uid: u32) -> usize {
        if self.last_uid() < uid {
            return self.count;
        }
        (0..self.count).take_while(|at| self.uid(*at) < uid).count()
    }
}

/// Decodes a row; `None` if it is malformed: its UIDs do not ascend, or a value is impossible.
pub(crate) fn decode<M: RowMessage>(bytes: &[u8], first: u32) -> Option<Vec<M>> {
    let mut fields = Fields::of(bytes);
    let count = usize::from(fields.u16()?);
    // Before there is memory for so many: a column of width 0 takes none.
    if count == 0 || bytes.len() > ROW_BYTES_MAX {
        return None;
    }
    let mut columns = Vec::with_capacity(M::COLUMNS);
    for _ in 0..M::COLUMNS {
        columns.push(Column::read(&mut fields, count)?);
    }
    fields.end()?;
    let mut messages: Vec<M> = Vec::with_capacity(count);
    let mut values = vec![0; M::COLUMNS];
    for at in 0..count {
        values.iter_mut().zip(&columns).for_each(|(value, column)| *value = column.at(at));
        let message = M::of(&values, first)?;
        if message.uid() == 0 || messages.last().is_some_and(|last| last.uid() >= message.uid()) {
            return None;
        }
        messages.push(message);
    }
    Some(messages)
}

/// Checks a row of the table `fixed` and strips its checksum; `first` is its key. `None` if it is malformed.
pub fn fixed_row(bytes: &[u8], first: u32) -> Option<Vec<FixedMessage>> {
    decode(bytes, first)
}

/// Checks a row of the table `state` and strips its checksum; `first` is its key. `None` if it is malformed.
pub fn state_row(bytes: &[u8], first: u32) -> Option<Vec<StateMessage>> {
    decode(bytes, first)
}

#[cfg(test)]
#[path = "columns_tests.rs"]
mod tests;
