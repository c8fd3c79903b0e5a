//! The messages of a snapshot with what is counted of them, so that STATUS looks at no message.

use std::ops::Deref;

use crate::flags::MessageFlags;
use crate::row::NumberRange;

/// A message of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Message<F> {
    pub uid: u32,
    pub flags: MessageFlags,
    pub modseq: u64,
    /// Seconds since 1970.
    pub internal_date: u32,
    /// Octets on the wire, as they were recorded when the message came; 0: not known.
    pub wire_size: u32,
    /// The batch that the message came with first, and its number there: COPY and MOVE keep it.
    pub email_id: (u64, u16),
    pub file: F,
}

/// Ascending by UID. Each change keeps the counts right.
#[derive(Debug, Clone)]
pub(crate) struct MessageList<F> {
    messages: Vec<Message<F>>,
    counts: MessageCounts,
}

/// Counts of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MessageCounts {
    /// Messages without `\Seen`.
    pub unseen: u32,
    /// Messages with `\Deleted`.
    pub deleted: u32,
    /// The sum of recorded sizes.
    pub bytes: u64,
}

impl MessageCounts {
    fn add<F>(&mut self, message: &Message<F>) {
        self.add_flags(message.flags);
        self.bytes += u64::from(message.wire_size);
    }

    fn remove<F>(&mut self, message: &Message<F>) {
        self.remove_flags(message.flags);
        self.bytes -= u64::from(message.wire_size);
    }

    fn add_flags(&mut self, flags: MessageFlags) {
        self.unseen += u32::from(!flags.contains(MessageFlags::SEEN));
        self.deleted += u32::from(flags.contains(MessageFlags::DELETED));
    }

    fn remove_flags(&mut self, flags: MessageFlags) {
        self.unseen -= u32::from(!flags.contains(MessageFlags::SEEN));
        self.deleted -= u32::from(flags.contains(MessageFlags::DELETED));
    }
}

impl<F> MessageList<F> {
    pub fn counts(&self) -> MessageCounts {
        self.counts
    }

    /// Adds a message, whose UID is above all others.
    pub fn push(&mut self, message: Message<F>) {
        self.counts.add(&message);
        self.messages.push(message);
    }

    pub fn retain(&mut self, mut stays: impl FnMut(&Message<F>) -> bool) {
        let counts = &mut self.counts;
        self.messages.retain(|message| {
            let stays = stays(message);
            if !stays {
                counts.remove(message);
            }
            stays
        });
    }

    /// Gives a message at a position other flags.
    pub fn set_flags_at(&mut self, at: usize, flags: MessageFlags, modseq: u64) {
        let message = &mut self.messages[at];
        self.counts.remove_flags(message.flags);
        self.counts.add_flags(flags);
        (message.flags, message.modseq) = (flags, modseq);
    }

    /// Gives messages of a set other flags, and calls `each` with their UIDs.
    pub fn set_flags(&mut self, set: &[NumberRange], flags: MessageFlags, modseq: u64, mut each: impl FnMut(u32)) {
        for range in set {
            let from = self.messages.partition_point(|message| message.uid < range.first);
            for at in from..self.messages.len() {
                let uid = self.messages[at].uid;
                if uid > range.last {
                    break;
                }
                self.set_flags_at(at, flags, modseq);
                each(uid);
            }
        }
    }

    /// Replaces the file of the message at a position.
    pub fn set_file(&mut self, at: usize, file: F) {
        self.messages[at].file = file;
    }
}

impl<F> FromIterator<Message<F>> for MessageList<F> {
    fn from_iter<I: IntoIterator<Item = Message<F>>>(messages: I) -> Self {
        let messages: Vec<Message<F>> = messages.into_iter().collect();
        let mut counts = MessageCounts::default();
        messages.iter().for_each(|message| counts.add(message));
        Self { messages, counts }
    }
}

impl<F> Default for MessageList<F> {
    fn default() -> Self {
        Self { messages: Vec::new(), counts: MessageCounts::default() }
    }
}

impl<F> Deref for MessageList<F> {
    type Target = [Message<F>];

    fn deref(&self) -> &[Message<F>] {
        &self.messages
    }
}

impl<'l, F> IntoIterator for &'l MessageList<F> {
    type Item = &'l Message<F>;
    type IntoIter = std::slice::Iter<'l, Message<F>>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Change {
        Push(u64, u32),
        Flags(u32, u32, u64),
        Remove(u32, u32),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            3 => (0u64..32, any::<u32>()).prop_map(|(flags, size)| Change::Push(flags, size)),
            2 => (0u32..20, 0u32..20, 0u64..32).prop_map(|(from, to, flags)| Change::Flags(from, to, flags)),
            1 => (0u32..20, 0u32..3).prop_map(|(from, count)| Change::Remove(from, from + count)),
        ]
    }

    proptest! {
        #[test]
        fn counts_stay_those_of_the_messages(changes in prop::collection::vec(change(), 0..60)) {
            let (mut list, mut uid_next) = (MessageList::default(), 1);
            for (modseq, change) in (1..).zip(changes) {
                match change {
                    Change::Push(flags, wire_size) => {
                        let (flags, email_id) = (MessageFlags(flags), (modseq, 0));
                        let message =
                            Message { uid: uid_next, flags, modseq, internal_date: 0, wire_size, email_id, file: () };
                        list.push(message);
                        uid_next += 1;
                    }
                    Change::Flags(first, last, flags) => {
                        let mut changed = Vec::new();
                        list.set_flags(&[NumberRange { first, last }], MessageFlags(flags), modseq, |uid| changed.push(uid));
                        let expected = list.iter().filter(|message| (first..=last).contains(&message.uid));
                        prop_assert!(expected.clone().all(|message| message.flags.0 == flags));
                        prop_assert_eq!(expected.map(|message| message.uid).collect::<Vec<_>>(), changed);
                    }
                    Change::Remove(first, last) => list.retain(|message| !(first..=last).contains(&message.uid)),
                }
                let counted: MessageList<()> = list.iter().cloned().collect();
                prop_assert_eq!(list.counts(), counted.counts());
                let unseen = list.iter().filter(|message| !message.flags.contains(MessageFlags::SEEN)).count();
                let deleted = list.iter().filter(|message| message.flags.contains(MessageFlags::DELETED)).count();
                let bytes = list.iter().map(|message| u64::from(message.wire_size)).sum();
                let expected = MessageCounts { unseen: unseen as u32, deleted: deleted as u32, bytes };
                prop_assert_eq!(list.counts(), expected);
            }
        }
    }
}
