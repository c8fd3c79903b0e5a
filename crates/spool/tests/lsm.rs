//! A spool in an LSM tree: kills, removal, export, rebuilding, and damage.
#![cfg(any(feature = "fjall", feature = "rocksdb"))]

use std::path::Path;
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_spool::{
    Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, FileSpool, LsmDurability, Lsn, OpenError, Released,
    Replayed, Spool, StoreKind, StreamId,
};

/// All that were built.
fn kinds() -> impl Iterator<Item = StoreKind> {
    [StoreKind::Fjall, StoreKind::Rocksdb].into_iter().filter(|kind| kind.is_built())
}

fn try_open(dir: &Path, kind: StoreKind) -> Result<FileSpool, OpenError> {
    let config = Config { kind, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() };
    let (spool, report) = FileSpool::open(dir, config)?;
    assert_eq!(report.damage, []);
    Ok(spool)
}

fn open(dir: &Path, kind: StoreKind) -> FileSpool {
    try_open(dir, kind).unwrap()
}

fn append(spool: &FileSpool, stream: StreamId, body: Vec<u8>) -> Lsn {
    let (tell, told) = channel();
    let entry = Entry { stream, needs_body: true, payload: "x".into() };
    let batch = Batch { entries: vec![entry], body: Body::inline(vec![Bytes::from(body)]) };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap()
}

fn replayed(spool: &FileSpool, stream: StreamId) -> Vec<Lsn> {
    let mut seen = Vec::new();
    let show = &mut |replayed: Replayed<'_>| match replayed {
        Replayed::Entry { lsn, .. } => seen.push(lsn),
        Replayed::Uncertain { .. } => {}
        other => panic!("{other:?}"),
    };
    spool.replay(stream, show).unwrap();
    seen
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn everything_told_is_there_after_a_kill() {
    for kind in kinds() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let spool = open(dir.path(), kind);
        let stream = spool.stream("a").unwrap();
        let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, vec![n; 5000])).collect();
        // As the kernel has them when the process is killed now.
        copy_all(dir.path(), copy.path());
        let killed = open(copy.path(), kind);
        assert_eq!(replayed(&killed, stream), lsns, "{kind}");
        assert_eq!(killed.read(lsns[1], 0..2).unwrap()[..], [1, 1]);
        assert!(append(&killed, stream, vec![9]).get() > lsns[2].get() + 256, "no number is given twice");
    }
}

#[test]
fn an_unsynced_one_for_comparison_shows_the_same_without_a_cut() {
    for kind in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { kind, lsm_durability: LsmDurability::None, keeper: false, ..Config::default() };
        let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
        let stream = spool.stream("a").unwrap();
        let lsn = append(&spool, stream, vec![7; 5000]);
        drop(spool);
        let spool = open(dir.path(), kind);
        assert_eq!((replayed(&spool, stream), spool.read(lsn, 4999..5000).unwrap()[..].to_vec()), (vec![lsn], vec![7]));
    }
}

#[test]
fn a_released_message_leaves_the_tree_after_two_checkpoints() {
    for kind in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let spool = open(&old, kind);
        let stream = spool.stream("a").unwrap();
        let released: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, vec![n; 5000])).collect();
        let kept = append(&spool, stream, Vec::new());
        spool.advance(stream, released[2], None, Released { below: kept, also: vec![] });
        spool.checkpoint().unwrap();
        spool.checkpoint().unwrap();
        drop(spool);
        let spool = open(&old, kind);
        assert_eq!((replayed(&spool, stream), spool.read(kept, 0..0).unwrap()), (vec![kept], Bytes::new()));
        drop(spool);
        for name in ["checkpoint.0", "checkpoint.1"] {
            std::fs::remove_file(old.join(name)).unwrap();
        }
        // It takes all that there is.
        assert_eq!(ClosedFileSpool::rebuild(&old, &new).unwrap().batches, 1, "{kind}");
    }
}

#[test]
fn a_tree_that_was_cut_while_it_was_made_is_made_anew() {
    for kind in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join(kind.to_string());
        // Nothing but the first checkpoint can be made.
        std::fs::write(&records, "").unwrap();
        assert!(try_open(dir.path(), kind).is_err());
        std::fs::remove_file(&records).unwrap();
        // A file of `fjall` and one of RocksDB.
        for name in ["version", "CURRENT"] {
            std::fs::create_dir_all(records.join("database")).unwrap();
            std::fs::write(records.join("database").join(name), "").unwrap();
        }
        let spool = open(dir.path(), kind);
        let stream = spool.stream("a").unwrap();
        let lsn = append(&spool, stream, vec![1]);
        spool.abandon();
        assert_eq!(replayed(&open(dir.path(), kind), stream), [lsn], "{kind}");
        // From then on it has accepted mail.
        std::fs::write(records.join("database/version"), "").unwrap();
        std::fs::write(records.join("database/CURRENT"), "").unwrap();
        assert!(matches!(try_open(dir.path(), kind), Err(OpenError::Log(_))), "{kind}");
        assert!(records.join("database/version").exists());
    }
}

