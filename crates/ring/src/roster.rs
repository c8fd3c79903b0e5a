//! The roster: the list of required segments. Each is entered before its first record is written. So the loss of a
//! segment is detected even if no other segment refers to it.
//!
//! One file of two blocks, which begin with equal content; docs/formats.md has the byte table.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use posthaste_fsops::ReplaceError;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::file::OWNER;
use crate::layout::{BLOCK, u32_at, u64_at};
use crate::storage::MakeError;

/// The content of the roster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Entered {
    /// Increases with each write: the copy with the higher value counts.
    pub turn: u64,
    /// The opening that wrote it. Segments that it prepared, without records, have the same.
    pub epoch: u64,
    /// Number after the highest existing segment.
    pub high: u64,
    /// Missing segments that were given up, in order.
    pub given_up: Vec<RangeInclusive<u64>>,
}

impl Entered {
    /// The content of the file at `path`; `None` if it is missing or unreadable.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(bytes.chunks(BLOCK).filter_map(Self::decode).max_by_key(|entered| entered.turn)),
            Err(error) if error.kind() == io::ErrorKind::NotFound || posthaste_fsops::is_of_disk(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn is_given_up(&self, number: u64) -> bool {
        self.given_up.iter().any(|range| range.contains(&number))
    }

    /// Gives up more segments, in order and beyond the earlier ones; those below `low` are forgotten.
    pub fn give_up(&mut self, numbers: &[u64], low: u64) {
        let before = std::mem::take(&mut self.given_up).into_iter().flatten();
        let mut all: Vec<u64> = before.chain(numbers.iter().copied()).filter(|number| *number >= low).collect();
        all.sort_unstable();
        for number in all {
            match self.given_up.last_mut().filter(|last| *last.end() + 1 >= number) {
                Some(last) => *last = *last.start()..=number,
                None => self.given_up.push(number..=number),
            }
        }
    }

    /// One copy.
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        [self.turn, self.epoch, self.high].into_iter().for_each(|field| out.extend(field.to_le_bytes()));
        out.extend((self.given_up.len() as u32).to_le_bytes());
        for range in &self.given_up {
            out.extend([range.start().to_le_bytes(), range.end().to_le_bytes()].concat());
        }
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        if out.len() > BLOCK {
            return Err(io::Error::other("segments are missing in too many places"));
        }
        out.resize(BLOCK, 0);
        Ok(out)
    }

    fn decode(block: &[u8]) -> Option<Self> {
        let count = u32_at(block.get(..FIRST_RANGE)?, 32) as usize;
        let content = block.get(..FIRST_RANGE + count.checked_mul(RANGE)?)?;
        let crc = crc32c::crc32c(content).to_le_bytes();
        if content[..8] != MAGIC || block.get(content.len()..content.len() + crc.len())? != crc {
            return None;
        }
        let ranges = content[FIRST_RANGE..].chunks_exact(RANGE);
        let given_up = ranges.map(|range| u64_at(range, 0)..=u64_at(range, 8)).collect();
        Some(Entered { turn: u64_at(content, 8), epoch: u64_at(content, 16), high: u64_at(content, 24), given_up })
    }
}

const MAGIC: [u8; 8] = *b"PHROSTR\x01";
const FIRST_RANGE: usize = 36;
const RANGE: usize = 16;
/// A power cut leaves a sector with its old or its new content.
const SECTOR: usize = 512;

/// The file, and its last written content.
pub(crate) struct Roster {
    path: PathBuf,
    /// Opened or created by the first write.
    file: Option<File>,
    pub entered: Entered,
    /// A write failed, so the roster's content is unknown: no more segments are prepared.
    pub has_failed: bool,
}

impl Roster {
    pub fn new(path: PathBuf, entered: Entered) -> Self {
        Roster { path, file: None, entered, has_failed: false }
    }

    /// Writes `entered` with the next turn. Takes no space once the file exists, except on copy-on-write file systems;
    /// a failure for lack of room can be retried.
    ///
    /// # Errors
    /// [`MakeError::Sync`]: the file may have either content; after other errors the old one.
    pub fn write(&mut self, entered: Entered) -> Result<(), MakeError> {
        let entered = Entered { turn: self.entered.turn + 1, ..entered };
        let written = self.write_copies(&entered.encode()?);
        if let Err(error) = written {
            self.has_failed |= matches!(error, MakeError::Sync(_)) && !error.is_no_room();
            // The file may already contain this turn.
            self.entered.turn = entered.turn;
            return Err(error);
        }
        self.entered = entered;
        Ok(())
    }

