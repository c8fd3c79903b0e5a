//! Maildirs as a destination of mail: each message gets its UID in the batch that makes it durable.
//!
//! `stamp` assigns the UID. Delivery makes the files, from its own entry in the same batch. Mail for a mailbox that
//! cannot be made in time, such as on a hanging mount, is accepted without a UID: its file gets one when it is found. A
//! folder must exist.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use posthaste_intake::{
    BodyFacts, Destination, Guard, Held, Mail, MailPlace, MailRecipient, NotTaken, NotTakenCause, Reserved, Reserving,
};
use posthaste_maildir::MailboxPath;
use posthaste_spool::Entry;
use tokio::sync::{OwnedRwLockReadGuard, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::core::MailboxCore;
use super::locks::lock;
use super::seconds::now_secs;
use super::stamp::stamp;
use super::store::MaildirStore;
use crate::entry::{BodyKind, BodyPlace, MailEntry, MessageFacts, NewMessage, WireSize};

/// Maximum wait of a message until its mailbox is made.
const PATIENCE: Duration = Duration::from_millis(200);
/// Pause after a mailbox could not be made; its mail does not wait for the next attempt.
const CLOSED_FOR: Duration = Duration::from_secs(10);
/// Maximum mailboxes being made at a time, so that a hanging mount blocks no more threads.
const MAKERS: usize = 8;
/// Folders that stay open. Beyond it, all are looked up again.
const FOLDERS_MAX: usize = 10_000;

/// The mailboxes of a store, as a destination of [intake](posthaste_intake). Clones share state.
#[derive(Clone)]
pub struct MailArrivals(Arc<Inner>);

struct Inner {
    store: Arc<MaildirStore>,
    known: RwLock<KnownPlaces>,
    /// Number of rebuilt mailboxes when `known` was last valid.
    replaced: AtomicU64,
    making: Mutex<HashMap<Arc<str>, watch::Receiver<bool>>>,
    makers: Arc<Semaphore>,
}

/// Mailboxes that have received mail.
#[derive(Default)]
struct KnownPlaces {
    /// Mailboxes by path of the Maildir.
    by_path: HashMap<Arc<str>, Place>,
    folders: usize,
}

impl KnownPlaces {
    fn insert(&mut self, path: Arc<str>, place: Place) {
        if place.is_folder() && self.folders >= FOLDERS_MAX {
            self.by_path.retain(|_, place| !place.is_folder());
            self.folders = 0;
        }
        self.folders += usize::from(place.is_folder());
        let before = self.by_path.insert(path, place);
        self.folders -= usize::from(before.is_some_and(|before| before.is_folder()));
    }

    fn clear(&mut self) {
        self.by_path.clear();
        self.folders = 0;
    }
}

/// True for the path of a folder, false for an INBOX.
fn is_folder(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|last| last.starts_with('.'))
}

impl Inner {
    /// Looks up the mailbox of a path, usually in the ledger. A new INBOX, or a folder whose directory must be checked,
    /// waits in a queue that a hanging mount may block.
    async fn open(&self, path: &str) -> Option<Place> {
        let path = MailboxPath::parse(path).ok()?;
        if is_folder(path.as_str()) {
            let permit = Arc::clone(&self.makers).acquire_owned().await;
            let store = Arc::clone(&self.store);
            let open = move || {
                let opened = store.open_folder(&path);
                drop(permit);
                opened
            };
            spawn_blocking(open).await.ok()?.map(Place::Folder)
        } else {
            self.open_inbox(path).await.map(Place::Open)
        }
    }

    async fn open_inbox(&self, inbox: MailboxPath) -> Option<u32> {
        let (store, to_find) = (Arc::clone(&self.store), inbox.clone());
        if let Some(id) = spawn_blocking(move || store.find_inbox(&to_find)).await.ok()?.ok()? {
            return Some(id);
        }
        let permit = Arc::clone(&self.makers).acquire_owned().await;
        let store = Arc::clone(&self.store);
        let make = move || {
            let made = store.make_inbox(&inbox);
            drop(permit);
            made
        };
        spawn_blocking(make).await.ok()?
    }
}

impl std::fmt::Debug for MailArrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MailArrivals").finish_non_exhaustive()
    }
}

/// A mailbox as mail finds it.
#[derive(Debug, Clone)]
enum Place {
    /// An INBOX with UIDs enabled.
    Open(u32),
    /// A folder; UIDs may be assigned while it has this path.
    Folder(Arc<MailboxCore>),
    /// A mailbox that could not be made; not retried before this time.
    Closed(Instant),
}

impl Place {
    fn is_folder(&self) -> bool {
        matches!(self, Self::Folder(_))
    }
}

