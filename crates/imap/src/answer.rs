//! The answer about one message.

use std::ops::Range;

use crate::write;

/// One answer about a message, with a bound: strings beyond it become NIL, so that the answer stays valid.
pub(crate) struct Answer<'o> {
    out: &'o mut Vec<u8>,
    full: usize,
}

/// Maximum octets of one ENVELOPE or BODYSTRUCTURE. Usual mail needs a thousandth of it.
const ANSWER_BYTES_MAX: usize = 1 << 20;

impl<'o> Answer<'o> {
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        let full = out.len() + ANSWER_BYTES_MAX;
        Self { out, full }
    }

    pub fn is_full(&self) -> bool {
        self.out.len() >= self.full
    }

    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Repeats an earlier range of the answer; false if there is no room.
    pub fn repeat(&mut self, range: Range<usize>) -> bool {
        let has_room = self.out.len().saturating_add(range.len()) <= self.full;
        if has_room {
            self.out.extend_from_within(range);
        }
        has_room
    }

    pub fn raw(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
    }

    pub fn number(&mut self, number: usize) {
        self.raw(number.to_string().as_bytes());
    }

    pub fn string(&mut self, text: &[u8]) {
        if self.out.len().saturating_add(text.len()) > self.full {
            return self.raw(b"\"\"");
        }
        write::string(self.out, text);
    }

    pub fn nstring(&mut self, text: Option<&[u8]>) {
        match text.filter(|text| self.out.len().saturating_add(text.len()) <= self.full) {
            Some(text) => write::string(self.out, text),
            None => self.raw(b"NIL"),
        }
    }

    /// Closes a list after a space.
    pub fn close(&mut self) {
        debug_assert_eq!(self.out.last(), Some(&b' '));
        self.out.pop();
        self.out.push(b')');
    }
}
