//! One Maildir at work: looks for changes, and reads messages.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_maildir::tree::FileFacts;
use posthaste_maildir::{MailboxPath, MaildirReader, Subdir};
use posthaste_spool::ReadError;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::awaited::{AwaitedBody, OpenBody, in_spool, unreadable};
use super::body::{FileBody, ended, header};
use super::file::{MailFile, find_again};
use super::looks::{Known, Looked, Looks};
use super::owner::Owner;
use super::scan::{Difference, Listing, Oddities, Settled};
use super::state::{LookedAt, MailboxState, Messages};
use super::takeover::Takeover;
use super::told::{Told, first};
use crate::error::MailstoreError;
use crate::ledger::LedgerError;
use crate::name::MailboxName;
use crate::row::{MailboxId, Uid, UidValidity};
use crate::snapshot::{Message, Source};
use crate::store::{Asked, MailBody};

/// How long a session that has seen the mailbox waits for a look: a slow disk is told of later.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);
/// RFC822.SIZE has 32 bits (RFC 3501 section 9, `number`). A longer file is no message.
pub(super) const MESSAGE_BYTES_MAX: u64 = u32::MAX as u64;
/// How often an idle session has the mailbox looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Rounds in which files are given other keys in one look.
const RENAMES_MAX: usize = 3;

#[derive(Debug, Clone)]
pub(super) struct MaildirMailbox(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    owner: Arc<Owner>,
    id: u32,
    /// Set once entries name the id.
    is_spent: AtomicBool,
    /// A takeover that had spent the id has failed.
    is_broken: AtomicBool,
    name: MailboxName,
    /// Another program can change how it writes the name.
    path: Mutex<MailboxPath>,
    /// 0 until the first look.
    uid_validity: AtomicU32,
    recent_from: AtomicU32,
    /// `None` until it is read from the ledger. Not held while anything blocks.
    state: Mutex<Option<MailboxState>>,
    looks: Mutex<Looks>,
    looked: watch::Sender<Looked>,
    /// UIDs whose file turned out to have another content.
    suspects: Mutex<HashSet<u32>>,
    told: Told,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MaildirMailbox").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.ledger.unfollow(self.id);
    }
}

impl MaildirMailbox {
    pub fn new(shared: Arc<Shared>, owner: Arc<Owner>, id: MailboxId, name: MailboxName, path: MailboxPath) -> Self {
        let looks =
            Looks { wanted: 0, begun: 0, is_running: false, last: Instant::now(), known: Some(Known::default()) };
        Self(Arc::new(Inner {
            shared,
            owner,
            id: id.0,
            is_spent: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            name,
            path: Mutex::new(path),
            uid_validity: AtomicU32::new(0),
            recent_from: AtomicU32::new(1),
            state: Mutex::default(),
            looks: Mutex::new(looks),
            looked: watch::Sender::new(Looked { number: 0, messages: None, error: None }),
            suspects: Mutex::default(),
            told: Told::default(),
        }))
    }

    pub fn path(&self) -> MailboxPath {
        lock(&self.0.path).clone()
    }

    pub fn set_path(&self, path: MailboxPath) {
        *lock(&self.0.path) = path;
    }

    /// Whether its directory is there. Blocks.
    pub fn is_there(&self) -> bool {
        self.0.name.is_inbox() || self.0.reader().is_ok()
    }

    /// Takes in what has been published, and tells sessions. False: the mailbox is to be read from the ledger.
    pub fn catch_up(&self) -> bool {
        self.0.catch_up()
    }

