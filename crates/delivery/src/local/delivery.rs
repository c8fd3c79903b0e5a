//! Local delivery as a whole: opening, accepting messages, figures and shutdown.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use posthaste_maildir::MailboxPath;
use posthaste_spool::{AppendError, FileSpool, OpenReport, Spool};

use super::config::{LocalConfig, OpenError};
use super::core::Core;
use super::message::{BodyWriter, Message};
use super::mount::MailMount;
use super::pending::Pending;
use super::report::{
    LocalStats, MailboxFull, Receipt, RecoveredMailbox, Remaining, ReplayReport, SyncFailed, Waiting, WaitingMailbox,
};
use super::room_wait::RoomWait;
use super::under_way::{UnderWay, unless};
use crate::error::DeliveryError;
use crate::seams::Seams;

/// Local delivery, open. Clones share it; dropping the last one delivers and syncs what was accepted, and ends.
#[derive(Clone)]
pub struct LocalDelivery {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for LocalDelivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalDelivery").field("config", &self.handle.core.config).finish_non_exhaustive()
    }
}

/// A spool that local delivery is to be opened in.
pub struct OpenedSpool {
    /// Itself: others may have streams in it.
    pub spool: Arc<FileSpool>,
    found: OpenReport,
}

/// The last handle ends it.
struct Handle {
    core: Arc<Core>,
    /// Set if the spool was opened here: then the end closes it.
    own_spool: Option<Arc<FileSpool>>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl LocalDelivery {
    /// Opens the spool and has every message in it that is not known to be durable in its mailboxes delivered exactly once.
    ///
    /// Waits for that up to [`LocalConfig::open_patience`]. Mail of a mount that does not answer by then waits.
    ///
    /// # Errors
    /// See [`OpenError`]. A mailbox that cannot be written to is not an error: its mail waits.
    pub fn open(config: LocalConfig) -> Result<(Self, ReplayReport), OpenError> {
        Self::open_in(Self::open_spool(&config)?, config)
    }

    /// The first half of [`open`](Self::open), for programs with other consumers on the spool.
    ///
    /// # Errors
    /// Those of the spool.
    pub fn open_spool(config: &LocalConfig) -> Result<OpenedSpool, OpenError> {
        let (spool, found) = FileSpool::open(&config.spool_dir, config.spool.clone())?;
        Ok(OpenedSpool { spool: Arc::new(spool), found })
    }

    /// The second half of [`open`](Self::open).
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn open_in(opened: OpenedSpool, config: LocalConfig) -> Result<(Self, ReplayReport), OpenError> {
        let OpenedSpool { spool, found } = opened;
        let (delivery, report) = Self::open_with(spool.clone(), Some(spool), config, Seams::default())?;
        Ok((delivery, ReplayReport { spool: Some(found), ..report }))
    }

    /// Like [`open`](Self::open), on a spool that is open already and may have other consumers.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn open_on(spool: Arc<dyn Spool>, config: LocalConfig) -> Result<(Self, ReplayReport), OpenError> {
        Self::open_with(spool, None, config, Seams::default())
    }

    pub(super) fn open_with(
        spool: Arc<dyn Spool>,
        own_spool: Option<Arc<FileSpool>>,
        config: LocalConfig,
        seams: Seams,
    ) -> Result<(Self, ReplayReport), OpenError> {
        let mut report = ReplayReport::default();
        let core = Core::open(spool, config, seams, &mut report)?;
        let core = Arc::new(core);
        let delivery =
            LocalDelivery { handle: Arc::new(Handle { core: core.clone(), own_spool, keeper: Mutex::default() }) };
        let started = || {
            core.mounts.iter().try_for_each(MailMount::start)?;
            let keeper = core.clone();
            std::thread::Builder::new().name("delivery-keep".to_owned()).spawn(move || keeper.keep())
        };
        let at = |error| OpenError::Io { path: core.config.mail_root.clone(), error };
        // If it fails, those that were started end with the handle.
        *delivery.handle.keeper.lock().expect("the keeper's handle") = Some(started().map_err(at)?);
        let deadline = Instant::now() + core.config.open_patience;
        for mount in &core.mounts {
            mount.wait_until_idle(deadline);
            report.restored += mount.counters.restored.load(Ordering::Relaxed) as usize;
            report.given_up += mount.counters.given_up.load(Ordering::Relaxed) as usize;
        }
        report.deferred = core.mounts.iter().map(|mount| mount.waiting_count()).sum();
        Ok((delivery, report))
    }

