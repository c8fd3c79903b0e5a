//! An active Maildir, on blocking threads: looks for changes, and opens messages.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use posthaste_maildir::tree::FileFacts;
use posthaste_maildir::{MailboxPath, MaildirReader, Subdir};
use tokio::sync::{RwLock, watch};
use tokio::time::Instant;

use super::change_queue::ChangeQueue;
use super::file::{MailFile, find_again};
use super::file_work::FileTurns;
use super::gone_dirs::gone_name;
use super::hot_dirs::DirEvents;
use super::keywords::FIRST_BIT;
use super::layout::MESSAGE_BYTES_MAX;
use super::locks::lock;
use super::looks::{Looked, Looks};
use super::owner::Owner;
use super::read_turns::ReadTurns;
use super::shared::Shared;
use super::state::{MailboxState, Messages};
use super::takeover::{Begin, Takeover};
use super::told::{Oddities, Told, first};
use super::uid_lists::UidListState;
use crate::error::MailstoreError;
use crate::name::{MailboxName, SpecialUse};
use crate::row::{Uid, UniqueIds};

/// Attempts to change the letter table while another program has locked it.
const LOCK_TRIES: usize = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

pub(super) struct MailboxCore {
    pub shared: Arc<Shared>,
    pub owner: Arc<Owner>,
    pub id: u32,
    /// True once entries use the id.
    pub is_spent: AtomicBool,
    /// True after a takeover failed that had already used the id.
    pub is_broken: AtomicBool,
    pub name: Mutex<MailboxName>,
    /// Path of the directory; another program may change its encoding of the name.
    pub path: Mutex<MailboxPath>,
    /// Permits to read messages.
    pub reading: ReadTurns,
    /// Permits to copy from and to the mailbox.
    pub files: FileTurns,
    /// 0 until the first look.
    pub uid_validity: AtomicU32,
    pub recent_from: AtomicU32,
    pub is_recent_known: AtomicBool,
    /// `None` until it is read from the ledger. Never locked during blocking calls.
    pub state: Mutex<Option<MailboxState>>,
    pub looks: Mutex<Looks>,
    /// Events in its directories, while they are watched.
    pub dir_events: Arc<DirEvents>,
    pub looked: watch::Sender<Looked>,
    /// UIDs whose file has different content.
    pub suspects: Mutex<HashSet<u32>>,
    /// Sizes of messages on disk and on the wire that differ from the recorded ones, by UID.
    pub sizes: Mutex<BTreeMap<u32, (u64, u64)>>,
    pub told: Told,
    /// Locked while flags change, messages are removed or files are renamed, until the change is durable. Listings lock
    /// it, too, so that they show no name from before a rename. Lock order: the lower mailbox id first.
    pub changing: Mutex<()>,
    pub changes: ChangeQueue,
    /// True while a task writes flags into file names.
    pub is_writing_names: AtomicBool,
    /// True after a failed sync of file names: until the next opening none counts as durable.
    pub has_lost_names: AtomicBool,
    /// True if the state was read from the ledger and the files were not listed since.
    pub is_unlisted: AtomicBool,
    /// True if the counters did not match the messages: a row is damaged.
    pub is_miscounted: AtomicBool,
    /// Held while a message is added, and exclusively by RENAME and DELETE.
    pub adding: Arc<RwLock<()>>,
    pub is_deleted: AtomicBool,
    /// `None` until a POP3 session asks. They are made only at the takeover.
    pub unique_ids: Mutex<Option<Arc<UniqueIds>>>,
    pub uid_list: Mutex<UidListState>,
}

impl std::fmt::Debug for MailboxCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MaildirMailbox").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for MailboxCore {
    fn drop(&mut self) {
        self.shared.hot_dirs.forget(self.id);
        self.shared.ledger.unfollow(self.id);
    }
}

impl MailboxCore {
    pub fn is_inbox(&self) -> bool {
        lock(&self.name).is_inbox()
    }

