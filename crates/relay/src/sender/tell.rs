//! Notifications to senders. A notification is written in the batch that records it as sent.

use std::sync::Arc;

use posthaste_intake::notify;
use posthaste_message::DateTime;
use posthaste_notify::dsn::{self, DsnMessage, Notification, Recipient, Returned, header_of};
use posthaste_random::mix;
use posthaste_spool::{Batch, Body, Lsn};

use super::config::OutgoingNotice;
use super::messages::{Envelope, LoadError};
use super::notices_to_make::Tell;
use super::shared::Shared;
use posthaste_queue::entry::QueuedRet;
use posthaste_queue::{Change, Queued, QueuedRecipient, RecipientKey, Status, What};

/// The recipient of a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Addressee {
    address: Arc<str>,
    /// True for the postmaster, who gets it instead of the sender.
    is_postmaster: bool,
}

/// The outcome of one recipient, for the report.
struct PendingNotice {
    number: u16,
    status: (u8, u16, u16),
    /// On one line; empty if unknown.
    reply: String,
    host: String,
}

/// A written notification, if anybody wants it, and the changes to record with it.
struct Prepared {
    changes: Vec<Change>,
    tenant: Arc<str>,
    written: Option<(DsnMessage, Addressee)>,
}

/// True if a recipient's outcome is reported: to its sender, if asked for; to the postmaster, if no sender can be
/// notified.
pub(super) fn is_told(shared: &Shared, tell: Tell, envelope: &Envelope, number: u16) -> bool {
    addressee(shared, tell, envelope, number).is_some()
}

/// True if its sender should be notified of the failure, but cannot be.
pub(super) fn is_double_bounce(shared: &Shared, envelope: &Envelope, number: u16) -> bool {
    let sender = &envelope.queued.sender;
    sender.is_empty() || Tell::Failed.is_wanted(envelope, number) && !shared.config.notifier.knows(sender)
}

/// The addressee of the report; `None`: not requested, or nobody can be notified.
fn addressee(shared: &Shared, tell: Tell, envelope: &Envelope, number: u16) -> Option<Addressee> {
    let sender = &envelope.queued.sender;
    let is_failure = tell == Tell::Failed;
    if tell.is_wanted(envelope, number) && (!is_failure || shared.config.notifier.knows(sender)) {
        return Some(Addressee { address: sender.clone(), is_postmaster: false });
    }
    let is_double_bounce = is_failure && is_double_bounce(shared, envelope, number);
    let postmaster = shared.outcomes.notices.postmaster().filter(|_| is_double_bounce)?;
    Some(Addressee { address: postmaster, is_postmaster: true })
}

/// Writes the notification that is due for a message. Blocks.
fn prepare(shared: &Shared, message: Lsn, tell: Tell) -> Result<Prepared, LoadError> {
    let statuses: Vec<(u16, Status)> = {
        let queue = shared.queue();
        match tell.owed() {
            Some(notice) => {
                let owed = queue.owed(message).into_iter().filter(|owed| owed.notice == notice);
                owed.map(|owed| (owed.number, owed.status)).collect()
            }
            None => {
                let status = |number| queue.show(RecipientKey { message, number }).map(|state| (number, state.status));
                queue.delayed(message).into_iter().filter_map(status).collect()
            }
        }
    };
    let what = if tell == Tell::Delayed { What::DelayTold } else { What::Told };
    let change = |number: u16| Change { key: RecipientKey { message, number }, what };
    let changes = statuses.iter().map(|(number, _)| change(*number)).collect();
    let mut prepared = Prepared { changes, tenant: Arc::default(), written: None };
    if statuses.is_empty() {
        return Ok(prepared);
    }
    let envelope = match shared.messages.envelope(message) {
        Ok(envelope) => envelope,
        Err(LoadError::Lost(why)) => {
            shared.warn(message, &format!("its sender cannot be notified: {why}"));
            return Ok(prepared);
        }
        Err(error) => return Err(error),
    };
    let mut told = Vec::new();
    let mut to = None;
    for (number, status) in statuses {
        if let Some(addressee) = addressee(shared, tell, &envelope, number) {
            told.push(what_was_said(shared, RecipientKey { message, number }, tell, status));
            to = Some(addressee);
        }
    }
    prepared.tenant = envelope.queued.tenant.clone();
    prepared.written = to.and_then(|to| Some((written(shared, message, &envelope, tell, &told, &to)?, to)));
    Ok(prepared)
}

