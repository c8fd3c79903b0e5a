//! Rows that a commit changes, and the table's rows with these changes.

use std::collections::BTreeMap;

use super::error::MetaError;
use super::reader::TableReader;
use super::table_name::TableName;

/// Rows that a commit writes and removes, by table and key. The last change counts.
#[derive(Debug, Clone, Default)]
pub struct RowChanges(pub(super) BTreeMap<(TableName, Vec<u8>), Option<Vec<u8>>>);

impl RowChanges {
    /// Puts a value.
    pub fn put(&mut self, table: TableName, key: &[u8], value: Vec<u8>) {
        self.0.insert((table, key.to_vec()), Some(value));
    }

    /// Removes a value, if it exists.
    pub fn remove(&mut self, table: TableName, key: &[u8]) {
        self.0.insert((table, key.to_vec()), None);
    }

    /// All changes with the key prefix `prefix`; `None` for a removed row.
    pub fn of<'a>(&'a self, table: TableName, prefix: &'a [u8]) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
        let from = self.0.range((table, prefix.to_vec())..);
        let taken = from.take_while(move |((of, key), _)| *of == table && key.starts_with(prefix));
        taken.map(|((_, key), value)| (&key[..], value.as_deref()))
    }
}

/// All undamaged values with the key prefix `prefix`, with `changes` applied.
///
/// # Errors
/// Errors of reading the table.
pub fn rows_of(
    reader: &TableReader,
    changes: &RowChanges,
    table: TableName,
    prefix: &[u8],
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, MetaError> {
    let mut rows = Vec::new();
    for_each_row((reader, changes), table, prefix, &mut |key, value| rows.push((key.to_vec(), value.to_vec())))?;
    Ok(rows.into_iter().collect())
}

/// Calls `each` for all undamaged values with the key prefix `prefix`, in key order, with changes applied.
///
/// # Errors
/// Errors of reading the table.
pub(crate) fn for_each_row(
    table: (&TableReader, &RowChanges),
    name: TableName,
    prefix: &[u8],
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), MetaError> {
    for_each_key(table, name, prefix, &mut |key, value| value.into_iter().for_each(|value| each(key, value)))
}

/// Takes keys and values; `None` for a damaged value.
pub(crate) type EachKey<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

/// As [`for_each_row`], with `None` for a damaged value.
///
/// # Errors
/// Errors of reading the table.
pub(crate) fn for_each_key(
    (reader, changes): (&TableReader, &RowChanges),
    table: TableName,
    prefix: &[u8],
    each: &mut EachKey<'_>,
) -> Result<(), MetaError> {
    let mut changed = changes.of(table, prefix).peekable();
    reader.for_each(table, prefix, &mut |key, value| {
        while let Some((before, row)) = changed.next_if(|(changed, _)| *changed < key) {
            row.into_iter().for_each(|row| each(before, Some(row)));
        }
        match changed.next_if(|(changed, _)| *changed == key) {
            Some((_, row)) => row.into_iter().for_each(|row| each(key, Some(row))),
            None => each(key, value),
        }
        Ok(())
    })?;
    changed.for_each(|(key, row)| row.into_iter().for_each(|row| each(key, Some(row))));
    Ok(())
}
