//! Reasons why recipients wait, for display: the next hop's last reply, and an operator's reason for a hold. They are
//! kept in memory, and on disk as entries of the queue's stream. [`QueueEntry::Replies`] is in the batch of the
//! attempt, [`QueueEntry::WhyHeld`] follows the hold. The snapshot has them after the queue:
//!
//! | part | fields in order |
//! | --- | --- |
//! | first | magic `PHREPLY\1`; number of entries (u32, little-endian) |
//! | each | length (u32, little-endian); entry *replies* or *why held* |

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_spool::Lsn;

use posthaste_queue::{EntryText, QueueDecodeError, QueueEntry, QueueRestoreError, RecipientKey};

/// The last reply about a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastReply {
    /// The host and its reply, or the reason why there was none.
    pub text: Arc<str>,
    /// The class of the reply; empty after a restart.
    pub class: Arc<str>,
}

/// Last replies and reasons of holds. Beyond a limit, only those of the youngest messages are kept.
#[derive(Default)]
pub(super) struct Replies(Mutex<Kept>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Kept {
    said: BTreeMap<RecipientKey, LastReply>,
    why_held: BTreeMap<RecipientKey, Arc<str>>,
}

impl Replies {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("replies")
    }

    /// Keeps the reply about a recipient to be retried.
    pub fn keep(&self, key: RecipientKey, text: Arc<str>, class: Arc<str>) {
        let said = &mut self.lock().said;
        said.insert(key, LastReply { text, class });
        if said.len() > REPLIES_MAX {
            said.pop_first();
        }
    }

    /// Keeps an operator's reason for a hold; an empty one replaces an earlier one.
    fn keep_reason(&self, key: RecipientKey, reason: &Arc<str>) {
        let why_held = &mut self.lock().why_held;
        if reason.is_empty() {
            why_held.remove(&key);
            return;
        }
        why_held.insert(key, reason.clone());
        if why_held.len() > REPLIES_MAX {
            why_held.pop_first();
        }
    }

    /// An operator's last reason for a hold, which may have ended.
    pub fn why_held(&self, key: RecipientKey) -> Option<Arc<str>> {
        self.lock().why_held.get(&key).cloned()
    }

    /// Entries for a hold of these recipients; empty without a reason now and before.
    pub fn entries_of_hold(&self, keys: &[RecipientKey], reason: &str) -> Vec<QueueEntry> {
        let reason = shortened(reason);
        let is_noted = |key: &RecipientKey| !reason.is_empty() || self.why_held(*key).is_some();
        let noted = keys.iter().copied().filter(is_noted).map(|key| (key, reason.clone())).collect();
        entries(noted, |reason, keys| QueueEntry::WhyHeld { reason, keys })
    }

    /// Applies an entry of the stream.
    pub fn apply(&self, lsn: Lsn, entry: &QueueEntry) {
        match entry {
            QueueEntry::Replies { text, keys } => {
                keys.iter().for_each(|key| self.keep(*key, text.clone().into(), Arc::default()));
            }
            QueueEntry::WhyHeld { reason, keys } => {
                let reason: Arc<str> = reason.clone().into();
                keys.iter().for_each(|key| self.keep_reason(*key, &reason));
            }
            QueueEntry::Imported(imported) => {
                for (recipient, state) in imported.queued.recipients.iter().zip(&imported.states) {
                    if !state.reply.is_empty() {
                        let key = RecipientKey { message: lsn, number: recipient.number };
                        self.keep(key, state.reply.clone().into(), Arc::default());
                    }
                }
            }
            _ => {}
        }
    }

    /// Drops replies of recipients that no longer wait.
    pub fn retain(&self, waits: impl Fn(RecipientKey) -> bool) {
        let kept = &mut *self.lock();
        kept.said.retain(|key, _| waits(*key));
        kept.why_held.retain(|key, _| waits(*key));
    }

    /// Encodes the replies for the end of a snapshot.
    pub fn write(&self) -> Vec<u8> {
        let (said, why_held): (Vec<_>, Vec<_>) = {
            let kept = self.lock();
            let said = kept.said.iter().map(|(key, said)| (*key, said.text.clone())).collect();
            (said, kept.why_held.iter().map(|(key, reason)| (*key, reason.clone())).collect())
        };
        let mut entries = of_replies(said);
        entries.extend(self::entries(why_held, |reason, keys| QueueEntry::WhyHeld { reason, keys }));
        let mut out = MAGIC.to_vec();
        out.extend((entries.len() as u32).to_le_bytes());
        for entry in entries {
            let entry = entry.encode();
            out.extend((entry.len() as u32).to_le_bytes());
            out.extend(entry);
        }
        out
    }

    /// Reads the replies from the end of a snapshot.
    pub fn read(mut from: impl Read) -> Result<Self, QueueRestoreError> {
        let replies = Self::default();
        let mut magic = Vec::new();
        from.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        // A queue that was written without a relay has no replies.
        if magic.is_empty() {
            return Ok(replies);
        }
        if magic != MAGIC {
            return Err(QueueDecodeError::Unknown("version of replies").into());
        }
        for _ in 0..number(&mut from)? {
            let len = number(&mut from)?;
            if len > ENTRY_BYTES_MAX {
                return Err(QueueDecodeError::Bound("bytes of a reply").into());
            }
            let mut entry = vec![0; len as usize];
            from.read_exact(&mut entry)?;
            match QueueEntry::decode(&entry)? {
                entry @ (QueueEntry::Replies { .. } | QueueEntry::WhyHeld { .. }) => replies.apply(Lsn::ZERO, &entry),
                _ => return Err(QueueDecodeError::Unknown("reply").into()),
            }
        }
        Ok(replies)
    }

    /// The last reply about a recipient.
    pub fn of(&self, key: RecipientKey) -> Option<LastReply> {
        self.lock().said.get(&key).cloned()
    }

    /// Drops messages without waiting recipients.
    pub fn forget(&self, messages: &[Lsn]) {
        let kept = &mut *self.lock();
        forget(&mut kept.said, messages);
        forget(&mut kept.why_held, messages);
    }
}

