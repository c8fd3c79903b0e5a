//! Measures what the journal's constants and its way of writing rest on: the size of a segment, zeros against `fallocate`, a
//! second flush in flight, and where large bodies go. Buffered writes, every side synced before it counts.
//! Leaves out everything above the journal. `cargo test` runs it tiny so it cannot rot; `cargo bench` runs it whole, and with
//! `-- segment`, `batch`, `wait`, `zeros`, `flights` or `bodies` that part alone. Files lie in `$POSTHASTE_BENCH_DIR` or the target
//! directory, never on tmpfs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_journal::{Config, Journal, KIND_USER};

const MIB: u64 = 1 << 20;

fn main() {
    // `cargo bench` passes --bench; without it this is a test of the benchmark.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let (time, rounds) = if whole { (Duration::from_millis(1000), 5) } else { (Duration::from_millis(10), 1) };
    let dir = scratch();
    let bench = Bench { dir: &dir, time, rounds };

    let parts: [(&str, Part); 6] = [
        ("segment", segment_sizes),
        ("batch", batch_sizes),
        ("wait", waits),
        ("zeros", zeros),
        ("flights", flights),
        ("bodies", large_bodies),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            part(&bench);
        }
    }
    std::fs::remove_dir_all(&dir).expect("remove scratch");
}

fn segment_sizes(bench: &Bench<'_>) {
    println!("segment size: records/s of 10 KiB, 64 callers, at most 1 GiB in segments, a checkpoint each 128 MiB");
    let sizes: &[u64] = if bench.rounds > 1 { &[16, 64, 256] } else { &[4, 8] };
    let size = |mib: u64| {
        move |dir: &Path, time| {
            let max_segments = (1024 / mib).max(4) as usize;
            appends(dir, time, 64, Config { segment_bytes: mib * MIB, max_segments, ..Config::default() })
        }
    };
    bench.compare(sizes.iter().map(|&mib| (format!("{mib} MiB"), boxed(size(mib)))).collect());
}

fn batch_sizes(bench: &Bench<'_>) {
    for callers in [64, 256, 1024] {
        println!("records in a commit at most: records/s of 10 KiB, {callers} callers");
        let most =
            |max_batch| move |dir: &Path, time| appends(dir, time, callers, Config { max_batch, ..Config::default() });
        bench.compare([32, 128, 1024].map(|n| (format!("{n}"), boxed(most(n)))).into());
    }
}

fn waits(bench: &Bench<'_>) {
    for callers in [1, 64] {
        println!("waiting for company: records/s of 10 KiB, {callers} callers");
        let wait = |us| {
            let max_wait = Duration::from_micros(us);
            move |dir: &Path, time| appends(dir, time, callers, Config { max_wait, ..Config::default() })
        };
        bench.compare([0, 200, 1000].map(|us| (format!("{us} us"), boxed(wait(us)))).into());
    }
}

fn zeros(bench: &Bench<'_>) {
    println!(
        "segment file of 64 MiB: commits/s of 80 KiB written one behind the other, each with an fdatasync, first pass over the file"
    );
    bench.compare(vec![
        ("written with zeros".into(), boxed(|dir, time| commits(dir, time, Made::Zeros))),
        ("fallocate".into(), boxed(|dir, time| commits(dir, time, Made::Allocated))),
        ("fallocate, second pass".into(), boxed(|dir, time| commits(dir, time, Made::AllocatedAndWritten))),
    ]);
}

fn flights(bench: &Bench<'_>) {
    println!("flushes in flight: commits/s into one file of zeros, each with an fdatasync, by as many threads");
    for bytes in [4 << 10, 80 << 10, 640 << 10] {
        println!("  commits of {} KiB", bytes >> 10);
        bench.compare(
            (1..=3)
                .map(|flights| {
                    (format!("{flights}"), boxed(move |dir: &Path, time| in_flight(dir, time, flights, bytes)))
                })
                .collect(),
        );
    }
}

fn large_bodies(bench: &Bench<'_>) {
    for mib in [1, 4, 16] {
        for callers in [1, 4] {
            println!("bodies of {mib} MiB, {callers} at once: MiB/s durable");
            bench.compare(vec![
                ("in a record".into(), boxed(move |dir: &Path, time| bodies(dir, time, mib, callers, false))),
                ("in a file of its own".into(), boxed(move |dir: &Path, time| bodies(dir, time, mib, callers, true))),
            ]);
        }
    }
}

/// Prints one comparison, or a few that belong together.
type Part = fn(&Bench<'_>);
type Side = Box<dyn Fn(&Path, Duration) -> f64>;

fn boxed(side: impl Fn(&Path, Duration) -> f64 + 'static) -> Side {
    Box::new(side)
}

struct Bench<'a> {
    dir: &'a Path,
    time: Duration,
    rounds: usize,
}

impl Bench<'_> {
    /// Runs the sides in turns, so that a noisy minute hits all of them.
    fn compare(&self, sides: Vec<(String, Side)>) {
        let mut rates = vec![Vec::new(); sides.len()];
        for _ in 0..self.rounds {
            for ((_, side), rates) in sides.iter().zip(&mut rates) {
                rates.push(side(self.dir, self.time));
            }
        }
        for ((name, _), mut rates) in sides.iter().zip(rates) {
            rates.sort_by(f64::total_cmp);
            let (least, most) = (rates[0], rates[rates.len() - 1]);
            println!("  {name:<24} {:>9.0}  ({least:.0}-{most:.0})", rates[rates.len() / 2]);
        }
    }
}

