//! Measures durable delivery under lasting load: 50 tasks, each with one message in flight, 64 mailboxes, bodies of 1,
//! 10 and 100 KiB. A run is long enough for the log to turn over and for mounts to be synced. It shows messages/s to
//! durable, to visible and to disk. CPU is that for each message until it is on disk. The time of one delivery is shown
//! as p50 to p99.9 and the longest. For scale, a plain overwrite + fdatasync on the same disk is timed just before, and
//! a hundred times a second meanwhile. Leaves out protocols.
//!
//! `cargo bench -p posthaste-bench --bench sustained` runs it whole, `cargo test` tiny so that it cannot rot.
//! Options after `--`: `--json`, `--seconds N` for each size (default 20), `--rounds N` (default 1), `--bytes N` (one size),
//! `--sync-mib N` of mail between two syncs. The directory is `POSTHASTE_BENCH_DIR`, or the
//! target directory; it has to be on a real disk.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_bench::executor::{bodies, cpu_time};
use posthaste_delivery::local::{GatheredBody, LineEnds, LocalConfig, LocalDelivery, MailboxMessage, MailboxTarget};
use posthaste_loadgen::measure::Latencies;
use posthaste_loadgen::scratch::Scratch;

const TASKS: usize = 50;
const MAILBOXES: usize = 64;

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let number = |name: &str| value(name).and_then(|value| value.parse::<u64>().ok());
    let (seconds, sync_mib) = (number("--seconds"), number("--sync-mib"));
    let sizes = number("--bytes").map_or_else(|| vec![1 << 10, 10 << 10, 100 << 10], |bytes| vec![bytes as usize]);
    // `cargo bench` passes --bench; without it this is a test of the benchmark.
    let time = if has("--bench") { Duration::from_secs(seconds.unwrap_or(20)) } else { Duration::from_millis(50) };
    let target = || {
        let program = std::env::current_exe().expect("this program has a path");
        program.ancestors().nth(2).expect("it lies in the target directory").to_owned()
    };
    let base = Scratch::new_in(&std::env::var_os("POSTHASTE_BENCH_DIR").map_or_else(target, PathBuf::from))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if !has("--json") {
        println!("{TASKS} tasks, {MAILBOXES} mailboxes, {time:?} each; times in us");
        println!(
            "{:>7} {:>9} {:>9} {:>6}  {:>7} {:>7} {:>7} {:>8}  {:>9} {:>9} {:>9} {:>9}  {:>5} {:>9}",
            "bytes",
            "durable/s",
            "on disk/s",
            "cpu us",
            "p50",
            "p99",
            "p99.9",
            "max",
            "sync p50",
            "p99.9",
            "meanwhile",
            "p99.9",
            "syncs",
            "longest"
        );
    }
    for round in 0..number("--rounds").unwrap_or(1) {
        for bytes in &sizes {
            let dir = base.path().join(format!("{bytes}-{round}"));
            std::fs::create_dir(&dir)?;
            let begun = Instant::now();
            let sync = plain_syncs(&dir.join("before"), Duration::ZERO, || begun.elapsed() < time / 10)?;
            let run = runtime.block_on(run(&dir, *bytes, time, sync_mib));
            print(*bytes, &run, &sync, has("--json"));
        }
    }
    Ok(())
}

struct Run {
    times: Latencies,
    syncs_meanwhile: Latencies,
    durable_per_s: f64,
    on_disk_per_s: f64,
    cpu_us: f64,
    syncs: u64,
    sync_us_max: u64,
}

