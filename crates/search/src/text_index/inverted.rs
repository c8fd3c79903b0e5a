//! Inverted index of a segment under construction: words and positions packed in little memory, then written in the
//! engine's format.
//!
//! The engine's own writer looks a word up and appends to its list at each occurrence. Here the positions of one
//! message are collected first, so a list grows once for each message. Most words occur in a single message; their
//! positions fit in the record.

use tantivy::index::Segment;
use tantivy::postings::{FieldSerializer, InvertedIndexSerializer};
use tantivy::schema::{Field, IndexRecordOption, Schema};
use tantivy::tokenizer::MAX_TOKEN_LEN;

use super::pool::{NOWHERE, Pool};
use posthaste_text::{Octets, Tokens, random_key};

/// Initial size of the table.
const TABLE_MIN: usize = 1 << 12;

/// Words by field, with their documents and positions.
pub(super) struct Inverted {
    pool: Pool,
    /// Hash table with open addressing; its length is a power of two.
    table: Vec<Entry>,
    words: usize,
    fields: Vec<FieldState>,
    /// Distinct words of the current message.
    here: Vec<Here>,
    /// Positions in the current message; those of one word are linked.
    positions: Vec<(u32, u32)>,
    /// Words to look up together, each with its octets beyond the first 8.
    words_next: Vec<Word>,
    rest_next: Vec<u64>,
    /// Key of the hashes.
    key: u64,
    token: String,
    packed: Vec<u8>,
}

const WORDS_AT_ONCE: usize = 512;

struct Word {
    first: u64,
    hash: u32,
    position: u32,
    /// Index of its further octets in `rest_next`.
    rest: u32,
    length: u16,
    field: u8,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    /// Address of the word's record, or [`NOWHERE`].
    record: u32,
}

const FREE: Entry = Entry { hash: 0, record: NOWHERE };

#[derive(Debug, Clone, Copy, Default)]
struct FieldState {
    is_indexed: bool,
    has_positions: bool,
    tokens: u64,
    /// Position at which the next value of the same message begins.
    next: u32,
}

struct Here {
    record: u32,
    field: u8,
    /// Documents since the last one with this word.
    gap: u32,
    count: u32,
    /// Indexes into `positions`.
    first: u32,
    last: u32,
}

impl Inverted {
    pub fn new(schema: &Schema) -> Self {
        let field = |(_, entry): (Field, &tantivy::schema::FieldEntry)| FieldState {
            is_indexed: entry.is_indexed(),
            has_positions: entry.field_type().index_record_option().is_some_and(IndexRecordOption::has_positions),
            ..FieldState::default()
        };
        Self {
            pool: Pool::default(),
            table: vec![FREE; TABLE_MIN],
            words: 0,
            fields: schema.fields().map(field).collect(),
            here: Vec::new(),
            positions: Vec::new(),
            words_next: Vec::new(),
            rest_next: Vec::new(),
            key: random_key(),
            token: String::new(),
            packed: Vec::new(),
        }
    }

    /// Bytes in use, including those needed to write the segment.
    pub fn memory(&self) -> usize {
        self.pool.memory() + self.table.len() * size_of::<Entry>() + self.words * size_of::<(u64, u32)>()
    }

    /// Adds all words of a field's value. A gap between two values of a field keeps phrases from matching across.
    pub fn add_text(&mut self, document: u32, field: Field, text: &str) {
        let at = field.field_id() as usize;
        let mut token = std::mem::take(&mut self.token);
        let mut position = self.fields[at].next;
        Tokens::new(text).for_each(&mut token, |word| {
            self.collect(at as u8, word, position);
            position += 1;
            if self.words_next.len() == WORDS_AT_ONCE {
                self.add_collected(document);
            }
        });
        self.add_collected(document);
        self.fields[at].next = position + 1;
        self.token = token;
    }

    #[inline]
    fn collect(&mut self, field: u8, word: Octets<'_>, position: u32) {
        let hash = word.hash(self.key ^ u64::from(field)) as u32;
        let rest = self.rest_next.len() as u32;
        // Mostly nothing, for which a call to copy it would be dear.
        word.rest.iter().for_each(|eight| self.rest_next.push(*eight));
        self.words_next.push(Word { first: word.first, hash, position, rest, length: word.length as u16, field });
    }

    /// Adds the collected words. Each word is elsewhere in memory, and waiting for each cache miss in turn would
    /// dominate. So all words are touched first: the processor fetches independent addresses in parallel.
    fn add_collected(&mut self, document: u32) {
        let mask = self.table.len() - 1;
        let entries = self.words_next.iter().map(|word| self.table[word.hash as usize & mask].record);
        std::hint::black_box(entries.fold(0, |all, record| all ^ record));
        let records = self.words_next.iter().map(|word| self.table[word.hash as usize & mask].record);
        let touched = records.filter(|record| *record != NOWHERE).map(|record| self.pool.touch(record));
        std::hint::black_box(touched.fold(0, |all, octet| all ^ octet));
        let words = std::mem::take(&mut self.words_next);
        let rest = std::mem::take(&mut self.rest_next);
        for word in &words {
            let length = usize::from(word.length);
            let rest = &rest[word.rest as usize..][..Octets::rest_of(length)];
            self.add(document, word, Octets { first: word.first, rest, length });
        }
        (self.words_next, self.rest_next) = (words, rest);
        self.words_next.clear();
        self.rest_next.clear();
    }

