//! One Maildir at work: looks for changes, and reads messages.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{MailRoot, MailboxPath, MaildirReader, Subdir};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::body::{FileBody, ended, header};
use super::file::MailFile;
use super::scan::{Messages, Oddities, Scan};
use crate::error::MailstoreError;
use crate::row::{MailboxId, UidValidity};
use crate::snapshot::{Message, Source};
use crate::store::{Asked, MailBody};

/// How long a session that has seen the mailbox waits for a look: a slow disk is told of later.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);
/// RFC822.SIZE has 32 bits (RFC 3501 section 9, `number`). A longer file is no message.
pub(super) const MESSAGE_BYTES_MAX: u64 = u32::MAX as u64;
/// How often an idle session has the mailbox looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct MaildirMailbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: Arc<MailRoot>,
    id: MailboxId,
    /// Another program can change how it writes the name.
    path: Mutex<MailboxPath>,
    is_inbox: bool,
    uid_validity: UidValidity,
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
    scan: Option<Scan>,
    was_there: bool,
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
}

impl MaildirMailbox {
    pub fn new(root: Arc<MailRoot>, id: MailboxId, path: MailboxPath, is_inbox: bool, validity: UidValidity) -> Self {
        let looks = Looks {
            wanted: 0,
            begun: 0,
            is_running: false,
            last: Instant::now(),
            scan: Some(Scan::new()),
            was_there: false,
        };
        Self(Arc::new(Inner {
            root,
            id,
            path: Mutex::new(path),
            is_inbox,
            uid_validity: validity,
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
        self.0.is_inbox || self.0.reader().is_ok()
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
        read: impl FnOnce(File, &MailFile) -> Result<T, MailstoreError> + Send + 'static,
    ) -> Asked<'static, T> {
        let (inner, uid, file) = (Arc::clone(&self.0), message.uid, Arc::clone(&message.file));
        Box::pin(async move {
            let work = move || {
                let opened = inner.open(uid, &file)?;
                read(opened, &file)
            };
            spawn_blocking(work).await.map_err(ended)?
        })
    }
}

/// Looks until nobody wants another look. It belongs to no session, so that one that ends takes nothing with it.
async fn look_as_wanted(inner: Arc<Inner>) {
    loop {
        let (number, scan) = {
            let mut looks = lock(&inner.looks);
            if looks.begun >= looks.wanted {
                looks.is_running = false;
                return;
            }
            looks.begun += 1;
            (looks.begun, looks.scan.take())
        };
        let outcome = match scan {
            Some(scan) => {
                let inner = Arc::clone(&inner);
                spawn_blocking(move || inner.look(scan)).await.map_err(ended)
            }
            None => Err(MailstoreError::Unavailable("an earlier look failed".to_owned())),
        };
        let (scan, outcome) = match outcome {
            Ok((scan, outcome)) => (Some(scan), outcome),
            // Without the scan it is not known which UIDs were given.
            Err(error) => (None, Err(error)),
        };
        let messages = outcome.is_ok().then(|| scan.as_ref().map(|scan| Arc::clone(scan.messages()))).flatten();
        {
            let mut looks = lock(&inner.looks);
            (looks.scan, looks.last) = (scan, Instant::now());
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
    fn look(&self, mut scan: Scan) -> (Scan, Result<(), MailstoreError>) {
        let reader = match self.reader() {
            Ok(reader) => reader,
            Err(error) => return (scan, self.unread(&error)),
        };
        let is_first = !std::mem::replace(&mut lock(&self.looks).was_there, true);
        let suspects = std::mem::take(&mut *lock(&self.suspects));
        let mut odd = Oddities::default();
        let outcome = scan.look(&reader, &suspects, &mut odd);
        self.tell(&odd);
        if let Err(error) = outcome {
            lock(&self.suspects).extend(suspects);
            return (scan, Err(self.failed(&error)));
        }
        if is_first {
            let messages = scan.messages();
            let recent = messages.messages.iter().find(|message| message.file.is_new());
            self.recent_from.store(recent.map_or(messages.uid_next, |message| message.uid), Ordering::Relaxed);
        }
        (scan, Ok(()))
    }

    /// The directory cannot be opened. An INBOX without a directory is empty until mail comes; one that was there has not lost its mail.
    fn unread(&self, error: &io::Error) -> Result<(), MailstoreError> {
        match error.kind() {
            io::ErrorKind::NotFound if !self.is_inbox => Err(MailstoreError::NoMailbox),
            io::ErrorKind::NotFound if !lock(&self.looks).was_there => Ok(()),
            _ => Err(self.failed(error)),
        }
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
        if odd.out_of_uids && first(&told.out_of_uids) {
            tracing::error!(mailbox, "no UIDs left; new messages are not shown");
        }
    }

    /// Opens the file with the content that the UID belongs to. Blocks.
    fn open(&self, uid: u32, file: &MailFile) -> Result<File, MailstoreError> {
        let reader = self.reader().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MailstoreError::Gone,
            _ => self.failed(&error),
        })?;
        let opened = match self.open_in(&reader, file.subdir, &file.name)? {
            Some(opened) => Some(opened),
            // Renamed since: its key and inode are the same.
            None => {
                let name = find_again(&reader, file).map_err(|error| self.failed(&error))?;
                name.map_or(Ok(None), |(subdir, name)| self.open_in(&reader, subdir, &name))?
            }
        };
        let Some((opened, facts)) = opened else { return Err(MailstoreError::Gone) };
        if facts != file.facts {
            lock(&self.suspects).insert(uid);
            return Err(MailstoreError::Gone);
        }
        if facts.size > MESSAGE_BYTES_MAX {
            return Err(MailstoreError::Damaged(format!("a file of {} octets", facts.size)));
        }
        Ok(opened)
    }

    fn open_in(
        &self,
        reader: &MaildirReader,
        subdir: Subdir,
        name: &str,
    ) -> Result<Option<(File, posthaste_maildir::tree::FileFacts)>, MailstoreError> {
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
            if listed.inode == file.inode && key_of_name(listed.name) == key_of_name(&file.name) {
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
        self.0.id
    }

    fn uid_validity(&self) -> UidValidity {
        self.0.uid_validity
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
            None => self.with_file(message, |file, message| Ok(FileBody::new(file, message)?.len())),
        }
    }

    fn header<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, Bytes> {
        self.with_file(message, |file, message| header(&file, message))
    }

    fn body<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, Arc<dyn MailBody>> {
        self.with_file(message, |file, message| Ok(Arc::new(FileBody::new(file, message)?) as Arc<dyn MailBody>))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder makes one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
