//! A spool with one file for each record: failed syncs, full disks, missing and damaged files.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_fsops::{Choice, Cut, Faults, Machine};
use posthaste_spool::{
    AppendError, Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, FileSpool, Lsn, OpenError, OpenReport,
    ReadError, Released, Replayed, SetAside, Spool, SpoolAdmin, StoreKind, StreamId,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;

fn config(kind: StoreKind) -> Config {
    Config { kind, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() }
}

/// All that were built.
fn kinds() -> impl Iterator<Item = StoreKind> + Clone {
    [StoreKind::Ring, StoreKind::Files, StoreKind::Fjall, StoreKind::Rocksdb].into_iter().filter(|kind| kind.is_built())
}

fn open(dir: &Path) -> (FileSpool, OpenReport) {
    FileSpool::open(dir, config(StoreKind::Files)).unwrap()
}

fn append(spool: &FileSpool, stream: StreamId, body: &[u8]) -> Result<Lsn, AppendError> {
    let (tell, told) = channel();
    let entry = Entry { stream, needs_body: true, payload: "x".into() };
    let batch = Batch { entries: vec![entry], body: Body::inline(vec![Bytes::copy_from_slice(body)]) };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap()
}

fn replayed(spool: &FileSpool, stream: StreamId) -> Vec<Lsn> {
    let mut seen = Vec::new();
    let show = &mut |replayed: Replayed<'_>| match replayed {
        Replayed::Entry { lsn, .. } => seen.push(lsn),
        other => panic!("{other:?}"),
    };
    spool.replay(stream, show).unwrap();
    seen
}

fn file_of(dir: &Path, lsn: Lsn) -> PathBuf {
    let number = lsn.get();
    dir.join(format!("files/{:02x}/{:02x}/{number:016x}", number >> 24, number >> 12 & 0xfff))
}

#[test]
fn a_failed_sync_of_a_commit_closes_the_spool_and_loses_nothing() {
    let mut nth = 1;
    loop {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("spool");
        let (spool, _) = open(&dir);
        let stream = spool.stream("a").unwrap();
        let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, &[n; 5000]).unwrap()).collect();
        let (syncs, _) = machine.counts();
        machine.set_faults(Faults { fail_syncs: vec![syncs + nth], ..Faults::default() });
        let outcome = append(&spool, stream, b"x");
        machine.set_faults(Faults::default());
        if outcome.is_ok() {
            // Its bytes, and its name.
            assert_eq!(nth, 3);
            return;
        }
        assert!(matches!(outcome, Err(AppendError::Poisoned(_))), "{outcome:?}");
        assert!(matches!(append(&spool, stream, b"y"), Err(AppendError::Poisoned(_))), "it is not tried again");
        assert!(spool.checkpoint().is_err());
        spool.abandon();
        let recording = machine.recording();
        for seed in 0..20 {
            let cut = Cut { position: recording.events.len(), choice: Choice::Seed(seed) };
            let left = Machine::boot(&recording.cut(cut), true, false).unwrap();
            let (spool, report) = open(&left.path().join("spool"));
            assert_eq!((report.damage, &replayed(&spool, stream)[..3]), (vec![], &lsns[..]), "sync {nth}, seed {seed}");
            let next = append(&spool, stream, b"z").unwrap();
            assert!(next > Lsn::new(lsns[2].get() + 1), "the number of the one that failed is not used again");
        }
        nth += 1;
    }
}