/// Prevents the folder of this path from moving while the guard lives. `None` if it has moved, or its directory has yet
/// to follow a RENAME.
fn held(core: &MailboxCore, path: &str, adding: OwnedRwLockReadGuard<()>) -> Option<Arc<dyn Held>> {
    // Checked first: a retry of the rename locks the path while the disk may hang.
    let is_staying = !core.is_deleted.load(Ordering::Relaxed) && !core.shared.moved_paths.is_leaving(path);
    (is_staying && lock(&core.path).as_str() == path).then(|| Arc::new(adding) as Arc<dyn Held>)
}

/// A place that stays closed for [`CLOSED_FOR`].
fn closed() -> Place {
    Place::Closed(Instant::now() + CLOSED_FOR)
}

/// The Maildirs of a message, with delivery's target numbers, which are parts of file names.
fn targets<'a>(mail: &'a Mail<'a>) -> impl Iterator<Item = (u16, &'a Arc<str>, &'a MailRecipient)> {
    let places = mail.recipients.iter().filter_map(|recipient| match &recipient.place {
        MailPlace::Maildir(path) => Some((path, recipient)),
        MailPlace::Transport(_) | MailPlace::Remote => None,
    });
    (0..=u16::MAX).zip(places).map(|(number, (path, recipient))| (number, path, recipient))
}

impl MailArrivals {
    /// The mailboxes of a store.
    pub fn new(store: Arc<MaildirStore>) -> Self {
        let (known, making) = (RwLock::default(), Mutex::default());
        let replaced = AtomicU64::new(0);
        Self(Arc::new(Inner { store, known, replaced, making, makers: Arc::new(Semaphore::new(MAKERS)) }))
    }

    fn known(&self, path: &str) -> Option<Place> {
        let replaced = self.0.store.shared.replaced.load(Ordering::Acquire);
        if self.0.replaced.load(Ordering::Acquire) != replaced {
            // Cleared first: another task that sees the number finds nothing old.
            self.0.known.write().unwrap_or_else(PoisonError::into_inner).clear();
            self.0.replaced.store(replaced, Ordering::Release);
        }
        self.0.known.read().unwrap_or_else(PoisonError::into_inner).by_path.get(path).cloned()
    }

    /// True if the quota of a Maildir's account has room for `bytes` more.
    pub async fn has_room(&self, path: &str, bytes: u64) -> bool {
        if self.0.store.limits_of(path).is_none() {
            return true;
        }
        let ask = || {
            let (store, path) = (Arc::clone(&self.0.store), path.to_owned());
            spawn_blocking(move || store.has_room(&path, bytes))
        };
        // Before a refusal: where nobody reads by IMAP or POP3, nobody has seen what the owner has removed.
        ask().await.unwrap_or(true) || self.0.store.look_at_account(path).await && ask().await.unwrap_or(true)
    }

    /// True while the directory of this path waits to be renamed or removed, even since before a restart. Mail in it
    /// would be moved or lost, so new mail goes elsewhere.
    pub fn is_leaving(&self, path: &str) -> bool {
        self.0.store.shared.moved_paths.is_leaving(path)
    }

    /// True if the mailbox of a path must be looked up or made, or is locked by RENAME or DELETE.
    fn is_to_make(&self, path: &str) -> bool {
        match self.known(path) {
            None => true,
            Some(Place::Open(_)) => false,
            Some(Place::Folder(core)) => {
                let adding = Arc::clone(&core.adding).try_read_owned().ok();
                adding.is_none_or(|adding| held(&core, path, adding).is_none())
            }
            Some(Place::Closed(until)) => until <= Instant::now(),
        }
    }

    /// Forgets a moved or removed folder, once its RENAME has ended.
    async fn forget_moved(&self, path: &str) {
        if let Some(Place::Folder(core)) = self.known(path) {
            let adding = Arc::clone(&core.adding).read_owned().await;
            if held(&core, path, adding).is_none() {
                let mut known = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
                if known.by_path.remove(path).is_some_and(|place| place.is_folder()) {
                    known.folders -= 1;
                }
            }
        }
    }

    /// Finds or makes the mailboxes of a message, and waits briefly for all of them.
    async fn make(&self, mail: &Mail<'_>) {
        let to_make: Vec<_> = targets(mail).map(|(_, path, _)| path).filter(|path| self.is_to_make(path)).collect();
        let mut making = Vec::new();
        let all = async {
            for path in to_make {
                self.forget_moved(path).await;
                if self.is_to_make(path) {
                    making.push((path, self.begin(path)));
                }
            }
            for (_, made) in &mut making {
                let _ = made.wait_for(|made| *made).await;
            }
        };
        if timeout(PATIENCE, all).await.is_ok() {
            return;
        }
        // Without them the message is accepted all the same, and so is later mail, without a wait.
        let mut known = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        for (path, _) in making.iter().filter(|(_, made)| !*made.borrow()) {
            known.insert(Arc::clone(path), closed());
        }
    }

