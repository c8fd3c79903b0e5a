//! The delivery executor without a protocol: many tasks hand messages over and wait until each is durable.
//!
//! Bodies are 10 KiB of random text. Every mailbox exists and has had one message before the clock starts. The peer runs in
//! this process, as we do; it is linked only where this crate is built with its feature `peers`.

mod batch;
mod sides;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_loadgen::measure::Latencies;
use posthaste_loadgen::scratch::subdirectory;
use posthaste_random::Random;

use self::sides::{Executor, Kind};
use crate::published;
use crate::run::sample;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Start, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "executor",
    about: "The delivery executor without a protocol: tasks hand messages over and wait until each is durable",
    workloads,
};

const RATE: Figure = Figure { key: "rate", name: "messages/s", unit: Unit::PerSecond, better: Better::Higher };
const CPU: Figure = Figure { key: "cpu_us", name: "CPU a message", unit: Unit::Micros, better: Better::Lower };
const P50: Figure = Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower };
const P99: Figure = Figure { key: "p99_us", name: "p99", unit: Unit::Micros, better: Better::Lower };
const P999: Figure = Figure { key: "p999_us", name: "p99.9", unit: Unit::Micros, better: Better::Lower };

pub(crate) const BODY_BYTES: usize = 10 * 1024;
const TASKS: usize = 256;
const MAILBOXES: [usize; 3] = [1, 64, 2000];
const MESSAGES: u64 = 8000;
const MESSAGES_LEAST: u64 = 200;
const LONE_MESSAGES: u64 = 300;
const LONE_LEAST: u64 = 20;

fn workloads(settings: &Settings) -> Vec<Workload> {
    let messages = settings.count(MESSAGES, MESSAGES_LEAST);
    let many = |mailboxes: usize| {
        let name = format!("mailboxes-{mailboxes}");
        let what = format!(
            "{messages} messages of 10 KiB from {TASKS} tasks to {}",
            match mailboxes {
                1 => "one mailbox".into(),
                _ => format!("{mailboxes} mailboxes"),
            }
        );
        let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::PlainSync);
        let sides = kinds.map(|kind| side(kind, mailboxes, RoundLoad::Many { messages })).collect();
        let writes_octets = (messages + mailboxes as u64) * BODY_BYTES as u64;
        let published = published::about(&name);
        Workload { published, name, what, figures: &[RATE, CPU, P50, P99, P999], writes_octets, sides }
    };
    let lone_messages = settings.count(LONE_MESSAGES, LONE_LEAST);
    let kinds = Kind::ALL.into_iter().filter(|kind| !kind.is_to_disk());
    let lone = Workload {
        name: "lone".into(),
        what: format!("{lone_messages} messages of 10 KiB to one mailbox, one after the other"),
        figures: &[P50, P99],
        published: published::about("lone"),
        writes_octets: lone_messages * BODY_BYTES as u64,
        sides: kinds.map(|kind| side(kind, 1, RoundLoad::Lone { messages: lone_messages })).collect(),
    };
    MAILBOXES.map(many).into_iter().chain([lone, batch::workload(settings)]).collect()
}

/// Load of a round.
#[derive(Debug, Clone, Copy)]
enum RoundLoad {
    Many { messages: u64 },
    Lone { messages: u64 },
}

fn side(kind: Kind, mailboxes: usize, load: RoundLoad) -> Side {
    let start: Start = Box::new(move |_, dir| {
        kind.must_be_there()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(SideError::failed("runtime"))?;
        let bodies = Arc::new(bodies(BODY_BYTES).into_iter().map(Body::new).collect());
        Ok(Box::new(Rounds { kind, mailboxes, load, runtime, bodies, dir: dir.to_owned() }))
    });
    Side { name: kind.name(), is_ours: kind.is_ours(), durability: kind.durability(), start }
}

