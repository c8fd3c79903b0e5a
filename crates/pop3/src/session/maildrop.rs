//! The message list of a session, from its login to its end.

/// A locked maildrop, in terms of RFC 1939. It knows only the number of messages, and the marked ones.
#[derive(Debug)]
pub(super) struct Maildrop {
    pub messages: u32,
    pub deleted: MarkedMessages,
    /// Messages that RETR has sent completely.
    pub retrieved: MarkedMessages,
    /// Octets of the unmarked messages, once counted.
    pub octets: Option<u64>,
}

/// A set of messages: one bit for each, up to the highest one in it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct MarkedMessages {
    bits: Vec<u64>,
    count: u32,
}

impl Maildrop {
    pub fn new(messages: u32) -> Self {
        Self { messages, deleted: MarkedMessages::default(), retrieved: MarkedMessages::default(), octets: None }
    }

    /// True if the message exists and is not marked.
    pub fn has(&self, message: u32) -> bool {
        (1..=self.messages).contains(&message) && !self.deleted.contains(message)
    }

    pub fn left(&self) -> u32 {
        self.messages - self.deleted.count
    }
}

impl MarkedMessages {
    /// Number of messages, including marked ones.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True without any message.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if it is marked.
    pub fn contains(&self, message: u32) -> bool {
        let (word, bit) = place(message);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Their numbers, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let messages = self.bits.len() as u32 * 64;
        (0..messages).filter(|message| self.contains(*message))
    }

    pub(super) fn insert(&mut self, message: u32) {
        let (word, bit) = place(message);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.count += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }
}

fn place(message: u32) -> (usize, u64) {
    (message as usize / 64, 1 << (message % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_once() {
        let mut maildrop = Maildrop::new(200);
        for message in [200, 1, 64, 1, 63] {
            maildrop.deleted.insert(message);
        }
        assert_eq!(maildrop.deleted.iter().collect::<Vec<_>>(), [1, 63, 64, 200]);
        assert_eq!((maildrop.deleted.len(), maildrop.left()), (4, 196));
        assert!(maildrop.has(2) && !maildrop.has(64) && !maildrop.has(0) && !maildrop.has(201));
        assert!(!maildrop.deleted.contains(u32::MAX));
    }
}
