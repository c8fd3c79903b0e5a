//! Builds segments of the text index.

use std::sync::atomic::{AtomicU64, Ordering};

use tantivy::TantivyDocument;
use tantivy::index::SegmentId;
use tantivy::indexer::{AddOperation, SegmentWriter};

use super::{Head, TextIndex};
use crate::text::Extracted;

/// A segment on disk that is not yet part of the index.
pub(crate) struct FinishedSegment {
    pub(super) id: SegmentId,
    pub(super) messages: u32,
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
        for (name, value) in &message.headers {
            if let Some(field) = self.text.header_field(name) {
                document.add_text(field, value);
            }
        }
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
