//! The configured transports: opening with the store, and log lines.

mod refusals;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_consumer::StreamOpenError;
use posthaste_directory::Directory;
use posthaste_events::{Event as Recorded, EventKind, Fate, LIST_MAX, OfTransport, TransportTarget};
use posthaste_intake::Destination;
use posthaste_spool::{Entry, Spool};
pub(crate) use posthaste_transport::close_inherited_on_exec;
use posthaste_transport::{
    Failure, FailureReason, TargetId, TransportEvent, TransportEvents, TransportObserver, Transports,
};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::config::error::ServeError;
use crate::lifecycle::{Ending, OnFailure, Service, end_blocking};
use crate::receive::destinations::Late;
use crate::receive::events::{EventRecorder, Outcomes};
use crate::receive::handler::Receiver;
use crate::receive::stuck::StuckStreams;
use crate::services::opening::log_damaged;
use posthaste_config::Config;
use refusals::RefusalNotices;

/// Delivers mail to programs, files and LMTP servers. Opened when the configuration names the first one, at the latest
/// by a reload.
pub(crate) struct TransportService {
    opened: Arc<Late<Transports>>,
    spool: Arc<dyn Spool>,
    recorder: Option<EventRecorder>,
    notices: RefusalNotices,
    stuck: Arc<StuckStreams>,
}

impl TransportService {
    /// Opens the stream, and continues an earlier run's mail. If that fails it is stuck, until a reload succeeds.
    ///
    /// # Errors
    /// No thread could be started.
    pub async fn start(config: &Config, receiver: &Receiver) -> Result<Self, ServeError> {
        let spool = receiver.destinations().intake().spool().clone();
        let recorder = receiver.events().cloned();
        let notices = RefusalNotices::new(receiver);
        let late = receiver.destinations().late_transports().clone();
        let settings = config.clone();
        let of_spool = spool.clone();
        let to = recorder.clone();
        let tell = notices.clone();
        let opened = spawn_blocking(move || open(&settings, of_spool, to, tell)).await.map_err(std::io::Error::from)?;
        let opened = opened.unwrap_or_else(|error| {
            receiver.destinations().stuck().add(posthaste_transport::STREAM, &error, HELP);
            None
        });
        opened.into_iter().for_each(|transports| late.open(transports));
        let stuck = receiver.destinations().stuck().clone();
        Ok(Self { opened: late, spool, recorder, notices, stuck })
    }
}

impl Service for TransportService {
    fn name(&self) -> &'static str {
        "transports"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("mail for programs, files and LMTP servers waits in the spool")
    }

    /// Opens the transports if the new configuration names some.
    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        if self.opened.opened().is_some() {
            return Vec::new();
        }
        match open(config, self.spool.clone(), self.recorder.clone(), self.notices.clone()) {
            Ok(opened) => {
                opened.into_iter().for_each(|transports| self.opened.open(transports));
                self.stuck.remove(posthaste_transport::STREAM);
            }
            Err(error) => {
                self.stuck.add(posthaste_transport::STREAM, &error, HELP);
                return vec!["transports"];
            }
        }
        Vec::new()
    }

    /// Finishes deliveries in progress, or leaves them to the next start.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
        end_blocking(move || self.opened.end_by(deadline.into_std()))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.opened.poll_failed(cx)
    }
}

const HELP: &str =
    "once the disk can be read, SIGHUP opens it; `posthaste spool verify` on a stopped server names what is damaged";

/// Opens the transports, if the configuration names any or mail waits for some. Blocks.
fn open(
    config: &Config,
    spool: Arc<dyn Spool>,
    recorder: Option<EventRecorder>,
    notices: RefusalNotices,
) -> Result<Option<Transports>, StreamOpenError> {
    let is_waiting =
        spool.streams().iter().any(|stream| stream.name == posthaste_transport::STREAM && stream.entries > 0);
    if !is_waiting && config.transports().is_empty() {
        return Ok(None);
    }
    let (transports, report) = Transports::open(spool, settings(config, recorder, notices), TransportEvents::new(log))?;
    log_damaged(&report.damaged, "transports");
    if report.held > 0 {
        tracing::error!(
            recipients = report.held,
            "held: it is unknown if programs, files and LMTP servers have these messages. `posthaste queue list --held` shows them, `posthaste queue release` \
             delivers them, `posthaste queue delete` drops them"
        );
    }
    if let Some(first) = report.unknown.first() {
        let batches = report.unknown.len();
        tracing::error!(batches, %first, "entries for transports that a later version wrote stay in the spool");
    }
    if report.messages > 0 {
        tracing::info!(messages = report.messages, "mail waits for transports; it is tried now");
    }
    Ok(Some(transports))
}

fn settings(config: &Config, recorder: Option<EventRecorder>, notices: RefusalNotices) -> posthaste_transport::Config {
    let storage = &config.storage;
    posthaste_transport::Config {
        host_name: config.host_name.clone(),
        observer: recorder.map(|recorder| Arc::new(Outcomes(recorder)) as _),
        notifier: Some(Arc::new(notices)),
        pending_bytes_max: storage.mailbox_pending_bytes,
        pending_bytes_max_all: storage.pending_bytes,
        shutdown_patience: Duration::from_secs(config.limits.process.shutdown_secs.max(1)),
        ..(&config.transport).into()
    }
}

