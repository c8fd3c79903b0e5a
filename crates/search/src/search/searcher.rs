//! An open index, and the conditions of a query as sets of message numbers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::OnceLock;

use crate::bitmap::Bitmap;
use crate::error::{IndexError, Result, text_error};
use crate::flag_tags::{FLAG_TAGS, FileTags, is_flag_tag};
use crate::query::{self, Flag, Leaf, ParseError, Pattern, Query, ThreadOf};
use crate::state::{Column, IndexDirectory, Snapshot, StateError, bits};
use crate::tags::digest_of;
use crate::text_index::{TextIndex, numbers_in};
use posthaste_text::HeaderNames;
use posthaste_text::{Priority, fold, id_hash};

use super::guard::guarded;
use super::scope::Scope;
use super::segment::{Segment, open_text};

/// An index open for reading: one commit, as it was when it was opened.
pub struct Searcher {
    pub(super) snapshot: Snapshot,
    pub(super) text: TextIndex,
    pub(super) segments: Vec<Segment>,
    pub(super) columns: Columns,
}

/// Columns, read when a condition first needs them.
#[derive(Default)]
pub(super) struct Columns {
    pub(super) flags: OnceLock<Vec<u64>>,
    pub(super) date: OnceLock<Vec<u64>>,
    pub(super) size: OnceLock<Vec<u64>>,
    pub(super) mtime: OnceLock<Vec<u64>>,
    pub(super) id: OnceLock<Vec<u64>>,
    pub(super) folder: OnceLock<Vec<u32>>,
    pub(super) thread: OnceLock<Vec<u32>>,
    pub(super) parent: OnceLock<Vec<u32>>,
    pub(super) tags: OnceLock<Vec<u32>>,
}

