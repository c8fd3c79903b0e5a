//! Journaled mode: a message is durable when the journal has it, and gets into its Maildirs afterwards, unsynced, until
//! a checkpoint makes them durable too.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use posthaste_journal::storage::make_dir;
use posthaste_journal::{AppendError, CheckpointError, CheckpointStats, Damage, Journal, StatsSnapshot};
use posthaste_maildir::{Host, MailRoot, MailboxPath, UniqueName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::{DeliveryError, MessageId};
use crate::record::{Body, Delivered, KIND_DELIVERED, KIND_DISTRUST, KIND_MESSAGE, Message, Spooled, Stored};
use crate::session::SessionTag;
use crate::spool::{Spool, SpoolWriter};
use crate::workers::{Desk, Letter, Workers};

/// Where a journaled executor keeps things, and its bounds.
#[derive(Debug, Clone)]
pub struct JournaledConfig {
    /// Mailboxes lie below this directory and nowhere else.
    pub mail_root: PathBuf,
    /// The journal and the spool of large bodies; may be on another file system than the mail.
    pub journal_dir: PathBuf,
    /// Sizes and bounds of the journal.
    pub journal: posthaste_journal::Config,
    /// Host name that goes into file names.
    pub host: String,
    /// Bytes of messages that are durable and not yet in their mailboxes, in memory; beyond that callers wait.
    pub backlog_bytes: u32,
    /// Bytes that may be appended before a checkpoint is made.
    pub checkpoint_bytes: u64,
    /// Time after which a checkpoint is made if anything was appended at all.
    pub checkpoint_interval: Duration,
    /// Bodies longer than this go to the spool even if they are handed over in memory.
    pub inline_bytes_max: u64,
    /// Bytes that may wait for one mailbox that cannot be written to; beyond, [`Journaled::check_mailbox`] refuses.
    pub pending_bytes_max: u64,
}

impl JournaledConfig {
    /// The defaults for these directories.
    pub fn new(journal_dir: impl Into<PathBuf>, mail_root: impl Into<PathBuf>) -> Self {
        JournaledConfig {
            mail_root: mail_root.into(),
            journal_dir: journal_dir.into(),
            journal: posthaste_journal::Config::default(),
            host: Host::of_this_machine().as_str().to_owned(),
            backlog_bytes: 256 << 20,
            checkpoint_bytes: 256 << 20,
            checkpoint_interval: Duration::from_secs(30),
            inline_bytes_max: 1 << 20,
            pending_bytes_max: 1 << 30,
        }
    }
}

/// Why a journaled executor could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The journal: in use by another process, or its file system failed.
    #[error(transparent)]
    Journal(#[from] posthaste_journal::OpenError),
    /// The mail root or the spool.
    #[error("{path}: {error}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the file system said.
        error: io::Error,
    },
}

/// What opening found in the journal and did about it.
#[derive(Debug, Default)]
pub struct ReplayReport {
    /// Messages in the journal that no checkpoint had finished.
    pub messages: usize,
    /// Entries in mailboxes that were missing or damaged and have been written anew.
    pub restored: usize,
    /// Entries that could not be written now; they are retried.
    pub deferred: usize,
    /// Records that this version cannot read; they stay in the journal.
    pub unreadable: usize,
    /// Damaged places of the journal.
    pub damage: Vec<Damage>,
    /// Bytes of the journal that were read.
    pub bytes_read: u64,
}

/// A message that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    id: u64,
    secs: u64,
    nonce: u32,
    host: Arc<str>,
    targets: u16,
}

impl Kept {
    /// The names that it has, or will have, in its mailboxes, in the order of the targets.
    pub fn names(&self) -> impl Iterator<Item = MessageId> {
        let host = Host::new(&self.host);
        (0..self.targets).map(move |number| {
            let name = format!("{}.{}.{}", self.secs, Letter::unique(self.id, self.nonce, number), host.as_str());
            MessageId::new(UniqueName::parse(&name).expect("a name without sizes"))
        })
    }
}

