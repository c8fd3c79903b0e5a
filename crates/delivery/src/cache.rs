//! Bounded caches: open mailboxes, and the file system of a path.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use posthaste_maildir::Maildir;

/// Descriptors of an open mailbox.
const DESCRIPTORS_EACH: u64 = 3;
/// Open mailboxes at most, whatever the descriptor limit of the process.
const MAILBOXES_MAX: u64 = 4096;

/// Forgotten entries, sometimes thousands: drop them without a lock held.
pub(crate) type Forgotten<K, V> = HashMap<K, V>;

/// A map of at most `2 * generation_max` entries that roughly forgets the least recently used: entries unused while
/// `generation_max` others were added. Every operation is O(1) on average.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    generation_max: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(generation_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), generation_max: generation_max.max(1) }
    }

    /// The value, and the entries that this use made the map forget.
    pub(crate) fn get<Q>(&mut self, key: &Q) -> (Option<&V>, Forgotten<K, V>)
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let mut forgotten = Forgotten::default();
        if !self.young.contains_key(key)
            && let Some((key, value)) = self.old.remove_entry(key)
        {
            forgotten = self.insert(key, value);
        }
        (self.young.get(key), forgotten)
    }

    /// Inserts a value; returns the entries that the map forgets. That may be a whole generation, which takes time to
    /// drop.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Forgotten<K, V> {
        let mut forgotten = Forgotten::default();
        if self.young.len() >= self.generation_max && !self.young.contains_key(&key) {
            forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        }
        self.young.insert(key, value);
        forgotten
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q)
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.young.remove(key);
        self.old.remove(key);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// Open Maildirs by key. Uses at most a quarter of the process's descriptors.
#[derive(Debug)]
pub(crate) struct OpenMaildirs<K>(Mutex<Recent<K, Arc<Maildir>>>);

impl<K: Eq + Hash> OpenMaildirs<K> {
    pub(crate) fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let mailboxes = (limit.unwrap_or(u64::MAX) / 4 / DESCRIPTORS_EACH).min(MAILBOXES_MAX);
        Self(Mutex::new(Recent::new(mailboxes as usize / 2)))
    }

    /// The Maildir at `path`. Uses the open one if `path` still leads to it and it `is_current`, so mail does not
    /// follow a moved directory. Otherwise calls `open`.
    pub(crate) fn get<Q>(
        &self,
        key: &Q,
        path: &Path,
        is_current: impl FnOnce(&Maildir) -> bool,
        open: impl FnOnce() -> io::Result<Maildir>,
    ) -> io::Result<Arc<Maildir>>
    where
        K: std::borrow::Borrow<Q> + for<'a> From<&'a Q>,
        Q: Eq + Hash + ?Sized,
    {
        let (cached, forgotten) = {
            let mut recent = self.lock();
            let (cached, forgotten) = recent.get(key);
            (cached.cloned(), forgotten)
        };
        // Closes thousands of files.
        drop(forgotten);
        if let Some(maildir) = cached
            && is_current(&maildir)
            && maildir.is_at(path)
        {
            return Ok(maildir);
        }
        // Outside the lock: a slow file system takes time, and others need their mailboxes.
        match open() {
            Ok(maildir) => {
                let maildir = Arc::new(maildir);
                let forgotten = self.lock().insert(key.into(), maildir.clone());
                drop(forgotten);
                Ok(maildir)
            }
            Err(e) => {
                self.lock().remove(key);
                Err(e)
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recent<K, Arc<Maildir>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recently_used_stay_and_the_number_is_bounded() {
        let mut recent = Recent::new(10);
        let mut forgotten = 0;
        for n in 0..1000 {
            forgotten += recent.insert(n, n).len();
            let (found, more) = recent.get(&0);
            assert_eq!(found, Some(&0), "after {n}");
            forgotten += more.len();
            assert!(recent.len() <= 20, "after {n}");
            assert_eq!(recent.len() + forgotten, n + 1, "what is not kept is handed out");
        }
        assert_eq!(recent.get(&500).0, None);
        recent.remove(&0);
        assert_eq!(recent.get(&0).0, None);
    }
}
