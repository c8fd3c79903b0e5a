//! Measures appends/s of `posthaste-journal` and the ring, in turns, at 1, 64 and 256 callers with bodies of 10 KiB: each is answered
//! after the sync, and what is 128 MiB old is freed. The callers are records under way that one thread begins and is told of.
//! Leaves out everything above the log. `cargo test` runs it tiny so it cannot rot; `cargo bench` runs it whole. Files lie in
//! `$POSTHASTE_BENCH_DIR` or the target directory, never on tmpfs.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_journal::{Journal, KIND_USER};
use posthaste_ring::{Lsn, Ring};

const BODY_BYTES: usize = 10 << 10;
/// What is this old is freed.
const KEPT_BYTES: usize = 128 << 20;

fn main() {
    // `cargo bench` passes --bench; without it this is a test of the benchmark.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let (time, rounds) = if whole { (Duration::from_millis(2000), 7) } else { (Duration::from_millis(10), 1) };
    let dir = scratch();
    println!("appends/s of 10 KiB, median of {rounds} (least-most)");
    for callers in [1, 64, 256] {
        let sides: [(&str, Side); 2] = [("posthaste-journal", journal), ("posthaste-ring", ring)];
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for ((_, side), rates) in sides.iter().zip(&mut rates) {
                rates.push(side(&dir.join("log"), time, callers));
                std::fs::remove_dir_all(dir.join("log")).expect("remove the log");
            }
        }
        println!("{callers} callers");
        for ((name, _), mut rates) in sides.iter().zip(rates) {
            rates.sort_by(f64::total_cmp);
            println!("  {name:<20} {:>9.0}  ({:.0}-{:.0})", rates[rounds / 2], rates[0], rates[rounds - 1]);
        }
    }
    std::fs::remove_dir_all(&dir).expect("remove scratch");
}

/// Appends a second in a directory of its own, for so long, with so many under way.
type Side = fn(&Path, Duration, usize) -> f64;

fn journal(dir: &Path, time: Duration, callers: usize) -> f64 {
    let (journal, _) = Journal::open(dir, posthaste_journal::Config::default()).expect("open");
    let (head, body, (tell, told)) = (head(), body(), channel());
    let begin = || {
        let tell = tell.clone();
        let parts = vec![head.clone(), body.clone()];
        journal.append_then(KIND_USER, parts, move |outcome| tell.send(outcome.expect("durable")).expect("told"));
    };
    measure(time, callers, begin, &told, |ids| {
        journal.settle_all(ids);
        journal.checkpoint(|| Ok(())).expect("checkpoint");
    })
}

fn ring(dir: &Path, time: Duration, callers: usize) -> f64 {
    let (ring, _) = Ring::open(dir, posthaste_ring::Config::default(), 0, Lsn::ZERO).expect("open");
    let (head, body, (tell, told)) = (head(), body(), channel());
    let begin = || {
        let tell = tell.clone();
        let (head, body) = (vec![head.clone()], vec![body.clone()]);
        ring.append(head, body, move |outcome| tell.send(outcome.expect("durable")).expect("told"));
    };
    measure(time, callers, begin, &told, |_| ring.free_below(u64::MAX))
}

fn measure<T>(
    time: Duration,
    callers: usize,
    begin: impl Fn(),
    told: &Receiver<T>,
    mut free: impl FnMut(Vec<T>),
) -> f64 {
    let begun = Instant::now();
    (0..callers).for_each(|_| begin());
    let (mut records, mut kept) = (0, Vec::new());
    while begun.elapsed() < time {
        kept.push(told.recv().expect("an answer"));
        begin();
        records += 1;
        if kept.len() * BODY_BYTES >= KEPT_BYTES {
            free(std::mem::take(&mut kept));
        }
    }
    let rate = f64::from(records) / begun.elapsed().as_secs_f64();
    (0..callers).for_each(|_| drop(told.recv()));
    rate
}

fn head() -> Bytes {
    vec![7; 100].into()
}

fn body() -> Bytes {
    vec![b'm'; BODY_BYTES].into()
}

fn scratch() -> PathBuf {
    let base = std::env::var_os("POSTHASTE_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let dir = base.join(format!("bench-append-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("scratch directory");
    let kind = rustix::fs::statfs(&dir).expect("statfs").f_type;
    const TMPFS: i64 = 0x0102_1994;
    assert_ne!(kind as i64, TMPFS, "{} is on tmpfs, where syncs cost nothing", dir.display());
    dir
}
