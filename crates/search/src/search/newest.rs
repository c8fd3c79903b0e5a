//! The newest messages that match a query, without looking at each one that might.
//!
//! Whether words stand next to each other is by far the most expensive question. The messages that have the words are known at once; whether they stand
//! together is asked of the newest of these only, and of more if too few are among them.

use std::cell::Cell;

use super::{Bitmap, Exclusion, Result, Searcher, Sort};
use crate::query::Query;

/// What is asked of the phrases of a query.
#[derive(Clone, Copy)]
pub(super) enum Scope<'a> {
    /// The messages that have them.
    All,
    /// Which of these have them. Others may be left out.
    Within(&'a Bitmap),
    /// The messages that have their words. Set if there was a phrase, so that there may be too many.
    Words(&'a Cell<bool>),
}

impl Scope<'_> {
    /// For what is turned round: too many there are too few here.
    pub fn exact(self) -> Self {
        match self {
            Scope::Words(_) => Scope::All,
            other => other,
        }
    }
}

impl Exclusion {
    /// A page of what matches and is not left out, newest first: the same that [`find`](Self::find) and [`page`](Searcher::page) give.
    ///
    /// # Errors
    /// Those of [`Searcher::find`].
    pub fn newest(
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