/// The last reply about a recipient.
fn what_was_said(shared: &Shared, key: RecipientKey, tell: Tell, status: Status) -> PendingNotice {
    if tell == Tell::Delayed {
        let reply = "451 4.4.7 it has not been delivered yet".to_owned();
        return PendingNotice { number: key.number, status: (4, 4, 7), reply, host: String::new() };
    }
    let said = shared.outcomes.replies.of(key).map_or_else(String::new, |said| said.text.replace("\r\n", " "));
    let (host, reply) = host_and_reply(&said);
    let known = (tell.class(), status.enhanced / 1000, status.enhanced % 1000);
    let status = enhanced_of(reply).unwrap_or(known);
    PendingNotice { number: key.number, status, reply: reply.to_owned(), host: host.to_owned() }
}

/// The notification; `None` if it would be empty. Blocks.
fn written(
    shared: &Shared,
    message: Lsn,
    envelope: &Envelope,
    tell: Tell,
    told: &[PendingNotice],
    to: &Addressee,
) -> Option<DsnMessage> {
    let queued = &envelope.queued;
    let now = shared.time.now();
    let to_wall = shared.time.wall_clock();
    let date = |secs| DateTime::from_unix(to_wall(secs));
    let returned_max = shared.config.returned_bytes_max;
    // For a success or a delay the header is enough (RFC 3461 section 4.3).
    let wants_all = tell == Tell::Failed && queued.ret != Some(QueuedRet::Headers);
    let is_short = || shared.messages.body_len(message).is_ok_and(|len| len <= returned_max);
    let is_whole = wants_all && is_short();
    let body = shared.messages.body(message, if is_whole { returned_max } else { HEADER_BYTES_MAX });
    let body = body.unwrap_or_default();
    let header = if is_whole { Vec::new() } else { header_of(&body, HEADER_BYTES_MAX as usize) };
    // A copy that fails makes no further copy, even after detours.
    if to.is_postmaster && (dsn::is_double_bounce(&body) || !shared.outcomes.notices.take_copy(message)) {
        return None;
    }
    let until = |told: &PendingNotice| {
        let state = shared.queue().show(RecipientKey { message, number: told.number });
        date(state.and_then(|state| state.expires).unwrap_or(now))
    };
    let recipients = told.iter().filter_map(|told| {
        let recipient = envelope.recipient(told.number)?;
        Some(Recipient {
            address: &recipient.address,
            orcpt: &recipient.orcpt,
            action: tell.action(until(told)),
            status: told.status,
            reply: &told.reply,
            host: &told.host,
            last_attempt: date(now),
        })
    });
    let recipients: Vec<Recipient<'_>> = recipients.collect();
    let first = told.first().filter(|_| !recipients.is_empty())?.number;
    let random =
        |salt: u64| mix(shared.seed ^ mix(message.get() ^ u64::from(first) << 48) ^ mix(u64::from(now)) ^ salt);
    let notification = Notification {
        reporting_host: &shared.config.host_name,
        to: &to.address,
        is_double_bounce: to.is_postmaster,
        envid: &queued.envid,
        received: date(queued.received),
        now: date(now),
        id: u128::from(random(1)) << 64 | u128::from(random(2)),
        recipients: &recipients,
        returned: if is_whole { Returned::Message(&body) } else { Returned::Header(&header) },
        wording: &shared.outcomes.notices.wording(),
    };
    Some(notification.write())
}

