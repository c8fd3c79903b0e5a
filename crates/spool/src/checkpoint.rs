//! The checkpoint: the start of recovery, in two files outside of the ring that are written alternately.
//!
//! A file gets its name once it is durable, and is then rewritten in place, which works on a full disk. The other file
//! is the last good one meanwhile. After a failed write a file is not rewritten in place: a new one takes its name.

use std::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use posthaste_ring::{Lsn, OnRecord, Proof};
use rustix::fs::OFlags;

use bytes::BufMut;

use crate::codec::{seal, unseal};
use crate::events::Damage;
use crate::fields::{Fields, put_text};
use crate::snapshots::SnapshotName;
use crate::{StoreKind, files};

/// State that determines the whole spool, together with the files that it names and the ring after `through`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Increases with each attempt; the copy with the higher counter is valid.
    pub counter: u64,
    /// The kind of the spool, once the directory of its records is durable: from then on that directory must exist.
    pub kind: Option<StoreKind>,
    /// Up to this LSN the live files list the needed batches; all later ones are needed.
    pub through: u64,
    /// The first segment of the ring still in use.
    pub ring_low: u64,
    /// No segment from `ring_low` on contains a batch up to this LSN.
    pub freed: u64,
    /// The id for the next new stream. Ids are never reused.
    pub next_stream: u16,
    pub next_pack: u64,
    pub streams: Vec<StreamRow>,
    pub packs: Vec<PackRow>,
    /// Windows with needed batches, each with the generation of its live file.
    pub windows: Vec<(u64, u64)>,
    /// The durable part of the ring when the checkpoint was taken.
    pub proof: Proof,
    /// Batches cancelled when the checkpoint was taken, without a durable cancel entry: nothing else records them if a
    /// live file or a snapshot is lost.
    pub cancelled: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamRow {
    pub id: u16,
    pub name: String,
    /// The stream's last position: it needs no entry up to this LSN.
    pub position: u64,
    /// The LSN up to which entries are unknown, because no snapshot of the stream is readable, or the spool was
    /// rebuilt. 0: all are known.
    pub uncertain: u64,
    /// Entries between the position and this LSN may be lost, because the ring lost batches after the last checkpoint.
    /// 0: none.
    pub lost: u64,
    /// The last snapshot, and the previous checkpoint's if it differs, in case the last one cannot be read.
    pub snapshots: Vec<SnapshotRow>,
}

/// A snapshot, with the stream's position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotRow {
    pub position: u64,
    pub name: SnapshotName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackRow {
    pub id: u64,
    pub first: u64,
    pub last: u64,
    pub records: u64,
    pub bytes: u64,
}

impl Checkpoint {
    /// The part of the checkpoint that the ring needs when it opens.
    pub fn on_record(&self) -> OnRecord {
        let low = self.ring_low;
        let known = Lsn::new(self.through);
        let freed = Lsn::new(self.freed);
        OnRecord { low, known, proof: self.proof, freed, ..OnRecord::default() }
    }

    fn encode(&self) -> Vec<u8> {
        let mut content = Vec::new();
        content.put_u64_le(self.counter);
        content.put_u8(StoreKind::encode(self.kind));
        content.put_u64_le(self.through);
        content.put_u64_le(self.ring_low);
        content.put_u64_le(self.freed);
        content.put_u16_le(self.next_stream);
        content.put_u64_le(self.next_pack);
        content.put_u32_le(self.streams.len() as u32);
        for stream in &self.streams {
            content.put_u16_le(stream.id);
            put_text(&mut content, &stream.name);
            content.put_u64_le(stream.position);
            content.put_u64_le(stream.uncertain);
            content.put_u64_le(stream.lost);
            content.put_u8(stream.snapshots.len() as u8);
            for snapshot in &stream.snapshots {
                content.put_u64_le(snapshot.position);
                content.put_u8(u8::from(snapshot.name.is_file()));
                put_text(&mut content, snapshot.name.as_str());
            }
        }
        content.put_u32_le(self.packs.len() as u32);
        for pack in &self.packs {
            [pack.id, pack.first, pack.last, pack.records, pack.bytes].into_iter().for_each(|n| content.put_u64_le(n));
        }
        content.put_u32_le(self.windows.len() as u32);
        for &(window, generation) in &self.windows {
            content.put_u64_le(window);
            content.put_u64_le(generation);
        }
        content.put_u64_le(self.proof.epoch);
        content.put_u64_le(self.proof.through.get());
        content.put_u32_le(self.cancelled.len() as u32);
        self.cancelled.iter().for_each(|lsn| content.put_u64_le(*lsn));
        let mut out = MAGIC.to_vec();
        out.put_u64_le(content.len() as u64);
        out.extend(content);
        seal(out)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut head = Fields::of(bytes.get(..16)?);
        if head.array()? != MAGIC {
            return None;
        }
        // A longer, earlier checkpoint may have left bytes after this one.
        let sealed = bytes.get(..usize::try_from(head.u64()?).ok()?.checked_add(16 + 4)?)?;
        let mut fields = Fields::of(&unseal(sealed)?[16..]);
        let mut decoded = Checkpoint {
            counter: fields.u64()?,
            kind: StoreKind::decode(fields.u8()?)?,
            through: fields.u64()?,
            ring_low: fields.u64()?,
            freed: fields.u64()?,
            next_stream: fields.u16()?,
            next_pack: fields.u64()?,
            ..Checkpoint::default()
        };
        for _ in 0..fields.u32()? {
            let id = fields.u16()?;
            let name = fields.text()?;
            let position = fields.u64()?;
            let uncertain = fields.u64()?;
            let lost = fields.u64()?;
            let snapshots = (0..fields.u8()?).map(|_| SnapshotRow::take(&mut fields)).collect::<Option<_>>()?;
            decoded.streams.push(StreamRow { id, name, position, uncertain, lost, snapshots });
        }
        for _ in 0..fields.u32()? {
            let id = fields.u64()?;
            let first = fields.u64()?;
            let last = fields.u64()?;
            decoded.packs.push(PackRow { id, first, last, records: fields.u64()?, bytes: fields.u64()? });
        }
        for _ in 0..fields.u32()? {
            decoded.windows.push((fields.u64()?, fields.u64()?));
        }
        decoded.proof = Proof { epoch: fields.u64()?, through: Lsn::new(fields.u64()?) };
        for _ in 0..fields.u32()? {
            decoded.cancelled.push(fields.u64()?);
        }
        fields.end()?;
        Some(decoded)
    }
}

