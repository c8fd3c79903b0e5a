//! The messages of a snapshot with counters, so that STATUS reads no message.
//!
//! They are in chunks, which snapshots share: a change of a message copies its chunk, once for each older snapshot in
//! use. So a change of a large mailbox takes neither time nor memory for all of its messages.

use std::ops::Index;
use std::sync::Arc;

use crate::entry::WireSize;
use crate::flags::MessageFlags;
use crate::row::NumberRange;

/// Maximum messages of a chunk.
const CHUNK_MESSAGES: usize = if cfg!(test) { 8 } else { 512 };

/// A message of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Message<F> {
    pub uid: u32,
    pub flags: MessageFlags,
    pub modseq: u64,
    /// Seconds since 1970.
    pub internal_date: u32,
    /// Recorded at arrival.
    pub wire_size: WireSize,
    /// The batch of the message's arrival, and its number there: COPY and MOVE keep it.
    pub email_id: (u64, u16),
    pub file: F,
}

/// Messages ascending by UID. Each change updates the counters.
#[derive(Debug, Clone)]
pub(crate) struct MessageList<F> {
    /// Never empty, and at most [`CHUNK_MESSAGES`] each. Only the last one grows, so removals leave short chunks.
    chunks: Vec<Arc<Vec<Message<F>>>>,
    /// Position of the first message of each chunk.
    starts: Vec<u32>,
    len: usize,
    counts: MessageCounts,
}

/// Counts of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MessageCounts {
    /// Messages without `\Seen`.
    pub unseen: u32,
    /// Messages with `\Deleted`.
    pub deleted: u32,
    /// Sum of recorded sizes in bytes.
    pub bytes: u64,
}

impl MessageCounts {
    fn add<F>(&mut self, message: &Message<F>) {
        self.add_flags(message.flags);
        self.bytes += message.wire_size.counted();
    }

    fn remove<F>(&mut self, message: &Message<F>) {
        self.remove_flags(message.flags);
        self.bytes -= message.wire_size.counted();
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

    pub fn len(&self) -> usize {
        self.len
    }

    /// The chunk of a message, and its index in the chunk.
    fn place(&self, at: usize) -> Option<(usize, usize)> {
        if at >= self.len {
            return None;
        }
        let chunk = self.starts.partition_point(|start| *start as usize <= at) - 1;
        Some((chunk, at - self.starts[chunk] as usize))
    }

    pub fn get(&self, at: usize) -> Option<&Message<F>> {
        let (chunk, at) = self.place(at)?;
        self.chunks[chunk].get(at)
    }

    pub fn last(&self) -> Option<&Message<F>> {
        self.chunks.last()?.last()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message<F>> + Clone {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Messages from a position on.
    pub fn iter_from(&self, at: usize) -> impl Iterator<Item = &Message<F>> {
        (at..self.len).map(|at| &self[at])
    }

    /// Count of messages with a lower UID.
    pub fn below(&self, uid: u64) -> usize {
        let is_below = |message: &Message<F>| u64::from(message.uid) < uid;
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(is_below));
        match self.chunks.get(chunk) {
            Some(messages) => self.starts[chunk] as usize + messages.partition_point(is_below),
            None => self.len,
        }
    }

    /// Position of the message with this UID.
    pub fn position(&self, uid: u32) -> Option<usize> {
        let at = self.below(uid.into());
        (self.get(at)?.uid == uid).then_some(at)
    }

    /// Compares this list with a later state, skipping shared chunks. Calls `each` with the position of each differing
    /// message, the message, and its position and state later, if it still exists. Returns the later position of the
    /// first new message.
    pub fn compare<'l>(
        &'l self,
        later: &'l Self,
        mut each: impl FnMut(usize, &'l Message<F>, Option<(usize, &'l Message<F>)>),
    ) -> usize {
        let mut at = 0;
        for (chunk, start) in self.chunks.iter().zip(&self.starts) {
            let is_shared = |(found, first): (usize, usize)| first == 0 && Arc::ptr_eq(&later.chunks[found], chunk);
            if later.place(at).is_some_and(is_shared) {
                at += chunk.len();
                continue;
            }
            for (position, message) in (*start as usize..).zip(chunk.iter()) {
                let found = later.get(at).filter(|found| found.uid == message.uid);
                each(position, message, found.map(|found| (at, found)));
                at += usize::from(found.is_some());
            }
        }
        at
    }

