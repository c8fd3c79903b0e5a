//! Compares a mailbox's rows with its files. Read-only, also beside a running server.
//!
//! The table and the directories are read one after the other while others may change them. So they are read again
//! while there are findings, and only repeated findings count.

mod finding;
mod mailbox_rows;
mod row_reader;

use std::collections::HashSet;
use std::io;
use std::path::Path;

use bytes::Bytes;
use posthaste_maildir::MailRoot;

pub use self::finding::{Finding, FindingKind};
use self::mailbox_rows::MailboxRows;
use self::row_reader::RowReader;
use crate::entry::MailEntry;
use crate::table::{
    AccountRow, Applier, MetaError, NameRow, OpeningRow, TableName, TableReader, key_of, peek, rows_of,
};

/// Maximum passes. Concurrent changes are not found twice.
const PASSES_MAX: usize = 5;

/// Directories of the table and the mail of a server.
pub struct VerifiedPlaces<'a> {
    /// The directory of the table.
    pub table: &'a Path,
    /// The directory that contains all Maildirs.
    pub mail: &'a Path,
    /// Reads entries of the spool that the table may lack. Called before the table is read.
    pub look: &'a dyn Fn() -> io::Result<SpoolLook>,
}

/// Entries and mail of the spool that the table or the Maildirs lack.
#[derive(Debug, Clone, Default)]
pub struct SpoolLook {
    /// Entries of the stream of mailboxes, with their LSNs and in their order.
    pub entries: Vec<(u64, Bytes)>,
    /// Batch and Maildir of mail whose file delivery has not made yet.
    pub undelivered: HashSet<(u64, String)>,
}

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of mailboxes read.
    pub mailboxes: usize,
    /// Messages in these mailboxes.
    pub messages: usize,
    /// Findings in the order of accounts and mailboxes.
    pub findings: Vec<Finding>,
}

/// Why the verification failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The table cannot be read.
    #[error(transparent)]
    Table(#[from] MetaError),
    /// The spool or the mail directory cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Verifies an account, given by the path of its INBOX, or one of its mailboxes. Without an account: all of them, and
/// the checksums of the whole table. `None`: no such account or mailbox.
///
/// # Errors
/// [`VerifyError`].
pub fn verify_mailboxes(
    places: &VerifiedPlaces<'_>,
    account: Option<&str>,
    mailbox: Option<&str>,
) -> Result<Option<Verified>, VerifyError> {
    let mut outcome: Option<Verified> = None;
    for _ in 0..PASSES_MAX {
        let Some(mut next) = pass(places, account, mailbox)? else { return Ok(None) };
        if let Some(before) = &outcome {
            let before: HashSet<&Finding> = before.findings.iter().collect();
            next.findings.retain(|finding| before.contains(finding));
        }
        let is_settled = outcome.as_ref().is_some_and(|before| before.findings.len() == next.findings.len());
        let is_clean = next.findings.is_empty();
        outcome = Some(next);
        if is_settled || is_clean {
            break;
        }
    }
    Ok(outcome)
}

fn pass(
    places: &VerifiedPlaces<'_>,
    account: Option<&str>,
    mailbox: Option<&str>,
) -> Result<Option<Verified>, VerifyError> {
    // The spool first: what the table takes over from it later is in both.
    let look = (places.look)()?;
    let read = peek(places.table, |reader| TableRows::read(reader, &look.entries, account))?;
    let root = MailRoot::open(places.mail)?;
    let mut verified = Verified { findings: read.findings, ..Verified::default() };
    let mut has_any = account.is_none();
    for rows in read.mailboxes {
        // INBOX has no case.
        let is_named =
            |wanted: &str| rows.name == wanted || rows.name == "INBOX" && wanted.eq_ignore_ascii_case("INBOX");
        if !mailbox.is_none_or(is_named) {
            continue;
        }
        has_any = true;
        verified.mailboxes += 1;
        verified.messages += rows.fixed.len();
        verified.findings.extend(rows.verified(&root, &look.undelivered));
    }
    has_any |= mailbox.is_none() && read.has_account;
    Ok(has_any.then_some(verified))
}

/// The table with the entries that it lacks.
#[derive(Default)]
struct TableRows {
    has_account: bool,
    mailboxes: Vec<MailboxRows>,
    findings: Vec<Finding>,
}

fn number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(..4)?.try_into().ok()?))
}

