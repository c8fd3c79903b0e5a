//! Outcomes of transactions: recorded, counted, and reported to senders and the observer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_smtp::client::Step;
use posthaste_smtp::{Reply, ShortReply};
use posthaste_spool::{Batch, Body, Lsn};

use super::automation::{automate, automate_site};
use super::messages::Envelope;
use super::notices_to_make::Tell;
use super::observer::{AttemptResult, RecipientAttempt};
use super::replies::shortened;
use super::shared::Shared;
use super::site::Site;
use super::status::{ReplyPlace, keys_of, outcome_for, reply_for, status_of};
use super::tell::{is_double_bounce, is_told};
use crate::session::RecipientFate;
use posthaste_dns::DnsError;
use posthaste_queue::{AttemptOutcome, Change, Prefer, RecipientKey, Status, Take, Taken, Transaction, What};

/// Recipients of a transaction whose outcomes are not yet handed to the record. If the task panics, delivered ones are
/// recorded and the others returned: untried the first time, as deferred if the message causes it again.
struct Owed<'a> {
    shared: &'a Arc<Shared>,
    site: &'a Site,
    message: Lsn,
    /// Each recipient with its outcome; `None` as outcome: undecided. `None` as entry: handed over.
    recipients: Vec<Option<(RecipientKey, Option<Change>)>>,
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        if self.recipients.iter().all(Option::is_none) {
            return;
        }
        let is_first = self.site.state().panicked(self.message);
        let outcome = if is_first { AttemptOutcome::Untried } else { AttemptOutcome::Deferred(PANICKED) };
        let mut delivered = Vec::new();
        let mut back = Vec::new();
        for (key, change) in self.recipients.drain(..).flatten() {
            match change {
                Some(change @ Change { what: What::Delivered(_), .. }) => delivered.push(change),
                _ => back.push((key, outcome)),
            }
        }
        self.shared.record(delivered);
        self.shared.finish(back);
    }
}

/// Handles the outcome of a transaction at a host; an empty host: our own outcome. `envelope`: `None` if it is
/// unreadable.
pub(super) fn ended(
    shared: &Arc<Shared>,
    site: &Site,
    host: &Arc<str>,
    has_dsn: bool,
    transaction: &Transaction,
    envelope: Option<&Arc<Envelope>>,
    fates: Vec<RecipientFate>,
) {
    let is_hopeless = note_at_site(site, transaction.message, &fates);
    let recipients = keys_of(transaction).map(|key| Some((key, None))).collect();
    let mut owed = Owed { shared, site, message: transaction.message, recipients };
    let mut changes = Vec::new();
    let mut behind = Vec::new();
    let mut closing = None;
    for (at, ((key, taken), fate)) in keys_of(transaction).zip(&transaction.recipients).zip(fates).enumerate() {
        let change = shared.queue().finish(key, outcome_of(&fate, is_hopeless));
        owed.recipients[at] = change.map(|change| (key, Some(change)));
        if let RecipientFate::NotSent(said) = &fate
            && said.code() == CLOSING
        {
            behind.push((key, taken.attempts));
            closing.get_or_insert_with(|| said.clone());
        }
        let Some(change) = change else { continue };
        if change.what == What::GivenBack {
            changes.push((change, None));
            continue;
        }
        if let (RecipientFate::Refused(reply, _) | RecipientFate::Deferred(reply, _), Some(envelope)) =
            (&fate, envelope)
            && !host.is_empty()
            && let Some(recipient) = envelope.recipient(key.number)
        {
            automate(shared, site, &envelope.queued, &recipient.address, reply);
        }
        if let (RecipientFate::Refused(reply, scope), Some(envelope)) = (&fate, envelope) {
            let is_alone = transaction.recipients.len() == 1;
            shared.config.bounces.suppress_refused(envelope, key.number, reply, *scope, is_alone);
        }
        let tell = match fate {
            RecipientFate::Refused(..) => Some(Tell::Failed),
            RecipientFate::Delivered(_) if !has_dsn => Some(Tell::Relayed),
            _ => None,
        };
        // If the message cannot be read now, the maker of the notice finds out.
        let is_told = |tell| envelope.is_none_or(|envelope| is_told(shared, tell, envelope, key.number));
        let is_owed = tell.is_some_and(is_told);
        let result = match (change.what, &fate) {
            (What::Delivered(_), _) => AttemptResult::Delivered,
            (What::Deferred { next, .. }, RecipientFate::Unknown(_)) => AttemptResult::Unknown { next },
            (What::Deferred { next, .. }, _) => AttemptResult::Deferred { next },
            _ => AttemptResult::Failed,
        };
        let place = ReplyPlace { host, stage: fate.said().stage.name() };
        if is_owed {
            keep_reply(shared, key, place, fate.reply(), &Arc::default());
        }
        let attempts = taken.attempts.saturating_add(1);
        let envelope = envelope.map(|envelope| &**envelope);
        let attempt = attempted(shared, key, envelope, attempts, result, place, fate.into_reply());
        let attempt = attempt.map(|attempt| RecipientAttempt { source: site.source.name().clone(), ..attempt });
        changes.push((if is_owed { change.with_notice() } else { change }, attempt));
    }
    owed.recipients.clear();
    leave_memory(shared, transaction.message, changes.iter().map(|(change, _)| change));
    shared.record_told(changes);
    if let Some(said) = closing {
        let behind = envelope.map(|envelope| (&**envelope, &behind[..]));
        last_words(shared, site, ReplyPlace { host, stage: said.stage.name() }, &said, behind);
    }
}

