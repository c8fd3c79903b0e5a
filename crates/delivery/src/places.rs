//! Messages in their mailboxes: put there, looked for, mended, written anew.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use posthaste_maildir::{Found, Host, MailRoot, MailboxPath, Maildir, UniqueName};

use crate::cache::OpenMaildirs;
use crate::content::Content;
use crate::record::Stored;
use crate::seams::{Seams, Step};
use crate::spool::Spool;
use crate::workers::Letter;

/// Where messages go: the mail root, its open mailboxes, and the spool that large bodies come from.
pub(crate) struct Places {
    root: MailRoot,
    root_path: PathBuf,
    spool: Arc<Spool>,
    seams: Seams,
    open: OpenMaildirs<Arc<str>>,
}

impl Places {
    pub fn new(root: MailRoot, root_path: PathBuf, spool: Arc<Spool>, seams: Seams) -> Self {
        Places { root, root_path, spool, seams, open: OpenMaildirs::new() }
    }

    pub fn now(&self) -> Instant {
        self.seams.now()
    }

    /// Makes all mail durable that was delivered before this call. An error is final: see [`MailRoot::sync`].
    pub fn sync(&self) -> io::Result<()> {
        self.seams.pass(Step::Sync)?;
        self.root.sync()
    }

    pub fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// The mailbox, made if there is none.
    pub fn maildir(&self, mailbox: &str) -> io::Result<Arc<Maildir>> {
        self.seams.pass(Step::Mailbox(mailbox))?;
        let ownership = self.root.ownership_of(mailbox);
        let is_current = |open: &Maildir| open.ownership() == ownership;
        self.open.get(mailbox, &self.root_path.join(mailbox), is_current, || {
            let path = MailboxPath::parse(mailbox);
            let path = path.map_err(|error| io::Error::new(io::ErrorKind::InvalidFilename, error))?;
            self.root.mailbox(&path)
        })
    }

    /// Writes one message and makes it visible.
    pub fn deliver(&self, maildir: &Maildir, stored: &Stored, id: u64, target: usize) -> io::Result<()> {
        let mut content = self.content(stored, target)?;
        let name = name_of(stored, id, target, &content);
        let mut draft = maildir.draft(name.as_str()).or_else(|error| match error.kind() {
            // An attempt that a crash cut short: replay knows that nothing of it was made visible.
            io::ErrorKind::AlreadyExists => {
                maildir.remove_tmp(name.as_str())?;
                maildir.draft(name.as_str())
            }
            _ => Err(error),
        })?;
        content.write_to(&mut draft)?;
        match draft.publish() {
            // Visible already: an earlier attempt published it and failed to say so.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            published => published?,
        }
        match maildir.facts().syncfs_trusted {
            true => Ok(()),
            false => sync_found(maildir, name.as_str()),
        }
    }

    /// Looks for many messages in a mailbox; the answer is by key.
    pub fn find(&self, mailbox: &str, keys: &[String]) -> io::Result<Looked> {
        let maildir = self.maildir(mailbox)?;
        look(&maildir, keys)
    }

    /// Sees that one message is in its mailbox whole, exactly once. True if anything had to be written.
    fn restore(&self, stored: &Stored, id: u64, target: usize) -> io::Result<bool> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        let key = [key_of(stored, id, stored.numbers[target])];
        let found = look(&maildir, &key)?;
        self.mend(&maildir, stored, id, target, found.get(&key[0])?)
    }

    /// The same for one that was looked for already.
    pub fn restore_found(&self, stored: &Stored, id: u64, target: usize, found: Option<&Found>) -> io::Result<bool> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        match self.mend(&maildir, stored, id, target, found) {
            // Its owner has moved it since.
            Err(error) if error.kind() == io::ErrorKind::NotFound && found.is_some() => {
                self.restore(stored, id, target)
            }
            mended => mended,
        }
    }

    fn mend(
        &self,
        maildir: &Maildir,
        stored: &Stored,
        id: u64,
        target: usize,
        found: Option<&Found>,
    ) -> io::Result<bool> {
        let mut content = self.content(stored, target)?;
        let name = name_of(stored, id, target, &content);
        let Some(found) = found else {
            // What lies in tmp/ under this name was never visible.
            let _ = maildir.remove_tmp(name.as_str());
            return self.deliver(maildir, stored, id, target).map(|()| true);
        };
        // Where each file is fsynced by itself, what reads well may be what an fsync has failed to write.
        if maildir.facts().syncfs_trusted && content.is_in(maildir.open_message(found.dir, &found.name)?)? {
            return Ok(false);
        }
        rewrite(maildir, found, content, false)?;
        Ok(true)
    }

    /// Writes a message that was found to a new file: for when a sync has failed. The pages of the old one may have been dropped while
    /// they still read well. The next [`Places::sync`] makes it durable, or this does where that is not trusted.
    pub fn renew(&self, stored: &Stored, id: u64, target: usize, found: &Found) -> io::Result<()> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        let content = self.content(stored, target)?;
        match rewrite(&maildir, found, content, false) {
            // Its owner has moved it since, or taken it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.renew_synced(stored, id, target),
            renewed => renewed,
        }
    }

    /// The same for one that is to be looked for, and makes it durable by itself. Nothing if somebody has taken it away since it was delivered.
    pub fn renew_synced(&self, stored: &Stored, id: u64, target: usize) -> io::Result<()> {
        let maildir = self.maildir(&stored.message.targets[target].mailbox)?;
        let content = self.content(stored, target)?;
        match maildir.find(name_of(stored, id, target, &content).as_str())? {
            Some(found) => rewrite(&maildir, &found, content, true),
            None => stay_away(&maildir),
        }
    }

    fn content(&self, stored: &Stored, target: usize) -> io::Result<Content> {
        let message = &stored.message;
        Content::new(&message.targets[target], &message.body, message.line_ends, &self.spool)
    }
}

