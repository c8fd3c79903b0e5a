//! Queue views and commands for operators.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_consumer::{ROOM_PATIENCE, append_within};
use posthaste_smtp::Reply;
use posthaste_spool::{AppendError, Entry, Lsn};

use super::ended::settle_told;
use super::messages::Envelope;
use super::observer::{ActedOn, AttemptResult, Originator};
use super::relay::Relay;
use super::routing::host_and_port;
use super::serving::serve;
use super::shared::Shared;
use super::site::SiteKey;
use super::status::ReplyPlace;
use posthaste_queue::entry::HoldReason;
use posthaste_queue::{
    Change, Diversion, QueueAction, QueueEntry, QueueId, QueueName, RecipientKey, RecipientState, Secs, Selection,
    Waits, What,
};
use posthaste_shaping::MailScope;

/// A filter of recipients. Empty: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The queue's own selection.
    pub selection: Selection,
    /// Only recipients of this message.
    pub message: Option<Lsn>,
    /// Only the recipient with this number in its message.
    pub number: Option<u16>,
    /// Only mail from this sender, case-insensitive; empty for notifications.
    pub sender: Option<String>,
    /// Only mail to this address, case-insensitive.
    pub recipient: Option<String>,
    /// Only recipients after this one, in the order of messages: continues a list.
    pub after: Option<RecipientKey>,
    /// Maximum pages of about a thousand recipients to scan; `None`: all.
    pub pages_max: Option<u32>,
}

/// A waiting recipient.
#[derive(Debug, Clone)]
pub struct WaitingRecipient {
    /// State of the recipient in the queue.
    pub state: RecipientState,
    /// True while a session with its next hop is opening: waiting for a connection, a greeting or a handshake.
    pub is_connecting: bool,
    /// Address of the sender; empty for none.
    pub sender: Arc<str>,
    /// The rewritten sender, if it differs from `sender`.
    pub leaves_from: Arc<str>,
    /// Address of the recipient.
    pub recipient: Arc<str>,
    /// Size of the message in bytes.
    pub bytes: u64,
    /// Why the message cannot be read, in which case the names are missing; else the next hop's last reply, or the
    /// reason why it is unreachable. `None`: no attempt yet, or newer replies displaced this one.
    pub why: Option<Arc<str>>,
    /// The class of the last reply.
    pub class: Option<Arc<str>>,
    /// An operator's reason for the hold, if one was given.
    pub held_reason: Option<Arc<str>>,
}

/// The outcome of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acted {
    /// Number of recipients changed, durably.
    pub changed: u64,
    /// Recipients in flight: the change follows the next hop's reply, unless that reply settles them. A crash before
    /// the reply loses the change.
    pub follows: u64,
    /// Recipients in flight that an earlier command gives up, deletes or holds after the reply: this command has no
    /// effect on them.
    pub outranked: u64,
}

/// Error of a change, which was made only in part, or not at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The spool refuses the change: the reason.
    #[error("the spool cannot record it: {0}")]
    Spool(String),
    /// The next hop is invalid: the reason.
    #[error("`{0}` is not a host, address in brackets, or one of them with a port, such as mx.example.net:2525")]
    NextHop(String),
    /// A site cannot be diverted, because its mail is already routed.
    #[error("a set of mail hosts cannot be diverted: name a domain, a campaign or a tenant")]
    Site,
    /// The message is not in the queue, or no longer.
    #[error("message {} does not wait in the queue", .0.get())]
    NotWaiting(Lsn),
    /// The message cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

