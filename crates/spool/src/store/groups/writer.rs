//! The thread that takes all waiting records, makes them durable and calls back in LSN order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;

use super::medium::{GroupWriter, WriteError};
use super::queue::{Item, Told, Waiting};
use super::shared::GroupShared;
use crate::{AppendError, Lsn};

pub(crate) struct StoreWriter {
    shared: Arc<GroupShared>,
    writer: Box<dyn GroupWriter>,
    next_lsn: u64,
}

/// A waiting record with its LSN.
struct Numbered {
    lsn: Lsn,
    bytes: u64,
    told: Told,
}

impl StoreWriter {
    pub fn new(shared: Arc<GroupShared>, writer: Box<dyn GroupWriter>, next_lsn: u64) -> Self {
        StoreWriter { shared, writer, next_lsn }
    }

    /// Works until the queue is closed and empty.
    pub fn run(mut self) {
        let _refuses = RefusesTheRest(self.shared.clone());
        while let Some(items) = self.shared.queue.next() {
            let mut records = Vec::new();
            let mut flushes = Vec::new();
            for item in items {
                match item {
                    Item::Record(waiting) => records.push(waiting),
                    Item::Flush(tell) => flushes.push(tell),
                }
            }
            self.write(records);
            for tell in flushes {
                // The receiver may be gone.
                let _ = tell.send(());
            }
        }
    }

    fn write(&mut self, records: Vec<Waiting>) {
        let mut group = Vec::with_capacity(records.len());
        let mut numbered = Vec::with_capacity(records.len());
        for waiting in records {
            let lsn = Lsn::new(self.next_lsn);
            match self.may_write(self.next_lsn) {
                Ok(()) if waiting.told.fate.take(lsn.into()) => {
                    let (record, told) = waiting.numbered(self.next_lsn);
                    self.next_lsn += 1;
                    numbered.push(Numbered { lsn, bytes: record.header.record_len(), told });
                    group.push(record);
                }
                // The batch was cancelled.
                Ok(()) => {}
                Err(error) => drop(waiting.told.tell(Err(error))),
            }
        }
        if group.is_empty() {
            return;
        }
        let begun = Instant::now();
        match self.writer.write(group) {
            Ok(outcomes) => self.commit(numbered, outcomes, begun),
            Err(error) => refuse(numbered, &self.shared.refusal(WriteError::Sync(error))),
        }
    }

    fn may_write(&mut self, lsn: u64) -> Result<(), AppendError> {
        match self.shared.poisoned() {
            Some(why) => Err(AppendError::Poisoned(why)),
            None => self.writer.prepare(lsn).map_err(|error| self.shared.refusal(error)),
        }
    }

    /// Calls back in the order of the LSNs.
    fn commit(&self, group: Vec<Numbered>, outcomes: Vec<Result<(), WriteError>>, begun: Instant) {
        assert_eq!(group.len(), outcomes.len(), "each record has an outcome");
        let mut durable = Vec::with_capacity(group.len());
        for (record, outcome) in group.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => durable.push(record),
                Err(error) => drop(record.told.tell(Err(self.shared.refusal(error)))),
            }
        }
        // Checked after the syncs: another sync on this device may have failed meanwhile.
        if let Some(why) = self.shared.poisoned() {
            return refuse(durable, &AppendError::Poisoned(why));
        }
        if durable.is_empty() {
            return;
        }
        let bytes = durable.iter().map(|record| record.bytes).sum();
        self.shared.counters.count_commit(durable.len() as u64, bytes, begun.elapsed());
        {
            let mut held = self.shared.held();
            for record in &durable {
                held.insert(record.lsn.get());
            }
        }
        for record in durable {
            if !record.told.tell(Ok(record.lsn)) {
                self.shared.counters.cancelled.fetch_add(1, Ordering::Relaxed);
                self.shared.core.cancelled(record.lsn);
            }
        }
    }
}

fn refuse(records: Vec<Numbered>, error: &AppendError) {
    for record in records {
        record.told.tell(Err(error.clone()));
    }
}

impl GroupShared {
    /// The error for the caller of a failed append. After a failed sync, and after unexplained errors, poisons the
    /// store.
    pub fn refusal(&self, error: WriteError) -> AppendError {
        let error = match error {
            WriteError::Sync(error) => return AppendError::Poisoned(self.poison_with(format!("sync failed: {error}"))),
            WriteError::Write(error) => error,
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

/// If the writer panics, itself or in a callback, refuses all waiting appends on drop.
struct RefusesTheRest(Arc<GroupShared>);

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
                    waiting.told.tell(Err(AppendError::Poisoned(why.clone())));
                }
            }
        }
    }
}
