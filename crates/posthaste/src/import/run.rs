//! The import: messages are added in batches, each recorded before and after.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use aws_lc_rs::digest::{Context, SHA256};
use indicatif::ProgressBar;
use posthaste_control::{AddedMail, MailAnswer, MailCommand, MailDone, MailPiece, MailRow};
use posthaste_maildir::is_keyword;
use posthaste_mailstore::FileForm;
use posthaste_message::mbox::MboxReader;

use super::journal::{Batch, Journal, Key};
use super::mbox_digest::MboxDigest;
use super::moved_files::MovedFiles;
use super::source::{LeftOut, ReadFile, Source, SourceFile, SourceFolder, Text, date_of, open_mbox, since_1970};
use crate::mail_session::MailSession;
use crate::progress::progress_bar;
use crate::queue::AnyError;

/// Messages of the first batch, so that a short import begins soon.
const BATCH_MESSAGES_FIRST: usize = 64;
/// Ratio of a batch to its predecessor, in messages.
const BATCH_GROWTH: usize = 4;
/// Maximum messages of a batch: each batch costs five syncs of the disk, one after the other.
const BATCH_MESSAGES: usize = 4000;
/// Octets of short messages at which a batch is full.
const BATCH_BYTES: usize = 8 << 20;
/// Pieces read ahead: together about as much as the largest batch.
const PIECES_AHEAD: usize = 64;
/// Parts of a refused batch, each added separately: this finds the bad message with few syncs and few repetitions.
const PARTS: usize = 8;
/// Longer messages are read again when sent, instead of being kept in memory.
const MEMORY_BYTES_MAX: u64 = 256 << 10;

/// Counts of an import.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Added now.
    pub added: u64,
    /// Messages that an earlier run has added.
    pub there: u64,
    /// Could not be imported.
    pub left_out: u64,
    /// Files that were removed.
    pub removed: u64,
}

/// An import in progress.
pub struct Importer<'a> {
    session: MailSession,
    journal: Journal,
    /// `None` means INBOX, with folders beside it.
    mailbox: Option<&'a str>,
    moves: Option<MovedFiles>,
    left_out: LeftOut,
    counts: Counts,
    bar: ProgressBar,
    open: Option<(String, MailDone)>,
    batch: Vec<Prepared<'a>>,
    /// Messages of a full batch.
    batch_max: usize,
    /// Octets in memory.
    batch_bytes: usize,
}

/// The position of a message in the source.
enum Place<'a> {
    File(&'a SourceFile),
    Mbox { path: &'a Path, offset: u64 },
}

/// A message after its first reading.
struct Prepared<'a> {
    place: Place<'a>,
    key: Key,
    sha256: String,
    mail: AddedMail,
    /// Octets of the message, if it is short.
    octets: Option<Vec<u8>>,
    /// File of the message, if the mailbox may take it unchanged.
    read: Option<ReadFile>,
}

/// Facts from reading a message.
struct Octets {
    sha256: String,
    bytes: u64,
    short: Option<Vec<u8>>,
    /// The time of its arrival, else the date in its header.
    date: Option<u64>,
    read: Option<ReadFile>,
}

impl Octets {
    /// `next` appends octets, and returns false at the end.
    fn read(mut next: impl FnMut(&mut Vec<u8>) -> io::Result<bool>) -> io::Result<Self> {
        let mut digest = Context::new(&SHA256);
        let mut bytes = 0;
        let mut kept = Vec::new();
        let mut piece = Vec::new();
        loop {
            piece.clear();
            let more = next(&mut piece)?;
            digest.update(&piece);
            bytes += piece.len() as u64;
            if (kept.len() as u64) <= MEMORY_BYTES_MAX {
                kept.extend_from_slice(&piece);
            }
            if !more {
                break;
            }
        }
        let date = date_of(&kept);
        let short = (bytes <= MEMORY_BYTES_MAX).then_some(kept);
        Ok(Self { sha256: hex(digest.finish().as_ref()), bytes, short, date, read: None })
    }
}

/// Files with their read content.
type FilesRead<'a> = Vec<(&'a SourceFile, io::Result<Octets>)>;