    fn write_copies(&mut self, copy: &[u8]) -> Result<(), MakeError> {
        if self.file.is_none() {
            self.file = self.open()?;
        }
        match &self.file {
            Some(file) => {
                let write = |parts: &mut [IoSlice<'_>], at: usize| {
                    posthaste_fsops::write_all_parts(file, parts, Some(at as u64)).map_err(MakeError::Sync)?;
                    sync(file)
                };
                if copy[SECTOR..].iter().all(|byte| *byte == 0) {
                    return write(&mut [IoSlice::new(copy), IoSlice::new(copy)], 0);
                }
                // One copy after the other: a power cut may leave one of them half written, but the other is intact.
                write(&mut [IoSlice::new(copy)], 0)?;
                write(&mut [IoSlice::new(copy)], BLOCK)
            }
            None => {
                posthaste_fsops::replace_file(&self.path, OWNER, &[copy, copy].concat()).map_err(|error| match error {
                    ReplaceError::Sync(error) => MakeError::Sync(error),
                    ReplaceError::Io(error) => MakeError::Other(error),
                })
            }
        }
    }

    /// The file, if it exists with the right length.
    fn open(&self) -> io::Result<Option<File>> {
        match posthaste_fsops::open(&self.path, OFlags::WRONLY | OFlags::CLOEXEC, OWNER).map(File::from) {
            Err(Errno::NOENT) => Ok(None),
            file => Ok(Some(file?).filter(|file| file.metadata().is_ok_and(|it| it.len() >= 2 * BLOCK as u64))),
        }
    }

    /// A segment has a durable header and may be used.
    pub fn enter(&mut self, number: u64, epoch: u64) -> Result<(), MakeError> {
        self.write(Entered { epoch, high: number + 1, ..self.entered.clone() })
    }
}

fn sync(file: &File) -> Result<(), MakeError> {
    posthaste_fsops::fsync(file).map_err(|error| MakeError::Sync(error.into()))
}

#[cfg(test)]
mod tests {
    use posthaste_fsops::{Choice, Cut, Machine};

    use super::*;

    #[test]
    fn either_copy_of_the_roster_tells_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("roster");
        assert_eq!(Entered::read(&path).unwrap(), None);
        let mut roster = Roster::new(path.clone(), Entered::default());
        let mut entered = Entered { epoch: 3, high: 9, ..Entered::default() };
        entered.give_up(&[7, 4, 5], 5);
        assert_eq!(entered.given_up, [5..=5, 7..=7]);
        entered.give_up(&[6], 5);
        assert_eq!(entered.given_up, [5..=7]);
        roster.write(entered.clone()).unwrap();
        let expected = Entered { turn: 1, ..entered };
        let whole = std::fs::read(&path).unwrap();
        for at in (0..80).chain(BLOCK..BLOCK + 80) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(Entered::read(&path).unwrap().as_ref(), Some(&expected), "byte {at}");
        }
        for len in [0, 5, 51] {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(Entered::read(&path).unwrap(), None, "{len} bytes");
        }
    }

    #[test]
    fn a_cut_anywhere_leaves_the_last_roster_or_the_next() {
        cut_anywhere(Entered::default());
        // Of a log of which each second segment was given up.
        let mut many = Entered::default();
        many.give_up(&(1000..1400).step_by(2).collect::<Vec<_>>(), 0);
        assert!(many.encode().unwrap()[SECTOR..].iter().any(|byte| *byte != 0));
        cut_anywhere(many);
        let mut more = Entered::default();
        more.give_up(&(0..1000).step_by(2).collect::<Vec<_>>(), 0);
        assert!(more.encode().is_err());
    }

    fn cut_anywhere(entered: Entered) {
        let machine = Machine::new().unwrap();
        let mut roster = Roster::new(machine.path().join("roster"), entered);
        for number in 1..6 {
            assert!(roster.enter(number, 1).is_ok());
            machine.acknowledge(number);
        }
        let recording = machine.recording();
        for (position, seed) in (0..=recording.events.len()).flat_map(|at| (0..20).map(move |seed| (at, seed))) {
            let durable = recording.acknowledged_before(position).max().unwrap_or(0);
            let left = recording.cut(Cut { position, choice: Choice::Seed(seed) });
            let left = Machine::boot(&left, true, false).unwrap();
            let found = Entered::read(&left.path().join("roster")).unwrap().map_or(0, |entered| entered.high - 1);
            assert!(found == durable || found == durable + 1, "{found} after {durable} at {position}, seed {seed}");
        }
    }
}
