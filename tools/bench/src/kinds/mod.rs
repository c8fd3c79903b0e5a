//! The kinds of spools beside each other: the same batches, appended by as many concurrent callers as a server has
//! connections; a server with each, over SMTP; and opening with much mail that waits.

mod opening;

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_loadgen::scratch::subdirectory;
use posthaste_spool::{Batch, Body, Config, Entry, FileSpool, LsmDurability, Lsn, Released, Spool as _, StoreKind};
use posthaste_units::count;

use crate::executor::bodies;
use crate::published;
use crate::run::sample;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "kinds",
    about: "Kinds of spools: the same batches in each, from the append to the reply and to the last trace; a server with each; opening",
    workloads,
};

const FIGURES: &[Figure] = &[
    Figure { key: "rate", name: "replies/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "forgotten", name: "forgotten/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "p50", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99", name: "p99", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu", name: "CPU/message", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "written", name: "written", unit: Unit::Times, better: Better::Lower },
];
const BODIES_KIB: [usize; 2] = [10, 100];
const CALLERS: [usize; 3] = [1, 50, 2000];
/// The default first.
const SIDES: [SpoolSide; 6] = [
    SpoolSide::synced("ring", StoreKind::Ring),
    SpoolSide::synced("files", StoreKind::Files),
    SpoolSide::synced("fjall", StoreKind::Fjall),
    SpoolSide { name: "fjall unsynced", kind: StoreKind::Fjall, lsm: LsmDurability::None },
    SpoolSide::synced("rocksdb", StoreKind::Rocksdb),
    SpoolSide { name: "rocksdb unsynced", kind: StoreKind::Rocksdb, lsm: LsmDurability::None },
];
const TIME: Duration = Duration::from_secs(5);
const TIME_LEAST: Duration = Duration::from_millis(300);
const SYNCED: &str = "message synced";
/// The default of KumoMTA, with RocksDB.
const UNSYNCED: &str = "none: a power cut loses it";
/// Bytes of bodies between checkpoints, as a server makes them by default.
const RELEASE_BYTES: u64 = 256 << 20;

/// A kind of spool to measure.
#[derive(Clone, Copy)]
struct SpoolSide {
    name: &'static str,
    kind: StoreKind,
    lsm: LsmDurability,
}

impl SpoolSide {
    const fn synced(name: &'static str, kind: StoreKind) -> Self {
        SpoolSide { name, kind, lsm: LsmDurability::Synced }
    }

    fn is_synced(&self) -> bool {
        self.lsm == LsmDurability::Synced
    }

    fn open(&self, dir: &Path) -> Result<FileSpool, SideError> {
        let config = Config { kind: self.kind, lsm_durability: self.lsm, keeper: false, ..Config::default() };
        FileSpool::open(dir, config).map(|(spool, _)| spool).map_err(SideError::failed("spool"))
    }

    /// Its side of a workload.
    fn side<R: Running + 'static>(self, start: impl FnOnce(&Path) -> Result<R, SideError> + 'static) -> Side {
        let durability = if self.is_synced() { SYNCED } else { UNSYNCED };
        let start =
            move |_: &Settings, dir: &Path| -> Result<Box<dyn Running>, SideError> { Ok(Box::new(start(dir)?)) };
        // The default: ratios compare it with the others.
        Side { name: self.name, is_ours: self.kind == StoreKind::default(), durability, start: Box::new(start) }
    }
}

/// The kinds in this program.
fn built() -> impl Iterator<Item = SpoolSide> {
    SIDES.into_iter().filter(|side| side.kind.is_built())
}

fn workloads(settings: &Settings) -> Vec<Workload> {
    let appended = BODIES_KIB.into_iter().flat_map(|kib| CALLERS.map(|callers| appended(kib, callers, settings)));
    let served: Vec<&'static str> = built().filter(|side| side.is_synced()).map(|side| side.name).collect();
    appended.chain(crate::receive::with_kinds(&served, settings)).chain([opening::workload(settings)]).collect()
}

fn appended(kib: usize, callers: usize, settings: &Settings) -> Workload {
    let time = settings.time(TIME, TIME_LEAST).min(settings.round_max);
    let name = format!("kinds-{kib}k-{callers}");
    let side = |spool: SpoolSide| {
        spool.side(move |dir| Ok(KindRounds { spool, body_bytes: kib << 10, callers, time, dir: dir.to_owned() }))
    };
    Workload {
        what: format!(
            "{} s, bodies of {kib} KiB, {} waiting at a time; then all is released",
            time.as_secs_f64(),
            count(callers, "message")
        ),
        published: published::about(&name),
        name,
        figures: FIGURES,
        // A disk of a GB/s is a fast one.
        writes_octets: (time.as_secs_f64() * 1e9) as u64,
        sides: built().map(side).collect(),
    }
}

