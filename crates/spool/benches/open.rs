//! Measures appends, checkpoints, an opening and a replay with many batches that a stream still needs, most of them in packs, and the memory of it all. The opening
//! happens in a process of its own that finds nothing of the spool in the page cache. Leaves out large bodies and reads.
//!
//! `cargo test` runs it tiny so it cannot rot; `cargo bench -p posthaste-spool --bench open -- 1000000` runs it whole. Options: `--body N` bytes of each body (default 200),
//! `--every N`: only each Nth batch stays needed (default 1), `--segments N` of 64 MiB in the ring (default 64), `--dir DIR` on a real disk (default: the target directory). To
//! compare builds on the same spool: `--fill DIR` makes it and leaves it there, `--cold --open DIR` opens it, with nothing in the page cache. Bodies are zeros, so that
//! `fallocate --dig-holes` on finished packs makes room for more than the disk has.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{AppendError, Batch, Body, Config, Entry, FileSpool, Lsn, Released, Replayed, Spool, StreamId};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let number = |name: &str| value(name).and_then(|value| value.parse::<u64>().ok());
    let segments = number("--segments").unwrap_or(64);
    if let Some(dir) = value("--open") {
        if args.iter().any(|arg| arg == "--cold") {
            forget_cached(Path::new(dir));
        }
        return open(Path::new(dir), segments);
    }
    let count = args.get(1).and_then(|count| count.parse().ok()).unwrap_or(2000u64);
    let (every, body) = (number("--every").unwrap_or(1), number("--body").unwrap_or(200) as usize);
    if let Some(dir) = value("--fill") {
        return fill(Path::new(dir), segments, count, every, body);
    }
    let program = std::env::current_exe().expect("this program has a path");
    let base = value("--dir").map_or_else(|| program.parent().expect("a directory").to_owned(), PathBuf::from);
    let dir = tempfile::tempdir_in(base).expect("a directory");
    fill(dir.path(), segments, count, every, body);
    forget_cached(dir.path());
    let (segments, dir) = (segments.to_string(), dir.path().as_os_str());
    let opened = std::process::Command::new(program).args(["--segments", &segments, "--open"]).arg(dir).status();
    assert!(opened.expect("a process").success());
}

fn config(segments: u64) -> Config {
    let ring = posthaste_ring::Config { max_segments: segments as usize, ..Default::default() };
    Config { ring, scrub_bytes_per_sec: 0, ..Config::default() }
}

/// Makes a spool in which `count` batches are needed.
fn fill(dir: &Path, segments: u64, count: u64, every: u64, body: usize) {
    let (spool, _) = FileSpool::open(dir, config(segments)).expect("it opens");
    let [stuck, quick, keeps] = ["stuck", "quick", "keeps"].map(|name| spool.stream(name).expect("a stream"));
    let body = Bytes::from(vec![0; body]);
    let begun = Instant::now();
    let streams = |n: u64| match (n.is_multiple_of(every), n.is_multiple_of(KEPT_EVERY * every)) {
        (true, true) => vec![stuck, keeps],
        (true, false) => vec![stuck],
        (false, _) => vec![quick],
    };
    let after = append(&spool, count * every, streams, &body);
    report("appended", begun.elapsed(), &format!("{:.0}/s", (count * every) as f64 / begun.elapsed().as_secs_f64()));
    spool.advance(quick, after, None, Released { below: after, also: Vec::new() });
    let (begun, cpu) = (Instant::now(), cpu_time());
    spool.checkpoint().expect("a checkpoint");
    report("checkpoint", begun.elapsed(), &format!("cpu {:?}", cpu_time() - cpu));
    // Some new batches, and some released here and there, so that every live file is rewritten.
    append(&spool, count / 100, |_| vec![stuck], &body);
    let first = after.get() + 1 - count * every;
    let also = (0..count / KEPT_EVERY / 2).map(|n| Lsn::new(first + 2 * n * KEPT_EVERY * every));
    spool.advance(keeps, after, None, Released { below: Lsn::ZERO, also: also.collect() });
    let (begun, cpu) = (Instant::now(), cpu_time());
    spool.checkpoint().expect("a checkpoint");
    report("checkpoint after changes", begun.elapsed(), &format!("cpu {:?}", cpu_time() - cpu));
    // After the checkpoint.
    append(&spool, count / 10, |_| vec![stuck], &body);
    let stats = spool.file_stats();
    let what =
        format!("{} packs, {} segments, {} MiB at most", stats.packs, stats.ring.segments_in_service, peak_mib());
    report("filled", Duration::ZERO, &what);
    spool.abandon();
}

