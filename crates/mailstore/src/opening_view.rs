//! A session's view of a mailbox that is still being loaded: counters answer SELECT, all other calls wait.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::{OnceCell, watch};

use crate::error::{Asked, MailstoreError};
use crate::flags::{FlagUpdate, KeywordTable};
use crate::mail_body::MailBody;
use crate::row::{MailboxId, MailboxStatus, MessageRow, MessageSet, ModSeq, NumberRange, Uid, UidValidity, UniqueIds};
use crate::snapshot::{Snapshot, SnapshotView, Source};
use crate::store::{
    CopiedMessages, KeptKind, MailboxFiles, MailboxView, MessageRows, RowOptions, SelectMode, StoredFlags, ViewChanges,
};

/// Counters of a mailbox at one moment.
#[derive(Debug, Clone)]
pub(crate) struct MailboxNumbers {
    pub status: MailboxStatus,
    /// The UID from which on `status` counts messages as `\Recent`.
    pub recent_from: u32,
    /// The number of the first message without `\Seen`.
    pub first_unseen: Option<u32>,
    pub last_uid: Option<Uid>,
    pub keywords: KeywordTable,
}

impl MailboxNumbers {
    /// Number of messages `\Recent` from a UID on; `None` if it requires the messages.
    pub fn recent_from(&self, from: u32) -> Option<u32> {
        match from {
            from if from == self.recent_from => Some(self.status.recent),
            from if from >= self.status.uid_next.get() => Some(0),
            _ => None,
        }
    }

    /// True if the counters match a snapshot.
    pub fn are_of<F>(&self, snapshot: &Snapshot<F>) -> bool {
        let MailboxStatus { exists, uid_next, highest_modseq, .. } = self.status;
        let last_uid = snapshot.messages.last().map(|message| message.uid);
        (exists as usize, uid_next.get(), highest_modseq.0)
            == (snapshot.messages.len(), snapshot.uid_next, snapshot.highest_modseq)
            && last_uid == self.last_uid.map(Uid::get)
    }
}

/// A mailbox being loaded.
#[derive(Debug, Clone)]
pub(crate) struct OpeningMailbox<F> {
    pub numbers: Arc<MailboxNumbers>,
    /// Messages of the same moment as the counters. Closed without a value if loading fails.
    pub messages: watch::Receiver<Option<Arc<Snapshot<F>>>>,
}

/// A view with counters from the beginning, and messages after loading.
pub(crate) struct OpeningView<S: Source> {
    source: Arc<S>,
    mode: SelectMode,
    opening: OpeningMailbox<S::File>,
    /// UIDs that are `\Recent` here, and the number of such messages.
    recent: (Option<NumberRange>, u32),
    view: OnceCell<SnapshotView<S>>,
}

impl<S: Source> OpeningView<S> {
    /// `None` if the counters are insufficient, and the session must wait for the messages.
    pub fn select(source: Arc<S>, mode: SelectMode, opening: OpeningMailbox<S::File>) -> Option<Self> {
        let (from, next) = (source.recent_from(), opening.numbers.status.uid_next.get());
        let count = opening.numbers.recent_from(from.load(Ordering::Relaxed))?;
        let from = match mode {
            // No later session will see them as \Recent. Nor does this one, if another has come first.
            SelectMode::Writable => from.fetch_max(next, Ordering::Relaxed),
            SelectMode::ReadOnly | SelectMode::KeepsRecent => from.load(Ordering::Relaxed),
        };
        let count = opening.numbers.recent_from(from).unwrap_or(count);
        let recent = ((from < next).then(|| NumberRange { first: from, last: next - 1 }), count);
        Some(Self { source, mode, opening, recent, view: OnceCell::new() })
    }

    /// Waits for the messages and returns the view.
    async fn view(&self) -> Result<&SnapshotView<S>, MailstoreError> {
        let make = || async {
            let mut messages = self.opening.messages.clone();
            let read = messages.wait_for(Option::is_some).await.ok().and_then(|read| read.clone());
            let messages = match read {
                Some(messages) => messages,
                // They could not be read then. A later attempt counts, if nothing has changed since.
                None => self.source.look().await?,
            };
            if self.opening.numbers.are_of(&messages) {
                let recent = self.recent.0.into_iter().collect();
                Ok(SnapshotView::of(Arc::clone(&self.source), self.mode, messages, recent))
            } else {
                // A row is damaged, and the client was told of its messages: the session ends, and the next one looks first.
                Err(MailstoreError::NoMailbox)
            }
        };
        self.view.get_or_try_init(make).await
    }

    async fn view_mut(&mut self) -> Result<&mut SnapshotView<S>, MailstoreError> {
        self.view().await?;
        Ok(self.view.get_mut().expect("it was made"))
    }

    fn numbers(&self) -> &MailboxNumbers {
        &self.opening.numbers
    }
}

impl<S: Source> MailboxView for OpeningView<S> {
    fn id(&self) -> MailboxId {
        self.source.id()
    }

    fn read_only(&self) -> bool {
        self.mode == SelectMode::ReadOnly || self.source.is_read_only()
    }

