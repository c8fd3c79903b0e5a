//! Answers queries: every condition becomes a set of message numbers, and the query an expression over sets.
//!
//! Text conditions read postings, all others read a column of the side store. Sets are bitmaps (a megabyte for eight million messages), so
//! `not`, `xor` and whole threads cost no more than `and`. Nothing is scored; hits are ordered by a column.

mod bitmap;
mod terms;
mod tree;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use tantivy::columnar::ColumnValues;
use tantivy::schema::document::{DeserializeError, DocumentDeserialize, DocumentDeserializer};
use tantivy::{ReloadPolicy, SegmentReader};

use crate::query::{Flag, Leaf, Pattern, Query, ThreadOf};
use crate::state::{Column, Directory, Snapshot, StateError, bits};
use crate::text::{Priority, fold};
use crate::text_index::{Head, TextIndex};
use crate::update::{IndexError, text_error};

pub use bitmap::Bitmap;
pub use tree::{TreeLine, tree};

/// What hits are ordered by. Ties are broken by message number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Newest first.
    #[default]
    Date,
    /// Largest first.
    Size,
    /// By subject without `Re:`, folded.
    Subject,
    /// By sender, folded.
    From,
    /// In the order of arrival in the index, newest first.
    Number,
}

/// An index open for reading: one commit, as it was when it was opened.
pub struct Searcher {
    dir: PathBuf,
    snapshot: Snapshot,
    text: TextIndex,
    segments: Vec<Segment>,
    columns: Columns,
}

struct Segment {
    reader: SegmentReader,
    numbers: std::sync::Arc<dyn ColumnValues<u64>>,
}

/// Columns are read when a condition first asks for them.
#[derive(Default)]
struct Columns {
    flags: OnceCell<Vec<u64>>,
    date: OnceCell<Vec<u64>>,
    size: OnceCell<Vec<u64>>,
    id: OnceCell<Vec<u64>>,
    folder: OnceCell<Vec<u32>>,
    thread: OnceCell<Vec<u32>>,
    parent: OnceCell<Vec<u32>>,
    tags: OnceCell<Vec<u32>>,
}

/// A message as the side store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its number.
    pub number: u32,
    /// Seconds since 1970.
    pub date: i64,
    /// Bytes on disk.
    pub size: u64,
    /// See [`Record::flags`](crate::state::Record::flags).
    pub flags: u64,
    /// The thread's number.
    pub thread: u32,
    /// The message it answers, or [`NO_PARENT`](crate::state::NO_PARENT).
    pub parent: u32,
    /// Sorted.
    pub tags: Vec<String>,
    /// Folder, with a slash in front: `/` is the root.
    pub folder: String,
    /// The file.
    pub path: PathBuf,
    /// Header fields.
    pub head: Head,
}

type Result<T> = std::result::Result<T, IndexError>;

impl Searcher {
    /// Opens the newest commit. Waits for no writer.
    ///
    /// # Errors
    /// [`IndexError::State`], [`IndexError::Text`].
    pub fn open(dir: &Path) -> Result<Self> {
        // The side store first: the text index, opened later, has at least its messages.
        let snapshot = Snapshot::open(dir)?;
        let text_dir = dir.join("text");
        let fail = |error| text_error(&text_dir, error);
        let text = TextIndex::open(&text_dir).map_err(fail)?;
        let reader = text.index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(fail)?;
        let segment = |reader: &SegmentReader| {
            let numbers = reader.fast_fields().u64("number")?.values;
            Ok(Segment { reader: reader.clone(), numbers })
        };
        let segments: tantivy::Result<Vec<Segment>> = reader.searcher().segment_readers().iter().map(segment).collect();
        let segments = segments.map_err(fail)?;
        Ok(Self { dir: dir.to_owned(), snapshot, text, segments, columns: Columns::default() })
    }

    pub(crate) fn text(&self) -> &TextIndex {
        &self.text
    }

    /// Numbers that the text index has, and has not deleted.
    pub(crate) fn numbers_with_text(&self) -> Bitmap {
        let mut numbers = Bitmap::empty(self.len());
        for segment in &self.segments {
            segment.for_each_number(|document, number| {
                if !segment.reader.is_deleted(document) {
                    numbers.set(number);
                }
            });
        }
        numbers
    }

    /// What is known of all messages together.
    pub fn directory(&self) -> &Directory {
        self.snapshot.directory()
    }

