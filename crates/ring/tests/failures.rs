//! A disk that fails, and what callers are told of it.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_fsops::recording::{FsEvent as Done, SyncScope};
use posthaste_fsops::{Faults, Machine};
use posthaste_ring::layout::FIRST_RECORD;
use posthaste_ring::{Config, Lsn, OnRecord, Ring, RingAppendError, RingEvent};
use posthaste_turns::{Random, in_turns};
use rustix::io::Errno;

/// For what would otherwise never happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(dir: &Path) -> (Ring, Receiver<RingEvent>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let events: posthaste_ring::RingEvents = Arc::new(move |event| drop(tell.lock().unwrap().send(event)));
    let config = Config { segment_bytes: 64 << 10, max_segments: 5, events, ..Config::default() };
    (Ring::open(dir, config, OnRecord::default()).expect("ring opens").0, told)
}

fn append(ring: &Ring) -> Result<Lsn, RingAppendError> {
    let (tell, told) = channel();
    ring.append(vec!["head".into()], vec!["body".into()], move |outcome| drop(tell.send(outcome)));
    told.recv_timeout(PATIENCE).expect("an answer")
}

#[test]
fn a_segment_that_cannot_be_made_is_not_always_a_full_disk() {
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE, Errno::IO] {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("ring");
        drop(open(&dir));
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("lock") {
                posthaste_fsops::unlink(path).unwrap();
            }
        }
        // Opening itself changes one thing: it makes the lock file if there is none.
        let from = machine.counts().1 + 2;
        machine.set_faults(Faults { fail_changes: Some((from..u64::MAX, errno)), ..Faults::default() });
        let (ring, events) = open(&dir);
        let refused = append(&ring).expect_err("there is no segment");
        match (errno, &refused) {
            (Errno::NOSPC | Errno::DQUOT, RingAppendError::Full(_)) => {}
            (Errno::MFILE | Errno::NFILE, RingAppendError::Local(error)) => {
                assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
                assert!(!refused.to_string().contains("space"), "{refused}");
            }
            (Errno::IO, RingAppendError::Poisoned(_)) => {}
            _ => panic!("{errno}: {refused:?}"),
        }
        let told = events.recv_timeout(PATIENCE).expect("an operator hears of it");
        assert_eq!(matches!(told, RingEvent::Poisoned(_)), errno == Errno::IO, "{told:?}");
        assert_eq!(matches!(told, RingEvent::SegmentFailed(_)), errno != Errno::IO, "{told:?}");
        machine.set_faults(Faults::default());
        assert_eq!(
            append(&ring).is_ok(),
            errno != Errno::IO,
            "the disk is well again, but nobody may believe one that failed"
        );
    }
}

#[test]
fn a_sync_that_failed_while_a_segment_was_made_ahead_poisons() {
    let machine = Machine::new().unwrap();
    let dir = machine.path().join("ring");
    drop(open(&dir));
    // Two of the directories; the third is that of the header of a segment that nobody waits for.
    let fail_syncs = vec![machine.counts().0 + 3];
    machine.set_faults(Faults { fail_syncs, ..Faults::default() });
    let (ring, events) = open(&dir);
    let told = events.recv_timeout(PATIENCE);
    assert!(matches!(told, Ok(RingEvent::Poisoned(_))), "{told:?}");
    assert!(matches!(append(&ring), Err(RingAppendError::Poisoned(_))));
    drop(ring);
    append(&open(&dir).0).expect("opened again");
}

#[test]
fn a_failed_write_or_sync_of_a_commit_is_final() {
    for in_sync in [false, true] {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("ring");
        let (ring, events) = open(&dir);
        let kept = append(&ring).unwrap();
        let refused = (0..1000).find_map(|_| {
            // Segments made ahead have changes and syncs of their own.
            let (syncs, changes) = machine.counts();
            machine.set_faults(if in_sync {
                Faults { fail_syncs: vec![syncs + 1], ..Faults::default() }
            } else {
                Faults { fail_changes: Some((changes + 1..changes + 3, Errno::IO)), ..Faults::default() }
            });
            append(&ring).err()
        });
        assert!(matches!(refused, Some(RingAppendError::Poisoned(_))), "{refused:?}");
        machine.set_faults(Faults::default());
        assert!(matches!(append(&ring), Err(RingAppendError::Poisoned(_))));
        assert!(matches!(events.recv_timeout(PATIENCE), Ok(RingEvent::Poisoned(_))));
        assert_eq!(ring.read_body(kept, 0..9).unwrap(), "body");
        drop(ring);
        let (ring, _) = open(&dir);
        assert_eq!(ring.read_body(kept, 0..9).unwrap(), "body");
        append(&ring).expect("opened again");
    }
}

#[test]
fn nothing_is_acknowledged_whose_sync_came_after_the_poison() {
    let (mut refused_in_time, mut acknowledged) = (0, 0);
    for seed in 0..60 {
        in_turns(seed, || {
            let machine = Arc::new(Machine::new().unwrap());
            let (ring, _events) = open(&machine.path().join("ring"));
            append(&ring).unwrap();
            let mut random = Random::new(seed);
            let poisons = {
                let (ring, machine, turns) = (ring.clone(), machine.clone(), random.below(40));
                std::thread::spawn(move || {
                    (0..turns).for_each(|_| std::thread::yield_now());
                    ring.poison("a sync of somebody else has failed".into());
                    machine.position()
                })
            };
            let mut answers = Vec::new();
            for _ in 0..6 {
                let outcome = append(&ring);
                answers.push((machine.position(), outcome.is_ok()));
            }
            let poisoned_at = poisons.join().unwrap();
            let events = machine.recording().events;
            for (position, is_ok) in answers {
                let is_commit =
                    |event: &Done| matches!(event, Done::Write { offset, .. } if *offset >= FIRST_RECORD as u64);
                let Some(write) = events[..position].iter().rposition(is_commit) else { continue };
                let Done::Write { node, .. } = events[write] else { unreachable!() };
                let is_sync = |event: &Done| *event == Done::Sync(SyncScope::Node(node));
                let Some(sync) = events[write..position].iter().position(is_sync).map(|nth| write + nth) else {
                    continue;
                };
                assert!(!is_ok || sync < poisoned_at, "seed {seed}: acknowledged in spite of the poison");
                acknowledged += usize::from(is_ok);
                refused_in_time += usize::from(!is_ok && write < poisoned_at && poisoned_at <= sync);
            }
        });
    }
    assert!(acknowledged > 20 && refused_in_time > 0, "{acknowledged} acknowledged, {refused_in_time} refused in time");
}
