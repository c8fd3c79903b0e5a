//! A mailbox's rows compared with its files. Reads only, also beside a server that serves it.
//!
//! The table and the directories are read one after the other while others may change them. So they are read again as long as something is found, and what is found
//! each time counts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{MailRoot, MailboxPath, MaildirReader, Subdir, UniqueName};

use super::file::own_part;
use super::keywords::MailboxKeywords;
use crate::entry::MailEntry;
use crate::flags::MessageFlags;
use crate::table::{
    AccountRow, Applier, FixedMessage, LeavingRow, MailboxHead, MetaError, NameRow, OpeningRow, RowChanges,
    StateMessage, StoreNumbers, TableName, TableReader, fixed_row, flag_bits, key_of, peek, rows_of, second_of,
    state_row, stored_head,
};

/// Passes over everything. What another program changes meanwhile is not found twice.
const PASSES_MAX: usize = 5;

/// Where the table and the mail of a server are.
pub struct VerifiedPlaces<'a> {
    /// The directory of the table.
    pub table: &'a Path,
    /// The directory that all Maildirs are below.
    pub mail: &'a Path,
    /// Reads what the spool has and the table may lack. Called before the table is read.
    pub look: &'a dyn Fn() -> io::Result<SpoolLook>,
}

/// A spool's part of the mailboxes.
#[derive(Debug, Clone, Default)]
pub struct SpoolLook {
    /// Entries of the stream of mailboxes, with their LSNs and in their order.
    pub entries: Vec<(u64, Bytes)>,
    /// Batch and Maildir of mail whose file delivery has yet to make.
    pub undelivered: HashSet<(u64, String)>,
}

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// A value of the table has a wrong checksum, or is none.
    Checksum,
    /// UIDs do not ascend, come twice, or are not below the next UID.
    Uids,
    /// Counters differ from the rows that they count.
    Counters,
    /// The file of a message is not there.
    Missing,
    /// A file has another size than its row or its name says.
    Size,
    /// A directory or file cannot be read.
    Unreadable,
    /// A file without a UID. It gets one when a session looks.
    New,
    /// A name shows other flags than the table has. A session that looks takes them in.
    Flags,
}

impl FindingKind {
    /// False of changes by other programs, which the next look of a session takes in.
    pub fn is_damage(self) -> bool {
        !matches!(self, Self::New | Self::Flags)
    }

    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::Uids => "uids",
            Self::Counters => "counters",
            Self::Missing => "missing",
            Self::Size => "size",
            Self::Unreadable => "unreadable",
            Self::New => "new",
            Self::Flags => "flags",
        }
    }
}

/// A difference between rows and files, or damage of rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// The INBOX of its account, as a path; empty: of the whole table.
    pub account: String,
    /// The mailbox; empty: of the account.
    pub mailbox: String,
    /// The message, if it is about one.
    pub uid: Option<u32>,
    /// The file, if it is about one.
    pub file: Option<String>,
    /// For people.
    pub detail: String,
}

/// The outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Mailboxes that were read.
    pub mailboxes: usize,
    /// Their messages.
    pub messages: usize,
    /// In the order of accounts and mailboxes.
    pub findings: Vec<Finding>,
}

/// Why nothing can be verified.
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

/// Verifies an account, given by the path of its INBOX, or one of its mailboxes. Without an account all of them, and the checksums of the whole table. `None`: there is no
/// such account or mailbox.
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

/// The table as it is with the entries that it lacks.
#[derive(Default)]
struct TableRows {
    has_account: bool,
    mailboxes: Vec<MailboxRows>,
    findings: Vec<Finding>,
}

/// The rows of one mailbox.
struct MailboxRows {
    account: String,
    name: String,
    head: MailboxHead,
    fixed: Vec<FixedMessage>,
    state: HashMap<u32, StateMessage>,
    names: BTreeMap<u32, Vec<u8>>,
    keywords: MailboxKeywords,
    leaving: Vec<LeavingRow>,
    openings: Vec<(u64, u32)>,
    findings: Vec<Finding>,
}

