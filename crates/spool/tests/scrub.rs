//! A spool reads what it keeps by itself, at a set pace.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use posthaste_spool::{Batch, Body, Config, Entry, Events, FileSpool, Lsn, Spool, SpoolEvent};

fn config() -> (Config, Receiver<SpoolEvent>) {
    let (tell, told) = channel();
    let mut config = Config { events: Events::new(move |event| drop(tell.send(event))), ..Config::default() };
    config.ring.segment_bytes = 64 << 10;
    (config, told)
}

/// A spool with two large bodies. Returns them in order.
fn fill(dir: &Path, config: Config) -> (FileSpool, [Lsn; 2]) {
    let (spool, _) = FileSpool::open(dir, config).unwrap();
    let stream = spool.stream("one").unwrap();
    let lsns = [1, 2].map(|byte| {
        let mut upload = spool.upload(0).unwrap();
        upload.write(&vec![byte; 300_000]).unwrap();
        let (tell, told) = channel();
        let entry = Entry { stream, needs_body: true, payload: "for you".into() };
        let batch = Batch { entries: vec![entry], body: Body::file(upload.finish().unwrap()) };
        spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().unwrap().unwrap()
    });
    (spool, lsns)
}

/// Turns a bit over in the large body that is full of `byte`.
fn damage(dir: &Path, byte: u8) {
    for path in std::fs::read_dir(dir.join("bodies")).unwrap().map(|entry| entry.unwrap().path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        if bytes[0] == byte {
            bytes[77] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn damage_is_told_without_anybody_asking() {
    let dir = tempfile::tempdir().unwrap();
    let (config, told) = config();
    let config = Config { scrub_every: Duration::from_millis(1), scrub_bytes_per_sec: u64::MAX, ..config };
    let (spool, [_, second]) = fill(dir.path(), config);
    damage(dir.path(), 2);
    let found = loop {
        if let SpoolEvent::Damage(damage) = told.recv().unwrap() {
            break damage;
        }
    };
    assert_eq!(found.lsn, Some(second));
    drop(spool);
}

#[test]
fn who_closes_the_spool_does_not_wait_for_a_slow_scrub() {
    let dir = tempfile::tempdir().unwrap();
    let (config, told) = config();
    let slow = Config { scrub_every: Duration::ZERO, scrub_bytes_per_sec: 1, ..config };
    let (spool, _) = fill(dir.path(), Config { scrub_bytes_per_sec: 0, ..slow.clone() });
    drop(spool);
    damage(dir.path(), 1);
    damage(dir.path(), 2);
    let (spool, _) = FileSpool::open(dir.path(), slow).unwrap();
    // It is at its first batch now, or sleeps after it: for days, if nobody woke it up.
    drop(spool);
    let told = told.iter().filter(|event| matches!(event, SpoolEvent::Damage(_))).count();
    assert!(told <= 1, "the second is not due");
}
