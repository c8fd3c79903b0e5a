//! The messages of a mailbox at one moment, and a session's view of them.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use crate::error::{Asked, MailstoreError};
use crate::flags::{FlagUpdate, KeywordTable, MessageFlags};
use crate::mail_body::MailBody;
use crate::message_list::{Message, MessageCounts, MessageList};
use crate::row::{MailboxId, MailboxStatus, MessageRow, MessageSet, ModSeq, NumberRange, Uid, UidValidity, UniqueIds};
use crate::store::{
    ChangedFlags, CopiedMessages, ExpungedMessage, KeptKind, MailboxFiles, MailboxView, MessageRows, RowOptions,
    SelectMode, StoredFlags, ViewChanges,
};

/// Maximum rows of one step.
const ROWS_AT_ONCE: usize = 256;

/// A mailbox whose messages can be changed. UIDs ascend and come from a view; messages that have vanished since are
/// skipped.
pub(crate) trait ChangeTarget {
    /// True if all changes are refused.
    fn is_read_only(&self) -> bool;
    fn store(&self, uids: Vec<Uid>, update: FlagUpdate, unchanged_since: Option<ModSeq>) -> Asked<'_, StoredFlags>;
    fn expunge(&self, uids: Option<Vec<NumberRange>>) -> Asked<'_, ()>;
    fn remove(&self, uids: Vec<Uid>) -> Asked<'_, ()>;
    /// Copies messages to another mailbox. With `moves`, they leave this mailbox in the same step.
    fn copy(&self, uids: Vec<Uid>, to: MailboxId, moves: bool) -> Asked<'_, Option<CopiedMessages>>;
}

/// A mailbox that has snapshots.
pub(crate) trait Source: ChangeTarget + Send + Sync + 'static {
    /// The file of a message.
    type File: Clone + Send + Sync + 'static;

    fn id(&self) -> MailboxId;
    fn uid_validity(&self) -> UidValidity;
    /// The UID from which on messages have been `\Recent` in no session.
    fn recent_from(&self) -> &AtomicU32;
    /// The directory of its files, if it has any.
    fn folder(&self) -> Option<String> {
        None
    }
    /// The name of a message's file, if known.
    fn file_name(_file: &Self::File) -> Option<&str> {
        None
    }
    /// The present messages, including changes by other programs.
    fn look(&self) -> Asked<'_, Arc<Snapshot<Self::File>>>;

    /// The messages as left by this server's own changes.
    fn known(&self) -> Asked<'_, Arc<Snapshot<Self::File>>> {
        self.look()
    }
    /// UIDs that left with a higher MODSEQ, unordered; `None` if some are unknown.
    fn gone_since(&self, modseq: ModSeq) -> Asked<'_, Option<Vec<NumberRange>>>;
    /// Waits until there may be a newer snapshot.
    fn changed<'a>(&'a self, known: &'a Arc<Snapshot<Self::File>>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    /// See [`MailboxView::unique_ids`].
    fn unique_ids(&self) -> Asked<'_, Arc<UniqueIds>> {
        Box::pin(std::future::ready(Ok(Arc::default())))
    }
    /// The size of a message, if known without reading it; `None` for unreadable ones.
    fn known_size(&self, message: &Message<Self::File>) -> Option<u64>;
    /// The size of a message, read if necessary.
    fn size<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, u64>;
    /// See [`MailboxView::headers`].
    fn headers(&self, messages: Vec<Message<Self::File>>) -> Asked<'_, Vec<Result<Bytes, MailstoreError>>>;
    /// See [`MailboxView::fields`].
    fn fields(&self, messages: Vec<Message<Self::File>>) -> Asked<'_, Vec<Result<Bytes, MailstoreError>>>;
    /// See [`MailboxView::kept`].
    fn kept(
        &self,
        kind: KeptKind,
        messages: Vec<Message<Self::File>>,
    ) -> Asked<'_, Vec<Result<Option<Bytes>, MailstoreError>>>;
    /// See [`MailboxView::keep`].
    fn keep(&self, kind: KeptKind, message: &Message<Self::File>, made: &[u8]);
    /// See [`MailboxView::bodies`].
    fn bodies(&self, messages: Vec<Message<Self::File>>) -> Asked<'_, Vec<Result<Arc<dyn MailBody>, MailstoreError>>>;
    fn body<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, Arc<dyn MailBody>> {
        Box::pin(async { self.bodies(vec![message.clone()]).await?.pop().unwrap_or(Err(MailstoreError::Gone)) })
    }
}

