//! Threads that write and sync files concurrently: one sync at a time would leave the disk idle.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use posthaste_fsops::NamelessFiles;

use super::draft::RecordDraft;
use super::record::name_of;
use crate::store::groups::{NewRecord, WriteError};

/// A record to be written into its directory.
pub(crate) struct Job {
    pub dir: Arc<File>,
    pub record: NewRecord,
}

/// A finished job, with its outcome.
pub(crate) struct Drafted {
    pub job: Job,
    pub draft: Result<RecordDraft, WriteError>,
}

#[derive(Default)]
struct Jobs {
    waiting: Mutex<WaitingJobs>,
    arrived: Condvar,
    nameless: NamelessFiles,
}

#[derive(Default)]
struct WaitingJobs {
    jobs: VecDeque<(Job, Sender<Drafted>)>,
    is_ending: bool,
}

/// The pool of threads. They start with the first batch of several records.
#[derive(Default)]
pub(crate) struct Crew {
    jobs: Arc<Jobs>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Writes all jobs and returns them in LSN order. The caller works, too; a thread that fails to start is left out.
    pub fn write(&mut self, jobs: Vec<Job>) -> Vec<Drafted> {
        while self.threads.len() < THREADS_MAX.min(jobs.len().saturating_sub(1)) {
            let of_thread = self.jobs.clone();
            let run = move || {
                while let Some((job, done)) = of_thread.next() {
                    // The receiver is gone only after a panic.
                    let _ = done.send(of_thread.write(job));
                }
            };
            match std::thread::Builder::new().name("files-sync".to_owned()).spawn(run) {
                Ok(thread) => self.threads.push(thread),
                Err(_) => break,
            }
        }
        let (tell, done) = channel();
        let count = jobs.len();
        {
            let mut waiting = self.jobs.lock();
            waiting.jobs.extend(jobs.into_iter().map(|job| (job, tell.clone())));
        }
        drop(tell);
        self.jobs.arrived.notify_all();
        let mut drafted = Vec::with_capacity(count);
        while let Some((job, _)) = self.jobs.take() {
            drafted.push(self.jobs.write(job));
        }
        drafted.extend(done);
        assert_eq!(drafted.len(), count, "a thread that writes has panicked");
        drafted.sort_unstable_by_key(|drafted| drafted.job.record.lsn);
        drafted
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.jobs.lock().is_ending = true;
        self.jobs.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, WaitingJobs> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<(Job, Sender<Drafted>)> {
        self.lock().jobs.pop_front()
    }

    /// Waits for a job; `None` at the end.
    fn next(&self) -> Option<(Job, Sender<Drafted>)> {
        let waited = self.arrived.wait_while(self.lock(), |waiting| waiting.jobs.is_empty() && !waiting.is_ending);
        waited.unwrap_or_else(PoisonError::into_inner).jobs.pop_front()
    }

    fn write(&self, job: Job) -> Drafted {
        let NewRecord { lsn, header, parts } = &job.record;
        let draft = RecordDraft::write(&job.dir, &name_of(*lsn), &header.encode(*lsn), parts, &self.nameless);
        Drafted { job, draft }
    }
}

/// Threads in addition to the writer. They saturate a disk with one queue, and sleep without work.
const THREADS_MAX: usize = 15;