/// A message that waits because a mailbox cannot be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The message's record in the journal.
    pub id: u64,
    /// The mailboxes that it waits for.
    pub mailboxes: Vec<Arc<str>>,
    /// Bytes of its body.
    pub bytes: u64,
    /// Attempts so far.
    pub attempts: u32,
    /// What the last of them ended with.
    pub error: Arc<str>,
}

/// Figures of a journaled executor since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournaledStats {
    /// Messages made durable.
    pub accepted: u64,
    /// Mailbox entries made visible.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Messages that wait for a mailbox that cannot be written to.
    pub waiting: usize,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Checkpoints that failed.
    pub checkpoints_failed: u64,
    /// Time spent in checkpoints, in microseconds.
    pub checkpoint_us: u64,
    /// The longest of them, in microseconds.
    pub checkpoint_us_max: u64,
    /// The journal's own.
    pub journal: StatsSnapshot,
}

impl From<JournaledStats> for crate::Stats {
    /// Batches are the journal's commits, flush times those of its syncs.
    fn from(stats: JournaledStats) -> Self {
        Self {
            delivered: stats.accepted,
            batches: stats.journal.syncs,
            batch_messages: stats.accepted,
            flush_us: stats.journal.sync_ns / 1000,
            flush_us_max: stats.journal.sync_ns_max / 1000,
            ..Self::default()
        }
    }
}

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
    pub async fn spool(&self, bytes_max: u64) -> Result<SpoolWriter, DeliveryError> {
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
            let mut writer = self.spool(body.len()).await?;
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

struct Core {
    config: JournaledConfig,
    nonce: u32,
    host: Arc<str>,
    session: SessionTag,
    journal: Journal,
    workers: Arc<Workers>,
    backlog: Arc<Semaphore>,
    keeper: Keeper,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    delivered: AtomicU64,
    failed_attempts: AtomicU64,
    checkpoints: AtomicU64,
    checkpoints_failed: AtomicU64,
    checkpoint_us: AtomicU64,
    checkpoint_us_max: AtomicU64,
}

/// What the keeper thread looks after: retries and checkpoints.
#[derive(Default)]
struct Keeper {
    state: Mutex<KeeperState>,
    wake: Condvar,
    stop: AtomicBool,
    bytes_since_checkpoint: AtomicU64,
    // Grows while `state` is held, so that who holds it and finds it unchanged settles before the failure is dealt with.
    failed_syncs: AtomicU64,
}

#[derive(Default)]
struct KeeperState {
    deferred: HashMap<u64, Deferred>,
    waiting_bytes: HashMap<Arc<str>, u64>,
    last_error: HashMap<u64, Arc<str>>,
    // Spooled bodies whose messages are visible, for the next checkpoint to remove.
    spooled_done: Vec<u64>,
    checkpoint_wanted: bool,
}

struct Deferred {
    due: Option<Instant>,
    waiting: Waiting,
    // The numbers of the targets that still wait. The others are visible, but perhaps not durable.
    missing: Vec<u16>,
    // The record in the journal still names targets that are not missing.
    is_partial: bool,
    // How many syncs of the mail had failed before any of those was delivered.
    era: u64,
}

impl Keeper {
    fn state(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock().expect("keeper state")
    }

    fn wake(&self) {
        let _held_so_that_the_keeper_is_asleep_or_yet_to_look = self.state();
        self.wake.notify_all();
    }
}

impl Core {
    /// Called on the journal's thread for each message that has become durable.
    fn accepted(&self, letter: Letter) {
        self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        let bytes = letter.stored.message.body.len() + RECORD_OVERHEAD;
        let before = self.keeper.bytes_since_checkpoint.fetch_add(bytes, Ordering::Relaxed);
        let limit = self.config.checkpoint_bytes;
        if before < limit && before + bytes >= limit {
            self.want_checkpoint();
        }
        self.workers.submit(Arc::new(letter), self);
    }

    fn want_checkpoint(&self) {
        self.keeper.state().checkpoint_wanted = true;
        self.keeper.wake.notify_all();
    }

    /// Sees that a recovered message is in its mailboxes.
    fn replay(&self, id: u64, visible: &HashSet<(u64, u16)>, distrust: bool, report: &mut ReplayReport) {
        let Some(stored) = self.load(id) else { return };
        let letter = Letter::again(id, stored, self.failed_syncs(), None);
        let places = self.workers.places();
        let mut failed = Vec::new();
        for (target, &number) in letter.stored.numbers.iter().enumerate() {
            let outcome = match (visible.contains(&(id, number)), distrust) {
                // Renamed in this life of the page cache, so it is there, or its owner has taken it away.
                (true, false) => continue,
                (true, true) => places.restore_synced(&letter.stored, id, target).map(|()| false),
                (false, true) => places
                    .restore(&letter.stored, id, target)
                    .and_then(|written| places.restore_synced(&letter.stored, id, target).map(|()| written)),
                (false, false) => places.restore(&letter.stored, id, target),
            };
            match outcome {
                Ok(written) => report.restored += usize::from(written),
                Err(error) => {
                    self.failed(&letter, &letter.stored.message.targets[target].mailbox, &error);
                    failed.push(number);
                    report.deferred += 1;
                }
            }
        }
        self.settle_or_defer(&letter, failed);
    }

    /// The units for a body; a body larger than all that there is takes all of it.
    fn permits(&self, bytes: u64) -> u32 {
        permits(bytes).min(permits(self.config.backlog_bytes.into()))
    }

    fn failed_syncs(&self) -> u64 {
        self.keeper.failed_syncs.load(Ordering::Acquire)
    }

    fn load(&self, id: u64) -> Option<Stored> {
        let (_, payload) = self.journal.read(id).ok()?;
        Stored::decode(payload)
    }

    /// Every target of a letter was tried; `failed` are the numbers of those that it has not reached.
    fn settle_or_defer(&self, letter: &Letter, mut failed: Vec<u16>) {
        let mut era = letter.era;
        let (mut state, whole) = loop {
            // A retried letter is about some of the record's targets alone. Read before the state is locked: it is slow.
            let whole = if failed.is_empty() { None } else { self.load(letter.id) };
            let state = self.keeper.state();
            if self.failed_syncs() == era {
                break (state, whole);
            }
            era = self.failed_syncs();
            drop(state);
            self.write_delivered_anew(letter, &mut failed);
        };
        let earlier = state.deferred.remove(&letter.id);
        for mailbox in earlier.iter().flat_map(|earlier| &earlier.waiting.mailboxes) {
            if let Some(bytes) = state.waiting_bytes.get_mut(mailbox) {
                *bytes = bytes.saturating_sub(letter.stored.message.body.len());
            }
        }
        let error = state.last_error.remove(&letter.id);
        if failed.is_empty() {
            // With the state held: a sync that fails from here on finds the record among the settled ones.
            self.journal.settle(letter.id);
            // Only now: a checkpoint in between would remove the body of a record that it still lists as live.
            state.spooled_done.extend(spooled_in(&letter.stored));
            return;
        }
        let stored = whole.unwrap_or_else(|| letter.stored.clone());
        let mailboxes: Vec<Arc<str>> =
            stored.clone().only(&failed).message.targets.into_iter().map(|target| target.mailbox).collect();
        let bytes = stored.message.body.len();
        for mailbox in &mailboxes {
            *state.waiting_bytes.entry(mailbox.clone()).or_default() += bytes;
        }
        let attempts = earlier.map_or(0, |earlier| earlier.waiting.attempts);
        let wait = RETRY_FIRST.saturating_mul(1 << attempts.min(16)).min(RETRY_MAX);
        let error = error.unwrap_or_else(|| "unknown".into());
        let waiting = Waiting { id: letter.id, mailboxes, bytes, attempts: attempts + 1, error };
        let is_partial = failed.len() < stored.numbers.len();
        let deferred = Deferred { due: Some(Instant::now() + wait), waiting, missing: failed, is_partial, era };
        state.deferred.insert(letter.id, deferred);
        drop(state);
        self.keeper.wake();
    }

    /// A sync of the mail has failed since the first target of this letter was delivered and may have dropped it: whatever its record
    /// says was delivered is written to new files, each synced by itself.
    fn write_delivered_anew(&self, letter: &Letter, failed: &mut Vec<u16>) {
        let Some(stored) = self.load(letter.id) else { return };
        for (target, &number) in stored.numbers.iter().enumerate() {
            if failed.contains(&number) {
                continue;
            }
            if let Err(error) = self.workers.places().restore_synced(&stored, letter.id, target) {
                self.failed(letter, &stored.message.targets[target].mailbox, &error);
                failed.push(number);
            }
        }
    }

    /// The thread that looks after mail that has to wait.
    fn keep(self: Arc<Self>) {
        loop {
            let due = {
                let state = self.keeper.state();
                let mut state = match self.keeper.stop.load(Ordering::Acquire) {
                    true => return,
                    false => self.keeper.wake.wait_timeout(state, TICK).expect("keeper state").0,
                };
                self.due(&mut state)
            };
            for (id, missing, era, permit) in due {
                if let Some(stored) = self.load(id) {
                    let letter = Letter::again(id, stored.only(&missing), era, Some(permit));
                    self.workers.submit(Arc::new(letter), &*self);
                }
            }
            self.workers.give_up_on_stalled(&*self);
            self.workers.relieve(&self);
        }
    }

    /// Takes what is to be tried again now, as far as there is memory for it.
    fn due(&self, state: &mut KeeperState) -> Vec<(u64, Vec<u16>, u64, OwnedSemaphorePermit)> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (&id, deferred) in &mut state.deferred {
            if deferred.due.is_none_or(|at| at > now) {
                continue;
            }
            let bytes = deferred.waiting.bytes.min(self.config.inline_bytes_max);
            let Ok(permit) = self.backlog.clone().try_acquire_many_owned(self.permits(bytes)) else { break };
            // None while it is being tried.
            deferred.due = None;
            due.push((id, deferred.missing.clone(), deferred.era, permit));
        }
        due
    }

    /// The thread that makes checkpoints, when they are wanted or the interval has passed.
    fn make_checkpoints(self: Arc<Self>) {
        let mut last = Instant::now();
        loop {
            {
                let mut state = self.keeper.state();
                if !state.checkpoint_wanted && !self.keeper.stop.load(Ordering::Acquire) {
                    state = self.keeper.wake.wait_timeout(state, TICK).expect("keeper state").0;
                }
                if self.keeper.stop.load(Ordering::Acquire) {
                    return;
                }
                let idle_long = last.elapsed() >= self.config.checkpoint_interval
                    && self.keeper.bytes_since_checkpoint.load(Ordering::Relaxed) > 0;
                if !std::mem::take(&mut state.checkpoint_wanted) && !idle_long {
                    continue;
                }
            }
            // A failure is counted, and it is tried again when more has come or the interval has passed.
            let _ = self.checkpoint();
            last = Instant::now();
        }
    }

    fn checkpoint(&self) -> Result<CheckpointStats, CheckpointError> {
        let begun = Instant::now();
        // Told before, not after: if the sync fails and we are killed before we know, nobody else will ever hear of it. The
        // checkpoint that succeeds forgets the note.
        self.journal.append_note(KIND_DISTRUST, vec![Bytes::copy_from_slice(&self.session.0)]);
        self.journal.flush()?;
        self.keeper.bytes_since_checkpoint.store(0, Ordering::Relaxed);
        let spooled_done = std::mem::take(&mut self.keeper.state().spooled_done);
        let partial = self.partial();
        let outcome = self.journal.checkpoint(|| {
            self.workers.places().root().sync().inspect_err(|_| self.distrust())?;
            self.narrow(&partial);
            Ok(())
        });
        let us = begun.elapsed().as_micros() as u64;
        self.counters.checkpoint_us.fetch_add(us, Ordering::Relaxed);
        self.counters.checkpoint_us_max.fetch_max(us, Ordering::Relaxed);
        match &outcome {
            Ok(_) => {
                self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
                spooled_done.iter().for_each(|&file| self.workers.places().spool().remove(file));
            }
            Err(error) => {
                self.counters.checkpoints_failed.fetch_add(1, Ordering::Relaxed);
                self.keeper.state().spooled_done.extend(spooled_done);
                if let CheckpointError::MakeDurable { records, .. } = error {
                    self.write_anew(records);
                }
            }
        }
        outcome
    }

    /// From now on nothing that was delivered before is believed to become durable with the next sync.
    fn distrust(&self) {
        let _held_by_nobody_who_settles = self.keeper.state();
        self.keeper.failed_syncs.fetch_add(1, Ordering::AcqRel);
    }

    /// Records of which some targets are visible and others wait, with the numbers of those.
    fn partial(&self) -> Vec<(u64, Vec<u16>)> {
        let state = self.keeper.state();
        let era = self.failed_syncs();
        let partial = state.deferred.iter().filter(|(_, deferred)| deferred.is_partial && deferred.era == era);
        partial.map(|(&id, deferred)| (id, deferred.missing.clone())).collect()
    }

    /// Writes records anew that from now on are about those targets alone that still waited before the sync which has made the others
    /// durable. Not earlier: until then the record is all that a power cut leaves of the others.
    fn narrow(&self, partial: &[(u64, Vec<u16>)]) {
        for (id, missing) in partial {
            let Some(stored) = self.load(*id) else { continue };
            // A failure costs nothing: the older record says the same and a little more.
            if self.journal.replace(*id, KIND_MESSAGE, stored.only(missing).encode()).wait().is_err() {
                continue;
            }
            if let Some(deferred) = self.keeper.state().deferred.get_mut(id) {
                deferred.is_partial = deferred.missing != *missing;
            }
        }
    }

    /// After a failed sync of the mail's file system: what it should have covered is written to new files from the
    /// journal, each synced by itself.
    fn write_anew(&self, records: &[u64]) {
        for &id in records {
            let Some(stored) = self.load(id) else { continue };
            let letter = Letter::again(id, stored, self.failed_syncs(), None);
            let mut failed = Vec::new();
            self.write_delivered_anew(&letter, &mut failed);
            // The body was put down for removal when the message was settled first.
            let spooled = spooled_in(&letter.stored);
            self.keeper.state().spooled_done.retain(|file| Some(*file) != spooled);
            self.settle_or_defer(&letter, failed);
        }
    }
}