impl SnapshotRow {
    fn take(fields: &mut Fields<'_>) -> Option<Self> {
        let position = fields.u64()?;
        let is_file = fields.u8()?;
        let name = fields.text::<String>()?;
        let name = match is_file {
            0 => SnapshotName::cursor(&name)?,
            1 => SnapshotName::new(&name)?,
            _ => return None,
        };
        Some(SnapshotRow { position, name })
    }
}

const MAGIC: [u8; 8] = *b"PHCHECK\x02";

/// Result of reading both checkpoint files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Valid(Checkpoint),
    /// No checkpoint was ever made.
    Nothing,
    /// One or both exist, and none is readable.
    Damaged,
}

/// One of the two files exists and is unusable, while the other is intact.
#[derive(Debug)]
pub(crate) struct SpoiledCopy {
    slot: usize,
    /// The read error; `None` if its bytes are damaged, as after a power cut.
    error: Option<io::Error>,
}

impl SpoiledCopy {
    /// True if the disk failed, which no power cut explains.
    pub fn is_unreadable(&self) -> bool {
        self.error.is_some()
    }

    pub fn told(&self) -> Damage {
        let what = match &self.error {
            Some(error) => format!("it cannot be read ({error}); the other checkpoint file counts"),
            None => "it is damaged; the other checkpoint file counts".to_owned(),
        };
        Damage { lsn: None, place: name_of(self.slot), what }
    }
}

/// The two files.
#[derive(Debug)]
pub(crate) struct CheckpointFiles {
    dir: PathBuf,
    /// The file with the last good checkpoint.
    good: usize,
    /// For each file, true if it exists and may be rewritten in place.
    is_sound: [bool; 2],
}

impl CheckpointFiles {
    /// Reads both files, and reports a damaged one, which is harmless while the other is intact.
    ///
    /// # Errors
    /// A read error, if neither is intact and the disk has not failed.
    pub fn open(dir: &Path) -> io::Result<(Self, Found, Option<SpoiledCopy>)> {
        let mut read = [const { None }; 2];
        let mut errors = [const { None }; 2];
        let mut is_there = [false; 2];
        for slot in 0..2 {
            match std::fs::read(path_of(dir, slot)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                bytes => {
                    is_there[slot] = true;
                    match bytes {
                        Ok(bytes) => read[slot] = Checkpoint::decode(&bytes),
                        Err(error) => errors[slot] = Some(error),
                    }
                }
            }
        }
        let is_sound = [0, 1].map(|slot| read[slot].is_some());
        let good = usize::from(read[1].as_ref().map(|it| it.counter) > read[0].as_ref().map(|it| it.counter));
        let spoiled = (0..2).find(|slot| is_there[*slot] && !is_sound[*slot]);
        let found = match read[good].take() {
            Some(checkpoint) => Found::Valid(checkpoint),
            None if is_there == [false; 2] => Found::Nothing,
            None => {
                match errors.iter_mut().find_map(|error| error.take_if(|error| !posthaste_fsops::is_of_disk(error))) {
                    Some(error) => return Err(error),
                    None => Found::Damaged,
                }
            }
        };
        let spoiled = spoiled.map(|slot| SpoiledCopy { slot, error: errors[slot].take() });
        Ok((CheckpointFiles { dir: dir.to_owned(), good, is_sound }, found, spoiled))
    }

