//! Mailboxes in memory, for tests of protocols.

mod changes;
mod mailboxes;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use self::mailboxes::{Account, FakeMailbox, File, lock};
use crate::error::{Asked, MailstoreError};
use crate::flags::{KeywordTable, MessageFlags};
use crate::listing::{AccountListing, listed};
use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus, NumberRange, RebuiltMailbox, Uid};
use crate::snapshot::{Snapshot, SnapshotView, Source, status};
use crate::store::{
    AppendRequest, ListOptions, MailAccount, MailboxListing, MailboxView, Mailstore, MessageWriter, QuotaUse,
    SelectMode,
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