    pub fn reader(&self) -> io::Result<MaildirReader> {
        loop {
            let path = lock(&self.path).clone();
            match self.shared.root.reader(&path) {
                // Renamed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound && *lock(&self.path) != path => {}
                opened => return opened,
            }
        }
    }

    /// The time of the next look for an idle session.
    pub fn next_look(&self) -> Instant {
        let events = *self.dir_events.borrow();
        lock(&self.looks).next(events)
    }

    /// Creates the mailbox if the ledger lacks it. Without a special use it gets that of its name, if free. `begin`: see
    /// [`Takeover::run`].
    pub fn make(
        &self,
        reader: Option<&MaildirReader>,
        odd: &mut Oddities,
        special_use: Option<SpecialUse>,
        begin: Begin<'_>,
    ) -> Result<(), MailstoreError> {
        let directory = lock(&self.path).to_string();
        let name = &lock(&self.name).clone();
        let (ledger, owner) = (&*self.shared.ledger, &*self.owner);
        let special_use = special_use.or_else(|| self.shared.usual_folders(&self.owner.path).special_use(name));
        let takeover = Takeover { ledger, owner, id: self.id, name, directory: &directory, special_use };
        takeover.run(reader, &self.is_spent, odd, begin).inspect_err(|error| {
            self.is_broken.store(self.is_spent.load(Ordering::Relaxed), Ordering::Relaxed);
            if first(&self.told.not_taken) {
                let error = error.to_string();
                tracing::error!(mailbox = directory, error, "this Maildir cannot be served; retrying at each look");
            }
        })?;
        self.shared.note_account(owner);
        Ok(())
    }

    /// Applies published entries and notifies sessions. False: read the mailbox from the ledger again.
    pub fn catch_up(&self) -> bool {
        let mut guard = lock(&self.state);
        let Some(state) = &mut *guard else { return false };
        if !state.catch_up(&self.shared.ledger, self.id) {
            *guard = None;
            return false;
        }
        self.show(state);
        true
    }

    /// The UID from which on messages are `\Recent`, once known.
    pub fn known_recent_from(&self) -> Option<u32> {
        self.is_recent_known.load(Ordering::Relaxed).then(|| self.recent_from.load(Ordering::Relaxed))
    }

    /// Sets the UID from which on messages are `\Recent`. The first call counts: sessions have taken some since.
    pub fn found_recent(&self, from: u32) {
        if !self.is_recent_known.swap(true, Ordering::Relaxed) {
            self.recent_from.store(from, Ordering::Relaxed);
        }
    }

