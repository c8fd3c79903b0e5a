//! A failed sync or a full disk, at each call of the keeper and the streams.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use posthaste_fsops::{Choice, Cut, Faults, Machine};
use posthaste_spool::{
    AppendError, Batch, Body, Config, Entry, Events, FileSpool, Lsn, Released, Replayed, SnapshotName, Spool,
    SpoolEvent, StreamId,
};
use posthaste_turns::in_turns;
use rustix::io::Errno;

struct Fixture {
    machine: Machine,
    spool: FileSpool,
    stream: StreamId,
    told: Receiver<SpoolEvent>,
    lsns: Vec<Lsn>,
}

fn config() -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 6, ..Default::default() };
    Config { ring, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() }
}

fn append(spool: &FileSpool, stream: StreamId, body: Body) -> Result<Lsn, AppendError> {
    let (tell, told) = channel();
    let entry = Entry { stream, needs_body: true, payload: "x".into() };
    spool.append(Batch { entries: vec![entry], body }, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap()
}

impl Fixture {
    /// Two segments, of the older of which a part is needed.
    fn new() -> Self {
        let machine = Machine::new().unwrap();
        let (tell, told) = channel();
        let tell = Arc::new(Mutex::new(tell));
        let events = Events::new(move |event| drop(tell.lock().unwrap().send(event)));
        let (spool, _) = FileSpool::open(&machine.path().join("spool"), Config { events, ..config() }).unwrap();
        let stream = spool.stream("a").unwrap();
        let body = |n: u8| Body::inline(vec![Bytes::from(vec![n; 9000])]);
        let lsns: Vec<Lsn> = (0..10).map(|n| append(&spool, stream, body(n)).unwrap()).collect();
        // With a live file, which the next one replaces.
        spool.checkpoint().unwrap();
        spool.advance(stream, lsns[3], None, Released { below: lsns[2], also: Vec::new() });
        // The ring makes segments ahead: not while faults are counted. This clock goes on when all others have nothing to do.
        std::thread::sleep(std::time::Duration::from_secs(60));
        Fixture { machine, spool, stream, told, lsns }
    }

    /// Everything acknowledged is there after the next start, and after a power cut after that.
    fn check(self) {
        self.machine.set_faults(Faults::default());
        self.spool.abandon();
        check_opened(&self.machine, self.stream, &self.lsns);
        let recording = self.machine.recording();
        for seed in 0..6 {
            let tree = recording.cut(Cut { position: recording.events.len(), choice: Choice::Seed(seed) });
            check_opened(&Machine::boot(&tree, true, false).unwrap(), self.stream, &self.lsns);
        }
    }
}

fn check_opened(machine: &Machine, stream: StreamId, lsns: &[Lsn]) {
    let (spool, report) = FileSpool::open(&machine.path().join("spool"), config()).unwrap();
    assert_eq!(report.damage, []);
    let mut shown = Vec::new();
    spool
        .replay(stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, .. } => shown.push(lsn),
            other => panic!("{other:?}"),
        })
        .unwrap();
    // Before it what no checkpoint says that it was passed, after it what was tried afterwards.
    assert!(shown.windows(6).any(|some| some == &lsns[4..]), "{shown:?}");
    for (n, lsn) in lsns.iter().enumerate().skip(2) {
        assert_eq!(spool.read(*lsn, 0..9000).unwrap(), [n as u8; 9000][..]);
    }
    spool.abandon();
}

/// Says whether it succeeded.
type Act = fn(&Fixture) -> bool;