    /// The commit of the side store that is read.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The messages that match.
    ///
    /// # Errors
    /// [`IndexError::State`], [`IndexError::Text`]: what was read was not what was written.
    pub fn find(&self, query: &Query) -> Result<Bitmap> {
        let mut found = self.eval(query)?;
        found.and(&self.alive()?);
        Ok(found)
    }

    fn eval(&self, query: &Query) -> Result<Bitmap> {
        match query {
            Query::All => Ok(Bitmap::full(self.len())),
            Query::Leaf(leaf) => self.leaf(leaf),
            Query::Not(inner) => {
                let mut found = self.eval(inner)?;
                found.not();
                Ok(found)
            }
            Query::And(parts) => self.join(parts, Bitmap::and),
            Query::Or(parts) => self.join(parts, Bitmap::or),
            Query::Xor(parts) => self.join(parts, Bitmap::xor),
        }
    }

    fn join(&self, parts: &[Query], with: fn(&mut Bitmap, &Bitmap)) -> Result<Bitmap> {
        let mut parts = parts.iter();
        let mut found = parts.next().map_or(Ok(Bitmap::empty(self.len())), |part| self.eval(part))?;
        parts.try_for_each(|part| self.eval(part).map(|other| with(&mut found, &other)))?;
        Ok(found)
    }

    fn leaf(&self, leaf: &Leaf) -> Result<Bitmap> {
        match leaf {
            Leaf::Text { field, text, prefix } => self.words(*field, text, *prefix),
            Leaf::Regex { field, pattern } => self.regex(*field, pattern),
            Leaf::Mime(pattern) => self.exact(self.text.fields.mime, pattern),
            Leaf::MessageId(pattern) => self.exact(self.text.fields.message_id, pattern),
            Leaf::Date(range) => {
                Ok(self.wide(&self.columns.date, Column::Date)?.matching(|date| range.contains(&date.cast_signed())))
            }
            Leaf::Size(range) => {
                Ok(self.wide(&self.columns.size, Column::Size)?.matching(|size| range.contains(&size)))
            }
            Leaf::Flag(flag) => self.flag(*flag),
            Leaf::Priority(priority) => {
                let wanted = match priority {
                    Priority::Low => bits::PRIORITY_LOW,
                    Priority::Normal => 0,
                    Priority::High => bits::PRIORITY_HIGH,
                };
                let mask = bits::PRIORITY_LOW | bits::PRIORITY_HIGH;
                Ok(self.flags()?.matching(|flags| flags & mask == wanted))
            }
            Leaf::Tag(pattern) => {
                let wanted: Vec<bool> =
                    self.directory().tag_sets.iter().map(|set| set.iter().any(|tag| pattern.accepts(tag))).collect();
                Ok(self
                    .narrow(&self.columns.tags, Column::Tags)?
                    .matching(|set| wanted.get(set as usize).copied().unwrap_or(false)))
            }
            Leaf::Folder(pattern) => {
                let accepts = |path: &str| match pattern {
                    // `/lists/*` is what lies below and what begins so; `lists/` alone also means the folder itself.
                    Pattern::StartsWith(start) => {
                        path.starts_with(start.as_str()) || start.strip_suffix('/') == Some(path)
                    }
                    Pattern::Matches(regex) => regex.is_match(&fold(&format!("/{path}"))),
                    Pattern::Is(wanted) => path == wanted,
                };
                let wanted: Vec<bool> = self.directory().folders.iter().map(|folder| accepts(&folder.path)).collect();
                Ok(self
                    .narrow(&self.columns.folder, Column::Folder)?
                    .matching(|folder| wanted.get(folder as usize).copied().unwrap_or(false)))
            }
            Leaf::Thread(ThreadOf::Number(number)) => {
                Ok(self.narrow(&self.columns.thread, Column::Thread)?.matching(|thread| thread == *number))
            }
            Leaf::Thread(ThreadOf::Query(query)) => {
                let found = self.find(query)?;
                self.whole_threads(&found)
            }
        }
    }

    fn flag(&self, flag: Flag) -> Result<Bitmap> {
        let seen = bits::letters("S");
        let flags = self.flags()?;
        Ok(match flag {
            Flag::Letter(bit) | Flag::Property(bit) => flags.matching(|flags| flags & bit != 0),
            Flag::Unread => flags.matching(|flags| flags & seen == 0 || flags & bits::NEW != 0),
            Flag::Read => flags.matching(|flags| flags & seen != 0 && flags & bits::NEW == 0),
        })
    }

