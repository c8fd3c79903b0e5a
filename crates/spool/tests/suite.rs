//! The promises of every spool, kept by that of the ring.

use std::time::Duration;

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{Config, FileSpool, Spool};
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

#[test]
fn a_default_configuration_is_one_that_a_checkpoint_can_follow() {
    let config = Config::default();
    let ring = config.ring.segment_bytes * config.ring.max_segments as u64;
    assert!(config.checkpoint_bytes <= ring / 4 && config.checkpoint_every >= Duration::from_secs(1));
}