    fn push_chunk(&mut self, chunk: Arc<Vec<Message<F>>>) {
        self.starts.push(self.len as u32);
        self.len += chunk.len();
        self.chunks.push(chunk);
    }
}

impl<F: Clone> MessageList<F> {
    /// Adds a message with the highest UID.
    pub fn push(&mut self, message: Message<F>) {
        self.counts.add(&message);
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK_MESSAGES => {
                match Arc::get_mut(last) {
                    Some(last) => last.push(message),
                    // `Arc::make_mut` leaves no room for one more, which would copy them all again.
                    None => {
                        let mut copy = Vec::with_capacity((last.len() + 1).next_power_of_two().min(CHUNK_MESSAGES));
                        copy.extend_from_slice(last);
                        copy.push(message);
                        *last = Arc::new(copy);
                    }
                }
                self.len += 1;
            }
            _ => self.push_chunk(Arc::new(vec![message])),
        }
    }

    pub fn retain(&mut self, mut stays: impl FnMut(&Message<F>) -> bool) {
        let mut kept = Self { counts: self.counts, ..Self::default() };
        for chunk in std::mem::take(&mut self.chunks) {
            let Some(first_gone) = chunk.iter().position(|message| !stays(message)) else {
                kept.push_chunk(chunk);
                continue;
            };
            kept.counts.remove(&chunk[first_gone]);
            let mut left = chunk[..first_gone].to_vec();
            for message in &chunk[first_gone + 1..] {
                if stays(message) {
                    left.push(message.clone());
                } else {
                    kept.counts.remove(message);
                }
            }
            match kept.chunks.last_mut() {
                _ if left.is_empty() => {}
                Some(last) if last.len() + left.len() <= CHUNK_MESSAGES => {
                    kept.len += left.len();
                    Arc::make_mut(last).append(&mut left);
                }
                _ => kept.push_chunk(Arc::new(left)),
            }
        }
        *self = kept;
    }

    fn get_mut(&mut self, at: usize) -> &mut Message<F> {
        let (chunk, at) = self.place(at).expect("a position of the list");
        &mut Arc::make_mut(&mut self.chunks[chunk])[at]
    }

    /// Replaces the flags of a set of messages, and calls `each` with their UIDs.
    pub fn set_flags(&mut self, set: &[NumberRange], flags: MessageFlags, modseq: u64, mut each: impl FnMut(u32)) {
        for range in set {
            let (from, to) = (self.below(range.first.into()), self.below(u64::from(range.last) + 1));
            let mut at = from;
            while let Some((chunk, first)) = self.place(at).filter(|_| at < to) {
                let chunk = &mut self.chunks[chunk];
                let end = chunk.len().min(first + to - at);
                for message in &mut Arc::make_mut(chunk)[first..end] {
                    self.counts.remove_flags(message.flags);
                    self.counts.add_flags(flags);
                    (message.flags, message.modseq) = (flags, modseq);
                    each(message.uid);
                }
                at += end - first;
            }
        }
    }

    /// Replaces the message at a position by its later state.
    pub fn set(&mut self, at: usize, message: Message<F>) {
        self.counts.add(&message);
        let before = std::mem::replace(self.get_mut(at), message);
        self.counts.remove(&before);
    }

    /// Replaces the file of the message at a position.
    pub fn set_file(&mut self, at: usize, file: F) {
        self.get_mut(at).file = file;
    }

    /// Sets the recorded size of a message.
    pub fn set_wire_size(&mut self, at: usize, wire_size: WireSize) {
        let before = std::mem::replace(&mut self.get_mut(at).wire_size, wire_size);
        self.counts.bytes = self.counts.bytes + wire_size.counted() - before.counted();
    }
}

impl<F: Clone> FromIterator<Message<F>> for MessageList<F> {
    fn from_iter<I: IntoIterator<Item = Message<F>>>(messages: I) -> Self {
        let mut list = Self::default();
        messages.into_iter().for_each(|message| list.push(message));
        list
    }
}

impl<F> Default for MessageList<F> {
    fn default() -> Self {
        Self { chunks: Vec::new(), starts: Vec::new(), len: 0, counts: MessageCounts::default() }
    }
}

impl<F> Index<usize> for MessageList<F> {
    type Output = Message<F>;

