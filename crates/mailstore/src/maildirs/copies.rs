//! COPY, MOVE and MULTIAPPEND: link or write into `tmp/` of the other mailbox, make one batch durable, rename into `new/` or `cur/`.
//!
//! A power cut after the batch leaves files in `tmp/`: the next listing finds them there by the names in the entry.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use posthaste_maildir::tree::FileFacts;
use posthaste_maildir::{Maildir, MaildirReader, Subdir, UniqueName};
use posthaste_spool::MessageReader;

use super::answers::refusal;
use super::awaited::{in_spool, unreadable};
use super::body::wire_len;
use super::core::MailboxCore;
use super::file::{MailFile, name_with_letters};
use super::file_work::FileWork;
use super::locks::lock;
use super::names_out::begin_writing_names;
use super::opening::load;
use super::scratch::{NewKeywords, SYSTEM_BITS};
use super::seconds::now_secs;
use super::state::Messages;
use super::told::Oddities;
use crate::entry::{BodyKind, BodyOrigin, BodyPlace, GoneReason, MailEntry, MessageFacts, NewMessage, WireSize};
use crate::error::MailstoreError;
use crate::flags::MessageFlags;
use crate::message_list::Message;
use crate::row::{Uid, UidValidity, ranges};
use crate::store::CopiedMessages;
use crate::table::flag_bits;

/// Octets copied at once between file systems.
const COPY_BYTES: usize = 256 << 10;
/// Copies with open files at a time. A journal that has written the first fsync has written the links of all earlier
/// ones.
const SYNCED_AT_ONCE: usize = 128;

/// A COPY or MOVE, as its session sees it.
pub(super) type CopyWork = FileWork<Option<CopiedMessages>>;

/// A copy in `tmp/`.
pub(super) struct CopiedFile {
    /// UID of the copied message; 0 without one.
    pub uid: u32,
    pub name: UniqueName,
    pub facts: FileFacts,
    /// Flags, with the keyword bits of the target mailbox.
    pub flags: MessageFlags,
    pub internal_date: u32,
    /// Batch and number of the body; zeros without a batch.
    pub email_id: (u64, u16),
    /// True if the file's name states its wire form.
    pub is_own: bool,
}

/// Copies or moves messages to another mailbox; messages without files are skipped. Blocks.
///
/// No mailbox is locked while files of the other one are read or made. So a hanging directory delays this copy, but no
/// change of the other mailbox.
///
/// # Errors
/// See [`MailstoreError`]; nothing is copied.
pub(super) fn copy(
    (from, to): (&Arc<MailboxCore>, &Arc<MailboxCore>),
    uids: &[Uid],
    moves: bool,
    work: &CopyWork,
) -> Result<Option<CopiedMessages>, MailstoreError> {
    let copying = Copying::open(from, to)?;
    let now = from.now().ok_or(MailstoreError::NoMailbox)?;
    let messages: Vec<&Message<Arc<MailFile>>> = uids.iter().filter_map(|uid| now.find(*uid)).collect();
    if messages.is_empty() {
        return Ok(None);
    }
    if to.shared.copy_names.are_too_many(messages.len()) {
        return Err(MailstoreError::Limit);
    }
    if !moves {
        let bytes = messages.iter().filter_map(|message| message.file.wire_size()).sum();
        to.shared.quotas.check(&to.shared.ledger, &to.owner, (bytes, messages.len() as u64))?;
    }
    copying.name_keywords(&now, &messages)?;
    let mut copies = Vec::with_capacity(messages.len());
    for messages in messages.chunks(SYNCED_AT_ONCE) {
        let made = copying.make_some(messages, &mut copies, work);
        made.inspect_err(|_| copying.discard(&copies))?;
    }
    if copies.is_empty() {
        return Ok(None);
    }
    copying.sync().inspect_err(|_| copying.discard(&copies))?;
    copying.finish(copies, moves, work)
}

pub(super) struct Copying<'a> {
    from: &'a Arc<MailboxCore>,
    to: &'a Arc<MailboxCore>,
    /// Reader of the source; `None` if all messages are still in the spool.
    reader: Option<MaildirReader>,
    maildir: Maildir,
}