impl Desk for Core {
    fn delivered(&self, done: Vec<(u64, u16)>) {
        self.counters.delivered.fetch_add(done.len() as u64, Ordering::Relaxed);
        let note = Delivered { session: self.session, done };
        self.journal.append_note(KIND_DELIVERED, vec![note.encode()]);
    }

    fn finished(&self, letter: &Letter) {
        self.settle_or_defer(letter, letter.failed());
    }

    fn failed(&self, letter: &Letter, mailbox: &str, error: &io::Error) {
        self.counters.failed_attempts.fetch_add(1, Ordering::Relaxed);
        self.keeper.state().last_error.insert(letter.id, format!("{mailbox}: {error}").into());
    }
}

fn spooled_in(stored: &Stored) -> Option<u64> {
    match &stored.message.body {
        Body::Spooled(spooled) => Some(spooled.file),
        Body::Memory(_) => None,
    }
}

/// Memory is counted in units that a semaphore can hold.
fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).max(1)
}

fn random_nonce() -> u32 {
    // Keyed with random bytes of the system for each of its values.
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8) as u32
}

const PERMIT_BYTES: u64 = 1024;
const WORKERS: usize = 2;
const TICK: Duration = Duration::from_millis(200);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// What a record takes in the journal beside its body, roughly.
const RECORD_OVERHEAD: u64 = 512;