impl TransportObserver for Outcomes {
    fn delivered(&self, targets: Vec<TargetId>) -> Option<Entry> {
        self.0.entry(&of_transport(Fate::Delivered, &targets, FailureReason::default()))
    }

    fn lost(&self, targets: u64) {
        self.0.lost(targets);
    }

    fn waits(&self, targets: Vec<TargetId>, failure: Failure, error: FailureReason) {
        let fate = if failure.is_held() { Fate::Held } else { Fate::Waiting };
        for some in targets.chunks(LIST_MAX) {
            self.0.note(&of_transport(fate, some, error.clone()));
        }
    }

    fn given_up(&self, target: TargetId, error: Arc<str>) {
        self.0.note(&of_transport(Fate::GivenUp, &[target], error.into()));
    }
}

fn of_transport(fate: Fate, targets: &[TargetId], error: FailureReason) -> Recorded {
    let target = |id: &TargetId| TransportTarget {
        message: id.message,
        number: id.number,
        transport: id.transport.clone(),
        recipient: id.recipient.clone(),
    };
    let (FailureReason { stage, text: error }, targets) = (error, targets.iter().map(target).collect());
    Recorded::now(EventKind::Transport(OfTransport { fate, stage, error, targets }))
}

/// Logs each failure once: while it lasts, `posthaste spool inspect` shows it.
fn log(event: TransportEvent) {
    let text = |text: &Arc<str>| text.to_string();
    match event {
        TransportEvent::Failed { transport, id, recipient, failure, is_new: true, error, pause, .. } => {
            log_failed(&transport, id, &recipient, failure, &error, pause.as_secs());
        }
        TransportEvent::Failed { transport, id, recipient, attempts, failure, error, .. } => {
            let transport = text(&transport);
            let to = text(&recipient);
            let error = text(&error);
            tracing::debug!(transport, to, %id, attempts, failure = ?failure, error, "not delivered yet");
        }
        TransportEvent::NotRecorded { unrecorded, why, is_final: true } => {
            tracing::error!(
                unrecorded,
                error = text(&why),
                "nothing is delivered to transports until the server is restarted: the spool takes no records"
            );
        }
        TransportEvent::NotRecorded { unrecorded, why, is_final: false } => {
            tracing::error!(
                unrecorded,
                error = text(&why),
                "nothing is delivered to transports for now: deliveries cannot be recorded; retrying"
            );
        }
        TransportEvent::RecordedAgain => tracing::info!("mail is delivered to transports again"),
        TransportEvent::Unavailable { transport, attempts, is_overdue: true, error, .. } => {
            let transport = text(&transport);
            let error = text(&error);
            tracing::error!(
                transport,
                attempts,
                error,
                "mail has waited for this transport for longer than transport.max_age_secs; retrying automatically"
            );
        }
        TransportEvent::Unavailable { transport, attempts: 1, error, pause, .. } => {
            let transport = text(&transport);
            let error = text(&error);
            let retry_secs = pause.as_secs();
            tracing::warn!(transport, error, retry_secs, "mail waits for this transport; retrying automatically");
        }
        TransportEvent::Unavailable { transport, attempts, error, .. } => {
            let transport = text(&transport);
            let error = text(&error);
            tracing::debug!(transport, attempts, error, "mail waits for this transport");
        }
        TransportEvent::Lost(lost) => {
            let kept = lost.kept.as_deref().map(|path| path.display().to_string());
            tracing::error!(
                id = %lost.target.message,
                transport = text(&lost.target.transport),
                to = text(&lost.target.recipient),
                bytes = lost.bytes,
                received_secs = lost.received_secs,
                error = text(&lost.error),
                kept,
                "MAIL LOST: its body in the spool cannot be read any more; it is given up for this transport"
            );
        }
        TransportEvent::NotTold { id, error } => {
            tracing::warn!(
                %id,
                error,
                "cannot send the notice that a transport refuses this message; retrying automatically, also for others"
            );
        }
        TransportEvent::Recovered { transport } => {
            tracing::info!(transport = text(&transport), "this transport accepts mail again");
        }
        event => tracing::warn!(event = ?event, "transports"),
    }
}

/// The first failure of a message at its recipient.
fn log_failed(transport: &str, id: u64, to: &str, failure: Failure, error: &str, retry_secs: u64) {
    match failure {
        Failure::Refused => tracing::error!(
            transport,
            to,
            %id,
            error,
            retry_secs,
            "refused for good: the message stays in the spool; SIGHUP tries it again at once, `posthaste spool drop` drops it"
        ),
        Failure::Overdue => tracing::error!(
            transport,
            to,
            %id,
            error,
            retry_secs,
            "not delivered for longer than transport.max_age_secs: the message stays in the spool; SIGHUP tries it again at once, \
             `posthaste spool drop` drops it"
        ),
        Failure::Panicked => {
            tracing::error!(transport, to, %id, error, retry_secs, "not delivered yet, because of a bug");
        }
        _ => tracing::warn!(transport, to, %id, error, retry_secs, "not delivered yet; retrying automatically"),
    }
}
