//! Numbers of the whole store, by name.

use super::changes::RowChanges;
use super::error::MetaError;
use super::reader::TableReader;
use super::table_name::TableName;

/// Numbers of the whole store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreNumbers {
    /// Rows contain all entries up to this LSN.
    pub applied: u64,
    /// Raised for each damage that may have hidden UIDs.
    pub skip: u32,
    /// The MODSEQ floor of heads that skip UIDs: above all LSNs assigned before `skip` was raised.
    pub floor: u64,
    /// Account ids begin at 1.
    pub next_account: u32,
    /// Mailbox ids begin at 1.
    pub next_mailbox: u32,
}

const APPLIED: &[u8] = b"applied";
const SKIP: &[u8] = b"skip";
const FLOOR: &[u8] = b"floor";
const NEXT_ACCOUNT: &[u8] = b"next account";
const NEXT_MAILBOX: &[u8] = b"next mailbox";

impl StoreNumbers {
    /// Reads the numbers of the last commit.
    ///
    /// # Errors
    /// Errors of reading the table.
    pub fn read(reader: &TableReader) -> Result<Self, MetaError> {
        let number = |name: &[u8], default: u64| -> Result<u64, MetaError> {
            let Some(value) = reader.get(TableName::Store, name)? else { return Ok(default) };
            let number = <[u8; 8]>::try_from(&value[..]).map(u64::from_le_bytes);
            number.map_err(|_| MetaError::Value(format!("{} is no number", name.escape_ascii())))
        };
        let short = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Self {
            applied: number(APPLIED, 0)?,
            skip: short(number(SKIP, 0)?),
            floor: number(FLOOR, 0)?,
            next_account: short(number(NEXT_ACCOUNT, 1)?),
            next_mailbox: short(number(NEXT_MAILBOX, 1)?),
        })
    }

    /// Adds the numbers to a commit, replacing the earlier ones.
    pub fn put(&self, changes: &mut RowChanges) {
        let numbers = [
            (APPLIED, self.applied),
            (SKIP, self.skip.into()),
            (FLOOR, self.floor),
            (NEXT_ACCOUNT, self.next_account.into()),
            (NEXT_MAILBOX, self.next_mailbox.into()),
        ];
        numbers
            .into_iter()
            .for_each(|(name, number)| changes.put(TableName::Store, name, number.to_le_bytes().to_vec()));
    }
}
