//! Keeps an index up to date while mail arrives, moves and disappears.
//!
//! The kernel reports each file that came, went or was renamed. Changes are batched and committed a second after the
//! first of them, or earlier when there are many; nothing is listed for that. Some changes are not reported: a queue
//! overflow, too many watches, a network file system. Once a minute the directories' times are compared, as in an
//! ordinary update, to find these.
//!
//! The watch holds the index for writing and lends it. A waiting command gets it within moments, and the watch
//! continues afterwards.

mod notify;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use posthaste_maildir::tree::{TreeOptions, walk};
use posthaste_units::BackOff;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use crate::state::{StateError, WaitingWriter};
use crate::stop::Stop;
use crate::update::{Indexer, Report, Touched, UpdateOptions};

use notify::{Event, Notify};

/// Options of a watch.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// Options of the updates.
    pub update: UpdateOptions,
    /// Longest wait of a change for others to commit together; longer where commits take more than a tenth of the time.
    pub commit_after: Duration,
    /// A commit does not wait once this many names have changed.
    pub commit_names: usize,
    /// Interval between comparisons of the directories' times.
    pub look_every: Duration,
}

impl Default for WatchOptions {
    /// A second, 10,000 names, a minute.
    fn default() -> Self {
        Self {
            update: UpdateOptions::default(),
            commit_after: Duration::from_secs(1),
            commit_names: 10_000,
            look_every: Duration::from_secs(60),
        }
    }
}

/// Progress of a watch.
#[derive(Debug)]
pub enum WatchEvent<'a> {
    /// The index is being rebuilt; until then the old one answers. The reason: an older version wrote it, or the
    /// settings name other headers.
    Rebuilding(&'a str),
    /// The index is up to date for the first time, and the watch is running.
    Ready(&'a Report),
    /// Changes were committed. `lag` is the time since the first of them was seen.
    Committed {
        /// The update's report.
        report: &'a Report,
        /// Time from the first change to the commit.
        lag: Duration,
    },
    /// An error. The watch starts again after a pause, and an update finds what it missed.
    Trouble {
        /// The error.
        error: &'a IndexError,
        /// Time until the watch begins again.
        pause: Duration,
    },
    /// This many directories are not watched, as the kernel's limit is reached (`fs.inotify.max_user_watches`). They
    /// are checked at intervals.
    Unwatched(usize),
}

/// Brings the index in `dir` up to date with its trees and `roots`, and keeps it so until `stop`. `waiting` as in
/// [`Lock::acquire`](crate::state::Lock::acquire).
///
/// After the first update no error ends the watch: it is reported, and the watch starts again.
///
/// # Errors
/// [`IndexError`] before the first update is done; [`IndexError::Watched`] if another process watches already. Earlier
/// commits stay.
pub fn watch(
    dir: &Path,
    roots: &[PathBuf],
    options: &WatchOptions,
    stop: &Stop,
    waiting: &dyn Fn(),
    tell: &mut dyn FnMut(WatchEvent<'_>),
) -> Result<(), IndexError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| StateError::Io { dir: dir.to_owned(), error })?;
    let sign = Sign::raise(dir)?;
    let mut was_ready = false;
    let mut back_off = RETRY;
    loop {
        let began = Instant::now();
        // The named directories are known by then, and a vanished one must not affect the others.
        let named = if was_ready { &[] } else { roots };
        let ended = Watch::begin(dir, options, &sign, waiting, stop, tell)
            .and_then(|watch| watch.map_or(Ok(()), |mut watch| watch.run(named, stop, &mut was_ready)));
        match ended {
            Err(error) if was_ready => {
                if began.elapsed() > RETRY.after(u32::MAX) {
                    back_off.succeeded();
                }
                let pause = back_off.failed();
                tell(WatchEvent::Trouble { error: &error, pause });
                if stop.wait(pause) {
                    return Ok(());
                }
            }
            ended => return ended,
        }
    }
}

/// Pauses before a failed watch starts again.
const RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(60));
/// After a first change, others are gathered for this long: waking up for each would cost as much as the work.
const GATHER: Duration = Duration::from_millis(100);
/// Pause of this many times the length of a commit, so that commits take at most a tenth of the time.
const REST: u32 = 9;
/// Longest such pause.
const REST_MAX: Duration = Duration::from_secs(30);

