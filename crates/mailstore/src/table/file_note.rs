//! Changes of files that are not recorded in entries.

use super::apply::Applier;
use super::changes::rows_of;
use super::columns::flag_bits;
use super::error::MetaError;
use super::heads::stored_head;
use super::table_name::TableName;
use super::values::{PendingRow, key_of, key_of_two};
use crate::row::NumberRange;

/// A durable change of a message's file that has no entry: after a lost commit it is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileNote {
    /// The file is in `cur/`, and its name shows the message's flags at a MODSEQ.
    Shown {
        /// MODSEQ of the flags in the name; later changes are not in it.
        mailbox: u32,
        /// The message.
        uid: u32,
        /// A later change is not in the name.
        modseq: u64,
    },
    /// The file of an expunged message has left the Maildir.
    Left {
        /// The mailbox.
        mailbox: u32,
        /// The message.
        uid: u32,
    },
    /// A batch's rename or removal of a mailbox's directory is done.
    DirectoryDone {
        /// The mailbox.
        mailbox: u32,
        /// LSN of the batch; changes of later batches are still pending.
        lsn: u64,
    },
    /// A mailbox has no directory, or has one again.
    Missing {
        /// The mailbox.
        mailbox: u32,
        /// Number of the day, as in [`MailboxHead`](super::MailboxHead).
        day: u16,
    },
    /// A listing has confirmed that a mailbox's directories match the rows. They do as long as the directories have
    /// these stamps.
    Listed {
        /// The mailbox.
        mailbox: u32,
        /// Stamps of the directories, as in [`MailboxHead`](super::MailboxHead).
        stamps: [(i64, u64); 2],
    },
}

impl Applier<'_> {
    /// Applies a change of a file, after the entries that were durable before it.
    ///
    /// # Errors
    /// Errors of reading the table.
    pub fn note(&mut self, note: FileNote) -> Result<(), MetaError> {
        match note {
            FileNote::Shown { mailbox, uid, modseq } => {
                let (reader, range) = (self.reader, NumberRange { first: uid, last: uid });
                self.state_rows(mailbox).change(reader, range, |message| {
                    if message.modseq <= modseq {
                        message.flags &= !(flag_bits::BEHIND | flag_bits::IN_NEW);
                        message.letters = 0;
                    }
                    true
                })
            }
            FileNote::Left { mailbox, uid } => {
                self.changes.remove(TableName::Leaving, &key_of_two(mailbox, uid));
                Ok(())
            }
            FileNote::DirectoryDone { mailbox, lsn } => {
                let rows = rows_of(self.reader, &self.changes, TableName::Pending, &key_of(mailbox))?;
                let done = |row: &[u8]| PendingRow::decode(row).is_none_or(|row| row.lsn <= lsn);
                let done = rows.into_iter().filter(|(_, row)| done(row));
                done.for_each(|(key, _)| self.changes.remove(TableName::Pending, &key));
                Ok(())
            }
            FileNote::Missing { mailbox, day } => {
                if self.has_head(mailbox)? {
                    self.head(mailbox)?.missing_day = day;
                }
                Ok(())
            }
            FileNote::Listed { mailbox, stamps } => {
                if self.has_head(mailbox)? {
                    self.head(mailbox)?.stamps = stamps;
                }
                Ok(())
            }
        }
    }

    /// False if the mailbox was removed.
    fn has_head(&self, mailbox: u32) -> Result<bool, MetaError> {
        if self.heads.contains_key(&mailbox) {
            return Ok(true);
        }
        let key = key_of(mailbox);
        let is_changed = self.changes.of(TableName::Mailboxes, &key).next().is_some();
        Ok(!is_changed && stored_head(self.reader, mailbox, &self.numbers)?.is_some())
    }
}
