//! Builds segments of the text index.

use tantivy::TantivyDocument;
use tantivy::directory::TerminatingWrite;
use tantivy::fastfield::FastFieldsWriter;
use tantivy::fieldnorm::FieldNormsSerializer;
use tantivy::index::{Segment, SegmentComponent};
use tantivy::store::StoreWriter;

use super::head::Head;
use super::index::{FinishedSegment, TextIndex};
use super::inverted::Inverted;
use posthaste_text::{Extracted, OTHER_HEADERS};

/// Builds segments on one thread.
pub(crate) struct SegmentBuilder<'a> {
    text: &'a TextIndex,
    memory_bytes: usize,
    inverted: Inverted,
    open: Option<Open>,
    finished: Vec<FinishedSegment>,
}

/// Parts of an unfinished segment besides its words.
struct Open {
    segment: Segment,
    columns: FastFieldsWriter,
    /// Memory that `columns` reports while empty: whole pages, hardly touched.
    columns_at_first: usize,
    store: StoreWriter,
    messages: u32,
}

impl<'a> SegmentBuilder<'a> {
    pub fn new(text: &'a TextIndex, memory_bytes: usize) -> Self {
        let inverted = Inverted::new(&text.index.schema());
        Self { text, memory_bytes, inverted, open: None, finished: Vec::new() }
    }

    /// Adds a message. Over the memory limit, the segment so far is written to disk.
    pub fn add(&mut self, number: u32, message: &Extracted) -> tantivy::Result<()> {
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(Open::begin(self.text)?),
        };
        open.add(self.text, number, message)?;
        add_words(self.text, open.messages - 1, message, &mut self.inverted);
        if self.inverted.memory() + open.memory() > self.memory_bytes { self.finish_segment() } else { Ok(()) }
    }

    fn finish_segment(&mut self) -> tantivy::Result<()> {
        if let Some(open) = self.open.take() {
            self.inverted.write(&open.segment)?;
            self.finished.push(open.finish()?);
        }
        Ok(())
    }

    /// Writes the last segment and returns all.
    pub fn finish(mut self) -> tantivy::Result<Vec<FinishedSegment>> {
        self.finish_segment()?;
        Ok(self.finished)
    }
}

fn add_words(text: &TextIndex, document: u32, message: &Extracted, inverted: &mut Inverted) {
    let fields = &text.fields;
    for (field, value) in [
        (fields.body, &message.body),
        (fields.subject, &message.subject),
        (fields.from, &message.from),
        (fields.to, &message.to),
        (fields.cc, &message.cc),
        (fields.bcc, &message.bcc),
        (fields.list, &message.list),
    ] {
        inverted.add_text(document, field, value);
    }
    message.files.iter().for_each(|name| inverted.add_text(document, fields.file, name));
    message.mimes.iter().for_each(|mime| inverted.add_value(document, fields.mime, mime));
    for (name, value) in &message.headers {
        if let Some(field) = text.header_field(name) {
            inverted.add_text(document, field, value);
        }
    }
    if !message.message_id.is_empty() {
        inverted.add_value(document, fields.message_id, &message.message_id);
    }
    inverted.end_document();
}

impl Open {
    fn begin(text: &TextIndex) -> tantivy::Result<Self> {
        let index = &text.index;
        let segment = index.new_segment();
        let columns =
            FastFieldsWriter::from_schema_and_tokenizer_manager(&index.schema(), index.fast_field_tokenizer().clone())?;
        let settings = index.settings();
        let store = StoreWriter::new(
            segment.open_write(SegmentComponent::Store)?,
            settings.docstore_compression,
            settings.docstore_blocksize,
            settings.docstore_compress_dedicated_thread,
        )?;
        Ok(Self { segment, columns_at_first: columns.mem_usage(), columns, store, messages: 0 })
    }

    fn memory(&self) -> usize {
        self.columns.mem_usage().saturating_sub(self.columns_at_first) + self.store.mem_usage()
    }

    /// Adds the stored fields, and the whole values of header fields.
    fn add(&mut self, text: &TextIndex, number: u32, message: &Extracted) -> tantivy::Result<()> {
        let fields = &text.fields;
        let mut document = TantivyDocument::new();
        document.add_u64(fields.number, u64::from(number));
        document.add_bytes(fields.head, &Head::of(message).pack());
        for (field, value) in [
            (fields.subject, &message.subject),
            (fields.from, &message.from),
            (fields.to, &message.to),
            (fields.cc, &message.cc),
            (fields.bcc, &message.bcc),
            (fields.list, &message.list),
        ] {
            if !value.is_empty() {
                document.add_text(field, value);
            }
        }
        message.files.iter().for_each(|name| document.add_text(fields.file, name));
        for (name, value) in &message.headers {
            if let Some(field) = text.header_field(name).filter(|_| name != OTHER_HEADERS) {
                document.add_text(field, value);
            }
        }
        self.columns.add_document(&document)?;
        self.store.store(&document, &text.index.schema())?;
        self.messages += 1;
        Ok(())
    }

    /// Writes everything except the words.
    fn finish(mut self) -> tantivy::Result<FinishedSegment> {
        // There are no norms, but the engine wants their file.
        FieldNormsSerializer::from_write(self.segment.open_write(SegmentComponent::FieldNorms)?)?.close()?;
        let mut columns = self.segment.open_write(SegmentComponent::FastFields)?;
        self.columns.serialize(&mut columns, None)?;
        columns.terminate()?;
        self.store.close()?;
        Ok(FinishedSegment { id: self.segment.id(), messages: self.messages })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use posthaste_random::Random;
    use tantivy::postings::Postings;
    use tantivy::schema::{Field, IndexRecordOption};
    use tantivy::tokenizer::{Token, TokenStream, Tokenizer, TokenizerManager};
    use tantivy::{DocSet, IndexWriter, TERMINATED};

    use super::*;
    use crate::bitmap::Bitmap;
    use posthaste_text::HeaderNames;
    use posthaste_text::Tokens;

    #[derive(Clone, Default)]
    struct Words(Token);

    struct WordStream<'a>(Tokens<'a>, &'a mut Token);

    impl Tokenizer for Words {
        type TokenStream<'a> = WordStream<'a>;
        fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
            self.0.reset();
            WordStream(Tokens::new(text), &mut self.0)
        }
    }