struct Watch<'a> {
    dir: &'a Path,
    options: &'a WatchOptions,
    sign: &'a Sign,
    notify: Notify,
    turn: WaitingWriter,
    /// `None` only while another writer has it, and if the watch was ended meanwhile.
    indexer: Option<Indexer>,
    pending: Pending,
    next_look: Instant,
    /// Longest wait of a change before its commit; grows with the time that commits take.
    commit_after: Duration,
    tell: &'a mut dyn FnMut(WatchEvent<'_>),
}

/// Changes seen but not committed.
#[derive(Default)]
struct Pending {
    touched: Touched,
    look: bool,
    since: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// `None` if the watch is ended before it has the index.
    fn begin(
        dir: &'a Path,
        options: &'a WatchOptions,
        sign: &'a Sign,
        waiting: &dyn Fn(),
        stop: &Stop,
        tell: &'a mut dyn FnMut(WatchEvent<'_>),
    ) -> Result<Option<Self>, IndexError> {
        let mut notify = Notify::new().map_err(IndexError::Notify)?;
        let turn = WaitingWriter::of(dir);
        notify.watch_turn(&turn.file()?).map_err(IndexError::Notify)?;
        let Some(indexer) = Indexer::open_unless(dir, waiting, stop)? else { return Ok(None) };
        if let Some(why) = indexer.rebuilds_because() {
            tell(WatchEvent::Rebuilding(&why));
        }
        Ok(Some(Self {
            dir,
            options,
            sign,
            notify,
            turn,
            indexer: Some(indexer),
            pending: Pending::default(),
            next_look: Instant::now(),
            commit_after: options.commit_after,
            tell,
        }))
    }

    fn run(&mut self, roots: &[PathBuf], stop: &Stop, was_ready: &mut bool) -> Result<(), IndexError> {
        // This update may take longer than all others; later changes are few, and are not left out.
        let report = self.look(roots, Some(stop))?;
        if report.stopped {
            return Ok(());
        }
        *was_ready = true;
        // A listener may query at once.
        self.sign.say(&report, Duration::ZERO);
        (self.tell)(WatchEvent::Ready(&report));
        while !self.wait(stop)? {
            self.step(stop)?;
        }
        // Earlier changes must not be left to the next start.
        self.drain()?;
        self.commit()
    }

    /// Waits until an event or a deadline. True if the watch is to end.
    fn wait(&mut self, stop: &Stop) -> Result<bool, IndexError> {
        let now = Instant::now();
        if let Some(since) = self.pending.since {
            let due = self.next_look.min(since + self.commit_after);
            return Ok(stop.wait(due.saturating_duration_since(now).min(GATHER)));
        }
        let timeout = Timespec::try_from(self.next_look.saturating_duration_since(now)).ok();
        let mut ready = [PollFd::new(&self.notify, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(ready[1].revents().contains(PollFlags::IN)),
            Err(e) => Err(IndexError::Notify(e.into())),
        }
    }

    /// Reads the kernel's events.
    fn drain(&mut self) -> Result<(), IndexError> {
        let pending = &mut self.pending;
        let drained = self.notify.drain(|event| match event {
            Event::Name { dir, name } => {
                pending.touched.add(dir, name);
                pending.since.get_or_insert_with(Instant::now);
            }
            Event::Look => {
                pending.look = true;
                pending.since.get_or_insert_with(Instant::now);
            }
            Event::WaitingWriter => {}
        });
        drained.map_err(IndexError::Notify)
    }

    fn step(&mut self, stop: &Stop) -> Result<(), IndexError> {
        self.drain()?;
        if self.turn.is_wanted() {
            self.lend(stop)?;
        }
        let names = self.pending.touched.len();
        let now = Instant::now();
        let is_due = self.pending.since.is_some_and(|since| now >= since + self.commit_after);
        if now >= self.next_look {
            self.pending.look = true;
        }
        if is_due || names >= self.options.commit_names || now >= self.next_look { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), IndexError> {
        let pending = std::mem::take(&mut self.pending);
        if !pending.look && pending.touched.is_empty() {
            return Ok(());
        }
        let Some(indexer) = &mut self.indexer else { return Ok(()) };
        let began = Instant::now();
        let touched = indexer.update_touched(&pending.touched, &self.options.update, &|_| {})?;
        if let Some(report) = &touched {
            self.say(report, pending.since);
        }
        if pending.look || touched.is_none() {
            let report = self.look(&[], None)?;
            self.say(&report, pending.since);
        }
        self.commit_after = (REST * began.elapsed()).min(REST_MAX).max(self.options.commit_after);
        Ok(())
    }

    fn say(&mut self, report: &Report, since: Option<Instant>) {
        let lag = since.map(|since| since.elapsed()).unwrap_or_default();
        self.sign.say(report, lag);
        if report.has_changes() {
            (self.tell)(WatchEvent::Committed { report, lag });
        }
    }

    /// Adds watches, then updates by directories' times: in this order, so that no change is missed in between.
    fn look(&mut self, roots: &[PathBuf], stop: Option<&Stop>) -> Result<Report, IndexError> {
        self.next_look = Instant::now() + self.options.look_every;
        let Some(indexer) = &mut self.indexer else { return Ok(Report::default()) };
        let named: Vec<PathBuf> = roots.iter().filter_map(|root| std::path::absolute(root).ok()).collect();
        let all: Vec<PathBuf> = indexer.roots().iter().chain(&named).cloned().collect();
        let tree_options = TreeOptions { into_noupdate: self.options.update.into_noupdate };
        let unwatched = self.notify.unwatched();
        loop {
            self.notify.forget_unwatched();
            let trees = all.iter().filter_map(|root| walk(root, &tree_options).ok());
            // A directory that came while its parent was not watched is found by the next round.
            if !trees.fold(false, |any, tree| self.notify.watch_tree(&tree) | any) {
                break;
            }
        }
        if self.notify.unwatched() > unwatched {
            (self.tell)(WatchEvent::Unwatched(self.notify.unwatched()));
        }
        let options = UpdateOptions { stop: stop.cloned(), ..self.options.update.clone() };
        indexer.update(roots, &options, &|_| {})
    }

    /// Lends the index to the waiting writers, then queues for it again. Events queue meanwhile.
    fn lend(&mut self, stop: &Stop) -> Result<(), IndexError> {
        self.commit()?;
        self.indexer = None;
        self.indexer = Indexer::open_last(self.dir, stop)?;
        // Another tree may have been added.
        self.pending.look = true;
        self.pending.since.get_or_insert_with(Instant::now);
        Ok(())
    }
}

/// Status file of a running watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchStatus {
    /// Its process id.
    pub process: u32,
    /// Seconds since 1970 of the last commit or look.
    pub at: i64,
    /// Milliseconds from the first change that was seen to the commit that held it.
    pub lag_ms: u64,
    /// Messages in the index.
    pub messages: u64,
}

