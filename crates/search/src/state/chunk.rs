//! The format of a chunk: 4096 messages, column after column, little endian.
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | messages in the chunk, `n` |
//! | 4 | 4 | bytes of file names |
//! | 8 | 4 | number of reference hashes |
//! | 12 | 4 | 0 |
//! | 16 | 16 n | digest: XXH3-128 of the message, CRLF counted as LF |
//! | | 8 n each | date, size, mtime, flags, hash of the Message-ID, hash of the base subject |
//! | | 4 n each | folder, thread, parent, tag set, end of the file name, end of the references |
//! | | | file names, then reference hashes of 8 bytes |

/// Messages in one chunk.
pub(super) const CHUNK_MESSAGES: usize = 4096;
const HEADER_BYTES: usize = 16;

/// `parent` of a message that starts a thread.
pub const NO_PARENT: u32 = u32::MAX;

/// The side store's record of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// XXH3-128 of the content, line ends counted as LF.
    pub digest: u128,
    /// Seconds since 1970.
    pub date: i64,
    /// Bytes on disk.
    pub size: u64,
    /// Nanoseconds since 1970 of the file's last change of content; 0 if unknown.
    pub mtime_ns: i64,
    /// Flag letters and [`bits`].
    pub flags: u64,
    /// XXH3-64 of the Message-ID, 0 if there is none.
    pub id: u64,
    /// XXH3-64 of the folded base subject, 0 if it is empty.
    pub subject: u64,
    /// Index into [`IndexDirectory::folders`](super::IndexDirectory::folders).
    pub folder: u32,
    /// The thread's number: that of its first message.
    pub thread: u32,
    /// The message this one answers, or [`NO_PARENT`].
    pub parent: u32,
    /// Index into [`IndexDirectory::tag_sets`](super::IndexDirectory::tag_sets).
    pub tags: u32,
    /// File name without directory.
    pub name: String,
    /// Hashes of the ids in `References` and `In-Reply-To`, oldest first.
    pub references: Vec<u64>,
}

/// Bits of [`Record::flags`]: `A`-`Z` are bits 0-25, `a`-`z` 26-51, properties above.
pub mod bits {
    /// In `new/`.
    pub const NEW: u64 = 1 << 52;
    /// The file is gone; the number is never reused.
    pub const GONE: u64 = 1 << 53;
    /// See [`Traits`](posthaste_text::Traits).
    pub const ATTACHMENT: u64 = 1 << 54;
    /// See [`Traits`](posthaste_text::Traits).
    pub const SIGNED: u64 = 1 << 55;
    /// See [`Traits`](posthaste_text::Traits).
    pub const ENCRYPTED: u64 = 1 << 56;
    /// See [`Traits`](posthaste_text::Traits).
    pub const LIST: u64 = 1 << 57;
    /// See [`Traits`](posthaste_text::Traits).
    pub const CALENDAR: u64 = 1 << 58;
    /// [`Priority::Low`](posthaste_text::Priority::Low).
    pub const PRIORITY_LOW: u64 = 1 << 59;
    /// [`Priority::High`](posthaste_text::Priority::High).
    pub const PRIORITY_HIGH: u64 = 1 << 60;
    /// The subject marks a reply or forward.
    pub const REPLY: u64 = 1 << 61;
    /// The message has no readable date: the file's date is used.
    pub const UNDATED: u64 = 1 << 62;
    /// Bits derived from the file's name and place, not from the message.
    pub const MUTABLE: u64 = (1 << 54) - 1;

    /// Unseen, or in `new/`.
    pub fn is_unread(flags: u64) -> bool {
        flags & letters("S") == 0 || flags & NEW != 0
    }

    /// The bit of a flag letter; `None` for other characters.
    pub fn letter(letter: char) -> Option<u64> {
        match letter {
            'A'..='Z' => Some(1 << (letter as u32 - 'A' as u32)),
            'a'..='z' => Some(1 << (26 + letter as u32 - 'a' as u32)),
            _ => None,
        }
    }

    /// The bits of all flag letters in a file name.
    pub fn letters(letters: &str) -> u64 {
        letters.chars().filter_map(letter).fold(0, |all, bit| all | bit)
    }

    /// The letters, in ASCII order.
    pub fn to_letters(flags: u64) -> String {
        let letters = ('A'..='Z').chain('a'..='z').enumerate();
        letters.filter(|(bit, _)| flags >> bit & 1 == 1).map(|(_, letter)| letter).collect()
    }
}

/// A column that queries read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// 16 bytes.
    Digest,
    /// 8 bytes.
    Date,
    /// 8 bytes.
    Size,
    /// 8 bytes.
    Mtime,
    /// 8 bytes.
    Flags,
    /// 8 bytes.
    Id,
    /// 8 bytes.
    Subject,
    /// 4 bytes.
    Folder,
    /// 4 bytes.
    Thread,
    /// 4 bytes.
    Parent,
    /// 4 bytes.
    Tags,
    /// 4 bytes: end of the name within the names.
    NameEnd,
    /// 4 bytes: end of the references, counted in hashes.
    ReferencesEnd,
}

const COLUMNS: [(Column, usize); 13] = [
    (Column::Digest, 16),
    (Column::Date, 8),
    (Column::Size, 8),
    (Column::Mtime, 8),
    (Column::Flags, 8),
    (Column::Id, 8),
    (Column::Subject, 8),
    (Column::Folder, 4),
    (Column::Thread, 4),
    (Column::Parent, 4),
    (Column::Tags, 4),
    (Column::NameEnd, 4),
    (Column::ReferencesEnd, 4),
];
const ROW_BYTES: usize = 88;

