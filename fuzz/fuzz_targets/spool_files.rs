//! A spool of several segments, a pack, a large body and a checkpoint is damaged wherever the input says, and read, repaired and opened: whatever is damaged, each body
//! that is read is as it was, each entry is one that was written, and what is not damaged is there.
#![no_main]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::mpsc::channel;

use libfuzzer_sys::fuzz_target;
use posthaste_spool::{
    Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, FileSpool, Lsn, Released, Replayed, Spool,
};

struct Sample {
    /// By their paths in the directory.
    files: BTreeMap<PathBuf, Vec<u8>>,
    bodies: BTreeMap<Lsn, Vec<u8>>,
}

fn config() -> Config {
    let mut config = Config { keeper: false, scrub_bytes_per_sec: 0, ..Config::default() };
    (config.ring.segment_bytes, config.ring.max_segments, config.pack_bytes) = (64 << 10, 16, 128 << 10);
    config.ring.gives_up_missing = true;
    config
}

fn payload(lsn: usize) -> Vec<u8> {
    format!("entry {lsn}").into_bytes()
}

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let mut bodies = BTreeMap::new();
    let (spool, _) = FileSpool::open(dir.path(), config()).expect("it opens");
    let streams = ["one", "two"].map(|name| spool.stream(name).expect("a stream"));
    let append = |number: usize, body: Body| {
        let entry = |stream| Entry { stream, needs_body: true, payload: payload(number).into() };
        let entries = streams.iter().take(1 + number % 2).map(|stream| entry(*stream)).collect();
        let (tell, told) = channel();
        spool.append(Batch { entries, body }, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().expect("an answer").expect("durable")
    };
    for number in 0..40 {
        let body = format!("body {number}. ").repeat(1 + number * 97 % 700).into_bytes();
        bodies.insert(append(number, Body::inline(vec![body.clone().into()])), body);
        if number == 25 {
            spool.pack_oldest(2).expect("packs");
            spool.checkpoint().expect("a checkpoint");
        }
    }
    let large = vec![7; 300_000];
    let mut upload = spool.upload(0).expect("an upload");
    upload.write(&large).expect("written");
    bodies.insert(append(40, Body::file(upload.finish().expect("finished"))), large);
    let released = bodies.keys().copied().nth(3).expect("there are more");
    spool.advance(streams[0], released, None, Released { below: Lsn::ZERO, also: Vec::new() });
    spool.checkpoint().expect("a checkpoint");
    drop(spool);
    let mut files = BTreeMap::new();
    read_all(dir.path(), Path::new(""), &mut files);
    Sample { files, bodies }
});

fn read_all(root: &Path, below: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(root.join(below)).expect("a directory") {
        let path = below.join(entry.expect("an entry").file_name());
        if root.join(&path).is_dir() {
            read_all(root, &path, files)
        } else {
            drop(files.insert(path.clone(), std::fs::read(root.join(&path)).expect("a file")))
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Sample { files, bodies } = &*SAMPLE;
    let dir = tempfile::tempdir().expect("a directory");
    let mut changed: BTreeMap<&PathBuf, Vec<u8>> = BTreeMap::new();
    // Each damage is five octets: in which file, where (three), and what is put there; nothing cuts the file off.
    for damage in data.as_chunks::<5>().0 {
        let (path, before) = files.iter().nth(usize::from(damage[0]) % files.len()).expect("one of them");
        let bytes = changed.entry(path).or_insert_with(|| before.clone());
        let at = u32::from_le_bytes([damage[1], damage[2], damage[3], 0]) as usize % bytes.len().max(1);
        match damage[4] {
            0 => bytes.truncate(at),
            octet => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= octet;
                }
            }
        }
    }
    changed.retain(|path, bytes| files[*path] != *bytes);
    for (path, before) in files {
        let to = dir.path().join(path);
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("made");
        std::fs::write(to, changed.get(path).unwrap_or(before)).expect("written");
    }
    let is_known = |payload: &[u8]| (0..=40).any(|number| self::payload(number) == payload);
    let mut found = 0;
    if let Ok(closed) = ClosedFileSpool::open(dir.path()) {
        let _ = closed.inspect();
        let _ = closed.verify();
        let _ = closed.export(&mut |batch| {
            assert!(batch.entries.iter().all(|entry| is_known(&entry.payload)), "an entry that nobody wrote");
            let body = match batch.body {
                Some(Ok(body)) => body.read().expect("a body file").to_vec(),
                Some(Err(_)) | None => return std::ops::ControlFlow::Continue(()),
            };
            assert_eq!(bodies.get(&batch.lsn), Some(&body), "the body of {} is another", batch.lsn);
            found += 1;
            std::ops::ControlFlow::Continue(())
        });
        let _ = closed.repair();
    }
    assert!(!changed.is_empty() || found > 30, "{found} bodies in a spool that is whole");
    let Ok((spool, _)) = FileSpool::open(dir.path(), config()) else { return };
    let Ok(stream) = spool.stream("one") else { return };
    let mut lsns = Vec::new();
    let _ = spool.replay(stream, &mut |replayed| {
        if let Replayed::Entry { lsn, payload, body_len, .. } = replayed {
            assert!(is_known(payload), "an entry that nobody wrote is replayed");
            lsns.push((lsn, body_len));
        }
    });
    for (lsn, len) in lsns {
        if let Ok(body) = spool.read(lsn, 0..len) {
            let known = bodies.get(&lsn);
            assert!(known.is_none_or(|known| known[..] == body[..]), "the body of {lsn} is another");
        }
    }
});