/// Each round has a new executor on new mailboxes.
struct Rounds {
    kind: Kind,
    mailboxes: usize,
    load: RoundLoad,
    runtime: tokio::runtime::Runtime,
    bodies: Arc<Vec<Body>>,
    dir: std::path::PathBuf,
}

impl Running for Rounds {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let dir = subdirectory(&self.dir, "round").map_err(SideError::failed("directory"))?;
        let _in_runtime = self.runtime.enter();
        let executor = Executor::start(self.kind, &dir, self.mailboxes)?;
        self.runtime.block_on(self.measure(executor, settings))
    }
}

impl Rounds {
    async fn measure(&self, executor: Executor, settings: &Settings) -> Result<Sample, SideError> {
        // Each mailbox once, so that it is open and known.
        let all = self.mailboxes as u64;
        deliver(&executor, &self.bodies, self.mailboxes, all, executor.tasks(TASKS), Duration::MAX).await?;
        executor.finish()?;
        let (begun, cpu_before) = (Instant::now(), cpu_time());
        let (messages, tasks) = match self.load {
            RoundLoad::Many { messages } => (messages, executor.tasks(TASKS)),
            RoundLoad::Lone { messages } => (messages, 1),
        };
        let most = settings.round_max;
        let latencies = deliver(&executor, &self.bodies, self.mailboxes, messages, tasks, most).await?;
        executor.finish()?;
        let seconds = begun.elapsed().as_secs_f64();
        let cpu_us = (cpu_time() - cpu_before).as_secs_f64() * 1e6;
        let latency = latencies.summary();
        Ok(sample([
            ("rate", latency.count as f64 / seconds),
            ("cpu_us", cpu_us / latency.count as f64),
            ("p50_us", latency.p50_us as f64),
            ("p99_us", latency.p99_us as f64),
            ("p999_us", latency.p999_us as f64),
        ]))
    }
}

/// Hands `messages` over from `tasks` tasks, each waiting for one message at a time, until time is up.
async fn deliver(
    executor: &Executor,
    bodies: &Arc<Vec<Body>>,
    mailboxes: usize,
    messages: u64,
    tasks: usize,
    most: Duration,
) -> Result<Latencies, SideError> {
    let (next, begun) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let task = |_| {
        let (executor, bodies, next) = (executor.clone(), Arc::clone(bodies), Arc::clone(&next));
        tokio::spawn(async move {
            let mut latencies = Latencies::default();
            loop {
                let n = next.fetch_add(1, Relaxed);
                // The first is delivered however late it is: a round without any says nothing.
                if n as u64 >= messages || n > 0 && begun.elapsed() > most {
                    return Ok::<_, SideError>(latencies);
                }
                let handed_over = Instant::now();
                // A stride that visits every mailbox, and not one after the other.
                executor.deliver(n * 7919 % mailboxes, &bodies[n % bodies.len()]).await?;
                latencies.record(handed_over.elapsed());
            }
        })
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    let mut latencies = Latencies::default();
    for task in tasks {
        latencies.add(&task.await.map_err(SideError::failed("task"))??);
    }
    Ok(latencies)
}

/// One body in the forms that executors take.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    pub bytes: Bytes,
    #[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "only the peer takes this form"))]
    pub shared: Arc<Vec<u8>>,
}

impl Body {
    fn new(text: Vec<u8>) -> Self {
        Self { bytes: Bytes::from(text.clone()), shared: Arc::new(text) }
    }
}

/// 64 bodies of printable text in lines, always the same.
pub fn bodies(bytes: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let mut octet = |at| if at % 72 == 71 { b'\n' } else { b' ' + random.below(95) as u8 };
    (0..64).map(|_| (0..bytes).map(&mut octet).collect()).collect()
}

/// CPU time of this process, of all its threads.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Where the mailboxes of a round lie.
fn mailbox_paths(base: &Path, mailboxes: usize) -> Vec<std::path::PathBuf> {
    (0..mailboxes).map(|n| base.join(format!("u{n}"))).collect()
}
