//! Measures messages/s of the executor at 1, 64 and 2000 mailboxes under 256 tasks, and the time of a lone message,
//! 10 KiB bodies of random text, against `mailrs-delivery-executor` in the same process, alternately.
//! Every mailbox exists and has had one message before the clock starts; protocols are left out.
//!
//! `cargo bench -p posthaste-delivery --bench executor` runs it whole, `cargo test` tiny so that it cannot rot.
//! Options behind `--`: `--json`, `--only SIDE`, `--pairs N`, `--messages N`, `--tasks N`, and `--batch N --flushes N` for ours. The directory is `POSTHASTE_BENCH_DIR`, or the
//! target directory; it has to be on a real disk.

mod common;

use std::io::{IoSlice, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mailrs_delivery_executor as peer;
use posthaste_delivery as ours;
use posthaste_maildir::{Host, MailRoot, Maildir, NameSource};

const BODY_BYTES: usize = 10 * 1024;

#[derive(Debug, Clone)]
struct Options {
    json: bool,
    pairs: usize,
    messages: usize,
    lone_messages: usize,
    tasks: usize,
    mailboxes: Vec<usize>,
    max_batch: usize,
    flushes: usize,
    sides: Vec<Side>,
}

impl Options {
    fn from_args() -> Self {
        let args: Vec<String> = std::env::args().collect();
        let value = |name: &str| {
            let at = args.iter().position(|arg| arg == name)?;
            args.get(at + 1)?.parse::<usize>().ok()
        };
        let only = args.iter().position(|arg| arg == "--only").and_then(|at| args.get(at + 1));
        let whole = args.iter().any(|arg| arg == "--bench");
        Self {
            json: args.iter().any(|arg| arg == "--json"),
            pairs: value("--pairs").unwrap_or(if whole { 5 } else { 1 }),
            messages: value("--messages").unwrap_or(if whole { 8000 } else { 30 }),
            lone_messages: if whole { 300 } else { 5 },
            tasks: value("--tasks").unwrap_or(256),
            mailboxes: if whole { vec![1, 64, 2000] } else { vec![1, 5] },
            max_batch: value("--batch").unwrap_or(ours::DEFAULT_MAX_BATCH),
            flushes: value("--flushes").unwrap_or(ours::DEFAULT_MAX_CONCURRENT_FLUSHES),
            sides: Side::ALL.into_iter().filter(|side| only.is_none_or(|only| side.name().contains(&**only))).collect(),
        }
    }
}

/// Whom we measure. Another mode is another variant here, in `ALL` and in `Running`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Standalone,
    Journaled,
    /// The same, until every message is visible and a checkpoint has made it durable there.
    JournaledToCheckpoint,
    Peer,
    NoSync,
}

impl Side {
    const ALL: [Side; 5] = [Side::Standalone, Side::Journaled, Side::JournaledToCheckpoint, Side::Peer, Side::NoSync];

    fn name(self) -> &'static str {
        match self {
            Side::Standalone => "posthaste standalone",
            Side::Journaled => "posthaste journaled",
            Side::JournaledToCheckpoint => "posthaste journaled, to disk",
            Side::Peer => "mailrs-delivery-executor 1.2",
            Side::NoSync => "plain writes, 1 thread",
        }
    }

    /// What is on stable storage when it says done.
    fn durability(self) -> &'static str {
        match self {
            Side::Standalone => "bytes and names synced",
            Side::Journaled => "journal synced",
            Side::JournaledToCheckpoint => "journal synced, then all of it visible and synced",
            Side::Peer => "directories synced, files not",
            Side::NoSync => "nothing synced",
        }
    }
}

/// A side that is ready to take messages into the mailboxes below one directory.
#[derive(Clone)]
enum Running {
    Standalone(ours::DeliveryExecutor, Arc<Vec<PathBuf>>),
    Journaled { executor: ours::Journaled, paths: Arc<Vec<Arc<str>>>, to_checkpoint: bool },
    Peer(peer::DeliveryExecutor, Arc<Vec<String>>),
    NoSync(Arc<(NameSource, Vec<Maildir>)>),
}

