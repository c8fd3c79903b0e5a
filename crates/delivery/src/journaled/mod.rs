//! Journaled mode: a message is durable when the journal has it, and gets into its Maildirs afterwards, unsynced, until
//! a checkpoint makes them durable too.

mod checkpoints;
mod config;
mod core;
#[cfg(test)]
mod faults_tests;
mod keeper;
#[cfg(test)]
mod memory_log_tests;
mod replay;
mod report;
mod space;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests;
mod waiting;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_journal::{AppendError, CheckpointError, CheckpointStats, Journal, Recovery};
use posthaste_maildir::MailboxPath;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

pub use self::config::{JournaledConfig, OpenError};
use self::core::Core;
pub use self::report::{JournaledStats, Kept, MailboxFull, RecoveredMailbox, ReplayReport, Waiting, WaitingMailbox};
use self::space::ROOM_PATIENCE;
use crate::error::DeliveryError;
use crate::log::Log;
use crate::record::{Body, KIND_MESSAGE, Message, Spooled, Stored};
use crate::seams::Seams;
use crate::spool::SpoolWriter;
use crate::workers::Letter;

/// An open journaled executor. Clones share it; dropping the last one flushes, makes a checkpoint and ends.
///
/// `L` is what keeps the mail that is promised and not finished: the journal, unless it was opened [on another log](Self::open_on).
pub struct Journaled<L: Log = Journal> {
    handle: Arc<Handle<L>>,
}

impl<L: Log> Clone for Journaled<L> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}

impl<L: Log> std::fmt::Debug for Journaled<L> {
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
        let (journal, recovery) = Journal::open(&config.journal_dir, config.journal.clone())?;
        Self::open_on(journal, recovery, config)
    }
}

impl<L: Log> Journaled<L> {
    /// As [`open`](Journaled::open), on a log that is open already and `recovery`, which is what it held. Large bodies go below
    /// [`JournaledConfig::journal_dir`] all the same.
    ///
    /// # Errors
    /// As [`open`](Journaled::open).
    pub fn open_on(log: L, recovery: Recovery, config: JournaledConfig) -> Result<(Self, ReplayReport), OpenError> {
        let (core, report) = Core::open(log, recovery, config, Seams::default())?;
        let dir = core.config.journal_dir.clone();
        let journaled = Self::start(core).map_err(|error| OpenError::Io { path: dir, error })?;
        Ok((journaled, report))
    }

    /// Starts the threads. If one cannot be started, those that were end in order, and the log is free again.
    fn start(core: Arc<Core<L>>) -> io::Result<Self> {
        let mut keepers = Vec::new();
        let started = Self::start_threads(&core, &mut keepers);
        let journaled = Journaled { handle: Arc::new(Handle { core, keepers: Mutex::new(Some(keepers)) }) };
        started.map(|()| journaled)
    }

    fn start_threads(core: &Arc<Core<L>>, keepers: &mut Vec<JoinHandle<()>>) -> io::Result<()> {
        // One a processor, and never one alone: one slow mailbox would hold up the others until it is relieved.
        let threads =
            std::thread::available_parallelism().map_or(WORKERS_MIN, usize::from).clamp(WORKERS_MIN, WORKERS_MAX);
        for _ in 0..threads {
            core.workers.start(core)?;
        }
        let (keeper, syncer) = (core.clone(), core.clone());
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        // Apart, because a sync of the mail may hang for as long as a disk does, and the mail on others must not wait for it.
        keepers.push(named("delivery-keep").spawn(move || keeper.keep())?);
        keepers.push(named("delivery-sync").spawn(move || syncer.make_checkpoints())?);
        Ok(())
    }