/// Work of a spool outside its ring.
fn acts() -> [(&'static str, Act); 4] {
    [
        ("checkpoint", |it| it.spool.checkpoint().is_ok()),
        ("pack", |it| it.spool.pack_oldest(1).is_ok()),
        ("snapshot", |it| {
            it.spool.write_snapshot(&SnapshotName::new("s").unwrap(), &mut |out| out.write_all(b"all")).is_ok()
        }),
        ("upload", |it| {
            let Ok(mut upload) = it.spool.upload(0) else { return false };
            upload.write(&[1; 5000]).is_ok() && upload.finish().is_ok()
        }),
    ]
}

#[test]
fn eio_of_any_sync_closes_the_spool_to_writing() {
    in_turns(1, each_sync_fails);
}

fn each_sync_fails() {
    for (name, act) in acts() {
        let mut nth = 1;
        loop {
            let it = Fixture::new();
            let (syncs, _) = it.machine.counts();
            it.machine.set_faults(Faults { fail_syncs: vec![syncs + nth], ..Faults::default() });
            if act(&it) {
                break;
            }
            let refused = append(&it.spool, it.stream, Body::None);
            assert!(matches!(refused, Err(AppendError::Poisoned(_))), "{name}, sync {nth}: {refused:?}");
            assert!(it.spool.checkpoint().is_err() && it.spool.pack_oldest(1).is_err());
            let told: Vec<_> = it.told.try_iter().collect();
            assert!(told.iter().any(|event| matches!(event, SpoolEvent::Poisoned { .. })), "{told:?}");
            it.check();
            nth += 1;
        }
        assert!(nth > 2, "{name} has syncs");
    }
}

#[test]
fn a_segment_with_a_body_that_cannot_be_read_is_adopted_whole() {
    let machine = Machine::new().unwrap();
    let (tell, told) = channel();
    let tell = Arc::new(Mutex::new(tell));
    let events = Events::new(move |event| drop(tell.lock().unwrap().send(event)));
    let (spool, _) = FileSpool::open(&machine.path().join("spool"), Config { events, ..config() }).unwrap();
    let stream = spool.stream("a").unwrap();
    let bad = b"in a bad sector";
    // In a block with no other record.
    let text = |n: usize| if n == 3 { [&[3; 4500][..], bad, &[3; 4485]].concat() } else { vec![n as u8; 9000] };
    let lsns: Vec<Lsn> = (0..10).map(|n| append(&spool, stream, Body::inline(vec![text(n).into()])).unwrap()).collect();
    // Two of the four of the first segment: they would be copied.
    spool.advance(stream, lsns[1], None, Released { below: lsns[2], also: Vec::new() });
    machine.set_faults(Faults { bad_sectors: Some(bad.to_vec()), ..Faults::default() });
    assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    spool.checkpoint().unwrap();
    let damage: Vec<_> =
        told.try_iter().filter_map(|event| if let SpoolEvent::Damage(it) = event { Some(it) } else { None }).collect();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!((damage[0].lsn, &*damage[0].what), (Some(lsns[3]), "it cannot be read from the disk"));
    let packs: Vec<_> =
        std::fs::read_dir(machine.path().join("spool/packs")).unwrap().map(|pack| pack.unwrap()).collect();
    let pack = packs.iter().find(|pack| pack.file_name().to_string_lossy().ends_with(".pack")).unwrap();
    assert_eq!((packs.len(), pack.metadata().unwrap().len()), (2, 64 << 10));
    // And it is not merged.
    assert_eq!(spool.clean_packs().unwrap(), 0);
    machine.set_faults(Faults::default());
    for (n, lsn) in lsns.iter().enumerate().skip(2) {
        assert_eq!(spool.read(*lsn, 0..9000).unwrap(), text(n)[..], "{n}");
    }
    spool.abandon();
}

#[test]
fn a_full_disk_fails_what_is_done_and_nothing_else() {
    in_turns(1, each_change_finds_the_disk_full);
}

fn each_change_finds_the_disk_full() {
    for (name, act) in acts() {
        let mut nth = 1;
        loop {
            let it = Fixture::new();
            let (_, changes) = it.machine.counts();
            let first = changes + nth;
            it.machine.set_faults(Faults { fail_changes: Some((first..first + 2, Errno::NOSPC)), ..Faults::default() });
            let done = act(&it);
            let (_, after) = it.machine.counts();
            it.machine.set_faults(Faults::default());
            if done && after < first {
                break;
            }
            let told: Vec<_> = it.told.try_iter().collect();
            if !done && name == "checkpoint" {
                assert!(told.iter().any(|event| matches!(event, SpoolEvent::CheckpointFailed { .. })), "{told:?}");
            }
            append(&it.spool, it.stream, Body::None).unwrap();
            assert!(act(&it), "{name} again, change {nth}");
            it.spool.checkpoint().unwrap();
            it.check();
            nth += 1;
        }
        assert!(nth > 2, "{name} has changes");
    }
}

#[test]
fn a_checkpoint_that_hangs_is_seen_while_it_does() {
    let machine = Machine::new().unwrap();
    let (spool, _) = FileSpool::open(&machine.path().join("spool"), config()).unwrap();
    let stream = spool.stream("a").unwrap();
    append(&spool, stream, Body::None).unwrap();
    assert_eq!(spool.stats().checkpoint_running, None);
    machine.set_faults(Faults { hang_syncs: Some(Vec::new()), ..Faults::default() });
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| spool.checkpoint());
        while spool.stats().checkpoint_running.is_none_or(|running| running.is_zero()) {
            std::thread::yield_now();
        }
        machine.set_faults(Faults::default());
        checkpoint.join().unwrap().unwrap();
    });
    assert_eq!(spool.stats().checkpoint_running, None);
}