impl<'a> Copying<'a> {
    /// Loads both mailboxes from the ledger if necessary, each in its own change queue.
    pub fn open(from: &'a Arc<MailboxCore>, to: &'a Arc<MailboxCore>) -> Result<Self, MailstoreError> {
        let reader = from.reader().ok();
        {
            let _one = lock(&from.changing);
            load(from, reader.as_ref(), &mut Oddities::default())?;
        }
        let maildir = open_maildir(to)?;
        let _one = lock(&to.changing);
        load(to, to.reader().ok().as_ref(), &mut Oddities::default())?;
        Ok(Self { from, to, reader, maildir })
    }

    /// Begins to add messages that are not copies. `changing` is locked.
    pub fn begin(to: &'a Arc<MailboxCore>) -> Result<Self, MailstoreError> {
        let maildir = open_maildir(to)?;
        load(to, to.reader().ok().as_ref(), &mut Oddities::default())?;
        Ok(Self { from: to, to, reader: None, maildir })
    }

    /// Assigns bits in the target mailbox to the messages' keywords. Durable.
    fn name_keywords(&self, now: &Messages, messages: &[&Message<Arc<MailFile>>]) -> Result<(), MailstoreError> {
        let flags = messages.iter().fold(MessageFlags::NONE, |all, message| all.with(message.flags));
        let names: Vec<&str> = now.keywords.names(flags.without(MessageFlags(SYSTEM_BITS))).collect();
        let _one = lock(&self.to.changing);
        let entries = self.keywords_named(&names)?.entries(self.to.id);
        if !entries.is_empty() {
            self.to.shared.ledger.append(&entries).map_err(|error| refusal(&error))?;
            self.to.catch_up();
        }
        Ok(())
    }

    /// Makes the copies durable as messages, with the present flags of their originals. Vanished messages are skipped.
    pub fn finish(
        &self,
        mut copies: Vec<CopiedFile>,
        moves: bool,
        work: &CopyWork,
    ) -> Result<Option<CopiedMessages>, MailstoreError> {
        let (from, to) = (self.from, self.to);
        let is_same = from.id == to.id;
        // Two moves in opposite directions take them in one order.
        let (first, second) = if from.id <= to.id { (from, to) } else { (to, from) };
        let first = lock(&first.changing);
        let second = (!is_same).then(|| lock(&second.changing));
        let keywords = self.settle(&mut copies).inspect_err(|_| self.discard(&copies))?;
        work.begin().inspect_err(|_| self.discard(&copies))?;
        let first_uid = if copies.is_empty() { 0 } else { self.append(&copies, &keywords, moves)? };
        // The files of the other one are not touched any more.
        let _of_other = if from.id < to.id {
            drop(first);
            second
        } else {
            drop(second);
            Some(first)
        };
        if copies.is_empty() {
            return Ok(None);
        }
        let validity = Uid::new(to.uid_validity.load(Ordering::Relaxed)).ok_or(MailstoreError::NoMailbox)?;
        let copied = Some(CopiedMessages {
            uid_validity: UidValidity(validity.0),
            from: copies.iter().filter_map(|copy| Uid::new(copy.uid)).collect(),
            to: (first_uid..).take(copies.len()).filter_map(Uid::new).collect(),
        });
        work.is_durable(copied.clone());
        self.place(&copies, &keywords, first_uid);
        begin_writing_names(to);
        if moves && !is_same {
            begin_writing_names(from);
        }
        Ok(copied)
    }

