//! Opening the spool and local delivery, and what the log says of what was found there.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::Discriminant;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use posthaste_delivery::Owners;
use posthaste_delivery::local::{LocalConfig, LocalDelivery, OpenError, ReplayReport, TakenOver};
use posthaste_spool::{Event, Events};

use crate::config::Config;
use crate::listening::PREDECESSOR_PATIENCE;
use crate::memory::{LARGE_BODY_BYTES, MemoryBudget};
use crate::serve::ServeError;

pub(crate) async fn open_store(config: &Config, owners: Owners) -> Result<(LocalDelivery, ReplayReport), ServeError> {
    let local = local_config(config, owners);
    let settings = config.clone();
    let open = move || {
        let path = settings.storage.mail.clone();
        crate::privileges::make_mail_directory(&settings).map_err(|error| OpenError::Io { path, error })?;
        open_when_free(&local)
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (store, report) = opened.map_err(std::io::Error::from)?.map_err(|error| {
        let dir = if matches!(error, OpenError::Spool(_)) { &config.storage.spool } else { &config.storage.data };
        ServeError::Storage { dir: dir.clone(), error }
    })?;
    tell(&report);
    Ok((store, report))
}

fn local_config(config: &Config, owners: Owners) -> LocalConfig {
    let storage = &config.storage;
    let interval = Duration::from_secs(storage.checkpoint_secs);
    let mut local = LocalConfig {
        journal_dir: Some(storage.journal.clone()),
        host: config.host_name.clone(),
        // Gathered bodies are no larger than this, their trace fields included.
        inline_bytes_max: (LARGE_BODY_BYTES + (64 << 10)) as u64,
        pending_bytes_max: storage.mailbox_pending_bytes,
        pending_bytes_max_all: storage.pending_bytes,
        sync_bytes: storage.checkpoint_bytes,
        sync_interval: interval,
        shutdown_patience: Duration::from_secs(config.limits.shutdown_secs.max(1)),
        backlog_bytes: MemoryBudget::of_store(config.limits.memory_bytes),
        owners,
        ..LocalConfig::new(&storage.spool, &storage.mail)
    };
    let spool = &mut local.spool;
    (spool.ring.segment_bytes, spool.ring.max_segments) = (storage.spool_segment_bytes, storage.spool_segments);
    (spool.checkpoint_bytes, spool.checkpoint_every) = (storage.checkpoint_bytes, interval);
    (spool.free_bytes_min, spool.free_inodes_min) = (storage.free_bytes_min, storage.free_inodes_min as u64);
    let told = Told::default();
    spool.events = Events::new(move |event| told.tell(event));
    local
}

/// Opens it. A predecessor that was killed holds its locks until the kernel has taken it apart, so this waits a little.
fn open_when_free(config: &LocalConfig) -> Result<(LocalDelivery, ReplayReport), OpenError> {
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match LocalDelivery::open(config.clone()) {
            Err(error) if error.is_locked() && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            opened => return opened,
        }
    }
}

fn tell(report: &ReplayReport) {
    if let Some(TakenOver { messages, unreadable, damage, .. }) = &report.taken_over {
        tracing::info!(messages, "the journal of an earlier version was taken over into the spool");
        for (record, error) in unreadable {
            let error = error.to_string();
            tracing::error!(record, error, "a record of the journal cannot be read: its file is kept in kept/ there");
        }
        for damage in damage.iter().filter(|damage| damage.promised) {
            let (segment, offset, what) = (damage.segment.as_str(), damage.offset, damage.what);
            tracing::error!(
                segment,
                offset,
                what,
                "promised mail is damaged in the journal: its file is kept in kept/ there"
            );
        }
    }
    if let Some(first) = report.unknown.first() {
        let (batches, first) = (report.unknown.len(), first.get());
        tracing::error!(batches, first, "entries that a later version wrote stay in the spool");
    }
    for lsn in &report.damaged {
        tracing::error!(
            batch = lsn.get(),
            "a batch of the spool cannot be read: what it said to local delivery is lost"
        );
    }
    let ReplayReport { messages, restored, deferred, .. } = report;
    tracing::info!(messages, restored, deferred, "spool replayed");
}

/// What the spool tells while it works. A failure that lasts is told again each minute.
#[derive(Default)]
struct Told {
    /// When each kind of failure was told last, and how often it has come since.
    failures: Mutex<HashMap<Discriminant<Event>, (Instant, u64)>>,
}

impl Told {
    fn tell(&self, event: Event) {
        use Event::{CheckpointFailed, CheckpointSlow, PackingFailed, SegmentFailed};
        let is_failure = matches!(
            event,
            CheckpointFailed { .. } | CheckpointSlow { .. } | PackingFailed { .. } | SegmentFailed { .. }
        );
        match is_failure.then(|| self.left_out(&event, Instant::now())) {
            Some(None) => {}
            Some(Some(left_out)) => log(event, left_out),
            None => log(event, 0),
        }
    }

    /// How often it was left out since it was told last; `None`: leave it out now.
    fn left_out(&self, event: &Event, now: Instant) -> Option<u64> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let known = failures.entry(std::mem::discriminant(event));
        match known {
            Entry::Vacant(first) => {
                first.insert((now, 0));
                Some(0)
            }
            Entry::Occupied(mut known) if now.duration_since(known.get().0) >= REPEAT_INTERVAL => {
                Some(known.insert((now, 0)).1)
            }
            Entry::Occupied(mut known) => {
                known.get_mut().1 += 1;
                None
            }
        }
    }
}

fn log(event: Event, left_out: u64) {
    match event {
        Event::CheckpointFailed { error } => {
            tracing::error!(error, left_out, "a checkpoint of the spool failed: nothing is freed until one succeeds");
        }
        Event::CheckpointSlow { took } => {
            tracing::warn!(seconds = took.as_secs(), left_out, "a checkpoint of the spool took long: its disk is slow");
        }
        Event::PackingFailed { error } => {
            tracing::error!(error, left_out, "waiting mail could not be moved into a pack: the log of the spool fills");
        }
        Event::SegmentFailed { error } => {
            tracing::error!(error, left_out, "a log file of the spool cannot be made: mail that needs it is refused");
        }
        Event::Poisoned { why } => {
            tracing::error!(why, "stable storage failed: no mail is accepted until a restart, once its cause is gone");
        }
        Event::Damage(damage) => {
            let batch = damage.lsn.map(posthaste_spool::Lsn::get);
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

/// A failure that goes on is told so often.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_told_each_minute_with_how_often_it_came() {
        let (told, begun) = (Told::default(), Instant::now());
        let at = |event: &Event, secs| told.left_out(event, begun + Duration::from_secs(secs));
        let segment = Event::SegmentFailed { error: "full".into() };
        let looks = [(0, Some(0)), (1, None), (59, None), (60, Some(2)), (61, None)];
        for (secs, expected) in looks {
            assert_eq!(at(&segment, secs), expected, "{secs}");
        }
        assert_eq!(at(&Event::CheckpointFailed { error: "full".into() }, 61), Some(0), "another one");
    }
}
