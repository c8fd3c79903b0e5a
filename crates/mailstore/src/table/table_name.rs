//! The tables of the database.

use redb::TableDefinition;

/// The tables of the database, used by [`RowChanges`](super::RowChanges) and [`TableReader`](super::TableReader).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableName {
    /// Numbers of the whole store, by name.
    Store,
    /// Openings of the store, by LSN.
    Openings,
    /// Accounts, by id.
    Accounts,
    /// Mailbox ids, by account and name.
    Names,
    /// Heads of mailboxes, by id.
    Mailboxes,
    /// Rows of constant facts, by mailbox and first UID.
    Fixed,
    /// Rows of flags and MODSEQs, by mailbox and first UID.
    State,
    /// Expunged UIDs, by mailbox, MODSEQ and first UID.
    Gone,
    /// File names that do not follow from the row, by mailbox and UID.
    Foreign,
    /// Keywords, by mailbox and bit.
    Keywords,
    /// Files of expunged messages that may still be in the Maildir, by mailbox and UID.
    Leaving,
    /// Directories waiting for a rename or removal, by mailbox.
    Pending,
    /// Unique-ids of POP3 that do not follow from the UID, by mailbox and UID.
    UniqueIds,
}

impl TableName {
    pub(crate) const ALL: [Self; 13] = [
        Self::Store,
        Self::Openings,
        Self::Accounts,
        Self::Names,
        Self::Mailboxes,
        Self::Fixed,
        Self::State,
        Self::Gone,
        Self::Foreign,
        Self::Keywords,
        Self::Leaving,
        Self::Pending,
        Self::UniqueIds,
    ];

    pub(super) fn definition(self) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
        TableDefinition::new(match self {
            Self::Store => "store",
            Self::Openings => "openings",
            Self::Accounts => "accounts",
            Self::Names => "names",
            Self::Mailboxes => "mailboxes",
            Self::Fixed => "fixed",
            Self::State => "state",
            Self::Gone => "gone",
            Self::Foreign => "foreign",
            Self::Keywords => "keywords",
            Self::Leaving => "leaving",
            Self::Pending => "pending",
            Self::UniqueIds => "unique_ids",
        })
    }
}
