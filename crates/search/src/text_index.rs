//! The text index: what never changes about a message, by message number. Built once for each message, deleted when it is gone.
//!
//! Each field has its own terms. Positions are kept for all text (phrases, and with them addresses and identifiers, need them), norms and
//! scores are not: hits are ordered by what a person asks for (date, size, ...). What is shown of a message is stored as one packed value.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tantivy::index::SegmentId;
use tantivy::indexer::{AddOperation, NoMergePolicy, SegmentWriter};
use tantivy::schema::{
    BytesOptions, FAST, Field, IndexRecordOption, NumericOptions, Schema, TextFieldIndexing, TextOptions,
};
use tantivy::tokenizer::{Token, TokenStream, Tokenizer, TokenizerManager};
use tantivy::{Index, IndexSettings, IndexWriter, TantivyDocument};

use crate::text::{Extracted, Tokens};

const TOKENIZER: &str = "posthaste";
/// Bytes of stored values that are compressed together. Small, because a page of hits comes from all over.
const STORE_BLOCK_BYTES: usize = 8 << 10;
/// More segments than this are merged after an update; below it, opening and asking them costs less than merging them.
const SEGMENTS_MAX: usize = 12;
/// The least that the engine takes for a writer that only deletes and merges.
const WRITER_BYTES: usize = 15_000_000;

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

fn schema() -> (Schema, Fields) {
    let mut builder = Schema::builder();
    let indexing = |tokenizer, option| {
        TextFieldIndexing::default().set_tokenizer(tokenizer).set_index_option(option).set_fieldnorms(false)
    };
    let words =
        TextOptions::default().set_indexing_options(indexing(TOKENIZER, IndexRecordOption::WithFreqsAndPositions));
    // Whole values, each once: regular expressions look at these and not at every message.
    let header = words.clone().set_fast("raw");
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
        file: builder.add_text_field("file", header),
        message_id: builder.add_text_field("msgid", exact.clone()),
        mime: builder.add_text_field("mime", exact),
    };
    (builder.build(), fields)
}

/// What is stored of a message to show it, and to match regular expressions and addresses.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Head {
    /// See [`Extracted`].
    pub from: String,
    /// See [`Extracted`].
    pub to: String,
    /// See [`Extracted`].
    pub cc: String,
    /// See [`Extracted`].
    pub bcc: String,
    /// See [`Extracted`].
    pub subject: String,
    /// See [`Extracted`].
    pub message_id: String,
    /// See [`Extracted`].
    pub list: String,
    /// See [`Extracted`].
    pub files: Vec<String>,
}

impl Head {
    pub(crate) fn of(message: &Extracted) -> Self {
        Self {
            from: message.from.clone(),
            to: message.to.clone(),
            cc: message.cc.clone(),
            bcc: message.bcc.clone(),
            subject: message.subject.clone(),
            message_id: message.message_id.clone(),
            list: message.list.clone(),
            files: message.files.clone(),
        }
    }

    /// Values separated by NUL, which none of them holds (control characters were replaced when they were read).
    fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        for value in [&self.from, &self.to, &self.cc, &self.bcc, &self.subject, &self.message_id, &self.list] {
            packed.extend_from_slice(value.as_bytes());
            packed.push(0);
        }
        packed.extend_from_slice(self.files.join("\0").as_bytes());
        packed
    }

    pub(crate) fn unpack(packed: &[u8]) -> Self {
        let mut values = packed.split(|&byte| byte == 0).map(|value| String::from_utf8_lossy(value).into_owned());
        let mut next = || values.next().unwrap_or_default();
        Self {
            from: next(),
            to: next(),
            cc: next(),
            bcc: next(),
            subject: next(),
            message_id: next(),
            list: next(),
            files: values.filter(|name| !name.is_empty()).collect(),
        }
    }
}

/// An open text index.
pub(crate) struct TextIndex {
    pub index: Index,
    pub fields: Fields,
}

impl TextIndex {
    /// Opens the index in `dir`, making it if there is none.
    pub fn open_or_create(dir: &Path) -> tantivy::Result<Self> {
        if dir.join("meta.json").exists() {
            return Self::open(dir);
        }
        std::fs::create_dir_all(dir)?;
        let (schema, fields) = schema();
        let settings = IndexSettings {
            docstore_blocksize: STORE_BLOCK_BYTES,
            docstore_compress_dedicated_thread: false,
            ..IndexSettings::default()
        };
        let index = Index::builder().schema(schema).settings(settings).tokenizers(tokenizers()).create_in_dir(dir)?;
        Ok(Self { index, fields })
    }

    /// Opens the index in `dir`.
    pub fn open(dir: &Path) -> tantivy::Result<Self> {
        let mut index = Index::open_in_dir(dir)?;
        let (schema, fields) = schema();
        if index.schema() != schema {
            return Err(tantivy::TantivyError::SchemaError("written by another version: rebuild it".to_owned()));
        }
        index.set_tokenizers(tokenizers());
        Ok(Self { index, fields })
    }

    /// The number that the first message after the last commit gets at least: numbers are never used twice, also when a crash
    /// came between this index's commit and that of the side store.
    pub fn next_number(&self) -> tantivy::Result<u32> {
        Ok(self.index.load_metas()?.payload.and_then(|payload| payload.parse().ok()).unwrap_or(0))
    }

