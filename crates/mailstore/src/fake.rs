//! Mailboxes in memory, for tests of protocols.

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::watch;

use crate::entry::WireSize;
use crate::error::MailstoreError;
use crate::flags::{KeywordTable, MessageFlags};
use crate::listing::{AccountListing, NamedMailbox, listed};
use crate::mail_body::{BODY_READ_MAX, HEADER_BYTES_MAX, MailBody, first_bodies, first_fields, first_kept};
use crate::message_list::{Message, MessageList};
use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus, ModSeq, NumberRange, RebuiltMailbox, Uid, UidValidity};
use crate::snapshot::{Snapshot, SnapshotView, Source, status};
use crate::store::{
    AppendRequest, Asked, KeptKind, ListOptions, MailAccount, MailboxListing, MailboxView, Mailstore, MessageWriter,
    QuotaUse, SelectMode,
};

/// A store of one login, initially with an empty INBOX. Clones share the store.
#[derive(Debug, Clone)]
pub struct FakeStore(Arc<Account>);

/// A message for [`FakeStore::add`].
#[derive(Debug, Clone)]
pub struct FakeMessage {
    /// Octets for a client; `None`: the body is damaged.
    pub octets: Option<Bytes>,
    /// Flags and keywords.
    pub flags: MessageFlags,
    /// INTERNALDATE.
    pub internal_date: SystemTime,
}

#[derive(Debug)]
struct Account {
    me: Weak<Self>,
    login: String,
    is_unreadable: AtomicBool,
    /// Error for all changes, if they are refused.
    refusal: Mutex<Option<MailstoreError>>,
    quota: Mutex<Option<QuotaUse>>,
    last_id: AtomicU32,
    mailboxes: Mutex<Mailboxes>,
    subscriptions: Mutex<BTreeSet<MailboxName>>,
}

type Mailboxes = BTreeMap<MailboxName, Arc<FakeMailbox>>;

#[derive(Debug)]
struct FakeMailbox {
    id: MailboxId,
    account: Weak<Account>,
    special_use: Option<SpecialUse>,
    uid_validity: UidValidity,
    recent_from: AtomicU32,
    /// Cached values by kind and UID.
    kept: Mutex<BTreeMap<(KeptKind, u32), Bytes>>,
    /// Present state; `None` once the mailbox is removed.
    now: watch::Sender<Option<Arc<Snapshot<File>>>>,
}

#[derive(Debug, Clone)]
struct File(Option<Bytes>);

impl FakeMessage {
    /// A message without flags, received at 1000000000 seconds since 1970 (2001-09-09 01:46:40 UTC).
    pub fn new(octets: impl Into<Bytes>) -> Self {
        Self {
            octets: Some(octets.into()),
            flags: MessageFlags::NONE,
            internal_date: UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000),
        }
    }
}

impl FakeStore {
    /// A store with this login only.
    pub fn new(login: &str) -> Self {
        let store = Self(Arc::new_cyclic(|me| Account {
            me: Weak::clone(me),
            login: login.to_owned(),
            is_unreadable: AtomicBool::new(false),
            refusal: Mutex::default(),
            quota: Mutex::default(),
            last_id: AtomicU32::new(0),
            mailboxes: Mutex::default(),
            subscriptions: Mutex::default(),
        }));
        store.create("INBOX");
        store
    }

    /// Refuses to open the account from now on, like unreadable files.
    pub fn make_unreadable(&self) {
        self.0.is_unreadable.store(true, Ordering::Relaxed);
    }

    /// Refuses all changes by sessions from now on with this error; `None` allows them again.
    pub fn refuse_changes(&self, refusal: Option<MailstoreError>) {
        *lock(&self.0.refusal) = refusal;
    }

    /// Sets the quota that is reported. It is not enforced.
    pub fn set_quota(&self, quota: Option<QuotaUse>) {
        *lock(&self.0.quota) = quota;
    }