#[test]
fn a_tree_that_is_away_is_not_made_anew() {
    for kind in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let spool = open(dir.path(), kind);
        let stream = spool.stream("a").unwrap();
        append(&spool, stream, vec![1]);
        spool.checkpoint().unwrap();
        assert!(matches!(ClosedFileSpool::glance(dir.path()), Err(OpenError::Locked)), "{kind} is open once");
        drop(spool);
        let (database, away) = (dir.path().join(format!("{kind}/database")), dir.path().join("away"));
        std::fs::rename(&database, &away).unwrap();
        assert!(matches!(try_open(dir.path(), kind), Err(OpenError::NoRecords { .. })));
        assert_ne!(ClosedFileSpool::open(dir.path()).unwrap().verify().unwrap().damage, []);
        assert!(!database.exists());
        std::fs::rename(&away, &database).unwrap();
        assert_eq!(replayed(&open(dir.path(), kind), stream).len(), 1);
    }
}

#[test]
fn a_closed_one_is_verified_exported_and_rebuilt() {
    for kind in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let spool = open(&old, kind);
        let stream = spool.stream("a").unwrap();
        let lsns: Vec<Lsn> = (0..3).map(|n| append(&spool, stream, vec![n; 5000])).collect();
        drop(spool);
        let closed = ClosedFileSpool::open(&old).unwrap();
        let mut bodies = Vec::new();
        let each = &mut |batch: posthaste_spool::ExportedBatch| {
            bodies.push((batch.lsn, batch.body.unwrap().unwrap().read().unwrap()[0]));
            std::ops::ControlFlow::Continue(())
        };
        closed.export(each).unwrap();
        assert_eq!(bodies, lsns.iter().copied().zip(0..).collect::<Vec<_>>());
        assert_eq!((closed.verify().unwrap().damage, closed.inspect().unwrap().kind), (vec![], kind));
        assert!(closed.bytes() > 15_000);
        drop(closed);
        for name in ["checkpoint.0", "checkpoint.1"] {
            std::fs::remove_file(old.join(name)).unwrap();
        }
        assert!(matches!(try_open(&old, kind), Err(OpenError::NoCheckpoint)));
        let rebuilt = ClosedFileSpool::rebuild(&old, &new).unwrap();
        assert_eq!((rebuilt.batches, rebuilt.damage), (3, vec![]));
        let spool = open(&new, kind);
        assert_eq!(replayed(&spool, stream), lsns);
        assert_eq!(spool.read(lsns[2], 4999..5000).unwrap()[..], [2]);
    }
}

/// docs/spool.md warns of it: neither a cut in the middle of a group nor a flipped bit leaves a database that opens without help.
#[cfg(feature = "fjall")]
#[test]
fn a_journal_of_fjall_with_a_hole_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), StoreKind::Fjall);
    let stream = spool.stream("a").unwrap();
    append(&spool, stream, vec![1; 100]);
    append(&spool, stream, vec![0xEE; 20_000]);
    drop(spool);
    let files = std::fs::read_dir(dir.path().join("fjall/database")).unwrap().map(|entry| entry.unwrap().path());
    let journals: Vec<_> = files.filter(|path| path.extension().is_some_and(|it| it == "jnl")).collect();
    let [journal] = &journals[..] else { panic!("{journals:?}") };
    let whole = std::fs::read(journal).unwrap();
    let body = whole.windows(20_000).position(|bytes| bytes.iter().all(|byte| *byte == 0xEE)).unwrap();
    let mut torn = whole.clone();
    torn[body + 8000..body + 12_096].fill(0);
    std::fs::write(journal, &torn).unwrap();
    let refused = try_open(dir.path(), StoreKind::Fjall).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Log(_)) && refused.to_string().contains("fjall"), "{refused}");
    assert!(std::fs::read(journal).unwrap() == torn, "nothing was changed");
    std::fs::write(journal, &whole).unwrap();
    assert_eq!(replayed(&open(dir.path(), StoreKind::Fjall), stream).len(), 2);
}
