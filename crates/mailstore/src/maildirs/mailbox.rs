//! One Maildir at work: looks for changes, and reads messages.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_maildir::tree::{FileFacts, Stamp, key_of_name};
use posthaste_maildir::{MailRoot, MailboxPath, MaildirReader, Subdir};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::body::{FileBody, ended, header};
use super::file::MailFile;
use super::scan::{Difference, Listing, Oddities, Settled};
use super::state::{LookedAt, MailboxState, Messages};
use super::takeover::Takeover;
use crate::error::MailstoreError;
use crate::ledger::MailLedger;
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

/// The account of a mailbox.
#[derive(Debug)]
pub(super) struct Owner {
    pub id: u32,
    /// Of its INBOX.
    pub path: MailboxPath,
    is_durable: AtomicBool,
    /// Held while a mailbox of it is made.
    pub making: Mutex<()>,
}

impl Owner {
    pub fn new(id: u32, path: MailboxPath, is_durable: bool) -> Self {
        Self { id, path, is_durable: AtomicBool::new(is_durable), making: Mutex::default() }
    }

    /// True once the ledger has it.
    pub fn is_durable(&self) -> bool {
        self.is_durable.load(Ordering::Relaxed)
    }

    pub fn set_durable(&self) {
        self.is_durable.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone)]
pub(super) struct MaildirMailbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: Arc<MailRoot>,
    ledger: Arc<MailLedger>,
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
    looks: Mutex<Looks>,
    looked: watch::Sender<Looked>,
    /// UIDs whose file turned out to have another content.
    suspects: Mutex<HashSet<u32>>,
    told: Told,
}

/// Which look is wanted, and which has begun. Sessions that ask while one runs share the next.
#[derive(Debug)]
struct Looks {
    wanted: u64,
    begun: u64,
    is_running: bool,
    last: Instant,
    /// `None` while a look has it.
    known: Option<Known>,
}

/// Memory of looks. Only a look changes it, so what it computes holds until it is durable: others only add messages meanwhile.
#[derive(Debug, Default)]
struct Known {
    /// `None` until the mailbox is read from the ledger.
    state: Option<MailboxState>,
    was_listed: bool,
    /// Of Dovecot's list of UIDs at the first look. If it changes, another server runs here.
    uid_list: Option<Option<Stamp>>,
}

/// The outcome of the last look.
#[derive(Debug, Clone)]
struct Looked {
    number: u64,
    /// Of the last look that went well.
    messages: Option<Arc<Messages>>,
    error: Option<MailstoreError>,
}

/// What the operator has been told of this mailbox.
#[derive(Debug, Default)]
struct Told {
    no_permission: AtomicBool,
    no_file: AtomicBool,
    not_utf8: AtomicBool,
    keywords: AtomicBool,
    out_of_uids: AtomicBool,
    not_durable: AtomicBool,
    same_key: AtomicBool,
    not_taken: AtomicBool,
    other_server: AtomicBool,
}