    impl TokenStream for WordStream<'_> {
        fn advance(&mut self) -> bool {
            self.1.position = self.1.position.wrapping_add(1);
            self.0.next_into(&mut self.1.text).is_some()
        }

        fn token(&self) -> &Token {
            self.1
        }

        fn token_mut(&mut self) -> &mut Token {
            self.1
        }
    }

    fn messages() -> Vec<Extracted> {
        let mut random = Random::new(7);
        let mut next = move |bound: u64| random.below(bound);
        let mut text = move |most: u64| {
            let word = |n: u64| match n % 50 {
                7 => "東京都".to_owned(),
                8 => "Straße, ".to_owned(),
                9 => "x".repeat(n as usize % 300),
                _ => format!("w{}", n * n / 400),
            };
            (0..next(most)).map(|_| word(next(1000)) + [" ", "-", "\n"][next(3) as usize]).collect::<String>()
        };
        let message = |n: u32| Extracted {
            body: text(if n.is_multiple_of(100) { 3000 } else { 60 }),
            subject: text(6),
            from: text(3),
            cc: text(2),
            files: (0..n % 3).map(|_| text(3)).collect(),
            mimes: ["text/plain", "image/png"].iter().take(n as usize % 3).map(|mime| (*mime).to_owned()).collect(),
            headers: (0..n % 4).map(|_| ("X-Score".to_owned(), text(4))).collect(),
            message_id: if n.is_multiple_of(5) { String::new() } else { format!("{}@x", n / 2) },
            ..Extracted::default()
        };
        (0..700).map(message).collect()
    }

    type Found = BTreeMap<(u32, Vec<u8>), Vec<(u64, Vec<u32>)>>;

    /// Every word of every field, with numbers of messages and positions.
    fn words(text: &TextIndex) -> Found {
        let mut found = Found::new();
        let reader = text.index.reader().unwrap();
        for segment in reader.searcher().segment_readers() {
            let numbers = segment.fast_fields().u64("number").unwrap().values;
            for field in (0..13)
                .map(Field::from_field_id)
                .filter(|field| ![text.fields.number, text.fields.head].contains(field))
            {
                let index = segment.inverted_index(field).unwrap();
                let mut terms = index.terms().stream().unwrap();
                while let Some((word, info)) = terms.next() {
                    let option = IndexRecordOption::WithFreqsAndPositions;
                    let mut postings = index.read_postings_from_terminfo(info, option).unwrap();
                    let list = found.entry((field.field_id(), word.to_vec())).or_default();
                    while postings.doc() != TERMINATED {
                        let mut positions = Vec::new();
                        postings.positions(&mut positions);
                        list.push((numbers.get_val(postings.doc()), positions));
                        postings.advance();
                    }
                }
            }
        }
        found.values_mut().for_each(|list| list.sort());
        found
    }

    #[test]
    fn a_segment_is_what_the_engine_would_have_built() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let messages = messages();
        let headers = HeaderNames::of(vec!["X-Score"]);
        let mut engine = TextIndex::open_or_create(theirs.path(), &headers).unwrap();
        let manager = TokenizerManager::default();
        manager.register(super::super::index::TOKENIZER, Words::default());
        engine.index.set_tokenizers(manager);
        let mut writer: IndexWriter = engine.index.writer_with_num_threads(1, 50_000_000).unwrap();
        let fields = engine.fields;
        for (number, message) in (0u64..).zip(&messages) {
            let mut document = TantivyDocument::new();
            document.add_u64(fields.number, number);
            for (field, value) in [
                (fields.body, &message.body),
                (fields.subject, &message.subject),
                (fields.from, &message.from),
                (fields.cc, &message.cc),
            ] {
                document.add_text(field, value);
            }
            message.files.iter().for_each(|name| document.add_text(fields.file, name));
            message.mimes.iter().for_each(|mime| document.add_text(fields.mime, mime));
            let score = engine.header_field("x-score").unwrap();
            message.headers.iter().for_each(|(_, value)| document.add_text(score, value));
            if !message.message_id.is_empty() {
                document.add_text(fields.message_id, &message.message_id);
            }
            writer.add_document(document).unwrap();
        }
        writer.commit().unwrap();
        let expected = words(&engine);
        assert!(expected.len() > 1000 && expected.values().any(|list| list.len() > 300));
        // In one segment, and in several that use the same memory one after the other.
        for each in [messages.len(), 150] {
            let text = TextIndex::open_or_create(&ours.path().join(each.to_string()), &headers).unwrap();
            let mut builder = SegmentBuilder::new(&text, 64 << 20);
            for (number, message) in (0u32..).zip(&messages) {
                builder.add(number, message).unwrap();
                if (number as usize + 1).is_multiple_of(each) {
                    builder.finish_segment().unwrap();
                }
            }
            let segments = builder.finish().unwrap();
            assert_eq!(segments.len(), messages.len().div_ceil(each));
            text.commit(segments, Bitmap::empty(0), 0).unwrap();
            assert_eq!(words(&text), expected);
        }
    }
}
