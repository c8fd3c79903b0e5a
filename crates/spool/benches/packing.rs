//! Measures what packing costs those who append: 64 appends of 10 KiB under way for some seconds, with and without half of the ring being copied into packs meanwhile, in turns.
//! Shown: appends/s, the time of one (p50, p99, longest), and MB/s that were packed; then packing with nobody appending, with the CPU of a body that is copied. Leaves out consumers.
//!
//! `cargo test` runs it tiny so it cannot rot; `cargo bench -p posthaste-spool --bench packing` runs it whole. Options after `--`: `--seconds N` for each turn (default 4),
//! `--rounds N` (default 3), `--dir DIR` on a real disk (default: where this program is).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{AppendError, Batch, Body, Config, Entry, FileSpool, Lsn, Released, Spool, StreamId};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let number = |name: &str| value(name).and_then(|value| value.parse::<u64>().ok());
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let time = if is_bench { Duration::from_secs(number("--seconds").unwrap_or(4)) } else { Duration::from_millis(20) };
    let (segment_bytes, rounds) = if is_bench { (64 << 20, number("--rounds").unwrap_or(3)) } else { (1 << 20, 1) };
    let program = std::env::current_exe().expect("this program has a path");
    let base = value("--dir").map_or_else(|| program.parent().expect("a directory").to_owned(), PathBuf::from);
    for _ in 0..rounds {
        for packs in [false, true] {
            let dir = tempfile::tempdir_in(&base).expect("a directory");
            let ring = posthaste_ring::Config { segment_bytes, max_segments: 100, ..Default::default() };
            let config = Config { ring, keeper: false, pack_bytes: 4 * segment_bytes, ..Config::default() };
            let (spool, _) = FileSpool::open(dir.path(), config).expect("it opens");
            turn(&spool, segment_bytes, time, packs);
            if packs {
                pack_alone(&spool);
            }
        }
    }
}

fn turn(spool: &FileSpool, segment_bytes: u64, time: Duration, packs: bool) {
    let stream = spool.stream("queue").expect("a stream");
    // Sixteen segments, of which every second record is needed.
    let mut last = Lsn::ZERO;
    drive(spool, stream, |lsn, sent| {
        last = lsn;
        sent * BODY as u64 * 100 / 99 < 16 * segment_bytes
    });
    let also = (0..last.get()).step_by(2).map(|n| Lsn::new(last.get() - n)).take_while(|lsn| lsn.get() > LSN_GAP);
    let also = also.collect();
    spool.advance(stream, last, None, Released { below: Lsn::ZERO, also });
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let (mut times, packed) = std::thread::scope(|scope| {
        let packing = packs.then(|| {
            scope.spawn(|| {
                let before = Instant::now();
                let mut packed = 1;
                while packed > 0 && !over.load(Ordering::Relaxed) {
                    packed = spool.pack_oldest(1).expect("a pack");
                }
                spool.file_stats().pack_bytes as f64 / 1e6 / before.elapsed().as_secs_f64()
            })
        });
        let times = drive(spool, stream, |_, _| begun.elapsed() < time);
        over.store(true, Ordering::Relaxed);
        (times, packing.map(|packing| packing.join().expect("it packs")))
    });
    let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
    let packed = packed.map_or_else(|| "no packing".to_owned(), |rate| format!("{rate:.0} MB/s packed"));
    println!("{rate:>9.0}/s  p50 {:>6} p99 {:>7} longest {:>7} us  {packed}", at(0.5), at(0.99), at(1.0));
}

/// Packs the remains of the appends, after releasing every second body.
fn pack_alone(spool: &FileSpool) {
    let stream = spool.stream("queue").expect("a stream");
    let last = spool.stats().published;
    let also = (0..last.get() - LSN_GAP).step_by(2).map(|n| Lsn::new(last.get() - n)).collect();
    spool.advance(stream, last, None, Released { below: Lsn::ZERO, also });
    let (before, begun, cpu) = (spool.file_stats().pack_bytes, Instant::now(), cpu_time());
    while spool.pack_oldest(1).expect("a pack") > 0 {}
    let (took, cpu) = (begun.elapsed(), cpu_time() - cpu);
    let bytes = (spool.file_stats().pack_bytes - before) as f64;
    let each = cpu.as_secs_f64() * 1e6 / (bytes / BODY as f64);
    println!("packing alone: {:.0} MB/s, {each:.1} us of CPU a body of 10 KiB", bytes / 1e6 / took.as_secs_f64());
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Keeps `WINDOW` appends in flight until `goes_on`, called with the last durable LSN and the number of durable
/// batches, returns false. Returns the time of each append.
fn drive(spool: &FileSpool, stream: StreamId, mut goes_on: impl FnMut(Lsn, u64) -> bool) -> Vec<Duration> {
    let body = Bytes::from(vec![7; BODY]);
    let (tell, told) = channel();
    let append = || {
        let entry = Entry { stream, needs_body: true, payload: Bytes::from_static(b"somebody@example.org") };
        let batch = Batch { entries: vec![entry], body: Body::inline(vec![body.clone()]) };
        let (tell, begun) = (tell.clone(), Instant::now());
        let then = move |outcome: Result<Lsn, AppendError>| {
            tell.send((outcome.expect("durable"), begun.elapsed())).expect("somebody listens");
        };
        spool.append(batch, Box::new(then));
    };
    let (mut times, mut under_way, mut ends) = (Vec::new(), CALLERS, false);
    (0..CALLERS).for_each(|_| append());
    while under_way > 0 {
        let (lsn, took) = told.recv().expect("an answer");
        times.push(took);
        under_way -= 1;
        ends = ends || !goes_on(lsn, times.len() as u64);
        if !ends {
            append();
            under_way += 1;
        }
    }
    times
}

const BODY: usize = 10 << 10;
const CALLERS: usize = 64;
/// Gap before the first LSN of a new spool.
const LSN_GAP: u64 = 1 << 20;
