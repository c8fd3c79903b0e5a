//! The plan of a search, made before it runs: which messages, in which order, and which part of them.

use super::exclusion::Exclusion;
use super::order::Sort;
use super::searcher::Searcher;
use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::query::Query;

/// A decided search, but for its query. It can run on any index; the run takes the cheapest way to the wanted part.
///
/// The default: all matches, newest first.
#[derive(Debug, Clone, Default)]
pub struct SearchPlan {
    /// Messages to leave out.
    pub exclusion: Exclusion,
    /// Adds the other messages of the threads that have a match.
    pub whole_threads: bool,
    /// Keeps one of several messages with the same Message-ID.
    pub skips_duplicates: bool,
    /// Order of the matches.
    pub order: MatchOrder,
    /// Reverses the order.
    pub reverse: bool,
    /// Matches to skip.
    pub offset: usize,
    /// Maximum number of matches to return; `None`: the rest.
    pub limit: Option<usize>,
}

/// Order of the matches of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchOrder {
    /// By a key.
    By(Sort),
    /// Most relevant first.
    Relevance,
}

impl Default for MatchOrder {
    fn default() -> Self {
        Self::By(Sort::default())
    }
}

impl SearchPlan {
    /// All messages of the search, ignoring offset and limit.
    ///
    /// # Errors
    /// As for [`Searcher::find`].
    pub fn found(&self, searcher: &Searcher, query: &Query) -> Result<Bitmap> {
        let mut found = self.exclusion.find(searcher, query)?;
        if self.whole_threads {
            found = self.exclusion.whole_threads(searcher, query, &found)?;
        }
        if self.skips_duplicates {
            found = searcher.without_duplicates(&found)?;
        }
        Ok(found)
    }

    /// The wanted part of the messages, in order.
    ///
    /// # Errors
    /// As for [`Searcher::find`].
    pub fn page(&self, searcher: &Searcher, query: &Query) -> Result<Vec<u32>> {
        let Self { reverse, offset, .. } = *self;
        let MatchOrder::By(sort) = self.order else {
            let found = self.found(searcher, query)?;
            return searcher.page_by_relevance(query, &found, reverse, offset, self.limit.unwrap_or(usize::MAX));
        };
        // A few of the newest are found without a test of each candidate, but threads and duplicates need them all.
        match self.limit {
            Some(limit) if sort == Sort::Date && !self.whole_threads && !self.skips_duplicates => {
                self.exclusion.newest(searcher, query, reverse, offset, limit)
            }
            limit => searcher.page(&self.found(searcher, query)?, sort, reverse, offset, limit.unwrap_or(usize::MAX)),
        }
    }
}