    /// Makes a message durable.
    ///
    /// A full journal is waited for as long as a checkpoint may make room, while mail that was accepted gets into its mailboxes; at most a minute.
    ///
    /// When this returns `Ok`, no power cut can lose the message. It becomes visible in its mailboxes shortly after; one that
    /// cannot be written to gets it when it can. Dropping the future does not take a message back once it is queued.
    ///
    /// # Errors
    /// [`DeliveryError::BadMailbox`], [`TooLarge`](DeliveryError::TooLarge), [`Full`](DeliveryError::Full), [`Busy`](DeliveryError::Busy),
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
        let numbers = (0..message.targets.len() as u16).collect();
        let secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let targets = message.targets.len() as u16;
        let stored = Stored { secs, nonce: core.nonce, host: core.host.clone(), message, numbers };
        let permit = core.backlog.clone().acquire_many_owned(core.permits(stored.memory_bytes())).await;
        let permit = permit.map_err(|_| DeliveryError::Closed)?;
        let mut pending = Pending { stored, permit, guard };
        let deadline = core.now() + ROOM_PATIENCE;
        loop {
            let before = core.keeper.space.seen();
            match self.append(pending).await? {
                Ok(id) => return Ok(Kept { id, secs, nonce: core.nonce, host: core.host.clone(), targets }),
                Err((error, refused)) => {
                    if !matches!(error, AppendError::Full(_)) || !core.room_is_made(before, deadline).await {
                        return Err(error.into());
                    }
                    pending = refused;
                }
            }
        }
    }

    /// Gives a message back if the log refuses it.
    async fn append(&self, pending: Pending) -> Result<Result<u64, (AppendError, Pending)>, DeliveryError> {
        let core = &self.handle.core;
        let (done, outcome) = oneshot::channel();
        let then_core = core.clone();
        core.log.append(KIND_MESSAGE, pending.stored.encode(), move |appended| {
            // After a failure of the disk the record may be there or not: then it must find its body.
            if let (Some(guard), Ok(_) | Err(AppendError::Poisoned(_))) = (&pending.guard, &appended) {
                guard.keep();
            }
            let outcome = match appended {
                Ok(id) => {
                    let era = then_core.failed_syncs();
                    then_core.accepted(Letter::new(id, pending.stored, era, pending.permit));
                    Ok(id)
                }
                Err(error) => Err((error, pending)),
            };
            // Whoever is told may end the executor and open the journal again.
            drop(then_core);
            // The sender may have gone; the message is delivered all the same.
            let _ = done.send(outcome);
        });
        outcome.await.map_err(|_| DeliveryError::Closed)
    }

    /// Whether a large body of that many bytes would find room now, beside those that are being written.
    ///
    /// # Errors
    /// [`DeliveryError::Full`].
    pub fn check_room(&self, bytes: u64) -> Result<(), DeliveryError> {
        let core = &self.handle.core;
        core.workers.places().spool().check_room(bytes).inspect_err(|_| core.want_spooled_removed())
    }

    /// Bytes that the spool's file system has to spare. Blocks as long as a disk does.
    ///
    /// # Errors
    /// [`DeliveryError::Full`]: it does not say.
    pub fn free_spool_bytes(&self) -> Result<u64, DeliveryError> {
        self.handle.core.workers.places().spool().free_bytes()
    }

    /// Starts a large body, which goes to a file as it comes. `announced` is how many bytes it will have, 0 if nobody knows. Asks the file
    /// system and makes the file, so it blocks as long as a disk does. Space is set aside for it in steps as it comes, until it ends, is dropped
    /// or [pauses](SpoolWriter::pause).
    ///
    /// # Errors
    /// [`DeliveryError::Full`] if there is not that much space.
    pub fn spool(&self, announced: u64) -> Result<SpoolWriter, DeliveryError> {
        let core = &self.handle.core;
        core.workers.places().spool().writer(announced).inspect_err(|_| core.want_spooled_removed())
    }

    /// Whether mail for a mailbox can be taken: not if too much waits for it already (SMTP 452 4.2.2).
    ///
    /// # Errors
    /// Too much waits for it.
    pub fn check_mailbox(&self, mailbox: &str) -> Result<(), MailboxFull> {
        self.check_mailboxes([mailbox])
    }

    /// As [`check_mailbox`](Self::check_mailbox), for several. No lock is taken unless there is such a mailbox, and then one for all of them.
    ///
    /// # Errors
    /// The first of which too much waits.
    pub fn check_mailboxes<'a>(&self, mailboxes: impl IntoIterator<Item = &'a str>) -> Result<(), MailboxFull> {
        let core = &self.handle.core;
        if core.keeper.overfull.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let state = core.keeper.state();
        let waiting = |mailbox: &'a str| (mailbox, state.waiting.bytes_for(mailbox));
        let full = mailboxes.into_iter().map(waiting).find(|(_, bytes)| *bytes > core.config.pending_bytes_max);
        full.map_or(Ok(()), |(mailbox, bytes)| Err(MailboxFull { mailbox: mailbox.into(), bytes }))
    }

    /// The messages that wait for mailboxes that cannot be written to, and those that a failed sync may have lost from theirs and whose records
    /// cannot be read; in the order in which they came.
    pub fn waiting(&self) -> Vec<Waiting> {
        let state = self.handle.core.keeper.state();
        let unreadable = state.unreadable.iter().map(|(&id, error)| Waiting {
            id,
            mailboxes: Vec::new(),
            bytes: 0,
            attempts: 0,
            error: error.clone(),
        });
        let mut all: Vec<Waiting> = state.waiting.list().into_iter().chain(unreadable).collect();
        all.sort_by_key(|waiting| waiting.id);
        all
    }

    /// The mailboxes that mail waits for, in the order of their names.
    pub fn waiting_mailboxes(&self) -> Vec<WaitingMailbox> {
        self.handle.core.keeper.state().waiting.by_mailbox()
    }

    /// The mailboxes that have got all that waited for them, since this was asked last: 10,000 of them at most.
    pub fn take_recovered(&self) -> Vec<RecoveredMailbox> {
        self.handle.core.keeper.state().waiting.take_recovered()
    }

    /// Figures since opening.
    pub fn stats(&self) -> JournaledStats {
        let core = &self.handle.core;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let waiting = {
            let state = core.keeper.state();
            state.waiting.len() + state.unreadable.len()
        };
        JournaledStats {
            accepted: of(&core.counters.accepted),
            delivered: of(&core.counters.delivered),
            failed_attempts: of(&core.counters.failed_attempts),
            waiting,
            checkpoints: of(&core.counters.checkpoints),
            checkpoints_failed: of(&core.counters.checkpoints_failed),
            checkpoint_us: of(&core.counters.checkpoint_us),
            checkpoint_us_max: of(&core.counters.checkpoint_us_max),
            unreadable_segments: of(&core.counters.unreadable_segments),
            journal: core.log.stats(),
        }
    }

    /// Why nothing is accepted any more, if so.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.handle.core.log.poisoned()
    }

    /// Waits until all that was accepted is visible, but for what waits for a mailbox, and makes a checkpoint. Blocks.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn checkpoint(&self) -> Result<CheckpointStats, CheckpointError> {
        let core = &self.handle.core;
        core.log.commit()?;
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
            let (spool, bytes) = (self.handle.core.workers.places().spool().clone(), body.len());
            let writer = tokio::task::spawn_blocking(move || spool.writer(bytes)).await;
            let mut writer = writer.map_err(|_| DeliveryError::Closed)??;
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

