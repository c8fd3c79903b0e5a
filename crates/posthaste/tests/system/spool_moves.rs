//! Moves of a spool to another place: after a loss, and into one without room.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;

use posthaste_spool::{Batch, Body, Config, Entry, FileSpool, Lsn, Released, Replayed, SnapshotName, Spool, StoreKind};
use serde_json::Value;

use crate::spool::{append, json, open, run};

/// The disk of the new spool has no room, here by a limit of the process.
#[test]
fn an_import_that_finds_no_room_names_the_new_spool() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let one = spool.stream("local:one").unwrap();
    let mut upload = spool.upload(0).unwrap();
    upload.write(&[99; 3 << 20]).unwrap();
    let lsn = append(&spool, &[one], Body::file(upload.finish().unwrap()));
    let name = SnapshotName::new("one.1").unwrap();
    spool.write_snapshot(&name, &mut |out| out.write_all(b"the state")).unwrap();
    spool.advance(one, lsn, Some(name), Released::default());
    drop(spool);
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "out"]).0, 0);
    // Without any room the snapshot fails, else the body.
    for blocks in [0, 1024] {
        let mut shell = Command::new("bash");
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" spool import new --from out");
        let tried = shell.current_dir(dir.path()).args(["-c", &script, env!("CARGO_BIN_EXE_posthaste")]).output();
        let tried = tried.unwrap();
        let error = String::from_utf8(tried.stderr).unwrap();
        assert_eq!(tried.status.code(), Some(2), "{error}");
        assert!(error.contains("posthaste: new: ") && !error.contains("out/"), "{blocks}: {error}");
    }
    assert_eq!(run(dir.path(), &["import", "new", "--from", "out"]).0, 0, "it is begun anew");
}

/// Batches that a stream is shown at an opening, and up to where the content of its entries is unknown.
fn shown(dir: &Path, stream: &str) -> (Vec<Lsn>, Option<Lsn>) {
    let kind = StoreKind::of(dir).unwrap();
    let mut config = Config { kind, keeper: false, ..Config::default() };
    config.ring.segment_bytes = 64 << 10;
    let (spool, report) = FileSpool::open(dir, config).unwrap();
    let stream = spool.stream(stream).unwrap();
    let (mut batches, mut uncertain) = (Vec::new(), None);
    spool
        .replay(stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, .. } => batches.push(lsn),
            Replayed::Uncertain { through } => uncertain = Some(through),
            Replayed::Damaged { lsn } => panic!("{lsn} was given up: {report:?}"),
        })
        .unwrap();
    // As a kill: the look leaves nothing behind.
    spool.abandon();
    (batches, uncertain)
}