#[test]
fn a_full_disk_refuses_and_later_mail_is_accepted() {
    let machine = Machine::new().unwrap();
    let (spool, _) = open(&machine.path().join("spool"));
    let stream = spool.stream("a").unwrap();
    let first = append(&spool, stream, b"first").unwrap();
    let mut refused = 0;
    // The file, its bytes, its name.
    for nth in 1..=5 {
        let (_, changes) = machine.counts();
        // The first half of a write succeeds.
        let fail_changes = Some((changes + nth..changes + nth + 2, Errno::NOSPC));
        machine.set_faults(Faults { fail_changes, ..Faults::default() });
        match append(&spool, stream, b"x") {
            Ok(_) => break,
            Err(AppendError::Full(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        machine.set_faults(Faults::default());
    }
    machine.set_faults(Faults::default());
    assert!(refused >= 3, "{refused}");
    let last = append(&spool, stream, b"last").unwrap();
    let shown = replayed(&spool, stream);
    assert_eq!((shown[0], *shown.last().unwrap()), (first, last));
    assert_eq!(spool.read(last, 0..4).unwrap(), "last");
}

#[test]
fn a_missing_file_is_told_and_waits_for_its_return() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let stream = spool.stream("a").unwrap();
    let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, &[n; 100]).unwrap()).collect();
    spool.advance(stream, lsns[2], None, Released { below: Lsn::ZERO, also: vec![lsns[0]] });
    drop(spool);
    let (away, file) = (dir.path().join("away"), file_of(dir.path(), lsns[1]));
    std::fs::rename(&file, &away).unwrap();
    let (spool, report) = open(dir.path());
    assert_eq!(report.damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>(), [Some(lsns[1])]);
    assert!(matches!(spool.read(lsns[1], 0..1), Err(ReadError::Unreachable { .. })));
    assert_eq!(spool.read(lsns[2], 0..1).unwrap()[..], [2]);
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(spool.read(lsns[1], 0..1).unwrap()[..], [1]);
}

#[test]
fn a_closed_spool_is_verified_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let stream = spool.stream("a").unwrap();
    let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, &[n; 100]).unwrap()).collect();
    drop(spool);
    let exported = || {
        let mut bodies = Vec::new();
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        let each = &mut |batch: posthaste_spool::ExportedBatch| {
            bodies.push((batch.lsn, batch.body.unwrap().map(|body| body.read().unwrap()[0])));
            std::ops::ControlFlow::Continue(())
        };
        closed.export(each).unwrap();
        (bodies, closed.verify().unwrap().damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>())
    };
    let all: Vec<_> = lsns.iter().zip(0..).map(|(lsn, n)| (*lsn, Ok(n))).collect();
    assert_eq!(exported(), (all, vec![]));
    let file = file_of(dir.path(), lsns[1]);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (bodies, damage) = exported();
    assert_eq!((bodies[0].1.as_ref().ok(), bodies[1].1.is_err(), damage), (Some(&0), true, vec![Some(lsns[1])]));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ClosedFileSpool::open(dir.path()).unwrap().verify().unwrap().damage[0].lsn, Some(lsns[1]));
}

#[test]
fn a_released_message_leaves_no_file_after_two_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let stream = spool.stream("a").unwrap();
    let lsn = append(&spool, stream, b"x").unwrap();
    spool.advance(stream, lsn, None, Released { below: Lsn::new(lsn.get() + 1), also: vec![] });
    spool.checkpoint().unwrap();
    assert!(file_of(dir.path(), lsn).exists(), "a stream that cannot read its last snapshot is shown it");
    spool.checkpoint().unwrap();
    assert!(!file_of(dir.path(), lsn).exists());
}