    /// All messages of the threads that have one of these.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn whole_threads(&self, found: &Bitmap) -> Result<Bitmap> {
        let threads = self.narrow(&self.columns.thread, Column::Thread)?;
        let mut wanted = Bitmap::empty(self.len());
        found.iter().for_each(|number| wanted.set(threads[number as usize]));
        let mut all = threads.matching(|thread| wanted.get(thread));
        all.and(&self.alive()?);
        Ok(all)
    }

    /// One of several messages with the same Message-ID: that with the smallest number among those found.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn without_duplicates(&self, found: &Bitmap) -> Result<Bitmap> {
        let ids = self.wide(&self.columns.id, Column::Id)?;
        let mut seen = HashSet::new();
        let mut first = Bitmap::empty(self.len());
        found
            .iter()
            .filter(|&number| ids[number as usize] == 0 || seen.insert(ids[number as usize]))
            .for_each(|number| first.set(number));
        Ok(first)
    }

    /// A page of what was found. Only as much is sorted as the page needs.
    ///
    /// # Errors
    /// [`IndexError::State`], [`IndexError::Text`].
    pub fn page(&self, found: &Bitmap, sort: Sort, reverse: bool, offset: usize, limit: usize) -> Result<Vec<u32>> {
        let mut numbers: Vec<u32> = found.iter().collect();
        match sort {
            Sort::Number => keep_page(&mut numbers, offset, limit, reverse, std::cmp::Reverse),
            Sort::Date => {
                let dates = self.wide(&self.columns.date, Column::Date)?;
                let key = |number: u32| (std::cmp::Reverse(dates[number as usize].cast_signed()), number);
                keep_page(&mut numbers, offset, limit, reverse, key);
            }
            Sort::Size => {
                let sizes = self.wide(&self.columns.size, Column::Size)?;
                keep_page(&mut numbers, offset, limit, reverse, |number| {
                    (std::cmp::Reverse(sizes[number as usize]), number)
                });
            }
            Sort::Subject | Sort::From => {
                let heads = self.heads(&numbers)?;
                let text = |head: &Head| match sort {
                    Sort::From => fold(&head.from),
                    _ => fold(&crate::text::base_subject(&head.subject).text),
                };
                let keys: HashMap<u32, String> = numbers.iter().copied().zip(heads.iter().map(text)).collect();
                numbers.sort_by(|a, b| (&keys[a], a).cmp(&(&keys[b], b)));
                if reverse {
                    numbers.reverse();
                }
                numbers = numbers.into_iter().skip(offset).take(limit).collect();
            }
        }
        Ok(numbers)
    }

    /// What is known of these messages, in their order.
    ///
    /// # Errors
    /// [`IndexError::State`], [`IndexError::Text`].
    pub fn messages(&self, numbers: &[u32]) -> Result<Vec<Message>> {
        let heads = self.heads(numbers)?;
        let (flags, dates) = (self.flags()?, self.wide(&self.columns.date, Column::Date)?);
        let sizes = self.wide(&self.columns.size, Column::Size)?;
        let folders = self.narrow(&self.columns.folder, Column::Folder)?;
        let threads = self.narrow(&self.columns.thread, Column::Thread)?;
        let parents = self.narrow(&self.columns.parent, Column::Parent)?;
        let tags = self.narrow(&self.columns.tags, Column::Tags)?;
        let directory = self.directory();
        let message = |(&number, head): (&u32, Head)| {
            let at = number as usize;
            Ok(Message {
                number,
                date: dates[at].cast_signed(),
                size: sizes[at],
                flags: flags[at],
                thread: threads[at],
                parent: parents[at],
                tags: directory.tag_sets.get(tags[at] as usize).cloned().unwrap_or_default(),
                folder: format!("/{}", directory.folders[folders[at] as usize].path),
                path: self.snapshot.path(number, folders[at], flags[at] & bits::NEW != 0)?,
                head,
            })
        };
        numbers.iter().zip(heads).map(message).collect()
    }

    /// The stored header fields of these messages, in their order.
    ///
    /// # Errors
    /// [`IndexError::Text`].
    pub fn heads(&self, numbers: &[u32]) -> Result<Vec<Head>> {
        let mut heads = vec![Head::default(); numbers.len()];
        let places: HashMap<u32, usize> = numbers.iter().enumerate().map(|(at, &number)| (number, at)).collect();
        for segment in &self.segments {
            let mut wanted: Vec<(u32, usize)> = Vec::new();
            segment.for_each_number(|document, number| wanted.extend(places.get(&number).map(|&at| (document, at))));
            // In the order they are stored, so that each block is unpacked once.
            let store = segment.reader.get_store_reader(2).map_err(|error| self.fail(error.into()))?;
            for (document, at) in wanted {
                let packed: Packed = store.get(document).map_err(|error| self.fail(error))?;
                heads[at] = Head::unpack(&packed.0);
            }
        }
        Ok(heads)
    }

    /// Calls `each` with the stored header fields of every message.
    fn for_each_head(&self, mut each: impl FnMut(u32, &Head)) -> Result<()> {
        self.for_each_packed(|number, packed| each(number, &Head::unpack(packed)))
    }

    /// The same, as it is stored: for those who need a part of it.
    fn for_each_packed(&self, mut each: impl FnMut(u32, &[u8])) -> Result<()> {
        for segment in &self.segments {
            let store = segment.reader.get_store_reader(1).map_err(|error| self.fail(error.into()))?;
            let mut numbers = Vec::new();
            segment.for_each_number(|_, number| numbers.push(number));
            // Without the set of deleted documents, so that the count stays in step with the numbers.
            for (packed, number) in store.iter::<Packed>(None).zip(numbers) {
                let packed = packed.map_err(|error| self.fail(error))?;
                each(number, &packed.0);
            }
        }
        Ok(())
    }

    /// Every address in the header fields of these messages: `(name, address, messages)`, by number of messages, most first.
    ///
    /// # Errors
    /// [`IndexError::Text`].
    pub fn addresses(&self, found: &Bitmap) -> Result<Vec<(String, String, u64)>> {
        let mut counts: HashMap<String, HashMap<String, u64>> = HashMap::new();
        self.for_each_head(|number, head| {
            if !found.get(number) {
                return;
            }
            let mut once = HashSet::new();
            for (name, address) in
                [&head.from, &head.to, &head.cc, &head.bcc].into_iter().flat_map(|field| split_addresses(field))
            {
                let address = address.to_lowercase();
                if once.insert(address.clone()) {
                    *counts.entry(address).or_default().entry(name).or_default() += 1;
                }
            }
        })?;
        let mut all: Vec<(String, String, u64)> = counts
            .into_iter()
            .map(|(address, names)| {
                let total = names.values().sum();
                // The name that is used most; none at all only if there is no other.
                let best = names.into_iter().max_by(|(a, x), (b, y)| (!a.is_empty(), x, b).cmp(&(!b.is_empty(), y, a)));
                (best.map(|(name, _)| name).unwrap_or_default(), address, total)
            })
            .collect();
        all.sort_unstable_by(|a, b| (std::cmp::Reverse(a.2), &a.1).cmp(&(std::cmp::Reverse(b.2), &b.1)));
        Ok(all)
    }

    /// How many messages have each of the directory's sets of tags.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn messages_by_tag_set(&self) -> Result<Vec<u64>> {
        let sets = self.narrow(&self.columns.tags, Column::Tags)?;
        let mut counts = vec![0; self.directory().tag_sets.len()];
        for number in self.alive()?.iter() {
            if let Some(count) = counts.get_mut(sets[number as usize] as usize) {
                *count += 1;
            }
        }
        Ok(counts)
    }

    /// The numbers of the threads that these messages are in.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn threads_of(&self, numbers: &[u32]) -> Result<Vec<u32>> {
        let threads = self.narrow(&self.columns.thread, Column::Thread)?;
        Ok(numbers.iter().map(|&number| threads[number as usize]).collect())
    }

    /// Bytes of these messages' files together.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn bytes_of(&self, found: &Bitmap) -> Result<u64> {
        let sizes = self.wide(&self.columns.size, Column::Size)?;
        Ok(found.iter().map(|number| sizes[number as usize]).sum())
    }

    fn alive(&self) -> Result<Bitmap> {
        Ok(self.flags()?.matching(|flags| flags & bits::GONE == 0))
    }

    fn flags(&self) -> Result<&Vec<u64>> {
        self.wide(&self.columns.flags, Column::Flags)
    }

    fn wide<'a>(&self, cell: &'a OnceCell<Vec<u64>>, column: Column) -> Result<&'a Vec<u64>> {
        read_once(cell, || self.snapshot.wide(column))
    }

    fn narrow<'a>(&self, cell: &'a OnceCell<Vec<u32>>, column: Column) -> Result<&'a Vec<u32>> {
        read_once(cell, || self.snapshot.narrow(column))
    }

    fn len(&self) -> u32 {
        self.directory().messages
    }

    fn fail(&self, error: tantivy::TantivyError) -> IndexError {
        text_error(&self.dir.join("text"), error)
    }
}