impl Relay {
    /// Passes matching recipients to `show`, in the order of messages, until it returns false. Blocks: envelopes may be
    /// on the disk. Returns the last key scanned if [`Filter::pages_max`] is used up.
    pub fn waiting(&self, filter: &Filter, show: &mut dyn FnMut(WaitingRecipient) -> bool) -> Option<RecipientKey> {
        let shared = &self.0.shared;
        let mut size = (Lsn::ZERO, 0);
        each(shared, filter, true, &mut |keys| {
            for (key, envelope) in keys {
                let Some(mut state) = shared.queue().show(*key) else { continue };
                if size.0 != key.message {
                    size = (key.message, shared.messages.body_len(key.message).unwrap_or(0));
                }
                let mut sender = Arc::from("");
                let mut leaves_from = Arc::from("");
                let mut recipient = Arc::from("");
                if let Some(envelope) = envelope {
                    state.received = envelope.queued.received;
                    sender = envelope.queued.sender.clone();
                    leaves_from = envelope.queued.leaves_from(key.number).clone();
                    recipient = envelope.recipient(key.number).map_or(recipient, |found| found.address.clone());
                }
                let said = shared.outcomes.replies.of(*key);
                let class = said.as_ref().map(|said| said.class.clone()).filter(|class| !class.is_empty());
                let (trouble, is_connecting) = at_site(shared, *key);
                // Damage is reported first: no host is involved in it.
                let unreadable: Option<Arc<str>> = match envelope {
                    Some(_) => None,
                    None => shared.messages.envelope(key.message).err().map(|error| Arc::from(error.to_string())),
                };
                // The message was settled and released meanwhile.
                if unreadable.is_some() && shared.queue().show(*key).is_none() {
                    continue;
                }
                let why = unreadable.or(trouble).or_else(|| said.map(|said| said.text));
                let is_held = matches!(state.waits, Waits::Held(HoldReason::Operator | HoldReason::Until(_)));
                let held_reason = is_held.then(|| shared.outcomes.replies.why_held(*key)).flatten();
                let bytes = size.1;
                let waiting = WaitingRecipient {
                    state,
                    is_connecting,
                    sender,
                    leaves_from,
                    recipient,
                    bytes,
                    why,
                    class,
                    held_reason,
                };
                if !show(waiting) {
                    return false;
                }
            }
            true
        })
    }

    /// Applies an action to all matching recipients, and blocks until it is durable. For recipients given up, `reply`
    /// is reported as the cause. For recipients tried now, pauses of their sites end.
    ///
    /// # Errors
    /// The spool refuses; earlier changes of the call stay.
    pub fn act(
        &self,
        filter: &Filter,
        action: QueueAction,
        reply: &Reply,
        by: &Originator,
    ) -> Result<Acted, ControlError> {
        let shared = &self.0.shared;
        let mut acted = Acted::default();
        let mut failed = None;
        let is_told = shared.config.observer.as_ref().is_some_and(|observer| observer.wants_acted());
        let mut places = HashSet::new();
        each(shared, filter, is_told, &mut |keys| {
            let mut changes = Vec::new();
            let mut bounces = Vec::new();
            let mut told = Vec::new();
            let mut noted = Vec::new();
            {
                let mut queue = shared.queue();
                for (key, envelope) in keys {
                    let Some(state) = queue.show(*key) else { continue };
                    let change = queue.act(*key, action);
                    let tried = change.as_ref().and_then(|change| tried_with(change, state.attempts, queue.now()));
                    places.extend(tried.and_then(|attempts| queue.resume_site_of(*key, attempts)));
                    match change {
                        Some(change) if matches!(change.what, What::Failed(_)) => bounces.push(change),
                        Some(change) => changes.push(change),
                        None if state.waits == Waits::Busy && queue.pending(*key) != Some(action) => {
                            acted.outranked += 1;
                            continue;
                        }
                        None if state.waits == Waits::Busy => {
                            acted.follows += 1;
                            if matches!(action, QueueAction::Bounce(_)) {
                                shared.outcomes.bounces_to_follow.add(*key, reply.clone());
                            }
                        }
                        None => continue,
                    }
                    noted.push(*key);
                    if is_told {
                        let recipient = envelope.as_ref().and_then(|envelope| envelope.recipient(key.number));
                        let recipient = recipient.map_or_else(|| "".into(), |found| found.address.clone());
                        told.push(ActedOn { key: *key, recipient });
                    }
                }
            }
            acted.changed += bounces.len() as u64;
            let mut told = told.chunks(TOLD_MAX).map(|told| event_of(shared, by, action, told.to_vec()));
            let nobody = Arc::default();
            for change in bounces {
                let message = change.key.message;
                settle_told(shared, message, vec![change], AttemptResult::Failed, reply, ReplyPlace::of(&nobody));
            }
            for changes in changes.chunks(TOLD_MAX) {
                let mut entries = vec![shared.outcomes.recorder.entry(shared.time.now(), changes)];
                entries.extend(told.next().flatten());
                match append(shared, entries) {
                    Ok(()) => acted.changed += changes.len() as u64,
                    Err(error) => {
                        let mut queue = shared.queue();
                        changes.iter().for_each(|change: &Change| queue.abandon(change.key));
                        failed = Some(error);
                        return false;
                    }
                }
            }
            for events in told.flatten() {
                if let Err(error) = append(shared, vec![events]) {
                    failed = Some(error);
                    return false;
                }
            }
            failed = note_hold(shared, action, &noted, by).err();
            failed.is_none()
        });
        resume_sites(shared, &places);
        shared.wake.notify_one();
        failed.map_or(Ok(acted), Err)
    }

