//! Opening the store, and what the log says of what was found there.

use std::time::{Duration, Instant};

use posthaste_delivery::{Journaled, JournaledConfig, OpenError, Owners, ReplayReport};

use crate::config::Config;
use crate::listening::PREDECESSOR_PATIENCE;
use crate::memory::{LARGE_BODY_BYTES, MemoryBudget};
use crate::serve::ServeError;

pub(crate) async fn open_store(config: &Config, owners: Owners) -> Result<(Journaled, ReplayReport), ServeError> {
    let storage = &config.storage;
    let journaled = JournaledConfig {
        host: config.host_name.clone(),
        // Gathered bodies are no larger than this, their trace fields included.
        inline_bytes_max: (LARGE_BODY_BYTES + (64 << 10)) as u64,
        journal: posthaste_journal::Config {
            segment_bytes: storage.journal_segment_bytes,
            max_segments: storage.journal_segments,
            ..posthaste_journal::Config::default()
        },
        pending_bytes_max: storage.mailbox_pending_bytes,
        checkpoint_bytes: storage.checkpoint_bytes,
        shutdown_patience: Duration::from_secs(config.limits.shutdown_secs.max(1)),
        checkpoint_interval: Duration::from_secs(storage.checkpoint_secs),
        backlog_bytes: MemoryBudget::of_store(config.limits.memory_bytes),
        owners,
        ..JournaledConfig::new(&storage.journal, &storage.mail)
    };
    let settings = config.clone();
    let open = move || {
        let path = settings.storage.mail.clone();
        crate::privileges::make_mail_directory(&settings).map_err(|error| OpenError::Io { path, error })?;
        open_when_free(&journaled)
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (journal, data) = (storage.journal.clone(), storage.data.clone());
    let (store, report) = opened.map_err(std::io::Error::from)?.map_err(|error| {
        let dir = if matches!(error, OpenError::Journal(_)) { journal } else { data };
        ServeError::Storage { dir, error }
    })?;
    for damage in &report.damage {
        let (segment, offset, what) = (damage.segment.as_str(), damage.offset, damage.what);
        let (first, last) = damage.seqs.unzip();
        if damage.promised {
            tracing::error!(segment, offset, first, last, what, "acknowledged mail in the journal is damaged");
        } else {
            tracing::info!(
                segment,
                offset,
                first,
                last,
                what,
                "torn tail of an earlier run: it held no acknowledged mail"
            );
        }
    }
    if let Some((_, error)) = report.unreadable.first() {
        let (records, error) = (report.unreadable.len(), error.to_string());
        tracing::error!(records, error, "unreadable records stay in the journal; the error is the first one's");
    }
    let ReplayReport { messages, restored, deferred, .. } = report;
    tracing::info!(messages, restored, deferred, "journal replayed");
    Ok((store, report))
}

/// Opens the store. A predecessor that was killed holds its locks until the kernel has taken it apart, so this waits a little.
fn open_when_free(config: &JournaledConfig) -> Result<(Journaled, ReplayReport), OpenError> {
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match Journaled::open(config.clone()) {
            Err(OpenError::Journal(posthaste_journal::OpenError::Locked)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            opened => return opened,
        }
    }
}