fn read_once<T>(
    cell: &OnceCell<Vec<T>>,
    read: impl FnOnce() -> std::result::Result<Vec<T>, StateError>,
) -> Result<&Vec<T>> {
    match cell.get() {
        Some(column) => Ok(column),
        None => {
            let column = read()?;
            Ok(cell.get_or_init(|| column))
        }
    }
}

/// A column as the set of rows that fit.
trait Matching<T> {
    fn matching(&self, fits: impl Fn(T) -> bool) -> Bitmap;
}

impl<T: Copy> Matching<T> for Vec<T> {
    fn matching(&self, fits: impl Fn(T) -> bool) -> Bitmap {
        Bitmap::from_values(self, fits)
    }
}

impl Segment {
    fn for_each_number(&self, mut each: impl FnMut(u32, u32)) {
        let documents: Vec<u32> = (0..self.reader.max_doc()).collect();
        let mut numbers = vec![0; documents.len()];
        self.numbers.get_vals(&documents, &mut numbers);
        documents
            .into_iter()
            .zip(numbers)
            .for_each(|(document, number)| each(document, u32::try_from(number).unwrap_or(u32::MAX)));
    }
}

/// The one stored value of a document.
struct Packed(Vec<u8>);

impl DocumentDeserialize for Packed {
    fn deserialize<'de, D: DocumentDeserializer<'de>>(
        mut deserializer: D,
    ) -> std::result::Result<Self, DeserializeError> {
        let value = deserializer.next_field::<Vec<u8>>()?;
        Ok(Self(value.map(|(_, bytes)| bytes).unwrap_or_default()))
    }
}

