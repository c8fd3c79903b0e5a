//! Ranking: the most relevant matches first.
//!
//! The score of a message is a sum over the query's words and phrases that it contains: inverse document frequency
//! (logarithm) times the weight of the field. Term frequency is ignored, since mail quotes itself. Ties go to the newer
//! message.

use super::order::page_of;
use super::scope::Scope;
use super::searcher::Searcher;
use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::query::{Leaf, Query, TextField};
use crate::state::Column;

impl Searcher {
    /// Returns a page of the result, most relevant first. Only text conditions count, without excluded words.
    ///
    /// # Errors
    /// [`IndexError::State`](crate::IndexError::State), [`IndexError::Text`](crate::IndexError::Text).
    pub fn page_by_relevance(
        &self,
        query: &Query,
        found: &Bitmap,
        reverse: bool,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<u32>> {
        let mut scores = vec![0f32; self.len() as usize];
        let mut texts = Vec::new();
        wanted_texts(query, &mut texts);
        self.guarded(|| {
            texts.into_iter().try_for_each(|(field, text, prefix)| self.score(field, text, prefix, &mut scores))
        })?;
        let dates = self.wide(&self.columns.date, Column::Date)?;
        let key = |number: u32| {
            let at = number as usize;
            // Scores are sums of logarithms: never negative, never NaN, so their bits order as they do.
            std::cmp::Reverse((scores[at].to_bits(), dates[at].cast_signed(), number))
        };
        let page = page_of(found.iter().map(key), reverse, offset, limit);
        Ok(page.into_iter().map(|key| key.0.2).collect())
    }

    fn score(&self, field: TextField, text: &str, prefix: bool, scores: &mut [f32]) -> Result<()> {
        let all = self.words(field, text, prefix, Scope::All)?.count();
        let rarity = (1.0 + f64::from(self.len()) / (all as f64 + 1.0)).ln() as f32;
        for (part, weight) in parts(field) {
            for number in self.words(*part, text, prefix, Scope::All)?.iter() {
                scores[number as usize] += rarity * weight;
            }
        }
        Ok(())
    }
}

/// Parts of a field, each with the weight of a word in it.
fn parts(field: TextField) -> &'static [(TextField, f32)] {
    match field {
        TextField::Any => {
            &[(TextField::Subject, 4.0), (TextField::From, 3.0), (TextField::Recipient, 1.0), (TextField::Body, 1.0)]
        }
        TextField::Contact => &[(TextField::From, 3.0), (TextField::Recipient, 1.0)],
        TextField::Recipient => &[(TextField::Recipient, 1.0)],
        TextField::Body => &[(TextField::Body, 1.0)],
        TextField::Subject => &[(TextField::Subject, 1.0)],
        TextField::From => &[(TextField::From, 1.0)],
        TextField::To => &[(TextField::To, 1.0)],
        TextField::Cc => &[(TextField::Cc, 1.0)],
        TextField::Bcc => &[(TextField::Bcc, 1.0)],
        TextField::List => &[(TextField::List, 1.0)],
        TextField::File => &[(TextField::File, 1.0)],
    }
}

/// Collects the words and phrases that a hit may have, not those that are excluded.
fn wanted_texts<'q>(query: &'q Query, texts: &mut Vec<(TextField, &'q str, bool)>) {
    match query {
        Query::Leaf(Leaf::Text { field, text, prefix }) => texts.push((*field, text, *prefix)),
        Query::And(parts) | Query::Or(parts) | Query::Xor(parts) => {
            parts.iter().for_each(|part| wanted_texts(part, texts));
        }
        Query::All | Query::Leaf(_) | Query::Not(_) => {}
    }
}