struct KindRounds {
    spool: SpoolSide,
    body_bytes: usize,
    callers: usize,
    time: Duration,
    dir: PathBuf,
}

impl Running for KindRounds {
    fn round(&mut self, _: &Settings) -> Result<Sample, SideError> {
        let dir = subdirectory(&self.dir, "round").map_err(SideError::failed("directory"))?;
        let body = Bytes::from(bodies(self.body_bytes).swap_remove(0));
        let spool = self.spool.open(&dir.join("spool"))?;
        // The first segment or directory is made with the first message, which no server that runs has to wait for.
        Sending::new(&spool, &body)?.send(1, RELEASE_BYTES, &mut |_| false)?;
        let (begun, before) = (Instant::now(), Used::now());
        let mut sending = Sending::new(&spool, &body)?;
        sending.send(self.callers, RELEASE_BYTES, &mut |_| begun.elapsed() < self.time)?;
        let replied = begun.elapsed();
        sending.release()?;
        // A spool keeps what a stream may want again until the second checkpoint.
        spool.checkpoint().map_err(SideError::failed("checkpoint"))?;
        let (forgotten, used) = (begun.elapsed(), Used::now());
        let mut latencies = sending.latencies;
        latencies.sort_unstable();
        let messages = latencies.len() as f64;
        let at = |share: f64| latencies[((messages * share) as usize).min(latencies.len() - 1)].as_secs_f64() * 1e6;
        Ok(sample([
            ("rate", messages / replied.as_secs_f64()),
            ("forgotten", messages / forgotten.as_secs_f64()),
            ("p50", at(0.5)),
            ("p99", at(0.99)),
            ("cpu", (used.cpu - before.cpu).as_secs_f64() * 1e6 / messages),
            ("written", (used.written - before.written) as f64 / (messages * self.body_bytes as f64)),
        ]))
    }
}

/// Messages on their way into a spool.
struct Sending<'a> {
    spool: &'a FileSpool,
    stream: posthaste_spool::StreamId,
    body: &'a Bytes,
    last: Lsn,
    latencies: Vec<Duration>,
}

impl<'a> Sending<'a> {
    fn new(spool: &'a FileSpool, body: &'a Bytes) -> Result<Self, SideError> {
        let stream = spool.stream("bench").map_err(SideError::failed("stream"))?;
        Ok(Sending { spool, stream, body, last: Lsn::ZERO, latencies: Vec::new() })
    }

    /// Keeps so many waiting while `goes_on`, which is told the number of replies, says so; then waits for the last replies. Releases all after each
    /// `release_bytes` of bodies.
    fn send(
        &mut self,
        callers: usize,
        release_bytes: u64,
        goes_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), SideError> {
        let (tell, told) = channel();
        let begin = || {
            let entries = vec![Entry { stream: self.stream, needs_body: true, payload: "for a mailbox".into() }];
            let (tell, begun) = (tell.clone(), Instant::now());
            // All are waited for.
            let then = move |outcome| drop(tell.send((outcome, begun.elapsed())));
            let body = Body::inline(vec![self.body.clone()]);
            self.spool.append(Batch { entries, body }, Box::new(then));
        };
        (0..callers).for_each(|_| begin());
        let (mut waiting, mut bytes) = (callers, 0);
        while waiting > 0 {
            let (outcome, took) = told.recv().expect("each is told");
            let lsn = outcome.map_err(SideError::failed("append"))?;
            self.latencies.push(took);
            if goes_on(self.latencies.len()) {
                begin();
            } else {
                waiting -= 1;
            }
            self.last = lsn;
            bytes += self.body.len() as u64;
            if bytes >= release_bytes {
                bytes = 0;
                release(self.spool, self.stream, lsn)?;
            }
        }
        Ok(())
    }

    /// Releases everything, as all mail was sent.
    fn release(&self) -> Result<(), SideError> {
        release(self.spool, self.stream, self.last)
    }
}

fn release(spool: &FileSpool, stream: posthaste_spool::StreamId, last: Lsn) -> Result<(), SideError> {
    spool.advance(stream, last, None, Released { below: Lsn::new(last.get() + 1), also: Vec::new() });
    spool.checkpoint().map_err(SideError::failed("checkpoint"))
}

/// Use of this process so far.
struct Used {
    cpu: Duration,
    /// Bytes that it has caused to be written to the disk.
    written: u64,
}

impl Used {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
        Used { cpu: Duration::new(time.tv_sec as u64, time.tv_nsec as u32), written: written.unwrap_or(0) }
    }
}