/// Immutable state of a mailbox: each change makes a new snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot<F> {
    pub messages: MessageList<F>,
    /// Larger than all UIDs used so far.
    pub uid_next: u32,
    pub highest_modseq: u64,
    pub keywords: KeywordTable,
}

impl<F> Snapshot<F> {
    pub fn find(&self, uid: Uid) -> Option<&Message<F>> {
        self.messages.get(self.messages.position(uid.get())?)
    }
}

/// Takes the values from counters, without reading messages.
pub(crate) fn status<S: Source>(source: &S, snapshot: &Snapshot<S::File>) -> MailboxStatus {
    let recent_from = source.recent_from().load(Ordering::Relaxed);
    let old = snapshot.messages.below(recent_from.into());
    let MessageCounts { unseen, deleted, bytes } = snapshot.messages.counts();
    MailboxStatus {
        exists: snapshot.messages.len() as u32,
        recent: (snapshot.messages.len() - old) as u32,
        unseen,
        deleted,
        uid_next: uid(snapshot.uid_next),
        uid_validity: source.uid_validity(),
        highest_modseq: ModSeq(snapshot.highest_modseq),
        bytes: Some(bytes),
    }
}

/// Converts a UID, which is never 0.
fn uid(uid: u32) -> Uid {
    Uid::new(uid).expect("UIDs begin at 1")
}

/// A session's view.
pub(crate) struct SnapshotView<S: Source> {
    source: Arc<S>,
    mode: SelectMode,
    /// The client's view: the mailbox's snapshot, or one that still contains vanished messages.
    seen: Arc<Snapshot<S::File>>,
    /// The mailbox's snapshot that `seen` is based on.
    of: Arc<Snapshot<S::File>>,
    /// UIDs that are `\Recent` here, ascending.
    recent: Vec<NumberRange>,
}

impl<S: Source> SnapshotView<S> {
    pub async fn select(source: Arc<S>, mode: SelectMode) -> Result<Self, MailstoreError> {
        let of = source.look().await?;
        let mut view = Self::of(source, mode, of, Vec::new());
        view.take_recent();
        Ok(view)
    }

    /// The view of a snapshot. `recent`: UIDs that are `\Recent` in this session.
    pub fn of(source: Arc<S>, mode: SelectMode, of: Arc<Snapshot<S::File>>, recent: Vec<NumberRange>) -> Self {
        Self { source, mode, seen: Arc::clone(&of), of, recent }
    }

    fn take_recent(&mut self) {
        let (recent_from, next) = (self.source.recent_from(), self.seen.uid_next);
        let from = match self.mode {
            // No later session will see them as \Recent.
            SelectMode::Writable => recent_from.fetch_max(next, Ordering::Relaxed),
            SelectMode::ReadOnly | SelectMode::KeepsRecent => recent_from.load(Ordering::Relaxed),
        };
        let from = self.recent.last().map_or(from, |known| from.max(known.last + 1));
        if from < next {
            self.recent.push(NumberRange { first: from, last: next - 1 });
        }
    }

    fn is_recent(&self, uid: u32) -> bool {
        let at = self.recent.partition_point(|range| range.last < uid);
        self.recent.get(at).is_some_and(|range| range.first <= uid)
    }

