//! Header fields of the next messages, asked for together: for each by itself the change of threads would cost more than the look.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use posthaste_mailstore::{MailboxView, MailstoreError, MessageRow, Uid};

/// Messages that are asked for at once.
const AHEAD_MAX: usize = 64;

/// Fields that were asked for before their messages came up.
#[derive(Default)]
pub(super) struct FieldsAhead {
    found: HashMap<u32, Result<Bytes, MailstoreError>>,
    /// Messages that the last step asked for.
    count: usize,
}

impl FieldsAhead {
    /// The listed fields of a message. `next`: the rows after it. More are asked for each time that all of the last step were needed.
    pub async fn fields(
        &mut self,
        view: &dyn MailboxView,
        uid: u32,
        next: &VecDeque<MessageRow>,
    ) -> Result<Bytes, MailstoreError> {
        if let Some(found) = self.found.remove(&uid) {
            return found;
        }
        self.count = if self.found.is_empty() { (self.count * 2).clamp(1, AHEAD_MAX) } else { 1 };
        self.found.clear();
        let first = Uid::new(uid).ok_or(MailstoreError::Gone)?;
        let uids: Vec<Uid> = [first].into_iter().chain(next.iter().map(|row| row.uid)).take(self.count).collect();
        let mut found = view.fields(&uids).await?.into_iter();
        let of_first = found.next().unwrap_or(Err(MailstoreError::Gone));
        self.found.extend(uids[1..].iter().map(|uid| uid.get()).zip(found));
        of_first
    }
}
