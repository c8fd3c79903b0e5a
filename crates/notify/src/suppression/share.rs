//! Entries that bounces and complaints feed, for other machines: they wait in the file until they are sent, so none is
//! lost by a crash.

use std::sync::atomic::Ordering;

use redb::{ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::{Stores, Suppressed, SuppressionError, Suppressions, TABLE, codec};

impl Suppressions {
    /// Adds entries as [`feed`](Self::feed) does, from another machine: an existing one that lasts as long stays.
    /// Durable on return. Blocks.
    ///
    /// # Errors
    /// See [`SuppressionError`].
    pub fn merge(&self, entries: &[Suppressed], now: u64) -> Result<(), SuppressionError> {
        let encoded: Vec<(String, Vec<u8>)> = entries.iter().map(codec::encode).collect::<Result<_, _>>()?;
        self.flush(now)?;
        let entries = || encoded.iter().map(|(key, value)| (&**key, &**value));
        self.write(now, |_, table| Ok(insert_lasting(table, entries())?.len() as u64)).map(drop)
    }

    /// From now on entries that are fed wait for [`share`](Self::share), too.
    pub fn keep_to_share(&self) {
        self.shares.store(true, Ordering::Relaxed);
    }

    /// Passes up to `most` of the entries that were fed since [`keep_to_share`](Self::keep_to_share) to `send`, none
    /// twice unless it returns false or the process crashes. Returns how many were sent. Blocks.
    ///
    /// # Errors
    /// [`SuppressionError::File`].
    pub fn share(
        &self,
        most: usize,
        now: u64,
        send: &mut dyn FnMut(&[Suppressed]) -> bool,
    ) -> Result<usize, SuppressionError> {
        let unshared = self.unshared(most)?;
        let (entries, keys): (Vec<_>, Vec<_>) =
            unshared.into_iter().map(|(key, added, entry)| (entry, (key, added))).unzip();
        let entries: Vec<Suppressed> = entries.into_iter().flatten().filter(|entry| entry.is_valid(now)).collect();
        if keys.is_empty() || !entries.is_empty() && !send(&entries) {
            return Ok(0);
        }
        self.write(now, |writing, _| {
            let mut unshared = writing.open_table(UNSHARED)?;
            for (key, added) in &keys {
                // One that was fed again meanwhile is another.
                if unshared.get(&**key)?.is_some_and(|there| there.value() == *added) {
                    unshared.remove(&**key)?;
                }
            }
            Ok(0)
        })?;
        Ok(entries.len())
    }

    /// Keys that are to be shared, with times and entries; `None` for one that was removed since.
    fn unshared(&self, most: usize) -> Result<Vec<(String, u64, Option<Suppressed>)>, SuppressionError> {
        let found = self.file.read(|file| {
            let reading = file.begin_read()?;
            let mut found = Vec::new();
            let unshared = match reading.open_table(UNSHARED) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(found),
                unshared => unshared?,
            };
            let table = reading.open_table(TABLE)?;
            for waiting in unshared.iter()?.take(most) {
                let (key, added) = waiting?;
                let key = key.value().to_owned();
                let entry = table.get(&*key)?.and_then(|value| codec::decode(&key, value.value()));
                found.push((key, added.value(), entry));
            }
            Ok(found)
        });
        Ok(found.map_err(|error| self.failed(error))?.unwrap_or_default())
    }
}

/// Inserts entries unless one is there that lasts as long; returns the inserted ones with their keys.
pub(super) fn insert_lasting<'a>(
    table: &mut Stores<'_>,
    entries: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Vec<(&'a str, Suppressed)>, redb::Error> {
    let mut inserted = Vec::new();
    for (key, value) in entries {
        let Some(entry) = codec::decode(key, value) else { continue };
        let there = table.get(key)?.and_then(|there| codec::decode(key, there.value()));
        if there.is_none_or(|there| there.lasts() < entry.lasts()) {
            table.insert(key, value)?;
            inserted.push((key, entry));
        }
    }
    Ok(inserted)
}

/// Has entries wait to be shared.
pub(super) fn note(writing: &WriteTransaction, entries: &[(&str, Suppressed)]) -> Result<(), redb::Error> {
    let mut unshared = writing.open_table(UNSHARED)?;
    for (key, entry) in entries {
        unshared.insert(*key, entry.added)?;
    }
    Ok(())
}

/// Keys of fed entries that are to be shared, with the times at which they were added.
const UNSHARED: TableDefinition<'_, &str, u64> = TableDefinition::new("unshared");

#[cfg(test)]
mod tests {
    use super::super::SuppressionSource;
    use super::*;

    fn bounced(address: &str, added: u64, expires: Option<u64>) -> Suppressed {
        let address = address.to_owned();
        let source = SuppressionSource::Bounce;
        Suppressed { address, source, added, expires, ..Suppressed::default() }
    }

    /// Sends all that waits, and returns the addresses.
    fn sent(list: &Suppressions) -> Vec<String> {
        let mut sent = Vec::new();
        let mut send = |entries: &[Suppressed]| {
            sent.extend(entries.iter().map(|entry| entry.address.clone()));
            true
        };
        while list.share(2, 1, &mut send).unwrap() > 0 {}
        sent
    }

    #[test]
    fn fed_entries_are_sent_once_each_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let list = Suppressions::open(&path).unwrap();
        assert_eq!(sent(&list), [""; 0]);
        list.feed(&bounced("before@a.example", 1, None)).unwrap();
        list.flush(1).unwrap();
        list.keep_to_share();
        for address in ["a@a.example", "b@a.example", "c@a.example"] {
            list.feed(&bounced(address, 1, None)).unwrap();
        }
        list.flush(1).unwrap();
        list.add(&[bounced("operator@a.example", 1, None)], 1).unwrap();
        // Nobody takes them.
        assert_eq!(list.share(9, 1, &mut |_| false).unwrap(), 0);
        drop(list);
        let list = Suppressions::open(&path).unwrap();
        list.remove("", &["b@a.example".to_owned()], 1).unwrap();
        assert_eq!(sent(&list), ["a@a.example", "c@a.example"]);
        assert_eq!(sent(&list), [""; 0]);
    }

    #[test]
    fn an_entry_that_is_fed_while_it_is_sent_is_sent_again() {
        let dir = tempfile::tempdir().unwrap();
        let list = Suppressions::open(&dir.path().join("list")).unwrap();
        list.keep_to_share();
        list.feed(&bounced("a@a.example", 1, Some(100))).unwrap();
        list.flush(1).unwrap();
        let mut feed = |_: &[Suppressed]| {
            list.feed(&bounced("a@a.example", 2, Some(200))).unwrap();
            list.flush(1).unwrap();
            true
        };
        assert_eq!(list.share(9, 1, &mut feed).unwrap(), 1);
        assert_eq!(sent(&list), ["a@a.example"]);
    }

    #[test]
    fn a_merged_entry_shortens_none_and_is_not_sent_back() {
        let dir = tempfile::tempdir().unwrap();
        let list = Suppressions::open(&dir.path().join("list")).unwrap();
        list.keep_to_share();
        list.add(&[bounced("a@a.example", 1, None)], 1).unwrap();
        list.merge(&[bounced("a@a.example", 1, Some(100)), bounced("b@a.example", 1, Some(100))], 1).unwrap();
        let expires = |address: &str| list.find("", address, 1).unwrap().map(|entry| entry.expires);
        assert_eq!((expires("a@a.example"), expires("b@a.example")), (Some(None), Some(Some(100))));
        assert_eq!(sent(&list), [""; 0]);
    }
}