/// Records a second with this many appends in flight; a checkpoint each 128 MiB.
fn appends(dir: &Path, time: Duration, callers: usize, config: Config) -> f64 {
    let path = dir.join("journal");
    let (journal, _) = Journal::open(&path, config).expect("open");
    let body = text(10 << 10);
    let begun = Instant::now();
    let (mut records, mut flight, mut unsettled) = (0, std::collections::VecDeque::new(), Vec::new());
    while begun.elapsed() < time {
        while flight.len() < callers {
            flight.push_back(journal.append(KIND_USER, vec![body.clone()]));
        }
        unsettled.push(flight.pop_front().expect("callers > 0").wait().expect("durable"));
        records += 1;
        if unsettled.len() as u64 * (10 << 10) >= 128 * MIB {
            unsettled.drain(..).for_each(|id| journal.settle(id));
            journal.checkpoint(|| Ok(())).expect("checkpoint");
        }
    }
    let rate = f64::from(records) / begun.elapsed().as_secs_f64();
    drop((flight, journal));
    std::fs::remove_dir_all(&path).expect("remove journal");
    rate
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Zeros,
    Allocated,
    AllocatedAndWritten,
}

const SEGMENT: u64 = 64 * MIB;

fn commits(dir: &Path, time: Duration, made: Made) -> f64 {
    let path = dir.join("segment");
    let file = File::create(&path).expect("create");
    match made {
        Made::Zeros => fill(&file),
        Made::Allocated | Made::AllocatedAndWritten => {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SEGMENT).expect("fallocate");
        }
    }
    file.sync_all().expect("sync");
    let body = text(80 << 10);
    let places = SEGMENT / body.len() as u64;
    let pass = |until: Instant| {
        let mut commits = 0u64;
        while Instant::now() < until && commits < places {
            file.write_all_at(&body, commits * body.len() as u64).expect("write");
            file.sync_data().expect("sync");
            commits += 1;
        }
        commits
    };
    if made == Made::AllocatedAndWritten {
        pass(Instant::now() + Duration::from_secs(60));
    }
    let begun = Instant::now();
    let commits = pass(begun + time);
    let rate = commits as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path).expect("remove");
    rate
}

fn in_flight(dir: &Path, time: Duration, flights: usize, bytes: usize) -> f64 {
    let path = dir.join("segment");
    let file = File::create(&path).expect("create");
    fill(&file);
    file.sync_all().expect("sync");
    let body = text(bytes);
    // Places are taken in the order of the log, as a journal would; when each is durable is left to the threads.
    let next = Mutex::new(0u64);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..flights {
            scope.spawn(|| {
                while begun.elapsed() < time {
                    let mut next = next.lock().expect("the place");
                    let at = *next * bytes as u64 % (SEGMENT - bytes as u64) / 4096 * 4096;
                    *next += 1;
                    file.write_all_at(&body, at).expect("write");
                    drop(next);
                    file.sync_data().expect("sync");
                }
            });
        }
    });
    let rate = *next.lock().expect("the place") as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path).expect("remove");
    rate
}

fn bodies(dir: &Path, time: Duration, mib: u64, callers: usize, own_file: bool) -> f64 {
    let path = dir.join("bodies");
    let (journal, _) = Journal::open(&path, Config { max_segments: 32, ..Config::default() }).expect("open");
    let body = text((mib * MIB) as usize);
    let done = Mutex::new(0u64);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (journal, body, path, done) = (&journal, &body, &path, &done);
            scope.spawn(move || {
                let mut number = 0;
                while begun.elapsed() < time {
                    let payload = if own_file {
                        let name = path.join(format!("{caller}-{number}.body"));
                        let file = File::create(&name).expect("create");
                        for (at, piece) in body.chunks(256 << 10).enumerate() {
                            file.write_all_at(piece, (at as u64) * (256 << 10)).expect("write");
                        }
                        file.sync_all().expect("sync");
                        File::open(path).and_then(|dir| dir.sync_all()).expect("sync");
                        body.slice(..64)
                    } else {
                        body.clone()
                    };
                    let id = journal.append(KIND_USER, vec![payload]).wait().expect("durable");
                    journal.settle(id);
                    if own_file {
                        std::fs::remove_file(path.join(format!("{caller}-{number}.body"))).expect("remove");
                    }
                    number += 1;
                    let mut done = done.lock().expect("a count");
                    *done += 1;
                    if *done % (512 / mib) == 0 {
                        journal.checkpoint(|| Ok(())).expect("checkpoint");
                    }
                }
            });
        }
    });
    let rate = (*done.lock().expect("a count") * mib) as f64 / begun.elapsed().as_secs_f64();
    drop(journal);
    std::fs::remove_dir_all(&path).expect("remove journal");
    rate
}

fn fill(file: &File) {
    (0..SEGMENT / MIB).for_each(|n| file.write_all_at(&[0; MIB as usize], n * MIB).expect("fill"));
}

fn text(len: usize) -> Bytes {
    let words = ["promise", "of", "the", "mail", "kept", "before", "anyone", "says", "yes"];
    let mut state = 7u32;
    let mut text = String::with_capacity(len + 16);
    while text.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.push_str(words[(state >> 16) as usize % words.len()]);
        text.push(' ');
    }
    text.truncate(len);
    text.into()
}

fn scratch() -> PathBuf {
    let base = std::env::var_os("POSTHASTE_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let dir = base.join(format!("bench-choices-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("scratch directory");
    let kind = rustix::fs::statfs(&dir).expect("statfs").f_type;
    const TMPFS: i64 = 0x0102_1994;
    assert_ne!(kind as i64, TMPFS, "{} is on tmpfs, where syncs cost nothing", dir.display());
    dir
}
