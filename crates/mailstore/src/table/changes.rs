//! Rows that a commit changes, and those of the table as they are after it.

use std::collections::BTreeMap;

use super::{MetaError, TableName, TableReader};

/// Rows that a commit puts and removes, by table and key. The last one counts.
#[derive(Debug, Clone, Default)]
pub struct RowChanges(pub(super) BTreeMap<(TableName, Vec<u8>), Option<Vec<u8>>>);

impl RowChanges {
    /// Puts a value.
    pub fn put(&mut self, table: TableName, key: &[u8], value: Vec<u8>) {
        self.0.insert((table, key.to_vec()), Some(value));
    }

    /// Removes a value, if there is one.
    pub fn remove(&mut self, table: TableName, key: &[u8]) {
        self.0.insert((table, key.to_vec()), None);
    }

    /// All whose keys begin with `prefix`; `None`: it is removed.
    pub fn of<'a>(&'a self, table: TableName, prefix: &'a [u8]) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
        let from = self.0.range((table, prefix.to_vec())..);
        let taken = from.take_while(move |((of, key), _)| *of == table && key.starts_with(prefix));
        taken.map(|((_, key), value)| (&key[..], value.as_deref()))
    }
}

/// All whole values whose keys begin with `prefix`, as they are after `changes`.
///
/// # Errors
/// Errors of reading the table.
pub fn rows_of(
    reader: &TableReader,
    changes: &RowChanges,
    table: TableName,
    prefix: &[u8],
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, MetaError> {
    let mut rows = BTreeMap::new();
    reader.for_each(table, prefix, &mut |key, value| {
        if let Some(value) = value {
            rows.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    })?;
    for (key, value) in changes.of(table, prefix) {
        match value {
            Some(value) => drop(rows.insert(key.to_vec(), value.to_vec())),
            None => drop(rows.remove(key)),
        }
    }
    Ok(rows)
}
