//! Lines and events of the relay.

use std::sync::Arc;

use posthaste_events::{
    Admin, AdminTarget, Event, EventKind, EventRecorder, LIST_MAX, OfRelay, ReceivedEvent, RelayFate, TlsFailed,
};
use posthaste_intake::ArrivalFacts;
use posthaste_queue::{Imported, QueueAction, QueueEntry, Secs};
use posthaste_relay::sender::{
    ActedOn, AttemptResult, Observer, Originator, QueueLimitState, RecipientAttempt, RecordingState, SiteState,
    TlsFailure,
};
use posthaste_spool::{Entry, Lsn};

use crate::receive::meters::Meters;

/// Writes to the log and to the event log.
pub(crate) struct RelayLog {
    pub recorder: Option<EventRecorder>,
    pub meters: Arc<Meters>,
}

impl RelayLog {
    fn count(&self, attempt: &RecipientAttempt) {
        let age_secs = attempt.at.saturating_sub(attempt.received);
        match attempt.result {
            AttemptResult::Delivered => {
                let domain = attempt.recipient.rsplit_once('@').map_or("", |(_, domain)| domain);
                self.meters.delivered(&domain.to_lowercase(), age_secs);
            }
            AttemptResult::Deferred { .. } => self.meters.deferred(age_secs),
            _ => {}
        }
    }
}

impl Observer for RelayLog {
    fn attempts(&self, attempts: Vec<RecipientAttempt>) -> Option<Entry> {
        attempts.iter().for_each(log);
        attempts.iter().for_each(|attempt| self.count(attempt));
        let recorder = self.recorder.as_ref()?;
        let mut events = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            let is_double_bounce = attempt.is_double_bounce;
            let of = event(attempt);
            let double = is_double_bounce.then(|| OfRelay { fate: RelayFate::DoubleBounced, ..of.clone() });
            events.extend([of].into_iter().chain(double).map(|of| Event::now(EventKind::Relay(of))));
        }
        recorder.entries(&events)
    }

    fn acted(&self, by: &Originator, action: QueueAction, recipients: Vec<ActedOn>) -> Option<Entry> {
        let target =
            |of: ActedOn| AdminTarget { message: of.key.message, number: of.key.number, recipient: of.recipient };
        self.recorder.as_ref()?.entry(&Event::now(EventKind::Admin(Admin {
            action: name(action).into(),
            uid: by.uid,
            token: by.token.as_str().into(),
            reason: by.reason.as_str().into(),
            until: if let QueueAction::Hold(Some(until)) = action { until } else { 0 },
            targets: recipients.into_iter().map(target).collect(),
            ..Admin::default()
        })))
    }

    fn wants_acted(&self) -> bool {
        self.recorder.is_some()
    }

    fn suspended(&self, by: &Originator, entry: &QueueEntry) -> Option<Entry> {
        let (action, scope, until) = match entry {
            QueueEntry::Suspended { scope, until, .. } => ("suspend", scope, *until),
            QueueEntry::Slowed { scope, until, .. } => ("slow", scope, *until),
            QueueEntry::Resumed(scope) => ("resume", scope, Secs::MAX),
            QueueEntry::Diverted { scope, until, .. } => ("route", scope, *until),
            QueueEntry::NotDiverted(scope) => ("unroute", scope, Secs::MAX),
            _ => return None,
        };
        self.recorder.as_ref()?.entry(&Event::now(EventKind::Admin(Admin {
            action: action.into(),
            uid: by.uid,
            token: by.token.as_str().into(),
            reason: by.reason.as_str().into(),
            scope: scope.kind().into(),
            name: scope.name().into(),
            until: if until == Secs::MAX { 0 } else { until },
            targets: Vec::new(),
        })))
    }

    fn imported(&self, by: &Originator, message: &Imported, message_id: &str, bytes: u64) -> Option<Entry> {
        let paths = message.queued.recipients.iter().map(|to| format!("<{}>", to.address).into());
        let facts = ArrivalFacts {
            id: message.origin.to_string().into(),
            peer: format!("import by user {}", by.uid).into(),
            helo: "".into(),
            with: "import".into(),
            tls: "".into(),
            user: "".into(),
            sender: format!("<{}>", message.queued.sender).into(),
            recipients: paths.take(LIST_MAX).collect(),
            recipient_count: message.queued.recipients.len() as u32,
            bytes,
            message_id: message_id.into(),
            ..ArrivalFacts::default()
        };
        let tenant = Arc::clone(&message.queued.tenant);
        let received = ReceivedEvent { facts, tenant, ..ReceivedEvent::default() };
        self.recorder.as_ref()?.entry(&Event::now(EventKind::Received(received)))
    }

    fn site(&self, state: &SiteState<'_>) {
        match state {
            SiteState::Unreachable { source, site, error, failures, pauses: 1, pause_secs } => {
                self.meters.backed_off();
                tracing::warn!(
                    source,
                    site,
                    error,
                    failures,
                    pause_secs,
                    "mail waits for these hosts; retrying automatically"
                );
            }
            SiteState::Unreachable { source, site, error, failures, pause_secs, .. } => {
                tracing::debug!(source, site, error, failures, pause_secs, "mail waits for these hosts");
            }
            SiteState::Reached { source, site } => tracing::info!(source, site, "these hosts answer again"),
        }
    }

    fn tls_failed(&self, failure: &TlsFailure<'_>) {
        if let Some(recorder) = &self.recorder {
            recorder.note(&Event::now(EventKind::TlsFailed(TlsFailed {
                host: failure.host.into(),
                site: failure.site.into(),
                demand: failure.demand.into(),
                result: failure.result.into(),
                error: failure.error.into(),
            })));
        }
    }

    fn tls_avoided(&self, host: &str, error: &str, secs: u64) {
        self.meters.tls_avoided();
        tracing::warn!(host, error, secs, "TLS with this host fails again: its mail goes in the clear for now");
    }

    fn source(&self, source: &str, error: Option<&str>) {
        match error {
            Some(error) => tracing::error!(source, error, "no mail is sent from this source; retrying automatically"),
            None => tracing::info!(source, "mail is sent from this source again"),
        }
    }

    fn queue_limit(&self, state: &QueueLimitState<'_>) {
        match *state {
            QueueLimitState::Full { tenant: "", recipients, max } => {
                tracing::warn!(recipients, max, "the queue is full: mail for other hosts is refused with 452");
            }
            QueueLimitState::Full { tenant, recipients, max } => {
                tracing::warn!(
                    tenant,
                    recipients,
                    max,
                    "a tenant's part of the queue is full: its mail is refused with 452"
                );
            }
            QueueLimitState::Again { tenant: "", refused } => tracing::info!(refused, "the queue has room again"),
            QueueLimitState::Again { tenant, refused } => {
                tracing::info!(tenant, refused, "a tenant's part of the queue has room again");
            }
        }
    }

    fn recording(&self, state: &RecordingState<'_>) {
        match *state {
            RecordingState::Poisoned { unrecorded, why } => {
                tracing::error!(
                    unrecorded,
                    error = why,
                    "no mail is sent to other hosts until the server is restarted: the spool takes no records"
                );
            }
            RecordingState::Stopped { unrecorded, why } => {
                let error = why.unwrap_or("the disk does not answer");
                tracing::error!(
                    unrecorded,
                    error,
                    "no mail is sent to other hosts for now: outcomes cannot be recorded; retrying"
                );
            }
            RecordingState::GoesOn => tracing::info!("mail is sent to other hosts again"),
        }
    }

    fn warn(&self, batch: Lsn, what: &str) {
        tracing::error!(id = %batch, error = what, "the relay's queue");
    }
}