    /// Counts matching recipients. Blocks.
    pub fn count(&self, filter: &Filter) -> u64 {
        let mut count = 0;
        each(&self.0.shared, filter, false, &mut |keys| {
            count += keys.len() as u64;
            true
        });
        count
    }

    /// The end of an [`QueueAction::Hold`] of `secs` seconds from now, on the queue's clock.
    pub fn after(&self, secs: Secs) -> Secs {
        self.0.shared.time.now().saturating_add(secs)
    }

    /// Suspends a scope for `secs` seconds, or without an end. Blocks until it is durable.
    ///
    /// # Errors
    /// The spool refuses.
    pub fn suspend(&self, scope: MailScope, secs: Option<Secs>, by: &Originator) -> Result<(), ControlError> {
        let until = secs.map_or(Secs::MAX, |secs| self.after(secs));
        append_entry(&self.0.shared, &QueueEntry::Suspended { scope, until, reason: by.reason.as_str().into() }, by)
    }

    /// Ends a suspension or slow-down; false if there was none. Blocks until it is durable.
    ///
    /// # Errors
    /// The spool refuses.
    pub fn resume(&self, scope: MailScope, by: &Originator) -> Result<bool, ControlError> {
        let is_it = |entry: &QueueEntry| {
            let (QueueEntry::Suspended { scope: other, .. } | QueueEntry::Slowed { scope: other, .. }) = entry else {
                return false;
            };
            *other == scope
        };
        if !self.suspensions().iter().any(is_it) {
            return Ok(false);
        }
        append_entry(&self.0.shared, &QueueEntry::Resumed(scope), by)?;
        Ok(true)
    }

    /// Diverts waiting and new mail of a scope to another host for `secs` seconds, or without an end. `to` is a host or
    /// an address literal, with a port after a colon if it is not 25. Its MX records do not count. Blocks until it is
    /// durable.
    ///
    /// # Errors
    /// `to` is invalid, the scope is a site, or the spool refuses.
    pub fn divert(&self, scope: MailScope, to: &str, secs: Option<Secs>, by: &Originator) -> Result<(), ControlError> {
        if host_and_port(to).is_none() {
            return Err(ControlError::NextHop(to.to_owned()));
        }
        if scope.has_site() {
            return Err(ControlError::Site);
        }
        let until = secs.map_or(Secs::MAX, |secs| self.after(secs));
        let to = to.into();
        let reason = by.reason.as_str().into();
        append_entry(&self.0.shared, &QueueEntry::Diverted { scope, until, to, reason }, by)
    }

    /// Ends a diversion; false if there was none. Blocks until it is durable.
    ///
    /// # Errors
    /// The spool refuses.
    pub fn end_diversion(&self, scope: MailScope, by: &Originator) -> Result<bool, ControlError> {
        if !self.diversions().iter().any(|diversion| diversion.scope == scope) {
            return Ok(false);
        }
        append_entry(&self.0.shared, &QueueEntry::NotDiverted(scope), by)?;
        Ok(true)
    }

    /// Diversions now in force.
    pub fn diversions(&self) -> Vec<Diversion> {
        self.0.shared.queue().diversions().cloned().collect()
    }

    /// The tenant, campaign and domain of a recipient's queue; `None` if it is gone.
    pub fn queue_name(&self, queue: QueueId) -> Option<QueueName> {
        self.0.shared.queue().queue(queue).map(|(name, _)| name)
    }

    /// Suspensions, as [`QueueEntry::Suspended`], and slow-downs, as [`QueueEntry::Slowed`].
    pub fn suspensions(&self) -> Vec<QueueEntry> {
        let queue = self.0.shared.queue();
        queue.suspensions().chain(queue.slowed_entries()).collect()
    }
}

/// A matching recipient, and its envelope if requested.
type Found = (RecipientKey, Option<Arc<Envelope>>);

