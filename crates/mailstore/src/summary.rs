//! Counters of accounts, read from the table beside a running server.

use std::collections::BTreeMap;
use std::path::Path;

use crate::table::{
    AccountRow, MailboxHead, MetaError, NameRow, RowChanges, StoreNumbers, TableName, TableReader, key_of, peek,
    rows_of, stored_head,
};

/// An account as of the last commit of the table, at most half a minute ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountSummary {
    /// Id of the account in the table.
    pub id: u32,
    /// Row of the account, with its counters.
    pub row: AccountRow,
    /// Mailboxes in the order of their names, INBOX first.
    pub mailboxes: Vec<MailboxSummary>,
    /// Bytes of the table's pages that are in use, for all accounts.
    pub live_bytes: u64,
}

/// A mailbox of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxSummary {
    /// Id of the mailbox in the table.
    pub id: u32,
    /// Mailbox name.
    pub name: String,
    /// UIDVALIDITY, next UID and counters.
    pub head: MailboxHead,
    /// Keywords in the order of their bits.
    pub keywords: Vec<String>,
}

impl AccountSummary {
    /// Reads the account of an INBOX (its path below the mail directory) from the table in `dir`. `None`: no such
    /// account, or its mail was never read.
    ///
    /// # Errors
    /// [`MetaError::Open`] if there is no table; [`MetaError::Damaged`].
    pub fn read(dir: &Path, inbox: &str) -> Result<Option<Self>, MetaError> {
        peek(dir, |reader| {
            let accounts = all(reader, TableName::Accounts, &[])?.into_iter();
            let mut found = accounts.filter_map(|(key, value)| Some((number(&key)?, AccountRow::decode(&value)?)));
            let Some((id, row)) = found.find(|(_, row)| &row.name[..] == inbox.as_bytes() && !row.is_gone) else {
                return Ok(None);
            };
            let mut mailboxes = Vec::new();
            for (key, value) in all(reader, TableName::Names, &key_of(id))? {
                let Some(mailbox) = NameRow::decode(&value).map(|row| row.mailbox).filter(|id| *id != 0) else {
                    continue;
                };
                mailboxes.extend(MailboxSummary::read(reader, mailbox, &key[4..])?);
            }
            mailboxes.sort_by(|a, b| (a.name != "INBOX", &a.name).cmp(&(b.name != "INBOX", &b.name)));
            let live = TableName::ALL.into_iter().map(|table| reader.live_bytes(table));
            Ok(Some(Self { id, row, mailboxes, live_bytes: live.sum::<Result<_, _>>()? }))
        })
    }
}

impl MailboxSummary {
    fn read(reader: &TableReader, id: u32, name: &[u8]) -> Result<Option<Self>, MetaError> {
        let Some(head) = stored_head(reader, id, &StoreNumbers::read(reader)?)? else { return Ok(None) };
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        let keywords = all(reader, TableName::Keywords, &key_of(id))?;
        let keywords = keywords.into_values().map(|name| text(&name)).collect();
        Ok(Some(Self { id, name: text(name), head, keywords }))
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn all(reader: &TableReader, table: TableName, prefix: &[u8]) -> Result<Rows, MetaError> {
    rows_of(reader, &RowChanges::default(), table, prefix)
}

fn number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(..4)?.try_into().ok()?))
}
