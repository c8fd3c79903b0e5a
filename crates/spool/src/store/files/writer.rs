//! Writes groups of records: syncs their bytes concurrently, names them in order, then syncs each directory once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::crew::{Crew, Drafted, Job};
use super::record::{dir_number, dir_of, name_of};
use crate::store::groups::{GroupWriter, NewRecord, WriteError};

pub(super) struct FilesWriter {
    dir: PathBuf,
    /// Number of the highest directory with written records.
    writes_in: Arc<AtomicU64>,
    crew: Crew,
    /// The directories of the group, by number, and the previous one.
    dirs: BTreeMap<u64, Arc<File>>,
}

impl FilesWriter {
    pub fn new(dir: PathBuf, writes_in: Arc<AtomicU64>) -> Self {
        FilesWriter { dir, writes_in, crew: Crew::default(), dirs: BTreeMap::new() }
    }
}

impl GroupWriter for FilesWriter {
    /// Makes the directory durable with its name, if it is new.
    fn prepare(&mut self, lsn: u64) -> Result<(), WriteError> {
        let number = dir_number(lsn);
        if self.dirs.contains_key(&number) {
            return Ok(());
        }
        let path = dir_of(&self.dir, number);
        let dir = posthaste_fsops::make_dir(&path).and_then(|()| File::open(&path)).map_err(WriteError::Write)?;
        self.writes_in.store(number, Ordering::Release);
        self.dirs.insert(number, Arc::new(dir));
        Ok(())
    }

    fn write(&mut self, group: Vec<NewRecord>) -> io::Result<Vec<Result<(), WriteError>>> {
        let job = |record: NewRecord| Job { dir: self.dirs[&dir_number(record.lsn)].clone(), record };
        let drafted = self.crew.write(group.into_iter().map(job).collect());
        let (mut outcomes, mut named): (_, Vec<Arc<File>>) = (Vec::with_capacity(drafted.len()), Vec::new());
        for Drafted { job, draft } in drafted {
            let outcome =
                draft.and_then(|draft| draft.publish(&job.dir, &name_of(job.record.lsn)).map_err(WriteError::Write));
            if outcome.is_ok() && named.last().is_none_or(|last| !Arc::ptr_eq(last, &job.dir)) {
                named.push(job.dir);
            }
            outcomes.push(outcome);
        }
        // A failed fsync may have dropped names, so a second try would only report a comforting lie.
        named.iter().try_for_each(|dir| posthaste_fsops::fsync(&**dir))?;
        while self.dirs.len() > 1 {
            self.dirs.pop_first();
        }
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use posthaste_fsops::{Choice, Cut, Machine, Recording};

    use super::super::open;
    use super::super::record::PER_DIR;
    use super::*;
    use crate::Lsn;
    use crate::store::groups::StoredHeader;

    const GROUPS: [&[u64]; 2] = [&[1], &[PER_DIR - 2, PER_DIR - 1, PER_DIR, PER_DIR + 1]];

    fn record(lsn: u64) -> NewRecord {
        let (head, body) = (Bytes::from(vec![lsn as u8; 10]), Bytes::from(vec![lsn as u8; 5000]));
        let header = StoredHeader::of(&head, std::slice::from_ref(&body));
        NewRecord { lsn, header, parts: vec![head, body] }
    }

    /// True if a cut leaves every record of an acknowledged group, and none that is not whole.
    fn is_held(recording: &Recording, position: usize, seed: u64) -> bool {
        let cut = Cut { position, choice: Choice::Seed(seed) };
        let left = Machine::boot(&recording.cut(cut), true, false).unwrap();
        let (medium, held) = open(&left.path().join("files"), 0).unwrap();
        let mut acknowledged = recording.acknowledged_before(position).flat_map(|group| GROUPS[group as usize]);
        let is_whole = |lsn: u64| {
            let (head, body) = (medium.head(Lsn::new(lsn)), medium.body(Lsn::new(lsn), 0..u32::MAX));
            head.is_ok() && body.is_ok_and(|body| body == record(lsn).parts[1])
        };
        acknowledged.all(|lsn| held.contains(*lsn)) && held.iter(0..=u64::MAX).all(is_whole)
    }

    #[test]
    fn a_cut_of_a_group_in_two_directories_needs_each_sync() {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("files");
        posthaste_fsops::make_dir(&dir).unwrap();
        let (medium, _) = open(&dir, 0).unwrap();
        let mut writer = medium.writer(1);
        for (number, group) in (0..).zip(GROUPS) {
            group.iter().for_each(|lsn| writer.prepare(*lsn).unwrap());
            let outcomes = writer.write(group.iter().copied().map(record).collect()).unwrap();
            assert!(outcomes.len() == group.len() && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            machine.acknowledge(number);
        }
        let recording = machine.recording();
        let all = (0..=recording.events.len()).flat_map(|position| (0..20).map(move |seed| (position, seed)));
        assert_eq!(all.clone().find(|&(position, seed)| !is_held(&recording, position, seed)), None);
        let syncs: Vec<usize> = (0..recording.events.len()).filter(|at| recording.events[*at].is_sync()).collect();
        // Of the four records, and of the two directories.
        for needed in &syncs[syncs.len() - 6..] {
            let without = recording.without_syncs(|at| at == *needed);
            assert!(all.clone().any(|(position, seed)| !is_held(&without, position, seed)), "sync {needed}");
        }
    }
}