impl Searcher {
    /// Opens the newest commit. Waits for no writer.
    ///
    /// # Errors
    /// [`IndexError::State`], [`IndexError::Text`].
    pub fn open(dir: &Path) -> Result<Self> {
        // The side store first: the text index, opened later, has at least its messages.
        let mut snapshot = Snapshot::open(dir)?;
        loop {
            let text_dir = snapshot.text_dir();
            match guarded(&snapshot, || open_text(&text_dir).map_err(|error| text_error(&text_dir, error))) {
                Ok((text, segments)) => return Ok(Self { snapshot, text, segments, columns: Columns::default() }),
                // A rebuild was completed meanwhile, and has removed what we were about to open.
                Err(_) if snapshot.is_superseded() => snapshot = Snapshot::open(dir)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Numbers that the text index has and has not deleted.
    pub(crate) fn numbers_with_text(&self) -> Result<Bitmap> {
        let readers: Vec<_> = self.segments.iter().map(|segment| segment.reader.clone()).collect();
        self.guarded(|| numbers_in(&readers, self.len()).map_err(|error| self.fail(error)))
    }

    /// Runs work that reads the text index.
    pub(super) fn guarded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        guarded(&self.snapshot, work)
    }

    /// The indexed header fields besides the standard ones.
    pub fn headers(&self) -> &HeaderNames {
        self.text.headers()
    }

    /// Data about all messages together.
    pub fn directory(&self) -> &IndexDirectory {
        self.snapshot.directory()
    }

    /// The commit that this search reads, as a view of the side store.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Parses a query as of now, with the index's saved queries.
    ///
    /// # Errors
    /// [`ParseError`] with the place.
    pub fn query(&self, text: &str) -> std::result::Result<Query, ParseError> {
        query::parse_with(text, &jiff::Zoned::now(), &self.directory().queries)
    }

    /// The messages that match.
    ///
    /// # Errors
    /// [`IndexError::State`], [`IndexError::Text`]: the index is damaged or cannot be read.
    pub fn find(&self, query: &Query) -> Result<Bitmap> {
        self.find_in(query, Scope::All)
    }

    pub(super) fn find_in(&self, query: &Query, scope: Scope<'_>) -> Result<Bitmap> {
        let mut found = self.guarded(|| self.eval(query, scope))?;
        found.and(&self.alive()?);
        Ok(found)
    }

    fn eval(&self, query: &Query, scope: Scope<'_>) -> Result<Bitmap> {
        match query {
            Query::All => Ok(Bitmap::full(self.len())),
            Query::Leaf(leaf) => self.leaf(leaf, scope),
            Query::Not(inner) => {
                let mut found = self.eval(inner, scope.exact())?;
                found.not();
                Ok(found)
            }
            Query::And(parts) => self.join(parts, scope, Bitmap::and),
            Query::Or(parts) => self.join(parts, scope, Bitmap::or),
            Query::Xor(parts) => self.join(parts, scope.exact(), Bitmap::xor),
        }
    }

    fn join(&self, parts: &[Query], scope: Scope<'_>, with: fn(&mut Bitmap, &Bitmap)) -> Result<Bitmap> {
        let mut parts = parts.iter();
        let mut found = parts.next().map_or(Ok(Bitmap::empty(self.len())), |part| self.eval(part, scope))?;
        parts.try_for_each(|part| self.eval(part, scope).map(|other| with(&mut found, &other)))?;
        Ok(found)
    }

    fn leaf(&self, leaf: &Leaf, scope: Scope<'_>) -> Result<Bitmap> {
        match leaf {
            Leaf::Text { field, text, prefix } => self.words(*field, text, *prefix, scope),
            Leaf::Regex { field, pattern } => self.regex(*field, pattern),
            Leaf::Header { name, value } => self.header(name, value),
            Leaf::Mime(pattern) => self.exact(self.text.fields.mime, pattern),
            Leaf::MimeWord(word) => self.values_that(self.text.fields.mime, "", |value| has_word(value, word)),
            Leaf::MessageId(pattern) => {
                let mut found = self.exact(self.text.fields.message_id, pattern)?;
                if let Pattern::Is(id) = pattern
                    && let Some(digest) = digest_of(id)
                {
                    for number in self.snapshot.with_digest(digest)? {
                        if self.snapshot.value(Column::Id, number)? == 0 {
                            found.set(number);
                        }
                    }
                }
                Ok(found)
            }
            Leaf::Date(range) => {
                Ok(self.wide(&self.columns.date, Column::Date)?.matching(|date| range.contains(&date.cast_signed())))
            }
            Leaf::Size(range) => {
                Ok(self.wide(&self.columns.size, Column::Size)?.matching(|size| range.contains(&size)))
            }
            Leaf::Changed(range) => {
                let mtimes = self.wide(&self.columns.mtime, Column::Mtime)?;
                Ok(mtimes.matching(|mtime| range.contains(&mtime.cast_signed().div_euclid(1_000_000_000))))
            }
            Leaf::References(id) => self.references(id_hash(id)),
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
            Leaf::Tag(pattern) => self.tagged(pattern),
            Leaf::Folder(pattern) => {
                let accepts = |path: &str| match pattern {
                    // `/lists/*` is what is below and what begins so; `lists/` alone also means the folder itself.
                    Pattern::StartsWith(start) => {
                        path.starts_with(start.as_str()) || start.strip_suffix('/') == Some(path)
                    }
                    // mu's names of folders begin with a slash, notmuch's do not.
                    Pattern::Matches(regex) => {
                        let path = fold(&format!("/{path}"));
                        regex.is_match(&path) || regex.is_match(&path[1..])
                    }
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

    /// Messages that answer or refer to the one with this id.
    fn references(&self, id: u64) -> Result<Bitmap> {
        let mut found = Bitmap::empty(self.len());
        for chunk in 0..self.snapshot.chunks() {
            self.snapshot.for_each_reference(chunk, |number, reference| {
                if reference == id {
                    found.set(number);
                }
            })?;
        }
        Ok(found)
    }

    fn flag(&self, flag: Flag) -> Result<Bitmap> {
        let flags = self.flags()?;
        Ok(match flag {
            Flag::Letter(bit) | Flag::Property(bit) => flags.matching(|flags| flags & bit != 0),
            Flag::Unread => flags.matching(bits::is_unread),
            Flag::Read => flags.matching(|flags| !bits::is_unread(flags)),
        })
    }

    /// All messages of the threads that contain one of these.
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

    /// Keeps one of several messages with the same Message-ID: the one with the smallest number.
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

    fn tagged(&self, pattern: &Pattern) -> Result<Bitmap> {
        let directory = self.directory();
        let are_flags = directory.flags_are_tags;
        let has = |set: &Vec<String>| set.iter().any(|tag| pattern.accepts(tag) && !(are_flags && is_flag_tag(tag)));
        let wanted: Vec<bool> = directory.tag_sets.iter().map(has).collect();
        let sets = self.narrow(&self.columns.tags, Column::Tags)?;
        let mut found = sets.matching(|set| wanted.get(set as usize).copied().unwrap_or(false));
        if are_flags && FLAG_TAGS.iter().any(|(tag, _)| pattern.accepts(tag)) {
            let file = FileTags { flags: true, keywords: &[] };
            found.or(&self.flags()?.matching(|flags| file.of(flags).any(|tag| pattern.accepts(tag))));
        }
        let folders = 0..u32::try_from(directory.folders.len()).unwrap_or(u32::MAX);
        let letters: Vec<u64> =
            folders.map(|folder| directory.file_tags(folder).letters_that(|tag| pattern.accepts(tag))).collect();
        if letters.iter().any(|letters| *letters != 0) {
            let folders = self.narrow(&self.columns.folder, Column::Folder)?;
            let rows = (0..).zip(folders).zip(self.flags()?);
            rows.filter(|((_, folder), flags)| {
                letters.get(**folder as usize).is_some_and(|letters| *flags & letters != 0)
            })
            .for_each(|((number, _), _)| found.set(number));
        }
        Ok(found)
    }

    /// The tags of a message with this set of stored tags and these flags in this folder, sorted.
    pub(super) fn tags_of(&self, set: u32, flags: u64, folder: u32) -> Vec<String> {
        let stored = self.directory().tag_sets.get(set as usize).cloned().unwrap_or_default();
        let file = self.directory().file_tags(folder);
        if !file.flags && file.keywords.is_empty() {
            return stored;
        }
        file.seen(&stored.into_iter().collect(), flags).into_iter().collect()
    }

    /// All tags, each with its number of messages.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn tag_counts(&self) -> Result<BTreeMap<String, u64>> {
        let sets = self.narrow(&self.columns.tags, Column::Tags)?;
        let folders = self.narrow(&self.columns.folder, Column::Folder)?;
        let flags = self.flags()?;
        // There are few different triples of a set, flags and a folder.
        let mut triples: HashMap<(u32, u64, u32), u64> = HashMap::new();
        for number in self.alive()?.iter().map(|number| number as usize) {
            *triples.entry((sets[number], flags[number] & bits::MUTABLE, folders[number])).or_default() += 1;
        }
        let mut counts = BTreeMap::new();
        for ((set, flags, folder), count) in triples {
            self.tags_of(set, flags, folder).into_iter().for_each(|tag| *counts.entry(tag).or_default() += count);
        }
        Ok(counts)
    }

    /// The threads of these messages, by number.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn threads_of(&self, numbers: &[u32]) -> Result<Vec<u32>> {
        let threads = self.narrow(&self.columns.thread, Column::Thread)?;
        Ok(numbers.iter().map(|&number| threads[number as usize]).collect())
    }

    /// Sum of the sizes of these messages' files, in bytes.
    ///
    /// # Errors
    /// [`IndexError::State`].
    pub fn bytes_of(&self, found: &Bitmap) -> Result<u64> {
        let sizes = self.wide(&self.columns.size, Column::Size)?;
        Ok(found.iter().map(|number| sizes[number as usize]).sum())
    }

    pub(super) fn alive(&self) -> Result<Bitmap> {
        if self.directory().present == u64::from(self.len()) {
            return Ok(Bitmap::full(self.len()));
        }
        Ok(self.flags()?.matching(|flags| flags & bits::GONE == 0))
    }

    pub(super) fn flags(&self) -> Result<&Vec<u64>> {
        self.wide(&self.columns.flags, Column::Flags)
    }

    pub(super) fn wide<'a>(&self, cell: &'a OnceLock<Vec<u64>>, column: Column) -> Result<&'a Vec<u64>> {
        read_once(cell, || self.snapshot.wide(column))
    }

    pub(super) fn narrow<'a>(&self, cell: &'a OnceLock<Vec<u32>>, column: Column) -> Result<&'a Vec<u32>> {
        read_once(cell, || self.snapshot.narrow(column))
    }

