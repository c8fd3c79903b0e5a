//! Why recipients wait: what the next hop said last, for people who ask. Kept in memory, and on the disk as entries of the queue's stream ([`QueueEntry::Replies`]),
//! in the batch of the attempt; the snapshot has them behind the queue:
//!
//! | part | fields in order |
//! | --- | --- |
//! | first | magic `PHREPLY\1`; number of entries (u32, little-endian) |
//! | each | length (u32, little-endian); entry *replies* |

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::{Arc, Mutex};

use posthaste_spool::Lsn;

use crate::queue::{DecodeError, EntryText, Key, QueueEntry, RestoreError};

/// The last reply about a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastReply {
    /// The host and its reply, or why there was none.
    pub text: Arc<str>,
    /// The class of the reply; empty after a restart.
    pub class: Arc<str>,
}

/// The last replies, of the youngest messages if there are too many.
#[derive(Default)]
pub(super) struct Replies(Mutex<BTreeMap<Key, LastReply>>);

impl Replies {
    /// Keeps the reply about a recipient that is tried again.
    pub fn keep(&self, key: Key, text: Arc<str>, class: Arc<str>) {
        let mut replies = self.0.lock().expect("replies");
        replies.insert(key, LastReply { text, class });
        if replies.len() > REPLIES_MAX {
            replies.pop_first();
        }
    }

    /// Applies an entry of the stream.
    pub fn apply(&self, lsn: Lsn, entry: &QueueEntry) {
        match entry {
            QueueEntry::Replies { text, keys } => {
                keys.iter().for_each(|key| self.keep(*key, text.clone().into(), Arc::default()));
            }
            QueueEntry::Imported(imported) => {
                for (recipient, state) in imported.queued.recipients.iter().zip(&imported.states) {
                    if !state.reply.is_empty() {
                        let key = Key { message: lsn, number: recipient.number };
                        self.keep(key, state.reply.clone().into(), Arc::default());
                    }
                }
            }
            _ => {}
        }
    }

    /// Keeps those of recipients that wait.
    pub fn retain(&self, waits: impl Fn(Key) -> bool) {
        self.0.lock().expect("replies").retain(|key, _| waits(*key));
    }

    /// For the end of a snapshot.
    pub fn write(&self) -> Vec<u8> {
        let all: Vec<(Key, Arc<str>)> =
            self.0.lock().expect("replies").iter().map(|(key, said)| (*key, said.text.clone())).collect();
        let entries = entries(all);
        let mut out = MAGIC.to_vec();
        out.extend((entries.len() as u32).to_le_bytes());
        for entry in entries {
            let entry = entry.encode();
            out.extend((entry.len() as u32).to_le_bytes());
            out.extend(entry);
        }
        out
    }

    /// Reads the end of a snapshot.
    pub fn read(mut from: impl Read) -> Result<Self, RestoreError> {
        let replies = Self::default();
        let mut magic = Vec::new();
        from.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        // A queue that was written without a relay has none.
        if magic.is_empty() {
            return Ok(replies);
        }
        if magic != MAGIC {
            return Err(DecodeError::Unknown("version of replies").into());
        }
        for _ in 0..number(&mut from)? {
            let len = number(&mut from)?;
            if len > ENTRY_BYTES_MAX {
                return Err(DecodeError::Bound("bytes of a reply").into());
            }
            let mut entry = vec![0; len as usize];
            from.read_exact(&mut entry)?;
            match QueueEntry::decode(&entry)? {
                entry @ QueueEntry::Replies { .. } => replies.apply(Lsn::ZERO, &entry),
                _ => return Err(DecodeError::Unknown("reply").into()),
            }
        }
        Ok(replies)
    }

    /// The last reply.
    pub fn of(&self, key: Key) -> Option<LastReply> {
        self.0.lock().expect("replies").get(&key).cloned()
    }

    /// Messages of which nobody waits any more.
    pub fn forget(&self, messages: &[Lsn]) {
        let mut replies = self.0.lock().expect("replies");
        if replies.is_empty() {
            return;
        }
        for message in messages.iter().copied() {
            let of_it = Key { message, number: 0 }..=Key { message, number: u16::MAX };
            let keys: Vec<Key> = replies.range(of_it).map(|(key, _)| *key).collect();
            keys.iter().for_each(|key| drop(replies.remove(key)));
        }
    }
}

fn number(from: &mut impl Read) -> std::io::Result<u32> {
    let mut number = [0; 4];
    from.read_exact(&mut number).map(|()| u32::from_le_bytes(number))
}

/// Replies as entries: equal ones have one for many recipients.
pub(super) fn entries(replies: Vec<(Key, Arc<str>)>) -> Vec<QueueEntry> {
    let mut by_text: HashMap<Arc<str>, Vec<Key>> = HashMap::new();
    for (key, said) in replies {
        by_text.entry(said).or_default().push(key);
    }
    let parts = |(text, keys): (Arc<str>, Vec<Key>)| {
        let parts: Vec<QueueEntry> = keys
            .chunks(KEYS_MAX)
            .map(|keys| QueueEntry::Replies { text: text.clone().into(), keys: keys.to_vec() })
            .collect();
        parts
    };
    by_text.into_iter().flat_map(parts).collect()
}

/// A reply as it is kept.
pub(super) fn shortened(said: &str) -> Arc<str> {
    EntryText::from(said).into()
}

const MAGIC: [u8; 8] = *b"PHREPLY\x01";
/// Recipients of one entry.
const KEYS_MAX: usize = 1000;
const ENTRY_BYTES_MAX: u32 = 64 << 10;
/// About 20 MB with replies of usual length, 120 MB with the longest.
const REPLIES_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_are_kept_until_their_message_is_settled() {
        let replies = Replies::default();
        let key = |message: usize, number| Key { message: Lsn::new(message as u64), number };
        for message in 0..REPLIES_MAX + 2 {
            replies.keep(key(message, 1), format!("{message}").into(), "other".into());
        }
        assert!(replies.of(key(1, 1)).is_none());
        assert_eq!(replies.of(key(2, 1)).map(|said| said.text.to_string()).as_deref(), Some("2"));
        replies.keep(key(2, 7), "seven".into(), "other".into());
        replies.forget(&[Lsn::new(2), Lsn::new(4)]);
        let left = [key(2, 1), key(2, 7), key(3, 1), key(4, 1)].map(|key| replies.of(key).is_some());
        assert_eq!(left, [false, false, true, false]);
    }

    #[test]
    fn a_snapshot_has_them_whole_or_is_refused() {
        let replies = Replies::default();
        for message in 1..=3000 {
            let said = shortened(&if message % 3 == 0 { format!("own {message}") } else { "é".repeat(600) });
            assert!(said.len() <= EntryText::BYTES_MAX);
            replies.keep(Key { message: Lsn::new(message), number: 1 }, said, Arc::default());
        }
        let written = replies.write();
        let read = Replies::read(&written[..]).unwrap();
        assert_eq!(*read.0.lock().unwrap(), *replies.0.lock().unwrap());
        assert!(written.len() < 3000 * 40, "equal texts are there once: {}", written.len());
        for cut in (1..written.len()).step_by(97) {
            assert!(Replies::read(&written[..cut]).is_err(), "cut at {cut}");
        }
        read.retain(|key| key.message.get() > 2990);
        assert_eq!(read.0.lock().unwrap().len(), 10);
        assert!(Replies::read(&b"another format"[..]).is_err());
    }
}
