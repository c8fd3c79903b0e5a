//! Secondary indexes of rows, so that the time for an entry does not grow with the number of mailboxes.

use std::collections::{BTreeMap, HashMap};

use super::error::MetaError;
use super::values::{NameRow, PendingRow};

/// Keys that were right when noted. Check the row, which may have changed since.
#[derive(Debug, Clone, Default)]
pub(super) struct Lookups {
    names: Option<NamesOfAccount>,
    pending: Option<PendingDirectories>,
}

/// Names of the account that was looked up last.
#[derive(Debug, Clone)]
struct NamesOfAccount {
    account: u32,
    by_mailbox: HashMap<u32, Vec<Vec<u8>>>,
}

#[derive(Debug, Clone, Default)]
struct PendingDirectories {
    by_directory: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    damaged: Vec<Vec<u8>>,
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

impl Lookups {
    /// Takes the keys of a mailbox's names. `read`: all names of the account.
    pub fn take_names(
        &mut self,
        account: u32,
        mailbox: u32,
        read: impl FnOnce() -> Result<Rows, MetaError>,
    ) -> Result<Vec<Vec<u8>>, MetaError> {
        if self.names.as_ref().is_none_or(|names| names.account != account) {
            let mut by_mailbox: HashMap<u32, Vec<Vec<u8>>> = HashMap::new();
            for (key, value) in read()? {
                if let Some(row) = NameRow::decode(&value).filter(|row| row.mailbox != 0) {
                    by_mailbox.entry(row.mailbox).or_default().push(key);
                }
            }
            self.names = Some(NamesOfAccount { account, by_mailbox });
        }
        Ok(self.names.as_mut().and_then(|names| names.by_mailbox.remove(&mailbox)).unwrap_or_default())
    }

    /// Notes the mailbox of a name.
    pub fn note_name(&mut self, account: u32, mailbox: u32, key: &[u8]) {
        if let Some(names) = self.names.as_mut().filter(|names| names.account == account) {
            names.by_mailbox.entry(mailbox).or_default().push(key.to_vec());
        }
    }

    /// Takes the keys of pending rows about a directory, and of unreadable ones. `read`: all pending rows.
    pub fn take_pending(
        &mut self,
        directory: &[u8],
        read: impl FnOnce() -> Result<Rows, MetaError>,
    ) -> Result<Vec<Vec<u8>>, MetaError> {
        if self.pending.is_none() {
            let mut pending = PendingDirectories::default();
            for (key, value) in read()? {
                match PendingRow::decode(&value) {
                    Some(row) => pending.by_directory.entry(row.directory.to_vec()).or_default().push(key),
                    None => pending.damaged.push(key),
                }
            }
            self.pending = Some(pending);
        }
        let Some(pending) = &mut self.pending else { return Ok(Vec::new()) };
        let mut keys = std::mem::take(&mut pending.damaged);
        keys.extend(pending.by_directory.remove(directory).unwrap_or_default());
        Ok(keys)
    }

    /// Notes a pending row.
    pub fn note_pending(&mut self, directory: &[u8], key: &[u8]) {
        if let Some(pending) = &mut self.pending {
            pending.by_directory.entry(directory.to_vec()).or_default().push(key.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn all_rows_are_read_once_however_many_mailboxes_ask() {
        let name = |mailbox| NameRow { mailbox, is_subscribed: true, last_validity: 1 }.encode();
        let rows: Rows = (1..=100).map(|mailbox: u32| (mailbox.to_be_bytes().to_vec(), name(mailbox))).collect();
        let (mut lookups, mut reads) = (Lookups::default(), 0);
        for mailbox in (1..=100).rev() {
            let keys = lookups.take_names(7, mailbox, || {
                reads += 1;
                Ok(rows.clone())
            });
            assert_eq!(keys.unwrap(), [mailbox.to_be_bytes().to_vec()]);
            lookups.note_name(7, mailbox, b"new");
            lookups.note_name(8, mailbox, b"of another account");
        }
        assert_eq!(reads, 1);
        assert_eq!(lookups.take_names(7, 3, || unreachable!("they are known")).unwrap(), [b"new".to_vec()]);
        assert!(lookups.take_names(7, 3, || unreachable!("they are known")).unwrap().is_empty());
        assert!(lookups.take_names(8, 3, || Ok(Rows::new())).unwrap().is_empty());
    }

    #[test]
    fn pending_rows_are_found_by_directory_and_damaged_ones_once() {
        let row = |directory: &'static [u8]| PendingRow { lsn: 1, directory: Bytes::from_static(directory) }.encode();
        let rows = Rows::from([(b"1".to_vec(), row(b"a")), (b"2".to_vec(), row(b"b")), (b"3".to_vec(), Vec::new())]);
        let mut lookups = Lookups::default();
        assert_eq!(lookups.take_pending(b"b", || Ok(rows.clone())).unwrap(), [b"3".to_vec(), b"2".to_vec()]);
        lookups.note_pending(b"c", b"4");
        for (directory, expected) in [(b"a", vec![b"1".to_vec()]), (b"b", vec![]), (b"c", vec![b"4".to_vec()])] {
            assert_eq!(lookups.take_pending(directory, || unreachable!("they are known")).unwrap(), expected);
        }
    }
}
