//! The rows of one mailbox touched by a commit.

use std::collections::{BTreeMap, BTreeSet};

use super::changes::RowChanges;
use super::columns::{ROW_BYTES_MAX, RowMessage, RowSize, decode, encode};
use super::error::MetaError;
use super::reader::TableReader;
use super::table_name::TableName;
use super::values::{key_of_two, second_of};
use crate::row::NumberRange;

/// Rows as read, and with changes.
#[derive(Debug, Clone)]
pub(crate) struct RowSet<M> {
    table: TableName,
    mailbox: u32,
    rows: BTreeMap<u32, Slot<M>>,
    dirty: BTreeSet<u32>,
    /// Rows that lost messages.
    shrunk: BTreeSet<u32>,
    /// The last row and its size, if it may get more messages.
    last: Option<(u32, RowSize)>,
}

#[derive(Debug, Clone)]
enum Slot<M> {
    Row(Vec<M>),
    Removed,
    /// A damaged row: its messages are lost, and their UIDs stay unused.
    Damaged,
}

impl<M: RowMessage> RowSet<M> {
    pub fn new(table: TableName, mailbox: u32) -> Self {
        let (rows, dirty, shrunk) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { table, mailbox, rows, dirty, shrunk, last: None }
    }

    /// The row with the greatest key that is not above a UID, if any. Reads it if necessary.
    fn find(&mut self, reader: &TableReader, uid: u32) -> Result<Option<u32>, MetaError> {
        let known = self.rows.range(..=uid).rev().find(|(_, slot)| !matches!(slot, Slot::Removed)).map(|(key, _)| *key);
        let (first, last) = (key_of_two(self.mailbox, 0), key_of_two(self.mailbox, uid));
        let is_unknown = |key: &[u8]| second_of(key).is_some_and(|key| !self.rows.contains_key(&key));
        let stored = reader.last_key(self.table, (&first, &last), is_unknown)?.and_then(|key| second_of(&key));
        if let Some(key) = stored.filter(|stored| known.is_none_or(|known| *stored > known)) {
            let slot = match reader.get(self.table, &key_of_two(self.mailbox, key)) {
                Ok(Some(value)) => decode(&value, key).map_or(Slot::Damaged, Slot::Row),
                Ok(None) => Slot::Removed,
                Err(MetaError::Value(_)) => Slot::Damaged,
                Err(error) => return Err(error),
            };
            self.rows.insert(key, slot);
            return Ok(Some(key));
        }
        Ok(known)
    }

    fn row(&mut self, key: u32) -> Option<&mut Vec<M>> {
        match self.rows.get_mut(&key) {
            Some(Slot::Row(messages)) => Some(messages),
            _ => None,
        }
    }

    /// Adds a message with the highest UID.
    pub fn push(&mut self, reader: &TableReader, message: M) -> Result<(), MetaError> {
        if self.last.is_none()
            && let Some(key) = self.find(reader, u32::MAX)?
            && let Some(messages) = self.row(key)
        {
            self.last = Some((key, RowSize::of(messages, key)));
        }
        let grown = self.last.as_ref().map(|(key, size)| (*key, size.with(&message, *key)));
        let (key, size) = match grown.filter(|(_, size)| size.fits()) {
            Some(grown) => grown,
            None => (message.uid(), RowSize::default().with(&message, message.uid())),
        };
        match self.rows.get_mut(&key) {
            Some(Slot::Row(messages)) => messages.push(message),
            _ => drop(self.rows.insert(key, Slot::Row(vec![message]))),
        }
        self.dirty.insert(key);
        self.last = Some((key, size));
        Ok(())
    }

    /// Calls `change` for each message of a range; removes those for which it returns `false`.
    pub fn change(
        &mut self,
        reader: &TableReader,
        range: NumberRange,
        mut change: impl FnMut(&mut M) -> bool,
    ) -> Result<(), MetaError> {
        self.last = None;
        let mut upto = range.last;
        while let Some(key) = self.find(reader, upto)? {
            if let Some(messages) = self.row(key) {
                let before = messages.len();
                let mut is_changed = false;
                messages.retain_mut(|message| {
                    let is_wanted = (range.first..=range.last).contains(&message.uid());
                    is_changed |= is_wanted;
                    !is_wanted || change(message)
                });
                let is_shorter = messages.len() < before;
                self.dirty.extend(is_changed.then_some(key));
                self.shrunk.extend(is_shorter.then_some(key));
            }
            if key <= range.first {
                break;
            }
            upto = key - 1;
        }
        Ok(())
    }

    /// Rows that a commit must write and remove. A row that is too long is split; one below a quarter joins its
    /// predecessor.
    pub fn flush(mut self, reader: &TableReader, changes: &mut RowChanges) -> Result<(), MetaError> {
        for key in std::mem::take(&mut self.shrunk) {
            self.join(reader, key)?;
        }
        for key in std::mem::take(&mut self.dirty) {
            let at = key_of_two(self.mailbox, key);
            match self.rows.remove(&key) {
                Some(Slot::Row(messages)) if !messages.is_empty() => self.put(changes, key, &messages),
                Some(Slot::Row(_) | Slot::Removed) => changes.remove(self.table, &at),
                Some(Slot::Damaged) | None => {}
            }
        }
        Ok(())
    }

    fn put(&self, changes: &mut RowChanges, key: u32, messages: &[M]) {
        if messages.len() > 1 && !RowSize::of(messages, key).fits() {
            let (front, back) = messages.split_at(messages.len() / 2);
            self.put(changes, key, front);
            self.put(changes, back[0].uid(), back);
            return;
        }
        changes.put(self.table, &key_of_two(self.mailbox, key), encode(messages, key));
    }

    fn join(&mut self, reader: &TableReader, key: u32) -> Result<(), MetaError> {
        let Some(messages) = self.row(key).filter(|messages| !messages.is_empty()).map(|messages| messages.clone())
        else {
            return Ok(());
        };
        if RowSize::of(&messages, key).bytes() > ROW_BYTES_MAX / 4 || key == 0 {
            return Ok(());
        }
        let Some(before) = self.find(reader, key - 1)? else { return Ok(()) };
        let Some(joined) = self.row(before) else { return Ok(()) };
        let whole: Vec<M> = joined.iter().chain(&messages).cloned().collect();
        if RowSize::of(&whole, before).fits() {
            *joined = whole;
            self.rows.insert(key, Slot::Removed);
            self.dirty.extend([before, key]);
        }
        Ok(())
    }
}
