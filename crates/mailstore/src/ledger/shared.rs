//! The table and its stream, shared by the ledger and its thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_consumer::{Pulse, StreamHandle};
use posthaste_spool::{Lsn, Released};
use posthaste_units::BackOff;

use super::MailLedgerError;
use super::others::AppliedOthers;
use super::waiting::{Waiting, WaitingState};
use crate::entry::MailEntry;
use crate::table::{Applier, FileNote, MetaError, MetaTable, RowChanges, StoreNumbers, TableReader};

/// Back-off after a failed commit.
const RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Steps of the thread, for the watch.
pub(super) const STEPS: &[&str] = &["", "writing the table of mailboxes"];

pub(super) struct Shared {
    pub stream: StreamHandle,
    pub table: MetaTable,
    pub waiting: Arc<Waiting>,
    /// Locked during a commit.
    pub committing: Mutex<()>,
    pub others: Mutex<Option<AppliedOthers>>,
    /// Number of entries applied for reads. For tests.
    #[cfg(test)]
    pub applied: std::sync::atomic::AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn run(&self, pulse: &Pulse) {
        let (mut back_off, mut pause) = (RETRY, None);
        while self.waiting.wait(pause) {
            pulse.step(1);
            let outcome = self.commit();
            pulse.step(0);
            match &outcome {
                Err(error) if pause.is_none() => {
                    let error = error.to_string();
                    tracing::error!(error, "the table of mailboxes cannot be written: changes wait in the spool");
                }
                Ok(()) if pause.is_some() => tracing::info!("the table of mailboxes can be written again"),
                _ => {}
            }
            if outcome.is_ok() {
                back_off.succeeded();
            }
            pause = outcome.is_err().then(|| back_off.failed());
        }
    }

    pub fn commit(&self) -> Result<(), MetaError> {
        // After a failed sync on the spool's device nothing may count as durable.
        if let Some(why) = self.stream.spool().poisoned() {
            return Err(MetaError::Disk(why.to_string()));
        }
        // The ring's thread may be handing over the entries of the last batch one by one.
        let before_last = self.stream.spool().stats().published.get().saturating_sub(1);
        let complete = self.waiting.lock().complete.max(before_last);
        // An idle server writes nothing.
        if !self.waiting.lock().has_any(complete) {
            return Ok(());
        }
        // Notes alone have no LSN to go on to.
        let Some(applied) = self.commit_rows(complete, |_, _| ())? else { return Ok(()) };
        self.stream.advance(Lsn::new(applied), None, Released::default());
        Ok(())
    }

    /// Commits the waiting batches up to `complete`, and the changes of `also`. Returns the last committed batch, if
    /// any.
    pub fn commit_rows(
        &self,
        complete: u64,
        also: impl FnOnce(&mut StoreNumbers, &mut RowChanges),
    ) -> Result<Option<u64>, MetaError> {
        let _one = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let (entries, notes) = {
            let state = self.waiting.lock();
            (state.up_to(complete), state.notes.clone())
        };
        let last = entries.last().map(|(lsn, _)| *lsn);
        let reader = self.table.reader()?;
        let mut unknown = Vec::new();
        let (mut changes, mut numbers) = applied(&reader, &entries, &notes, &mut unknown)?;
        drop(reader);
        also(&mut numbers, &mut changes);
        numbers.put(&mut changes);
        if let Some(lsn) = unknown.first() {
            tracing::error!(batch = %lsn, "skipped an entry of mailboxes that a later version wrote");
        }
        self.table.commit(&changes)?;
        self.waiting.committed(entries.len(), notes.len());
        Ok(last)
    }

    /// Reads the table, with the missing entries that `entries` accepts.
    pub fn read<T>(
        &self,
        entries: impl FnOnce(&mut WaitingState) -> Vec<(u64, Bytes)>,
        read: impl FnOnce(&TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
    ) -> Result<T, MailLedgerError> {
        // Entries first: those that a commit takes meanwhile are applied twice, and none is missed.
        let (entries, notes) = {
            let mut state = self.waiting.lock();
            (entries(&mut state), state.notes.clone())
        };
        let reader = self.table.reader()?;
        let mut unknown = Vec::new();
        #[cfg(test)]
        self.applied.fetch_add(entries.len(), std::sync::atomic::Ordering::Relaxed);
        let (changes, numbers) = applied(&reader, &entries, &notes, &mut unknown)?;
        Ok(read(&reader, &changes, numbers)?)
    }

    /// Reads the table with the missing entries about accounts and mailboxes, without those about messages.
    pub fn read_others<T>(
        &self,
        read: impl FnOnce(&TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
    ) -> Result<T, MailLedgerError> {
        let (reader, rows) = {
            let mut known = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            let (commits, from, new) = {
                let state = self.waiting.lock();
                let from = known.as_ref().filter(|known| known.commits == state.commits).map_or(0, |known| known.count);
                (state.commits, from, state.others_from(from))
            };
            // A commit meanwhile has rows of entries that are applied once more: all that they say is absolute.
            let reader = self.table.reader()?;
            if from == 0 || !new.is_empty() {
                let parked = known.take().filter(|_| from > 0).map(|known| known.parked);
                *known = Some(AppliedOthers::applied(&reader, parked, (commits, from), &new)?);
                #[cfg(test)]
                self.applied.fetch_add(new.len(), std::sync::atomic::Ordering::Relaxed);
            }
            let rows = known.as_ref().map(|known| Arc::clone(&known.rows));
            (reader, rows.expect("it was applied"))
        };
        Ok(read(&reader, &rows.0, rows.1)?)
    }
}

/// The changes made by entries.
fn applied(
    reader: &TableReader,
    entries: &[(u64, Bytes)],
    notes: &[FileNote],
    unknown: &mut Vec<u64>,
) -> Result<(RowChanges, StoreNumbers), MetaError> {
    let mut applier = Applier::new(reader)?;
    for (lsn, payload) in entries {
        match MailEntry::decode(payload) {
            Some(entry) => applier.apply(*lsn, &entry)?,
            None => unknown.push(*lsn),
        }
    }
    notes.iter().try_for_each(|note| applier.note(*note))?;
    let numbers = applier.numbers;
    Ok((applier.finish()?, numbers))
}
