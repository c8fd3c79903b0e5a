//! Changes of mailboxes, which are all refused yet.

use super::mailbox::MaildirMailbox;
use crate::error::MailstoreError;
use crate::flags::FlagUpdate;
use crate::row::{MailboxId, ModSeq, NumberRange, Uid};
use crate::snapshot::ChangeTarget;
use crate::store::{Asked, CopiedMessages, StoredFlags};

pub(super) fn impossible<'a, T: Send + 'a>() -> Asked<'a, T> {
    Box::pin(std::future::ready(Err(MailstoreError::Cannot("Mailboxes cannot be changed here yet"))))
}

impl ChangeTarget for MaildirMailbox {
    fn is_read_only(&self) -> bool {
        true
    }

    fn store(&self, _: Vec<Uid>, _: FlagUpdate, _: Option<ModSeq>) -> Asked<'_, StoredFlags> {
        impossible()
    }

    fn expunge(&self, _: Option<Vec<NumberRange>>) -> Asked<'_, ()> {
        impossible()
    }

    fn remove(&self, _: Vec<Uid>) -> Asked<'_, ()> {
        impossible()
    }

    fn copy(&self, _: Vec<Uid>, _: MailboxId, _: bool) -> Asked<'_, Option<CopiedMessages>> {
        impossible()
    }
}