    fn row(&self, at: usize) -> MessageRow {
        let message = &self.seen.messages[at];
        MessageRow {
            number: at as u32 + 1,
            uid: uid(message.uid),
            flags: message.flags,
            recent: self.is_recent(message.uid),
            modseq: ModSeq(message.modseq),
            size: None,
            internal_date: UNIX_EPOCH + Duration::from_secs(u64::from(message.internal_date)),
        }
    }

    fn positions(&self, set: &MessageSet) -> Vec<Range<usize>> {
        set.positions(self.seen.messages.len(), |uid| self.seen.messages.below(uid))
    }

    fn uids(&self, set: &MessageSet) -> Vec<Uid> {
        self.positions(set).into_iter().flatten().map(|at| uid(self.seen.messages[at].uid)).collect()
    }

    fn check_writable(&self) -> Result<(), MailstoreError> {
        if MailboxView::read_only(self) { Err(MailstoreError::ReadOnly) } else { Ok(()) }
    }

    fn message(&self, uid: Uid) -> Result<&Message<S::File>, MailstoreError> {
        self.seen.find(uid).ok_or(MailstoreError::Gone)
    }

    /// The messages with these UIDs that are in the view.
    fn messages(&self, uids: &[Uid]) -> Vec<Message<S::File>> {
        uids.iter().filter_map(|uid| self.message(*uid).ok().cloned()).collect()
    }

    /// Results for [`messages`](Self::messages), in order of the UIDs, with errors for missing ones.
    fn in_order<T>(&self, uids: &[Uid], found: Vec<Result<T, MailstoreError>>) -> Vec<Result<T, MailstoreError>> {
        let mut found = found.into_iter();
        let of = |uid: &Uid| match self.message(*uid) {
            Ok(_) => found.next(),
            Err(error) => Some(Err(error)),
        };
        uids.iter().map_while(of).collect()
    }

    fn take_in(&mut self, now: Arc<Snapshot<S::File>>, may_expunge: bool) -> ViewChanges {
        let had_ghosts = !Arc::ptr_eq(&self.seen, &self.of);
        if Arc::ptr_eq(&self.of, &now) && !(may_expunge && had_ghosts) {
            return ViewChanges::default();
        }
        let (recent, old) = (self.recent(), Arc::clone(&self.seen));
        let keywords = (now.keywords != old.keywords).then(|| now.keywords.clone());
        // Both are in order of UIDs, and what is new comes after all that was seen.
        let (mut gone, mut changed) = (Vec::new(), Vec::new());
        let first_new = old.messages.compare(&now.messages, |position, message, found| match found {
            None => gone.push(ExpungedMessage { number: position as u32 + 1, uid: uid(message.uid) }),
            Some((at, found)) => {
                // Flags that were set and unset since: a client with CONDSTORE is to hear of the MODSEQ.
                if (found.flags, found.modseq) != (message.flags, message.modseq) {
                    changed.push((if may_expunge { at } else { position }, message.flags));
                }
            }
        });
        let has_new = first_new < now.messages.len();
        self.seen = if may_expunge || gone.is_empty() { Arc::clone(&now) } else { Arc::new(with_ghosts(&old, &now)) };
        self.of = now;
        self.take_recent();
        gone.reverse();
        ViewChanges {
            expunged: if may_expunge { gone } else { Vec::new() },
            exists: has_new.then(|| self.exists()),
            recent: Some(self.recent()).filter(|now| *now != recent),
            flags: changed.into_iter().map(|(at, before)| ChangedFlags { row: self.row(at), before }).collect(),
            keywords,
        }
    }
}

/// All messages seen so far, in their present or last state, plus the new ones.
fn with_ghosts<F: Clone>(old: &Snapshot<F>, now: &Snapshot<F>) -> Snapshot<F> {
    let mut messages = old.messages.clone();
    let first_new = old.messages.compare(&now.messages, |at, _, found| {
        if let Some((_, found)) = found {
            messages.set(at, found.clone());
        }
    });
    now.messages.iter_from(first_new).for_each(|message| messages.push(message.clone()));
    // An expunge that was not told yet holds it back (RFC 7162 section 3.2.5).
    let highest_modseq = old.highest_modseq;
    Snapshot { messages, uid_next: now.uid_next, highest_modseq, keywords: now.keywords.clone() }
}

