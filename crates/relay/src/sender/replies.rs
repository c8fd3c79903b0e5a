//! Why recipients wait: what the next hop said last, for people who ask. In memory alone: after a restart there is the status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use posthaste_spool::Lsn;

use crate::queue::Key;

/// What was said of a recipient.
#[derive(Debug, Clone)]
pub(super) struct Said {
    /// The host and its reply, or why there was none.
    pub text: Arc<str>,
    /// What that means, by the rules for classes.
    pub class: Arc<str>,
}

/// The last replies, of the youngest messages if there are too many.
#[derive(Default)]
pub(super) struct Replies(Mutex<BTreeMap<Key, Said>>);

impl Replies {
    /// What was said of a recipient that is tried again.
    pub fn keep(&self, key: Key, text: String, class: Arc<str>) {
        let mut replies = self.0.lock().expect("replies");
        replies.insert(key, Said { text: text.into(), class });
        if replies.len() > REPLIES_MAX {
            replies.pop_first();
        }
    }

    /// What was said last.
    pub fn of(&self, key: Key) -> Option<Said> {
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

/// About 20 MB.
const REPLIES_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_are_kept_until_their_message_is_settled() {
        let replies = Replies::default();
        let key = |message: usize, number| Key { message: Lsn::new(message as u64), number };
        for message in 0..REPLIES_MAX + 2 {
            replies.keep(key(message, 1), format!("{message}"), "other".into());
        }
        assert!(replies.of(key(1, 1)).is_none());
        assert_eq!(replies.of(key(2, 1)).map(|said| said.text.to_string()).as_deref(), Some("2"));
        replies.keep(key(2, 7), "seven".to_owned(), "other".into());
        replies.forget(&[Lsn::new(2), Lsn::new(4)]);
        let left = [key(2, 1), key(2, 7), key(3, 1), key(4, 1)].map(|key| replies.of(key).is_some());
        assert_eq!(left, [false, false, true, false]);
    }
}