    /// Makes a message durable.
    ///
    /// When this returns `Ok`, no power cut can lose the message. It becomes visible in its mailboxes shortly after; one that
    /// cannot be written to gets it when it can. Dropping the future does not take a message back once it is appended.
    ///
    /// # Errors
    /// [`DeliveryError::BadMailbox`], [`TooLarge`](DeliveryError::TooLarge), [`Full`](DeliveryError::Full), [`Busy`](DeliveryError::Busy),
    /// [`Sync`](DeliveryError::Sync) and [`Closed`](DeliveryError::Closed): the message is not accepted for any recipient.
    pub async fn deliver_message(&self, message: Message) -> Result<Receipt, DeliveryError> {
        self.deliver(message, None).await
    }

    /// Like [`deliver_message`](Self::deliver_message), until `give_up` is done. From then on the message is cancelled if possible: one atomic decision says
    /// whether it is accepted, so it is either `Ok` and delivered, or [`DeliveryError::Cancelled`] and not. Dropping the future cancels the message in the same way,
    /// without an answer.
    ///
    /// One exception: the message was already being written, and a kill or a power cut comes before its cancel entry is durable. Then the next start delivers it.
    /// The cancel entry follows at once while the disk works.
    ///
    /// # Errors
    /// Like [`deliver_message`](Self::deliver_message), and [`DeliveryError::Cancelled`].
    pub async fn deliver_unless(
        &self,
        message: Message,
        give_up: impl Future<Output = ()>,
    ) -> Result<Receipt, DeliveryError> {
        let under_way = UnderWay::default();
        unless(&under_way, self.deliver(message, Some(&under_way)), give_up).await
    }

