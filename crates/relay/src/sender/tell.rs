//! Notifications to senders, in the batch with what they tell of.

use std::sync::Arc;
use std::time::Duration;

use posthaste_message::DateTime;
use posthaste_random::mix;
use posthaste_smtp::Reply;
use posthaste_spool::{Entry, Lsn};

use super::Outgoing;
use super::config::Notice;
use super::messages::Envelope;
use super::observer::Attempt;
use super::shared::Shared;
use crate::dsn::{Action, Notification, Recipient, Returned, Written, header_of, is_double_bounce};
use crate::queue::entry::{Ret, notify};
use crate::queue::{Change, QueuedRecipient, What};

/// What a sender is told of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    Failed,
    Delayed,
    /// Handed to a host that says nothing of success.
    Relayed,
}

/// A change that is told.
#[derive(Debug, Clone)]
pub(super) struct Told {
    change: Change,
    tell: Tell,
    reply: Reply,
    host: Arc<str>,
    /// For the observer.
    attempt: Option<Attempt>,
}

impl Told {
    pub fn new(change: Change, tell: Tell, reply: Reply, host: Arc<str>, attempt: Option<Attempt>) -> Self {
        Told { change, tell, reply, host, attempt }
    }

    /// Nobody can be told.
    fn mark_double_bounce(&mut self) {
        self.attempt.iter_mut().for_each(|attempt| attempt.is_double_bounce = true);
    }

    pub fn is_failure(&self) -> bool {
        self.tell == Tell::Failed
    }

    /// The recipient's number.
    pub fn number(&self) -> u16 {
        self.change.key.number
    }
}

impl Tell {
    fn action(self, until: i64) -> Action {
        match self {
            Tell::Failed => Action::Failed,
            Tell::Delayed => Action::Delayed { until: DateTime::from_unix(until) },
            Tell::Relayed => Action::Relayed,
        }
    }

    pub fn is_wanted(self, envelope: &Envelope, number: u16) -> bool {
        let asked = envelope.recipient(number).map_or(0, |recipient| recipient.notify);
        self.action(0).is_told(&envelope.queued.sender, asked)
    }
}

/// Who is told.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Addressee {
    address: Arc<str>,
    /// Not the sender, as there is none.
    is_postmaster: bool,
}

impl Shared {
    /// Records changes of one message with a notification of them, in one batch.
    pub fn tell_now(self: &Arc<Self>, message: Lsn, envelope: Arc<Envelope>, told: Vec<Told>) {
        self.recorder.begin();
        self.runtime.spawn(tell(self.clone(), message, envelope, told));
    }

    /// Whether somebody is told of a recipient: its sender if he asks for that, the postmaster of what nobody else can be told.
    pub fn is_told(&self, tell: Tell, envelope: &Envelope, number: u16) -> bool {
        tell.is_wanted(envelope, number)
            || tell == Tell::Failed && envelope.queued.sender.is_empty() && self.notices.has_copies()
    }

    /// Who is told of these; `None`: nobody, as there is no sender.
    fn addressee(&self, envelope: &Envelope, told: &mut [Told]) -> Option<Addressee> {
        let sender = &envelope.queued.sender;
        if !sender.is_empty() && (!told.iter().any(Told::is_failure) || self.config.notifier.knows(sender)) {
            return Some(Addressee { address: sender.clone(), is_postmaster: false });
        }
        told.iter_mut().for_each(Told::mark_double_bounce);
        self.notices.postmaster().map(|address| Addressee { address, is_postmaster: true })
    }