/// All kinds that were built, each with a spool of one message that ends with a last checkpoint, and without one.
fn each_end(mut check: impl FnMut(StoreKind, &Path, StreamId, Lsn)) {
    for (kind, is_abandoned) in kinds().flat_map(|kind| [(kind, false), (kind, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _) = FileSpool::open(dir.path(), config(kind)).unwrap();
        let stream = spool.stream("a").unwrap();
        let lsn = append(&spool, stream, b"kept").unwrap();
        if is_abandoned {
            spool.abandon()
        } else {
            drop(spool)
        }
        check(kind, dir.path(), stream, lsn);
    }
}

#[test]
fn a_spool_whose_records_are_away_is_refused_by_every_kind() {
    each_end(|kind, dir, stream, lsn| {
        let (records, away) = (dir.join(kind.to_string()), dir.join("away"));
        std::fs::rename(&records, &away).unwrap();
        for wanted in kinds() {
            let refused = FileSpool::open(dir, config(wanted)).map(drop).unwrap_err();
            match refused {
                OpenError::NoRecords { .. } | OpenError::Missing(_) => assert_eq!(wanted, kind),
                OpenError::OtherKind { found, .. } => assert!(found == kind && wanted != kind),
                other => panic!("{kind}, as {wanted}: {other}"),
            }
            assert!(!dir.join(wanted.to_string()).exists() || wanted == StoreKind::Ring, "{kind}, as {wanted}");
        }
        let closed = ClosedFileSpool::open(dir).unwrap();
        assert_eq!(closed.inspect().unwrap().kind, kind);
        assert_ne!(closed.verify().unwrap().damage, [], "{kind}");
        drop(closed);
        if kind != StoreKind::Ring {
            // As the place of a disk that is not mounted.
            std::fs::create_dir(&records).unwrap();
            assert!(matches!(FileSpool::open(dir, config(kind)).err(), Some(OpenError::NoRecords { .. })));
            assert!(std::fs::read_dir(&records).unwrap().next().is_none());
        }
        if records.exists() {
            std::fs::remove_dir_all(&records).unwrap();
        }
        std::fs::rename(&away, &records).unwrap();
        assert_eq!(replayed(&FileSpool::open(dir, config(kind)).unwrap().0, stream), [lsn], "{kind}");
    });
}

#[test]
fn a_lost_file_of_numbers_costs_nothing() {
    each_end(|kind, dir, stream, lsn| {
        if kind != StoreKind::Ring {
            std::fs::remove_file(dir.join(kind.to_string()).join("next")).unwrap();
            assert_eq!(ClosedFileSpool::open(dir).unwrap().verify().unwrap().damage, []);
            let (spool, report) = FileSpool::open(dir, config(kind)).unwrap();
            assert_eq!((report.damage, replayed(&spool, stream)), (vec![], vec![lsn]));
            assert!(append(&spool, stream, b"new").unwrap() > lsn);
        }
    });
}

#[test]
fn no_number_of_records_that_were_given_up_comes_again() {
    each_end(|kind, dir, stream, lsn| {
        std::fs::remove_dir_all(dir.join(kind.to_string())).unwrap();
        let mut config = config(kind);
        config.ring.gives_up_missing = true;
        let (spool, report) = FileSpool::open(dir, config.clone()).unwrap();
        assert_ne!(report.damage, [], "{kind}");
        let mut uncertain = Lsn::ZERO;
        let show = &mut |replayed: Replayed<'_>| {
            if let Replayed::Uncertain { through } = replayed {
                uncertain = through;
            }
        };
        spool.replay(stream, show).unwrap();
        // What came after the last checkpoint may have said more than what is known.
        assert!(uncertain > lsn, "{kind}: {uncertain}");
        let next = append(&spool, stream, b"new").unwrap();
        assert!(next > uncertain, "{kind}: {next}");
        drop(spool);
        config.ring.gives_up_missing = false;
        let (spool, _) = FileSpool::open(dir, config).unwrap();
        assert_eq!(spool.read(next, 0..3).unwrap(), "new", "{kind}");
    });
}

#[test]
fn a_spool_of_another_kind_is_refused_and_stays_as_it_is() {
    let kinds = [StoreKind::Ring, StoreKind::Files, StoreKind::Fjall, StoreKind::Rocksdb];
    let pairs = kinds.into_iter().flat_map(|kind| kinds.map(|other| (kind, other)));
    for (kind, other) in pairs.filter(|(kind, other)| kind.is_built() && kind != other) {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _) = FileSpool::open(dir.path(), config(kind)).unwrap();
        let stream = spool.stream("a").unwrap();
        let lsn = append(&spool, stream, b"x").unwrap();
        drop(spool);
        let refused = FileSpool::open(dir.path(), config(other)).map(drop).unwrap_err();
        assert!(matches!(refused, OpenError::OtherKind { found, wanted } if (found, wanted) == (kind, other)));
        assert!(refused.to_string().contains("posthaste spool export"), "{refused}");
        assert_eq!(StoreKind::of(dir.path()), Some(kind));
        let (spool, _) = FileSpool::open(dir.path(), config(kind)).unwrap();
        assert_eq!(replayed(&spool, stream), [lsn]);
    }
}