    /// Makes a mailbox, and subscribes to it; UIDVALIDITY is 1000 and its id. One of a usual name has its special use.
    ///
    /// # Panics
    /// If `name` is invalid or taken.
    pub fn create(&self, name: &str) {
        let name = MailboxName::parse(name).expect("a name");
        let mailbox = FakeMailbox::new(&self.0, SpecialUse::of_name(&name));
        lock(&self.0.subscriptions).insert(name.clone());
        let before = lock(&self.0.mailboxes).insert(name, Arc::new(mailbox));
        assert!(before.is_none(), "it is there already");
    }

    /// Removes a mailbox.
    ///
    /// # Panics
    /// If the mailbox does not exist.
    pub fn remove(&self, name: &str) {
        let mailbox = lock(&self.0.mailboxes).remove(&MailboxName::parse(name).expect("a name")).expect("a mailbox");
        mailbox.now.send_replace(None);
    }

    /// Adds a message, which gets the next UID.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn add(&self, mailbox: &str, message: FakeMessage) -> Uid {
        let secs = message.internal_date.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.change(mailbox, |snapshot| {
            let internal_date = u32::try_from(secs).unwrap_or(u32::MAX);
            snapshot.push(message.flags, internal_date, File(message.octets))
        })
    }

    /// Skips UIDs below this one.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn set_uid_next(&self, mailbox: &str, uid_next: u32) {
        self.change(mailbox, |snapshot| snapshot.uid_next = snapshot.uid_next.max(uid_next));
    }

    /// Sets a message's flags, as another session would.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn set_flags(&self, mailbox: &str, uid: Uid, flags: MessageFlags) {
        self.change(mailbox, |snapshot| {
            let (modseq, only) = (snapshot.highest_modseq, NumberRange { first: uid.get(), last: uid.get() });
            snapshot.messages.set_flags(&[only], flags, modseq, drop);
        });
    }

    /// Expunges a message, as another session would.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn expunge(&self, mailbox: &str, uid: Uid) {
        self.change(mailbox, |snapshot| snapshot.messages.retain(|message| message.uid != uid.get()));
    }

    /// Damages the body of a message: only its cached data remain.
    ///
    /// # Panics
    /// If there is no such message.
    pub fn damage(&self, mailbox: &str, uid: Uid) {
        self.change(mailbox, |snapshot| {
            let at = snapshot.messages.position(uid.get());
            snapshot.messages.set_file(at.expect("a message"), File(None));
        });
    }

    /// Sets the keywords of a mailbox.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn set_keywords(&self, mailbox: &str, keywords: KeywordTable) {
        self.change(mailbox, |snapshot| snapshot.keywords = keywords);
    }

    fn change<T>(&self, mailbox: &str, change: impl FnOnce(&mut Snapshot<File>) -> T) -> T {
        let name = MailboxName::parse(mailbox).expect("a name");
        let mailbox = lock(&self.0.mailboxes).get(&name).cloned().expect("a mailbox");
        mailbox.change(|snapshot| Ok(change(snapshot))).expect("it is listed")
    }
}

impl Snapshot<File> {
    fn push(&mut self, flags: MessageFlags, internal_date: u32, file: File) -> Uid {
        let (uid, modseq) = (self.uid_next, self.highest_modseq);
        let wire_size = file.0.as_ref().map_or(WireSize::UNKNOWN, |octets| WireSize::of(octets.len() as u64));
        self.messages.push(Message { uid, flags, modseq, internal_date, wire_size, email_id: (0, 0), file });
        self.uid_next += 1;
        Uid::new(uid).expect("UIDs begin at 1")
    }
}

impl FakeMailbox {
    fn new(account: &Account, special_use: Option<SpecialUse>) -> Self {
        let id = account.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let keywords = KeywordTable::default();
        let empty = Snapshot { messages: MessageList::default(), uid_next: 1, highest_modseq: 1, keywords };
        Self {
            id: MailboxId(id),
            account: Weak::clone(&account.me),
            special_use,
            uid_validity: UidValidity(Uid::new(1000 + id).expect("it is not 0").0),
            recent_from: AtomicU32::new(1),
            kept: Mutex::default(),
            now: watch::Sender::new(Some(Arc::new(empty))),
        }
    }