/// A message on its way into the log.
struct Pending {
    stored: Stored,
    permit: OwnedSemaphorePermit,
    guard: Option<Arc<crate::spool::Guard>>,
}

/// The last handle ends the executor.
struct Handle<L: Log> {
    core: Arc<Core<L>>,
    keepers: Mutex<Option<Vec<JoinHandle<()>>>>,
}

impl<L: Log> Handle<L> {
    /// Ends in order, or after a while all the same: a disk that hangs may hold any of the threads, and what it holds is in the journal, where the
    /// next opening finds it.
    fn end(&self) {
        let Some(keepers) = self.keepers.lock().expect("keeper handles").take() else { return };
        let core = self.core.clone();
        core.backlog.close();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let patience = core.config.shutdown_patience;
        let finish = move || {
            core.finish(keepers);
            // Before it is said: whoever opens the journal next must find it closed.
            drop(core);
            drop(ended);
        };
        match std::thread::Builder::new().name("delivery-end".to_owned()).spawn(finish) {
            // Over when it is dropped.
            Ok(_) => drop(end.recv_timeout(patience)),
            Err(_) => self.core.stop(),
        }
    }
}

impl<L: Log> Core<L> {
    fn finish(&self, keepers: Vec<JoinHandle<()>>) {
        // After a failure of the disk there is nothing to wait for; replay does the rest.
        let _ = self.log.commit();
        let hang = self.workers.wait_until_idle();
        self.stop();
        if !hang {
            for keeper in keepers {
                // A panic of the thread was printed when it happened.
                let _ = keeper.join();
            }
            let _ = self.checkpoint();
        }
    }

    fn stop(&self) {
        self.keeper.stop.store(true, Ordering::Release);
        self.keeper.wake();
        self.keeper.space.look_again();
        self.workers.stop();
    }
}

impl<L: Log> Drop for Handle<L> {
    fn drop(&mut self) {
        self.end();
    }
}

const WORKERS_MIN: usize = 2;
/// Half of what there may be: the others relieve those that a mailbox holds.
const WORKERS_MAX: usize = 32;