/// Offset of a column in a chunk of `count` messages, and bytes of one value.
pub(super) fn place(column: Column, count: usize) -> (usize, usize) {
    let mut offset = HEADER_BYTES;
    for (candidate, width) in COLUMNS {
        if candidate == column {
            return (offset, width);
        }
        offset += width * count;
    }
    unreachable!("{column:?} is not in COLUMNS")
}

/// Offset of the file names in a chunk.
pub(super) fn names_offset(count: usize) -> usize {
    HEADER_BYTES + ROW_BYTES * count
}

pub(super) fn encode(records: &[Record]) -> Vec<u8> {
    let names: usize = records.iter().map(|record| record.name.len()).sum();
    let references: usize = records.iter().map(|record| record.references.len()).sum();
    let mut out = Vec::with_capacity(names_offset(records.len()) + names + references * 8);
    for value in [records.len(), names, references, 0] {
        put_u32(&mut out, value);
    }
    for record in records {
        out.extend_from_slice(&record.digest.to_le_bytes());
    }
    let wide: [fn(&Record) -> u64; 6] = [
        |record| record.date.cast_unsigned(),
        |record| record.size,
        |record| record.mtime_ns.cast_unsigned(),
        |record| record.flags,
        |record| record.id,
        |record| record.subject,
    ];
    for value in wide {
        records.iter().for_each(|record| out.extend_from_slice(&value(record).to_le_bytes()));
    }
    let narrow: [fn(&Record) -> u32; 4] = [|r| r.folder, |r| r.thread, |r| r.parent, |r| r.tags];
    for value in narrow {
        records.iter().for_each(|record| out.extend_from_slice(&value(record).to_le_bytes()));
    }
    let lengths: [fn(&Record) -> usize; 2] = [|record| record.name.len(), |record| record.references.len()];
    for length in lengths {
        let mut end = 0;
        for record in records {
            end += length(record);
            put_u32(&mut out, end);
        }
    }
    records.iter().for_each(|record| out.extend_from_slice(record.name.as_bytes()));
    records.iter().flat_map(|record| &record.references).for_each(|hash| out.extend_from_slice(&hash.to_le_bytes()));
    out
}

fn put_u32(out: &mut Vec<u8>, value: usize) {
    // 4096 names of at most 255 bytes, 4096 lists of at most 64 references: far below 2^32.
    out.extend_from_slice(&u32::try_from(value).expect("a chunk's counts fit into 32 bits").to_le_bytes());
}

/// Decodes a chunk. `None` if it is malformed: since the caller has checked the checksum, that is another version's
/// chunk or a bug.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<Record>> {
    let count = u32_at(bytes, 0)? as usize;
    let names = bytes.get(names_offset(count)..)?.get(..u32_at(bytes, 4)? as usize)?;
    let references = bytes.get(names_offset(count) + names.len()..)?;
    let mut name_start = 0;
    let mut reference_start = 0;
    let mut records = Vec::with_capacity(count);
    for row in 0..count {
        let wide = |column| {
            let (offset, width) = place(column, count);
            bytes.get(offset + row * width..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
        };
        let narrow = |column| u32_at(bytes, place(column, count).0 + row * 4);
        let name_end = narrow(Column::NameEnd)? as usize;
        let reference_end = narrow(Column::ReferencesEnd)? as usize;
        let hashes = references.get(reference_start * 8..reference_end * 8)?;
        records.push(Record {
            digest: u128::from_le_bytes(*bytes.get(place(Column::Digest, count).0 + row * 16..)?.first_chunk()?),
            date: wide(Column::Date)?.cast_signed(),
            size: wide(Column::Size)?,
            mtime_ns: wide(Column::Mtime)?.cast_signed(),
            flags: wide(Column::Flags)?,
            id: wide(Column::Id)?,
            subject: wide(Column::Subject)?,
            folder: narrow(Column::Folder)?,
            thread: narrow(Column::Thread)?,
            parent: narrow(Column::Parent)?,
            tags: narrow(Column::Tags)?,
            name: std::str::from_utf8(names.get(name_start..name_end)?).ok()?.to_owned(),
            references: hashes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect(),
        });
        (name_start, reference_start) = (name_end, reference_end);
    }
    Some(records)
}

/// Calls `each` with the row and hash of every reference in a chunk of `count` messages.
pub(super) fn for_each_reference(bytes: &[u8], count: usize, mut each: impl FnMut(usize, u64)) {
    let hashes = u32_at(bytes, 4).and_then(|names| bytes.get(names_offset(count) + names as usize..));
    let hashes = hashes.unwrap_or_default().as_chunks::<8>().0;
    let mut start = 0;
    for row in 0..count {
        let end = u32_at(bytes, place(Column::ReferencesEnd, count).0 + row * 4).unwrap_or(0) as usize;
        hashes.get(start..end).into_iter().flatten().for_each(|hash| each(row, u64::from_le_bytes(*hash)));
        start = end;
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_reads_as_it_was_written() {
        assert_eq!(ROW_BYTES, COLUMNS.iter().map(|(_, width)| width).sum::<usize>());
        let records: Vec<Record> = (0..300u32)
            .map(|n| Record {
                digest: u128::from(n) << 100,
                date: -i64::from(n),
                size: u64::from(n) << 40,
                flags: bits::letters("FSa") | bits::GONE,
                folder: n,
                parent: NO_PARENT,
                name: "x".repeat(n as usize % 7),
                references: vec![7; n as usize % 5],
                ..Record::default()
            })
            .collect();
        let bytes = encode(&records);
        assert_eq!(decode(&bytes).unwrap(), records);
        assert_eq!(decode(&encode(&[])).unwrap(), []);
        for cut in (0..bytes.len()).step_by(97) {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn flag_letters_and_bits_are_the_same() {
        assert_eq!(bits::to_letters(bits::letters("Sa,FR")), "FRSa");
    }
}