    /// Publishes a changed snapshot with a higher MODSEQ, unless the change fails.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Snapshot<File>) -> Result<T, MailstoreError>,
    ) -> Result<T, MailstoreError> {
        let mut done = Err(MailstoreError::NoMailbox);
        self.now.send_if_modified(|now| {
            let Some(old) = now.as_ref() else { return false };
            let mut new = Snapshot::clone(old);
            new.highest_modseq += 1;
            done = change(&mut new);
            if done.is_ok() {
                *now = Some(Arc::new(new));
            }
            done.is_ok()
        });
        done
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Account {
    fn mailbox(&self, id: MailboxId) -> Result<Arc<FakeMailbox>, MailstoreError> {
        lock(&self.mailboxes).values().find(|mailbox| mailbox.id == id).cloned().ok_or(MailstoreError::NoMailbox)
    }

    fn names(&self) -> BTreeMap<MailboxName, NamedMailbox> {
        let mailboxes = lock(&self.mailboxes);
        let named = mailboxes.iter().map(|(name, mailbox)| {
            let named = NamedMailbox { id: Some(mailbox.id), special_use: mailbox.special_use, subscribed: false };
            (name.clone(), named)
        });
        let mut names: BTreeMap<_, _> = named.collect();
        for name in &*lock(&self.subscriptions) {
            names.entry(name.clone()).or_default().subscribed = true;
        }
        names
    }
}

impl Mailstore for FakeStore {
    fn account<'a>(&'a self, login: &'a str) -> Asked<'a, Arc<dyn MailAccount>> {
        let account: Arc<dyn MailAccount> = self.0.clone();
        let known = self.0.login == login;
        let is_unreadable = self.0.is_unreadable.load(Ordering::Relaxed);
        Box::pin(async move {
            if is_unreadable {
                return Err(MailstoreError::NoPermission);
            }
            known.then_some(account).ok_or(MailstoreError::NoMailbox)
        })
    }
}

impl MailAccount for Account {
    fn list<'a>(
        &'a self,
        patterns: &'a [NamePattern],
        options: ListOptions,
    ) -> Asked<'a, Box<dyn MailboxListing + 'a>> {
        Box::pin(async move { Ok(Box::new(AccountListing::new(self, options, listed(&self.names(), patterns))) as _) })
    }

    fn find<'a>(&'a self, name: &'a MailboxName) -> Asked<'a, Option<MailboxId>> {
        Box::pin(async move { Ok(lock(&self.mailboxes).get(name).map(|mailbox| mailbox.id)) })
    }

    fn status(&self, mailbox: MailboxId) -> Asked<'_, MailboxStatus> {
        Box::pin(async move {
            let mailbox = self.mailbox(mailbox)?;
            let now = mailbox.look().await?;
            Ok(status(&*mailbox, &now))
        })
    }

    fn select(&self, mailbox: MailboxId, mode: SelectMode) -> Asked<'_, Box<dyn MailboxView>> {
        Box::pin(async move {
            let view = SnapshotView::select(self.mailbox(mailbox)?, mode).await?;
            Ok(Box::new(view) as _)
        })
    }

    fn create<'a>(&'a self, name: &'a MailboxName, special_use: Option<SpecialUse>) -> Asked<'a, MailboxId> {
        Box::pin(async move { self.make(name, special_use) })
    }

    fn delete(&self, mailbox: MailboxId) -> Asked<'_, ()> {
        Box::pin(async move { self.unmake(mailbox) })
    }

    fn rename<'a>(&'a self, mailbox: MailboxId, to: &'a MailboxName) -> Asked<'a, ()> {
        Box::pin(async move { self.give_name(mailbox, to) })
    }

    fn subscribe<'a>(&'a self, name: &'a MailboxName, on: bool) -> Asked<'a, ()> {
        Box::pin(async move {
            self.check_change()?;
            if on {
                lock(&self.subscriptions).insert(name.clone())
            } else {
                lock(&self.subscriptions).remove(name)
            };
            Ok(())
        })
    }

    fn quota(&self) -> Asked<'_, Option<QuotaUse>> {
        Box::pin(async move { Ok(*lock(&self.quota)) })
    }

    fn rebuild(&self, _: MailboxId, _: bool) -> Asked<'_, RebuiltMailbox> {
        Box::pin(async { Err(MailstoreError::Cannot("nothing is on a disk")) })
    }

    fn append(&self, mailbox: MailboxId, message: AppendRequest) -> Asked<'_, Box<dyn MessageWriter>> {
        Box::pin(async move {
            self.check_change()?;
            Ok(changes::writer(self.mailbox(mailbox)?, message))
        })
    }
}