    fn index(&self, at: usize) -> &Message<F> {
        self.get(at).expect("a position of the list")
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
        Size(u32, u32),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            3 => (0u64..32, any::<u32>()).prop_map(|(flags, size)| Change::Push(flags, size)),
            2 => (0u32..20, 0u32..20, 0u64..32).prop_map(|(from, to, flags)| Change::Flags(from, to, flags)),
            1 => (0u32..20, 0u32..3).prop_map(|(from, count)| Change::Remove(from, from + count)),
            1 => (0u32..20, any::<u32>()).prop_map(|(uid, size)| Change::Size(uid, size)),
        ]
    }

    proptest! {
        #[test]
        fn counts_stay_those_of_the_messages(changes in prop::collection::vec(change(), 0..60)) {
            let (mut list, mut uid_next, mut states) = (MessageList::default(), 1, Vec::new());
            for (modseq, change) in (1..).zip(changes) {
                match change {
                    Change::Push(flags, size) => {
                        let (flags, email_id) = (MessageFlags(flags), (modseq, 0));
                        let wire_size = WireSize::of_stored(size);
                        let message =
                            Message { uid: uid_next, flags, modseq, internal_date: 0, wire_size, email_id, file: () };
                        list.push(message);
                        uid_next += 1;
                    }
                    Change::Size(uid, size) => {
                        if let Some(at) = list.position(uid) {
                            list.set_wire_size(at, WireSize::of_stored(size));
                        }
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
                let bytes = list.iter().map(|message| message.wire_size.counted()).sum();
                let expected = MessageCounts { unseen: unseen as u32, deleted: deleted as u32, bytes };
                prop_assert_eq!(list.counts(), expected);
                let uids: Vec<u32> = list.iter().map(|message| message.uid).collect();
                prop_assert_eq!(list.iter_from(0).map(|message| message.uid).collect::<Vec<_>>(), uids.clone());
                prop_assert_eq!((list.len(), list.last().map(|message| message.uid)), (uids.len(), uids.last().copied()));
                for uid in 0..=uid_next {
                    prop_assert_eq!(list.below(uid.into()), uids.partition_point(|known| *known < uid));
                    prop_assert_eq!(list.position(uid), uids.binary_search(&uid).ok());
                }
                states.push(list.clone());
            }
            for earlier in &states {
                prop_assert_eq!(told(earlier, &list), all_differences(earlier, &list));
            }
        }
    }

    /// Messages that are gone, those that were changed, and the number of new ones.
    type Differences = (Vec<u32>, Vec<u32>, usize);

    fn told(earlier: &MessageList<()>, later: &MessageList<()>) -> Differences {
        let (mut gone, mut changed) = (Vec::new(), Vec::new());
        let first_new = earlier.compare(later, |at, message, found| {
            assert_eq!(earlier[at].uid, message.uid);
            match found {
                None => gone.push(message.uid),
                Some((at, found)) => {
                    assert_eq!(later[at].uid, message.uid);
                    changed.extend((found.modseq != message.modseq).then_some(message.uid));
                }
            }
        });
        (gone, changed, later.len() - first_new)
    }

    fn all_differences(earlier: &MessageList<()>, later: &MessageList<()>) -> Differences {
        let (mut gone, mut changed) = (Vec::new(), Vec::new());
        for message in earlier.iter() {
            match later.position(message.uid) {
                None => gone.push(message.uid),
                Some(at) => changed.extend((later[at].modseq != message.modseq).then_some(message.uid)),
            }
        }
        let new = later.iter().filter(|message| earlier.position(message.uid).is_none()).count();
        (gone, changed, new)
    }

    #[test]
    fn a_change_copies_one_chunk() {
        let message = |uid| Message {
            uid,
            flags: MessageFlags::NONE,
            modseq: 1,
            internal_date: 0,
            wire_size: WireSize::UNKNOWN,
            email_id: (1, 0),
            file: (),
        };
        let before: MessageList<()> = (1..=1000).map(message).collect();
        let copied = |change: &dyn Fn(&mut MessageList<()>)| {
            let mut after = before.clone();
            change(&mut after);
            let is_own = |chunk: &&Arc<Vec<Message<()>>>| !before.chunks.iter().any(|known| Arc::ptr_eq(known, chunk));
            after.chunks.iter().filter(is_own).count()
        };
        assert_eq!(copied(&|list| list.set_file(500, ())), 1);
        assert_eq!(copied(&|list| list.push(message(1001))), 1);
        assert_eq!(copied(&|list| list.retain(|message| message.uid != 77)), 1);
        let few = NumberRange { first: 3, last: 4 };
        assert_eq!(copied(&|list| list.set_flags(&[few], MessageFlags::SEEN, 2, drop)), 1);
    }
}