    fn uid_validity(&self) -> UidValidity {
        self.numbers().status.uid_validity
    }

    fn uid_next(&self) -> Uid {
        self.view.get().map_or(self.numbers().status.uid_next, MailboxView::uid_next)
    }

    fn exists(&self) -> u32 {
        self.view.get().map_or(self.numbers().status.exists, MailboxView::exists)
    }

    fn recent(&self) -> u32 {
        self.view.get().map_or(self.recent.1, MailboxView::recent)
    }

    fn first_unseen(&self) -> Option<u32> {
        self.view.get().map_or(self.numbers().first_unseen, MailboxView::first_unseen)
    }

    fn last_uid(&self) -> Option<Uid> {
        self.view.get().map_or(self.numbers().last_uid, MailboxView::last_uid)
    }

    fn highest_modseq(&self) -> ModSeq {
        self.view.get().map_or(self.numbers().status.highest_modseq, MailboxView::highest_modseq)
    }

    fn keywords(&self) -> KeywordTable {
        self.view.get().map_or_else(|| self.numbers().keywords.clone(), MailboxView::keywords)
    }

    fn advance(&mut self, may_expunge: bool) -> Asked<'_, ViewChanges> {
        Box::pin(async move { self.view_mut().await?.advance(may_expunge).await })
    }

    fn catch_up(&mut self, may_expunge: bool) -> Asked<'_, ViewChanges> {
        Box::pin(async move { self.view_mut().await?.catch_up(may_expunge).await })
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            // The next call says why there is none.
            if let Ok(view) = self.view().await {
                view.changed().await;
            }
        })
    }

    fn vanished(&self, since: ModSeq) -> Asked<'_, Vec<NumberRange>> {
        Box::pin(async move { self.view().await?.vanished(since).await })
    }

    fn files(&self) -> Asked<'_, Option<Arc<dyn MailboxFiles>>> {
        Box::pin(async move { self.view().await?.files().await })
    }

    fn unique_ids(&self) -> Asked<'_, Arc<UniqueIds>> {
        self.source.unique_ids()
    }

    fn rows<'a>(&'a self, set: &MessageSet, options: RowOptions) -> Box<dyn MessageRows + 'a> {
        match self.view.get() {
            Some(view) => view.rows(set, options),
            None => Box::new(OpeningRows { view: self, set: set.clone(), options, rows: None }),
        }
    }

    fn headers<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Bytes, MailstoreError>>> {
        Box::pin(async move { self.view().await?.headers(uids).await })
    }

    fn fields<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Bytes, MailstoreError>>> {
        Box::pin(async move { self.view().await?.fields(uids).await })
    }

    fn kept<'a>(&'a self, kind: KeptKind, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Option<Bytes>, MailstoreError>>> {
        Box::pin(async move { self.view().await?.kept(kind, uids).await })
    }

    fn keep(&self, kind: KeptKind, uid: Uid, made: &[u8]) {
        if let Some(view) = self.view.get() {
            view.keep(kind, uid, made);
        }
    }

    fn body(&self, uid: Uid) -> Asked<'_, Arc<dyn MailBody>> {
        Box::pin(async move { self.view().await?.body(uid).await })
    }

    fn bodies<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Arc<dyn MailBody>, MailstoreError>>> {
        Box::pin(async move { self.view().await?.bodies(uids).await })
    }

    fn store<'a>(
        &'a self,
        set: &'a MessageSet,
        update: &'a FlagUpdate,
        unchanged_since: Option<ModSeq>,
    ) -> Asked<'a, StoredFlags> {
        Box::pin(async move { self.view().await?.store(set, update, unchanged_since).await })
    }

    fn expunge(&self, uids: Option<Vec<NumberRange>>) -> Asked<'_, ()> {
        Box::pin(async move { self.view().await?.expunge(uids).await })
    }

    fn remove<'a>(&'a self, set: &'a MessageSet) -> Asked<'a, ()> {
        Box::pin(async move { self.view().await?.remove(set).await })
    }

    fn copy<'a>(&'a self, set: &'a MessageSet, to: MailboxId) -> Asked<'a, Option<CopiedMessages>> {
        Box::pin(async move { self.view().await?.copy(set, to).await })
    }

    fn move_to<'a>(&'a self, set: &'a MessageSet, to: MailboxId) -> Asked<'a, Option<CopiedMessages>> {
        Box::pin(async move { self.view().await?.move_to(set, to).await })
    }
}

struct OpeningRows<'a, S: Source> {
    view: &'a OpeningView<S>,
    set: MessageSet,
    options: RowOptions,
    /// `None` until the messages are loaded.
    rows: Option<Box<dyn MessageRows + 'a>>,
}

impl<S: Source> MessageRows for OpeningRows<'_, S> {
    fn next(&mut self) -> Asked<'_, Vec<MessageRow>> {
        Box::pin(async move {
            if self.rows.is_none() {
                self.rows = Some(self.view.view().await?.rows(&self.set, self.options));
            }
            self.rows.as_mut().expect("it was put there").next().await
        })
    }
}