    /// Publishes the state to sessions. Its lock is held, so that they see states in order.
    pub fn show(&self, state: &MailboxState) {
        self.looked.send_if_modified(|looked| {
            let is_same = looked.messages.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, &state.now));
            looked.messages = Some(Arc::clone(&state.now));
            !is_same
        });
    }

    pub fn now(&self) -> Option<Arc<Messages>> {
        lock(&self.state).as_ref().map(|state| Arc::clone(&state.now))
    }

    pub fn is_pending(&self, lsn: u64) -> bool {
        (self.shared.is_pending)(lsn)
    }

    pub fn failed(&self, error: &io::Error) -> MailstoreError {
        let mailbox = lock(&self.path).to_string();
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.told.no_permission(&mailbox);
            return MailstoreError::NoPermission;
        }
        tracing::warn!(mailbox, error = error.to_string(), "cannot read a mailbox");
        MailstoreError::Unavailable(error.to_string())
    }

    /// The bit of a keyword with a letter in file names, assigned now if necessary. `None` without a free letter, or if
    /// the letter table cannot be changed. Blocks.
    pub fn letter_of(&self, keyword: &str) -> Option<u8> {
        let path = lock(&self.path).clone();
        let maildir = self.shared.root.existing_mailbox(&path).ok()?;
        for _ in 0..LOCK_TRIES {
            match maildir.keyword_flag(keyword, SystemTime::now()) {
                Ok(flag) => return flag.letters().next().map(|letter| FIRST_BIT + (letter as u8 - b'a')),
                // Another program has it locked for a moment.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOCK_PAUSE),
                Err(_) => return None,
            }
        }
        None
    }

    /// Opens the Maildir for reading messages.
    pub fn reader_of_mail(&self) -> Result<MaildirReader, MailstoreError> {
        self.reader().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MailstoreError::Gone,
            _ => self.failed(&error),
        })
    }

    /// Opens the file with the UID's content, and returns its size. Blocks.
    pub fn open(&self, uid: u32, file: &MailFile) -> Result<(File, u64), MailstoreError> {
        self.open_by(&self.reader_of_mail()?, uid, file)
    }

    /// Like [`open`](Self::open), for one of many messages.
    pub fn open_by(&self, reader: &MaildirReader, uid: u32, file: &MailFile) -> Result<(File, u64), MailstoreError> {
        let opened = match self.open_in(reader, file.subdir, &file.name)? {
            Some(opened) => Some(opened),
            // Expunged, and some session has not been told.
            None if self.now().is_some_and(|now| Uid::new(uid).is_some_and(|uid| now.find(uid).is_none())) => {
                return self.open_gone(uid, file);
            }
            // Renamed since: its key is the same.
            None => {
                let renamed = self.now().and_then(|now| Some(Arc::clone(&now.find(Uid::new(uid)?)?.file)));
                if let Some(renamed) = renamed.filter(|renamed| renamed.name != file.name)
                    && let Some(opened) = self.open_in(reader, renamed.subdir, &renamed.name)?
                {
                    return self.opened(uid, file, opened);
                }
                let name = find_again(reader, file).map_err(|error| self.failed(&error))?;
                name.map_or(Ok(None), |(subdir, name)| self.open_in(reader, subdir, &name))?
            }
        };
        self.opened(uid, file, opened.ok_or(MailstoreError::Gone)?)
    }

    /// Verifies that the file is that of the message.
    fn opened(
        &self,
        uid: u32,
        file: &MailFile,
        (opened, facts): (File, FileFacts),
    ) -> Result<(File, u64), MailstoreError> {
        if !file.is(&facts) {
            lock(&self.suspects).insert(uid);
            return Err(MailstoreError::Gone);
        }
        file.saw(facts);
        if facts.size > MESSAGE_BYTES_MAX {
            return Err(MailstoreError::Damaged(format!("a file of {} octets", facts.size)));
        }
        Ok((opened, facts.size))
    }

    /// Opens the file of a message that has left the mailbox.
    fn open_gone(&self, uid: u32, file: &MailFile) -> Result<(File, u64), MailstoreError> {
        let path = lock(&self.path).clone();
        let dir = self.shared.root.gone_dir(&path).map_err(|_| MailstoreError::Gone)?;
        let opened = dir.open(&gone_name(self.id, uid)).map_err(|error| self.failed(&error))?;
        let opened = opened.ok_or(MailstoreError::Gone)?;
        let size = opened.metadata().map_err(|error| MailstoreError::Damaged(error.to_string()))?.len();
        if size > MESSAGE_BYTES_MAX || file.disk_size().is_some_and(|known| known != size) {
            return Err(MailstoreError::Gone);
        }
        Ok((opened, size))
    }

    fn open_in(
        &self,
        reader: &MaildirReader,
        subdir: Subdir,
        name: &str,
    ) -> Result<Option<(File, FileFacts)>, MailstoreError> {
        reader.open(subdir, name).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                self.told.no_permission(&format!("{}/{}/{name}", lock(&self.path), subdir.as_str()));
                MailstoreError::NoPermission
            }
            _ => MailstoreError::Damaged(error.to_string()),
        })
    }
}