impl<S: Source> MailboxView for SnapshotView<S> {
    fn id(&self) -> MailboxId {
        self.source.id()
    }

    fn read_only(&self) -> bool {
        self.mode == SelectMode::ReadOnly || self.source.is_read_only()
    }

    fn uid_validity(&self) -> UidValidity {
        self.source.uid_validity()
    }

    fn uid_next(&self) -> Uid {
        uid(self.seen.uid_next)
    }

    fn exists(&self) -> u32 {
        self.seen.messages.len() as u32
    }

    fn recent(&self) -> u32 {
        let messages = &self.seen.messages;
        let count =
            |range: &NumberRange| messages.below(u64::from(range.last) + 1) - messages.below(range.first.into());
        self.recent.iter().map(count).sum::<usize>() as u32
    }

    fn first_unseen(&self) -> Option<u32> {
        // Else it would look at all of them, at each SELECT of a mailbox that was read.
        if self.seen.messages.counts().unseen == 0 {
            return None;
        }
        let mut numbered = self.seen.messages.iter().zip(1..);
        numbered.find(|(message, _)| !message.flags.contains(MessageFlags::SEEN)).map(|(_, number)| number)
    }

    fn last_uid(&self) -> Option<Uid> {
        self.seen.messages.last().map(|message| uid(message.uid))
    }

    fn highest_modseq(&self) -> ModSeq {
        ModSeq(self.seen.highest_modseq)
    }

    fn keywords(&self) -> KeywordTable {
        self.seen.keywords.clone()
    }

    fn advance(&mut self, may_expunge: bool) -> Asked<'_, ViewChanges> {
        Box::pin(async move {
            let now = self.source.look().await?;
            Ok(self.take_in(now, may_expunge))
        })
    }

    fn catch_up(&mut self, may_expunge: bool) -> Asked<'_, ViewChanges> {
        Box::pin(async move {
            let now = self.source.known().await?;
            Ok(self.take_in(now, may_expunge))
        })
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        if !Arc::ptr_eq(&self.seen, &self.of) {
            return Box::pin(std::future::ready(()));
        }
        self.source.changed(&self.of)
    }

    fn unique_ids(&self) -> Asked<'_, Arc<UniqueIds>> {
        self.source.unique_ids()
    }

    fn vanished(&self, since: ModSeq) -> Asked<'_, Vec<NumberRange>> {
        Box::pin(async move {
            let absent = absent(&self.seen);
            Ok(match self.source.gone_since(since).await? {
                Some(gone) => NumberRange::common(&MessageSet::merged(&gone), &absent),
                None => absent,
            })
        })
    }

    fn files(&self) -> Asked<'_, Option<Arc<dyn MailboxFiles>>> {
        let files = |folder| Arc::new(SnapshotFiles::<S> { folder, messages: Arc::clone(&self.seen) }) as _;
        Box::pin(std::future::ready(Ok(self.source.folder().map(files))))
    }

    fn rows<'a>(&'a self, set: &MessageSet, options: RowOptions) -> Box<dyn MessageRows + 'a> {
        Box::new(SnapshotRows { view: self, options, left: self.positions(set).into_iter().flatten() })
    }

    fn headers<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Bytes, MailstoreError>>> {
        Box::pin(async move { Ok(self.in_order(uids, self.source.headers(self.messages(uids)).await?)) })
    }

    fn fields<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Bytes, MailstoreError>>> {
        Box::pin(async move { Ok(self.in_order(uids, self.source.fields(self.messages(uids)).await?)) })
    }

    fn kept<'a>(&'a self, kind: KeptKind, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Option<Bytes>, MailstoreError>>> {
        Box::pin(async move { Ok(self.in_order(uids, self.source.kept(kind, self.messages(uids)).await?)) })
    }

    fn keep(&self, kind: KeptKind, uid: Uid, made: &[u8]) {
        if let Ok(message) = self.message(uid) {
            self.source.keep(kind, message, made);
        }
    }

    fn body(&self, uid: Uid) -> Asked<'_, Arc<dyn MailBody>> {
        match self.message(uid) {
            Ok(message) => self.source.body(message),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn bodies<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Arc<dyn MailBody>, MailstoreError>>> {
        Box::pin(async move { Ok(self.in_order(uids, self.source.bodies(self.messages(uids)).await?)) })
    }

    fn store<'a>(
        &'a self,
        set: &'a MessageSet,
        update: &'a FlagUpdate,
        unchanged_since: Option<ModSeq>,
    ) -> Asked<'a, StoredFlags> {
        Box::pin(async move {
            self.check_writable()?;
            let uids = self.uids(set);
            if uids.is_empty() {
                Ok(StoredFlags::default())
            } else {
                self.source.store(uids, update.clone(), unchanged_since).await
            }
        })
    }

    fn expunge(&self, uids: Option<Vec<NumberRange>>) -> Asked<'_, ()> {
        Box::pin(async move {
            self.check_writable()?;
            self.source.expunge(uids).await
        })
    }

    fn remove<'a>(&'a self, set: &'a MessageSet) -> Asked<'a, ()> {
        Box::pin(async move {
            self.check_writable()?;
            self.source.remove(self.uids(set)).await
        })
    }

    fn copy<'a>(&'a self, set: &'a MessageSet, to: MailboxId) -> Asked<'a, Option<CopiedMessages>> {
        self.source.copy(self.uids(set), to, false)
    }

    fn move_to<'a>(&'a self, set: &'a MessageSet, to: MailboxId) -> Asked<'a, Option<CopiedMessages>> {
        Box::pin(async move {
            self.check_writable()?;
            self.source.copy(self.uids(set), to, true).await
        })
    }
}