#[test]
fn a_spool_that_has_lost_both_checkpoint_files_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let (spool, _) = open(&old);
    let stream = spool.stream("a").unwrap();
    let mut lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, &[n; 100]).unwrap()).collect();
    let mut upload = spool.upload(0).unwrap();
    upload.write(&[9; 3 << 20]).unwrap();
    let (tell, told) = channel();
    let entry = Entry { stream, needs_body: true, payload: "x".into() };
    let batch = Batch { entries: vec![entry], body: Body::file(upload.finish().unwrap()) };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    lsns.push(told.recv().unwrap().unwrap());
    spool.advance(stream, lsns[3], None, Released::default());
    drop(spool);
    // One body is damaged, and stays so.
    let file = file_of(&old, lsns[1]);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    for name in ["checkpoint.0", "checkpoint.1"] {
        std::fs::remove_file(old.join(name)).unwrap();
    }
    assert!(matches!(FileSpool::open(&old, config(StoreKind::Files)).err(), Some(OpenError::NoCheckpoint)));
    let rebuilt = ClosedFileSpool::rebuild(&old, &new).unwrap();
    assert_eq!((rebuilt.batches, rebuilt.large, rebuilt.streams), (4, 1, vec!["a".to_owned()]));
    assert_eq!(rebuilt.damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>(), [Some(lsns[1])]);
    let (spool, _) = open(&new);
    let mut seen = Vec::new();
    spool.replay(stream, &mut |replayed| seen.push(format!("{replayed:?}"))).unwrap();
    assert_eq!(seen.len(), 5, "each once more, and that something may be missing: {seen:?}");
    assert!(seen[4].starts_with("Uncertain"), "{seen:?}");
    assert!(matches!(spool.read(lsns[1], 0..1), Err(ReadError::Damaged { .. })));
    assert_eq!((spool.read(lsns[2], 0..1).unwrap()[0], spool.read(lsns[3], 0..1).unwrap()[0]), (2, 9));
    assert!(append(&spool, stream, b"new").unwrap() > lsns[3]);
}

/// Flips a bit of the record's file.
fn flip(dir: &Path, lsn: Lsn, at: usize) {
    let path = file_of(dir, lsn);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_pipe_in_place_of_a_file_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let stream = spool.stream("a").unwrap();
    let lsns: Vec<Lsn> = (0..2).map(|n| append(&spool, stream, &[n; 100]).unwrap()).collect();
    // Records before a checkpoint are not read at an opening.
    spool.abandon();
    let file = file_of(dir.path(), lsns[0]);
    std::fs::remove_file(&file).unwrap();
    mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (spool, report) = open(dir.path());
    assert_eq!(report.damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>(), [Some(lsns[0])]);
    assert_eq!(spool.read(lsns[1], 0..1).unwrap()[..], [1]);
}

