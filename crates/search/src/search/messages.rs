//! Messages as shown in a result.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use tantivy::schema::document::{DeserializeError, DocumentDeserialize, DocumentDeserializer};

use super::searcher::Searcher;
use super::segment::Segment;
use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::state::{Column, bits};
use crate::tags::id_of;
use crate::text_index::Head;
use posthaste_text::split_addresses;

/// Reading a column costs about as much as reading this share of its values one by one.
pub(super) const ROWS_IN_COLUMN: usize = 100;

/// A message as a search shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundMessage {
    /// Number of the message.
    pub number: u32,
    /// Seconds since 1970.
    pub date: i64,
    /// Bytes on disk.
    pub size: u64,
    /// See [`Record::flags`](crate::state::Record::flags).
    pub flags: u64,
    /// Number of the thread.
    pub thread: u32,
    /// The message it answers, or [`NO_PARENT`](crate::state::NO_PARENT).
    pub parent: u32,
    /// Sorted.
    pub tags: Vec<String>,
    /// Folder, with a slash in front: `/` is the root.
    pub folder: String,
    /// The file.
    pub path: PathBuf,
    /// Key of its tags, found with `id:`. It is the Message-ID, or a substitute made from the content where there is
    /// none.
    pub id: String,
    /// Header fields.
    pub head: Head,
}

impl FoundMessage {
    /// Sort key of messages in a thread, oldest first. Numbers depend on the order of arrival, so they come last.
    pub fn age(&self) -> (i64, &str, u32) {
        (self.date, &self.id, self.number)
    }
}

/// Header fields that contain the addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressFields {
    /// `From`, `To`, `Cc`, `Bcc`.
    All,
    /// `From`.
    Sender,
    /// `To`, `Cc`, `Bcc`.
    Recipients,
}

impl Searcher {
    /// Reads these messages from both halves of the index, in the given order.
    ///
    /// # Errors
    /// [`IndexError::State`](crate::IndexError::State), [`IndexError::Text`](crate::IndexError::Text).
    pub fn messages(&self, numbers: &[u32]) -> Result<Vec<FoundMessage>> {
        let heads = self.heads(numbers)?;
        // A page of hits is a few rows; only for many of them are whole columns less work.
        let are_many = numbers.len() > self.len() as usize / ROWS_IN_COLUMN;
        let wide = |cell, column, number: u32| {
            if are_many {
                self.wide(cell, column).map(|values| values[number as usize])
            } else {
                Ok(self.snapshot.value(column, number)?)
            }
        };
        let narrow = |cell, column, number: u32| {
            if are_many {
                self.narrow(cell, column).map(|values| values[number as usize])
            } else {
                // Four bytes wide.
                Ok(self.snapshot.value(column, number)? as u32)
            }
        };
        let columns = &self.columns;
        let message = |(&number, head): (&u32, Head)| {
            let flags = wide(&columns.flags, Column::Flags, number)?;
            let folder = narrow(&columns.folder, Column::Folder, number)?;
            let tags = narrow(&columns.tags, Column::Tags, number)?;
            let id = if head.message_id.is_empty() {
                id_of("", self.snapshot.digest(number)?)
            } else {
                head.message_id.clone()
            };
            Ok(FoundMessage {
                id,
                number,
                date: wide(&columns.date, Column::Date, number)?.cast_signed(),
                size: wide(&columns.size, Column::Size, number)?,
                flags,
                thread: narrow(&columns.thread, Column::Thread, number)?,
                parent: narrow(&columns.parent, Column::Parent, number)?,
                tags: self.tags_of(tags, flags, folder),
                folder: format!("/{}", self.snapshot.folder(folder)?.path),
                path: self.snapshot.path(number, folder, flags & bits::NEW != 0)?,
                head,
            })
        };
        numbers.iter().zip(heads).map(message).collect()
    }

    /// The stored header fields of these messages, in the given order.
    ///
    /// # Errors
    /// [`IndexError::Text`](crate::IndexError::Text).
    pub fn heads(&self, numbers: &[u32]) -> Result<Vec<Head>> {
        self.guarded(|| self.read_heads(numbers))
    }