    async fn deliver(&self, message: Message, under_way: Option<&UnderWay>) -> Result<Receipt, DeliveryError> {
        let core = &self.handle.core;
        for target in &message.targets {
            MailboxPath::parse(&target.mailbox)
                .map_err(|error| DeliveryError::BadMailbox(format!("{}: {error}", target.mailbox).into()))?;
        }
        let is_for_nobody = message.targets.is_empty() && message.also.is_empty();
        if is_for_nobody || message.targets.len() > usize::from(u16::MAX) {
            return Err(DeliveryError::BadMailbox("a message needs one to 65535 mailboxes".into()));
        }
        let targets = message.targets.len() as u16;
        let secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut pending = Pending::new(core, message, secs).await?;
        let mut wait = RoomWait::begin(core, &core.is_full);
        loop {
            match core.append(&mut pending, under_way).await? {
                Ok(lsn) => {
                    core.accepted.fetch_add(1, Ordering::Relaxed);
                    wait.found();
                    return Ok(Receipt { id: lsn.get(), secs, nonce: core.nonce, host: core.host.clone(), targets });
                }
                // The spool's keeper has been asked for room.
                Err(error @ (AppendError::Full(_) | AppendError::Busy)) => {
                    if under_way.is_some_and(|under_way| !under_way.may_append_again()) {
                        return Err(error.into());
                    }
                    if !wait.goes_on().await {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The spool, which other consumers may share. It is closed when the last of them drops it.
    pub fn spool(&self) -> Arc<dyn Spool> {
        self.handle.core.spool.clone()
    }

    /// How long to wait before the next message, so that the spool need not refuse it. `queued`: some of it is for the relay's queue.
    pub fn pause(&self, queued: bool) -> Duration {
        self.handle.core.spool.pressure().pause(queued)
    }

    /// Starts a large body, which goes to a file as it comes. Makes the file, so it blocks as long as a disk does. Announcing costs nothing: room is reserved in
    /// steps as the body comes, and none while it [pauses](BodyWriter::pause).
    ///
    /// # Errors
    /// [`DeliveryError::Full`] if there is no room for `announced` bytes (0: unknown), or no file can be made.
    pub fn upload(&self, announced: u64) -> Result<BodyWriter, DeliveryError> {
        self.handle.core.spool.upload(announced).map(BodyWriter::new).map_err(DeliveryError::Full)
    }

    /// As [`upload`](Self::upload), and waits for room for [`room_patience`](LocalConfig::room_patience) at most, as every message does. Also says how many bytes
    /// were free for large bodies before, less what others had reserved.
    ///
    /// # Errors
    /// [`DeliveryError::Full`] if there was no room, [`DeliveryError::Sync`] if no file can be made.
    pub async fn upload_when_room(&self, announced: u64) -> Result<(BodyWriter, u64), DeliveryError> {
        let opened = self.handle.core.when_room(move |spool| {
            let free = spool.room()?;
            Ok((spool.upload(announced)?, free))
        });
        opened.await.map(|(upload, free)| (BodyWriter::new(upload), free))
    }

    /// Waits for room for a body of that many bytes, as [`upload_when_room`](Self::upload_when_room) does. Reserves nothing.
    ///
    /// # Errors
    /// Those of [`upload_when_room`](Self::upload_when_room).
    pub async fn wait_for_room(&self, bytes: u64) -> Result<(), DeliveryError> {
        self.handle.core.when_room(move |spool| spool.check_room(bytes)).await
    }

    /// Whether mail for a mailbox can be taken: not if too much waits for it already (SMTP 452 4.2.2).
    ///
    /// # Errors
    /// Too much waits for it.
    pub fn check_mailbox(&self, mailbox: &str) -> Result<(), MailboxFull> {
        self.check_mailboxes([mailbox])
    }

    /// Like [`check_mailbox`](Self::check_mailbox), for several. No lock is taken unless much waits.
    ///
    /// # Errors
    /// The first mailbox for which too much waits: for it alone, or, if it cannot be written to, for all such mailboxes together.
    pub fn check_mailboxes<'a>(&self, mailboxes: impl IntoIterator<Item = &'a str>) -> Result<(), MailboxFull> {
        let core = &self.handle.core;
        let (each_max, all_max) = (core.config.pending_bytes_max, core.config.pending_bytes_max_all);
        let all = core.mounts.iter().map(|mount| mount.counters.waiting_bytes.load(Ordering::Relaxed));
        let all: u64 = all.sum();
        if all <= each_max.min(all_max) {
            return Ok(());
        }
        let is_full = |mailbox: &&str| {
            let waiting = core.mounts[core.points.of(mailbox)].waiting_bytes(mailbox);
            waiting.is_some_and(|(bytes, of_mount)| bytes > each_max && !of_mount || all > all_max)
        };
        match mailboxes.into_iter().find(is_full) {
            None => Ok(()),
            Some(mailbox) => {
                let waiting = core.mounts[core.points.of(mailbox)].waiting_bytes(mailbox);
                Err(MailboxFull { mailbox: mailbox.into(), bytes: waiting.map_or(all, |(bytes, _)| bytes) })
            }
        }
    }

    /// The messages that wait for mailboxes that cannot be written to, or for mounts that do not answer, in the order in which they came. One that waits on
    /// several mounts is there for each.
    pub fn waiting(&self) -> Vec<Waiting> {
        let mut all: Vec<Waiting> = self.handle.core.mounts.iter().flat_map(|mount| mount.waiting_messages()).collect();
        all.sort_by_key(|waiting| waiting.id);
        all
    }

    /// The mailboxes that mail waits for, in the order of their names.
    pub fn waiting_mailboxes(&self) -> Vec<WaitingMailbox> {
        let mut all: Vec<_> = self.handle.core.mounts.iter().flat_map(|mount| mount.waiting_mailboxes()).collect();
        all.sort_by(|a, b| a.mailbox.cmp(&b.mailbox));
        all
    }

    /// Messages that are not in all of their mailboxes; after [`shutdown`](Self::shutdown), those left to the next opening. Visits every message.
    pub fn remaining(&self) -> Remaining {
        let (mut messages, mut mailboxes) = (HashSet::new(), HashSet::new());
        self.handle.core.mounts.iter().for_each(|mount| mount.add_remaining(&mut messages, &mut mailboxes));
        Remaining { messages: messages.len(), mailboxes: mailboxes.len() }
    }

    /// The mailboxes that received all waiting mail since the last call: 10,000 of each mount at most.
    pub fn take_recovered(&self) -> Vec<RecoveredMailbox> {
        let of_mount = |mount: &Arc<MailMount>| mount.state().troubles.take_recovered();
        let all = self.handle.core.mounts.iter().flat_map(of_mount);
        all.map(|(mailbox, messages)| RecoveredMailbox { mailbox, messages }).collect()
    }

    /// Figures since opening.
    pub fn stats(&self) -> LocalStats {
        let core = &self.handle.core;
        let mut stats = LocalStats {
            accepted: core.accepted.load(Ordering::Relaxed),
            waiting: core.mounts.iter().map(|mount| mount.waiting_count()).sum(),
            waiting_bytes: core.mounts.iter().map(|mount| mount.counters.waiting_bytes.load(Ordering::Relaxed)).sum(),
            mounts: core.mounts.iter().map(|mount| mount.stats()).collect(),
            spool: core.spool.stats(),
            ..LocalStats::default()
        };
        for mount in &core.mounts {
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            stats.delivered += of(&mount.counters.delivered);
            stats.failed_attempts += of(&mount.counters.failed_attempts);
            stats.given_up += of(&mount.counters.given_up);
            stats.syncs += of(&mount.counters.syncs);
            stats.syncs_failed += of(&mount.counters.syncs_failed);
            stats.sync_us += of(&mount.counters.sync_us);
            stats.sync_us_max = stats.sync_us_max.max(of(&mount.counters.sync_us_max));
        }
        stats
    }

    /// Waits until all accepted mail is visible, except mail that waits for a mailbox, then syncs every mount; each step up to `patience` (real time). Blocks.
    ///
    /// # Errors
    /// The syncs that failed or did not return in time.
    pub fn sync(&self, patience: Duration) -> Result<(), Vec<SyncFailed>> {
        self.handle.core.sync(Instant::now() + patience)
    }

    /// Accepts nothing more, delivers what was accepted, syncs it and ends the threads, within [`LocalConfig::shutdown_patience`].
    pub async fn shutdown(&self) {
        self.shutdown_by(Instant::now() + self.handle.core.config.shutdown_patience).await;
    }

    /// Like [`shutdown`](Self::shutdown), until `deadline`. The last checkpoint gets at least one second.
    pub async fn shutdown_by(&self, deadline: Instant) {
        let handle = self.handle.clone();
        // If the runtime is going down, dropping the last handle does the same.
        let _ = tokio::task::spawn_blocking(move || handle.end(deadline)).await;
    }

    pub(super) fn mounts(&self) -> &[Arc<MailMount>] {
        &self.handle.core.mounts
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

impl Handle {
    fn end(&self, deadline: Instant) {
        // What waits goes on waiting, and is counted as such.
        if self.core.is_ending.swap(true, Ordering::AcqRel) {
            return;
        }
        self.core.budget.close();
        self.core.end(deadline);
        if let Some(keeper) = self.keeper.lock().expect("the keeper's handle").take() {
            // A panic of the thread was printed when it happened.
            let _ = keeper.join();
        }
        if let Some(spool) = self.own_spool.clone() {
            // Without it the next opening reads more. The disk may hang: then the thread keeps the spool, and shutdown does not wait for it.
            let (tell, told) = std::sync::mpsc::channel();
            let checkpoint = move || {
                // A failure has been told as an event.
                drop(spool.checkpoint());
                drop(spool);
                let _ = tell.send(());
            };
            if std::thread::Builder::new().name("delivery-end".to_owned()).spawn(checkpoint).is_ok() {
                let _ = told.recv_timeout(deadline.saturating_duration_since(Instant::now()).max(END_MIN));
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end(Instant::now() + self.core.config.shutdown_patience);
    }
}

impl From<AppendError> for DeliveryError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full(_) => Self::Full(std::io::Error::new(std::io::ErrorKind::StorageFull, error)),
            AppendError::TooLarge { bytes, limit } => Self::TooLarge { bytes, limit },
            AppendError::Busy => Self::Busy,
            AppendError::Closed => Self::Closed,
            AppendError::Local(_) => Self::Full(std::io::Error::other(error)),
            other => Self::Sync(std::io::Error::other(other)),
        }
    }
}

/// How long the last checkpoint is waited for at least.
const END_MIN: Duration = Duration::from_secs(1);
