//! A run of operations on a spool on a recorded machine, from a seed, with a log of its promises.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_fsops::{Faults, Machine};
use posthaste_spool::{
    AppendError, Batch, Body, Cancelled, Config, Consumer, Entry, FileSpool, FrontFields, Lsn, Published, Released,
    SnapshotName, Spool, StreamId,
};
use posthaste_turns::Random;
use rustix::io::Errno;

pub const STREAMS: usize = 3;
/// Never advances.
pub const STUCK: usize = 0;

/// A batch that somebody has tried to append.
pub struct Letter {
    pub entries: Vec<(usize, bool)>,
    /// Front fields first.
    pub body: Vec<u8>,
}

/// Events in order; the recording has the index of each.
#[derive(Clone)]
pub enum Mark {
    Acknowledged {
        letter: usize,
        lsn: u64,
    },
    Cancelled {
        letter: usize,
    },
    /// Asked for from here on.
    Advanced {
        stream: usize,
        position: u64,
        snapshot: Option<SnapshotName>,
        released: Released,
    },
    /// A checkpoint is durable that began when there were so many marks.
    Durable {
        marks: usize,
    },
    /// The process begins: it knows what the last checkpoint says, and nothing that was asked for since.
    Begun,
}

#[derive(Default)]
pub struct Log {
    pub letters: Mutex<Vec<Arc<Letter>>>,
    pub marks: Mutex<Vec<Mark>>,
    /// Batches shown to the consumer.
    shown: Mutex<BTreeSet<u64>>,
}

impl Log {
    /// State before this process.
    pub fn of(letters: &[Arc<Letter>], marks: &[Mark]) -> Self {
        Log { letters: letters.to_vec().into(), marks: marks.to_vec().into(), ..Log::default() }
    }

    pub fn note(&self, machine: &Machine, mark: Mark) {
        let mut marks = self.marks.lock().unwrap();
        marks.push(mark);
        machine.acknowledge(marks.len() as u64 - 1);
    }

    pub fn letters(&self) -> Vec<Arc<Letter>> {
        self.letters.lock().unwrap().clone()
    }

    pub fn marks(&self) -> Vec<Mark> {
        self.marks.lock().unwrap().clone()
    }

    /// A process begins with what a recovery has shown: no later cut may take that back.
    pub fn recovered(&self, machine: &Machine, spool: &FileSpool, shown: &BTreeMap<u64, usize>) {
        self.note(machine, Mark::Begun);
        for (&lsn, &letter) in shown {
            self.note(machine, Mark::Acknowledged { letter, lsn });
        }
        for (stream, id) in streams(spool).expect("nothing fails yet").into_iter().enumerate() {
            let (position, snapshot) = spool.position(id);
            let (position, released) = (position.get(), Released::default());
            self.note(machine, Mark::Advanced { stream, position, snapshot, released });
        }
        let marks = self.len();
        self.note(machine, Mark::Durable { marks });
    }

    fn len(&self) -> usize {
        self.marks.lock().unwrap().len()
    }
}

struct Shown(Arc<Log>);

impl Consumer for Shown {
    fn published(&self, entry: Published) {
        self.0.shown.lock().unwrap().insert(number(&entry.payload) as u64);
    }

    fn advance_wanted(&self, _: Lsn) {}
}

pub fn number(payload: &[u8]) -> usize {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}

pub fn config(keeper: bool) -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 5, ..Default::default() };
    Config {
        ring,
        keeper,
        pack_bytes: 100 << 10,
        checkpoint_every: Duration::from_secs(5),
        free_bytes_min: 0,
        free_inodes_min: 0,
        ..Config::default()
    }
}

pub fn spool_dir(machine: &Machine) -> std::path::PathBuf {
    machine.path().join("spool")
}

pub fn streams(spool: &FileSpool) -> Option<Vec<StreamId>> {
    (0..STREAMS).map(|n| spool.stream(&format!("stream {n}")).ok()).collect()
}