    /// Adds a value as a single word.
    pub fn add_value(&mut self, document: u32, field: Field, value: &str) {
        if value.len() <= MAX_TOKEN_LEN {
            self.collect(field.field_id() as u8, Octets::of(value.as_bytes(), &mut Vec::new()), 0);
            self.add_collected(document);
        }
    }

    #[inline]
    fn add(&mut self, document: u32, word: &Word, octets: Octets<'_>) {
        let state = &mut self.fields[usize::from(word.field)];
        state.tokens += 1;
        let has_positions = state.has_positions;
        let place = self.positions.len() as u32;
        let record = self.find_or_make(word, octets);
        let list = self.pool.list(record);
        if list.last_document() == Some(document) {
            if has_positions {
                let here = &mut self.here[list.here as usize];
                self.positions[here.last as usize].1 = place;
                (here.last, here.count) = (place, here.count + 1);
                self.positions.push((word.position, NOWHERE));
            }
            return;
        }
        let gap = document - list.last_document().unwrap_or(0);
        self.pool.see(record, document, self.here.len() as u32);
        self.here.push(Here { record, field: word.field, gap, count: 1, first: place, last: place });
        self.positions.push((word.position, NOWHERE));
    }

    #[inline]
    fn find_or_make(&mut self, word: &Word, octets: Octets<'_>) -> u32 {
        let Word { hash, field, .. } = *word;
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let entry = self.table[at];
            if entry.record == NOWHERE {
                let record = self.pool.make(field, octets);
                self.table[at] = Entry { hash, record };
                self.words += 1;
                if self.words * 5 > self.table.len() * 3 {
                    self.grow();
                }
                return record;
            }
            if entry.hash == hash && self.pool.is(entry.record, field, octets) {
                return entry.record;
            }
            at = (at + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let larger = vec![FREE; self.table.len() * 2];
        let mask = larger.len() - 1;
        for entry in std::mem::replace(&mut self.table, larger) {
            if entry.record != NOWHERE {
                let mut at = entry.hash as usize & mask;
                while self.table[at].record != NOWHERE {
                    at = (at + 1) & mask;
                }
                self.table[at] = entry;
            }
        }
    }

    /// Ends a message: appends its occurrences to the words' lists.
    pub fn end_document(&mut self) {
        let mut packed = std::mem::take(&mut self.packed);
        // As in `add_collected`.
        let touched = self.here.iter().map(|here| self.pool.touch_tail(here.record));
        std::hint::black_box(touched.fold(0, |all, octet| all ^ octet));
        for here in self.here.drain(..) {
            let has_positions = self.fields[usize::from(here.field)].has_positions;
            if has_positions && here.count == 1 {
                let gap = u64::from(here.gap) << 1 | 1;
                let position = self.positions[here.first as usize].0;
                if let (Some((gap, length)), Some((position, more))) = (few_octets(gap), few_octets(position.into())) {
                    self.pool.append_few(here.record, gap | position << (8 * length), length + more);
                    continue;
                }
            }
            let most = (here.count as usize + 2) * VALUE_BYTES_MAX;
            if packed.len() < most {
                packed.resize(most, 0);
            }
            let mut length = 0;
            if has_positions {
                put(&mut packed, &mut length, u64::from(here.gap) << 1 | u64::from(here.count == 1));
                if here.count > 1 {
                    put(&mut packed, &mut length, u64::from(here.count));
                }
                let mut at = here.first;
                let mut before = 0;
                while let Some(&(position, next)) = self.positions.get(at as usize) {
                    put(&mut packed, &mut length, u64::from(position - before));
                    (at, before) = (next, position);
                }
            } else {
                put(&mut packed, &mut length, u64::from(here.gap));
            }
            self.pool.append(here.record, &packed[..length]);
        }
        self.packed = packed;
        self.positions.clear();
        self.fields.iter_mut().for_each(|field| field.next = 0);
    }

    /// Writes all words into the segment's files, and clears them.
    pub fn write(&mut self, segment: &Segment) -> tantivy::Result<()> {
        let mut serializer = InvertedIndexSerializer::open(segment)?;
        let order = self.in_order();
        let mut packed = std::mem::take(&mut self.packed);
        let mut deltas = Vec::new();
        let mut rest = order.as_slice();
        // Also those without words: of a field that is missing, the engine's reader builds an empty dictionary, which takes it longer than a search.
        for (field, state) in (0..).zip(&self.fields).filter(|(_, state)| state.is_indexed) {
            let end = rest.partition_point(|(_, record)| u32::from(self.pool.field(*record)) == field);
            let mut out = serializer.new_field(Field::from_field_id(field), state.tokens, None)?;
            for (_, record) in &rest[..end] {
                self.pool.read(*record, &mut packed);
                out.new_term(self.pool.word(*record), 0, state.has_positions)?;
                if state.has_positions {
                    write_places(&packed, &mut deltas, &mut out);
                } else {
                    write_documents(&packed, &mut out);
                }
                out.close_term()?;
            }
            out.close()?;
            rest = &rest[end..];
        }
        serializer.close()?;
        self.packed = packed;
        self.clear();
        Ok(())
    }

    /// The words sorted by field and octets, each with the beginning of its sort key.
    fn in_order(&self) -> Vec<(u64, u32)> {
        let beginning = |record: u32| {
            let word = self.pool.word(record);
            let mut octets = [0; 8];
            octets[0] = self.pool.field(record);
            let length = word.len().min(7);
            octets[1..=length].copy_from_slice(&word[..length]);
            u64::from_be_bytes(octets)
        };
        let mut order = Vec::with_capacity(self.words);
        let records = self.table.iter().map(|entry| entry.record).filter(|record| *record != NOWHERE);
        order.extend(records.map(|record| (beginning(record), record)));
        order.sort_unstable_by(|(a, a_record), (b, b_record)| {
            a.cmp(b).then_with(|| self.pool.word(*a_record).cmp(self.pool.word(*b_record)))
        });
        order
    }

    /// Clears the words; keeps the memory for the next segment.
    fn clear(&mut self) {
        self.pool.clear();
        self.table.fill(FREE);
        self.words = 0;
        self.fields.iter_mut().for_each(|field| (field.tokens, field.next) = (0, 0));
    }
}

fn write_places(mut packed: &[u8], deltas: &mut Vec<u32>, out: &mut FieldSerializer<'_>) {
    let mut document = 0;
    while !packed.is_empty() {
        let first = get(&mut packed);
        document += (first >> 1) as u32;
        let count = if first & 1 == 1 { 1 } else { get(&mut packed) };
        deltas.clear();
        deltas.extend((0..count).map(|_| get(&mut packed) as u32));
        out.write_doc(document, count as u32, deltas);
    }
}

fn write_documents(mut packed: &[u8], out: &mut FieldSerializer<'_>) {
    let mut document = 0;
    while !packed.is_empty() {
        document += get(&mut packed) as u32;
        out.write_doc(document, 0, &[]);
    }
}

/// Maximum octets of one number.
const VALUE_BYTES_MAX: usize = 10;

/// Encodes a number below 2^28 like [`put`], as little-endian octets and their count. Nearly all numbers in text are
/// that small, and their lengths are unpredictable, so nothing here branches.
#[inline]
fn few_octets(value: u64) -> Option<(u64, usize)> {
    let spread = value & 0x7f | (value & 0x3f80) << 1 | (value & 0x1f_c000) << 2 | (value & 0xfe0_0000) << 3;
    let count = (70 - (value | 1).leading_zeros() as usize) / 7;
    let goes_on = 0x80_8080 & ((1 << (8 * (count.min(4) - 1))) - 1);
    (value < 1 << 28).then_some((spread | goes_on, count))
}

/// Writes a number with seven bits an octet, lowest first. The last octet has its highest bit clear.
#[inline]
fn put(out: &mut [u8], at: &mut usize, mut value: u64) {
    if let Some((octets, count)) = few_octets(value)
        && let Some(eight) = out[*at..].first_chunk_mut()
    {
        *eight = octets.to_le_bytes();
        *at += count;
        return;
    }
    while value >= 0x80 {
        out[*at] = value as u8 | 0x80;
        *at += 1;
        value >>= 7;
    }
    out[*at] = value as u8;
    *at += 1;
}

/// Takes the next number; 0 at the end.
#[inline]
fn get(packed: &mut &[u8]) -> u64 {
    match packed {
        [octet @ ..0x80, rest @ ..] => {
            let value = u64::from(*octet);
            *packed = rest;
            value
        }
        _ => get_long(packed),
    }
}

fn get_long(packed: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((&octet, rest)) = packed.split_first() {
        *packed = rest;
        value |= u64::from(octet & 0x7f) << shift;
        if octet < 0x80 {
            break;
        }
        shift += 7;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let shifted = (0..40).flat_map(|shift| [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1]);
        let numbers: Vec<u64> = shifted.collect();
        let mut packed = vec![0; numbers.len() * VALUE_BYTES_MAX];
        let mut length = 0;
        numbers.iter().for_each(|number| put(&mut packed, &mut length, *number));
        let mut rest = &packed[..length];
        assert_eq!(numbers.iter().map(|_| get(&mut rest)).collect::<Vec<_>>(), numbers);
        assert!(rest.is_empty());
    }
}