/// Appends `count` batches, waits until they are durable, and returns the last LSN.
fn append(spool: &FileSpool, count: u64, streams: impl Fn(u64) -> Vec<StreamId>, body: &Bytes) -> Lsn {
    let [durable, refused, last] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
    let window = (WINDOW_BYTES / (body.len() as u64 + 1)).clamp(1, WINDOW);
    let mut sent = 0;
    while durable.load(Ordering::Acquire) < count {
        let ended = durable.load(Ordering::Acquire) + refused.load(Ordering::Acquire);
        if sent - refused.load(Ordering::Acquire) >= count || sent - ended >= window {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let (told, again, last) = (durable.clone(), refused.clone(), last.clone());
        let payload = Bytes::from_static(b"somebody@example.org");
        let entry = |stream| Entry { stream, needs_body: true, payload: payload.clone() };
        let entries = streams(sent).into_iter().map(entry).collect();
        let batch = Batch { entries, body: Body::inline(vec![body.clone()]) };
        let then = move |outcome: Result<Lsn, AppendError>| match outcome {
            Ok(lsn) => {
                last.store(lsn.get(), Ordering::Release);
                told.fetch_add(1, Ordering::Release);
            }
            // Packing cannot keep pace: this one is replaced by a new batch.
            Err(AppendError::Full(_) | AppendError::Busy) => drop(again.fetch_add(1, Ordering::Release)),
            Err(error) => panic!("{error}"),
        };
        spool.append(batch, Box::new(then));
        sent += 1;
    }
    Lsn::new(last.load(Ordering::Acquire))
}

fn open(dir: &Path, segments: u64) {
    let before = peak_mib();
    let (begun, cpu) = (Instant::now(), cpu_time());
    let (spool, found) = FileSpool::open(dir, config(segments)).expect("it opens");
    let (took, cpu) = (begun.elapsed(), cpu_time() - cpu);
    let opened = format!("cpu {cpu:?}, {} MiB at most, {before} before", peak_mib());
    assert!(found.damage.is_empty(), "{:?}", found.damage);
    report("opened", took, &opened);
    let (mut shown, begun, cpu) = (0u64, Instant::now(), cpu_time());
    let visit = &mut |replayed: Replayed<'_>| shown += u64::from(matches!(replayed, Replayed::Entry { .. }));
    spool.replay(spool.stream("stuck").expect("known"), visit).expect("a replay");
    report(
        "replayed",
        begun.elapsed(),
        &format!("cpu {:?}, {shown} entries, {} MiB at most", cpu_time() - cpu, peak_mib()),
    );
    spool.abandon();
}

fn report(what: &str, took: Duration, more: &str) {
    println!("{what:>26} {:>9.3} s  {more}", took.as_secs_f64());
}

/// Drops the page cache of the files below a directory. All of them are durable.
fn forget_cached(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        if entry.file_type().expect("a type").is_dir() {
            forget_cached(&entry.path());
        } else {
            let file = std::fs::File::open(entry.path()).expect("a file");
            file.sync_all().expect("synced");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        }
    }
}

/// Peak memory of this process, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or_default() / 1024
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One needed batch in this many has a body that a second stream keeps.
const KEPT_EVERY: u64 = 50;
/// Batches in flight, and bytes of their bodies.
const WINDOW: u64 = 8192;
const WINDOW_BYTES: u64 = 64 << 20;
