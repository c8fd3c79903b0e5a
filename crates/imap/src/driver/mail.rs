//! Converts answers of the store into the session's types.

use std::time::UNIX_EPOCH;

use posthaste_mailstore::{
    ExpungedMessage, KeywordTable, ListedMailbox, MailboxStatus, MailboxView, MailstoreError, MessageRow, MessageSet,
    NumberRange, QuotaUse, ViewChanges,
};

use crate::session::{
    ChangedRow, ExpungedRow, ListedName, MailChanges, MailQuota, MailRefusal, MailboxCounts, MessageChoice,
    SelectedMailbox, ViewRow,
};
use crate::set::NumberSet;

pub(super) fn refusal(error: &MailstoreError) -> MailRefusal {
    match error {
        MailstoreError::NoMailbox | MailstoreError::Gone => MailRefusal::Gone,
        MailstoreError::NoPermission => MailRefusal::NoPermission,
        MailstoreError::Damaged(_) => MailRefusal::Damaged,
        MailstoreError::ReadOnly => MailRefusal::ReadOnly,
        MailstoreError::Exists => MailRefusal::Exists,
        MailstoreError::UseTaken => MailRefusal::UseTaken,
        MailstoreError::Cannot(why) => MailRefusal::Cannot(why),
        MailstoreError::NoSpace => MailRefusal::NoSpace,
        MailstoreError::OverQuota => MailRefusal::OverQuota,
        MailstoreError::Limit => MailRefusal::Limit,
        MailstoreError::TooBig => MailRefusal::TooBig,
        _ => MailRefusal::Unavailable,
    }
}

pub(super) fn row(row: &MessageRow) -> ViewRow {
    let since = row.internal_date.duration_since(UNIX_EPOCH).unwrap_or_default();
    ViewRow {
        number: row.number,
        uid: row.uid.get(),
        flags: row.flags.0,
        recent: row.recent,
        modseq: row.modseq.0,
        size: row.size,
        internal_date: since.as_secs().try_into().unwrap_or(i64::MAX),
    }
}

pub(super) fn selected(view: &dyn MailboxView) -> SelectedMailbox {
    SelectedMailbox {
        exists: view.exists(),
        recent: view.recent(),
        first_unseen: view.first_unseen(),
        uid_validity: view.uid_validity().get(),
        uid_next: view.uid_next().get(),
        last_uid: last_uid(view),
        keywords: keywords(&view.keywords()),
        highest_modseq: view.highest_modseq().0,
        read_only: view.read_only(),
    }
}

fn last_uid(view: &dyn MailboxView) -> u32 {
    view.last_uid().map_or(0, |uid| uid.get())
}

fn keywords(table: &KeywordTable) -> Vec<(u64, String)> {
    table.all().map(|(flag, name)| (flag.0, name.to_owned())).collect()
}

pub(super) fn changes(changes: &ViewChanges, view: &dyn MailboxView) -> MailChanges {
    MailChanges {
        expunged: changes.expunged.iter().map(expunged).collect(),
        exists: changes.exists,
        recent: changes.recent,
        flags: changes
            .flags
            .iter()
            .map(|changed| ChangedRow { row: row(&changed.row), before: changed.before.0 })
            .collect(),
        keywords: changes.keywords.as_ref().map(keywords),
        last_uid: last_uid(view),
        highest_modseq: view.highest_modseq().0,
    }
}

fn expunged(message: &ExpungedMessage) -> ExpungedRow {
    ExpungedRow { number: message.number, uid: message.uid.get() }
}

pub(super) fn vanished(uids: &[NumberRange]) -> NumberSet {
    NumberSet::from_ranges(uids.iter().map(|range| range.first..=range.last).collect())
}

pub(super) fn quota(quota: &QuotaUse) -> MailQuota {
    let QuotaUse { bytes, messages, limits } = *quota;
    MailQuota { bytes: (bytes, limits.bytes), messages: (messages, limits.messages) }
}

pub(super) fn counts(status: &MailboxStatus) -> MailboxCounts {
    MailboxCounts {
        messages: status.exists,
        recent: status.recent,
        uid_next: status.uid_next.get(),
        uid_validity: status.uid_validity.get(),
        unseen: status.unseen,
        deleted: status.deleted,
        size: status.bytes,
        highest_modseq: status.highest_modseq.0,
    }
}

pub(super) fn listed(mailbox: &ListedMailbox) -> ListedName {
    ListedName {
        name: mailbox.name.to_string(),
        is_mailbox: mailbox.id.is_some(),
        special_use: mailbox.special_use.map(|special_use| special_use.attribute()),
        has_children: mailbox.has_children,
        subscribed: mailbox.subscribed,
        subscribed_below: mailbox.subscribed_below,
        counts: mailbox.status.as_ref().map(counts),
    }
}

pub(super) fn ranges(set: &NumberSet) -> Vec<NumberRange> {
    set.ranges().iter().map(|range| NumberRange { first: *range.start(), last: *range.end() }).collect()
}

pub(super) fn message_set(choice: &MessageChoice) -> MessageSet {
    match choice {
        MessageChoice::Numbers(set) => MessageSet::Numbers(ranges(set)),
        MessageChoice::Uids(set) => MessageSet::Uids(ranges(set)),
    }
}