/// Passes matching recipients to `use_keys`, in parts, until it returns false. Envelopes are loaded if `with_envelopes`
/// is set or the filter needs them. Returns the last key scanned if the pages are used up.
pub(super) fn each(
    shared: &Shared,
    filter: &Filter,
    with_envelopes: bool,
    use_keys: &mut dyn FnMut(&[Found]) -> bool,
) -> Option<RecipientKey> {
    let needs = with_envelopes || filter.sender.is_some() || filter.recipient.is_some();
    let of_message = filter.message.map(|message| RecipientKey { message, number: 0 });
    let mut from = of_message.max(filter.after);
    let mut last: Option<(Lsn, Option<Arc<Envelope>>)> = None;
    let mut pages = 0..filter.pages_max.unwrap_or(u32::MAX);
    loop {
        if pages.next().is_none() {
            return from.and_then(RecipientKey::before);
        }
        let (mut keys, next, looked_at) = shared.queue().select(&filter.selection, from);
        shared.operator.note_looked_at(looked_at);
        let is_beyond = |key: &RecipientKey| filter.message.is_some_and(|message| key.message > message);
        let is_end = next.is_none() || keys.iter().any(is_beyond) || next.as_ref().is_some_and(is_beyond);
        keys.retain(|key| filter.message.is_none_or(|message| key.message == message));
        keys.retain(|key| filter.number.is_none_or(|number| key.number == number));
        keys.retain(|key| filter.after.is_none_or(|after| *key > after));
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            if needs && last.as_ref().is_none_or(|(message, _)| *message != key.message) {
                last = Some((key.message, shared.messages.envelope(key.message).ok()));
            }
            let envelope = last.as_ref().filter(|_| needs).and_then(|(_, envelope)| envelope.clone());
            if filter.fits(key, envelope.as_deref()) {
                found.push((key, envelope));
            }
        }
        if !use_keys(&found) || is_end {
            return None;
        }
        from = next;
    }
}

/// Ends the pauses of sites.
fn resume_sites(shared: &Arc<Shared>, places: &HashSet<SiteKey>) {
    for place in places {
        let Some(site) = shared.sites.find(place) else { continue };
        site.state().standing.resume();
        serve(shared, &site);
    }
}

/// The reasons why the source and the site of a recipient cannot be used.
pub(super) fn at_site(shared: &Shared, key: RecipientKey) -> (Option<Arc<str>>, bool) {
    let place = shared.queue().route_of(key);
    let site = place.and_then(|place| shared.sites.find(&place));
    let Some(site) = site else { return (None, false) };
    let state = site.state();
    let is_connecting = state.connecting > 0;
    match site.source.trouble() {
        Some(trouble) => (Some(format!("source {}: {trouble}", site.source.name()).into()), is_connecting),
        None => (state.standing.trouble().map(Arc::from), is_connecting),
    }
}

fn append_entry(shared: &Shared, entry: &QueueEntry, by: &Originator) -> Result<(), ControlError> {
    let of_queue = Entry { stream: shared.stream, needs_body: false, payload: entry.encode().into() };
    let event = shared.config.observer.as_ref().and_then(|observer| observer.suspended(by, entry));
    append(shared, std::iter::once(of_queue).chain(event).collect())?;
    shared.wake.notify_one();
    Ok(())
}

/// Notes an operator's reason for a hold; does nothing for other actions. Blocks until it is durable.
pub(super) fn note_hold(
    shared: &Shared,
    action: QueueAction,
    keys: &[RecipientKey],
    by: &Originator,
) -> Result<(), ControlError> {
    let is_hold = matches!(action, QueueAction::Hold(_));
    let entries = if is_hold { shared.outcomes.replies.entries_of_hold(keys, &by.reason) } else { Vec::new() };
    if entries.is_empty() {
        return Ok(());
    }
    let of_queue =
        |entry: QueueEntry| Entry { stream: shared.stream, needs_body: false, payload: entry.encode().into() };
    append(shared, entries.into_iter().map(of_queue).collect())
}

fn event_of(shared: &Shared, by: &Originator, action: QueueAction, recipients: Vec<ActedOn>) -> Option<Entry> {
    shared.config.observer.as_ref()?.acted(by, action, recipients)
}

/// Appends the entries of a command. Blocks until they are durable.
pub(super) fn append(shared: &Shared, entries: Vec<Entry>) -> Result<(), ControlError> {
    append_within(&shared.spool, entries, ROOM_PATIENCE).map(drop).map_err(|error| match error {
        AppendError::Full(why) => ControlError::Spool(format!("{why}; repeat the command later")),
        error => ControlError::Spool(error.to_string()),
    })
}

/// The number of attempts, taken before a change that makes the recipient due now; `None` for other changes.
fn tried_with(change: &Change, attempts: u8, now: Secs) -> Option<u8> {
    match change.what {
        What::Rescheduled { attempts, next } if next <= now => Some(attempts),
        What::Released { next, .. } if next <= now => Some(attempts),
        _ => None,
    }
}

/// Maximum recipients in one batch, which must also hold the reports of their changes.
const TOLD_MAX: usize = 1000;

impl Filter {
    fn fits(&self, key: RecipientKey, envelope: Option<&Envelope>) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_ref().is_none_or(|wanted| found.is_some_and(|found| found.eq_ignore_ascii_case(wanted)))
        };
        is(&self.sender, envelope.map(|envelope| &*envelope.queued.sender))
            && is(&self.recipient, envelope.and_then(|envelope| Some(&*envelope.recipient(key.number)?.address)))
    }
}
