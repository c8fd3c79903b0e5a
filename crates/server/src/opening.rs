//! Opening the spool and local delivery, and what the log says of what was found there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_delivery::Owners;
use posthaste_delivery::local::{LocalConfig, LocalDelivery, Losses, LostMail, OpenError, ReplayReport};
use posthaste_intake::{Intake, LARGE_BODY_BYTES, MemoryBudget};
use posthaste_spool::{Event, FileSpool, Lsn, OpenReport};
use posthaste_watch::Watch as Workers;

use crate::error::ServeError;
use crate::events::{Events, Outcomes};
use crate::listening::PREDECESSOR_PATIENCE;
use crate::mailboxes;
use crate::repeats::{About, Kind, Repeats};
use crate::stuck::StuckStreams;
use posthaste_config::Config;

pub(crate) async fn open_store(
    config: &Config,
    owners: Owners,
    repeats: Arc<Repeats>,
    workers: Workers,
) -> Result<(LocalDelivery, ReplayReport, Option<Events>), ServeError> {
    let mut local = local_config(config, owners, repeats);
    local.spool.watch = workers;
    local.spool.lsns_above = mailboxes::last_lsn(config);
    let settings = config.clone();
    let open = move || {
        let path = settings.storage.mail.clone();
        crate::privileges::make_mail_directory(&settings).map_err(|error| OpenError::Io { path, error })?;
        let (spool, found) = open_when_free(&local)?;
        let spool = Arc::new(spool);
        let events = Events::open(&settings, &spool)?;
        let observer = events.as_ref().map(|log| Arc::new(Outcomes(log.recorder())) as _);
        let intake = Intake::new(spool, local.intake.clone());
        let (store, report) = LocalDelivery::open_on(intake, LocalConfig { observer, ..local })?;
        Ok((store, ReplayReport { spool: Some(found), ..report }, events))
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (store, report, events) = opened.map_err(std::io::Error::from)?.map_err(|error| match error {
        OpenError::Spool { .. } => ServeError::Spool(error),
        error => ServeError::Storage { dir: config.storage.data.clone(), error },
    })?;
    tell(&report);
    Ok((store, report, events))
}

fn local_config(config: &Config, owners: Owners, repeats: Arc<Repeats>) -> LocalConfig {
    let mut local = LocalConfig {
        host: config.host_name.clone(),
        shutdown_patience: Duration::from_secs(config.limits.process.shutdown_secs.max(1)),
        owners,
        losses: Losses::new(log_lost),
        ..LocalConfig::from(&config.storage)
    };
    // Gathered bodies are no larger than this, their trace fields included.
    local.intake.inline_bytes_max = (LARGE_BODY_BYTES + (64 << 10)) as u64;
    local.intake.backlog_bytes = MemoryBudget::of_store(config.limits.process.memory_bytes);
    local.spool.events = posthaste_spool::Events::new(move |event| log(event, &repeats));
    local
}

/// Opens it. A predecessor that was killed holds its locks until the kernel has taken it apart, so this waits a little.
fn open_when_free(config: &LocalConfig) -> Result<(FileSpool, OpenReport), OpenError> {
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match FileSpool::open(&config.spool_dir, config.spool.clone()) {
            Err(posthaste_spool::OpenError::Locked) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            opened => return opened.map_err(|error| OpenError::Spool { dir: config.spool_dir.clone(), error }),
        }
    }
}

fn tell(report: &ReplayReport) {
    for damage in report.spool.iter().flat_map(|spool| &spool.cut_off) {
        let (batch, what) = (damage.lsn.map(Lsn::get), &damage.what);
        tracing::info!(
            batch,
            place = damage.place,
            what,
            "an unfinished write of the last run was cut off; nothing of it was acknowledged"
        );
    }
    for damage in report.spool.iter().flat_map(|spool| &spool.mended).chain(&report.mended) {
        let (place, what) = (&damage.place, &damage.what);
        tracing::warn!(place, what, "a file of the spool is damaged or unreadable; it is written anew");
    }
    if let Some(first) = report.unknown.first() {
        let (batches, first) = (report.unknown.len(), first.get());
        tracing::error!(batches, first, "entries that a later version wrote stay in the spool");
    }
    log_damaged(&report.damaged, "local delivery");
    let ReplayReport { messages, restored, given_up, deferred, .. } = report;
    tracing::info!(messages, restored, given_up, deferred, "spool replayed");
}

