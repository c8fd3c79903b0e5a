//! Delivery as a service: opened on the spool, with its log lines.

use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_consumer::StreamOpenError;
use posthaste_delivery::Owners;
use posthaste_delivery::local::{LocalConfig, LocalDelivery, Losses, LostMailboxMail, ReplayReport};
use posthaste_directory::Directory;
use posthaste_intake::{Destination, Intake};
use posthaste_spool::Damage;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::config::error::ServeError;
use crate::lifecycle::{Ended, Ending, OnFailure, Service, end_blocking};
use crate::receive::events::{EventRecorder, Outcomes};
use crate::receive::stuck::StuckStreams;
use crate::services::mailboxes::{DeliveredFiles, KnownMail};
use crate::services::opening::{Restored, log_damaged, log_mended};
use crate::services::panics;
use posthaste_config::{Config, OwnerRules};

/// Delivers accepted mail into mailboxes. It ends with the spool.
pub(crate) struct MaildirService {
    store: LocalDelivery,
    owners: Current,
    failed: Ended,
}

impl MaildirService {
    /// Opens the streams of the mail mounts, and finishes deliveries of an earlier run. `damage`: as reported when the
    /// spool was opened. `known`: from the table of mailboxes, if it is open.
    ///
    /// # Errors
    /// [`ServeError::Storage`].
    pub async fn open(
        config: &Config,
        intake: Intake,
        damage: &[Damage],
        recorder: Option<EventRecorder>,
        known: Option<KnownMail>,
    ) -> Result<(Self, LocalDelivery, Restored), ServeError> {
        let owners = Current::new(OwnerRules::of(&config.domains));
        let failed = panics::of_delivery();
        let mut local = LocalConfig {
            host: config.host_name.clone(),
            shutdown_patience: Duration::from_secs(config.limits.process.shutdown_secs.max(1)),
            owners: owners.owners(),
            losses: Losses::new(log_lost),
            observer: recorder.map(|recorder| Arc::new(Outcomes(recorder)) as _),
            ..LocalConfig::from(&config.storage)
        };
        if let Some(KnownMail { nonce, expunged }) = known {
            (local.nonce, local.expunged) = (nonce, Arc::new(expunged));
        }
        let opened = spawn_blocking(move || LocalDelivery::open_on(intake, local)).await;
        let storage = |error: StreamOpenError| ServeError::Storage { dir: config.storage.data.clone(), error };
        let (store, report) = opened.map_err(std::io::Error::from)?.map_err(storage)?;
        tell(&report);
        let restored = Restored {
            messages: report.messages,
            restored: report.restored,
            deferred: report.deferred,
            damaged_batches: report.damaged.len(),
            damaged_places: damage.len(),
        };
        Ok((Self { store: store.clone(), owners, failed }, store, restored))
    }

    /// Access to delivered files, for readers of the mailboxes.
    pub fn files(&self) -> DeliveredFiles {
        let store = self.store.clone();
        let awaits = Box::new(move |lsn| store.needs_body(lsn));
        let removes = self.store.clone();
        let remove =
            move |mailbox: &str, deadline| removes.remove_mailbox(mailbox, deadline).map_err(|error| error.to_string());
        let settles = self.store.clone();
        let settle = move |patience| settles.sync(patience).map_err(|failed| format!("{failed:?}"));
        let writer = Arc::new(self.store.clone());
        DeliveredFiles { awaits, writer, remove: Box::new(remove), settle: Box::new(settle) }
    }
}

impl Service for MaildirService {
    fn name(&self) -> &'static str {
        "delivery"
    }

    /// Mail in the spool is safe, and a restart delivers it.
    fn on_failure(&self) -> OnFailure {
        OnFailure::Stop
    }

    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        self.owners.replace(OwnerRules::of(&config.domains));
        Vec::new()
    }

    /// Stops at the deadline. Unwritten mail stays in the spool; the server logs its amount afterwards.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
        end_blocking(move || {
            let intake = self.store.intake();
            intake.close();
            self.store.end_by(deadline.into_std());
            intake.end(deadline.into_std());
        })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.failed.poll(cx)
    }
}

/// Mail mounts whose streams could not be read.
pub(crate) fn note_stuck_mounts(store: &LocalDelivery, stuck: &StuckStreams) {
    for mount in store.stats().mounts.iter().filter(|mount| mount.is_stuck) {
        let why = mount.absent.as_deref().unwrap_or_default();
        let help = "once the disk can be read, restart the server; `posthaste spool verify` on a stopped server names what is damaged";
        stuck.add(&format!("local:{}", mount.point), &why, help);
    }
}

fn tell(report: &ReplayReport) {
    report.mended.iter().for_each(log_mended);
    if let Some(first) = report.unknown.first() {
        let batches = report.unknown.len();
        tracing::error!(batches, %first, "entries that a later version wrote stay in the spool");
    }
    log_damaged(&report.damaged, "local delivery");
    let ReplayReport { messages, restored, given_up, deferred, .. } = report;
    tracing::info!(messages, restored, given_up, deferred, "spool replayed");
}

fn log_lost(lost: &LostMailboxMail) {
    let LostMailboxMail { id, received_secs, bytes, mailbox, error, kept, is_there, .. } = lost;
    let kept = kept.as_deref().map(|path| path.display().to_string());
    tracing::error!(
        %id,
        mailbox = &**mailbox,
        bytes,
        received_secs,
        error = &**error,
        kept,
        file_in_mailbox = is_there,
        "MAIL LOST: its body in the spool cannot be read any more; it is given up for this mailbox"
    );
}

/// The rules in force, replaced by a reload.
#[derive(Debug, Clone)]
struct Current(Arc<RwLock<OwnerRules>>);

impl Current {
    fn new(rules: OwnerRules) -> Self {
        Self(Arc::new(RwLock::new(rules)))
    }

    fn replace(&self, rules: OwnerRules) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Owners of new files.
    fn owners(&self) -> Owners {
        let rules = self.0.clone();
        Owners::new(move |path| rules.read().unwrap_or_else(PoisonError::into_inner).ownership(path))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