impl TableRows {
    fn read(reader: &TableReader, entries: &[(u64, Bytes)], wanted: Option<&str>) -> Result<Self, MetaError> {
        let mut applier = Applier::new(reader)?;
        let applied = applier.numbers.applied;
        for (lsn, payload) in entries.iter().filter(|(lsn, _)| *lsn > applied) {
            if let Some(entry) = MailEntry::decode(payload) {
                applier.apply(*lsn, &entry)?;
            }
        }
        let numbers = applier.numbers;
        let changes = applier.finish()?;
        let (account, mailbox) = (String::new(), String::new());
        let mut rows = RowReader { reader, changes: &changes, numbers, account, mailbox, findings: Vec::new() };
        if wanted.is_none() {
            TableName::ALL
                .into_iter()
                .filter(|table| !OF_ACCOUNTS.contains(table))
                .try_for_each(|table| rows.rows(table, &[]).map(drop))?;
        }
        let openings = rows_of(reader, &changes, TableName::Openings, &[])?.into_iter();
        let opening = |(lsn, row): (Vec<u8>, Vec<u8>)| {
            Some((u64::from_be_bytes(lsn[..].try_into().ok()?), OpeningRow::decode(&row)?.nonce))
        };
        let openings: Vec<(u64, u32)> = openings.filter_map(opening).collect();
        let mut all = Self::default();
        let accounts = match wanted {
            None => rows.rows(TableName::Accounts, &[])?,
            Some(_) => rows_of(reader, &changes, TableName::Accounts, &[])?,
        };
        for (key, value) in accounts {
            let Some((id, row)) = number(&key).zip(AccountRow::decode(&value)) else {
                rows.not_read(TableName::Accounts, &key);
                continue;
            };
            let inbox = String::from_utf8_lossy(&row.name).into_owned();
            if row.is_gone || wanted.is_some_and(|wanted| wanted != inbox) {
                continue;
            }
            all.has_account = true;
            rows.account = inbox;
            all.account(&mut rows, id, &row, &openings)?;
        }
        all.findings.extend(rows.findings);
        Ok(all)
    }

    /// All mailboxes of an account.
    fn account(
        &mut self,
        rows: &mut RowReader<'_>,
        id: u32,
        account: &AccountRow,
        openings: &[(u64, u32)],
    ) -> Result<(), MetaError> {
        let (mut messages, mut bytes) = (0, 0);
        for (key, value) in rows.rows(TableName::Names, &key_of(id))? {
            let Some(row) = NameRow::decode(&value) else {
                rows.not_read(TableName::Names, &key);
                continue;
            };
            if row.mailbox == 0 {
                continue;
            }
            rows.mailbox = String::from_utf8_lossy(&key[4..]).into_owned();
            let read = MailboxRows::read(rows, row.mailbox, openings)?;
            rows.mailbox.clear();
            let Some(read) = read else {
                let name = String::from_utf8_lossy(&key[4..]).into_owned();
                rows.note(FindingKind::Checksum, None, format!("mailbox {name} has no numbers"));
                continue;
            };
            messages += u64::from(read.head.exists);
            bytes += read.head.bytes;
            self.mailboxes.push(read);
        }
        if (account.messages, account.bytes) != (messages, bytes) {
            let detail = format!(
                "the account counts {} messages of {} bytes, its mailboxes {messages} of {bytes}",
                account.messages, account.bytes
            );
            rows.note(FindingKind::Counters, None, detail);
        }
        Ok(())
    }
}

/// Tables whose rows are read with their accounts.
const OF_ACCOUNTS: [TableName; 9] = [
    TableName::Accounts,
    TableName::Names,
    TableName::Mailboxes,
    TableName::Fixed,
    TableName::State,
    TableName::Gone,
    TableName::Foreign,
    TableName::Keywords,
    TableName::Leaving,
];