/// Faults of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    None,
    Syncs,
    Writes,
}

/// Opens, does something, and ends, as a process: with a last checkpoint or without one. Twice.
pub fn lives(machine: &Arc<Machine>, log: &Arc<Log>, seed: u64, trouble: Trouble) {
    let mut random = Random::new(seed);
    for _ in 0..2 {
        let keeper = random.below(2) == 0;
        machine.set_faults(Faults::default());
        let Ok((spool, report)) = FileSpool::open(&spool_dir(machine), config(keeper)) else {
            panic!("it does not open where nothing fails")
        };
        assert_eq!(report.damage, []);
        log.note(machine, Mark::Begun);
        live(machine, log, &mut random, spool, trouble, STEPS);
    }
}

/// Works on a spool that is open, for so many steps, and ends.
pub fn live(
    machine: &Arc<Machine>,
    log: &Arc<Log>,
    random: &mut Random,
    spool: FileSpool,
    trouble: Trouble,
    steps: usize,
) {
    let ids = streams(&spool).expect("nothing fails yet");
    let (syncs, changes) = machine.counts();
    machine.set_faults(match trouble {
        Trouble::None => Faults::default(),
        Trouble::Syncs => Faults { fail_syncs: vec![syncs + 20 + random.below(100)], ..Faults::default() },
        Trouble::Writes => {
            let first = changes + 20 + random.below(200);
            let errno = [Errno::NOSPC, Errno::IO, Errno::MFILE][random.below(3) as usize];
            Faults { fail_changes: Some((first..first + 1 + random.below(4), errno)), ..Faults::default() }
        }
    });
    work(machine, log, random, &spool, &ids, steps);
    if random.below(2) == 0 {
        spool.abandon();
    }
    // Or it ends with a checkpoint, of which nobody is told.
}

fn work(
    machine: &Arc<Machine>,
    log: &Arc<Log>,
    random: &mut Random,
    spool: &FileSpool,
    ids: &[StreamId],
    steps: usize,
) {
    if let Ok(shown) = spool.replay(ids[1], &mut |_| ()) {
        drop(spool.attach(ids[1], shown, Arc::new(Shown(log.clone()))));
    }
    for _ in 0..steps {
        match random.below(16) {
            0..9 => append(machine, log, random, spool, ids),
            9..11 => advance(machine, log, random, spool, ids),
            11 => drop(spool.pack_oldest(1 + random.below(3) as usize)),
            12 => drop(spool.clean_packs()),
            13 => std::thread::sleep(Duration::from_secs(random.below(4))),
            _ => {
                let marks = log.len();
                if spool.checkpoint().is_ok() {
                    log.note(machine, Mark::Durable { marks });
                }
            }
        }
    }
}

