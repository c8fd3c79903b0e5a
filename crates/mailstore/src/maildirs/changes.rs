//! Changes of a mailbox that a session asks for.

use std::sync::Arc;

use super::change_batch::change;
use super::copies::copy;
use super::file_work::run;
use super::mailbox::MaildirMailbox;
use super::scratch::Operation;
use crate::error::{Asked, MailstoreError};
use crate::flags::FlagUpdate;
use crate::row::{MailboxId, ModSeq, NumberRange, Uid};
use crate::snapshot::ChangeTarget;
use crate::store::{CopiedMessages, StoredFlags};

impl ChangeTarget for MaildirMailbox {
    fn is_read_only(&self) -> bool {
        false
    }

    fn store(&self, uids: Vec<Uid>, update: FlagUpdate, unchanged_since: Option<ModSeq>) -> Asked<'_, StoredFlags> {
        let unchanged_since = unchanged_since.map(|since| since.0);
        let operation = Operation::Store { uids, update, unchanged_since };
        Box::pin(async move { change(self.core(), operation).await })
    }

    fn expunge(&self, uids: Option<Vec<NumberRange>>) -> Asked<'_, ()> {
        Box::pin(async move { change(self.core(), Operation::Expunge(uids)).await.map(drop) })
    }

    fn remove(&self, uids: Vec<Uid>) -> Asked<'_, ()> {
        Box::pin(async move { change(self.core(), Operation::Remove(uids)).await.map(drop) })
    }

    fn copy(&self, uids: Vec<Uid>, to: MailboxId, moves: bool) -> Asked<'_, Option<CopiedMessages>> {
        Box::pin(async move {
            let from = Arc::clone(self.core());
            let to = self.loaded().find(to.0).map(|mailbox| Arc::clone(mailbox.core()));
            // No other account's.
            let to = to.filter(|to| to.owner.id == from.owner.id).ok_or(MailstoreError::NoMailbox)?;
            let (source, target) = (Arc::clone(&from), Arc::clone(&to));
            run(source.files.to_copy(target.id, &target.files), move |work| copy((&from, &to), &uids, moves, work))
                .await
        })
    }
}
