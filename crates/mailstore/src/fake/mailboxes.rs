//! Accounts and mailboxes in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::watch;

use crate::entry::WireSize;
use crate::error::{Asked, MailstoreError};
use crate::flags::{KeywordTable, MessageFlags};
use crate::listing::NamedMailbox;
use crate::mail_body::{BODY_READ_MAX, HEADER_BYTES_MAX, MailBody, first_bodies, first_fields, first_kept};
use crate::message_list::{Message, MessageList};
use crate::name::{MailboxName, SpecialUse};
use crate::row::{MailboxId, ModSeq, NumberRange, Uid, UidValidity};
use crate::snapshot::{Snapshot, Source};
use crate::store::{KeptKind, QuotaUse};

#[derive(Debug)]
pub(super) struct Account {
    pub me: Weak<Self>,
    pub login: String,
    pub is_unreadable: AtomicBool,
    /// Error for all changes, if they are refused.
    pub refusal: Mutex<Option<MailstoreError>>,
    pub quota: Mutex<Option<QuotaUse>>,
    pub last_id: AtomicU32,
    pub mailboxes: Mutex<Mailboxes>,
    pub subscriptions: Mutex<BTreeSet<MailboxName>>,
}

pub(super) type Mailboxes = BTreeMap<MailboxName, Arc<FakeMailbox>>;

#[derive(Debug)]
pub(super) struct FakeMailbox {
    pub id: MailboxId,
    pub account: Weak<Account>,
    pub special_use: Option<SpecialUse>,
    pub uid_validity: UidValidity,
    pub recent_from: AtomicU32,
    /// Cached values by kind and UID.
    pub kept: Mutex<BTreeMap<(KeptKind, u32), Bytes>>,
    /// Present state; `None` once the mailbox is removed.
    pub now: watch::Sender<Option<Arc<Snapshot<File>>>>,
}

#[derive(Debug, Clone)]
pub(super) struct File(pub Option<Bytes>);

impl Snapshot<File> {
    pub fn push(&mut self, flags: MessageFlags, internal_date: u32, file: File) -> Uid {
        let (uid, modseq) = (self.uid_next, self.highest_modseq);
        let wire_size = file.0.as_ref().map_or(WireSize::UNKNOWN, |octets| WireSize::of(octets.len() as u64));
        self.messages.push(Message { uid, flags, modseq, internal_date, wire_size, email_id: (0, 0), file });
        self.uid_next += 1;
        Uid::new(uid).expect("UIDs begin at 1")
    }
}

impl FakeMailbox {
    pub fn new(account: &Account, special_use: Option<SpecialUse>) -> Self {
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
    pub fn change<T>(
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Account {
    pub fn mailbox(&self, id: MailboxId) -> Result<Arc<FakeMailbox>, MailstoreError> {
        lock(&self.mailboxes).values().find(|mailbox| mailbox.id == id).cloned().ok_or(MailstoreError::NoMailbox)
    }

    pub fn names(&self) -> BTreeMap<MailboxName, NamedMailbox> {
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