impl Running {
    fn start(side: Side, base: &Path, mailboxes: usize, options: &Options) -> Self {
        let paths: Vec<PathBuf> = (0..mailboxes).map(|n| base.join(format!("u{n}"))).collect();
        match side {
            Side::Standalone => {
                let executor = ours::DeliveryExecutor::with_full_config(
                    options.max_batch,
                    ours::DEFAULT_MAX_WAIT,
                    options.flushes,
                );
                Self::Standalone(executor, Arc::new(paths))
            }
            Side::Journaled | Side::JournaledToCheckpoint => {
                let config = ours::JournaledConfig::new(base.join("journal"), base);
                let (executor, _) = ours::Journaled::open(config).expect("opens");
                let paths = (0..mailboxes).map(|n| format!("u{n}").into()).collect();
                let to_checkpoint = side == Side::JournaledToCheckpoint;
                Self::Journaled { executor, paths: Arc::new(paths), to_checkpoint }
            }
            Side::Peer => {
                let text = |path: &PathBuf| path.to_string_lossy().into_owned();
                Self::Peer(peer::DeliveryExecutor::spawn(), Arc::new(paths.iter().map(text).collect()))
            }
            Side::NoSync => {
                let names = NameSource::new(Host::of_this_machine()).expect("random bytes");
                let open = |path: &PathBuf| Maildir::open_or_create(path).expect("mailbox opens");
                Self::NoSync(Arc::new((names, paths.iter().map(open).collect())))
            }
        }
    }

    async fn deliver(&self, mailbox: usize, body: &Body) {
        match self {
            Self::Standalone(executor, paths) => {
                executor.deliver(&paths[mailbox], body.bytes.clone()).await.expect("delivered");
            }
            Self::Journaled { executor, paths, .. } => {
                let target = ours::Target { mailbox: paths[mailbox].clone(), prefix: Bytes::new() };
                let message = ours::Message {
                    targets: vec![target],
                    body: ours::Body::Memory(vec![body.bytes.clone()]),
                    line_ends: ours::LineEnds::AsGiven,
                };
                executor.deliver_message(message).await.expect("durable");
            }
            Self::Peer(executor, paths) => {
                executor.deliver(paths[mailbox].clone(), body.shared.clone()).await.expect("delivered");
            }
            Self::NoSync(files) => {
                let size = body.bytes.len() as u64;
                let name = files.0.next(std::time::SystemTime::now(), size, size);
                let maildir = &files.1[mailbox];
                maildir.write_tmp(name.as_str(), &[IoSlice::new(&body.bytes)]).expect("written");
                maildir.publish(name.as_str()).expect("published");
            }
        }
    }

    /// What has to be waited for once everything was handed over.
    fn finish(&self) {
        if let Self::Journaled { executor, to_checkpoint: true, .. } = self {
            executor.checkpoint().expect("checkpoint");
        }
    }

    fn tasks(&self, options: &Options) -> usize {
        if matches!(self, Self::NoSync(_)) { 1 } else { options.tasks }
    }
}

/// The same bytes in the two forms the executors take.
#[derive(Clone)]
struct Body {
    bytes: Bytes,
    shared: Arc<Vec<u8>>,
}

/// Messages a second over `messages` messages.
async fn throughput(running: &Running, bodies: &Arc<Vec<Body>>, mailboxes: usize, options: &Options) -> f64 {
    run_tasks(running, bodies, mailboxes, mailboxes, options).await; // each mailbox once, so that it is open and known
    running.finish();
    let started = Instant::now();
    run_tasks(running, bodies, mailboxes, options.messages, options).await;
    running.finish();
    options.messages as f64 / started.elapsed().as_secs_f64()
}

