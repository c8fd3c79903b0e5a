use std::cell::Cell;

use crate::bitmap::Bitmap;

/// Precision with which the phrases of a query are evaluated.
#[derive(Clone, Copy)]
pub(super) enum Scope<'a> {
    /// Exact.
    All,
    /// Exact for the messages in this set; others may be left out.
    Within(&'a Bitmap),
    /// Messages that have all words of the phrase, in any place: a superset. The cell is set if the query has a phrase.
    Words(&'a Cell<bool>),
}

impl Scope<'_> {
    /// For operands of `not` and `xor`: a superset of the operand would make the result too small.
    pub fn exact(self) -> Self {
        match self {
            Scope::Words(_) => Scope::All,
            other => other,
        }
    }
}
