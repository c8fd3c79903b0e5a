//! The scanner of queries: values, operators, blanks.

use jiff::Zoned;

use super::error::ParseError;
use super::fields::Field;
use super::saved::Saved;
use super::values::Value;

/// The parser's position in the text.
pub(super) struct Parser<'a> {
    pub text: &'a str,
    pub at: usize,
    /// End of this (sub)query.
    pub end: usize,
    pub now: &'a Zoned,
    /// Field of words without a field name.
    pub default: Field<'a>,
    pub depth: u32,
    pub saved: Saved<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    And,
    Or,
    Xor,
    Not,
}

impl<'a> Parser<'a> {
    pub fn value(&mut self, field: Field<'_>) -> Result<Value, ParseError> {
        match self.peek() {
            Some('"') => self.quoted(),
            // Paths begin with a slash too: there, an expression has no blanks and ends with one.
            Some('/') => match self.regex_end(matches!(field, Field::Folder | Field::Path)) {
                Some(end) => {
                    let pattern = self.text[self.at + 1..end].replace("\\/", "/");
                    self.at = end + 1;
                    Ok(Value::Regex(pattern))
                }
                None => Ok(self.bare()),
            },
            _ => Ok(self.bare()),
        }
    }

    pub fn quoted(&mut self) -> Result<Value, ParseError> {
        let open = self.at;
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.at = open + at + 1;
                    return Ok(Value::Quoted(text));
                }
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                c => text.push(c),
            }
        }
        Err(ParseError::new(open..open + 1, "this `\"` is never closed"))
    }

    /// Finds the closing slash: not escaped, and at the end of the value.
    pub fn regex_end(&self, no_blanks: bool) -> Option<usize> {
        let mut escaped = false;
        for (at, c) in self.rest().char_indices().skip(1) {
            let here = self.at + at;
            match c {
                '/' if !escaped && at > 1 && self.boundary_after(here + 1) => return Some(here),
                c if no_blanks && c.is_whitespace() => return None,
                _ => {}
            }
            escaped = c == '\\' && !escaped;
        }
        None
    }

    pub fn bare(&mut self) -> Value {
        let rest = self.rest();
        // Parentheses that open and close inside a word are part of it: `baz()`.
        let mut open = 0;
        let end = rest.char_indices().find(|(_, c)| {
            let closes_group = *c == ')' && open == 0;
            open += i32::from(*c == '(') - i32::from(*c == ')' && open > 0);
            c.is_whitespace() || closes_group
        });
        let end = end.map_or(rest.len(), |(at, _)| at);
        self.at += end;
        Value::Bare(rest[..end].to_owned())
    }

    pub fn take_operator(&mut self, wanted: Operator) -> bool {
        self.skip_blanks();
        match self.operator() {
            Some((operator, length)) if operator == wanted => {
                self.at += length;
                true
            }
            _ => false,
        }
    }

    /// The operator at this place, if it is a word of its own.
    pub fn operator(&self) -> Option<(Operator, usize)> {
        let known = [("and", Operator::And), ("or", Operator::Or), ("xor", Operator::Xor), ("not", Operator::Not)];
        known.into_iter().find_map(|(word, operator)| {
            let here = self.rest().get(..word.len())?;
            (here.eq_ignore_ascii_case(word) && self.boundary_after(self.at + word.len()))
                .then_some((operator, word.len()))
        })
    }

    pub fn boundary_after(&self, at: usize) -> bool {
        self.text[at..self.end].chars().next().is_none_or(|c| c.is_whitespace() || c == '(' || c == ')')
    }

    pub fn rest(&self) -> &'a str {
        &self.text[self.at..self.end]
    }

    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.end
    }

    pub fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }
}