    /// Starts making a mailbox, or joins the attempt in progress.
    fn begin(&self, path: &Arc<str>) -> watch::Receiver<bool> {
        let mut making = lock(&self.0.making);
        if let Some(made) = making.get(path) {
            return made.clone();
        }
        let (told, made) = watch::channel(false);
        making.insert(Arc::clone(path), made.clone());
        let (inner, path) = (Arc::clone(&self.0), Arc::clone(path));
        tokio::spawn(async move {
            let place = inner.open(&path).await.unwrap_or_else(closed);
            let mut known = inner.known.write().unwrap_or_else(PoisonError::into_inner);
            known.insert(Arc::clone(&path), place);
            // Before anybody can hold it to be slow.
            let _ = told.send(true);
            drop(known);
            lock(&inner.making).remove(&path);
        });
        made
    }

    /// The mailbox of a path, if UIDs can be assigned. Until the batch is published a folder keeps its path.
    fn take(&self, path: &str, pins: &mut Vec<Arc<dyn Held>>) -> Option<u32> {
        match self.known(path)? {
            Place::Open(mailbox) => Some(mailbox),
            Place::Folder(core) => {
                let adding = Arc::clone(&core.adding).try_read_owned().ok()?;
                pins.push(held(&core, path, adding)?);
                Some(core.id)
            }
            Place::Closed(_) => None,
        }
    }

    /// Adds the entries of all mailboxes that can assign UIDs.
    ///
    /// # Errors
    /// A folder has left its path since the recipient was accepted, or is about to: the next attempt finds where it is.
    fn add_entries(&self, mail: &Mail<'_>, body: BodyFacts, reserved: &mut Reserved) -> Result<(), NotTaken> {
        let stream = self.0.store.ledger().stream();
        let (now, is_alone) = (now_secs(), targets(mail).nth(1).is_none());
        let mut seen: Vec<u32> = Vec::new();
        for (target, path, recipient) in targets(mail) {
            let Some(mailbox) = self.take(path, &mut reserved.pins) else {
                // RENAME or DELETE has it locked: a file of mail without a UID would make the old directory again.
                let is_locked = matches!(self.known(path), Some(Place::Folder(_)));
                if is_locked || self.0.store.shared.moved_paths.has(path) {
                    return Err(moved(path));
                }
                continue;
            };
            // UIDs of one mailbox ascend within an entry; a second entry has later ones.
            debug_assert!(is_alone || !seen.contains(&mailbox), "each place comes once");
            seen.extend((!is_alone).then_some(mailbox));
            let wire_size = recipient.prefix.len() as u64 + body.len;
            let facts = MessageFacts {
                flags: crate::table::flag_bits::IN_NEW,
                internal_date: mail.internal_date.unwrap_or(now),
                save_date: now,
                wire_size: WireSize::of(wire_size),
                line_feeds: 0,
            };
            let place = BodyPlace::Batch { prefix: recipient.prefix.clone() };
            let messages = vec![NewMessage { facts, target, kind: BodyKind::Own, place }];
            let payload = MailEntry::New { mailbox, first_uid: 0, messages }.encode();
            reserved.entries.push(Entry { stream, needs_body: false, payload });
        }
        Ok(())
    }
}

fn moved(path: &str) -> NotTaken {
    NotTaken {
        cause: NotTakenCause::NotOpen,
        code: 451,
        status: "4.2.0",
        text: "The folder of this recipient is being moved, try again later".into(),
        about: None,
        why: format!("the folder {path} is renamed or deleted while its mail comes in"),
    }
}

impl Destination for MailArrivals {
    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        if self.0.store.ledger().is_full() && targets(mail).next().is_some() {
            return Reserving::Done(Err(NotTaken {
                cause: NotTakenCause::QueueFull,
                code: 452,
                status: "4.3.1",
                text: "The table of mailboxes cannot be written now, try again later".into(),
                about: None,
                why: "too many changes wait for the table of mailboxes".to_owned(),
            }));
        }
        if !targets(mail).any(|(_, path, _)| self.is_to_make(path)) {
            return Reserving::Done(self.add_entries(mail, body, reserved));
        }
        Reserving::Waiting(Box::pin(async move {
            self.make(mail).await;
            self.add_entries(mail, body, reserved)
        }))
    }

    fn stamp<'a>(&'a self, entries: &mut [Entry]) -> Option<Box<dyn Guard + 'a>> {
        stamp(self.0.store.ledger(), entries)
    }
}

#[cfg(test)]
#[path = "arrivals_tests.rs"]
mod tests;