fn keep_page<K: Ord>(numbers: &mut Vec<u32>, offset: usize, limit: usize, reverse: bool, key: impl Fn(u32) -> K) {
    let compare = |a: &u32, b: &u32| {
        let order = key(*a).cmp(&key(*b));
        if reverse { order.reverse() } else { order }
    };
    let end = offset.saturating_add(limit).min(numbers.len());
    if end < numbers.len() && end > 0 {
        numbers.select_nth_unstable_by(end - 1, compare);
    }
    numbers.truncate(end);
    numbers.sort_unstable_by(compare);
    numbers.drain(..offset.min(end));
}

/// Takes apart what [`extract`](crate::text::extract) put together: `Name <address>`, `"Na, me" <address>`, `address`.
pub fn split_addresses(field: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut quoted = false;
    let mut start = 0;
    let ends = field.char_indices().filter(|(_, c)| {
        quoted ^= *c == '"';
        *c == ',' && !quoted
    });
    for end in ends.map(|(at, _)| at).chain([field.len()]).collect::<Vec<_>>() {
        let one = field[start..end].trim();
        start = (end + 1).min(field.len());
        let (name, address) = match one.rsplit_once('<') {
            Some((name, address)) => (name.trim().trim_matches('"'), address.trim_end_matches('>')),
            None => ("", one),
        };
        if address.contains('@') {
            all.push((name.to_owned(), address.to_owned()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_apart_as_they_were_put_together() {
        let check = |field: &str, expected: &[(&str, &str)]| {
            let expected: Vec<(String, String)> =
                expected.iter().map(|(n, a)| ((*n).to_owned(), (*a).to_owned())).collect();
            assert_eq!(split_addresses(field), expected, "{field}");
        };
        check("Ann <a@x>, \"Doe, B\" <b@x>, c@x", &[("Ann", "a@x"), ("Doe, B", "b@x"), ("", "c@x")]);
        check("", &[]);
        check("undisclosed", &[]);
    }

    #[test]
    fn a_page_is_a_part_of_the_sorted_whole() {
        for (offset, limit) in [(0, 3), (2, 3), (9, 5), (20, 5), (0, 100), (0, 0)] {
            let mut numbers: Vec<u32> = vec![5, 3, 9, 1, 7, 0, 2, 8, 6, 4];
            keep_page(&mut numbers, offset, limit, true, |n| n);
            let expected: Vec<u32> = (0..10).rev().skip(offset).take(limit).collect();
            assert_eq!(numbers, expected);
        }
    }
}