/// Reads files ahead until the receiver is dropped. A piece has at most as many messages as the first batch, so that
/// the first batch need not wait for later files.
fn read_files<'a>(files: &'a [SourceFile], send: &SyncSender<FilesRead<'a>>) {
    let mut some = Vec::new();
    let mut bytes = 0;
    for file in files {
        let read = file.open().and_then(|mut text| {
            let octets = Octets::read(|out| text.piece(out))?;
            Ok(Octets { date: text.date.or(octets.date), read: text.read, ..octets })
        });
        bytes += read.as_ref().ok().and_then(|octets| octets.short.as_ref()).map_or(0, Vec::len);
        some.push((file, read));
        if some.len() == BATCH_MESSAGES_FIRST || bytes >= BATCH_BYTES / PIECES_AHEAD {
            bytes = 0;
            if send.send(std::mem::take(&mut some)).is_err() {
                return;
            }
        }
    }
    let _ = send.send(some);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<'a> Importer<'a> {
    pub fn new(
        session: MailSession,
        journal: Journal,
        mailbox: Option<&'a str>,
        moves: Option<MovedFiles>,
        left_out: LeftOut,
    ) -> Self {
        let counts = Counts::default();
        let bar = progress_bar();
        bar.set_message("importing");
        let batch = Vec::new();
        let batch_max = BATCH_MESSAGES_FIRST;
        Self { session, journal, mailbox, moves, left_out, counts, bar, open: None, batch, batch_max, batch_bytes: 0 }
    }

    /// Imports everything.
    ///
    /// # Errors
    /// The import must stop. Messages imported so far are recorded. Those of the last batch that the server has not
    /// answered for are in doubt, and after a lost connection all of it.
    pub fn run(&mut self, source: &'a Source) -> Result<(), AnyError> {
        self.settle_doubt()?;
        match source {
            Source::Folders(folders) => {
                self.bar.set_length(folders.iter().map(|folder| folder.files.len() as u64).sum());
                folders.iter().try_for_each(|folder| self.folder(folder))
            }
            Source::Mbox(path) => self.mbox(path),
        }
    }

    /// Ends the session.
    ///
    /// # Errors
    /// The mailboxes opened by this process could not be closed.
    pub fn end(mut self) -> Result<Counts, AnyError> {
        self.bar.finish_and_clear();
        self.counts.left_out = self.left_out.count;
        self.session.end()?;
        Ok(self.counts)
    }

    /// After an interrupted run, determines from the mailbox which messages of the last batch it has.
    fn settle_doubt(&mut self) -> Result<(), AnyError> {
        let Some(batch) = self.journal.in_doubt.clone() else { return Ok(()) };
        let opened = self.open(&batch.mailbox)?;
        let mut found: HashMap<String, usize> = HashMap::new();
        if opened.is_some_and(|opened| opened.uid_validity == batch.uid_validity) {
            self.session.say(&MailCommand::Rows { from: batch.from, digests: true })?;
            loop {
                match self.session.next::<MailRow>()? {
                    Ok(row) => row.sha256.into_iter().for_each(|sha256| *found.entry(sha256).or_default() += 1),
                    Err(MailAnswer::Done(_)) => break,
                    Err(MailAnswer::Refused(why) | MailAnswer::Error(why)) => return Err(why.into()),
                }
            }
        }
        let is_there = |(key, sha256): &(String, String)| {
            let left = found.get_mut(sha256).filter(|left| **left > 0)?;
            *left -= 1;
            Key::parse(key)
        };
        let added: Vec<Key> = batch.messages.iter().filter_map(is_there).collect();
        self.journal.end(&added)?;
        Ok(self.journal.sync()?)
    }

    /// Opens or creates a mailbox. `None` if its name is invalid, which is reported.
    fn open(&mut self, mailbox: &str) -> Result<Option<MailDone>, AnyError> {
        let command = MailCommand::Open { mailbox: mailbox.to_owned(), make: true };
        match self.session.ask(&command)? {
            MailAnswer::Done(done) => {
                if self.moves.is_some() {
                    let folder = self.folder_of_mailbox()?;
                    self.moves.iter_mut().for_each(|moves| moves.open(folder.clone()));
                }
                self.open = Some((mailbox.to_owned(), done));
                Ok(Some(done))
            }
            MailAnswer::Refused(why) => {
                self.open = None;
                self.left_out.tell(Path::new(mailbox), &why);
                Ok(None)
            }
            MailAnswer::Error(why) => Err(format!("{mailbox}: {why}").into()),
        }
    }

    /// The directory of the open mailbox.
    fn folder_of_mailbox(&mut self) -> Result<Option<String>, AnyError> {
        self.session.say(&MailCommand::Folder)?;
        let mut folder = None;
        loop {
            match self.session.next::<String>()? {
                Ok(found) => folder = Some(found),
                Err(MailAnswer::Done(_)) => return Ok(folder),
                Err(MailAnswer::Refused(_) | MailAnswer::Error(_)) => return Ok(None),
            }
        }
    }

    fn mailbox_of(&self, levels: &str) -> String {
        match (self.mailbox, levels) {
            (None, "") => "INBOX".to_owned(),
            (None, levels) => levels.to_owned(),
            (Some(mailbox), "") => mailbox.to_owned(),
            (Some(mailbox), levels) => format!("{mailbox}/{levels}"),
        }
    }

    fn folder(&mut self, folder: &'a SourceFolder) -> Result<(), AnyError> {
        let count = folder.files.len() as u64;
        if self.open(&self.mailbox_of(&folder.levels))?.is_none() {
            self.left_out.count += count.saturating_sub(1);
            self.bar.inc(count);
            return Ok(());
        }
        thread::scope(|scope| {
            let (send, read) = sync_channel(PIECES_AHEAD);
            scope.spawn(move || read_files(&folder.files, &send));
            // After an error it is dropped, and the reading ends.
            for (file, read) in read.into_iter().flatten() {
                self.bar.inc(1);
                match read {
                    Ok(octets) => {
                        let key = Key::new(&[folder.levels.as_bytes(), &file.key()], &octets.sha256);
                        let date = octets.date;
                        self.take(Place::File(file), key, octets, file.flags(), date)?;
                    }
                    Err(error) => self.left_out.tell(&file.path(), &error),
                }
            }
            self.flush()
        })
    }

    fn mbox(&mut self, path: &'a Path) -> Result<(), AnyError> {
        let at = |error: io::Error| format!("{}: {error}", path.display());
        if self.open(&self.mailbox_of(""))?.is_none() {
            return Ok(());
        }
        self.bar.set_length(std::fs::metadata(path).map_err(at)?.len());
        let mut reader = open_mbox(path, 0).map_err(at)?;
        // Equal messages are told apart by their number: offsets change when one before them is removed.
        let mut seen: HashMap<Key, u64> = HashMap::new();
        while let Some(message) = reader.next_message().map_err(at)? {
            self.bar.set_position(message.offset);
            let (octets, known) = read_mbox(&mut reader).map_err(at)?;
            let fields = reader.fields();
            if fields.is_internal {
                continue;
            }
            let number = seen.entry(Key::new(&[], &known)).or_default();
            *number += 1;
            let key = Key::new(&[b"mbox", &number.to_be_bytes()], &known);
            let date = message.date.map(|date| since_1970(date.unix_secs())).or(octets.date);
            let place = Place::Mbox { path, offset: message.offset };
            self.take(place, key, octets, fields.flags(), date)?;
        }
        self.flush()
    }

    fn take(
        &mut self,
        place: Place<'a>,
        key: Key,
        octets: Octets,
        flags: Vec<String>,
        date: Option<u64>,
    ) -> Result<(), AnyError> {
        let uid_validity = self.open.as_ref().map_or(0, |(_, opened)| opened.uid_validity);
        if self.journal.has(&key, uid_validity) {
            self.counts.there += 1;
            return self.remove(&place);
        }
        let Octets { sha256, bytes, short, read, .. } = octets;
        let flags = flags.into_iter().filter(|flag| flag.starts_with('\\') || is_keyword(flag)).collect();
        let mail = AddedMail { flags, date, bytes };
        self.batch_bytes += short.as_ref().map_or(0, Vec::len);
        self.batch.push(Prepared { place, key, sha256, mail, octets: short, read });
        if self.batch.len() == self.batch_max || self.batch_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Adds the messages of the batch.
    fn flush(&mut self) -> Result<(), AnyError> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        self.batch_max = (self.batch_max * BATCH_GROWTH).min(BATCH_MESSAGES);
        let Some((mailbox, opened)) = self.open.clone().filter(|_| !batch.is_empty()) else { return Ok(()) };
        let messages = batch.iter().map(|message| (message.key.to_string(), message.sha256.clone())).collect();
        let uid_validity = opened.uid_validity;
        let from = opened.uid_next;
        self.journal.begin(Batch { mailbox, uid_validity, from, messages })?;
        let mut added = Vec::with_capacity(batch.len());
        let stopped = self.add(&batch, &mut added)?;
        self.counts.added += added.len() as u64;
        match stopped {
            Some(why) => {
                self.stop(&batch, &added)?;
                Err(why.into())
            }
            None => self.added(&added),
        }
    }

    /// Records a batch that stopped. Messages without an answer stay in doubt: the last ones may be durable though their
    /// answer is an error. Others are known: the user may move or remove them before the next run.
    fn stop(&mut self, batch: &[Prepared<'_>], added: &[&Prepared<'_>]) -> Result<(), AnyError> {
        let Some((mailbox, opened)) = self.open.clone() else { return Ok(()) };
        let keys: Vec<Key> = added.iter().map(|message| message.key).collect();
        let known: HashSet<Key> = keys.iter().copied().collect();
        let rest = batch.iter().filter(|message| !known.contains(&message.key));
        let messages = rest.map(|message| (message.key.to_string(), message.sha256.clone())).collect();
        // Above the UIDs of the added ones.
        let from = opened.uid_next;
        Ok(self.journal.stop(&keys, Batch { mailbox, uid_validity: opened.uid_validity, from, messages })?)
    }

    /// Adds messages, in parts if the server refuses them together. Returns the reason for stopping.
    fn add<'b>(
        &mut self,
        some: &'b [Prepared<'a>],
        added: &mut Vec<&'b Prepared<'a>>,
    ) -> Result<Option<String>, AnyError> {
        match self.add_all(some)? {
            MailAnswer::Done(done) => {
                if let Some((_, opened)) = &mut self.open {
                    opened.uid_next = opened.uid_next.max(done.uid.saturating_add(u32::try_from(some.len())?));
                }
                added.extend(some);
                Ok(None)
            }
            // One of them was refused, or there is no room for all: none was added.
            MailAnswer::Refused(_) | MailAnswer::Error(_) if some.len() > 1 => {
                for part in some.chunks(some.len().div_ceil(PARTS)) {
                    if let Some(why) = self.add(part, added)? {
                        return Ok(Some(why));
                    }
                }
                Ok(None)
            }
            MailAnswer::Refused(why) => {
                some.iter().for_each(|message| self.left_out.tell(&message.place.path(), &why));
                Ok(None)
            }
            MailAnswer::Error(why) => Ok(Some(why)),
        }
    }

    /// Records that the messages are on stable storage.
    fn added(&mut self, added: &[&Prepared<'_>]) -> Result<(), AnyError> {
        let keys: Vec<Key> = added.iter().map(|message| message.key).collect();
        self.journal.end(&keys)?;
        if self.moves.is_some() {
            self.journal.sync()?;
            added.iter().try_for_each(|message| self.remove(&message.place))?;
        }
        Ok(())
    }

    /// Adds messages at once, with one disk sync: all or none. Reads the answers while sending: otherwise both sides
    /// would block if many answers filled the socket.
    fn add_all(&mut self, some: &[Prepared<'_>]) -> Result<MailAnswer, AnyError> {
        let mut is_whole = true;
        for (at, message) in some.iter().enumerate() {
            let mail = message.mail.clone();
            if at == 0 {
                self.session.say(&MailCommand::Add(mail))?;
            } else {
                self.session.say(&MailPiece::Next(mail))?;
            }
            is_whole = self.send(message)?;
            if !is_whole {
                break;
            }
        }
        // The server adds nothing before the end of the last message.
        let recorded = self.journal.begun();
        self.session.say(if is_whole && recorded.is_ok() { &MailPiece::End } else { &MailPiece::Drop })?;
        let answer = self.session.answer()?;
        self.moves.iter_mut().for_each(MovedFiles::answered);
        recorded?;
        Ok(answer)
    }

    /// Sends the octets of a message, or its file name. False if it differs from the one first read.
    fn send(&mut self, message: &Prepared<'_>) -> Result<bool, AnyError> {
        if let (Some(moves), Place::File(file), Some(read)) = (&mut self.moves, &message.place, &message.read)
            && let Some(name) = moves.link(file, read)
        {
            self.session.say(&MailPiece::File(name))?;
            return Ok(true);
        }
        if let Some(octets) = &message.octets {
            self.session.send(octets)?;
            return Ok(true);
        }
        let mut digest = Context::new(&SHA256);
        let mut piece = Vec::new();
        let mut read = message.place.text();
        while let Ok(text) = &mut read {
            piece.clear();
            match text.piece(&mut piece) {
                Ok(more) => {
                    digest.update(&piece);
                    self.session.send(&piece)?;
                    if !more {
                        break;
                    }
                }
                Err(error) => read = Err(error),
            }
        }
        // Another program may have changed it meanwhile: then the next run finds another message.
        Ok(read.is_ok() && hex(digest.finish().as_ref()) == message.sha256)
    }

    fn remove(&mut self, place: &Place<'_>) -> Result<(), AnyError> {
        if let Place::File(file) = place
            && self.moves.is_some()
        {
            match file.remove() {
                Ok(()) => self.counts.removed += 1,
                Err(error) => self.left_out.tell(&file.path(), &error),
            }
        }
        Ok(())
    }
}

impl Place<'_> {
    fn text(&self) -> io::Result<Text> {
        match self {
            Self::File(file) => file.open(),
            Self::Mbox { path, offset } => Text::of_mbox(path, *offset),
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::File(file) => file.path(),
            Self::Mbox { path, offset } => PathBuf::from(format!("{}: message at {offset}", path.display())),
        }
    }
}

/// The octets of a message, and the digest that identifies it.
fn read_mbox(reader: &mut MboxReader<io::BufReader<File>>) -> io::Result<(Octets, String)> {
    let mut line = Vec::new();
    let mut after_cr = false;
    let mut known = MboxDigest::default();
    let octets = Octets::read(|out| {
        line.clear();
        let more = reader.piece(&mut line)?;
        let begun = out.len();
        FileForm::Lines { replaces_nul: true }.convert(&line, &mut after_cr, out);
        known.push(&out[begun..]);
        Ok(more)
    })?;
    Ok((octets, hex(&known.end())))
}
