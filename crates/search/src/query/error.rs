//! Errors in queries, with their place.

use super::ast::Span;

/// An error in a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// Byte offsets in the query of the faulty part.
    pub span: Span,
    /// The mistake, and often its correction.
    pub message: String,
}

impl ParseError {
    pub(super) fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into() }
    }

    /// The query with a line below it that marks the place.
    pub fn show(&self, query: &str) -> String {
        let width = |text: &str| text.chars().count();
        // Line ends inside a query would part the marks from what they mark.
        let line: String = query.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let start = width(query.get(..self.span.start).unwrap_or(query));
        let marks = width(query.get(self.span.clone()).unwrap_or("")).max(1);
        format!("{}\n  {line}\n  {}{}", self.message, " ".repeat(start), "^".repeat(marks))
    }
}
