//! The promises of every spool, kept by each kind.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{Config, FileSpool, Spool, StoreKind};
use posthaste_spool_suite::{SpoolKind, spool_suite};

spool_suite!(OnMachine);

/// A spool in a directory of a machine whose power can be cut.
struct OnMachine(Machine);

impl SpoolKind for OnMachine {
    type Spool = FileSpool;

    fn new() -> Self {
        OnMachine(Machine::new().unwrap())
    }

    fn open(&mut self) -> FileSpool {
        let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
        let config = Config { ring, keeper: false, pack_bytes: 200 << 10, ..Config::default() };
        let (spool, report) = FileSpool::open(self.0.path(), config).unwrap();
        assert_eq!(report.damage, []);
        spool
    }

    fn kill(&mut self, spool: FileSpool) {
        spool.abandon();
    }

    fn cut_power(&mut self, spool: FileSpool, seed: u64) {
        spool.abandon();
        let recording = self.0.recording();
        let cut = Cut { position: recording.events.len(), choice: Choice::Seed(seed) };
        self.0 = Machine::boot(&recording.cut(cut), true, seed.is_multiple_of(2)).unwrap();
    }

    /// Packs so many segments, or with 0 cleans the packs.
    fn move_data(&self, spool: &FileSpool, way: usize) {
        match way {
            0 => drop(spool.clean_packs().unwrap()),
            segments => drop(spool.pack_oldest(segments).unwrap()),
        }
    }

    fn check_empty(&self, spool: &FileSpool) {
        let (stats, files) = (spool.stats(), spool.file_stats());
        assert_eq!((files.packs, stats.large_bodies, stats.space_used <= 1), (0, 0, true), "{stats:?} {files:?}");
        for dir in ["packs", "bodies", "live", "snapshots"] {
            let left: Vec<_> = std::fs::read_dir(self.0.path().join(dir)).unwrap().collect();
            assert!(left.is_empty(), "{dir}: {left:?}");
        }
    }
}

/// One with a file for each record.
struct FilesOnMachine(Machine);

mod on_files {
    use super::*;

    spool_suite!(FilesOnMachine);
}

impl SpoolKind for FilesOnMachine {
    type Spool = FileSpool;

    fn new() -> Self {
        FilesOnMachine(Machine::new().unwrap())
    }

    fn open(&mut self) -> FileSpool {
        let config = Config { kind: StoreKind::Files, keeper: false, ..Config::default() };
        let (spool, report) = FileSpool::open(self.0.path(), config).unwrap();
        assert_eq!(report.damage, []);
        spool
    }

    fn kill(&mut self, spool: FileSpool) {
        spool.abandon();
    }

    fn cut_power(&mut self, spool: FileSpool, seed: u64) {
        let mut cut = OnMachine(std::mem::replace(&mut self.0, Machine::new().unwrap()));
        cut.cut_power(spool, seed);
        self.0 = cut.0;
    }

    fn check_empty(&self, spool: &FileSpool) {
        let left = || {
            let dirs = ["files", "bodies", "live", "snapshots"].map(|dir| files_below(&self.0.path().join(dir)));
            dirs.into_iter().flatten().filter(|path| !path.ends_with("files/next")).collect::<Vec<_>>()
        };
        // What says that a batch was cancelled is a record, too, and is on its way.
        let end = Instant::now() + Duration::from_secs(60);
        while spool.checkpoint().is_err() || !left().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(left(), Vec::<PathBuf>::new());
    }
}

/// One in an LSM tree, whose files the machine does not see: its cuts are kills here, and real ones in `powercut`.
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
struct LsmInDir<const IS_ROCKSDB: bool>(tempfile::TempDir);

#[cfg(feature = "fjall")]
mod on_fjall {
    use super::*;

    spool_suite!(LsmInDir<false>);
}

#[cfg(feature = "rocksdb")]
mod on_rocksdb {
    use super::*;

    spool_suite!(LsmInDir<true>);
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
impl<const IS_ROCKSDB: bool> SpoolKind for LsmInDir<IS_ROCKSDB> {
    type Spool = FileSpool;

    fn new() -> Self {
        LsmInDir(tempfile::tempdir().unwrap())
    }

    fn open(&mut self) -> FileSpool {
        let kind = if IS_ROCKSDB { StoreKind::Rocksdb } else { StoreKind::Fjall };
        let (spool, report) =
            FileSpool::open(self.0.path(), Config { kind, keeper: false, ..Config::default() }).unwrap();
        assert_eq!(report.damage, []);
        spool
    }

    fn kill(&mut self, spool: FileSpool) {
        spool.abandon();
    }

    fn cut_power(&mut self, spool: FileSpool, _: u64) {
        spool.abandon();
    }

    /// tests/lsm.rs looks for records.
    fn check_empty(&self, _: &FileSpool) {
        let dirs = ["bodies", "live", "snapshots"].map(|dir| files_below(&self.0.path().join(dir)));
        assert_eq!(dirs.concat(), Vec::<PathBuf>::new());
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn a_default_configuration_is_one_that_a_checkpoint_can_follow() {
    let config = Config::default();
    let ring = config.ring.segment_bytes * config.ring.max_segments as u64;
    assert!(config.checkpoint_bytes <= ring / 4 && config.checkpoint_every >= Duration::from_secs(1));
}
