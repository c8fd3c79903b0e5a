//! The table's rows, with the entries that it lacks.

use std::collections::BTreeMap;

use super::finding::{Finding, FindingKind};
use crate::table::{MetaError, RowChanges, StoreNumbers, TableName, TableReader, rows_of};

/// Reads rows, and notes those with a wrong checksum.
pub(super) struct RowReader<'a> {
    pub reader: &'a TableReader,
    pub changes: &'a RowChanges,
    pub numbers: StoreNumbers,
    pub account: String,
    pub mailbox: String,
    pub findings: Vec<Finding>,
}

impl RowReader<'_> {
    pub fn note(&mut self, kind: FindingKind, uid: Option<u32>, detail: String) {
        let (account, mailbox) = (self.account.clone(), self.mailbox.clone());
        self.findings.push(Finding { kind, account, mailbox, uid, file: None, detail });
    }

    /// Rows whose keys begin with `prefix`. Rows changed by an entry of the spool are not read from the table.
    pub fn rows(&mut self, table: TableName, prefix: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, MetaError> {
        let mut damaged = Vec::new();
        self.reader.for_each(table, prefix, &mut |key, value| {
            let is_changed = || self.changes.of(table, key).any(|(changed, _)| changed == key);
            if value.is_none() && !is_changed() {
                damaged.push(key.to_vec());
            }
            Ok(())
        })?;
        for key in damaged {
            self.note(FindingKind::Checksum, None, format!("table {table:?}, row {}: wrong checksum", hex(&key)));
        }
        rows_of(self.reader, self.changes, table, prefix)
    }

    pub fn not_read(&mut self, table: TableName, key: &[u8]) {
        self.note(FindingKind::Checksum, None, format!("table {table:?}, row {}: it is none", hex(key)));
    }
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|octet| format!("{octet:02x}")).collect()
}