    /// The notification; `None` if there is nothing to tell. Blocks.
    fn written(&self, message: Lsn, envelope: &Envelope, told: &[Told], to: &Addressee) -> Option<Written> {
        let (queued, now) = (&envelope.queued, self.time.now());
        let is_failure = told.iter().any(|told| told.tell == Tell::Failed);
        let returned_max = self.config.returned_bytes_max;
        // Of a success and a delay the header is enough (RFC 3461 section 4.3).
        let wants_all = is_failure && queued.ret != Some(Ret::Headers);
        let is_short = || self.messages.body_len(message).is_ok_and(|len| len <= returned_max);
        let is_whole = wants_all && is_short();
        let body = self.messages.body(message, if is_whole { returned_max } else { HEADER_BYTES_MAX });
        let body = body.unwrap_or_default();
        let header = if is_whole { Vec::new() } else { header_of(&body, HEADER_BYTES_MAX as usize) };
        // A copy that fails makes no further copy, whatever ways it went.
        if to.is_postmaster && (is_double_bounce(&body) || !self.notices.take_copy()) {
            return None;
        }
        let texts: Vec<String> = told.iter().map(|told| text_of(&told.reply)).collect();
        let untils = told.iter().map(|told| {
            let until = self.queue().show(told.change.key).and_then(|state| state.expires);
            i64::from(until.unwrap_or(now))
        });
        let untils: Vec<i64> = untils.collect();
        let recipients: Vec<Recipient<'_>> = told
            .iter()
            .zip(texts.iter().zip(untils))
            .filter_map(|(told, (text, until))| {
                let recipient = envelope.recipient(told.change.key.number)?;
                Some(Recipient {
                    address: &recipient.address,
                    orcpt: &recipient.orcpt,
                    action: told.tell.action(until),
                    status: status(told),
                    reply: text,
                    host: &told.host,
                    last_attempt: DateTime::from_unix(now.into()),
                })
            })
            .collect();
        if recipients.is_empty() {
            return None;
        }
        let first = told[0].change.key;
        let random = |salt: u64| {
            mix(self.seed ^ mix(first.message.get() ^ u64::from(first.number) << 48) ^ mix(u64::from(now)) ^ salt)
        };
        let notification = Notification {
            reporting_host: &self.config.host_name,
            to: &to.address,
            is_double_bounce: to.is_postmaster,
            envid: &queued.envid,
            received: DateTime::from_unix(queued.received.into()),
            now: DateTime::from_unix(now.into()),
            id: u128::from(random(1)) << 64 | u128::from(random(2)),
            recipients: &recipients,
            returned: if is_whole { Returned::Message(&body) } else { Returned::Header(&header) },
            wording: &self.notices.wording(),
        };
        Some(notification.write())
    }

    fn notice(
        &self,
        tenant: &Arc<str>,
        to: &Addressee,
        written: Written,
        changes: &[Change],
        events: Option<Entry>,
    ) -> Notice {
        let to_address = to.address.clone();
        let recipient =
            QueuedRecipient { number: 0, address: to_address.clone(), orcpt: "".into(), notify: notify::NEVER };
        let remote = self.entry(Outgoing {
            sender: "".into(),
            is_8bit: written.is_8bit,
            smtputf8: written.smtputf8,
            ret: None,
            envid: "".into(),
            tenant: if to.is_postmaster { Arc::default() } else { tenant.clone() },
            campaign: "".into(),
            pool: "".into(),
            recipients: vec![recipient],
            ..Outgoing::default()
        });
        Notice { to: to_address, written, change: self.recorder.entry(self.time.now(), changes), events, remote }
    }
}

async fn tell(shared: Arc<Shared>, message: Lsn, envelope: Arc<Envelope>, mut told: Vec<Told>) {
    let changes: Vec<Change> = told.iter().map(|told| told.change).collect();
    let to = shared.addressee(&envelope, &mut told);
    let events = shared.recorder.events(told.iter_mut().filter_map(|told| told.attempt.take()).collect());
    let tenant = envelope.queued.tenant.clone();
    let writing = shared.clone();
    let writing = tokio::task::spawn_blocking(move || {
        let to = to?;
        Some((writing.written(message, &envelope, &told, &to)?, to))
    });
    let written = writing.await;
    let mut pause = Duration::from_millis(100);
    loop {
        let delivered = match &written {
            Ok(Some((written, to))) => {
                let notice = shared.notice(&tenant, to, written.clone(), &changes, events.clone());
                shared.config.notifier.deliver(notice).await
            }
            _ => Ok(false),
        };
        match delivered {
            Ok(true) => break,
            Ok(false) => {
                if let Some(to) = written.iter().flatten().map(|(_, to)| to).find(|to| to.is_postmaster) {
                    shared.warn(message, &format!("nobody gets copies of double bounces: there is no {}", to.address));
                }
                shared.recorder.record_with(&changes, events, shared.time.now());
                shared.wake.notify_one();
                break;
            }
            Err(why) => shared.warn(message, &format!("its sender cannot be told yet: {why}")),
        }
        // The recipients have had no outcome as long as this is not recorded: after a restart they are tried again.
        if shared.is_ending() {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    shared.recorder.end();
}

/// The enhanced code for a reader: that of the reply, or what its class says.
fn status(told: &Told) -> (u8, u16, u16) {
    let class = match (told.tell, told.change.what) {
        (Tell::Failed, _) => 5,
        (Tell::Delayed, _) => 4,
        (Tell::Relayed, What::Delivered(_)) | (Tell::Relayed, _) => 2,
    };
    told.reply.enhanced().map_or((class, 0, 0), |code| (class, code.subject, code.detail))
}

fn text_of(reply: &Reply) -> String {
    let mut out = Vec::new();
    reply.write(&mut out);
    String::from_utf8_lossy(&out).trim_end().replace("\r\n", " ")
}

/// A header that is returned has at most so many bytes.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Between two attempts to make a notification durable.
const PAUSE_MAX: Duration = Duration::from_secs(30);
