//! The thread that writes the files from the stream's position on, and restarts there after each failure.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_consumer::{AttachedStream, Pulse, ReplayedEntry, StreamHandle, StreamState};
use posthaste_spool::{Lsn, Released};
use posthaste_units::BackOff;

use crate::config::{Config, Notice};
use crate::files::{Cursor, Files, file_name};
use crate::inbox::{Inbox, Taken};
use crate::json;

pub(crate) struct Writer {
    pub stream: StreamHandle,
    pub config: Config,
    pub inbox: Arc<Inbox>,
    pub figures: Arc<Figures>,
    /// Receives the number below which files are closed for good.
    pub closed: Sender<u64>,
    /// Reports progress in [`STEPS`].
    pub pulse: Pulse,
}

/// Steps of the writer.
pub(crate) const STEPS: &[&str] = &[
    "",
    "reading what waits in the spool",
    "writing its file",
    "syncing its file",
    "waiting for a checkpoint of the spool",
];

/// Figures that the threads of a log share.
#[derive(Default)]
pub(crate) struct Figures {
    pub lines: AtomicU64,
    pub is_failing: AtomicBool,
    /// True while entries are read from the spool.
    pub is_behind: AtomicBool,
}

/// Files being written, and the part that the spool has released.
struct Session {
    files: Files,
    /// The last entry that was added.
    written: Lsn,
    /// Time of the first write since the last release of the spool, and the bytes since then.
    unsynced: Option<(Instant, u64)>,
    /// True if a file was begun, so an older one may be removed.
    is_file_new: bool,
    lines: Vec<u8>,
}

/// Writes the entries that the spool has.
struct CatchUp<'a> {
    writer: &'a Writer,
    session: &'a mut Session,
}

impl StreamState for CatchUp<'_> {
    type Error = io::Error;

    fn apply(&mut self, ReplayedEntry { lsn, payload, .. }: ReplayedEntry<'_>) -> io::Result<()> {
        self.writer.pulse.step(1);
        self.writer.add(self.session, lsn, Some(payload.clone()))
    }

    fn damaged(&mut self, lsn: Lsn) -> io::Result<()> {
        self.writer.pulse.step(1);
        self.writer.add(self.session, lsn, None)
    }
}

impl Writer {
    /// Runs until it is stopped and all is written. File errors are reported once, then retried.
    pub fn run(self) {
        let mut back_off = RETRY;
        loop {
            self.inbox.clear();
            self.figures.is_behind.store(true, Ordering::Relaxed);
            let works = || {
                if self.figures.is_failing.swap(false, Ordering::Relaxed) {
                    (self.config.notice)(Notice::Working);
                }
            };
            let Err(error) = self.session(&mut back_off, &works) else { break };
            if !self.figures.is_failing.swap(true, Ordering::Relaxed) {
                (self.config.notice)(Notice::Failing { error: error.to_string() });
            }
            self.pulse.step(0);
            if self.inbox.wait_for_stop(back_off.failed()) {
                break;
            }
        }
    }

    /// Writes from the stream's position on until it is stopped, or until something fails.
    fn session(&self, back_off: &mut BackOff, works: &dyn Fn()) -> io::Result<()> {
        self.pulse.step(2);
        let (position, name) = self.stream.position();
        let cursor = name.as_ref().and_then(Cursor::parse);
        let files = Files::open(&self.config.dir, self.config.file_bytes, cursor, position)?;
        let is_file_new = cursor != Some(files.cursor());
        if let Some(cursor) = cursor.filter(|_| is_file_new) {
            (self.config.notice)(Notice::Changed { file: file_name(cursor.file) });
        }
        let mut session = Session { files, written: position, unsynced: None, is_file_new, lines: Vec::new() };
        if is_file_new {
            // Durable before there is anything in it: without a cursor its lines would come a second time, in another file.
            self.advance(&mut session)?;
        }
        let has_packer = self.config.compress || !self.config.max_age.is_zero();
        // Files in front of a durable cursor are closed for good.
        if has_packer && self.stream.spool().checkpoint().is_ok() {
            let _ = self.closed.send(session.files.cursor().file);
        }
        loop {
            let attached = self.catch_up(&mut session)?;
            works();
            back_off.succeeded();
            if self.follow(&mut session)? {
                return Ok(());
            }
            drop(attached);
            self.inbox.clear();
        }
    }

    /// Writes the spool's backlog, then subscribes to new entries.
    fn catch_up(&self, session: &mut Session) -> io::Result<AttachedStream> {
        self.figures.is_behind.store(true, Ordering::Relaxed);
        self.pulse.step(1);
        let replayed = self.stream.clone().replay(&mut CatchUp { writer: self, session })?;
        session.files.cut_off_rest()?;
        self.advance(session)?;
        let attached = replayed.attach(self.inbox.clone())?;
        self.figures.is_behind.store(false, Ordering::Relaxed);
        Ok(attached)
    }

    /// Writes new entries until it is stopped. False on an overflow.
    fn follow(&self, session: &mut Session) -> io::Result<bool> {
        loop {
            let until = session.unsynced.map(|(since, _)| since + self.config.sync_interval);
            self.pulse.step(0);
            let taken = self.inbox.take(until);
            self.pulse.step(2);
            let (entries, is_advance_wanted, is_last) = match taken {
                Taken::Entries { entries, is_advance_wanted } => (entries, is_advance_wanted, false),
                Taken::Stopped { entries } => (entries, true, true),
                Taken::Overflowed => {
                    self.advance(session)?;
                    return Ok(false);
                }
            };
            for (lsn, payload) in entries {
                self.add(session, lsn, Some(payload))?;
            }
            session.files.write()?;
            if is_advance_wanted || until.is_some_and(|until| Instant::now() >= until) {
                self.advance(session)?;
            }
            if is_last {
                return Ok(true);
            }
        }
    }

    /// Adds the lines of an entry; for an unreadable one, a line that says so.
    fn add(&self, session: &mut Session, lsn: Lsn, payload: Option<Bytes>) -> io::Result<()> {
        session.lines.clear();
        match payload {
            Some(payload) => json::write_entry(&mut session.lines, lsn, payload),
            None => json::write_unreadable(&mut session.lines, lsn),
        }
        session.is_file_new |= session.files.add(&session.lines)?;
        session.written = lsn;
        let count = session.lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.figures.lines.fetch_add(count, Ordering::Relaxed);
        let (since, bytes) = session.unsynced.unwrap_or_else(|| (Instant::now(), 0));
        let bytes = bytes + session.lines.len() as u64;
        session.unsynced = Some((since, bytes));
        if bytes >= self.config.sync_bytes { self.advance(session) } else { Ok(()) }
    }

    /// Makes added lines durable, then releases them in the spool.
    fn advance(&self, session: &mut Session) -> io::Result<()> {
        if session.unsynced.is_none() && !session.is_file_new {
            return Ok(());
        }
        self.pulse.step(3);
        session.files.sync()?;
        session.unsynced = None;
        let cursor = session.files.cursor().name();
        self.stream.advance(session.written, Some(cursor), Released::default());
        if std::mem::take(&mut session.is_file_new) {
            self.pulse.step(4);
            // A file goes only when it is durable that the cursor is behind it. A failure is an event of the spool, and the next new file tries again.
            if self.stream.spool().checkpoint().is_ok() {
                session.files.keep(self.config.files.max(FILES_MIN))?;
                let _ = self.closed.send(session.files.cursor().file);
            }
        }
        Ok(())
    }
}

/// Pauses after a failure.
const RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Minimum files kept: the current one and the previous one.
const FILES_MIN: u64 = 2;