/// Drops messages from memory once their first attempts have ended: the memory is for messages that wait for one.
fn leave_memory<'a>(shared: &Shared, message: Lsn, mut changes: impl Iterator<Item = &'a Change>) {
    let is_deferred = |change: &Change| matches!(change.what, What::Deferred { .. });
    if changes.any(is_deferred) && !shared.queue().has_untried(message) {
        shared.messages.forget(&[message]);
    }
}

/// Keeps the reply about a recipient, and writes it with the next batch.
fn keep_reply(shared: &Shared, key: RecipientKey, place: ReplyPlace<'_>, reply: &Reply, class: &Arc<str>) {
    let said = shortened(&place.said(reply));
    shared.outcomes.replies.keep(key, said.clone(), class.clone());
    shared.outcomes.recorder.reply(key, said);
}

/// Counts a recipient's outcome, and makes the observer's record: without names if its envelope is unreadable.
pub(super) fn attempted(
    shared: &Shared,
    key: RecipientKey,
    envelope: Option<&Envelope>,
    attempts: u8,
    result: AttemptResult,
    place: ReplyPlace<'_>,
    reply: Reply,
) -> Option<RecipientAttempt> {
    let class: Arc<str> = match result {
        AttemptResult::Delivered | AttemptResult::Expired | AttemptResult::Suppressed => Arc::default(),
        _ => shared.config.bounces.classes.now().classify_reply(&reply).name().into(),
    };
    let count = match result {
        AttemptResult::Interrupted => None,
        AttemptResult::Delivered => Some(&shared.outcomes.delivered),
        AttemptResult::Deferred { .. } | AttemptResult::Unknown { .. } => {
            keep_reply(shared, key, place, &reply, &class);
            Some(&shared.outcomes.deferred)
        }
        AttemptResult::Failed | AttemptResult::Expired | AttemptResult::Suppressed => Some(&shared.outcomes.failed),
    };
    if let Some(count) = count {
        count.fetch_add(1, Ordering::Relaxed);
    }
    shared.config.observer.as_ref()?;
    let at = shared.time.now();
    let is_given_up = matches!(result, AttemptResult::Failed | AttemptResult::Expired);
    let Some(envelope) = envelope else {
        let received = shared.queue().show(key).map_or(at, |state| state.received);
        let nameless = RecipientAttempt::of_no_message(at, place, class, reply);
        return Some(RecipientAttempt { key, received, attempts, result, ..nameless });
    };
    let queued = &envelope.queued;
    Some(RecipientAttempt {
        key,
        sender: queued.sender.clone(),
        recipient: envelope.recipient(key.number).map_or_else(|| "".into(), |found| found.address.clone()),
        tenant: queued.tenant.clone(),
        campaign: queued.campaign.clone(),
        received: queued.received,
        at,
        attempts,
        result,
        is_double_bounce: is_given_up && is_double_bounce(shared, envelope, key.number),
        host: place.host.clone(),
        stage: place.stage,
        source: Arc::default(),
        class,
        reply,
    })
}

