//! A ring on a small disk: it takes no more than the disk can spare, and gives back what it does not use.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_fsops::Machine;
use posthaste_spool::{AppendError, Batch, Body, Config, Entry, FileSpool, Lsn, Released, Spool, StreamId};

const SEGMENT: u64 = 64 << 10;
const FLOOR: u64 = 1 << 20;
/// For what would otherwise never happen.
const PATIENCE: Duration = Duration::from_secs(60);

struct Disk {
    machine: Machine,
    spool: FileSpool,
    stream: StreamId,
}

impl Disk {
    /// Of so many segments and the floor. The two files of checkpoints take two of them, and others of the spool a part of one.
    fn new(segments: u64) -> Self {
        Self::with(segments, true)
    }

    fn with(segments: u64, keeper: bool) -> Self {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("spool");
        let ring = posthaste_ring::Config { segment_bytes: SEGMENT, max_segments: 32, ..Default::default() };
        let far = Duration::from_secs(3600);
        let config = Config {
            ring,
            free_bytes_min: FLOOR,
            checkpoint_every: far,
            checkpoint_bytes: u64::MAX,
            scrub_bytes_per_sec: 0,
            keeper,
            ..Config::default()
        };
        machine.set_disk(machine.path(), FLOOR + segments * SEGMENT);
        let (spool, _) = FileSpool::open(&dir, config).unwrap();
        let stream = spool.stream("a").unwrap();
        Disk { machine, spool, stream }
    }

    /// Of another size.
    fn resize(&self, segments: u64) {
        self.machine.set_disk(self.machine.path(), FLOOR + segments * SEGMENT);
    }

    fn append(&self) -> Result<Lsn, AppendError> {
        let (tell, told) = channel();
        let entry = Entry { stream: self.stream, needs_body: true, payload: "x".into() };
        let batch = Batch { entries: vec![entry], body: Body::inline(vec![Bytes::from_static(&[7; 9000])]) };
        self.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().unwrap()
    }

    /// Appends until it is refused; the last of them.
    fn fill(&self) -> Lsn {
        let mut last = Lsn::ZERO;
        for _ in 0..10_000 {
            match self.append() {
                Ok(lsn) => last = lsn,
                Err(AppendError::Full(_)) => return last,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("it is never refused");
    }

    fn release(&self, through: Lsn) {
        self.spool.advance(
            self.stream,
            through,
            None,
            Released { below: Lsn::new(through.get() + 1), also: Vec::new() },
        );
    }

    fn segments(&self) -> usize {
        self.spool.file_stats().ring.segments
    }

    fn is_accepted_again(&self) {
        let begun = Instant::now();
        while self.append().is_err() {
            assert!(begun.elapsed() < PATIENCE, "it is refused for good");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn no_segment_is_made_below_the_floor_and_releases_make_room() {
    let disk = Disk::new(9);
    for _ in 0..5 {
        let last = disk.fill();
        assert!(disk.segments() <= 6, "{} segments", disk.segments());
        // No checkpoint is due: the keeper makes one because this is all that the disk has room for.
        disk.release(last);
        disk.is_accepted_again();
    }
}

#[test]
fn below_the_floor_the_last_segment_is_for_notes() {
    let disk = Disk::new(0);
    assert_eq!(disk.fill(), Lsn::ZERO);
    let (tell, told) = channel();
    let note = Entry { stream: disk.stream, needs_body: false, payload: "done".into() };
    disk.spool
        .append(Batch { entries: vec![note], body: Body::None }, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap();
    // The one in service, and the next for notes.
    assert!(disk.segments() <= 2, "{} segments", disk.segments());
    disk.resize(5);
    disk.is_accepted_again();
}

#[test]
fn a_ring_that_was_full_returns_unused_disk_space() {
    let disk = Disk::new(100);
    let mut last = Lsn::ZERO;
    while disk.segments() < 12 {
        last = disk.append().unwrap();
    }
    disk.release(last);
    disk.resize(6);
    let begun = Instant::now();
    while disk.segments() > 3 {
        assert!(begun.elapsed() < PATIENCE, "{} segments are kept", disk.segments());
        std::thread::sleep(Duration::from_millis(10));
    }
    disk.is_accepted_again();
}

#[test]
fn old_mail_on_a_small_disk_moves_to_packs_and_blocks_nobody() {
    let disk = Disk::new(9);
    let waits = disk.append().unwrap();
    for _ in 0..5 {
        let last = disk.fill();
        let also = (waits.get() + 1..=last.get()).map(Lsn::new).collect();
        disk.spool.advance(disk.stream, last, None, Released { below: Lsn::ZERO, also });
        disk.is_accepted_again();
    }
    assert!(disk.spool.file_stats().packs > 0);
    assert_eq!(disk.spool.read(waits, 0..10).unwrap(), Bytes::from_static(&[7; 10]));
}

#[test]
fn a_refused_large_body_can_be_appended_again_or_leaves_no_file() {
    let disk = Disk::with(60, false);
    let files = || std::fs::read_dir(disk.machine.path().join("spool/bodies")).unwrap().count();
    let uploaded = || {
        let mut upload = disk.spool.upload(20_000).unwrap();
        upload.write(&[3; 20_000]).unwrap();
        upload.finish().unwrap()
    };
    let append = |needs_body, body| {
        let (tell, told) = channel();
        let entry = Entry { stream: disk.stream, needs_body, payload: Bytes::from_static(&[1; 9000]) };
        disk.spool.append(Batch { entries: vec![entry], body }, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().unwrap()
    };
    let is_full = |outcome: Result<Lsn, AppendError>| matches!(outcome, Err(AppendError::Full(_)));
    let (kept, dropped, handed_over) = (uploaded(), uploaded(), uploaded());
    // The ring has no room for anything now.
    let entries = (0..10_000).find(|_| is_full(append(false, Body::None)));
    assert!(entries.is_some(), "it is never refused");
    for upload in [&kept, &dropped] {
        assert!(is_full(append(true, Body::file(upload.clone()))));
    }
    assert_eq!(files(), 3);
    drop(dropped);
    assert_eq!(files(), 2);
    // Nobody else has this one: a checkpoint removes it.
    assert!(is_full(append(true, Body::file(handed_over))));
    disk.release(disk.spool.stats().published);
    (0..2).for_each(|_| disk.spool.checkpoint().unwrap());
    assert_eq!(files(), 1);
    let lsn = append(true, Body::file(kept.clone())).unwrap();
    drop(kept);
    (0..3).for_each(|_| disk.spool.checkpoint().unwrap());
    assert_eq!((files(), disk.spool.stats().large_bodies), (1, 1));
    assert_eq!(disk.spool.read(lsn, 0..20_000).unwrap(), Bytes::from_static(&[3; 20_000]));
}