#[test]
fn damage_after_the_last_checkpoint_makes_streams_uncertain() {
    // In the header and in the head, of one in the midst and of the last: a file has its name only when it is whole.
    for (nth, at) in [(1, 0), (1, 20), (1, 40), (2, 40)] {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _) = open(dir.path());
        let stream = spool.stream("a").unwrap();
        let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, &[n; 100]).unwrap()).collect();
        spool.abandon();
        flip(dir.path(), lsns[nth], at);

        let damaged = |damage: &[posthaste_spool::Damage]| damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>();
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        assert_eq!(damaged(&closed.verify().unwrap().damage), [Some(lsns[nth])], "{nth}, byte {at}");
        assert_eq!(damaged(&closed.inspect().unwrap().damage), [Some(lsns[nth])]);
        drop(closed);

        let shown = |spool: &FileSpool| {
            let mut shown = Vec::new();
            let show = &mut |replayed: Replayed<'_>| match replayed {
                Replayed::Entry { lsn, .. } => shown.push((lsn, "entry")),
                Replayed::Uncertain { through } => shown.push((through, "uncertain")),
                other => panic!("{other:?}"),
            };
            spool.replay(stream, show).unwrap();
            shown
        };
        let mut expected: Vec<_> = lsns.iter().map(|lsn| (*lsn, "entry")).collect();
        expected[nth].1 = "uncertain";
        let (spool, report) = open(dir.path());
        assert_eq!((damaged(&report.damage), shown(&spool)), (vec![Some(lsns[nth])], expected.clone()));
        spool.checkpoint().unwrap();
        drop(spool);
        // The damage is told once, and no stream has advanced: it is still in doubt.
        let (spool, report) = open(dir.path());
        assert_eq!((report.damage, shown(&spool)), (vec![], expected));
        spool.advance(stream, lsns[2], None, Released::default());
        drop(spool);
        assert_eq!(shown(&open(dir.path()).0), []);
        assert_eq!(ClosedFileSpool::open(dir.path()).unwrap().verify().unwrap().damage, []);
    }
}

#[test]
fn an_export_names_needed_records_whose_heads_are_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let stream = spool.stream("a").unwrap();
    let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, &[n; 100]).unwrap()).collect();
    drop(spool);
    flip(dir.path(), lsns[1], 40);
    let closed = ClosedFileSpool::open(dir.path()).unwrap();
    let mut exported = Vec::new();
    let each = &mut |batch: posthaste_spool::ExportedBatch| {
        exported.push(batch.lsn);
        std::ops::ControlFlow::Continue(())
    };
    let lost = closed.export(each).unwrap();
    assert_eq!((lost, exported), (vec![lsns[1]], vec![lsns[0], lsns[2]]));
    let damage = closed.verify().unwrap().damage;
    assert_eq!(damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>(), [Some(lsns[1])], "once");
}

#[test]
fn a_batch_without_a_head_is_given_up_with_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let stream = spool.stream("a").unwrap();
    let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, &[n; 100]).unwrap()).collect();
    drop(spool);
    flip(dir.path(), lsns[1], 40);
    let (tell, told) = channel();
    let events = posthaste_spool::Events::new(move |event| drop(tell.send(event)));
    let (spool, _) = FileSpool::open(dir.path(), Config { events, ..config(StoreKind::Files) }).unwrap();
    for _ in 0..2 {
        assert!(matches!(spool.entries(stream, lsns[1]), Err(ReadError::Unreachable { .. })));
    }
    let is_told = |event: &posthaste_spool::SpoolEvent| match event {
        posthaste_spool::SpoolEvent::Damage(damage) => damage.lsn == Some(lsns[1]) && damage.place == "files",
        _ => false,
    };
    assert_eq!(told.try_iter().filter(is_told).count(), 1, "once");
    let SetAside::Kept(kept) = spool.set_aside(lsns[1]).unwrap() else { panic!("its body is whole") };
    assert_eq!(std::fs::read(kept).unwrap(), [1; 100]);
    spool.give_up_bodies(&[lsns[1]]).unwrap();
    spool.abandon();
    let closed = ClosedFileSpool::open(dir.path()).unwrap();
    assert_eq!((closed.verify().unwrap().damage, closed.unreadable_bodies().unwrap()), (vec![], vec![]));
    drop(closed);
    // A lost message says nothing of others.
    assert_eq!(replayed(&open(dir.path()).0, stream), [lsns[0], lsns[2]]);
}