fn log(attempt: &RecipientAttempt) {
    if attempt.key.message == Lsn::ZERO {
        let RecipientAttempt { host, stage, class, reply, .. } = attempt;
        let host = &**host;
        let class = &**class;
        let reply = reply.to_string();
        return tracing::info!(host, stage, reply, class, "the host has ended the session; no mail waited for it");
    }
    let id = attempt.key.message;
    let number = attempt.key.number;
    let to = &*attempt.recipient;
    let host = &*attempt.host;
    let reply = attempt.reply.to_string();
    let class = &*attempt.class;
    if attempt.result == AttemptResult::Delivered {
        let delay_secs = attempt.at.saturating_sub(attempt.received);
        return tracing::info!(%id, number, to, host, reply, delay_secs, "delivered");
    }
    if attempt.is_double_bounce {
        let sender = &*attempt.sender;
        tracing::warn!(%id, number, sender, to, host, reply, "given up, and its sender cannot be notified");
    }
    match attempt.result {
        AttemptResult::Delivered => {}
        AttemptResult::Deferred { .. } => {
            tracing::info!(%id, number, to, host, reply, class, "not delivered yet; retrying automatically");
        }
        AttemptResult::Interrupted => {
            let stage = attempt.stage;
            tracing::info!(
                %id,
                number,
                to,
                host,
                stage,
                reply,
                class,
                "the host has ended the session; retrying automatically"
            );
        }
        AttemptResult::Unknown { .. } => {
            tracing::warn!(%id, number, to, host, reply, class, "the connection broke after the message: the other host may have it; sending it again");
        }
        AttemptResult::Failed => tracing::info!(%id, number, to, host, reply, class, "refused for good: given up"),
        AttemptResult::Expired => tracing::info!(%id, number, to, host, reply, "too old: given up"),
        AttemptResult::Suppressed => tracing::info!(%id, number, to, reply, "on a suppression list: given up"),
    }
}

fn event(attempt: RecipientAttempt) -> OfRelay {
    let (fate, next) = match attempt.result {
        AttemptResult::Delivered => (RelayFate::Delivered, 0),
        AttemptResult::Deferred { next } => (RelayFate::Deferred, next),
        AttemptResult::Unknown { next } => (RelayFate::Unknown, next),
        AttemptResult::Interrupted => (RelayFate::Interrupted, 0),
        AttemptResult::Failed => (RelayFate::Bounced, 0),
        AttemptResult::Expired => (RelayFate::Expired, 0),
        AttemptResult::Suppressed => (RelayFate::Suppressed, 0),
    };
    let status = attempt.reply.enhanced().map_or_else(String::new, |code| code.to_string());
    OfRelay {
        fate,
        message: attempt.key.message,
        number: attempt.key.number,
        attempts: attempt.attempts,
        age_secs: attempt.at.saturating_sub(attempt.received),
        next,
        code: attempt.reply.code(),
        status: status.into(),
        reply: attempt.reply.to_string().replace("\r\n", "\n").into(),
        host: attempt.host,
        // A delivery always has the reply to the message.
        stage: if fate == RelayFate::Delivered { "" } else { attempt.stage }.into(),
        source: attempt.source,
        class: attempt.class,
        sender: attempt.sender,
        recipient: attempt.recipient,
        tenant: attempt.tenant,
        campaign: attempt.campaign,
    }
}

fn name(action: QueueAction) -> &'static str {
    match action {
        QueueAction::Hold(_) => "hold",
        QueueAction::Release => "release",
        QueueAction::Flush => "flush",
        QueueAction::Requeue => "requeue",
        QueueAction::Delete => "delete",
        QueueAction::Bounce(_) => "bounce",
    }
}