    /// Present flags of the originals, as bits of the target mailbox. `changing` of both mailboxes is locked, and no
    /// file is accessed.
    fn settle(&self, copies: &mut Vec<CopiedFile>) -> Result<NewKeywords, MailstoreError> {
        load(self.from, None, &mut Oddities::default())?;
        load(self.to, None, &mut Oddities::default())?;
        let now = self.from.now().ok_or(MailstoreError::NoMailbox)?;
        let found = |copy: &CopiedFile| now.find(Uid::new(copy.uid)?);
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(copies).into_iter().partition(|copy| found(copy).is_some());
        *copies = kept;
        self.discard(&gone);
        let flags = copies.iter().filter_map(found).fold(MessageFlags::NONE, |all, message| all.with(message.flags));
        let names: Vec<&str> = now.keywords.names(flags.without(MessageFlags(SYSTEM_BITS))).collect();
        let known = lock(&self.to.state).as_ref().map(|state| state.keywords.clone());
        let known = known.ok_or_else(|| MailstoreError::Unavailable("not in memory".to_owned()))?;
        // One that has come since the others were named has no letter: letters are in a file.
        let keywords = NewKeywords::with(names.iter().copied(), known, |_| None);
        if !names.iter().all(|name| keywords.flag(name).is_some()) {
            return Err(MailstoreError::Limit);
        }
        for copy in copies.iter_mut() {
            let Some(message) = now.find(Uid::new(copy.uid).ok_or(MailstoreError::Limit)?) else { continue };
            let named = now.keywords.all().filter(|(flag, _)| message.flags.contains(*flag));
            let system = MessageFlags(message.flags.0 & SYSTEM_BITS);
            copy.flags = named.filter_map(|(_, name)| keywords.flag(name)).fold(system, MessageFlags::with);
        }
        Ok(keywords)
    }

    /// Keywords of the target mailbox, extended by these.
    pub fn keywords_named(&self, names: &[&str]) -> Result<NewKeywords, MailstoreError> {
        let known = lock(&self.to.state).as_ref().map(|state| state.keywords.clone());
        let known = known.ok_or_else(|| MailstoreError::Unavailable("not in memory".to_owned()))?;
        let keywords = NewKeywords::with(names.iter().copied(), known, |name| self.to.letter_of(name));
        if names.iter().all(|name| keywords.flag(name).is_some()) { Ok(keywords) } else { Err(MailstoreError::Limit) }
    }

    /// Makes copies in `tmp/`; their octets are durable, their names are not. After an error `copies` has the finished
    /// ones. Each message is progress: on another disk many large ones take minutes.
    pub fn make_some(
        &self,
        messages: &[&Message<Arc<MailFile>>],
        copies: &mut Vec<CopiedFile>,
        work: &CopyWork,
    ) -> Result<(), MailstoreError> {
        let mut files = Vec::with_capacity(messages.len());
        for message in messages {
            work.step()?;
            match self.make(message) {
                Ok((copy, file)) => {
                    copies.push(copy);
                    files.push(file);
                }
                // Its file was removed, as the next listing finds. A directory that is not there is another matter.
                Err(MailstoreError::Gone) if self.reader.is_some() => {
                    self.from.is_unlisted.store(true, Ordering::Relaxed);
                }
                Err(MailstoreError::Gone) => {
                    return Err(MailstoreError::Unavailable("the directory of the mailbox is missing".to_owned()));
                }
                Err(error) => return Err(error),
            }
        }
        // After all links of these: delivery has made a file's first name, and may not have synced its octets.
        files.iter().try_for_each(|file| {
            work.step()?;
            posthaste_fsops::fsync(file).map_err(|error| self.failed(error.into()))
        })
    }

    /// Makes a copy in `tmp/`. Not synced.
    fn make(&self, message: &Message<Arc<MailFile>>) -> Result<(CopiedFile, File), MailstoreError> {
        let (name, file, is_own) = match self.from.open(message.uid, &message.file) {
            Err(MailstoreError::Gone) if message.file.awaited().is_some() => {
                match in_spool(&self.from.shared.ledger, self.from.id, &message.file) {
                    Some(body) => self.of_spool(message, &body)?,
                    // Delivery has made the file since.
                    None => self.of_file(message, self.from.open(message.uid, &message.file)?)?,
                }
            }
            opened => self.of_file(message, opened?)?,
        };
        let facts = facts_of(&file).map_err(|error| self.failed(error))?;
        let (uid, internal_date, email_id) = (message.uid, message.internal_date, message.email_id);
        // They may change until the copy becomes a message.
        let flags = MessageFlags::NONE;
        Ok((CopiedFile { uid, name, facts, flags, internal_date, email_id, is_own }, file))
    }