    fn read_heads(&self, numbers: &[u32]) -> Result<Vec<Head>> {
        let mut heads = vec![Head::default(); numbers.len()];
        let mut wanted: Vec<(u32, usize)> = numbers.iter().copied().zip(0..).collect();
        wanted.sort_unstable();
        let places: Vec<Vec<(u32, usize)>> = match self.look_up(&wanted) {
            Some(places) => places,
            None => self.segments.iter().map(|segment| segment.documents_of(&wanted)).collect(),
        };
        for (segment, wanted) in self.segments.iter().zip(places) {
            if wanted.is_empty() {
                continue;
            }
            // In the order they are stored, so that each block is unpacked once.
            let store = segment.reader.get_store_reader(2).map_err(|error| self.fail(error.into()))?;
            for (document, at) in wanted {
                let packed: Packed = store.get(document).map_err(|error| self.fail(error))?;
                heads[at] = Head::unpack(&packed.0);
            }
        }
        Ok(heads)
    }

    /// Finds the documents of a few messages, by segment, with their places in the result. `None` if all documents must
    /// be examined: merged segments may not be sorted by number.
    fn look_up(&self, wanted: &[(u32, usize)]) -> Option<Vec<Vec<(u32, usize)>>> {
        if wanted.len() > self.len() as usize / ROWS_IN_COLUMN {
            return None;
        }
        let mut left = wanted.len();
        let in_segment = |segment: &Segment| {
            let found = wanted.iter().filter_map(|(number, at)| Some((segment.document_of(*number)?, *at)));
            let found: Vec<(u32, usize)> = found.collect();
            left -= left.min(found.len());
            found
        };
        let places = self.segments.iter().map(in_segment).collect();
        (left == 0).then_some(places)
    }

    /// Calls `each` with the stored header fields of every message.
    fn for_each_head(&self, each: impl FnMut(u32, &Head)) -> Result<()> {
        self.guarded(|| self.read_each_head(each))
    }

    fn read_each_head(&self, mut each: impl FnMut(u32, &Head)) -> Result<()> {
        for segment in &self.segments {
            let store = segment.reader.get_store_reader(1).map_err(|error| self.fail(error.into()))?;
            let mut numbers = Vec::new();
            segment.for_each_number(|_, number| numbers.push(number));
            // Without the set of deleted documents, so that the count stays in step with the numbers.
            for (packed, number) in store.iter::<Packed>(None).zip(numbers) {
                let packed = packed.map_err(|error| self.fail(error))?;
                each(number, &Head::unpack(&packed.0));
            }
        }
        Ok(())
    }

    /// Returns every address in these header fields: `(name, address, messages)`, by number of messages, most first.
    ///
    /// # Errors
    /// [`IndexError::Text`](crate::IndexError::Text).
    pub fn addresses(&self, found: &Bitmap, fields: AddressFields) -> Result<Vec<(String, String, u64)>> {
        let mut counts: HashMap<String, HashMap<String, u64>> = HashMap::new();
        self.for_each_head(|number, head| {
            if !found.get(number) {
                return;
            }
            let mut once = HashSet::new();
            let all = [&head.from, &head.to, &head.cc, &head.bcc];
            let wanted = match fields {
                AddressFields::All => &all[..],
                AddressFields::Sender => &all[..1],
                AddressFields::Recipients => &all[1..],
            };
            let somebody = wanted.iter().flat_map(|field| split_addresses(field));
            for (name, address) in somebody.filter(|(_, address)| address.contains('@')) {
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
                // The most frequent name; empty only if there is no other.
                let best = names.into_iter().max_by(|(a, x), (b, y)| (!a.is_empty(), x, b).cmp(&(!b.is_empty(), y, a)));
                (best.map(|(name, _)| name).unwrap_or_default(), address, total)
            })
            .collect();
        all.sort_unstable_by(|a, b| (std::cmp::Reverse(a.2), &a.1).cmp(&(std::cmp::Reverse(b.2), &b.1)));
        Ok(all)
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
