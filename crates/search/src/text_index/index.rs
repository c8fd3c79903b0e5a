//! The open index: its schema, commits, and merges.

use std::path::{Path, PathBuf};

use tantivy::columnar::ColumnValues;
use tantivy::directory::{Directory, META_LOCK};
use tantivy::index::SegmentId;
use tantivy::indexer::NoMergePolicy;
use tantivy::schema::{
    BytesOptions, FAST, Field, IndexRecordOption, NumericOptions, Schema, TextFieldIndexing, TextOptions,
};
use tantivy::{Index, IndexSettings, IndexWriter, SegmentReader};

use crate::bitmap::Bitmap;
use posthaste_text::{HeaderNames, OTHER_HEADERS};

use super::files::{self, Files};
use super::gone::Gone;
use super::merge;

/// Name of [`Tokens`](posthaste_text::Tokens) in the schema. The engine itself tokenizes nothing.
pub(super) const TOKENIZER: &str = "posthaste";
/// Bytes of stored values that are compressed together. Small, because the hits of a page are spread over the store.
const STORE_BLOCK_BYTES: usize = 8 << 10;
/// The engine's minimum for a writer, which here only deletes and merges.
const WRITER_BYTES: usize = 15_000_000;

/// Prefix of the engine's field for an indexed header.
const HEADER_PREFIX: &str = "header-";

/// The fields of the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields {
    pub number: Field,
    pub head: Field,
    pub body: Field,
    pub subject: Field,
    pub from: Field,
    pub to: Field,
    pub cc: Field,
    pub bcc: Field,
    pub list: Field,
    pub file: Field,
    pub message_id: Field,
    pub mime: Field,
}

fn schema(headers: &HeaderNames) -> (Schema, Fields) {
    let mut builder = Schema::builder();
    let indexing = |tokenizer, option| {
        TextFieldIndexing::default().set_tokenizer(tokenizer).set_index_option(option).set_fieldnorms(false)
    };
    let words =
        TextOptions::default().set_indexing_options(indexing(TOKENIZER, IndexRecordOption::WithFreqsAndPositions));
    // Whole values, each once: regular expressions look at these and not at every message.
    let header = words.clone().set_fast("raw");
    // Most of these words are unique; their positions would take as much space as the words.
    let others = TextOptions::default().set_indexing_options(indexing(TOKENIZER, IndexRecordOption::Basic));
    let exact = TextOptions::default().set_indexing_options(indexing("raw", IndexRecordOption::Basic));
    let fields = Fields {
        number: builder.add_u64_field("number", NumericOptions::default() | FAST),
        head: builder.add_bytes_field("head", BytesOptions::default().set_stored()),
        body: builder.add_text_field("body", words),
        subject: builder.add_text_field("subject", header.clone()),
        from: builder.add_text_field("from", header.clone()),
        to: builder.add_text_field("to", header.clone()),
        cc: builder.add_text_field("cc", header.clone()),
        bcc: builder.add_text_field("bcc", header.clone()),
        list: builder.add_text_field("list", header.clone()),
        file: builder.add_text_field("file", header.clone()),
        message_id: builder.add_text_field("msgid", exact.clone()),
        mime: builder.add_text_field("mime", exact),
    };
    for name in headers.iter() {
        let options = if name == OTHER_HEADERS { others.clone() } else { header.clone() };
        builder.add_text_field(&format!("{HEADER_PREFIX}{name}"), options);
    }
    (builder.build(), fields)
}

/// A segment on disk that is not yet part of the index.
pub(crate) struct FinishedSegment {
    pub(super) id: SegmentId,
    pub(super) messages: u32,
}

/// An open text index.
pub(crate) struct TextIndex {
    dir: PathBuf,
    pub index: Index,
    pub fields: Fields,
    /// Indexed headers, each in a field of its own.
    headers: HeaderNames,
}

impl TextIndex {
    /// Opens the index in `dir` for its writer, and removes leftovers of a kill. Makes one with these headers if there
    /// is none.
    pub fn open_or_create(dir: &Path, headers: &HeaderNames) -> tantivy::Result<Self> {
        if dir.join(files::META).exists() {
            let text = Self::open(dir)?;
            files::remove_leftovers(&text.index, dir)?;
            return Ok(text);
        }
        std::fs::create_dir_all(dir)?;
        let (schema, fields) = schema(headers);
        let settings = IndexSettings {
            docstore_blocksize: STORE_BLOCK_BYTES,
            docstore_compress_dedicated_thread: false,
            ..IndexSettings::default()
        };
        let builder = Index::builder().schema(schema).settings(settings);
        let index = builder.open_or_create(Files::in_dir(dir)?)?;
        Ok(Self { dir: dir.to_owned(), index, fields, headers: headers.clone() })
    }

    /// Opens the index in `dir`.
    pub fn open(dir: &Path) -> tantivy::Result<Self> {
        Self::open_files(dir, Files::in_dir(dir)?)
    }