    fn of_file(
        &self,
        message: &Message<Arc<MailFile>>,
        (opened, size): (File, u64),
    ) -> Result<(UniqueName, File, bool), MailstoreError> {
        let file = &message.file;
        let wire_size = match file.wire_size() {
            Some(size) => size,
            None => wire_len(&opened, size, file)?,
        };
        let is_own = file.is_own(size);
        let names = &self.to.shared.copy_names;
        let name = names.next(message.internal_date, message.email_id.0, is_own, (size, wire_size));
        let file = self.link(message, opened, name.as_str()).map_err(|error| self.failed(error))?;
        Ok((name, file, is_own))
    }

    /// Copies a message that is still in the spool: delivery has not made its file yet.
    fn of_spool(
        &self,
        message: &Message<Arc<MailFile>>,
        body: &MessageReader,
    ) -> Result<(UniqueName, File, bool), MailstoreError> {
        let size = message.file.wire_size().ok_or(MailstoreError::Gone)?;
        let names = &self.to.shared.copy_names;
        let name = names.next(message.internal_date, message.email_id.0, true, (size, size));
        let read = |from| body.piece(from, COPY_BYTES as u64).map_err(|error| io::Error::other(unreadable(&error)));
        let file = self.write(message, name.as_str(), read).map_err(|error| self.failed(error))?;
        Ok((name, file, true))
    }

    fn failed(&self, error: io::Error) -> MailstoreError {
        not_written(self.to, &error)
    }

