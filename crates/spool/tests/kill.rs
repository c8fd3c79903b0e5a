//! A spool whose process is killed anywhere keeps what it acknowledged. The process is another one than ours: bytes that a library holds back are gone with it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_spool::{
    AppendError, Batch, Body, Config, Entry, FileSpool, Lsn, Released, Replayed, Spool, StoreKind, StreamId,
};

const KILLS: u64 = 8;
/// Messages that one process appends before it is killed, at most.
const LIFE_MAX: u64 = 300;
/// Messages that wait at once.
const WINDOW: u64 = 16;
/// Messages between two checkpoints of a process.
const PASSED_EVERY: u64 = 64;
/// Set for the process that is killed: kind, number of its first message, directory.
const LIFE: &str = "POSTHASTE_SPOOL_LIFE";

fn open(kind: StoreKind, dir: &Path) -> (FileSpool, StreamId) {
    let ring = posthaste_ring::Config { segment_bytes: 1 << 20, max_segments: 8, ..Default::default() };
    let (spool, report) = FileSpool::open(dir, Config { kind, ring, keeper: false, ..Config::default() }).unwrap();
    assert_eq!(report.damage, []);
    let stream = spool.stream("a").unwrap();
    (spool, stream)
}

fn body_of(number: u64) -> Bytes {
    vec![number as u8; 100 + (number * 7919 % 7000) as usize].into()
}

/// Appends until it is killed. Tells what is kept, and what it is about to let go.
fn live(life: &str) {
    let words: Vec<&str> = life.splitn(3, ' ').collect();
    let (kind, first, dir) = (words[0].parse().unwrap(), words[1].parse::<u64>().unwrap(), Path::new(words[2]));
    let (spool, stream) = open(kind, dir);
    let (tell, told) = channel();
    for number in first.. {
        let entry = Entry { stream, needs_body: true, payload: number.to_string().into() };
        let batch = Batch { entries: vec![entry], body: Body::inline(vec![body_of(number)]) };
        let tell = tell.clone();
        let then = move |outcome: Result<Lsn, AppendError>| {
            let lsn = outcome.unwrap();
            say(format!("kept {lsn} {number}\n"));
            tell.send(lsn).unwrap();
        };
        spool.append(batch, Box::new(then));
        if number - first < WINDOW {
            continue;
        }
        let lsn = told.recv().unwrap();
        if number % PASSED_EVERY == 0 {
            say(format!("passed {lsn}\n"));
            spool.advance(stream, lsn, None, Released { below: Lsn::new(lsn.get() + 1), also: Vec::new() });
            spool.checkpoint().unwrap();
        }
    }
}

/// In one write, so that no kill cuts a line.
fn say(line: String) {
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Batches that were acknowledged, and the last one that may be gone.
#[derive(Default)]
struct Promised {
    kept: BTreeMap<u64, u64>,
    passed: u64,
}

impl Promised {
    /// Lets a process append until so many more are kept, kills it, and notes all that it told.
    fn kill_one(&mut self, life: &str, more: u64) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "what_was_acknowledged_survives_a_kill", "--nocapture"]).env(LIFE, life);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (wanted, mut others) = (self.kept.len() + more as usize, Vec::new());
        for line in BufReader::new(process.stderr.take().unwrap()).lines() {
            let line = line.unwrap();
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["kept", lsn, number] => {
                    self.kept.insert(lsn.parse().unwrap(), number.parse().unwrap());
                }
                ["passed", lsn] => self.passed = lsn.parse().unwrap(),
                _ => others.push(line.clone()),
            }
            if self.kept.len() == wanted {
                process.kill().unwrap();
            }
        }
        assert_eq!(process.wait().unwrap().signal(), Some(9), "{life}: {others:#?}");
    }

    fn check(&self, kind: StoreKind, dir: &Path) {
        let (spool, stream) = open(kind, dir);
        let (mut shown, mut numbers) = (BTreeMap::new(), BTreeSet::new());
        let show = &mut |replayed: Replayed<'_>| match replayed {
            Replayed::Entry { lsn, payload, .. } => {
                let number: u64 = std::str::from_utf8(payload).unwrap().parse().unwrap();
                assert!(numbers.insert(number), "{kind}: message {number} is there twice");
                shown.insert(lsn.get(), number);
            }
            other => panic!("{kind}: {other:?}"),
        };
        spool.replay(stream, show).unwrap();
        for (lsn, number) in self.kept.range(self.passed + 1..) {
            assert_eq!(shown.get(lsn), Some(number), "{kind}: batch {lsn}");
            let body = body_of(*number);
            assert!(spool.read(Lsn::new(*lsn), 0..body.len() as u64).unwrap() == body, "{kind}: batch {lsn}");
        }
        spool.abandon();
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    if let Ok(life) = std::env::var(LIFE) {
        return live(&life);
    }
    let kinds = [StoreKind::Ring, StoreKind::Files, StoreKind::Fjall, StoreKind::Rocksdb];
    for (seed, kind) in (1..).zip(kinds).filter(|(_, kind)| kind.is_built()) {
        let dir = tempfile::tempdir().unwrap();
        let mut promised = Promised::default();
        for nth in 0..KILLS {
            let life = format!("{kind} {} {}", nth * NUMBERS, dir.path().display());
            promised.kill_one(&life, 1 + (31 * seed + 97 * nth) % LIFE_MAX);
            promised.check(kind, dir.path());
        }
        assert!(promised.passed > 0, "{kind}: no checkpoint was made");
    }
}

/// Numbers of one process: none is used again.
const NUMBERS: u64 = 1 << 20;