/// Handles a reply that ended a session before it decided on the next message. Each such reply comes here once. It is
/// shown for every recipient `behind` it, with its attempts. Rules and the observer get it for the first recipient, or
/// for the site alone.
fn last_words(
    shared: &Arc<Shared>,
    site: &Site,
    place: ReplyPlace<'_>,
    reply: &Reply,
    behind: Option<(&Envelope, &[(RecipientKey, u8)])>,
) {
    let said = shortened(&place.said(reply));
    let class: Arc<str> = shared.config.bounces.classes.now().classify_reply(reply).name().into();
    for (key, _) in behind.map_or(&[][..], |(_, keys)| keys) {
        // Another connection may have settled the message meanwhile; later settlements are forgotten after this lock.
        let queue = shared.queue();
        if queue.show(*key).is_some() {
            shared.outcomes.replies.keep(*key, said.clone(), class.clone());
            shared.outcomes.recorder.reply(*key, said.clone());
        }
    }
    let first = behind.and_then(|(envelope, keys)| Some((envelope, *keys.first()?)));
    match first.and_then(|(envelope, (key, _))| Some((&envelope.queued, envelope.recipient(key.number)?))) {
        Some((queued, recipient)) => automate(shared, site, queued, &recipient.address, reply),
        None => automate_site(shared, site, reply),
    }
    let attempt = match first {
        Some((envelope, (key, attempts))) => {
            attempted(shared, key, Some(envelope), attempts, AttemptResult::Interrupted, place, reply.clone())
        }
        None => Some(RecipientAttempt::of_no_message(shared.time.now(), place, class, reply.clone())),
    };
    let attempt = attempt.map(|attempt| RecipientAttempt { source: site.source.name().clone(), ..attempt });
    if let Some(event) = shared.outcomes.recorder.events(attempt.into_iter().collect()) {
        // Nobody waits for this record.
        shared.spool.append(Batch { entries: vec![event], body: Body::None }, Box::new(drop));
    }
    // The displayed reply becomes durable with a later batch.
    shared.record(Vec::new());
}

/// Handles a reply that ended a session outside a message, as in its greeting. It is reported for the recipient
/// first in the ready queue, if there is one.
pub(super) fn ended_early(shared: &Arc<Shared>, site: &Arc<Site>, host: &Arc<str>, step: Step, reply: &ShortReply) {
    let ready = site.state().ready;
    let take = Take { prefer: Prefer::First, recipients_max: 1, across_domains: false };
    let next = shared.queue().next(ready, take);
    // In front again.
    next.iter().for_each(|transaction| shared.untried(transaction));
    let site = site.clone();
    let host = host.clone();
    let reply = reply.clone();
    // The envelope may be on the disk.
    shared.spawn_blocking(move |shared| {
        let place = ReplyPlace { host: &host, stage: step.name() };
        let envelope = next.as_ref().and_then(|next| shared.messages.envelope(next.message).ok());
        let of = |(key, taken): (RecipientKey, &Taken)| (key, taken.attempts);
        let keys: Vec<_> = next.iter().flat_map(|next| keys_of(next).zip(&next.recipients)).map(of).collect();
        last_words(shared, &site, place, &reply, envelope.as_deref().map(|envelope| (envelope, &keys[..])));
    });
}

/// Handles a reply that ended a session without mail, such as that of a call-ahead.
pub(super) fn ended_without_mail(shared: &Arc<Shared>, site: &Site, host: &Arc<str>, step: Step, reply: &ShortReply) {
    last_words(shared, site, ReplyPlace { host, stage: step.name() }, reply, None);
}

/// Ends attempts without a host.
pub(super) fn end_without_host(shared: &Arc<Shared>, transaction: &Transaction, error: &DnsError) {
    end_unsent(shared, transaction, outcome_for(error), reply_for(error));
}

/// Ends attempts before any session, with a reply of our own.
pub(super) fn end_unsent(shared: &Arc<Shared>, transaction: &Transaction, outcome: AttemptOutcome, reply: Reply) {
    end_refused(shared, transaction, outcome, reply, ReplyPlace::of(&Arc::default()));
}