/// What was found of many messages in a mailbox.
pub(crate) struct Looked {
    by_key: HashMap<String, Found>,
    /// How it went to make durable that the others are not there.
    gone: io::Result<()>,
}

impl Default for Looked {
    fn default() -> Self {
        Looked { by_key: HashMap::new(), gone: Ok(()) }
    }
}

impl Looked {
    /// Where it is; `None` if it has gone for good: a power cut does not bring it back beside what is delivered in its place.
    ///
    /// # Errors
    /// It is not there, but a power cut may bring it back.
    pub fn get(&self, key: &str) -> io::Result<Option<&Found>> {
        match (self.by_key.get(key), &self.gone) {
            (None, Err(error)) => Err(copy(error)),
            (found, _) => Ok(found),
        }
    }
}

/// Looks for many messages, with one scan.
pub(crate) fn look(maildir: &Maildir, keys: &[String]) -> io::Result<Looked> {
    let by_key = maildir.find_many(keys.iter().map(String::as_str))?;
    let gone = if by_key.len() < keys.len() { maildir.sync_moves() } else { Ok(()) };
    Ok(Looked { by_key, gone })
}

/// Puts a new file in the place of a message that was found, durable by itself if that is asked for or nothing else would make it so.
fn rewrite(maildir: &Maildir, found: &Found, mut content: Content, by_itself: bool) -> io::Result<()> {
    maildir.replace(found, &[io::IoSlice::new(&content.bytes()?)])?;
    if maildir.facts().syncfs_trusted && !by_itself {
        return Ok(());
    }
    match maildir.sync_message(found.dir, &found.name) {
        // Its owner has just moved it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => sync_found(maildir, &found.name),
        synced => synced,
    }
}

/// The name of one target's file: it follows from the record, so that replay finds what was delivered before.
fn name_of(stored: &Stored, id: u64, target: usize, content: &Content) -> UniqueName {
    let unique = Letter::unique(id, stored.nonce, stored.numbers[target]);
    UniqueName::new(stored.secs, &unique, &Host::new(&stored.host), content.disk_size, content.wire_size)
}

/// What of that name stays the same wherever its reader moves it.
pub(crate) fn key_of(stored: &Stored, id: u64, number: u16) -> String {
    let unique = Letter::unique(id, stored.nonce, number);
    UniqueName::new(stored.secs, &unique, &Host::new(&stored.host), 0, 0).key().to_owned()
}

/// Makes a message durable by itself, wherever its reader has moved it.
fn sync_found(maildir: &Maildir, name: &str) -> io::Result<()> {
    match maildir.find(name)? {
        Some(found) => maildir.sync_message(found.dir, &found.name),
        None => stay_away(maildir),
    }
}

/// Somebody has taken a message away that was not durable yet: a power cut must not bring part of it back, for nobody will mend it.
fn stay_away(maildir: &Maildir) -> io::Result<()> {
    if maildir.facts().syncfs_trusted { Ok(()) } else { maildir.sync_names() }
}

/// An error that several messages share.
pub(crate) fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

pub(crate) fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer")
}
