//! The spool's commit alone: batches a second on stable storage, beside one plain write and sync each.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_loadgen::scratch::subdirectory;
use posthaste_spool::{Batch, Body, Config, Entry, FileSpool, Lsn, Released, Spool as _};
use posthaste_units::count;

use crate::executor::{BODY_BYTES, bodies};
use crate::published;
use crate::run::sample;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "spool",
    about: "The spool's commit alone: bodies of 10 KiB that are on stable storage, beside a plain write and sync each",
    workloads,
};

const FIGURES: &[Figure] = &[Figure { key: "rate", name: "records/s", unit: Unit::PerSecond, better: Better::Higher }];
const CALLERS: [usize; 5] = [1, 4, 16, 64, 256];
const TIME: Duration = Duration::from_millis(1500);
const TIME_LEAST: Duration = Duration::from_millis(400);
const SYNCED: &str = "record synced";

fn workloads(settings: &Settings) -> Vec<Workload> {
    let time = settings.time(TIME, TIME_LEAST).min(settings.round_max);
    let workload = |callers: usize| {
        let name = format!("callers-{callers}");
        let sides = [
            ("posthaste spool", true, Kind::Spool { callers }),
            ("overwrite + fdatasync", false, Kind::Overwrite),
            ("append + fdatasync", false, Kind::Append),
        ];
        let side = |(name, is_ours, kind)| Side {
            name,
            is_ours,
            durability: SYNCED,
            start: Box::new(move |_: &Settings, dir: &Path| {
                Ok(Box::new(Rounds { kind, time, dir: dir.to_owned() }) as Box<dyn Running>)
            }),
        };
        Workload {
            what: format!(
                "{} s with {} waiting at a time; a plain file takes one at a time",
                time.as_secs_f64(),
                count(callers, "record")
            ),
            published: published::about(&name),
            name,
            figures: FIGURES,
            // A disk of a GB/s is a fast one.
            writes_octets: (time.as_secs_f64() * 1e9) as u64,
            sides: sides.map(side).into(),
        }
    };
    CALLERS.map(workload).into()
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Spool { callers: usize },
    Overwrite,
    Append,
}

struct Rounds {
    kind: Kind,
    time: Duration,
    dir: PathBuf,
}

impl Running for Rounds {
    fn round(&mut self, _: &Settings) -> Result<Sample, SideError> {
        let dir = subdirectory(&self.dir, "round").map_err(SideError::failed("directory"))?;
        let body = Bytes::from(bodies(BODY_BYTES).swap_remove(0));
        let rate = match self.kind {
            Kind::Spool { callers } => spool(&dir, &body, callers, self.time)?,
            Kind::Overwrite => plain(&dir, &body, self.time, true).map_err(SideError::failed("plain file"))?,
            Kind::Append => plain(&dir, &body, self.time, false).map_err(SideError::failed("plain file"))?,
        };
        Ok(sample([("rate", rate)]))
    }
}

/// Records between two checkpoints.
const RELEASE_EVERY: u64 = 8192;
const SEGMENTS_MAX: usize = 16;

fn spool(dir: &Path, body: &Bytes, callers: usize, time: Duration) -> Result<f64, SideError> {
    let mut config = Config { keeper: false, ..Config::default() };
    config.ring.max_segments = SEGMENTS_MAX;
    let (spool, _) = FileSpool::open(&dir.join("spool"), config).map_err(SideError::failed("spool"))?;
    let stream = spool.stream("bench").map_err(SideError::failed("stream"))?;
    let (tell, told) = channel();
    let begin = || {
        let entries = vec![Entry { stream, needs_body: true, payload: Bytes::from_static(b"for a mailbox") }];
        let tell = tell.clone();
        let then = move |outcome| {
            // Nobody waits for the last ones.
            let _ = tell.send(outcome);
        };
        spool.append(Batch { entries, body: Body::inline(vec![body.clone()]) }, Box::new(then));
    };
    (0..callers).for_each(|_| begin());
    // The first segment is made with the first record, which no server that runs has to wait for.
    let mut begun = None;
    let mut records = 0_u64;
    while begun.is_none_or(|begun: Instant| begun.elapsed() < time) {
        let appended: Lsn = told.recv().expect("each is told").map_err(SideError::failed("append"))?;
        begin();
        match begun {
            Some(_) => records += 1,
            None => begun = Some(Instant::now()),
        }
        if records % RELEASE_EVERY == RELEASE_EVERY - 1 {
            spool.advance(stream, appended, None, Released { below: appended, also: Vec::new() });
            spool.checkpoint().map_err(SideError::failed("checkpoint"))?;
        }
    }
    Ok(records as f64 / begun.expect("the first record began it").elapsed().as_secs_f64())
}

/// Length of the overwritten file, which is written once before the clock starts.
const SPAN_BYTES: u64 = 64 << 20;

fn plain(dir: &Path, body: &[u8], time: Duration, overwrite: bool) -> std::io::Result<f64> {
    let file: File = OpenOptions::new().create_new(true).write(true).open(dir.join("plain"))?;
    if overwrite {
        let block = [0; 1 << 20];
        (0..SPAN_BYTES >> 20).try_for_each(|n| file.write_all_at(&block, n << 20))?;
        file.sync_all()?;
    }
    let (begun, mut records) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        let at = records * body.len() as u64;
        let at = if overwrite { at % (SPAN_BYTES - body.len() as u64) / 4096 * 4096 } else { at };
        file.write_all_at(body, at)?;
        file.sync_data()?;
        records += 1;
    }
    Ok(records as f64 / begun.elapsed().as_secs_f64())
}
