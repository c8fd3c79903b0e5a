//! Exclusion of messages by tag, as with notmuch's `search.exclude_tags`.

use super::searcher::Searcher;
use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::query::{Leaf, Pattern, Query};

/// Messages that a search leaves out.
#[derive(Debug, Clone, Default)]
pub struct Exclusion {
    /// Messages with one of these tags are not found unless the query names the tag.
    pub tags: Vec<String>,
    /// Also leave them out of threads that were found.
    pub from_threads: bool,
}

impl Exclusion {
    /// Returns the messages that match, without the excluded ones.
    ///
    /// # Errors
    /// As for [`Searcher::find`].
    pub fn find(&self, searcher: &Searcher, query: &Query) -> Result<Bitmap> {
        let found = searcher.find(query)?;
        self.without(searcher, query, found)
    }

    /// All messages of the threads that contain one of `found`, the result of `query`.
    ///
    /// # Errors
    /// As for [`Searcher::find`].
    pub fn whole_threads(&self, searcher: &Searcher, query: &Query, found: &Bitmap) -> Result<Bitmap> {
        let all = searcher.whole_threads(found)?;
        if self.from_threads { self.without(searcher, query, all) } else { Ok(all) }
    }

    pub(super) fn without(&self, searcher: &Searcher, query: &Query, mut found: Bitmap) -> Result<Bitmap> {
        let sets = &searcher.directory().tag_sets;
        for tag in &self.tags {
            // A tag without messages needs no check of messages.
            if sets.iter().any(|set| set.contains(tag)) && !query.names_tag(tag) {
                let mut others = searcher.find(&Query::Leaf(Leaf::Tag(Pattern::Is(tag.clone()))))?;
                others.not();
                found.and(&others);
            }
        }
        Ok(found)
    }
}
