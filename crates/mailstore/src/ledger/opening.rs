//! Opening a ledger: detects losses, and skips UIDs that they may have used.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use posthaste_consumer::{ReplayedEntry, ReplayedStream, StreamHandle, StreamState};
use posthaste_spool::{Damage, Lsn, Spool};

use super::{MailLedgerError, Shared, skip_file};
use crate::entry::{MailEntry, STREAM};
use crate::table::{FILE, MetaError, MetaTable, RowChanges, StoreNumbers, TableName, TableReader, peek};

/// Findings when a ledger is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerReport {
    /// Entries that the table lacked.
    pub replayed: usize,
    /// Unreadable batches.
    pub damaged: Vec<Lsn>,
    /// The last LSN of the table and the stream's higher position: a commit of the table was lost, and with it all
    /// entries in between.
    pub lost: Option<(u64, u64)>,
    /// Last LSN of the table, and the lower last LSN of the spool: the table belongs to another spool.
    pub other_spool: Option<(u64, u64)>,
    /// True if UIDs were skipped because of a newly found loss.
    pub has_skipped: bool,
    /// Batches written by a later version.
    pub unknown: Vec<u64>,
}

/// The last LSN in the table in `dir`. A new spool in the old one's place must begin above it. Zero without a table.
///
/// # Errors
/// [`MetaError`], if the table cannot be read.
pub fn applied_in(dir: &Path) -> Result<u64, MetaError> {
    if dir.join(FILE).exists() { peek(dir, |reader| Ok(StoreNumbers::read(reader)?.applied)) } else { Ok(0) }
}

/// Present in the table while its stream is being registered: until then the stream has no entry, so an empty table has
/// lost nothing. Its value is [`ALL_LOST`] if an earlier table and its spool were lost together.
const BEGINS: &[u8] = b"begins";
const ALL_LOST: &[u8] = b"all lost";
/// Checksums of spool damage for which UIDs were skipped already.
const DAMAGE: &[u8] = b"damage";
/// Maximum remembered damage; more is reported as new at each opening.
const DAMAGE_MAX: usize = 10_000;

/// How the table and its stream began, as recorded in the table.
pub(super) struct Beginning {
    pub stream: StreamHandle,
    pub applied: u64,
    /// True if the stream and the table are both new.
    begins: bool,
    /// True if the table and the spool were lost together: both are new, but the file beside the table is not.
    all_lost: bool,
    other_spool: bool,
    /// Damage that the table remembers.
    known_damage: BTreeSet<u32>,
}

impl Beginning {
    /// Finds the stream, or registers it. `dir`: directory of the table.
    pub fn new(spool: Arc<dyn Spool>, table: &MetaTable, dir: &Path) -> Result<Self, MailLedgerError> {
        let reader = table.reader()?;
        let StoreNumbers { applied, .. } = StoreNumbers::read(&reader)?;
        let known_damage = known_damage(&reader)?;
        let has_stream = spool.streams().iter().any(|found| found.name == STREAM);
        let mut begins = reader.get(TableName::Store, BEGINS)?;
        drop(reader);
        if !has_stream && applied == 0 && begins.is_none() {
            let had_table = skip_file::read(dir).map_err(MailLedgerError::SkipFile)?.is_some();
            let value = if had_table { ALL_LOST.to_vec() } else { Vec::new() };
            let mut changes = RowChanges::default();
            changes.put(TableName::Store, BEGINS, value.clone());
            table.commit(&changes)?;
            begins = Some(value);
        }
        let all_lost = begins.as_deref() == Some(ALL_LOST);
        let begins = begins.is_some();
        let other_spool = !begins && (!has_stream || spool.stats().published.get() < applied);
        let stream = StreamHandle::register(spool, STREAM)?;
        Ok(Self { stream, applied, begins, all_lost, other_spool, known_damage })
    }
}

fn known_damage(reader: &TableReader) -> Result<BTreeSet<u32>, MetaError> {
    let value = reader.get(TableName::Store, DAMAGE)?.unwrap_or_default();
    Ok(value.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("4 octets"))).collect())
}

/// Identifies damage across openings. The text would change: it names the end of a gap, which moves.
fn checksum(damage: &Damage) -> u32 {
    let text = match damage.lsn {
        Some(lsn) => format!("{} {lsn}", damage.place),
        None => damage.to_string(),
    };
    crc32c::crc32c(text.as_bytes())
}