    /// Adds finished segments, deletes messages, and commits.
    pub fn commit(&self, segments: Vec<FinishedSegment>, gone: &[u32], next_number: u32) -> tantivy::Result<()> {
        let mut writer: IndexWriter = self.index.writer_with_num_threads(1, WRITER_BYTES)?;
        writer.set_merge_policy(Box::new(NoMergePolicy));
        for segment in segments {
            writer.add_segment(self.index.new_segment_meta(segment.id, segment.messages))?;
        }
        for range in ranges(gone) {
            writer.delete_query(Box::new(self.number_range(range)))?;
        }
        let mut prepared = writer.prepare_commit()?;
        prepared.set_payload(&next_number.to_string());
        prepared.commit()?;
        self.merge(&mut writer)?;
        writer.wait_merging_threads()
    }

    /// Merges the smaller half when there are too many: each message is then merged about log2 times in its life.
    fn merge(&self, writer: &mut IndexWriter) -> tantivy::Result<()> {
        let mut segments = self.index.searchable_segment_metas()?;
        if segments.len() <= SEGMENTS_MAX {
            return Ok(());
        }
        segments.sort_unstable_by_key(tantivy::SegmentMeta::num_docs);
        segments.truncate(segments.len() - SEGMENTS_MAX / 2);
        let ids: Vec<SegmentId> = segments.iter().map(tantivy::SegmentMeta::id).collect();
        writer.merge(&ids).wait()?;
        writer.garbage_collect_files().wait()?;
        Ok(())
    }

    fn number_range(&self, (first, last): (u32, u32)) -> tantivy::query::RangeQuery {
        use std::ops::Bound::Included;
        let term = |number: u32| tantivy::Term::from_field_u64(self.fields.number, u64::from(number));
        tantivy::query::RangeQuery::new(Included(term(first)), Included(term(last)))
    }
}

/// Sorted numbers as runs of neighbours.
fn ranges(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

/// A segment on disk that is not yet part of the index.
pub(crate) struct FinishedSegment {
    id: SegmentId,
    messages: u32,
}

/// Builds segments on one thread.
pub(crate) struct SegmentBuilder<'a> {
    text: &'a TextIndex,
    memory_bytes: usize,
    writer: Option<(SegmentId, SegmentWriter)>,
    finished: Vec<FinishedSegment>,
    /// The engine wants every document stamped; deletions by number never meet a document of the same commit.
    stamp: &'a AtomicU64,
}

impl<'a> SegmentBuilder<'a> {
    pub fn new(text: &'a TextIndex, memory_bytes: usize, stamp: &'a AtomicU64) -> Self {
        Self { text, memory_bytes, writer: None, finished: Vec::new(), stamp }
    }

    /// Adds a message. Beyond the memory bound, the segment so far is written to disk.
    pub fn add(&mut self, number: u32, message: &Extracted) -> tantivy::Result<()> {
        if self.writer.is_none() {
            let segment = self.text.index.new_segment();
            self.writer = Some((segment.id(), SegmentWriter::for_segment(self.memory_bytes, segment)?));
        }
        let document = self.document(number, message);
        let opstamp = self.stamp.fetch_add(1, Ordering::Relaxed);
        let Some((_, writer)) = &mut self.writer else { return Ok(()) };
        writer.add_document(AddOperation { opstamp, document })?;
        if writer.mem_usage() > self.memory_bytes { self.finish_segment() } else { Ok(()) }
    }

    fn document(&self, number: u32, message: &Extracted) -> TantivyDocument {
        let fields = &self.text.fields;
        let mut document = TantivyDocument::new();
        document.add_u64(fields.number, u64::from(number));
        document.add_bytes(fields.head, &Head::of(message).pack());
        for (field, text) in [
            (fields.body, &message.body),
            (fields.subject, &message.subject),
            (fields.from, &message.from),
            (fields.to, &message.to),
            (fields.cc, &message.cc),
            (fields.bcc, &message.bcc),
            (fields.list, &message.list),
        ] {
            if !text.is_empty() {
                document.add_text(field, text);
            }
        }
        message.files.iter().for_each(|name| document.add_text(fields.file, name));
        message.mimes.iter().for_each(|mime| document.add_text(fields.mime, mime));
        if !message.message_id.is_empty() {
            document.add_text(fields.message_id, &message.message_id);
        }
        document
    }

    fn finish_segment(&mut self) -> tantivy::Result<()> {
        if let Some((id, writer)) = self.writer.take() {
            let messages = writer.max_doc();
            writer.finalize()?;
            self.finished.push(FinishedSegment { id, messages });
        }
        Ok(())
    }

    /// Writes what is left and returns all segments.
    pub fn finish(mut self) -> tantivy::Result<Vec<FinishedSegment>> {
        self.finish_segment()?;
        Ok(self.finished)
    }
}

fn tokenizers() -> TokenizerManager {
    let manager = TokenizerManager::default();
    manager.register(TOKENIZER, Words(Token::default()));
    manager
}

/// Our tokens as the engine wants them.
#[derive(Clone)]
struct Words(Token);

struct WordStream<'a> {
    tokens: Tokens<'a>,
    token: &'a mut Token,
}

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;
    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        self.0.reset();
        WordStream { tokens: Tokens::new(text), token: &mut self.0 }
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        self.token.position = self.token.position.wrapping_add(1);
        self.tokens.next_into(&mut self.token.text).is_some()
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_unpacks_to_what_was_packed() {
        let head = Head {
            from: "A <a@example.org>".to_owned(),
            subject: "S".to_owned(),
            files: vec!["a.txt".to_owned(), "b".to_owned()],
            ..Head::default()
        };
        assert_eq!(Head::unpack(&head.pack()), head);
        assert_eq!(Head::unpack(&Head::default().pack()), Head::default());
        assert_eq!(Head::unpack(b""), Head::default());
    }

    #[test]
    fn neighbours_become_ranges() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), [(1, 3), (7, 7), (9, 10)]);
        assert_eq!(ranges(&[]), []);
    }
}