impl Source for FakeMailbox {
    type File = File;

    fn id(&self) -> MailboxId {
        self.id
    }

    fn uid_validity(&self) -> UidValidity {
        self.uid_validity
    }

    fn recent_from(&self) -> &AtomicU32 {
        &self.recent_from
    }

    fn look(&self) -> Asked<'_, Arc<Snapshot<File>>> {
        Box::pin(async move { self.now.borrow().clone().ok_or(MailstoreError::NoMailbox) })
    }

    fn gone_since(&self, _: ModSeq) -> Asked<'_, Option<Vec<NumberRange>>> {
        Box::pin(async { Ok(None) })
    }

    fn changed<'a>(&'a self, known: &'a Arc<Snapshot<File>>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let mut now = self.now.subscribe();
            let is_other = |now: &Option<Arc<_>>| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, known));
            // It cannot fail: the sender is in `self`.
            let _ = now.wait_for(is_other).await;
        })
    }

    fn known_size(&self, message: &Message<File>) -> Option<u64> {
        octets(message).ok().map(|octets| octets.len() as u64)
    }

    fn size<'a>(&'a self, message: &'a Message<File>) -> Asked<'a, u64> {
        Box::pin(async move { Ok(octets(message)?.len() as u64) })
    }

    fn headers(&self, messages: Vec<Message<File>>) -> Asked<'_, Vec<Result<Bytes, MailstoreError>>> {
        Box::pin(async move { Ok(first_fields(messages.iter().map(header))) })
    }

    fn fields(&self, messages: Vec<Message<File>>) -> Asked<'_, Vec<Result<Bytes, MailstoreError>>> {
        self.headers(messages)
    }

    fn kept(
        &self,
        kind: KeptKind,
        messages: Vec<Message<File>>,
    ) -> Asked<'_, Vec<Result<Option<Bytes>, MailstoreError>>> {
        let known = lock(&self.kept);
        let first = first_kept(messages.iter().map(|message| Ok(known.get(&(kind, message.uid)).cloned())));
        Box::pin(async move { Ok(first) })
    }

    fn keep(&self, kind: KeptKind, message: &Message<File>, made: &[u8]) {
        lock(&self.kept).insert((kind, message.uid), Bytes::copy_from_slice(made));
    }

    fn bodies(&self, messages: Vec<Message<File>>) -> Asked<'_, Vec<Result<Arc<dyn MailBody>, MailstoreError>>> {
        let body = |message: &Message<File>| Ok(Arc::new(FakeBody(octets(message)?)) as Arc<dyn MailBody>);
        Box::pin(async move { Ok(first_bodies(messages.iter().map(body))) })
    }
}

fn header(message: &Message<File>) -> Result<Bytes, MailstoreError> {
    let octets = octets(message)?;
    let end = octets.windows(4).position(|four| four == b"\r\n\r\n").map_or(octets.len(), |at| at + 4);
    let end = if octets.starts_with(b"\r\n") { 2 } else { end };
    Ok(octets.slice(..end.min(HEADER_BYTES_MAX)))
}

fn octets(message: &Message<File>) -> Result<Bytes, MailstoreError> {
    message.file.0.clone().ok_or_else(|| MailstoreError::Damaged("as the test wants it".to_owned()))
}

struct FakeBody(Bytes);

impl MailBody for FakeBody {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, from: u64, up_to: u64) -> Asked<'_, Bytes> {
        let len = self.0.len();
        let from = usize::try_from(from).unwrap_or(len).min(len);
        let up_to = usize::try_from(up_to).unwrap_or(len).min(len).min(from + BODY_READ_MAX);
        let octets = self.0.slice(from..up_to.max(from));
        Box::pin(async move { Ok(octets) })
    }
}