impl Shared {
    /// Collects entries that the table lacks. If some may be lost, this is recorded in the table before the return,
    /// with all entries collected. `damage`: as reported when the spool was opened.
    pub(super) fn restore(
        &self,
        dir: &Path,
        beginning: &Beginning,
        damage: &[Damage],
        bytes_max: usize,
        report: &mut LedgerReport,
    ) -> Result<ReplayedStream, MailLedgerError> {
        let Beginning { applied, begins, all_lost, other_spool, known_damage, .. } = beginning;
        let position = self.stream.position().0.get();
        report.lost = (!begins && !other_spool && *applied < position).then_some((*applied, position));
        report.other_spool = other_spool.then(|| (*applied, self.stream.spool().stats().published.get()));
        let mut missing = MissingEntries { shared: self, applied: *applied, bytes_max, report };
        let replayed = self.stream.clone().replay(&mut missing)?;
        let shown = replayed.through().get();
        self.waiting.lock().complete = shown;
        let found: BTreeSet<u32> = damage.iter().take(DAMAGE_MAX).map(checksum).collect();
        // A sector that is readable at times is one damage.
        let all: BTreeSet<u32> = found.union(known_damage).copied().collect();
        let now = if all.len() > DAMAGE_MAX { &found } else { &all };
        let has_lost = report.lost.is_some() || *other_spool || !report.damaged.is_empty();
        // Before it began there was no UID to lose.
        report.has_skipped = *all_lost || (!begins && (has_lost || !found.is_subset(known_damage)));
        if *begins || report.has_skipped || now != known_damage {
            let last = shown.max(position).max(*applied);
            let skip = if report.has_skipped { self.next_skip(dir)? } else { 0 };
            if *begins && !report.has_skipped {
                // A later opening that finds this file, and neither table nor stream, knows that both were lost.
                skip_file::write(dir, skip).map_err(MailLedgerError::SkipFile)?;
            }
            self.commit_rows(shown, |numbers, changes| {
                numbers.applied = last;
                if report.has_skipped {
                    numbers.skip = skip;
                    // Above every MODSEQ that was told: later batches have later LSNs.
                    numbers.floor = last + 1;
                }
                changes.remove(TableName::Store, BEGINS);
                changes.put(TableName::Store, DAMAGE, now.iter().flat_map(|sum| sum.to_le_bytes()).collect());
            })?;
        }
        Ok(replayed)
    }

    /// The next value of `skip`, durable beside the table. A new table starts without skips.
    fn next_skip(&self, dir: &Path) -> Result<u32, MailLedgerError> {
        let known = StoreNumbers::read(&self.table.reader()?)?.skip;
        let skip = known.max(skip_file::read(dir).map_err(MailLedgerError::SkipFile)?.unwrap_or(0)).saturating_add(1);
        skip_file::write(dir, skip).map_err(MailLedgerError::SkipFile)?;
        Ok(skip)
    }
}

/// Takes the entries above `applied`. Commits whole batches whenever they exceed `bytes_max` bytes.
struct MissingEntries<'a> {
    shared: &'a Shared,
    applied: u64,
    bytes_max: usize,
    report: &'a mut LedgerReport,
}

impl StreamState for MissingEntries<'_> {
    type Error = MailLedgerError;

    fn apply(&mut self, ReplayedEntry { lsn, payload, .. }: ReplayedEntry<'_>) -> Result<(), MailLedgerError> {
        if lsn.get() <= self.applied {
            return Ok(());
        }
        self.report.replayed += 1;
        if MailEntry::decode(payload).is_none() {
            self.report.unknown.push(lsn.get());
        }
        if self.shared.waiting.lock().bytes >= self.bytes_max {
            // The batch of this entry may have begun already.
            self.shared.commit_rows(lsn.get() - 1, |_, _| ())?;
        }
        self.shared.waiting.lock().push(lsn.get(), payload.clone());
        Ok(())
    }

    /// Losses that the table has already applied do not count.
    fn damaged(&mut self, lsn: Lsn) -> Result<(), MailLedgerError> {
        self.report.damaged.extend((lsn.get() > self.applied).then_some(lsn));
        Ok(())
    }

    fn uncertain(&mut self, _: &StreamHandle, through: Lsn) {
        self.report.damaged.extend((through.get() > self.applied).then_some(through));
    }
}
