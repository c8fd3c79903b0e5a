//! The newest matches of a query, without testing each candidate.
//!
//! Checking that the words of a phrase are adjacent is by far the most expensive part of a search. The messages that
//! contain all words are found cheaply; the check then runs on the newest of them only, and on more if too few pass.

use std::cell::Cell;

use super::exclusion::Exclusion;
use super::order::Sort;
use super::scope::Scope;
use super::searcher::Searcher;
use crate::error::Result;
use crate::query::Query;

impl Exclusion {
    /// A page of the matches that are not excluded, newest first: the same as [`find`](Self::find) and
    /// [`page`](Searcher::page) return.
    ///
    /// # Errors
    /// As for [`Searcher::find`].
    pub(super) fn newest(
        &self,
        searcher: &Searcher,
        query: &Query,
        reverse: bool,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<u32>> {
        let has_phrases = Cell::new(false);
        let candidates = self.without(searcher, query, searcher.find_in(query, Scope::Words(&has_phrases))?)?;
        if !has_phrases.get() {
            return searcher.page(&candidates, Sort::Date, reverse, offset, limit);
        }
        let wanted = offset.saturating_add(limit);
        // To ask once of many costs less than to ask twice.
        let mut asked = wanted.saturating_mul(32);
        loop {
            let first = searcher.page(&candidates, Sort::Date, reverse, 0, asked)?;
            let mut within = candidates.none();
            first.iter().for_each(|&number| within.set(number));
            let mut found = searcher.find_in(query, Scope::Within(&within))?;
            found.and(&within);
            if first.len() < asked || found.count() >= wanted as u64 {
                return searcher.page(&found, Sort::Date, reverse, offset, limit);
            }
            asked = asked.saturating_mul(8);
        }
    }
}
