//! Opens the spool, and logs its findings.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_consumer::StreamOpenError;
use posthaste_intake::{Intake, LARGE_BODY_BYTES, MemoryBudget};
use posthaste_spool::{Damage, FileSpool, Lsn, OpenReport, Spool, SpoolEvent};
use posthaste_watch::Watch as Workers;
use tracing::field::display;

use crate::config::error::ServeError;
use crate::listen::listening::PREDECESSOR_PATIENCE;
use crate::receive::events::Events;
use crate::repeats::{About, Kind, Repeats};
use posthaste_config::Config;

/// The open spool, with the parts that are opened before its other streams.
pub(crate) struct OpenedSpool {
    pub intake: Intake,
    /// The event log, if there is one.
    pub events: Option<Events>,
    /// Why the event log could not be opened. Mail is accepted and delivered without it.
    pub without_events: Option<StreamOpenError>,
    pub found: OpenReport,
}

/// Mail that a start found in the spool, and finished.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// Messages whose delivery was possibly incomplete.
    pub messages: usize,
    /// Mailbox entries that were written again.
    pub restored: usize,
    /// Entries of unwritable mailboxes.
    pub deferred: usize,
    /// Unreadable batches.
    pub damaged_batches: usize,
    /// Damaged places of the spool.
    pub damaged_places: usize,
}

/// Opens the spool, with its workers under the watch `workers`, and the event log. A failure of the log is no error.
/// `lsns_above`: the numbers of a new spool begin above it.
///
/// # Errors
/// [`ServeError::Spool`] and [`ServeError::Storage`].
pub(crate) async fn open_spool(
    config: &Config,
    repeats: Arc<Repeats>,
    workers: Workers,
    lsns_above: Lsn,
) -> Result<OpenedSpool, ServeError> {
    let spool = posthaste_spool::Config { watch: workers, lsns_above, ..spool_config(config, repeats) };
    let settings = config.clone();
    let open = move || {
        let data = &settings.storage.data;
        let mail = &settings.storage.mail;
        let storage = |error| ServeError::Storage { dir: data.clone(), error };
        crate::config::privileges::make_mail_directory(&settings)
            .map_err(StreamOpenError::io(mail.display().to_string()))
            .map_err(storage)?;
        let (spool, found) = open_when_free(&settings.storage.spool, spool)?;
        tell(&found);
        let spool: Arc<dyn Spool> = Arc::new(spool);
        let (events, without_events) = match Events::open(&settings, &spool) {
            Ok(events) => (events, None),
            Err(error) => (None, Some(error)),
        };
        Ok(OpenedSpool { intake: Intake::new(spool, intake_config(&settings)), events, without_events, found })
    };
    tokio::task::spawn_blocking(open).await.map_err(std::io::Error::from)?
}

/// The settings of a spool, which logs its events.
pub(crate) fn spool_config(config: &Config, repeats: Arc<Repeats>) -> posthaste_spool::Config {
    posthaste_spool::Config {
        events: posthaste_spool::Events::new(move |event| log(event, &repeats)),
        ..posthaste_spool::Config::from(&config.storage)
    }
}

pub(crate) fn intake_config(config: &Config) -> posthaste_intake::Config {
    posthaste_intake::Config {
        // Gathered bodies are no larger than this, their trace fields included.
        inline_bytes_max: (LARGE_BODY_BYTES + (64 << 10)) as u64,
        backlog_bytes: MemoryBudget::of_store(config.limits.process.memory_bytes),
        ..posthaste_intake::Config::default()
    }
}

/// Opens the spool. Waits a little for its lock: a killed predecessor holds it until the kernel has reaped it.
pub(crate) fn open_when_free(
    dir: &Path,
    config: posthaste_spool::Config,
) -> Result<(FileSpool, OpenReport), ServeError> {
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match FileSpool::open(dir, config.clone()) {
            Err(posthaste_spool::OpenError::Locked) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            opened => return opened.map_err(|error| ServeError::Spool { dir: dir.to_owned(), error }),
        }
    }
}

/// Logs the findings of an opening.
pub(crate) fn tell(found: &OpenReport) {
    for damage in &found.cut_off {
        let batch = damage.lsn.map(display);
        let what = &damage.what;
        tracing::info!(
            batch,
            place = damage.place,
            what,
            "an unfinished write of the last run was cut off; nothing of it was acknowledged"
        );
    }
    found.mended.iter().for_each(log_mended);
}

/// Logs a damaged file that was rebuilt, since it only had copies.
pub(crate) fn log_mended(damage: &Damage) {
    let place = &damage.place;
    let what = &damage.what;
    tracing::warn!(place, what, "a file of the spool is damaged or unreadable; it is rewritten");
}

/// Logs damaged batches. `consumer`: owner of the lost entries.
pub(crate) fn log_damaged(batches: &[Lsn], consumer: &str) {
    for batch in batches {
        tracing::error!(%batch, "a batch of the spool cannot be read: its entry for {consumer} is lost");
    }
}

/// Logs an event of the spool. A failure that lasts is logged at intervals.
fn log(event: SpoolEvent, repeats: &Repeats) {
    let failing = match &event {
        SpoolEvent::CheckpointFailed { .. } => Some((Kind::Broken, "checkpoints of the spool")),
        SpoolEvent::CheckpointSlow { .. } => Some((Kind::Slow, "checkpoints of the spool")),
        SpoolEvent::PackingFailed { .. } => Some((Kind::Broken, "packs of the spool")),
        SpoolEvent::SegmentFailed { .. } => Some((Kind::Broken, "log files of the spool")),
        _ => None,
    };
    if failing.is_some_and(|(kind, name)| !repeats.is_told(kind, About::Name(name), Instant::now())) {
        tracing::debug!(event = ?event, "the spool");
        return;
    }
    write(event);
}

fn write(event: SpoolEvent) {
    match event {
        SpoolEvent::CheckpointFailed { error } => {
            tracing::error!(error, "a checkpoint of the spool failed: nothing is freed until one succeeds");
        }
        SpoolEvent::CheckpointSlow { took } => {
            tracing::warn!(seconds = took.as_secs(), "a checkpoint of the spool took long: its disk is slow");
        }
        SpoolEvent::PackingFailed { error } => {
            tracing::error!(error, "waiting mail could not be moved into a pack: the log of the spool fills");
        }
        SpoolEvent::SegmentFailed { error } => {
            tracing::error!(error, "a log file of the spool cannot be made: mail that needs it is refused");
        }
        SpoolEvent::Poisoned { why } => {
            tracing::error!(
                why,
                "stable storage failed: no mail is accepted until the cause is fixed and the server restarted"
            );
        }
        SpoolEvent::Damage(damage) => {
            let batch = damage.lsn.map(display);
            tracing::error!(batch, place = damage.place, what = damage.what, "the spool is damaged");
        }
        SpoolEvent::ShortOfSpace { is_short: true, free_bytes, free_inodes } => {
            tracing::warn!(free_bytes, free_inodes, "the file system of the spool is nearly full: mail is refused");
        }
        SpoolEvent::ShortOfSpace { is_short: false, free_bytes, free_inodes } => {
            tracing::info!(free_bytes, free_inodes, "the file system of the spool has room again");
        }
        event => tracing::warn!(event = ?event, "the spool"),
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