fn notice(
    shared: &Shared,
    tenant: Arc<str>,
    to: &Addressee,
    written: DsnMessage,
    changes: &[Change],
) -> OutgoingNotice {
    let to_address = to.address.clone();
    let recipient = QueuedRecipient { number: 0, address: to_address.clone(), orcpt: "".into(), notify: notify::NEVER };
    let remote = Queued {
        is_8bit: written.is_8bit,
        smtputf8: written.smtputf8,
        may_sign: true,
        tenant: if to.is_postmaster { Arc::default() } else { tenant },
        recipients: vec![recipient],
        ..Queued::default()
    };
    let change = shared.outcomes.recorder.entry(shared.time.now(), changes);
    OutgoingNotice { to: to_address, written, change, remote: shared.entry(remote) }
}

/// Records changes and waits until they are durable.
async fn record_durably(shared: &Shared, changes: &[Change]) -> Result<(), String> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let batch = Batch { entries: vec![shared.outcomes.recorder.entry(shared.time.now(), changes)], body: Body::None };
    shared.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    match told.await {
        Ok(outcome) => outcome.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err("the spool is closed".to_owned()),
    }
}

/// Makes a message's owed notices durable, as one notification if anybody wants it. After an error they are still owed.
pub(super) async fn tell(shared: &Arc<Shared>, message: Lsn, tell: Tell) -> Result<(), String> {
    let writing = shared.clone();
    let prepared = tokio::task::spawn_blocking(move || prepare(&writing, message, tell)).await;
    let prepared = prepared.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let Prepared { changes, tenant, written } = prepared;
    if changes.is_empty() {
        return Ok(());
    }
    if let Some((written, to)) = written {
        let notice = notice(shared, tenant, &to, written, &changes);
        let is_there = shared.config.notifier.deliver(notice).await?;
        shared.outcomes.notices.copy_made(message);
        if is_there {
            return Ok(());
        }
        if to.is_postmaster {
            shared.warn(message, &format!("nobody gets copies of double bounces: there is no {}", to.address));
        }
    }
    record_durably(shared, &changes).await
}

/// Splits a stored reply into the host, if any, and the reply.
fn host_and_reply(said: &str) -> (&str, &str) {
    let is_reply = |text: &str| {
        let code = text.as_bytes();
        code.len() >= 3 && code[..3].iter().all(u8::is_ascii_digit) && matches!(code.get(3), None | Some(b' ' | b'-'))
    };
    match said.split_once(": ") {
        // The step in brackets after the name is for people.
        Some((host, reply)) if !is_reply(said) && is_reply(reply) => (host.split(" (").next().unwrap_or(host), reply),
        _ => ("", said),
    }
}

/// The enhanced code of a reply on one line.
fn enhanced_of(reply: &str) -> Option<(u8, u16, u16)> {
    let code = reply.get(4..)?.split(' ').next()?;
    let mut parts = code.split('.');
    let code = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(code)
}

/// Largest returned header, in bytes.
const HEADER_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_reply_gives_host_and_code_again() {
        for (said, host, reply, code) in [
            ("mx.a.example: 550 5.1.1 no: such user", "mx.a.example", "550 5.1.1 no: such user", Some((5, 1, 1))),
            ("[IPv6:::1]: 550-5.7.1 no 550 5.7.1 more", "[IPv6:::1]", "550-5.7.1 no 550 5.7.1 more", Some((5, 7, 1))),
            ("554 5.4.7 too late: really", "", "554 5.4.7 too late: really", Some((5, 4, 7))),
            ("mx.a.example: 550 go: 550 away", "mx.a.example", "550 go: 550 away", None),
            ("mx.a.example (RCPT): 550 5.1.1 no", "mx.a.example", "550 5.1.1 no", Some((5, 1, 1))),
            ("550", "", "550", None),
            ("", "", "", None),
            ("550 5.1.1.1 x", "", "550 5.1.1.1 x", None),
        ] {
            assert_eq!(host_and_reply(said), (host, reply));
            assert_eq!(enhanced_of(reply), code, "{reply}");
        }
    }
}