    /// True if its account alone has it, and no look is running.
    pub fn is_unused(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.0) == 1
    }

    /// Forgets its messages; the next look reads them from the ledger.
    pub fn unload(&self) {
        let mut state = lock(&self.0.state);
        *state = None;
        self.0.shared.ledger.unfollow(self.0.id);
        self.0.looked.send_modify(|looked| looked.messages = None);
    }

    /// True after a takeover that began and failed: the mailbox needs another id, and this one is of no more use.
    pub fn is_broken(&self) -> bool {
        self.0.is_broken.load(Ordering::Relaxed)
    }

    /// Makes it, if the ledger does not have it; true if it may be given UIDs then. Blocks.
    pub fn make(&self) -> bool {
        let mut odd = Oddities::default();
        let reader = match self.0.reader() {
            Ok(reader) => Some(reader),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.0.failed(&error);
                return false;
            }
        };
        let made = self.0.make(reader.as_ref(), &mut odd);
        self.0.told.tell(&lock(&self.0.path).to_string(), &odd);
        made.is_ok() && self.0.shared.ledger.pin(self.0.id).unwrap_or(false)
    }

    /// Asks for a look that begins after now, and gives its number.
    fn want_look(&self) -> u64 {
        let mut looks = lock(&self.0.looks);
        looks.wanted = looks.begun + 1;
        if !std::mem::replace(&mut looks.is_running, true) {
            tokio::spawn(look_as_wanted(Arc::clone(&self.0)));
        }
        looks.wanted
    }

    /// A look, however long it takes.
    #[cfg(test)]
    pub async fn look_patiently(&self) -> Result<Arc<Messages>, MailstoreError> {
        let mut looked = self.0.looked.subscribe();
        let wanted = self.want_look();
        let looked = looked.wait_for(|looked| looked.number >= wanted).await.unwrap().clone();
        looked.error.map_or_else(|| Ok(looked.messages.unwrap()), Err)
    }

    async fn look_now(&self) -> Result<Arc<Messages>, MailstoreError> {
        let mut looked = self.0.looked.subscribe();
        loop {
            let is_known = self.0.catch_up();
            let wanted = self.want_look();
            let wait = looked.wait_for(|looked| looked.number >= wanted);
            let error = match is_known {
                true => match timeout(LOOK_PATIENCE, wait).await {
                    Ok(looked) => looked.expect("the sender is in `self`").error.clone(),
                    Err(_) => None,
                },
                false => wait.await.expect("the sender is in `self`").error.clone(),
            };
            self.0.catch_up();
            if let Some(error) = error {
                return Err(error);
            }
            // Without messages it was unloaded just now.
            if let Some(messages) = looked.borrow().messages.clone() {
                return Ok(messages);
            }
        }
    }

    /// Runs `read` with the open file where it may block.
    fn with_file<T: Send + 'static>(
        &self,
        message: &Message<Arc<MailFile>>,
        read: impl FnOnce(File, u64, &MailFile) -> Result<T, MailstoreError> + Send + 'static,
    ) -> Asked<'static, T> {
        let (inner, uid, file) = (Arc::clone(&self.0), message.uid, Arc::clone(&message.file));
        Box::pin(async move {
            let work = move || {
                let (opened, size) = inner.open(uid, &file)?;
                read(opened, size, &file)
            };
            spawn_blocking(work).await.map_err(ended)?
        })
    }
}

/// Looks until nobody wants another look. It belongs to no session, so that one that ends takes nothing with it.
async fn look_as_wanted(inner: Arc<Inner>) {
    loop {
        let (number, known) = {
            let mut looks = lock(&inner.looks);
            if looks.begun >= looks.wanted {
                looks.is_running = false;
                return;
            }
            looks.begun += 1;
            (looks.begun, looks.known.take().unwrap_or_default())
        };
        let outcome = {
            let inner = Arc::clone(&inner);
            spawn_blocking(move || inner.look(known)).await.map_err(ended)
        };
        let (known, outcome) = match outcome {
            Ok((known, outcome)) => (Some(known), outcome),
            Err(error) => (None, Err(error)),
        };
        {
            let mut looks = lock(&inner.looks);
            (looks.known, looks.last) = (known, Instant::now());
        }
        inner.looked.send_modify(|looked| (looked.number, looked.error) = (number, outcome.err()));
        inner.shared.loaded.used(inner.id, inner.now().map_or(0, |now| now.messages.len()));
    }
}

impl Inner {
    fn reader(&self) -> io::Result<MaildirReader> {
        let path = lock(&self.path).clone();
        self.shared.root.reader(&path)
    }