struct SnapshotFiles<S: Source> {
    folder: String,
    messages: Arc<Snapshot<S::File>>,
}

impl<S: Source> MailboxFiles for SnapshotFiles<S> {
    fn folder(&self) -> String {
        self.folder.clone()
    }

    fn for_each(&self, each: &mut dyn FnMut(Uid, &str)) {
        let named =
            self.messages.messages.iter().filter_map(|message| Some((message.uid, S::file_name(&message.file)?)));
        named.for_each(|(number, name)| each(uid(number), name));
    }
}

/// UIDs below the next one that have no message.
fn absent<F>(snapshot: &Snapshot<F>) -> Vec<NumberRange> {
    let mut next = 1;
    let uids = snapshot.messages.iter().map(|message| message.uid).chain([snapshot.uid_next]);
    let gap = |uid: u32| {
        let gap = (next < uid).then(|| NumberRange { first: next, last: uid - 1 });
        next = uid.saturating_add(1);
        gap
    };
    uids.filter_map(gap).collect()
}

struct SnapshotRows<'a, S: Source> {
    view: &'a SnapshotView<S>,
    options: RowOptions,
    /// Remaining positions.
    left: std::iter::Flatten<std::vec::IntoIter<Range<usize>>>,
}

impl<S: Source> MessageRows for SnapshotRows<'_, S> {
    fn next(&mut self) -> Asked<'_, Vec<MessageRow>> {
        Box::pin(async move {
            let mut rows: Vec<MessageRow> = self.left.by_ref().take(ROWS_AT_ONCE).map(|at| self.view.row(at)).collect();
            if self.options.sizes {
                for row in &mut rows {
                    let message = &self.view.seen.messages[row.number as usize - 1];
                    let size = match self.view.source.known_size(message) {
                        Some(size) => Ok(size),
                        None => self.view.source.size(message).await,
                    };
                    row.size = match size {
                        Ok(size) => Some(size),
                        Err(error @ MailstoreError::Unavailable(_)) => return Err(error),
                        Err(_) => None,
                    };
                }
            }
            Ok(rows)
        })
    }
}
