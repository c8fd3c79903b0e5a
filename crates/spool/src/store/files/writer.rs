//! The thread that takes all records that wait, has their bytes synced beside each other, names them in order and syncs each directory once.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;

use super::FilesShared;
use super::crew::{Crew, Drafted, Job};
use super::draft::{DraftError, RecordDraft};
use super::queue::{Item, Waiting};
use super::record::{dir_number, dir_of, name_of};
use crate::{AppendError, Lsn};

pub(crate) struct RecordWriter {
    shared: Arc<FilesShared>,
    crew: Crew,
    next_lsn: u64,
    /// The directory of the last record, and its number.
    dir: Option<(u64, Arc<File>)>,
}

impl RecordWriter {
    pub fn new(shared: Arc<FilesShared>, next_lsn: u64) -> Self {
        RecordWriter { shared, crew: Crew::default(), next_lsn, dir: None }
    }

    /// Works until the queue is closed and empty.
    pub fn run(mut self) {
        let _refuses = RefusesTheRest(self.shared.clone());
        while let Some(items) = self.shared.queue.next() {
            let (mut records, mut flushes) = (Vec::new(), Vec::new());
            for item in items {
                match item {
                    Item::Record(waiting) => records.push(waiting),
                    Item::Flush(tell) => flushes.push(tell),
                }
            }
            self.write(records);
            for tell in flushes {
                // Who asked may have gone.
                let _ = tell.send(());
            }
        }
    }

    fn write(&mut self, records: Vec<Waiting>) {
        let mut jobs = Vec::with_capacity(records.len());
        for waiting in records {
            let lsn = self.next_lsn;
            match self.dir_for(lsn) {
                Ok(dir) if waiting.fate.take(Lsn::new(lsn).into()) => {
                    self.next_lsn += 1;
                    jobs.push(Job { lsn, dir, waiting });
                }
                // It was cancelled.
                Ok(_) => {}
                Err(error) => drop(waiting.tell(Err(error))),
            }
        }
        if !jobs.is_empty() {
            let begun = Instant::now();
            let drafted = self.crew.write(jobs);
            self.commit(drafted, begun);
        }
    }

    /// The directory of a record, made durable with its name if it is new.
    fn dir_for(&mut self, lsn: u64) -> Result<Arc<File>, AppendError> {
        if let Some(why) = self.shared.poisoned() {
            return Err(AppendError::Poisoned(why));
        }
        let number = dir_number(lsn);
        if let Some((_, dir)) = self.dir.as_ref().filter(|(open, _)| *open == number) {
            return Ok(dir.clone());
        }
        let path = dir_of(&self.shared.dir, number);
        let opened = posthaste_fsops::make_dir(&path).and_then(|()| File::open(&path));
        let dir = Arc::new(opened.map_err(|error| self.shared.refusal(DraftError::Write(error)))?);
        self.shared.writes_in.store(number, Ordering::Release);
        self.dir = Some((number, dir.clone()));
        Ok(dir)
    }

    /// Names what is synced, makes the names durable and calls back, all in the order of the LSNs.
    fn commit(&self, drafted: Vec<Drafted>, begun: Instant) {
        let (mut named, mut dirs): (Vec<Job>, Vec<Arc<File>>) = (Vec::with_capacity(drafted.len()), Vec::new());
        for Drafted { job, draft } in drafted {
            let publish = |draft: RecordDraft| {
                let name = name_of(job.lsn);
                draft.publish(&job.dir, &name, self.crew.names_needed()).map_err(DraftError::Write)
            };
            match draft.and_then(publish) {
                Ok(()) => {
                    if dirs.last().is_none_or(|last| !Arc::ptr_eq(last, &job.dir)) {
                        dirs.push(job.dir.clone());
                    }
                    named.push(job);
                }
                Err(error) => drop(job.waiting.tell(Err(self.shared.refusal(error)))),
            }
        }
        if named.is_empty() {
            return;
        }
        for dir in dirs {
            if let Err(error) = posthaste_fsops::fsync(&*dir) {
                // A failed fsync may have dropped names, so a second try would only report a comforting lie.
                self.shared.refusal(DraftError::Sync(error.into()));
            }
        }
        // Asked after the syncs: another one on this device may have failed meanwhile.
        if let Some(why) = self.shared.poisoned() {
            for job in named {
                job.waiting.tell(Err(AppendError::Poisoned(why.clone())));
            }
            return;
        }
        let bytes = named.iter().map(|job| job.waiting.header.file_len()).sum();
        self.shared.counters.count_commit(named.len() as u64, bytes, begun.elapsed());
        {
            let mut held = self.shared.held();
            for job in &named {
                held.insert(job.lsn);
            }
        }
        for job in named {
            let lsn = Lsn::new(job.lsn);
            if !job.waiting.tell(Ok(lsn)) {
                self.shared.counters.cancelled.fetch_add(1, Ordering::Relaxed);
                self.shared.core.cancelled(lsn);
            }
        }
    }
}

impl FilesShared {
    /// Tells an append why it has failed. After a failed sync, and after errors that nobody can explain away, nothing more is accepted.
    pub fn refusal(&self, error: DraftError) -> AppendError {
        let error = match error {
            DraftError::Sync(error) => return AppendError::Poisoned(self.poison_with(format!("sync failed: {error}"))),
            DraftError::Write(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::NOSPC | Errno::DQUOT) => AppendError::Full(error.to_string().into()),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOENT | Errno::PERM | Errno::ACCESS) => {
                AppendError::Local(Arc::new(error))
            }
            _ => AppendError::Poisoned(self.poison_with(format!("write failed: {error}"))),
        }
    }
}

/// If the writer panics, itself or in a callback, waiting appends are refused.
struct RefusesTheRest(Arc<FilesShared>);

impl Drop for RefusesTheRest {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let why = self.0.poison_with("the thread that writes has ended by a panic".to_owned());
        self.0.queue.close();
        while let Some(items) = self.0.queue.next() {
            for item in items {
                if let Item::Record(waiting) = item {
                    waiting.tell(Err(AppendError::Poisoned(why.clone())));
                }
            }
        }
    }
}
