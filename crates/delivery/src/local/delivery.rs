//! Local delivery as a whole: opening, acceptance, statistics and shutdown.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use posthaste_consumer::StreamOpenError;
use posthaste_intake::{GatheredBody, Intake, IntakeError, Mail};
use posthaste_maildir::MailboxPath;
use posthaste_spool::{FileSpool, Lsn};

use super::config::{LocalConfig, LocalOpenError};
use super::core::Core;
use super::message::MailboxMessage;
use super::mount::MailMount;
use super::one_message::{OneMessage, TARGETS_MAX, now_secs};
use super::report::{
    LocalReceipt, LocalStats, MailboxFull, RecoveredMailbox, Remaining, ReplayReport, SyncFailed, WaitingMailbox,
    WaitingMailboxMail,
};
use crate::error::DeliveryError;
use crate::seams::Seams;

/// Open local delivery. Clones share it; dropping the last one delivers and syncs accepted mail, and ends.
#[derive(Clone)]
pub struct LocalDelivery {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for LocalDelivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalDelivery").field("config", &self.handle.core.config).finish_non_exhaustive()
    }
}

/// State of the last handle; dropping it ends local delivery.
struct Handle {
    core: Arc<Core>,
    /// True if spool and intake were opened here and are closed with this handle.
    owns_intake: bool,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl LocalDelivery {
    /// Opens the spool, and delivers exactly once every message in it that is not known to be durable in its mailboxes.
    ///
    /// Waits for that up to [`LocalConfig::open_patience`]. Mail for a mount that does not answer by then stays queued.
    ///
    /// # Errors
    /// See [`LocalOpenError`]. An unwritable mailbox is not an error: its mail waits.
    pub fn open(config: LocalConfig) -> Result<(Self, ReplayReport), LocalOpenError> {
        let opened = FileSpool::open(&config.spool_dir, config.spool.clone());
        let (spool, found) = opened.map_err(|error| LocalOpenError::Spool { dir: config.spool_dir.clone(), error })?;
        let intake = Intake::new(Arc::new(spool), config.intake.clone());
        let (delivery, report) = Self::open_with(intake, true, config, Seams::default())?;
        Ok((delivery, ReplayReport { spool: Some(found), ..report }))
    }

    /// Like [`open`](Self::open), on an open intake that may have other destinations. Settings of the spool and its
    /// intake are ignored, except the spool's directory: it records the file system of each mount.
    ///
    /// # Errors
    /// See [`StreamOpenError`]. An unwritable mailbox is not an error: its mail waits.
    pub fn open_on(intake: Intake, config: LocalConfig) -> Result<(Self, ReplayReport), StreamOpenError> {
        Self::open_with(intake, false, config, Seams::default())
    }

    pub(super) fn open_with(
        intake: Intake,
        owns_intake: bool,
        config: LocalConfig,
        seams: Seams,
    ) -> Result<(Self, ReplayReport), StreamOpenError> {
        let mut report = ReplayReport::default();
        let core = Core::open(intake, config, seams, &mut report)?;
        let core = Arc::new(core);
        let delivery =
            LocalDelivery { handle: Arc::new(Handle { core: core.clone(), owns_intake, keeper: Mutex::default() }) };
        let started = || {
            core.mounts.iter().try_for_each(MailMount::start)?;
            let keeper = core.clone();
            std::thread::Builder::new().name("delivery-keep".to_owned()).spawn(move || keeper.keep())
        };
        // On failure the started mounts end with the handle.
        *delivery.handle.keeper.lock().expect("the keeper's handle") =
            Some(started().map_err(StreamOpenError::io("threads of local delivery"))?);
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
    /// After `Ok` no power cut can lose the message. It becomes visible in its mailboxes shortly after; an unwritable
    /// one gets it later. Dropping the future does not take an appended message back.
    ///
    /// # Errors
    /// [`DeliveryError::BadMailbox`] and [`DeliveryError::Intake`]: the message is accepted for no recipient.
    pub async fn deliver_message(&self, message: MailboxMessage) -> Result<LocalReceipt, DeliveryError> {
        let (one, body) = self.one(message)?;
        let accepted = self.intake().accept(&[&one], &Mail::default(), body).await?;
        Ok(one.receipt(accepted.lsn))
    }

    /// Like [`deliver_message`](Self::deliver_message), unless `give_up` completes first: see
    /// [`Intake::accept_unless`].
    ///
    /// # Errors
    /// Like [`deliver_message`](Self::deliver_message), and [`IntakeError::Cancelled`].
    pub async fn deliver_unless(
        &self,
        message: MailboxMessage,
        give_up: impl Future<Output = ()>,
    ) -> Result<LocalReceipt, DeliveryError> {
        let (one, body) = self.one(message)?;
        let accepted = self.intake().accept_unless(&[&one], &Mail::default(), body, give_up).await?;
        Ok(one.receipt(accepted.lsn))
    }

    fn one(&self, message: MailboxMessage) -> Result<(OneMessage<'_>, GatheredBody), DeliveryError> {
        if self.has_ended() {
            return Err(IntakeError::Closed.into());
        }
        let MailboxMessage { targets, body, line_ends, also } = message;
        for target in &targets {
            MailboxPath::parse(&target.mailbox)
                .map_err(|error| DeliveryError::BadMailbox(format!("{}: {error}", target.mailbox).into()))?;
            if self.is_stuck(&target.mailbox) {
                let why = format!("the stream of the mount of {} cannot be read", target.mailbox);
                return Err(IntakeError::Full(std::io::Error::other(why)).into());
            }
        }
        let is_for_nobody = targets.is_empty() && also.is_empty();
        if is_for_nobody || targets.len() > TARGETS_MAX {
            return Err(DeliveryError::BadMailbox("a message needs one to 65535 mailboxes".into()));
        }
        Ok((OneMessage { core: self.core(), targets, line_ends, secs: now_secs(), also }, body))
    }

    /// True if a mailbox still lacks the mail of a batch, or its file is not durable.
    pub fn needs_body(&self, body: Lsn) -> bool {
        let core = self.core();
        core.mounts.iter().any(|mount| core.intake.spool().needs_body(mount.stream, body))
    }

    /// The acceptance of mail, which other destinations may share.
    pub fn intake(&self) -> &Intake {
        &self.handle.core.intake
    }

    /// Refuses a mailbox for which too much mail waits (SMTP 452 4.2.2).
    ///
    /// # Errors
    /// Too much mail waits for the mailbox.
    pub fn check_mailbox(&self, mailbox: &str) -> Result<(), MailboxFull> {
        self.check_mailboxes([mailbox])
    }

    /// Like [`check_mailbox`](Self::check_mailbox), for several. Takes no lock unless much waits.
    ///
    /// # Errors
    /// The first mailbox with too much waiting mail: its own, or, if it is unwritable, that of all such mailboxes.
    pub fn check_mailboxes<'a>(&self, mailboxes: impl IntoIterator<Item = &'a str>) -> Result<(), MailboxFull> {
        let core = &self.handle.core;
        let each_max = core.config.pending_bytes_max;
        let all_max = core.config.pending_bytes_max_all;
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

    pub(super) fn has_ended(&self) -> bool {
        self.handle.core.is_ending.load(Ordering::Acquire)
    }

    /// True if the stream of a mailbox's mount was unreadable at the opening: mail for it is refused (SMTP 451), and
    /// waiting mail stays in the spool.
    pub fn is_stuck(&self, mailbox: &str) -> bool {
        let core = &self.handle.core;
        core.mounts[core.points.of(mailbox)].is_stuck
    }

    /// Messages that wait for unwritable mailboxes, or for mounts that do not answer, in order of arrival. A message
    /// that waits on several mounts is listed for each.
    pub fn waiting(&self) -> Vec<WaitingMailboxMail> {
        let mut all: Vec<WaitingMailboxMail> =
            self.handle.core.mounts.iter().flat_map(|mount| mount.waiting_messages()).collect();
        all.sort_by_key(|waiting| waiting.id);
        all
    }

    /// Mailboxes with waiting mail, sorted by name.
    pub fn waiting_mailboxes(&self) -> Vec<WaitingMailbox> {
        let mut all: Vec<_> = self.handle.core.mounts.iter().flat_map(|mount| mount.waiting_mailboxes()).collect();
        all.sort_by(|a, b| a.mailbox.cmp(&b.mailbox));
        all
    }

    /// Counts messages missing in some of their mailboxes; after [`shutdown`](Self::shutdown), those left to the next
    /// opening. Visits every message.
    pub fn remaining(&self) -> Remaining {
        let mut messages = HashSet::new();
        let mut mailboxes = HashSet::new();
        self.handle.core.mounts.iter().for_each(|mount| mount.add_remaining(&mut messages, &mut mailboxes));
        Remaining { messages: messages.len(), mailboxes: mailboxes.len() }
    }

    /// Mailboxes that received all waiting mail since the last call; at most 10,000 per mount.
    pub fn take_recovered(&self) -> Vec<RecoveredMailbox> {
        let of_mount = |mount: &Arc<MailMount>| mount.state().troubles.take_recovered();
        let all = self.handle.core.mounts.iter().flat_map(of_mount);
        all.map(|(mailbox, messages)| RecoveredMailbox { mailbox, messages }).collect()
    }

    /// True if a file name belongs to message number `message` of the spool, even after the file was renamed.
    pub fn is_file_of(&self, message: u64, name: &str) -> bool {
        let unique = name.split_once('.').map_or("", |(_, unique)| unique);
        unique.strip_prefix(&super::files::mark_of(message)).is_some_and(|rest| rest.starts_with('R'))
    }

    /// Statistics since opening.
    pub fn stats(&self) -> LocalStats {
        let core = &self.handle.core;
        let mut stats = LocalStats {
            accepted: core.intake.accepted(),
            waiting: core.mounts.iter().map(|mount| mount.waiting_count()).sum(),
            waiting_bytes: core.mounts.iter().map(|mount| mount.counters.waiting_bytes.load(Ordering::Relaxed)).sum(),
            mounts: core.mounts.iter().map(|mount| mount.stats()).collect(),
            spool: core.intake.spool().stats(),
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

    /// Waits until all accepted mail is visible, except mail that waits for a mailbox, then syncs every mount. Each
    /// step takes up to `patience` (real time). Blocks.
    ///
    /// # Errors
    /// The syncs that failed or did not return in time.
    pub fn sync(&self, patience: Duration) -> Result<(), Vec<SyncFailed>> {
        self.handle.core.sync(Instant::now() + patience)
    }

    /// Refuses further mail, delivers and syncs accepted mail, and ends the threads, within
    /// [`LocalConfig::shutdown_patience`]. An intake that it was [opened on](Self::open_on) stays open for other
    /// destinations. A message just being accepted there waits for the next opening.
    pub async fn shutdown(&self) {
        self.shutdown_by(Instant::now() + self.handle.core.config.shutdown_patience).await;
    }

    /// Like [`shutdown`](Self::shutdown), with a deadline. The last checkpoint gets at least one second.
    pub async fn shutdown_by(&self, deadline: Instant) {
        let handle = self.handle.clone();
        // If the runtime is ending, dropping the last handle does the same.
        let _ = tokio::task::spawn_blocking(move || handle.end(deadline)).await;
    }

    pub(super) fn end(&self, deadline: Instant) {
        self.handle.end(deadline);
    }

    pub(super) fn mounts(&self) -> &[Arc<MailMount>] {
        &self.handle.core.mounts
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

impl Handle {
    fn end(&self, deadline: Instant) {
        // Waiting mail stays waiting, and is counted as such.
        if self.core.is_ending.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.owns_intake {
            self.core.intake.close();
        }
        self.core.end(deadline);
        if let Some(keeper) = self.keeper.lock().expect("the keeper's handle").take() {
            // A panic of the thread was printed when it happened.
            let _ = keeper.join();
        }
        if self.owns_intake {
            self.core.intake.end(deadline);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end(Instant::now() + self.core.config.shutdown_patience);
    }
}
