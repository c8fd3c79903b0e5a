//! Output of a session: text, a body that is not copied, text.

use std::io::IoSlice;

use bytes::Bytes;

/// Bytes to send.
#[derive(Debug, Default)]
pub(super) struct Output {
    head: Vec<u8>,
    body: Bytes,
    tail: Vec<u8>,
    /// Bytes sent of all three.
    sent: usize,
}

impl Output {
    /// Buffer for commands.
    pub fn text(&mut self) -> &mut Vec<u8> {
        if self.body.is_empty() { &mut self.head } else { &mut self.tail }
    }

    /// Appends a body.
    pub fn body(&mut self, body: Bytes) {
        if self.body.is_empty() {
            self.body = body;
        } else {
            // The server judged the message before it had read it all; this one waits for the rest, copied.
            self.tail.extend_from_slice(&body);
        }
    }

    /// True if everything was sent.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.body.is_empty() && self.tail.is_empty()
    }

    /// Bytes still to send; slices may be empty.
    pub fn slices(&self) -> [IoSlice<'_>; 3] {
        let mut skip = self.sent;
        [&self.head[..], &self.body, &self.tail].map(|part| {
            let from = skip.min(part.len());
            skip -= from;
            IoSlice::new(&part[from..])
        })
    }

    /// Marks the next `octets` as sent.
    pub fn advance(&mut self, octets: usize) {
        self.sent += octets;
        let all = self.head.len() + self.body.len() + self.tail.len();
        assert!(self.sent <= all, "{} of {all} octets sent", self.sent);
        if self.sent == all {
            self.clear();
        }
    }

    /// Clears everything; keeps the memory for the next message.
    pub fn clear(&mut self) {
        self.head.clear();
        self.body = Bytes::new();
        self.tail.clear();
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_leaves_in_order_in_steps_of_any_size() {
        for step in 1..12 {
            let mut output = Output::default();
            output.text().extend_from_slice(b"head ");
            output.body(Bytes::from_static(b"body "));
            output.text().extend_from_slice(b"tail ");
            output.body(Bytes::from_static(b"more"));
            let mut wire = Vec::new();
            while !output.is_empty() {
                let left: Vec<u8> = output.slices().iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = left.len().min(step);
                wire.extend_from_slice(&left[..taken]);
                output.advance(taken);
            }
            assert_eq!(wire, b"head body tail more");
        }
    }
}
