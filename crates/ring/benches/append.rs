//! Measures appends/s of the ring at 1, 64 and 256 callers with bodies of 10 KiB: each is answered
//! after the sync, and what is 128 MiB old is freed. The callers are records under way that one thread begins and is told of.
//! Leaves out everything above the log. `cargo test` runs it tiny so it cannot rot; `cargo bench` runs it whole. Files lie in
//! `$POSTHASTE_BENCH_DIR` or the target directory, never on tmpfs.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_ring::{Lsn, OnRecord, Ring};

const BODY_BYTES: usize = 10 << 10;
/// Age at which records are freed.
const KEPT_BYTES: usize = 128 << 20;

fn main() {
    // `cargo bench` passes --bench; without it this is a test of the benchmark.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let (time, rounds) = if whole { (Duration::from_millis(2000), 7) } else { (Duration::from_millis(10), 1) };
    let dir = scratch();
    println!("appends/s of 10 KiB, median of {rounds} (least-most)");
    for callers in [1, 64, 256] {
        let mut rates = Vec::new();
        for _ in 0..rounds {
            rates.push(ring(&dir.join("log"), time, callers));
            std::fs::remove_dir_all(dir.join("log")).expect("remove the log");
        }
        rates.sort_by(f64::total_cmp);
        println!("{callers:>4} callers {:>9.0}  ({:.0}-{:.0})", rates[rounds / 2], rates[0], rates[rounds - 1]);
    }
    std::fs::remove_dir_all(&dir).expect("remove scratch");
}

/// Appends a second in a directory of its own, for so long, with so many under way.
fn ring(dir: &Path, time: Duration, callers: usize) -> f64 {
    let (ring, _) = Ring::open(dir, posthaste_ring::Config::default(), OnRecord::default()).expect("open");
    let (head, body, (tell, told)) = (head(), body(), channel());
    let begin = || {
        let tell = tell.clone();
        let (head, body) = (vec![head.clone()], vec![body.clone()]);
        ring.append(head, body, move |outcome| tell.send(outcome.expect("durable")).expect("told"));
    };
    measure(time, callers, begin, &told, || ring.free_below(u64::MAX))
}

fn measure(time: Duration, callers: usize, begin: impl Fn(), told: &Receiver<Lsn>, free: impl Fn()) -> f64 {
    let begun = Instant::now();
    (0..callers).for_each(|_| begin());
    let (mut records, mut kept_bytes) = (0, 0);
    while begun.elapsed() < time {
        told.recv().expect("an answer");
        begin();
        records += 1;
        kept_bytes += BODY_BYTES;
        if kept_bytes >= KEPT_BYTES {
            free();
            kept_bytes = 0;
        }
    }
    let rate = f64::from(records) / begun.elapsed().as_secs_f64();
    // The log is removed afterwards, so nothing may be under way.
    told.iter().take(callers).for_each(|_: Lsn| ());
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
