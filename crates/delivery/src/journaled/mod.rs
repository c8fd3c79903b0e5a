//! Journaled mode: a message is durable when the journal has it, and gets into its Maildirs afterwards, unsynced, until
//! a checkpoint makes them durable too.

mod checkpoints;
mod config;
mod core;
mod keeper;
mod report;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_journal::storage::make_dir;
use posthaste_journal::{AppendError, CheckpointError, CheckpointStats, Journal};
use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::sync::{Semaphore, oneshot};

pub use self::config::{JournaledConfig, OpenError};
use self::core::{Core, Counters, permits, random_nonce, spooled_in};
use self::keeper::Keeper;
pub use self::report::{JournaledStats, Kept, ReplayReport, Waiting};
use crate::error::DeliveryError;
use crate::record::{Body, Delivered, KIND_DELIVERED, KIND_DISTRUST, KIND_MESSAGE, Message, Spooled, Stored};
use crate::session::SessionTag;
use crate::spool::{Spool, SpoolWriter};
use crate::workers::{Letter, Workers};

/// An open journaled executor. Clones share it; dropping the last one flushes, makes a checkpoint and ends.
#[derive(Clone)]
pub struct Journaled {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for Journaled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journaled").field("config", &self.handle.core.config).finish_non_exhaustive()
    }
}