fn append(machine: &Arc<Machine>, log: &Arc<Log>, random: &mut Random, spool: &FileSpool, ids: &[StreamId]) {
    let all = 1 + random.below((1 << STREAMS) - 1);
    let mut entries: Vec<(usize, bool)> =
        (0..STREAMS).filter(|n| all >> n & 1 == 1).map(|n| (n, random.below(4) != 0)).collect();
    if random.below(4) != 0 {
        // The stuck one would fill the disk.
        entries.retain(|entry| entry.0 != STUCK);
        if entries.is_empty() {
            entries.push((1, true));
        }
    }
    let len = [0, 300, 9000, 20_000][random.below(4) as usize] + random.below(300);
    let body: Vec<u8> = (0..len).map(|at| (at * 13 + at / 256) as u8 ^ all as u8).collect();
    let front = if random.below(2) == 0 { "" } else { "Received: from somewhere\r\n by this spool\r\n" };
    let letter = {
        let mut letters = log.letters.lock().unwrap();
        letters.push(Arc::new(Letter { entries: entries.clone(), body: [front.as_bytes(), &body].concat() }));
        letters.len() - 1
    };
    let front = FrontFields::new(front).expect("lines");
    let body = if body.len() > 300 && random.below(4) == 0 {
        let uploaded = (|| {
            let mut upload = spool.upload(0)?;
            upload.write(&body)?;
            upload.finish()
        })();
        let Ok(upload) = uploaded else { return };
        Body::File(front, upload)
    } else {
        Body::Inline(front, vec![body.into()])
    };
    let payload = Bytes::from(letter.to_string());
    let entry =
        |&(stream, needs_body): &(usize, bool)| Entry { stream: ids[stream], needs_body, payload: payload.clone() };
    let batch = Batch { entries: entries.iter().map(entry).collect(), body };
    let ticket = spool.append(batch, {
        let (machine, log) = (machine.clone(), log.clone());
        Box::new(move |outcome: Result<Lsn, AppendError>| {
            if let Ok(lsn) = outcome {
                log.note(&machine, Mark::Acknowledged { letter, lsn: lsn.get() });
            }
        })
    });
    if random.below(8) == 0 {
        for _ in 0..random.below(30) {
            std::thread::yield_now();
        }
        let cancelled = ticket.cancel();
        if let Cancelled::Written(lsn) = cancelled {
            // Only when the spool has heard of it can a checkpoint know; where the write fails that is never.
            for _ in 0..1000 {
                if spool.stats().published >= lsn {
                    log.note(machine, Mark::Cancelled { letter });
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if cancelled != Cancelled::TooLate {
            let is_shown = log.shown.lock().unwrap().contains(&(letter as u64));
            assert!(!is_shown, "letter {letter} was cancelled and shown");
        }
    } else if random.below(2) == 0 {
        // Waits for it, as most do.
        std::thread::sleep(Duration::from_millis(random.below(50)));
    }
}

fn advance(machine: &Machine, log: &Log, random: &mut Random, spool: &FileSpool, ids: &[StreamId]) {
    let stream = 1 + random.below(STREAMS as u64 - 1) as usize;
    let known: Vec<u64> = {
        let marks = log.marks.lock().unwrap();
        let lsn = |mark: &Mark| if let Mark::Acknowledged { lsn, .. } = mark { Some(*lsn) } else { None };
        marks.iter().filter_map(lsn).collect()
    };
    if known.is_empty() {
        return;
    }
    let mut some = || known[random.below(known.len() as u64) as usize];
    let (position, below, also) = (some().max(some()), some(), vec![some(), some()]);
    let released = Released { below: Lsn::new(below), also: also.into_iter().map(Lsn::new).collect() };
    let snapshot = if random.below(2) == 0 { write_snapshot(log, spool, stream) } else { None };
    let mark = Mark::Advanced { stream, position, snapshot: snapshot.clone(), released: released.clone() };
    log.note(machine, mark);
    spool.advance(ids[stream], Lsn::new(position), snapshot, released);
}

/// A name that is not used twice, and a file that says it.
fn write_snapshot(log: &Log, spool: &FileSpool, stream: usize) -> Option<SnapshotName> {
    let name = SnapshotName::new(&format!("{stream}.{}", log.len())).expect("a name");
    spool.write_snapshot(&name, &mut |out| out.write_all(&content_of(&name))).is_ok().then_some(name)
}

/// Content of a snapshot.
pub fn content_of(name: &SnapshotName) -> Vec<u8> {
    name.as_str().repeat(300).into_bytes()
}

/// Files that must be gone from these directories once no batch is needed.
pub fn left_over(spool: &Path) -> Vec<String> {
    let names = |dir: &str| {
        let entries = std::fs::read_dir(spool.join(dir)).unwrap();
        entries.map(|entry| entry.unwrap().path().display().to_string()).collect::<Vec<_>>()
    };
    ["packs", "bodies", "live", "snapshots"].iter().flat_map(|dir| names(dir)).collect()
}

const STEPS: usize = 60;
/// Of a life that follows a cut.
pub const STEPS_AFTER_CUT: usize = 25;