    /// One look. Blocks.
    fn look(&self, mut known: Known) -> (Known, Result<(), MailstoreError>) {
        let mut odd = Oddities::default();
        let outcome = self.look_into(&mut known, &mut odd);
        self.told.tell(&lock(&self.path).to_string(), &odd);
        (known, outcome)
    }

    fn look_into(&self, known: &mut Known, odd: &mut Oddities) -> Result<(), MailstoreError> {
        let reader = match self.reader() {
            Ok(reader) => Some(reader),
            // An INBOX without a directory is empty until mail comes.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.name.is_inbox() => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MailstoreError::NoMailbox),
            Err(error) => return Err(self.failed(&error)),
        };
        self.check_alone(known, reader.as_ref())?;
        if !self.catch_up() {
            // Before the takeover the list may be mended.
            self.load(reader.as_ref(), odd).inspect_err(|_| known.uid_list = None)?;
            known.settled = None;
        }
        let Some(reader) = reader else {
            // One that has mail has not lost it with its mount. What is not delivered yet is no sign of one.
            let is_there =
                |message: &Message<Arc<MailFile>>| message.file.awaited().is_none_or(|(lsn, _)| !self.is_pending(lsn));
            let is_empty = self.now().is_none_or(|now| !now.messages.iter().any(is_there));
            return if is_empty { Ok(()) } else { Err(self.failed(&io::ErrorKind::NotFound.into())) };
        };
        let suspects = std::mem::take(&mut *lock(&self.suspects));
        for _ in 0..RENAMES_MAX {
            match self.scan(known, &reader, &suspects, odd) {
                Ok(Settled::LookAgain) => {}
                Ok(_) => break,
                Err(error) => {
                    lock(&self.suspects).extend(suspects);
                    return Err(self.failed(&error));
                }
            }
        }
        if !std::mem::replace(&mut known.was_listed, true) {
            let recent = |now: Arc<Messages>| {
                let recent = now.messages.iter().find(|message| message.file.is_new());
                recent.map_or(now.uid_next, |message| message.uid)
            };
            self.recent_from.store(self.now().map_or(1, recent), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Dovecot's list of UIDs changes only where another server runs.
    fn check_alone(&self, known: &mut Known, reader: Option<&MaildirReader>) -> Result<(), MailstoreError> {
        let Some(reader) = reader else { return Ok(()) };
        let stamp = reader.uid_list_stamp().map_err(|error| self.failed(&error))?;
        if *known.uid_list.get_or_insert(stamp) == stamp {
            return Ok(());
        }
        if first(&self.told.other_server) {
            let mailbox = lock(&self.path).to_string();
            tracing::error!(mailbox, "another IMAP server gives UIDs in this Maildir: stop it, then restart this one");
        }
        Err(MailstoreError::Unavailable("another server keeps this mailbox".to_owned()))
    }

    /// Reads the mailbox from the ledger, and makes it if there is none.
    fn load(&self, reader: Option<&MaildirReader>, odd: &mut Oddities) -> Result<(), MailstoreError> {
        self.make(reader, odd)?;
        let ledger = &self.shared.ledger;
        let stored = ledger.follow(self.id).map_err(unavailable)?;
        let stored = stored.ok_or_else(|| MailstoreError::Unavailable("the mailbox was not made".to_owned()))?;
        let loaded = MailboxState::of(stored, ledger);
        self.uid_validity.store(loaded.uid_validity.get(), Ordering::Relaxed);
        *lock(&self.state) = Some(loaded);
        self.catch_up();
        Ok(())
    }

    /// Makes the mailbox, if the ledger does not have it.
    fn make(&self, reader: Option<&MaildirReader>, odd: &mut Oddities) -> Result<(), MailstoreError> {
        let directory = lock(&self.path).to_string();
        let (ledger, owner, name) = (&*self.shared.ledger, &*self.owner, &self.name);
        let takeover = Takeover { ledger, owner, id: self.id, name, directory: &directory };
        takeover.run(reader, &self.is_spent, odd).inspect_err(|error| {
            self.is_broken.store(self.is_spent.load(Ordering::Relaxed), Ordering::Relaxed);
            if first(&self.told.not_taken) {
                let error = error.to_string();
                tracing::error!(mailbox = directory, error, "this Maildir cannot be served; tried again at each look");
            }
        })?;
        self.shared.note_account(owner);
        Ok(())
    }

    /// Takes in what has been published, and tells sessions. False: the mailbox is to be read from the ledger.
    fn catch_up(&self) -> bool {
        let mut guard = lock(&self.state);
        let Some(state) = &mut *guard else { return false };
        if !state.catch_up(&self.shared.ledger, self.id) {
            *guard = None;
            return false;
        }
        self.show(state);
        true
    }

    /// Shows the state to sessions. Its lock is held, so that they see states in their order.
    fn show(&self, state: &MailboxState) {
        self.looked.send_if_modified(|looked| {
            let is_same = looked.messages.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, &state.now));
            looked.messages = Some(Arc::clone(&state.now));
            !is_same
        });
    }

    fn now(&self) -> Option<Arc<Messages>> {
        lock(&self.state).as_ref().map(|state| Arc::clone(&state.now))
    }

    fn is_pending(&self, lsn: u64) -> bool {
        (self.shared.is_pending)(lsn)
    }

    /// Looks for changes by other programs.
    fn scan(
        &self,
        known: &mut Known,
        reader: &MaildirReader,
        suspects: &HashSet<u32>,
        odd: &mut Oddities,
    ) -> io::Result<Settled> {
        let keywords = reader.keywords().inspect_err(|error| odd.keywords = Some(error.to_string())).ok();
        let has_other =
            |state: &MailboxState| keywords.as_ref().is_some_and(|file| !state.keywords.missing(file).is_empty());
        let has_other_keywords = lock(&self.state).as_ref().is_some_and(has_other);
        if known.settled == Some(reader.stamps()?) && suspects.is_empty() && !has_other_keywords {
            return Ok(Settled::Yes);
        }
        let mut listing = Listing::new(reader, odd)?;
        // A file of ours is made after its message was published: so the UID of each that was listed is there now.
        if !self.catch_up() {
            return Ok(Settled::No);
        }
        let Some(now) = self.now() else { return Ok(Settled::No) };
        // Asked before `is_quiet`: a file that delivery makes after this has changed the directory.
        let is_pending = |lsn| self.is_pending(lsn);
        let listed = std::mem::take(&mut listing.listed);
        let difference = Difference::new(&now, reader, listed, suspects, &is_pending, odd);
        let is_quiet = listing.is_quiet(reader)?;
        let plan = {
            let mut guard = lock(&self.state);
            let Some(state) = &mut *guard else { return Ok(Settled::No) };
            let plan = difference.plan(state, self.id, (is_quiet, keywords.as_ref()));
            self.show(state);
            plan
        };
        let looked_at = |files: LookedAt| {
            lock(&self.state).iter_mut().for_each(|state| state.looked_at = files.clone());
        };
        let catch_up = || {
            let _ = self.catch_up();
        };
        let settled = plan.carry_out(reader, (&self.shared.ledger, self.id), (&looked_at, &catch_up), odd);
        looked_at(LookedAt::default());
        known.settled = (settled == Settled::Yes).then_some(listing.stamps);
        Ok(settled)
    }

    fn failed(&self, error: &io::Error) -> MailstoreError {
        let mailbox = lock(&self.path).to_string();
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.told.no_permission(&mailbox);
            return MailstoreError::NoPermission;
        }
        tracing::warn!(mailbox, error = error.to_string(), "cannot read a mailbox");
        MailstoreError::Unavailable(error.to_string())
    }