/// The last segment is the one of which no later record tells; without a checkpoint nobody knows who needed it.
#[test]
fn after_a_lost_segment_a_spool_is_repaired_and_moved() {
    for (has_checkpoint, is_last) in [(false, true), (true, true), (true, false)] {
        let dir = tempfile::tempdir().unwrap();
        let spool = open(dir.path());
        let one = spool.stream("local:one").unwrap();
        let mut all = Vec::new();
        for n in 0..60_u8 {
            all.push(append(&spool, &[one], Body::inline(vec![vec![n; 3000].into()])));
            // One that only says what became of others.
            let (tell, told) = channel();
            let entry = Entry { stream: one, needs_body: false, payload: "done".into() };
            let batch = Batch { entries: vec![entry], body: Body::None };
            spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
            all.push(told.recv().unwrap().unwrap());
        }
        if has_checkpoint {
            spool.checkpoint().unwrap();
        }
        spool.abandon();
        let mut segments = json(dir.path(), &["inspect", "spool"]).1["segments"].as_array().unwrap().clone();
        segments.retain(|segment| segment["batches"] != 0);
        let segment = &segments[if is_last { segments.len() - 1 } else { segments.len() / 2 }];
        let number = |key: &str| segment[key].as_str().unwrap().parse::<u64>().unwrap();
        let lost = number("first")..=number("last");
        std::fs::remove_file(dir.path().join("spool/ring").join(segment["name"].as_str().unwrap())).unwrap();
        let what = format!("{has_checkpoint} {is_last} {lost:?}");

        let (code, text, _) = run(dir.path(), &["verify", "spool"]);
        assert!(code == 1 && text.contains("DAMAGED: ring/"), "{what}: {text}");
        assert_eq!(run(dir.path(), &["export", "spool", "--to", "damaged"]).0, 1, "{what}");
        let (code, text, _) = run(dir.path(), &["repair", "spool", "--give-up-damaged"]);
        assert!(code == 0 && text.contains("GIVEN UP: segments of the log: "), "{what}: {text}");
        assert!(text.ends_with("sound\n"), "{what}: {text}");
        // A checkpoint tells where the loss ends.
        assert!(has_checkpoint || text.contains("records missing (batches from "), "{what}: {text}");
        for _ in 0..2 {
            let (code, text, _) = run(dir.path(), &["verify", "spool"]);
            assert!(code == 0 && text.contains("\nsound: "), "{what}: {text}");
            let (code, text, _) = run(dir.path(), &["repair", "spool", "--give-up-damaged"]);
            assert_eq!((code, &*text), (0, "sound: nothing had to be repaired\n"), "{what}");
        }
        let (code, exported) = json(dir.path(), &["export", "spool", "--to", "whole"]);
        assert_eq!((code, &exported["damage"]), (0, &Value::Array(Vec::new())), "{what}");
        let (code, _, error) = run(dir.path(), &["import", "new", "--from", "whole"]);
        assert_eq!(code, 0, "{what}: {error}");
        for place in ["spool", "new"] {
            let (batches, uncertain) = shown(&dir.path().join(place), "local:one");
            let left: Vec<Lsn> = all.iter().copied().filter(|lsn| !lost.contains(&lsn.get())).collect();
            assert_eq!(batches, left, "{what}: {place}");
            let last_said = all.iter().skip(1).step_by(2).rfind(|lsn| lost.contains(&lsn.get()));
            assert!(uncertain.as_ref() >= last_said, "{what}: {place}: {uncertain:?}");
        }
    }
}

#[test]
fn after_the_loss_of_all_records_a_spool_is_repaired_and_moved() {
    for has_checkpoint in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { kind: StoreKind::Files, keeper: false, ..Config::default() };
        let (spool, _) = FileSpool::open(&dir.path().join("spool"), config).unwrap();
        let one = spool.stream("local:one").unwrap();
        let all: Vec<Lsn> = (0..3).map(|_| append(&spool, &[one], Body::inline(vec!["x".into()]))).collect();
        if has_checkpoint {
            spool.checkpoint().unwrap();
        }
        spool.abandon();
        std::fs::remove_dir_all(dir.path().join("spool/files")).unwrap();

        let (code, text, _) = run(dir.path(), &["verify", "spool"]);
        let is_told = text.starts_with("kind: files\n") && text.contains("DAMAGED: files: ");
        assert!(code == 1 && is_told && text.contains("holds no records"), "{has_checkpoint}: {text}");
        assert_eq!(run(dir.path(), &["export", "spool", "--to", "damaged"]).0, 1, "{has_checkpoint}");
        let (code, text, _) = run(dir.path(), &["repair", "spool", "--give-up-damaged"]);
        assert!(code == 0 && text.contains("holds no records"), "{has_checkpoint}: {text}");
        assert_eq!(text.matches("GIVEN UP: batch ").count(), if has_checkpoint { 3 } else { 0 }, "{text}");
        let (code, text, _) = run(dir.path(), &["repair", "spool", "--give-up-damaged"]);
        assert_eq!((code, &*text), (0, "sound: nothing had to be repaired\n"), "{has_checkpoint}");
        assert_eq!(json(dir.path(), &["export", "spool", "--to", "whole"]).0, 0, "{has_checkpoint}");
        let (code, _, error) = run(dir.path(), &["import", "new", "--from", "whole"]);
        assert_eq!(code, 0, "{has_checkpoint}: {error}");
        for place in ["spool", "new"] {
            let (batches, uncertain) = shown(&dir.path().join(place), "local:one");
            assert!(batches.is_empty() && uncertain.as_ref() > all.last(), "{has_checkpoint}: {place}: {uncertain:?}");
        }
    }
}
