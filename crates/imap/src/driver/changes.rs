//! Changes requested by a session, translated into calls of the store.

use std::time::{Duration, UNIX_EPOCH};

use posthaste_mailstore::{
    AppendRequest, FlagUpdate, FlagUpdateMode, MailAccount, MailboxId, MailboxName, MailboxView, MailstoreError,
    MessageFlags, MessageSet, MessageWriter, ModSeq, NumberRange, RowOptions, SpecialUse, Uid,
};

use super::mail::{message_set, quota as quota_of, ranges, refusal};
use crate::session::{
    AppendedMail, CopiedMail, FlagChange, FlagsUpdate, MailQuota, MailRefusal, MailboxChange, MessageChoice,
    MessageOffer, StoredMail,
};
use crate::set::NumberSet;

type Answer<T> = Result<T, MailRefusal>;

fn refused(error: MailstoreError) -> MailRefusal {
    refusal(&error)
}

pub(super) async fn find(account: &dyn MailAccount, name: &str) -> Answer<MailboxId> {
    let name = MailboxName::parse(name).map_err(|_| MailRefusal::Gone)?;
    account.find(&name).await.map_err(refused)?.ok_or(MailRefusal::Gone)
}

/// The quota of the account. [`MailRefusal::Gone`]: no such mailbox.
pub(super) async fn quota(account: &dyn MailAccount, mailbox: Option<&str>) -> Answer<Option<MailQuota>> {
    if let Some(mailbox) = mailbox {
        find(account, mailbox).await?;
    }
    Ok(account.quota().await.map_err(refused)?.as_ref().map(quota_of))
}

pub(super) async fn store(
    view: &dyn MailboxView,
    uid: bool,
    set: &MessageChoice,
    update: FlagsUpdate,
    unchanged_since: Option<u64>,
) -> Answer<StoredMail> {
    let mode = match update.change {
        FlagChange::Replace => FlagUpdateMode::Replace,
        FlagChange::Add => FlagUpdateMode::Add,
        FlagChange::Remove => FlagUpdateMode::Remove,
    };
    let update = FlagUpdate { mode, flags: MessageFlags(update.flags), keywords: update.keywords };
    let stored = view.store(&message_set(set), &update, unchanged_since.map(ModSeq)).await.map_err(refused)?;
    let modified = if uid { uid_set(&stored.modified) } else { numbers(view, &stored.modified).await? };
    Ok(StoredMail { modified, gone: stored.gone })
}

pub(super) async fn mark_seen(view: &dyn MailboxView, uids: &NumberSet) {
    let update = FlagUpdate { mode: FlagUpdateMode::Add, flags: MessageFlags::SEEN, keywords: Vec::new() };
    // The client has the messages; a later look at them tries again.
    let _ = view.store(&MessageSet::Uids(ranges(uids)), &update, None).await;
}

pub(super) async fn expunge(view: &dyn MailboxView, uids: Option<&NumberSet>) -> Answer<()> {
    view.expunge(uids.map(ranges)).await.map_err(refused)
}

pub(super) async fn copy(
    account: &dyn MailAccount,
    view: &dyn MailboxView,
    set: &MessageChoice,
    mailbox: &str,
    moves: bool,
) -> Answer<Option<CopiedMail>> {
    let to = find(account, mailbox).await?;
    let set = message_set(set);
    let copied = if moves { view.move_to(&set, to).await } else { view.copy(&set, to).await };
    let copied = copied.map_err(|error| match error {
        // The file of a message is gone, not the mailbox: the next look at the mailbox notices.
        MailstoreError::Gone => MailRefusal::Unavailable,
        error => refused(error),
    });
    let copied = copied?.map(|copied| CopiedMail {
        uid_validity: copied.uid_validity.get(),
        from: uid_set(&copied.from),
        to: uid_set(&copied.to),
    });
    Ok(copied)
}

pub(super) async fn append(
    account: &dyn MailAccount,
    mailbox: &str,
    offer: MessageOffer,
) -> Answer<Box<dyn MessageWriter>> {
    let mailbox = find(account, mailbox).await?;
    account.append(mailbox, append_request(offer)).await.map_err(refused)
}

pub(super) async fn append_next(writer: &mut dyn MessageWriter, offer: MessageOffer) -> Answer<()> {
    writer.next(append_request(offer)).await.map_err(refused)
}

fn append_request(offer: MessageOffer) -> AppendRequest {
    let date = offer.date.map(|secs| UNIX_EPOCH + Duration::from_secs(secs.clamp(0, u32::MAX.into()) as u64));
    AppendRequest {
        flags: MessageFlags(offer.flags),
        keywords: offer.keywords,
        internal_date: date,
        octets: offer.octets,
    }
}

pub(super) async fn finish(writer: Box<dyn MessageWriter>) -> Answer<AppendedMail> {
    let appended = writer.finish().await.map_err(refused)?;
    let first = appended.uid.get();
    let last = appended.uid.get() + (appended.count - 1);
    Ok(AppendedMail { uid_validity: appended.uid_validity.get(), uids: NumberSet::from_ranges(vec![first..=last]) })
}

pub(super) async fn manage(account: &dyn MailAccount, change: MailboxChange) -> Answer<()> {
    let new_name = |name: &str| MailboxName::parse(name).map_err(|_| MailRefusal::Cannot("That is not a mailbox name"));
    match change {
        MailboxChange::Create { mailbox, special_use } => {
            let name = new_name(&mailbox)?;
            let special_use = match special_use {
                Some(attribute) => Some(SpecialUse::of_attribute(&attribute).ok_or(MailRefusal::UseTaken)?),
                None => None,
            };
            account.create(&name, special_use).await.map(drop)
        }
        MailboxChange::Delete(mailbox) => account.delete(find(account, &mailbox).await?).await,
        MailboxChange::Rename { from, to } => {
            let to = new_name(&to)?;
            account.rename(find(account, &from).await?, &to).await
        }
        MailboxChange::Subscribe { mailbox, on } => account.subscribe(&new_name(&mailbox)?, on).await,
    }
    .map_err(refused)
}

/// Converts ascending UIDs to a set.
fn uid_set(uids: &[Uid]) -> NumberSet {
    let mut set = NumberSet::default();
    uids.iter().for_each(|uid| set.push(uid.get()));
    set
}

/// Converts UIDs to message numbers in the view.
async fn numbers(view: &dyn MailboxView, uids: &[Uid]) -> Answer<NumberSet> {
    let uids = uids.iter().map(|uid| NumberRange { first: uid.get(), last: uid.get() }).collect();
    let mut rows = view.rows(&MessageSet::Uids(uids), RowOptions::default());
    let mut set = NumberSet::default();
    loop {
        let some = rows.next().await.map_err(refused)?;
        if some.is_empty() {
            return Ok(set);
        }
        some.iter().for_each(|row| set.push(row.number));
    }
}