impl MaildirMailbox {
    pub fn new(
        (root, ledger): (Arc<MailRoot>, Arc<MailLedger>),
        owner: Arc<Owner>,
        id: MailboxId,
        name: MailboxName,
        path: MailboxPath,
    ) -> Self {
        let looks =
            Looks { wanted: 0, begun: 0, is_running: false, last: Instant::now(), known: Some(Known::default()) };
        Self(Arc::new(Inner {
            root,
            ledger,
            owner,
            id: id.0,
            is_spent: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            name,
            path: Mutex::new(path),
            uid_validity: AtomicU32::new(0),
            recent_from: AtomicU32::new(1),
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

    /// True after a takeover that began and failed: the mailbox needs another id, and this one is of no more use.
    pub fn is_broken(&self) -> bool {
        self.0.is_broken.load(Ordering::Relaxed)
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
        let known = looked.borrow().messages.clone();
        let wanted = self.want_look();
        let wait = looked.wait_for(|looked| looked.number >= wanted);
        let Looked { messages, error, .. } = match known {
            Some(known) => match timeout(LOOK_PATIENCE, wait).await {
                Ok(looked) => looked.expect("the sender is in `self`").clone(),
                Err(_) => return Ok(known),
            },
            None => wait.await.expect("the sender is in `self`").clone(),
        };
        match error {
            Some(error) => Err(error),
            None => Ok(messages.expect("a look went well")),
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
            // One that a bug took with it is read from the ledger again.
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
        let state = known.as_ref().and_then(|known| known.state.as_ref());
        let messages = state.filter(|_| outcome.is_ok()).map(|state| Arc::clone(&state.now));
        {
            let mut looks = lock(&inner.looks);
            (looks.known, looks.last) = (known, Instant::now());
        }
        inner.looked.send_modify(|looked| {
            let messages = messages.or(looked.messages.take());
            *looked = Looked { number, messages, error: outcome.err() };
        });
    }
}

impl Inner {
    fn reader(&self) -> io::Result<MaildirReader> {
        let path = lock(&self.path).clone();
        self.root.reader(&path)
    }

    /// One look. Blocks.
    fn look(&self, mut known: Known) -> (Known, Result<(), MailstoreError>) {
        let mut odd = Oddities::default();
        let outcome = self.look_into(&mut known, &mut odd);
        self.tell(&odd);
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
        // Before the takeover the list may be mended.
        self.load(&mut known.state, reader.as_ref(), odd).inspect_err(|_| known.uid_list = None)?;
        let state = known.state.as_mut().expect("it was loaded");
        let Some(reader) = reader else {
            // One that has mail has not lost it with its mount.
            let is_empty = state.now.messages.is_empty();
            return if is_empty { Ok(()) } else { Err(self.failed(&io::ErrorKind::NotFound.into())) };
        };
        let suspects = std::mem::take(&mut *lock(&self.suspects));
        for _ in 0..RENAMES_MAX {
            match self.scan(state, &reader, &suspects, odd) {
                Ok(Settled::LookAgain) => {}
                Ok(_) => break,
                Err(error) => {
                    lock(&self.suspects).extend(suspects);
                    return Err(self.failed(&error));
                }
            }
        }
        if !std::mem::replace(&mut known.was_listed, true) {
            let recent = state.now.messages.iter().find(|message| message.file.is_new());
            self.recent_from.store(recent.map_or(state.now.uid_next, |message| message.uid), Ordering::Relaxed);
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

    /// Reads the mailbox from the ledger if need be, and makes it if there is none.
    fn load(
        &self,
        state: &mut Option<MailboxState>,
        reader: Option<&MaildirReader>,
        odd: &mut Oddities,
    ) -> Result<(), MailstoreError> {
        let failed = |error: crate::ledger::LedgerError| MailstoreError::Unavailable(error.to_string());
        if let Some(state) = state
            && state.catch_up(&self.ledger, self.id, &LookedAt::default())
        {
            return Ok(());
        }
        let mut stored = self.ledger.follow(self.id).map_err(failed)?;
        if stored.is_none() {
            // What entries say of it is a part of the mailbox: a second attempt must not add to it.
            if self.is_spent.load(Ordering::Relaxed) {
                self.is_broken.store(true, Ordering::Relaxed);
                return Err(MailstoreError::Unavailable("taking over the mailbox failed".to_owned()));
            }
            let directory = lock(&self.path).to_string();
            let (ledger, owner, name) = (&*self.ledger, &*self.owner, &self.name);
            let takeover = Takeover { ledger, owner, id: self.id, name, directory: &directory };
            takeover.run(reader, &self.is_spent, odd).inspect_err(|error| {
                self.is_broken.store(self.is_spent.load(Ordering::Relaxed), Ordering::Relaxed);
                if first(&self.told.not_taken) {
                    let error = error.to_string();
                    tracing::error!(
                        mailbox = directory,
                        error,
                        "this Maildir cannot be served; tried again at each look"
                    );
                }
            })?;
            stored = self.ledger.follow(self.id).map_err(failed)?;
        }
        let stored = stored.ok_or_else(|| MailstoreError::Unavailable("the mailbox was not made".to_owned()))?;
        let loaded = MailboxState::of(stored);
        self.uid_validity.store(loaded.uid_validity.get(), Ordering::Relaxed);
        *state = Some(loaded);
        Ok(())
    }

    /// Looks for changes by other programs.
    fn scan(
        &self,
        state: &mut MailboxState,
        reader: &MaildirReader,
        suspects: &HashSet<u32>,
        odd: &mut Oddities,
    ) -> io::Result<Settled> {
        let keywords = reader.keywords().inspect_err(|error| odd.keywords = Some(error.to_string())).ok();
        let has_other_keywords = keywords.as_ref().is_some_and(|file| !state.keywords.missing(file).is_empty());
        if state.settled == Some(reader.stamps()?) && suspects.is_empty() && !has_other_keywords {
            return Ok(Settled::Yes);
        }
        let mut listing = Listing::new(reader, odd)?;
        // A file of ours is made after its message was published: so the UID of each that was listed is there now.
        if !state.catch_up(&self.ledger, self.id, &LookedAt::default()) {
            return Ok(Settled::No);
        }
        let listed = std::mem::take(&mut listing.listed);
        let difference = Difference::new(state, reader, listed, suspects, odd);
        let is_quiet = listing.is_quiet(reader)?;
        let settled = difference.settle(state, reader, (&self.ledger, self.id), (is_quiet, keywords.as_ref()), odd);
        state.settled = (settled == Settled::Yes).then_some(listing.stamps);
        Ok(settled)
    }

    fn failed(&self, error: &io::Error) -> MailstoreError {
        let mailbox = lock(&self.path).to_string();
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.tell_no_permission(&mailbox);
            return MailstoreError::NoPermission;
        }
        tracing::warn!(mailbox, error = error.to_string(), "cannot read a mailbox");
        MailstoreError::Unavailable(error.to_string())
    }

    fn tell_no_permission(&self, file: &str) {
        if first(&self.told.no_permission) {
            tracing::warn!(file, "no permission to read mail; further files of this mailbox are not logged");
        }
    }

    fn tell(&self, odd: &Oddities) {
        let mailbox = lock(&self.path).to_string();
        let told = &self.told;
        if let Some(name) = odd.no_file.as_ref().filter(|_| first(&told.no_file)) {
            tracing::warn!(mailbox, name, "no message; further ones of this mailbox are not logged");
        }
        if odd.not_utf8 > 0 && first(&told.not_utf8) {
            tracing::warn!(mailbox, files = odd.not_utf8, "file names that are not UTF-8 are left out");
        }
        if let Some(error) = odd.keywords.as_ref().filter(|_| first(&told.keywords)) {
            tracing::warn!(mailbox, error, "cannot read dovecot-keywords; keywords stay as they were");
        }
        if let Some(error) = odd.same_key.as_ref().filter(|_| first(&told.same_key)) {
            tracing::warn!(mailbox, error, "a second file of one key cannot be renamed, and is left out");
        }
        match &odd.not_durable {
            Some(error) if first(&told.not_durable) => {
                tracing::error!(mailbox, error, "changes of a mailbox cannot be made durable, and are not shown");
            }
            Some(_) => {}
            None => told.not_durable.store(false, Ordering::Relaxed),
        }
        if odd.out_of_uids && first(&told.out_of_uids) {
            tracing::error!(mailbox, "no UIDs left; new messages are not shown");
        }
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
                self.tell_no_permission(&format!("{}/{}/{name}", lock(&self.path), subdir.as_str()));
                MailstoreError::NoPermission
            }
            _ => MailstoreError::Damaged(error.to_string()),
        })
    }
}

fn find_again(reader: &MaildirReader, file: &MailFile) -> io::Result<Option<(Subdir, String)>> {
    let mut found = None;
    for subdir in [Subdir::New, Subdir::Cur] {
        reader.for_each_name(subdir, |listed| {
            let is_same = file.inode().is_none_or(|inode| inode == listed.inode);
            if is_same && key_of_name(listed.name) == key_of_name(&file.name) {
                found = Some((subdir, listed.name.to_owned()));
            }
        })?;
    }
    Ok(found)
}

/// Whether it has not been told before.
fn first(told: &AtomicBool) -> bool {
    !told.swap(true, Ordering::Relaxed)
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

    fn size<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, u64> {
        match message.file.wire_size() {
            Some(size) => Box::pin(std::future::ready(Ok(size))),
            None => self.with_file(message, |file, size, message| Ok(FileBody::new(file, size, message)?.len())),
        }
    }

    fn header<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, Bytes> {
        self.with_file(message, |file, size, message| header(&file, size, message))
    }

    fn body<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, Arc<dyn MailBody>> {
        self.with_file(message, |file, size, message| {
            Ok(Arc::new(FileBody::new(file, size, message)?) as Arc<dyn MailBody>)
        })
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder makes one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