    pub(super) fn len(&self) -> u32 {
        self.directory().messages
    }

    pub(super) fn fail(&self, error: tantivy::TantivyError) -> IndexError {
        text_error(&self.snapshot.text_dir(), error)
    }
}

fn read_once<T>(
    cell: &OnceLock<Vec<T>>,
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

/// Evaluates a condition on a column as a set of rows.
pub(super) trait Matching<T> {
    fn matching(&self, fits: impl Fn(T) -> bool) -> Bitmap;
}

impl<T: Copy> Matching<T> for Vec<T> {
    fn matching(&self, fits: impl Fn(T) -> bool) -> Bitmap {
        Bitmap::from_values(self, fits)
    }
}

/// True if `word` occurs in `value` with no ASCII letter or digit next to it.
fn has_word(value: &str, word: &str) -> bool {
    value.match_indices(word).any(|(at, _)| {
        let borders = [value[..at].chars().next_back(), value[at + word.len()..].chars().next()];
        borders.into_iter().flatten().all(|c| !c.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_media_type_ends_where_others_begin() {
        for (word, fits, fits_not) in [
            ("pdf", "application/pdf", "application/x-pdfx"),
            ("image", "image/png", "x/imagery"),
            ("xml", "image/svg+xml", "text/xmlish"),
            ("x.y", "text/x.y", "text/x-y"),
            ("pdf", "x/pdfx-pdf", "x/pdfx-xpdf"),
        ] {
            assert!(has_word(fits, word) && !has_word(fits_not, word), "{word}");
        }
    }
}