async fn run(dir: &Path, bytes: usize, time: Duration, sync_mib: Option<u64>) -> Run {
    let mut config = LocalConfig::new(dir.join("spool"), dir.join("mail"));
    config.sync_bytes = sync_mib.map_or(config.sync_bytes, |mib| mib << 20);
    let (delivery, _) = LocalDelivery::open(config).expect("opens");
    let bodies: Vec<Bytes> = bodies(bytes).into_iter().map(Bytes::from).collect();
    let running = Arc::new(AtomicBool::new(true));
    let meanwhile = {
        let (running, file) = (running.clone(), dir.join("meanwhile"));
        std::thread::spawn(move || plain_syncs(&file, Duration::from_millis(10), || running.load(Ordering::Relaxed)))
    };
    let (begun, cpu_before) = (Instant::now(), cpu_time());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (delivery, bodies) = (delivery.clone(), bodies.clone());
            tokio::spawn(async move {
                let mut times = Latencies::default();
                for n in (task..).step_by(TASKS) {
                    if begun.elapsed() >= time {
                        break;
                    }
                    let target =
                        MailboxTarget { mailbox: format!("u{}", n * 7919 % MAILBOXES).into(), prefix: Bytes::new() };
                    let handed_over = Instant::now();
                    let body = GatheredBody::Memory(vec![bodies[n % bodies.len()].clone()]);
                    let message =
                        MailboxMessage { targets: vec![target], body, line_ends: LineEnds::AsGiven, also: Vec::new() };
                    delivery.deliver_message(message).await.expect("durable");
                    times.record(handed_over.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Latencies::default();
    for task in tasks {
        times.add(&task.await.expect("task"));
    }
    let durable = begun.elapsed();
    running.store(false, Ordering::Relaxed);
    let syncs_meanwhile = meanwhile.join().expect("the thread that syncs").expect("plain syncs");
    let stats = delivery.stats();
    tokio::task::block_in_place(|| delivery.sync(Duration::from_secs(300)).expect("sync"));
    let count = times.count() as f64;
    Run {
        times,
        syncs_meanwhile,
        durable_per_s: count / durable.as_secs_f64(),
        on_disk_per_s: count / begun.elapsed().as_secs_f64(),
        cpu_us: (cpu_time() - cpu_before).as_secs_f64() * 1e6 / count,
        syncs: stats.syncs,
        sync_us_max: stats.sync_us_max,
    }
}

/// Times of overwriting 12 KiB of a file and fdatasync, one after the other, with a pause between, at least once.
fn plain_syncs(file: &Path, pause: Duration, goes_on: impl Fn() -> bool) -> std::io::Result<Latencies> {
    let file = std::fs::File::create(file)?;
    let block = vec![b'x'; 12 << 10];
    let blocks = 1024;
    for n in 0..blocks {
        file.write_all_at(&block, n * block.len() as u64)?;
    }
    file.sync_all()?;
    let mut times = Latencies::default();
    for n in 0.. {
        let before = Instant::now();
        file.write_all_at(&block, n % blocks * block.len() as u64)?;
        file.sync_data()?;
        times.record(before.elapsed());
        if !goes_on() {
            break;
        }
        std::thread::sleep(pause);
    }
    Ok(times)
}

fn print(bytes: usize, run: &Run, sync: &Latencies, json: bool) {
    let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| run.times.percentile_us(share));
    let [sync_p50, sync_p999] = [0.5, 0.999].map(|share| sync.percentile_us(share));
    let [meanwhile_p50, meanwhile_p999] = [0.5, 0.999].map(|share| run.syncs_meanwhile.percentile_us(share));
    let Run { durable_per_s, on_disk_per_s, cpu_us, syncs, sync_us_max, .. } = run;
    if json {
        let row = serde_json::json!({
            "bench": "sustained", "body_bytes": bytes, "durable_per_s": durable_per_s, "on_disk_per_s": on_disk_per_s, "cpu_us": cpu_us,
            "us": { "p50": p50, "p99": p99, "p99.9": p999, "max": max },
            "plain_fdatasync_us": { "p50": sync_p50, "p99.9": sync_p999 },
            "plain_fdatasync_meanwhile_us": { "p50": meanwhile_p50, "p99.9": meanwhile_p999 },
            "syncs_of_mail": syncs, "sync_of_mail_us_max": sync_us_max,
        });
        println!("{row}");
    } else {
        println!(
            "{bytes:>7} {durable_per_s:>9.0} {on_disk_per_s:>9.0} {cpu_us:>6.1}  {p50:>7} {p99:>7} {p999:>7} {max:>8}  {sync_p50:>9} {sync_p999:>9} {meanwhile_p50:>9} {meanwhile_p999:>9}  {syncs:>5} {sync_us_max:>9}"
        );
    }
}