async fn run_tasks(running: &Running, bodies: &Arc<Vec<Body>>, mailboxes: usize, messages: usize, options: &Options) {
    let next = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..running.tasks(options))
        .map(|_| {
            let (running, bodies, next) = (running.clone(), bodies.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= messages {
                        return;
                    }
                    // A stride that visits every mailbox, and not one after the other.
                    running.deliver(n * 7919 % mailboxes, &bodies[n % bodies.len()]).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("task");
    }
}

/// Microseconds for one message at a time: the median.
async fn lone_us(running: &Running, bodies: &Arc<Vec<Body>>, options: &Options) -> f64 {
    running.deliver(0, &bodies[0]).await;
    let mut times = Vec::new();
    for n in 0..options.lone_messages {
        let started = Instant::now();
        running.deliver(0, &bodies[n % bodies.len()]).await;
        times.push(started.elapsed());
    }
    median(times)
}

/// Microseconds to create a file, write a body and `fdatasync` it: the median.
fn plain_fdatasync_us(base: &Path, bodies: &[Body], options: &Options) -> f64 {
    let mut times = Vec::new();
    for n in 0..options.lone_messages {
        let started = Instant::now();
        let mut file = std::fs::File::create_new(base.join(format!("plain{n}"))).expect("created");
        file.write_all(&bodies[n % bodies.len()].bytes).expect("written");
        file.sync_data().expect("synced");
        times.push(started.elapsed());
    }
    median(times)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// One line of the table: what one side did in all runs of one scenario.
struct Row {
    scenario: String,
    side: &'static str,
    durability: &'static str,
    unit: &'static str,
    samples: Vec<f64>,
}

impl Row {
    fn spread(&self) -> (f64, f64, f64) {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        (sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1])
    }
}

/// Runs one measurement in a directory of its own, with nothing of the last one left to be written back.
async fn in_fresh_dir<T>(base: &Path, measure: impl AsyncFnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir_in(base).expect("a directory for the run").keep();
    MailRoot::open(base).and_then(|root| root.sync()).ok();
    measure(&dir).await
}

async fn measure_all(options: &Options, base: &Path) -> Vec<Row> {
    let body = |text: Vec<u8>| Body { bytes: Bytes::from(text.clone()), shared: Arc::new(text) };
    let bodies = Arc::new(common::bodies(BODY_BYTES).into_iter().map(body).collect());
    let mut rows = Vec::new();
    for &mailboxes in &options.mailboxes {
        let mut samples = vec![Vec::new(); options.sides.len()];
        for _ in 0..options.pairs {
            for (side, samples) in options.sides.iter().copied().zip(&mut samples) {
                let rate = in_fresh_dir(base, async |dir| {
                    let running = Running::start(side, dir, mailboxes, options);
                    throughput(&running, &bodies, mailboxes, options).await
                });
                samples.push(rate.await);
            }
        }
        let scenario = format!("{mailboxes} mailboxes");
        rows.extend(options.sides.iter().copied().zip(samples).map(|(side, samples)| Row {
            scenario: scenario.clone(),
            side: side.name(),
            durability: side.durability(),
            unit: "msg/s",
            samples,
        }));
    }
    rows.extend(measure_lone(options, base, &bodies).await);
    rows
}

async fn measure_lone(options: &Options, base: &Path, bodies: &Arc<Vec<Body>>) -> Vec<Row> {
    let mut samples = vec![Vec::new(); options.sides.len()];
    let mut plain = Vec::new();
    for _ in 0..options.pairs {
        for (side, samples) in options.sides.iter().copied().zip(&mut samples) {
            let time = in_fresh_dir(base, async |dir| {
                let running = Running::start(side, dir, 1, options);
                lone_us(&running, bodies, options).await
            });
            samples.push(time.await);
        }
        plain.push(in_fresh_dir(base, async |dir| plain_fdatasync_us(dir, bodies, options)).await);
    }
    let row =
        |side, durability, samples| Row { scenario: "lone message p50".into(), side, durability, unit: "us", samples };
    let mut rows: Vec<Row> = Side::ALL
        .into_iter()
        .zip(samples)
        .map(|(side, samples)| row(side.name(), side.durability(), samples))
        .collect();
    rows.push(row("plain write + fdatasync", "bytes synced, name only by luck of the file system", plain));
    rows
}

fn print_table(rows: &[Row], out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "{:<18} {:<29} {:>10} {:>10} {:>10}  durable when done", "", "", "median", "min", "max")?;
    for row in rows {
        let (median, min, max) = row.spread();
        writeln!(
            out,
            "{:<18} {:<29} {median:>10.0} {min:>10.0} {max:>10.0}  {} ({})",
            row.scenario, row.side, row.durability, row.unit
        )?;
    }
    Ok(())
}

fn print_json(rows: &[Row], options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let results: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "scenario": row.scenario, "side": row.side, "durability": row.durability,
                "unit": row.unit, "samples": row.samples,
            })
        })
        .collect();
    let report = serde_json::json!({
        "bench": "delivery executor", "kernel": kernel, "body_bytes": BODY_BYTES,
        "messages": options.messages, "tasks": options.tasks, "max_batch": options.max_batch,
        "max_concurrent_flushes": options.flushes, "results": results,
    });
    writeln!(out, "{report:#}")
}

fn main() -> std::io::Result<()> {
    let options = Options::from_args();
    let base = common::scratch()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(measure_all(&options, base.path()));
    let mut out = std::io::stdout().lock();
    if options.json { print_json(&rows, &options, &mut out) } else { print_table(&rows, &mut out) }
}