    /// Opens the file with the content that the UID belongs to, and gives its size. Blocks.
    fn open(&self, uid: u32, file: &MailFile) -> Result<(File, u64), MailstoreError> {
        let reader = self.reader().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MailstoreError::Gone,
            _ => self.failed(&error),
        })?;
        let opened = match self.open_in(&reader, file.subdir, &file.name)? {
            Some(opened) => Some(opened),
            // Renamed since: its key is the same.
            None => {
                let name = find_again(&reader, file).map_err(|error| self.failed(&error))?;
                name.map_or(Ok(None), |(subdir, name)| self.open_in(&reader, subdir, &name))?
            }
        };
        let Some((opened, facts)) = opened else { return Err(MailstoreError::Gone) };
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

fn unavailable(error: LedgerError) -> MailstoreError {
    MailstoreError::Unavailable(error.to_string())
}

impl Source for MaildirMailbox {
    type File = Arc<MailFile>;

    fn id(&self) -> MailboxId {
        MailboxId(self.0.id)
    }

    fn uid_validity(&self) -> UidValidity {
        let validity = Uid::new(self.0.uid_validity.load(Ordering::Relaxed)).or(Uid::new(1));
        UidValidity(validity.expect("it is not 0").0)
    }

    fn recent_from(&self) -> &AtomicU32 {
        &self.0.recent_from
    }

