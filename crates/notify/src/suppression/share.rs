//! Keys of entries for other machines: they stay in the file until they are sent, so a crash loses none.

use std::collections::BTreeSet;

use redb::{ReadTransaction, ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::codec::Suppressed;

/// The key of a fed entry, and the time of its addition.
pub(super) type Unshared = (String, u64);

/// Keys to share, with the times of their entries' addition.
const UNSHARED: TableDefinition<'_, &str, u64> = TableDefinition::new("unshared");

/// Has entries wait to be shared.
pub(super) fn note(writing: &WriteTransaction, entries: &[(&str, Suppressed)]) -> Result<(), redb::Error> {
    let mut unshared = writing.open_table(UNSHARED)?;
    for (key, entry) in entries {
        unshared.insert(*key, entry.added)?;
    }
    Ok(())
}

/// Up to `most` of the keys that wait.
pub(super) fn waiting(reading: &ReadTransaction, most: usize) -> Result<Vec<Unshared>, redb::Error> {
    let unshared = match reading.open_table(UNSHARED) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        unshared => unshared?,
    };
    let mut found = Vec::new();
    for waiting in unshared.iter()?.take(most) {
        let (key, added) = waiting?;
        found.push((key.value().to_owned(), added.value()));
    }
    Ok(found)
}

/// All keys that wait.
pub(super) fn all(writing: &WriteTransaction) -> Result<BTreeSet<String>, redb::Error> {
    let unshared = writing.open_table(UNSHARED)?;
    let keys = unshared.iter()?.map(|waiting| Ok(waiting?.0.value().to_owned()));
    keys.collect()
}

/// Removes keys whose entries were sent. The key of an entry that was fed again meanwhile stays.
pub(super) fn forget(writing: &WriteTransaction, keys: &[Unshared]) -> Result<(), redb::Error> {
    let mut unshared = writing.open_table(UNSHARED)?;
    for (key, added) in keys {
        if unshared.get(&**key)?.is_some_and(|there| there.value() == *added) {
            unshared.remove(&**key)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Suppressed, SuppressionSource, Suppressions};

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
    fn a_replaced_list_keeps_what_waits_to_be_sent() {
        let dir = tempfile::tempdir().unwrap();
        let list = Suppressions::open(&dir.path().join("list")).unwrap();
        let added = |address: &str| Suppressed { address: address.to_owned(), added: 1, ..Suppressed::default() };
        list.add(&[added("old@a.example"), added("same@a.example")], 1).unwrap();
        list.keep_to_share();
        list.feed(&bounced("fed@a.example", 1, None)).unwrap();
        let shorter = Suppressed { expires: Some(100), ..added("same@a.example") };
        list.replace(&[shorter, added("new@a.example")], 1).unwrap();
        let mut shown = Vec::new();
        let mut show = |entry: Suppressed| {
            shown.push((entry.address, entry.expires));
            true
        };
        list.list(&super::super::SuppressionFilter::default(), 1, &mut show).unwrap();
        let wanted = [("fed@a.example", None), ("new@a.example", None), ("same@a.example", Some(100))];
        assert_eq!(shown, wanted.map(|(address, expires)| (address.to_owned(), expires)));
        assert_eq!((sent(&list), list.len()), (vec!["fed@a.example".to_owned()], 3));
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
