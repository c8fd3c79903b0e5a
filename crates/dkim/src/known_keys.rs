//! Records of keys that were read before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::public::PublicKey;
use crate::record::KeyRecord;

/// Keys by the text of their record, each read once: for programs that verify much mail. Shared by all tasks.
///
/// At most 1000 are kept, in two halves. When the younger half is full, it becomes the older one, and keys of the old
/// half that were not used since are dropped.
#[derive(Debug, Default)]
pub struct KnownKeys {
    halves: Mutex<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<String, Arc<ReadKey>>,
    old: HashMap<String, Arc<ReadKey>>,
}

/// A record and its key.
#[derive(Debug)]
pub(crate) struct ReadKey {
    pub(crate) record: KeyRecord,
    /// The key, or why it does not count.
    pub(crate) key: Result<PublicKey, &'static str>,
}

const HALF_MAX: usize = 500;
/// Longer texts are read each time: no record of a key that counts has so many octets.
const TEXT_BYTES_MAX: usize = 2 << 10;

impl KnownKeys {
    /// The key of a record's text. `None`: it is not a record of a key.
    pub(crate) fn read(&self, text: &str) -> Option<Arc<ReadKey>> {
        if let Some(known) = self.known(text) {
            return Some(known);
        }
        let record = KeyRecord::parse(text).ok()?;
        let key = Arc::new(ReadKey { key: PublicKey::of(&record), record });
        if text.len() <= TEXT_BYTES_MAX {
            self.halves.lock().expect("no panic with the lock").keep(text.to_owned(), Arc::clone(&key));
        }
        Some(key)
    }

    fn known(&self, text: &str) -> Option<Arc<ReadKey>> {
        let mut halves = self.halves.lock().expect("no panic with the lock");
        if let Some(known) = halves.young.get(text) {
            return Some(Arc::clone(known));
        }
        let (text, known) = halves.old.remove_entry(text)?;
        halves.keep(text, Arc::clone(&known));
        Some(known)
    }
}

impl Halves {
    fn keep(&mut self, text: String, key: Arc<ReadKey>) {
        if self.young.len() >= HALF_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(text, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_once_while_it_is_in_use() {
        let keys = KnownKeys::default();
        let of = |number: usize| format!("v=DKIM1; n={number}; k=ed25519; p=");
        let first = keys.read(&of(0)).unwrap();
        for number in 1..5000 {
            assert!(Arc::ptr_eq(&keys.read(&of(0)).unwrap(), &first), "{number}");
            keys.read(&of(number)).unwrap();
            let halves = keys.halves.lock().unwrap();
            assert!(halves.young.len() <= HALF_MAX && halves.old.len() <= HALF_MAX);
        }
        let again = keys.read(&of(1)).unwrap();
        assert_eq!(Arc::strong_count(&again), 2, "the one from before was dropped");
        assert!(first.key.is_err() && first.record.public.is_empty());
    }

    #[test]
    fn what_is_no_record_or_too_long_is_not_kept() {
        let keys = KnownKeys::default();
        assert!(keys.read("v=spf1 -all").is_none());
        assert!(keys.read(&format!("p=; n={}", "x".repeat(TEXT_BYTES_MAX))).is_some());
        assert!(keys.halves.lock().unwrap().young.is_empty());
    }
}