/// Reads rows, and notes those with a wrong checksum.
struct RowReader<'a> {
    reader: &'a TableReader,
    changes: &'a RowChanges,
    numbers: StoreNumbers,
    account: String,
    mailbox: String,
    findings: Vec<Finding>,
}

impl RowReader<'_> {
    fn note(&mut self, kind: FindingKind, uid: Option<u32>, detail: String) {
        let (account, mailbox) = (self.account.clone(), self.mailbox.clone());
        self.findings.push(Finding { kind, account, mailbox, uid, file: None, detail });
    }

    /// Rows whose keys begin with `prefix`. One that an entry of the spool changes is not read from the table.
    fn rows(&mut self, table: TableName, prefix: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, MetaError> {
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

    fn not_read(&mut self, table: TableName, key: &[u8]) {
        self.note(FindingKind::Checksum, None, format!("table {table:?}, row {}: it is none", hex(key)));
    }
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|octet| format!("{octet:02x}")).collect()
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

impl MailboxRows {
    /// `None`: it has no head.
    fn read(rows: &mut RowReader<'_>, id: u32, openings: &[(u64, u32)]) -> Result<Option<Self>, MetaError> {
        let key = key_of(id);
        let heads = rows.rows(TableName::Mailboxes, &key)?;
        let head = match heads.into_values().next() {
            Some(value) => MailboxHead::decode(&value),
            // Damaged: it is counted again from the rows.
            None => stored_head(rows.reader, id, &rows.numbers)?,
        };
        let Some(mut head) = head else { return Ok(None) };
        head.skip_to(&rows.numbers);
        let (mut fixed, mut state, mut keywords) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (key, value) in rows.rows(TableName::Fixed, &key)? {
            match second_of(&key).and_then(|first| fixed_row(&value, first)) {
                Some(row) => fixed.extend(row),
                None => rows.not_read(TableName::Fixed, &key),
            }
        }
        for (key, value) in rows.rows(TableName::State, &key)? {
            match second_of(&key).and_then(|first| state_row(&value, first)) {
                Some(row) => state.extend(row),
                None => rows.not_read(TableName::State, &key),
            }
        }
        for (key, value) in rows.rows(TableName::Keywords, &key)? {
            keywords.extend(key.get(4).map(|bit| (*bit, Bytes::from(value))));
        }
        let names = rows.rows(TableName::Foreign, &key)?.into_iter();
        let names = names.filter_map(|(key, name)| Some((second_of(&key)?, name))).collect();
        let leaving = rows.rows(TableName::Leaving, &key)?.into_values();
        let leaving = leaving.filter_map(|row| LeavingRow::decode(&row)).collect();
        rows.rows(TableName::Gone, &key)?;
        Self::check_uids(rows, &head, &fixed, &state);
        let findings = std::mem::take(&mut rows.findings);
        let state = state.into_iter().map(|message| (message.uid, message)).collect();
        let (account, name) = (rows.account.clone(), rows.mailbox.clone());
        let (keywords, openings) = (MailboxKeywords::stored(&keywords), openings.to_vec());
        Ok(Some(Self { account, name, head, fixed, state, names, keywords, leaving, openings, findings }))
    }

    /// UIDs are unique and ascending, each message has both kinds of rows, and the counters are those of the rows.
    fn check_uids(rows: &mut RowReader<'_>, head: &MailboxHead, fixed: &[FixedMessage], state: &[StateMessage]) {
        for two in fixed.windows(2).filter(|two| two[0].uid >= two[1].uid) {
            let detail = format!("UID {} comes after {}", two[1].uid, two[0].uid);
            rows.note(FindingKind::Uids, Some(two[1].uid), detail);
        }
        for two in state.windows(2).filter(|two| two[0].uid >= two[1].uid) {
            let detail = format!("the flags of UID {} come after those of {}", two[1].uid, two[0].uid);
            rows.note(FindingKind::Uids, Some(two[1].uid), detail);
        }
        if let Some(last) = fixed.iter().map(|message| message.uid).max().filter(|last| *last >= head.next_uid) {
            rows.note(FindingKind::Uids, Some(last), format!("the next UID is {}", head.next_uid));
        }
        let of_state: HashSet<u32> = state.iter().map(|message| message.uid).collect();
        let of_fixed: HashSet<u32> = fixed.iter().map(|message| message.uid).collect();
        for uid in fixed.iter().map(|message| message.uid).filter(|uid| !of_state.contains(uid)) {
            rows.note(FindingKind::Uids, Some(uid), "its flags are missing".to_owned());
        }
        for uid in state.iter().map(|message| message.uid).filter(|uid| !of_fixed.contains(uid)) {
            rows.note(FindingKind::Uids, Some(uid), "it has flags, and nothing else".to_owned());
        }
        let with = |flag: MessageFlags, is_set: bool| {
            state.iter().filter(|message| (message.flags & flag.0 != 0) == is_set).count() as u64
        };
        let bytes = fixed.iter().map(|message| u64::from(message.wire_size)).sum();
        for (what, stored, counted) in [
            ("messages", u64::from(head.exists), fixed.len() as u64),
            ("messages without \\Seen", u64::from(head.unseen), with(MessageFlags::SEEN, false)),
            ("messages with \\Deleted", u64::from(head.deleted), with(MessageFlags::DELETED, true)),
            ("bytes", head.bytes, bytes),
        ] {
            if stored != counted {
                rows.note(FindingKind::Counters, None, format!("it counts {stored} {what}, its rows have {counted}"));
            }
        }
    }

    fn nonce_of(&self, lsn: u64) -> Option<u32> {
        let at = self.openings.partition_point(|(first, _)| *first <= lsn);
        self.openings.get(at.checked_sub(1)?).map(|(_, nonce)| *nonce)
    }

    /// The key of a file, or the part of its name that is known of it.
    fn key(&self, (lsn, target): (u64, u16), name: Option<&[u8]>) -> Option<String> {
        match name {
            Some(name) => Some(key_of_name(std::str::from_utf8(name).ok()?).to_owned()),
            None => Some(format!("J{lsn:x}R{:08x}T{target}", self.nonce_of(lsn)?)),
        }
    }

    /// Findings of the rows, and of the rows beside the files.
    fn verified(mut self, root: &MailRoot, undelivered: &HashSet<(u64, String)>) -> Vec<Finding> {
        let directory = String::from_utf8_lossy(&self.head.directory).into_owned();
        let reader = match MailboxPath::parse(&directory).map_err(io::Error::other).and_then(|path| root.reader(&path))
        {
            Ok(reader) => Some(reader),
            // An INBOX without a directory is empty until its mail is delivered.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.note(FindingKind::Unreadable, None, None, format!("{directory}: {error}"));
                return self.findings;
            }
        };
        let files = match reader.as_ref().map(ListedFile::all).transpose() {
            Ok(files) => files.unwrap_or_default(),
            Err(error) => {
                self.note(FindingKind::Unreadable, None, None, format!("{directory}: {error}"));
                return self.findings;
            }
        };
        let known: HashMap<String, usize> = self
            .fixed
            .iter()
            .enumerate()
            .filter_map(|(at, message)| {
                let name = self.names.get(&message.uid).map(Vec::as_slice);
                Some((self.key((message.lsn, message.target), name)?, at))
            })
            .collect();
        let leaving: HashSet<String> =
            self.leaving.iter().filter_map(|row| self.key(row.body, row.name.as_deref())).collect();
        let mut found: Vec<Option<ListedFile>> = self.fixed.iter().map(|_| None).collect();
        for file in files {
            let key = key_of_name(&file.name);
            let own = own_part(&file.name);
            let is_leaving = leaving.contains(key) || own.is_some_and(|own| leaving.contains(own));
            match known.get(key).or_else(|| known.get(own?)).copied() {
                Some(at) if found[at].is_none() => found[at] = Some(file),
                Some(at) => {
                    let detail = format!("a second file of the key of UID {}", self.fixed[at].uid);
                    self.note(FindingKind::New, None, Some(file.name), detail);
                }
                None if is_leaving => {}
                None => self.note(FindingKind::New, None, Some(file.name), "a file without a UID".to_owned()),
            }
        }
        for (at, file) in found.into_iter().enumerate() {
            let message = self.fixed[at];
            match (file, &reader) {
                (Some(file), Some(reader)) => self.check_file(reader, &message, &file),
                _ => self.check_missing(&message, reader.as_ref(), &directory, undelivered),
            }
        }
        self.findings
    }

    fn note(&mut self, kind: FindingKind, uid: Option<u32>, file: Option<String>, detail: String) {
        let (account, mailbox) = (self.account.clone(), self.name.clone());
        self.findings.push(Finding { kind, account, mailbox, uid, file, detail });
    }

    fn check_file(&mut self, reader: &MaildirReader, message: &FixedMessage, file: &ListedFile) {
        let (uid, name) = (message.uid, file.name.clone());
        let size = match reader.facts(file.subdir, &file.name) {
            Ok(Some(facts)) => facts.size,
            Ok(None) => return self.note(FindingKind::Missing, Some(uid), Some(name), "no regular file".to_owned()),
            Err(error) => return self.note(FindingKind::Unreadable, Some(uid), Some(name), error.to_string()),
        };
        let (wire_size, line_feeds) = (u64::from(message.wire_size), u64::from(message.line_feeds));
        // A name of another program can say anything.
        let named = UniqueName::parse(&name).filter(|_| own_part(&name).is_some());
        let (disk, wire) = named.map_or((None, None), |named| (named.disk_size(), named.wire_size()));
        let is_named = self.names.contains_key(&uid);
        let by_row = (is_named && wire_size > 0).then(|| wire_size.saturating_sub(line_feeds));
        if let Some(expected) = disk.into_iter().chain(by_row).find(|expected| *expected != size) {
            let detail = format!("it has {size} octets instead of {expected}");
            self.note(FindingKind::Size, Some(uid), Some(name.clone()), detail);
        } else if let Some(wire) = wire.filter(|wire| wire_size > 0 && *wire != wire_size) {
            let detail = format!("its name says RFC822.SIZE {wire}, and its row {wire_size}");
            self.note(FindingKind::Size, Some(uid), Some(name.clone()), detail);
        }
        let Some(state) = self.state.get(&uid).filter(|state| state.flags & flag_bits::BEHIND == 0) else { return };
        let visible = state.flags & !(flag_bits::IN_NEW | flag_bits::NAMED);
        if !self.keywords.shows(&name, MessageFlags(visible)) {
            let detail = "its name shows other flags than the table has".to_owned();
            self.note(FindingKind::Flags, Some(uid), Some(name), detail);
        }
    }

    /// The file of a message was not listed: delivery has yet to make it, or a copy is still in `tmp/`.
    fn check_missing(
        &mut self,
        message: &FixedMessage,
        reader: Option<&MaildirReader>,
        directory: &str,
        undelivered: &HashSet<(u64, String)>,
    ) {
        let name = self.names.get(&message.uid).map(|name| String::from_utf8_lossy(name).into_owned());
        let is_awaited = match &name {
            None => undelivered.contains(&(message.lsn, directory.to_owned())),
            Some(name) => reader.is_some_and(|reader| reader.has_tmp(name).unwrap_or(false)),
        };
        if !is_awaited {
            let file = name.or_else(|| self.key((message.lsn, message.target), None));
            self.note(FindingKind::Missing, Some(message.uid), file, "its file is not there".to_owned());
        }
    }
}

/// A name in `new/` or `cur/`.
struct ListedFile {
    subdir: Subdir,
    name: String,
}

impl ListedFile {
    fn all(reader: &MaildirReader) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for subdir in [Subdir::New, Subdir::Cur] {
            reader.for_each_name(subdir, |found| {
                if found.is_file != Some(false) && !key_of_name(found.name).is_empty() {
                    all.push(Self { subdir, name: found.name.to_owned() });
                }
            })?;
        }
        Ok(all)
    }
}