    /// Makes the loaded checkpoint durable, in both files. Its writer may have been killed before the sync, or the sync
    /// may have failed: then it is intact only in the page cache. Rewriting the same bytes in place takes no space. The
    /// other file may need some: on a full disk it is left to the next checkpoint.
    pub fn make_durable(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        let bytes = checkpoint.encode();
        self.write_in_place(self.good, &bytes)?;
        files::sync_dir(&self.dir)?;
        match self.write_slot(1 - self.good, &bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            written => written,
        }
    }

    fn write_in_place(&self, slot: usize, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = File::from(posthaste_fsops::open(path_of(&self.dir, slot), flags, files::OWNER)?);
        posthaste_fsops::write_all_parts(&file, &mut [IoSlice::new(bytes)], Some(0))?;
        Ok(posthaste_fsops::fsync(&file)?)
    }

    /// Writes it to both files, one after the other: at any moment one of them is intact, and later damage to either is
    /// harmless. On success both are durable. Only then may files be removed or reused that only the previous
    /// checkpoint needs.
    pub fn write(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        let bytes = checkpoint.encode();
        for slot in [1 - self.good, self.good] {
            self.write_slot(slot, &bytes)?;
            self.good = slot;
        }
        Ok(())
    }

    fn write_slot(&mut self, slot: usize, bytes: &[u8]) -> io::Result<()> {
        let in_place = std::mem::replace(&mut self.is_sound[slot], false);
        if in_place {
            self.write_in_place(slot, bytes)?;
        } else {
            // With room to grow: a longer checkpoint must fit on a full disk, too.
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(FILE_STEP), 0);
            posthaste_fsops::replace_file(&path_of(&self.dir, slot), files::OWNER, &padded)?;
        }
        self.is_sound[slot] = true;
        Ok(())
    }
}

/// Length of new files is a multiple of this many bytes.
const FILE_STEP: usize = 64 << 10;

fn name_of(slot: usize) -> String {
    format!("checkpoint.{slot}")
}

fn path_of(dir: &Path, slot: usize) -> PathBuf {
    dir.join(name_of(slot))
}

#[cfg(test)]
mod tests {
    use posthaste_fsops::{Choice, Cut, Faults, Machine};
    use rustix::io::Errno;

    use super::*;

    fn sample(counter: u64) -> Checkpoint {
        let snapshot = |id: u16, counter: u64, before: u64| SnapshotRow {
            position: counter * 10 - before,
            name: match id % 2 {
                0 => SnapshotName::new(&format!("s{id}.{counter}.{before}")).unwrap(),
                _ => SnapshotName::cursor(&format!("{counter}-{before}")).unwrap(),
            },
        };
        let stream = |id: u16| StreamRow {
            id,
            name: format!("local:{id}"),
            position: counter * 10,
            uncertain: counter % 3,
            lost: counter % 5,
            snapshots: (0..u64::from(id) % 3).map(|before| snapshot(id, counter, before)).collect(),
        };
        Checkpoint {
            counter,
            kind: [None, Some(StoreKind::Ring), Some(StoreKind::Rocksdb)][counter as usize % 3],
            freed: counter * 9,
            through: counter * 11,
            ring_low: counter / 2,
            next_stream: 4,
            next_pack: 9,
            // Some are longer than their successors.
            streams: (1..1 + counter as u16 % 4).map(stream).collect(),
            packs: vec![PackRow { id: 8, first: 1, last: counter, records: 3, bytes: 4096 }],
            windows: vec![(0, counter), (7, 1)],
            proof: Proof { epoch: 3, through: Lsn::new(counter) },
            cancelled: (0..counter % 3).collect(),
        }
    }

    fn found(dir: &Path) -> Found {
        CheckpointFiles::open(dir).unwrap().1
    }

