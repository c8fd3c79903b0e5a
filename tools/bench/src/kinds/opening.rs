//! Opening a spool in which much mail waits, as a server does at its start.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use posthaste_spool::{Replayed, Spool as _};

use super::{Sending, SpoolSide, Used, built};
use crate::executor::bodies;
use crate::published;
use crate::run::sample;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "open", name: "open", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "shown", name: "all shown", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu", name: "CPU", unit: Unit::Micros, better: Better::Lower },
];
const WAITING: u64 = 1_000_000;
const WAITING_LEAST: u64 = 200;
const BODY_BYTES: usize = 1 << 10;
/// Callers that fill the spool: a group of each kind.
const CALLERS: usize = 2000;

pub(super) fn workload(settings: &Settings) -> Workload {
    let waiting = settings.count(WAITING, WAITING_LEAST);
    let name = "kinds-open";
    let side = |spool: SpoolSide| -> Side { spool.side(move |dir| Opening::fill(spool, waiting, dir)) };
    Workload {
        name: name.into(),
        what: format!(
            "{waiting} messages of {BODY_BYTES} bytes wait; the spool is opened, and its stream is shown all. Its files are in the page cache"
        ),
        published: published::about(name),
        figures: FIGURES,
        writes_octets: waiting * BODY_BYTES as u64 * 3,
        // Without a sync the files are the same.
        sides: built().filter(|side| side.is_synced()).map(side).collect(),
    }
}

struct Opening {
    spool: SpoolSide,
    waiting: u64,
    dir: PathBuf,
}

impl Opening {
    fn fill(spool: SpoolSide, waiting: u64, dir: &Path) -> Result<Self, SideError> {
        let dir = dir.join("spool");
        let filled = spool.open(&dir)?;
        let body = Bytes::from(bodies(BODY_BYTES).swap_remove(0));
        let callers = CALLERS.min(waiting as usize);
        let mut left = waiting as usize - callers;
        let mut goes_on = |_| {
            let is_left = left > 0;
            left -= usize::from(is_left);
            is_left
        };
        Sending::new(&filled, &body)?.send(callers, u64::MAX, &mut goes_on)?;
        // As a server has made one by then.
        filled.checkpoint().map_err(SideError::failed("checkpoint"))?;
        Ok(Opening { spool, waiting, dir })
    }
}

impl Running for Opening {
    fn round(&mut self, _: &Settings) -> Result<Sample, SideError> {
        let (begun, before) = (Instant::now(), Used::now());
        let spool = self.spool.open(&self.dir)?;
        let opened = begun.elapsed();
        let stream = spool.stream("bench").map_err(SideError::failed("stream"))?;
        let mut shown = 0;
        let count = &mut |replayed: Replayed<'_>| shown += u64::from(matches!(replayed, Replayed::Entry { .. }));
        spool.replay(stream, count).map_err(SideError::failed("replay"))?;
        let (all_shown, used) = (begun.elapsed(), Used::now());
        if shown != self.waiting {
            return Err(SideError::Failed(format!("{shown} of {} messages are there", self.waiting)));
        }
        Ok(sample([
            ("open", opened.as_secs_f64() * 1e6),
            ("shown", all_shown.as_secs_f64() * 1e6),
            ("cpu", (used.cpu - before.cpu).as_secs_f64() * 1e6),
        ]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_shows_all_that_waits_in_each_round() {
        let mut settings = Settings::new("posthaste".into());
        settings.scale = 0.0;
        for spool in built() {
            let dir = tempfile::tempdir().unwrap();
            let mut opening = Opening::fill(spool, WAITING_LEAST, dir.path()).unwrap();
            for _ in 0..2 {
                let sample = opening.round(&settings).unwrap();
                assert!(sample["shown"] >= sample["open"] && sample["open"] > 0.0, "{}: {sample:?}", spool.name);
            }
        }
        assert!(workload(&settings).what.starts_with("200 messages of 1024 bytes wait"));
    }
}
