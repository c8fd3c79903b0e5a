//! Checks of outgoing mail by the suppression list, before each attempt and before a connection.

use std::sync::Arc;

use posthaste_smtp::Reply;

use super::bounces::wall_secs;
use super::ended::attempted;
use super::messages::Envelope;
use super::observer::AttemptResult;
use super::shared::Shared;
use super::site::Site;
use super::status::{ReplyPlace, keys_of};
use posthaste_notify::suppression::{DamagedSuppressions, Suppressed, SuppressionError, SuppressionSource};
use posthaste_queue::{AttemptOutcome, Prefer, Take, Taken, Transaction};

/// Ends the recipients of a transaction that are on the list, and leaves the others. Without a list this costs
/// nothing; with one it may read from the disk.
///
/// # Errors
/// The list is unreadable.
pub(super) fn end_suppressed(
    shared: &Arc<Shared>,
    transaction: &mut Transaction,
    envelope: &Envelope,
) -> Result<(), SuppressionError> {
    let Some(list) = shared.config.bounces.suppressed() else { return Ok(()) };
    let address = |taken: &Taken| envelope.recipient(taken.number).map_or("", |recipient| &*recipient.address);
    let addresses = transaction.recipients.iter().map(address);
    let found = list.find_each(&envelope.queued.tenant, addresses, wall_secs())?;
    if found.iter().all(Option::is_none) {
        return Ok(());
    }
    let mut left = Vec::with_capacity(transaction.recipients.len());
    let mut changes = Vec::new();
    for ((key, taken), entry) in keys_of(transaction).zip(&transaction.recipients).zip(found) {
        let Some(entry) = entry else {
            left.push(*taken);
            continue;
        };
        let Some(change) = shared.queue().finish(key, AttemptOutcome::Suppressed) else { continue };
        let result = AttemptResult::Suppressed;
        let reply = reply_for(&entry);
        let host = Arc::from("");
        let place = ReplyPlace::of(&host);
        changes.push((change, attempted(shared, key, Some(envelope), taken.attempts, result, place, reply)));
    }
    shared.record_told(changes);
    transaction.recipients = left;
    Ok(())
}

/// Ends the mail of a site that waits for suppressed addresses, up to the first for another address. True if one was
/// found. Blocks.
pub(super) fn has_unsuppressed(shared: &Arc<Shared>, site: &Site) -> bool {
    while shared.config.bounces.suppressed().is_some()
        && !shared.is_ending()
        && shared.outcomes.recorder.budget.may_begin()
    {
        let ready = site.state().ready;
        let take = Take { prefer: Prefer::First, recipients_max: shared.config.recipients_max, across_domains: true };
        let next = shared.queue().next(ready, take);
        let Some(mut transaction) = next else { return false };
        let is_asked = match shared.messages.envelope(transaction.message) {
            Ok(envelope) => end_suppressed(shared, &mut transaction, &envelope).is_ok(),
            Err(_) => false,
        };
        if !is_asked || !transaction.recipients.is_empty() {
            // Back to the front. The attempt reports any error.
            let keys: Vec<_> = keys_of(&transaction).map(|key| (key, AttemptOutcome::Untried)).collect();
            shared.finish(keys);
            return true;
        }
    }
    true
}

/// Makes new entries of the list and the owners of signed senders durable. Blocks.
pub(super) fn flush_bounces(shared: &Shared) {
    let published = shared.spool.stats().published;
    if let Some(signed) = shared.config.bounces.return_path.as_ref().filter(|signed| signed.is_fed())
        && let Err(error) = signed.flush()
    {
        shared.warn(published, &error.to_string());
    }
    let Some(list) = shared.config.bounces.suppressions.as_ref().filter(|list| list.is_fed()) else { return };
    match list.flush(wall_secs()) {
        Ok(0) => {}
        Ok(dropped) => shared.warn(
            published,
            &format!("{dropped} addresses were not added to the suppression list: too many came at once"),
        ),
        Err(error) => shared.warn(published, &error.to_string()),
    }
}

/// Reports damaged entries of the list that were found since the last call.
pub(super) fn tell_damaged(shared: &Shared) {
    let list = shared.config.bounces.suppressions.as_ref();
    if let Some(damaged) = list.and_then(|list| list.take_damaged()) {
        shared.warn(shared.spool.stats().published, &damaged_text(&damaged));
    }
}

fn damaged_text(damaged: &DamagedSuppressions) -> String {
    let DamagedSuppressions { count, address, tenant } = damaged;
    let of = if tenant.is_empty() { String::new() } else { format!(" of the tenant {tenant:?}") };
    format!(
        "{count} damaged entries on the suppression list, the first for {address:?}{of}: they are kept and mail to their \
         addresses waits; remove each with `posthaste suppression remove`, or add it again"
    )
}

/// The reply for the log; no client sees it.
fn reply_for(entry: &Suppressed) -> Reply {
    let source = match entry.source {
        SuppressionSource::Operator => "operator",
        SuppressionSource::Bounce => "bounce",
        SuppressionSource::Complaint => "complaint",
    };
    let reason: String = entry.reason.chars().filter(|c| matches!(c, ' '..='~')).take(200).collect();
    Reply::new(550, "5.7.1", format!("on the suppression list ({source}) {reason}").trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_entries_are_told_with_the_way_out() {
        let of =
            |tenant: &str| DamagedSuppressions { count: 2, address: "bob@a.example".into(), tenant: tenant.into() };
        let all = damaged_text(&of(""));
        assert!(
            all.starts_with("2 damaged entries on the suppression list, the first for \"bob@a.example\":"),
            "{all}"
        );
        assert!(all.contains("`posthaste suppression remove`"), "{all}");
        assert!(damaged_text(&of("news")).contains("\"bob@a.example\" of the tenant \"news\":"));
    }
}