    #[test]
    fn the_newest_checkpoint_counts_and_one_damaged_file_is_free() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(found(dir.path()), Found::Nothing);
        let (mut files, ..) = CheckpointFiles::open(dir.path()).unwrap();
        for counter in 1..8 {
            files.write(&sample(counter)).unwrap();
            assert_eq!(found(dir.path()), Found::Valid(sample(counter)));
        }
        let encoded = sample(7).encode();
        for slot in 0..2 {
            let path = path_of(dir.path(), slot);
            let whole = std::fs::read(&path).unwrap();
            for at in 0..encoded.len() {
                let mut bytes = whole.clone();
                bytes[at] ^= 4;
                std::fs::write(&path, bytes).unwrap();
                let (_, found, spoiled) = CheckpointFiles::open(dir.path()).unwrap();
                assert_eq!((found, spoiled.map(|it| it.slot)), (Found::Valid(sample(7)), Some(slot)), "byte {at}");
            }
            std::fs::write(&path, &whole).unwrap();
        }
        // As a cut between the two files leaves them.
        files.write_slot(1 - files.good, &sample(8).encode()).unwrap();
        assert_eq!(found(dir.path()), Found::Valid(sample(8)));
        let (mut files, ..) = CheckpointFiles::open(dir.path()).unwrap();
        files.make_durable(&sample(8)).unwrap();
        std::fs::write(path_of(dir.path(), files.good), "x").unwrap();
        assert_eq!(found(dir.path()), Found::Valid(sample(8)), "both have it once it is opened");
        std::fs::write(path_of(dir.path(), 1 - files.good), "x").unwrap();
        assert_eq!(found(dir.path()), Found::Damaged);
    }

    #[test]
    fn a_file_that_the_disk_cannot_read_is_written_anew() {
        for slot in 0..2 {
            let dir = tempfile::tempdir().unwrap();
            let (mut files, ..) = CheckpointFiles::open(dir.path()).unwrap();
            files.write(&sample(5)).unwrap();
            let path = path_of(dir.path(), slot);
            std::fs::remove_file(&path).unwrap();
            // Reading it ends with EIO.
            std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
            let (mut files, found, spoiled) = CheckpointFiles::open(dir.path()).unwrap();
            let spoiled = spoiled.expect("it is told");
            assert_eq!((found, spoiled.slot, spoiled.is_unreadable()), (Found::Valid(sample(5)), slot, true));
            files.make_durable(&sample(5)).unwrap();
            let (_, found, spoiled) = CheckpointFiles::open(dir.path()).unwrap();
            assert!(found == Found::Valid(sample(5)) && spoiled.is_none() && path.is_file());
            std::fs::remove_file(path_of(dir.path(), 1 - slot)).unwrap();
            assert_eq!(self::found(dir.path()), Found::Valid(sample(5)));
        }
        let dir = tempfile::tempdir().unwrap();
        (0..2).for_each(|slot| std::os::unix::fs::symlink("/proc/self/mem", path_of(dir.path(), slot)).unwrap());
        assert_eq!(found(dir.path()), Found::Damaged, "so a rebuild may begin");
    }

    #[test]
    fn a_cut_anywhere_leaves_the_last_one_or_the_next() {
        let machine = Machine::new().unwrap();
        let (mut files, ..) = CheckpointFiles::open(machine.path()).unwrap();
        for counter in 1..6 {
            files.write(&sample(counter)).unwrap();
            machine.acknowledge(counter);
        }
        let recording = machine.recording();
        for position in 0..=recording.events.len() {
            let durable = recording.acknowledged_before(position).max().unwrap_or(0);
            for seed in 0..30 {
                let tree = recording.cut(Cut { position, choice: Choice::Seed(seed) });
                let left = Machine::boot(&tree, true, false).unwrap();
                let counter = match found(left.path()) {
                    Found::Valid(checkpoint) => checkpoint.counter,
                    Found::Nothing => 0,
                    Found::Damaged => panic!("both damaged after {position}:s{seed}"),
                };
                assert!(counter == durable || counter == durable + 1, "{counter}, {durable} at {position}:s{seed}");
            }
        }
    }

    #[test]
    fn a_failed_checkpoint_leaves_the_other_file_and_the_next_works() {
        for nth in 1..9 {
            for kind in 0..2 {
                let machine = Machine::new().unwrap();
                let (mut files, ..) = CheckpointFiles::open(machine.path()).unwrap();
                (1..4).for_each(|counter| files.write(&sample(counter)).unwrap());
                let (syncs, changes) = machine.counts();
                machine.set_faults(match kind {
                    0 => Faults { fail_syncs: vec![syncs + nth], ..Faults::default() },
                    _ => Faults {
                        fail_changes: Some((changes + nth..changes + nth + 1, Errno::NOSPC)),
                        ..Faults::default()
                    },
                });
                let mut last = 3;
                for counter in 4..9 {
                    if files.write(&sample(counter)).is_ok() {
                        last = counter;
                    }
                    let recording = machine.recording();
                    for seed in 0..10 {
                        let cut = Cut { position: recording.events.len(), choice: Choice::Seed(seed) };
                        let left = Machine::boot(&recording.cut(cut), true, false).unwrap();
                        let Found::Valid(checkpoint) = found(left.path()) else { panic!("none left at {counter}") };
                        assert!(checkpoint.counter >= last, "{} at {counter}, sync {nth}", checkpoint.counter);
                    }
                }
                assert_eq!(last, 8);
            }
        }
    }
}
