//! A query that matches messages to delete by number, in one pass over each segment.

use std::sync::Arc;

use tantivy::columnar::ColumnValues;
use tantivy::query::{ConstScorer, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::{DocId, DocSet, Score, SegmentReader, TERMINATED};

use crate::bitmap::Bitmap;

/// Matches messages by number.
#[derive(Debug, Clone)]
pub(super) struct Gone(Arc<Bitmap>);

impl Gone {
    pub fn new(numbers: Bitmap) -> Self {
        Self(Arc::new(numbers))
    }
}

impl Query for Gone {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for Gone {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let numbers = reader.fast_fields().u64("number")?.values;
        let is_gone = |&document: &DocId| u32::try_from(numbers.get_val(document)).is_ok_and(|n| self.0.get(n));
        let documents = (0..reader.max_doc()).filter(is_gone).collect();
        Ok(Box::new(ConstScorer::new(Documents { documents, at: 0 }, boost)))
    }

    fn explain(&self, _: &SegmentReader, _: DocId) -> tantivy::Result<Explanation> {
        Ok(Explanation::new("deleted by number", 1.0))
    }
}

struct Documents {
    documents: Vec<DocId>,
    at: usize,
}

impl DocSet for Documents {
    fn advance(&mut self) -> DocId {
        self.at += 1;
        self.doc()
    }

    fn doc(&self) -> DocId {
        self.documents.get(self.at).copied().unwrap_or(TERMINATED)
    }

    fn size_hint(&self) -> u32 {
        u32::try_from(self.documents.len()).unwrap_or(u32::MAX)
    }
}