    /// Like [`open`](Self::open), for searches.
    pub fn open_to_search(dir: &Path) -> tantivy::Result<Self> {
        Self::open_files(dir, Files::to_search(dir)?)
    }

    fn open_files(dir: &Path, files: Files) -> tantivy::Result<Self> {
        let index = Index::open(files)?;
        let found = index.schema();
        let names = found.fields().filter_map(|(_, entry)| entry.name().strip_prefix(HEADER_PREFIX));
        let headers = HeaderNames::of(names.collect());
        let (schema, fields) = schema(&headers);
        if found != schema {
            return Err(tantivy::TantivyError::SchemaError("written by another version: rebuild it".to_owned()));
        }
        Ok(Self { dir: dir.to_owned(), index, fields, headers })
    }

    /// The headers that are indexed.
    pub fn headers(&self) -> &HeaderNames {
        &self.headers
    }

    /// The field of a header; `None` if it is not indexed.
    pub fn header_field(&self, name: &str) -> Option<Field> {
        let name = self.headers.known_as(name)?;
        self.index.schema().get_field(&format!("{HEADER_PREFIX}{name}")).ok()
    }

    /// The mark stored in the last commit.
    pub fn mark(&self) -> tantivy::Result<Mark> {
        Ok(self.index.load_metas()?.payload.map(|payload| Mark::read(&payload)).unwrap_or_default())
    }

    /// CRC-32C of `meta.json`, which names all other files and has no checksum of its own.
    pub fn meta_crc(&self) -> tantivy::Result<u32> {
        Ok(crc32c::crc32c(&std::fs::read(self.dir.join(files::META))?))
    }

    /// Adds finished segments, deletes messages, and commits. Returns the commit's number.
    pub fn commit(&self, segments: Vec<FinishedSegment>, gone: Bitmap, next_number: u32) -> tantivy::Result<u64> {
        let before = self.mark()?;
        let mark = Mark { next_number: before.next_number.max(next_number), commit: before.commit + 1 };
        let mut writer: IndexWriter = self.index.writer_with_num_threads(1, WRITER_BYTES)?;
        writer.set_merge_policy(Box::new(NoMergePolicy));
        for segment in segments {
            writer.add_segment(self.index.new_segment_meta(segment.id, segment.messages))?;
        }
        if gone.count() > 0 {
            writer.delete_query(Box::new(Gone::new(gone)))?;
        }
        let mut prepared = writer.prepare_commit()?;
        prepared.set_payload(&mark.write());
        prepared.commit()?;
        self.merge(&mut writer)?;
        writer.wait_merging_threads()?;
        files::remove_leftovers(&self.index, &self.dir)?;
        Ok(mark.commit)
    }

    fn merge(&self, writer: &mut IndexWriter) -> tantivy::Result<()> {
        let segments = self.index.searchable_segment_metas()?;
        let sizes: Vec<u32> = segments.iter().map(tantivy::SegmentMeta::num_docs).collect();
        let ids: Vec<SegmentId> = merge::which(&sizes).into_iter().map(|at| segments[at].id()).collect();
        if !ids.is_empty() {
            writer.merge(&ids).wait()?;
        }
        Ok(())
    }

    /// Opens the segments of the last commit. The engine's own reader would open their stores too, which most searches
    /// do not need.
    pub fn segments(&self) -> tantivy::Result<Vec<SegmentReader>> {
        // No writer removes a file between the reading of its name and its opening.
        let _writers_wait = self.index.directory().acquire_lock(&META_LOCK)?;
        self.index.searchable_segments()?.iter().map(SegmentReader::open).collect()
    }

    /// The numbers below `len` that the last commit has and has not deleted.
    pub fn numbers(&self, len: u32) -> tantivy::Result<Bitmap> {
        numbers_in(&self.segments()?, len)
    }
}

/// The numbers below `len` that these segments have and have not deleted.
pub(crate) fn numbers_in(segments: &[SegmentReader], len: u32) -> tantivy::Result<Bitmap> {
    let mut found = Bitmap::empty(len);
    for segment in segments {
        let numbers = segment.fast_fields().u64("number")?.values;
        for document in segment.doc_ids_alive() {
            found.set(u32::try_from(numbers.get_val(document)).unwrap_or(u32::MAX));
        }
    }
    Ok(found)
}

/// Payload of a commit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Lower bound for the number of the next message. Numbers are never reused, even after a crash between the commits
    /// of this index and the side store.
    pub next_number: u32,
    /// Number of the commit. The side store records the number that belongs to it.
    pub commit: u64,
}

impl Mark {
    fn read(payload: &str) -> Self {
        let (next_number, commit) = payload.split_once(' ').unwrap_or((payload, ""));
        Self { next_number: next_number.parse().unwrap_or(0), commit: commit.parse().unwrap_or(0) }
    }

    fn write(self) -> String {
        format!("{} {}", self.next_number, self.commit)
    }
}