/// Ends attempts before any transaction, with a host's reply at a step of a session.
pub(super) fn end_refused(
    shared: &Arc<Shared>,
    transaction: &Transaction,
    outcome: AttemptOutcome,
    reply: Reply,
    ReplyPlace { host, stage }: ReplyPlace<'_>,
) {
    let changes: Vec<Change> = {
        let mut queue = shared.queue();
        keys_of(transaction).filter_map(|key| queue.finish(key, outcome)).collect()
    };
    let message = transaction.message;
    let host = host.clone();
    // The envelope may be on the disk.
    shared.spawn_blocking(move |shared| {
        let place = ReplyPlace { host: &host, stage };
        settle_told(shared, message, changes, AttemptResult::Failed, &reply, place);
    });
}

/// Records changes, and notifies senders if NOTIFY asks for it. `failed`: the result for recipients given up. Blocks.
pub(super) fn settle_told(
    shared: &Arc<Shared>,
    message: Lsn,
    changes: Vec<Change>,
    failed: AttemptResult,
    reply: &Reply,
    place: ReplyPlace<'_>,
) {
    let envelope = shared.messages.envelope(message);
    let mut reply = reply.clone();
    if let Err(error) = &envelope {
        shared.warn(message, &error.to_string());
        if failed == AttemptResult::Expired {
            reply = Reply::new(554, "5.4.7", format!("it could not be delivered in time: {error}"));
        }
    }
    let envelope = envelope.ok();
    let reply = &reply;
    let mut recorded = Vec::new();
    let mut is_delay_told = false;
    for change in changes {
        let (tell, result) = match change.what {
            What::Failed(_) => (Some(Tell::Failed), Some(failed)),
            What::Deferred { next, .. } => (None, Some(AttemptResult::Deferred { next })),
            What::DelayTold => (envelope.as_ref().map(|_| Tell::Delayed), None),
            _ => (None, None),
        };
        let key = change.key;
        let is_told = |tell| envelope.as_ref().is_none_or(|envelope| is_told(shared, tell, envelope, key.number));
        let is_told = tell.is_some_and(is_told);
        if is_told && tell == Some(Tell::Delayed) {
            is_delay_told = true;
            continue;
        }
        if is_told {
            keep_reply(shared, key, place, reply, &Arc::default());
        }
        let attempt = result.and_then(|result| {
            let attempts = match change.what {
                What::Deferred { attempts, .. } => attempts,
                _ => shared.queue().show(key).map_or(0, |state| state.attempts),
            };
            attempted(shared, key, envelope.as_deref(), attempts, result, place, reply.clone())
        });
        recorded.push((if is_told { change.with_notice() } else { change }, attempt));
    }
    leave_memory(shared, message, recorded.iter().map(|(change, _)| change));
    shared.record_told(recorded);
    if is_delay_told {
        shared.outcomes.notices_to_make.want_delay(message);
    }
}

/// Updates the site's memory of a transaction. True if the connection was lost with the message too often.
fn note_at_site(site: &Site, message: Lsn, fates: &[RecipientFate]) -> bool {
    let mut state = site.state();
    if fates.iter().any(|fate| matches!(fate, RecipientFate::TooMany(_))) {
        let taken = fates.iter().filter(|fate| !matches!(fate, RecipientFate::TooMany(_))).count();
        state.recipients_max = Some(taken.max(1));
    }
    if fates.iter().any(|fate| matches!(fate, RecipientFate::NotSent(_))) {
        return state.lost(message) > LOST_TIMES_MAX;
    }
    state.not_lost(message);
    false
}

fn outcome_of(fate: &RecipientFate, is_hopeless: bool) -> AttemptOutcome {
    let status = status_of(fate.reply());
    match fate {
        RecipientFate::Delivered(_) => AttemptOutcome::Delivered(status),
        RecipientFate::Refused(..) => AttemptOutcome::Failed(status),
        RecipientFate::Deferred(..) | RecipientFate::Unknown(_) => AttemptOutcome::Deferred(status),
        // The message itself may be what the hosts do not survive.
        RecipientFate::NotSent(_) if is_hopeless => AttemptOutcome::Deferred(status),
        RecipientFate::NotSent(_) | RecipientFate::TooMany(_) => AttemptOutcome::Untried,
    }
}

/// Losses of the connection with a message after which it counts as attempted.
const LOST_TIMES_MAX: u32 = 3;
/// The server closes the connection (RFC 5321 section 3.8).
pub(super) const CLOSING: u16 = 421;
/// The status of an attempt that ended with a panic.
const PANICKED: Status = Status { code: 451, enhanced: 3000 };