/// The watch of the index in `dir`, if one is running.
pub fn watched(dir: &Path) -> Option<WatchStatus> {
    let file = File::open(dir.join(SIGN)).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    serde_json::from_slice(&std::fs::read(dir.join(STATUS)).ok()?).ok()
}

const SIGN: &str = "watch.lock";
const STATUS: &str = "watch.json";
/// A holder of the lock for longer than this is a watch. A query ([`watched`]) holds it only for a moment.
const PROBES: Duration = Duration::from_secs(1);

/// Lock held while a watch runs, so that there is one for an index.
struct Sign {
    dir: PathBuf,
    // The descriptor is the lock.
    _file: File,
}

impl Sign {
    fn raise(dir: &Path) -> Result<Self, IndexError> {
        let io = |error| StateError::Io { dir: dir.to_owned(), error };
        let file = File::options().create(true).append(true).open(dir.join(SIGN)).map_err(io)?;
        let deadline = Instant::now() + PROBES;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { dir: dir.to_owned(), _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(IndexError::Watched(dir.to_owned())),
                Err(e) => return Err(io(e.into()).into()),
            }
        }
    }

    /// Writes the status file. It only informs people, so errors are ignored.
    fn say(&self, report: &Report, lag: Duration) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let status = WatchStatus {
            process: std::process::id(),
            at: i64::try_from(now.as_secs()).unwrap_or(0),
            lag_ms: u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
            messages: report.messages,
        };
        let temporary = self.dir.join("watch.json.tmp");
        let written = File::create(&temporary).and_then(|mut file| file.write_all(&serde_json::to_vec(&status)?));
        let _ = written.and_then(|()| std::fs::rename(&temporary, self.dir.join(STATUS)));
    }
}