    /// A second name of the file, or a copy of its octets if linking is impossible.
    fn link(&self, message: &Message<Arc<MailFile>>, opened: File, name: &str) -> io::Result<File> {
        let file = &message.file;
        let linked = match &self.reader {
            Some(reader) => self.maildir.link_tmp(reader, file.subdir, &file.name, name),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        if linked.is_ok() {
            return Ok(opened);
        }
        let read = |from| {
            let mut piece = vec![0; COPY_BYTES];
            let read = opened.read_at(&mut piece, from)?;
            piece.truncate(read);
            Ok(Bytes::from(piece))
        };
        self.write(message, name, read)
    }

    /// Writes the message into a new file.
    fn write(
        &self,
        message: &Message<Arc<MailFile>>,
        name: &str,
        read: impl Fn(u64) -> io::Result<Bytes>,
    ) -> io::Result<File> {
        let mut from = 0;
        write_tmp(&self.maildir, name, message.internal_date, || {
            let piece = read(from)?;
            from += piece.len() as u64;
            Ok(Some(piece).filter(|piece| !piece.is_empty()))
        })
    }

    /// Makes the names in `tmp/` durable.
    pub fn sync(&self) -> Result<(), MailstoreError> {
        self.maildir.sync_tmp().map_err(|error| self.failed(error))
    }

    /// Makes the batch durable, and returns the first UID. A refusal removes the files of the copies. After a failed
    /// sync of the spool they stay in `tmp/`: if the next opening finds the batch, a listing places them.
    pub fn append(&self, copies: &[CopiedFile], keywords: &NewKeywords, moves: bool) -> Result<u32, MailstoreError> {
        let (mut first, ledger) = (0, &self.to.shared.ledger);
        let count = u32::try_from(copies.len()).expect("an entry has room for fewer");
        let appended = ledger.append_uids(self.to.id, count, |first_uid| {
            first = first_uid;
            let mut entries = keywords.entries(self.to.id);
            let messages = copies.iter().map(CopiedFile::message).collect();
            entries.push(MailEntry::New { mailbox: self.to.id, first_uid, messages });
            if moves {
                let set = ranges(copies.iter().map(|copy| copy.uid));
                let (mailbox, reason, when) = (self.from.id, GoneReason::Moved, now_secs());
                entries.push(MailEntry::Gone { mailbox, set, reason, when });
            }
            entries
        });
        if let Err(error) = appended {
            if !error.is_in_doubt() {
                self.discard(copies);
            }
            return Err(refusal(&error));
        }
        self.to.catch_up();
        self.from.catch_up();
        Ok(first)
    }

    /// Moves the copies from `tmp/` to `cur/`. The next listing places those that stay in `tmp/`.
    pub fn place(&self, copies: &[CopiedFile], keywords: &NewKeywords, first_uid: u32) {
        let name_of =
            |copy: &CopiedFile| name_with_letters(copy.name.as_str(), Subdir::Cur, &keywords.letters_of(copy.flags));
        let names: Vec<Box<str>> = copies.iter().map(name_of).collect();
        let files: Vec<(&str, &str)> =
            copies.iter().map(|copy| copy.name.as_str()).zip(names.iter().map(|name| &**name)).collect();
        let outcomes = self.maildir.place_all(Subdir::Cur, &files);
        let mut placed = Vec::with_capacity(copies.len());
        for ((uid, copy), (name, outcome)) in (first_uid..).zip(copies).zip(names.into_iter().zip(outcomes)) {
            match outcome {
                Ok(()) => placed.push((uid, Arc::new(MailFile::new(Subdir::Cur, name, copy.facts.inode, copy.facts)))),
                Err(error) => self.to.told.no_rename(&name, &error),
            }
        }
        if let Some(state) = &mut *lock(&self.to.state) {
            state.set_files(placed);
            self.to.show(state);
        }
    }

    fn discard(&self, copies: &[CopiedFile]) {
        for copy in copies {
            // What stays is removed when it is old.
            let _ = self.maildir.remove_tmp(copy.name.as_str());
        }
    }
}

impl CopiedFile {
    fn message(&self) -> NewMessage {
        // A name of ours has both.
        let sizes = self.name.wire_size().zip(self.name.disk_size());
        let line_feeds = sizes.and_then(|(wire_size, disk_size)| u32::try_from(wire_size.checked_sub(disk_size)?).ok());
        let facts = MessageFacts {
            // Until it is placed it counts as in `new/`.
            flags: self.flags.0 | flag_bits::IN_NEW | flag_bits::BEHIND,
            internal_date: self.internal_date,
            save_date: now_secs(),
            wire_size: sizes.map_or(WireSize::UNKNOWN, |(wire_size, _)| WireSize::of(wire_size)),
            line_feeds: line_feeds.unwrap_or(0),
        };
        let name = Bytes::copy_from_slice(self.name.as_str().as_bytes());
        let place = BodyPlace::Copied(BodyOrigin { lsn: self.email_id.0, email_id: (0, 0), name });
        let kind = if self.is_own { BodyKind::Own } else { BodyKind::Foreign };
        NewMessage { facts, target: self.email_id.1, kind, place }
    }
}

/// Opens the Maildir for new files; creates that of an INBOX.
pub(super) fn open_maildir(to: &MailboxCore) -> Result<Maildir, MailstoreError> {
    let (root, path) = (&to.shared.root, lock(&to.path).clone());
    let maildir = match root.existing_mailbox(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && to.is_inbox() => root.mailbox(&path),
        opened => opened,
    };
    maildir.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MailstoreError::NoMailbox,
        _ => to.failed(&error),
    })
}

/// Writes a file into `tmp/` that was last modified at `secs`. Not synced.
pub(super) fn write_tmp(
    maildir: &Maildir,
    name: &str,
    secs: u32,
    mut next: impl FnMut() -> io::Result<Option<Bytes>>,
) -> io::Result<File> {
    let file = File::from(maildir.write_tmp_open(name, &[])?);
    while let Some(piece) = next()? {
        posthaste_fsops::write_all(&file, &piece)?;
    }
    file.set_modified(UNIX_EPOCH + Duration::from_secs(secs.into()))?;
    Ok(file)
}

/// The error for a file that cannot be made.
pub(super) fn not_written(to: &MailboxCore, error: &io::Error) -> MailstoreError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => MailstoreError::NoSpace,
        _ => to.failed(error),
    }
}

pub(super) fn facts_of(file: &File) -> io::Result<FileFacts> {
    let found = file.metadata()?;
    let mtime_ns = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
    Ok(FileFacts { inode: found.ino(), size: found.len(), mtime_ns })
}