fn forget<T>(texts: &mut BTreeMap<RecipientKey, T>, messages: &[Lsn]) {
    if texts.is_empty() {
        return;
    }
    for message in messages.iter().copied() {
        let of_it = RecipientKey { message, number: 0 }..=RecipientKey { message, number: u16::MAX };
        let keys: Vec<RecipientKey> = texts.range(of_it).map(|(key, _)| *key).collect();
        keys.iter().for_each(|key| drop(texts.remove(key)));
    }
}

fn number(from: &mut impl Read) -> std::io::Result<u32> {
    let mut number = [0; 4];
    from.read_exact(&mut number).map(|()| u32::from_le_bytes(number))
}

/// Replies as entries.
pub(super) fn of_replies(replies: Vec<(RecipientKey, Arc<str>)>) -> Vec<QueueEntry> {
    entries(replies, |text, keys| QueueEntry::Replies { text, keys })
}

/// Texts as entries: equal ones share an entry.
fn entries(
    texts: Vec<(RecipientKey, Arc<str>)>,
    entry: impl Fn(EntryText, Vec<RecipientKey>) -> QueueEntry,
) -> Vec<QueueEntry> {
    let mut by_text: HashMap<Arc<str>, Vec<RecipientKey>> = HashMap::new();
    for (key, text) in texts {
        by_text.entry(text).or_default().push(key);
    }
    let mut all = Vec::new();
    for (text, keys) in by_text {
        all.extend(keys.chunks(KEYS_MAX).map(|keys| entry(text.clone().into(), keys.to_vec())));
    }
    all
}

/// A reply cut to its stored length.
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
        let key = |message: usize, number| RecipientKey { message: Lsn::new(message as u64), number };
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
    fn a_hold_without_a_reason_forgets_the_one_before() {
        let replies = Replies::default();
        let keys = [1, 2].map(|message| RecipientKey { message: Lsn::new(message), number: 0 });
        let hold = |keys: &[RecipientKey], reason: &str| {
            let entries = replies.entries_of_hold(keys, reason);
            entries.iter().for_each(|entry| replies.apply(Lsn::new(9), entry));
            (entries.len(), keys.iter().map(|key| replies.why_held(*key)).collect::<Vec<_>>())
        };
        let is = |reason: &str| Some(Arc::from(reason));
        assert_eq!(hold(&keys, ""), (0, vec![None, None]));
        assert_eq!(hold(&keys, "full"), (1, vec![is("full"); 2]));
        assert_eq!(hold(&keys[..1], "again"), (1, vec![is("again")]));
        assert_eq!(hold(&keys[..1], ""), (1, vec![None]));
        replies.forget(&[Lsn::new(2)]);
        assert_eq!(hold(&keys, ""), (0, vec![None, None]));
        let long = "é".repeat(600);
        assert_eq!(hold(&keys, &long).1[0].as_ref().map(|reason| reason.len()), Some(EntryText::BYTES_MAX));
    }

    #[test]
    fn a_snapshot_has_them_whole_or_is_refused() {
        let replies = Replies::default();
        for message in 1..=3000 {
            let said = shortened(&if message % 3 == 0 { format!("own {message}") } else { "é".repeat(600) });
            assert!(said.len() <= EntryText::BYTES_MAX);
            let key = RecipientKey { message: Lsn::new(message), number: 1 };
            replies.keep(key, said, Arc::default());
            if message % 100 == 0 {
                replies.keep_reason(key, &format!("reason {message}").into());
            }
        }
        let written = replies.write();
        let read = Replies::read(&written[..]).unwrap();
        assert_eq!(*read.lock(), *replies.lock());
        assert!(written.len() < 3000 * 40, "equal texts are there once: {}", written.len());
        for cut in (1..written.len()).step_by(97) {
            assert!(Replies::read(&written[..cut]).is_err(), "cut at {cut}");
        }
        read.retain(|key| key.message.get() > 2990);
        let kept = read.lock();
        assert_eq!((kept.said.len(), kept.why_held.len()), (10, 1));
        drop(kept);
        assert!(Replies::read(&b"another format"[..]).is_err());
    }
}