/// Mail mounts whose streams could not be read.
pub(crate) fn note_stuck_mounts(store: &LocalDelivery, stuck: &StuckStreams) {
    for mount in store.stats().mounts.iter().filter(|mount| mount.is_stuck) {
        let why = mount.absent.as_deref().unwrap_or_default();
        let help = "once the disk can be read, restart the server; `posthaste spool verify` on a stopped server names what is damaged";
        stuck.add(&format!("local:{}", mount.point), &why, help);
    }
}

/// `consumer`: whose entries were in the batches.
pub(crate) fn log_damaged(batches: &[Lsn], consumer: &str) {
    for batch in batches {
        let batch = batch.get();
        tracing::error!(batch, "a batch of the spool cannot be read: what it said to {consumer} is lost");
    }
}

fn log_lost(lost: &LostMail) {
    let LostMail { id, received_secs, bytes, mailbox, error, kept, is_there, .. } = lost;
    let kept = kept.as_deref().map(|path| path.display().to_string());
    tracing::error!(
        id,
        mailbox = &**mailbox,
        bytes,
        received_secs,
        error = &**error,
        kept,
        file_in_mailbox = is_there,
        "MAIL LOST: its body in the spool cannot be read any more; it is given up for this mailbox"
    );
}

/// What the spool tells while it works; a failure that lasts, now and then.
fn log(event: Event, repeats: &Repeats) {
    let failing = match &event {
        Event::CheckpointFailed { .. } => Some((Kind::Broken, "checkpoints of the spool")),
        Event::CheckpointSlow { .. } => Some((Kind::Slow, "checkpoints of the spool")),
        Event::PackingFailed { .. } => Some((Kind::Broken, "packs of the spool")),
        Event::SegmentFailed { .. } => Some((Kind::Broken, "log files of the spool")),
        _ => None,
    };
    if failing.is_some_and(|(kind, name)| !repeats.is_told(kind, About::Name(name), Instant::now())) {
        tracing::debug!(event = ?event, "the spool");
        return;
    }
    write(event);
}

fn write(event: Event) {
    match event {
        Event::CheckpointFailed { error } => {
            tracing::error!(error, "a checkpoint of the spool failed: nothing is freed until one succeeds");
        }
        Event::CheckpointSlow { took } => {
            tracing::warn!(seconds = took.as_secs(), "a checkpoint of the spool took long: its disk is slow");
        }
        Event::PackingFailed { error } => {
            tracing::error!(error, "waiting mail could not be moved into a pack: the log of the spool fills");
        }
        Event::SegmentFailed { error } => {
            tracing::error!(error, "a log file of the spool cannot be made: mail that needs it is refused");
        }
        Event::Poisoned { why } => {
            tracing::error!(why, "stable storage failed: no mail is accepted until a restart, once its cause is gone");
        }
        Event::Damage(damage) => {
            let batch = damage.lsn.map(Lsn::get);
            tracing::error!(batch, place = damage.place, what = damage.what, "the spool is damaged");
        }
        Event::ShortOfSpace { is_short: true, free_bytes, free_inodes } => {
            tracing::warn!(free_bytes, free_inodes, "the file system of the spool is nearly full: mail is refused");
        }
        Event::ShortOfSpace { is_short: false, free_bytes, free_inodes } => {
            tracing::info!(free_bytes, free_inodes, "the file system of the spool has room again");
        }
        event => tracing::warn!(event = ?event, "the spool"),
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
