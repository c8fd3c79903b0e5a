//! The rows of one mailbox: consistency, and comparison with its files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{MailRoot, MailboxPath, MaildirReader, Subdir, UniqueName};

use super::finding::{Finding, FindingKind};
use super::row_reader::RowReader;
use crate::flags::MessageFlags;
use crate::maildirs::file::own_part;
use crate::maildirs::keywords::MailboxKeywords;
use crate::table::{
    FixedMessage, LeavingRow, MailboxHead, MetaError, StateMessage, TableName, fixed_row, flag_bits, key_of, second_of,
    state_row, stored_head,
};

/// The rows of one mailbox.
pub(super) struct MailboxRows {
    account: String,
    pub name: String,
    pub head: MailboxHead,
    pub fixed: Vec<FixedMessage>,
    state: HashMap<u32, StateMessage>,
    names: BTreeMap<u32, Vec<u8>>,
    keywords: MailboxKeywords,
    leaving: Vec<LeavingRow>,
    openings: Vec<(u64, u32)>,
    findings: Vec<Finding>,
}

impl MailboxRows {
    /// `None` without a head.
    pub fn read(rows: &mut RowReader<'_>, id: u32, openings: &[(u64, u32)]) -> Result<Option<Self>, MetaError> {
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

    /// Checks that UIDs are unique and ascending, that each message has both kinds of rows, and that the counters
    /// match.
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
        let bytes = fixed.iter().map(|message| message.wire_size.counted()).sum();
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

    /// The key of a file, or the known part of its name.
    fn key(&self, (lsn, target): (u64, u16), name: Option<&[u8]>) -> Option<String> {
        match name {
            Some(name) => Some(key_of_name(std::str::from_utf8(name).ok()?).to_owned()),
            None => Some(format!("J{lsn:x}R{:08x}T{target}", self.nonce_of(lsn)?)),
        }
    }

    /// Findings in the rows, and in their comparison with the files.
    pub fn verified(mut self, root: &MailRoot, undelivered: &HashSet<(u64, String)>) -> Vec<Finding> {
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
        let (wire_size, line_feeds) = (message.wire_size.known(), u64::from(message.line_feeds));
        // A name of another program can say anything.
        let named = UniqueName::parse(&name).filter(|_| own_part(&name).is_some());
        let (disk, wire) = named.map_or((None, None), |named| (named.disk_size(), named.wire_size()));
        let is_named = self.names.contains_key(&uid);
        let by_row = wire_size.filter(|_| is_named).map(|wire_size| wire_size.saturating_sub(line_feeds));
        if let Some(expected) = disk.into_iter().chain(by_row).find(|expected| *expected != size) {
            let detail = format!("it has {size} octets instead of {expected}");
            self.note(FindingKind::Size, Some(uid), Some(name.clone()), detail);
        } else if let Some((wire, wire_size)) = wire.zip(wire_size).filter(|(wire, wire_size)| wire != wire_size) {
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

    /// Checks a message without a listed file: delivery has not made it yet, or a copy is still in `tmp/`.
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
