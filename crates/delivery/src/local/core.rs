//! The mounts of local delivery and their shared state: opening, supervision, syncs and end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use posthaste_consumer::{AttachedStream, StreamHandle, StreamOpenError};
use posthaste_fsops::Space;
use posthaste_intake::Intake;
use posthaste_maildir::resolved;
use posthaste_spool::ReplayError;

use super::common::Common;
use super::config::LocalConfig;
use super::files::Files;
use super::history::History;
use super::identity::BoundMounts;
use super::mount::{Limits, MailMount};
use super::mounts::{MountPoints, is_of_mount, stream_of};
use super::report::{ReplayReport, SyncFailed};
use crate::cache::OpenMaildirs;
use crate::seams::Seams;

/// State shared by all handles.
pub(super) struct Core {
    pub config: LocalConfig,
    pub nonce: u32,
    pub host: Arc<str>,
    pub intake: Intake,
    pub points: MountPoints,
    /// In the order of `points`.
    pub mounts: Vec<Arc<MailMount>>,
    /// Streams of the mounts whose entries were readable.
    attached: Vec<AttachedStream>,
    /// Set when shutdown begins: no more retries.
    pub is_ending: AtomicBool,
    pub stop: AtomicBool,
    /// Wakes the keeper thread.
    pub tick: (Mutex<()>, Condvar),
}

impl Core {
    pub fn open(
        intake: Intake,
        config: LocalConfig,
        seams: Seams,
        report: &mut ReplayReport,
    ) -> Result<Self, StreamOpenError> {
        let at = |path: &Path| StreamOpenError::io(path.display().to_string());
        let mail_root = &config.mail_root;
        let spool = intake.spool().clone();
        let streams = spool.streams();
        let names = streams.iter().map(|stream| &*stream.name);
        let (bound, mended) = BoundMounts::open(&config.spool_dir, names).map_err(at(&config.spool_dir))?;
        report.mended = mended;
        // A new directory becomes durable with its mail, and its disk may hang. A missing one that was bound is on an
        // unmounted disk.
        if !mail_root.is_dir() && bound.get("").is_none() {
            posthaste_fsops::make_dir(mail_root).map_err(at(mail_root))?;
        }
        let waiting = streams.iter().filter(|stream| stream.entries > 0 && is_of_mount(&stream.name));
        let points = MountPoints::below(mail_root).map_err(at(mail_root))?;
        let points = points.with_streams(waiting.map(|stream| &*stream.name));
        let points = points.with_streams(bound.streams().iter().map(|(stream, _)| &**stream));
        let common = Common {
            root_path: resolved(mail_root).map_err(at(mail_root))?,
            owners: config.owners.clone(),
            bound: Arc::new(bound),
            spool: spool.clone(),
            seams: Arc::new(seams),
            observer: config.observer.clone(),
            expunged: Arc::clone(&config.expunged),
            open: Arc::new(OpenMaildirs::new()),
        };
        let limits = Limits {
            budget: intake.budget().clone(),
            losses: config.losses.clone(),
            queue_bytes_max: u64::from(intake.config().backlog_bytes) / QUEUE_SHARE,
            sync_bytes: config.sync_bytes,
            sync_interval: config.sync_interval,
        };
        let floor = Space { bytes: config.free_bytes_min, inodes: config.free_inodes_min };
        let mut mounts = Vec::new();
        let mut replays = Vec::new();
        for point in points.iter() {
            let files = Files::new(common.clone(), point.clone(), floor);
            let stream = StreamHandle::register(spool.clone(), &stream_of(point))?;
            let id = stream.id();
            let mut history = History::default();
            let (history, replayed) = match stream.replay(&mut history) {
                // The disk may become readable again: the mail stays, and the other mounts are served.
                Err(error @ ReplayError::Io { .. }) => (Err(error.to_string().into()), None),
                replayed => (Ok(history), Some(replayed?)),
            };
            if let (Ok(history), Some(replayed)) = (&history, &replayed) {
                report.messages += history.messages().count();
                report.unknown.extend_from_slice(history.unknown());
                report.damaged.extend_from_slice(&replayed.damaged);
            }
            replays.push(replayed);
            mounts.push(MailMount::new(files, id, limits.clone(), history));
        }
        // All streams are read: now they get new entries, and may act.
        let mut attached = Vec::new();
        for (mount, replayed) in mounts.iter().zip(replays) {
            attached.extend(replayed.map(|replayed| replayed.attach(mount.clone())).transpose()?);
        }
        Ok(Core {
            nonce: config.nonce,
            host: config.host.as_str().into(),
            intake,
            points,
            mounts,
            attached,
            is_ending: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            tick: (Mutex::default(), Condvar::new()),
            config,
        })
    }

    /// The keeper thread: retries and timeouts. It takes only locks that are never held during disk I/O.
    pub fn keep(&self) {
        loop {
            let guard = self.tick.0.lock().expect("the keeper's lock");
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            drop(self.tick.1.wait_timeout(guard, TICK).expect("the keeper's lock"));
            let retries = !self.is_ending.load(Ordering::Acquire);
            self.mounts.iter().for_each(|mount| mount.tick(retries));
        }
    }

    pub fn sync(&self, deadline: Instant) -> Result<(), Vec<SyncFailed>> {
        let mut failed = Vec::new();
        // In parallel, so that a hanging mount takes no time from the others.
        std::thread::scope(|scope| {
            let begin = |mount: &'_ Arc<MailMount>| {
                let mount = mount.clone();
                scope.spawn(move || {
                    // A mount that has not answered has no work in flight.
                    if mount.has_begun() {
                        mount.wait_until_idle(deadline);
                    }
                    mount.sync_now(deadline)
                })
            };
            let syncs: Vec<_> = self.mounts.iter().map(|mount| (mount, begin(mount))).collect();
            for (mount, sync) in syncs {
                let error = match sync.join().expect("a sync does not panic") {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => error,
                    None => super::queues::no_answer(),
                };
                failed.push(SyncFailed { point: mount.files.point().clone(), error });
            }
        });
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    pub fn end(&self, deadline: Instant) {
        // Waiting for a failed disk is useless; the replay delivers the rest.
        let _ = self.sync(deadline);
        self.stop.store(true, Ordering::Release);
        drop(self.tick.0.lock());
        self.tick.1.notify_all();
        self.attached.iter().for_each(AttachedStream::detach);
        self.mounts.iter().for_each(|mount| mount.stop(deadline));
    }
}

/// Interval of the keeper's checks.
const TICK: Duration = Duration::from_millis(200);
/// A slow mailbox may take one part in this many of the memory for messages in flight.
const QUEUE_SHARE: u64 = 8;