impl Journaled {
    /// Opens the journal, sees that every message in it is in its mailboxes exactly once, and starts.
    ///
    /// # Errors
    /// See [`OpenError`]. A mailbox that cannot be written to is no error: its mail waits.
    pub fn open(config: JournaledConfig) -> Result<(Self, ReplayReport), OpenError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| OpenError::Io { path, error }
        };
        make_dir(&config.mail_root).map_err(at(&config.mail_root))?;
        let root = MailRoot::open(&config.mail_root).map_err(at(&config.mail_root))?;
        let session = SessionTag::of(&config.mail_root).map_err(at(&config.mail_root))?;
        let (journal, recovery) = Journal::open(&config.journal_dir, config.journal.clone())?;

        let mut report =
            ReplayReport { damage: recovery.damage, bytes_read: recovery.bytes_read, ..ReplayReport::default() };
        let mut letters = Vec::new();
        for record in recovery.records.iter().filter(|record| record.kind == KIND_MESSAGE) {
            // Bodies are read again when it is their turn, so that they need not all be in memory.
            match journal.read(record.id).ok().and_then(|(_, payload)| Stored::decode(payload)) {
                Some(stored) => letters.push((record.id, spooled_in(&stored))),
                None => report.unreadable += 1,
            }
        }
        let named: HashSet<u64> = letters.iter().filter_map(|(_, spooled)| *spooled).collect();
        let spool_dir = config.journal_dir.join("spool");
        let all_known = report.unreadable == 0 && !report.damage.iter().any(|damage| damage.promised);
        let spool = Spool::open(spool_dir.clone(), &named, all_known).map_err(at(&spool_dir))?;
        let visible: HashSet<(u64, u16)> = recovery
            .notes
            .iter()
            .filter(|note| note.kind == KIND_DELIVERED)
            .filter_map(|note| Delivered::decode(&note.payload))
            .filter(|note| note.session == session)
            .flat_map(|note| note.done)
            .collect();

        let workers = Arc::new(Workers::new(root, config.mail_root.clone(), spool));
        let core = Arc::new(Core {
            nonce: random_nonce(),
            host: config.host.as_str().into(),
            session,
            journal,
            workers,
            backlog: Arc::new(Semaphore::new(permits(config.backlog_bytes.into()) as usize)),
            keeper: Keeper::default(),
            counters: Counters::default(),
            config,
        });
        report.messages = letters.len();
        // A sync of the mail has failed, or we do not know how it ended: what reads well may be in the page cache alone.
        // In another life of it, what reads well has been read from the disk.
        let distrust = recovery.notes.iter().any(|note| note.kind == KIND_DISTRUST && note.payload == session.0);
        for (id, _) in letters {
            core.replay(id, &visible, distrust, &mut report);
        }
        let started = || -> io::Result<Vec<JoinHandle<()>>> {
            for _ in 0..WORKERS {
                core.workers.start(&core)?;
            }
            let (keeper, syncer) = (core.clone(), core.clone());
            let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
            // Apart, because a sync of the mail may hang for as long as a disk does, and the mail on others must not wait for it.
            Ok(vec![
                named("delivery-keep").spawn(move || keeper.keep())?,
                named("delivery-sync").spawn(move || syncer.make_checkpoints())?,
            ])
        };
        let keepers = started().map_err(at(&core.config.journal_dir))?;
        if report.messages > 0 {
            core.want_checkpoint();
        }
        let handle = Handle { core, keepers: Mutex::new(Some(keepers)) };
        Ok((Journaled { handle: Arc::new(handle) }, report))
    }

    /// Makes a message durable.
    ///
    /// When this returns `Ok`, no power cut can lose the message. It becomes visible in its mailboxes shortly after; one that
    /// cannot be written to gets it when it can. Dropping the future does not take a message back once it is queued.
    ///
    /// # Errors
    /// [`DeliveryError::BadMailbox`], [`Full`](DeliveryError::Full), [`Busy`](DeliveryError::Busy),
    /// [`Sync`](DeliveryError::Sync) and [`Closed`](DeliveryError::Closed): the message is not accepted for anybody.
    pub async fn deliver_message(&self, message: Message) -> Result<Kept, DeliveryError> {
        let core = &self.handle.core;
        let mut message = message;
        for target in &message.targets {
            MailboxPath::parse(&target.mailbox)
                .map_err(|error| DeliveryError::BadMailbox(format!("{}: {error}", target.mailbox).into()))?;
        }
        if message.targets.is_empty() || message.targets.len() > usize::from(u16::MAX) {
            return Err(DeliveryError::BadMailbox("a message needs one to 65535 mailboxes".into()));
        }
        let guard = self.spool_if_large(&mut message.body).await?;
        let bytes = match &message.body {
            Body::Memory(_) => message.body.len(),
            Body::Spooled(_) => 0,
        };
        let permit = core.backlog.clone().acquire_many_owned(core.permits(bytes)).await;
        let permit = permit.map_err(|_| DeliveryError::Closed)?;
        let numbers = (0..message.targets.len() as u16).collect();
        let secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let targets = message.targets.len() as u16;
        let stored = Stored { secs, nonce: core.nonce, host: core.host.clone(), message, numbers };
        let (done, outcome) = oneshot::channel();
        let then_core = core.clone();
        core.journal.append_then(KIND_MESSAGE, stored.encode(), move |appended| {
            // After a failure of the disk the record may be there or not: then it must find its body.
            if let (Some(guard), Ok(_) | Err(AppendError::Poisoned(_))) = (&guard, &appended) {
                guard.keep();
            }
            if let Ok(id) = appended {
                then_core.accepted(Letter::new(id, stored, then_core.failed_syncs(), permit));
            }
            // The sender may have gone; the message is delivered all the same.
            let _ = done.send(appended);
        });
        let id = outcome.await.map_err(|_| DeliveryError::Closed)??;
        Ok(Kept { id, secs, nonce: core.nonce, host: core.host.clone(), targets })
    }

    /// Starts a large body of at most `bytes_max` bytes, which goes to a file as it comes.
    ///
    /// # Errors
    /// [`DeliveryError::Full`] if there is not that much space.
    pub fn spool(&self, bytes_max: u64) -> Result<SpoolWriter, DeliveryError> {
        self.handle.core.workers.places().spool().writer(bytes_max)
    }

    /// Whether mail for a mailbox can be taken: not if too much waits for it already (SMTP 452 4.2.2).
    ///
    /// # Errors
    /// [`DeliveryError::Full`].
    pub fn check_mailbox(&self, mailbox: &str) -> Result<(), DeliveryError> {
        let core = &self.handle.core;
        let waiting = core.keeper.state().waiting_bytes.get(mailbox).copied().unwrap_or(0);
        if waiting > core.config.pending_bytes_max {
            let what = format!("{waiting} bytes wait for {mailbox}");
            return Err(DeliveryError::Full(io::Error::new(io::ErrorKind::QuotaExceeded, what)));
        }
        Ok(())
    }

    /// The messages that wait for mailboxes that cannot be written to.
    pub fn waiting(&self) -> Vec<Waiting> {
        let state = self.handle.core.keeper.state();
        let mut all: Vec<_> = state.deferred.values().map(|deferred| deferred.waiting.clone()).collect();
        all.sort_by_key(|waiting| waiting.id);
        all
    }

    /// Figures since opening.
    pub fn stats(&self) -> JournaledStats {
        let core = &self.handle.core;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JournaledStats {
            accepted: of(&core.counters.accepted),
            delivered: of(&core.counters.delivered),
            failed_attempts: of(&core.counters.failed_attempts),
            waiting: core.keeper.state().deferred.len(),
            checkpoints: of(&core.counters.checkpoints),
            checkpoints_failed: of(&core.counters.checkpoints_failed),
            checkpoint_us: of(&core.counters.checkpoint_us),
            checkpoint_us_max: of(&core.counters.checkpoint_us_max),
            journal: core.journal.stats(),
        }
    }

    /// Why nothing is accepted any more, if so.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.handle.core.journal.poisoned()
    }

    /// Waits until all that was accepted is visible, but for what waits for a mailbox, and makes a checkpoint. Blocks.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn checkpoint(&self) -> Result<CheckpointStats, CheckpointError> {
        let core = &self.handle.core;
        core.journal.flush()?;
        core.workers.wait_until_idle();
        core.checkpoint()
    }

    /// Accepts nothing more, delivers what was accepted, makes a checkpoint and ends the threads.
    pub async fn shutdown(&self) {
        let handle = self.handle.clone();
        // If the runtime is going down, dropping the last handle does the same.
        let _ = tokio::task::spawn_blocking(move || handle.end()).await;
    }

    async fn spool_if_large(&self, body: &mut Body) -> Result<Option<Arc<crate::spool::Guard>>, DeliveryError> {
        if let Body::Memory(parts) = body
            && parts.iter().map(|part| part.len() as u64).sum::<u64>() > self.handle.core.config.inline_bytes_max
        {
            let mut writer = self.spool(body.len())?;
            let Body::Memory(parts) = body else { unreachable!("matched above") };
            for part in parts.iter() {
                writer.write(part).await?;
            }
            *body = Body::Spooled(writer.finish().await?);
        }
        Ok(match body {
            Body::Spooled(Spooled { guard, .. }) => guard.take(),
            Body::Memory(_) => None,
        })
    }
}

/// The last handle ends the executor.
struct Handle {
    core: Arc<Core>,
    keepers: Mutex<Option<Vec<JoinHandle<()>>>>,
}

impl Handle {
    fn end(&self) {
        let Some(keepers) = self.keepers.lock().expect("keeper handles").take() else { return };
        self.core.backlog.close();
        // After a failure of the disk there is nothing to wait for; replay does the rest.
        let _ = self.core.journal.flush();
        let hang = self.core.workers.wait_until_idle();
        self.core.keeper.stop.store(true, Ordering::Release);
        self.core.keeper.wake();
        self.core.workers.stop();
        // A disk that hangs may hold these as well; everything is in the journal, and the next opening sees to it.
        if !hang {
            for keeper in keepers {
                // A panic of the thread was printed when it happened.
                let _ = keeper.join();
            }
            let _ = self.core.checkpoint();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}

const WORKERS: usize = 2;