    fn look(&self) -> Asked<'_, Arc<Messages>> {
        Box::pin(self.look_now())
    }

    fn changed<'a>(&'a self, known: &'a Arc<Messages>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let mut looked = self.0.looked.subscribe();
            let is_other = |looked: &Looked| {
                looked.error == Some(MailstoreError::NoMailbox)
                    || looked.messages.as_ref().is_some_and(|now| !Arc::ptr_eq(now, known))
            };
            loop {
                let last = lock(&self.0.looks).last;
                tokio::select! {
                    // It cannot fail: the sender is in `self`.
                    _ = looked.wait_for(is_other) => return,
                    () = sleep_until(last + POLL_EVERY) => {}
                }
                // Another session's look may have come first.
                if lock(&self.0.looks).last.elapsed() >= POLL_EVERY {
                    let wanted = self.want_look();
                    let _ = looked.wait_for(|looked| looked.number >= wanted).await;
                }
            }
        })
    }

    fn known_size(&self, message: &Message<Self::File>) -> Option<u64> {
        message.file.wire_size()
    }

    fn size<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, u64> {
        match message.file.wire_size() {
            Some(size) => Box::pin(std::future::ready(Ok(size))),
            None => self.with_file(message, |file, size, message| Ok(FileBody::new(file, size, message)?.len())),
        }
    }

    fn header<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, Bytes> {
        let (inner, uid, file) = (Arc::clone(&self.0), message.uid, Arc::clone(&message.file));
        Box::pin(async move {
            let work = move || match in_spool(&inner.shared.ledger, inner.id, &file).map(|body| body.header()) {
                Some(Ok(octets)) => Ok(octets),
                Some(Err(error)) if !matches!(error, ReadError::NotFound(_)) => Err(unreadable(&error)),
                _ => inner.open(uid, &file).and_then(|(opened, size)| header(&opened, size, &file)),
            };
            spawn_blocking(work).await.map_err(ended)?
        })
    }

    fn body<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, Arc<dyn MailBody>> {
        let (inner, uid, file) = (Arc::clone(&self.0), message.uid, Arc::clone(&message.file));
        Box::pin(async move {
            let work = move || {
                let in_spool = in_spool(&inner.shared.ledger, inner.id, &file);
                let in_file = move || -> Result<Arc<dyn MailBody>, MailstoreError> {
                    let (opened, size) = inner.open(uid, &file)?;
                    Ok(Arc::new(FileBody::new(opened, size, &file)?))
                };
                match in_spool {
                    Some(in_spool) => {
                        let (in_spool, in_file) = (Arc::new(in_spool), Arc::new(in_file) as Arc<OpenBody>);
                        Ok(Arc::new(AwaitedBody { in_spool, in_file }) as Arc<dyn MailBody>)
                    }
                    None => in_file(),
                }
            };
            spawn_blocking(work).await.map_err(ended)?
        })
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder makes one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
