//! Reads all needed data and verifies the checksums: on request, and regularly in the background.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checkpoint::PackRow;
use crate::events::{Damage, SpoolEvent};
use crate::pack::{PackError, PackReader, pack_path};
use crate::reading::LOST_FRONT;
use crate::shared::Shared;
use crate::snapshots::{SnapshotError, SnapshotName};
use crate::state::Stream;
use crate::store::{RecordError, VisitError};
use crate::{Lsn, ScrubReport};

/// Handle of the background scrub's thread. Dropping it ends the thread after its current batch.
pub(crate) struct Scrubber {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    is_wanted: Mutex<bool>,
    changed: Condvar,
}

impl Scrubber {
    pub fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let told = stop.clone();
        let run = move || {
            while told.wait(shared.config.scrub_every).is_continue() && shared.scrub_slowly(&told).is_continue() {}
        };
        let thread = std::thread::Builder::new().name("spool-scrub".to_owned()).spawn(run)?;
        Ok(Scrubber { stop, thread: Some(thread) })
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        *self.stop.is_wanted.lock().expect("nothing panics while it is held") = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Stop {
    /// Waits for `timeout`; breaks on a stop.
    fn wait(&self, timeout: Duration) -> ControlFlow<()> {
        let is_wanted = self.is_wanted.lock().expect("nothing panics while it is held");
        let waited = self.changed.wait_timeout_while(is_wanted, timeout, |is_wanted| !*is_wanted);
        if *waited.expect("nothing panics while it is held").0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Earliest time after the start at which `bytes` may have been read.
fn due(bytes: u64, bytes_per_sec: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / bytes_per_sec.max(1))
}

impl Shared {
    /// One pass at the configured pace. Damage is reported immediately.
    fn scrub_slowly(&self, stop: &Stop) -> ControlFlow<()> {
        let begun = Instant::now();
        let mut told = 0;
        let mut tell = |damage: &[Damage]| {
            damage[told..].iter().for_each(|damage| self.config.events.tell(SpoolEvent::Damage(damage.clone())));
            told = damage.len();
        };
        let report = self.scrub(&mut |report| {
            tell(&report.damage);
            stop.wait(due(report.bytes, self.config.scrub_bytes_per_sec).saturating_sub(begun.elapsed()))
        });
        match report {
            Ok(report) => {
                tell(&report.damage);
                if report.is_partial { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
            Err(error) => {
                let what = format!("the scrub was ended: {error}");
                self.config.events.tell(SpoolEvent::Damage(Damage { lsn: None, place: "spool".to_owned(), what }));
                ControlFlow::Continue(())
            }
        }
    }

    pub fn scrub(&self, pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> io::Result<ScrubReport> {
        let mut report = ScrubReport::default();
        let packs: Vec<PackRow> = self.core.state().packs.clone();
        let flow = self.scrub_packs(&packs, &mut report, pause)?;
        let flow = if flow.is_continue() { self.scrub_store(&mut report, pause)? } else { flow };
        let flow = if flow.is_continue() { self.scrub_large(&mut report, pause)? } else { flow };
        let flow = if flow.is_continue() { self.scrub_snapshots(&mut report, pause) } else { flow };
        report.is_partial = flow.is_break();
        Ok(report)
    }
}

impl Shared {
    fn is_needed(&self, lsn: u64) -> bool {
        self.core.state().is_any_needed(lsn..=lsn)
    }

    fn is_body_needed(&self, lsn: u64) -> bool {
        self.core.state().is_body_needed(lsn)
    }

    fn scrub_packs(
        &self,
        packs: &[PackRow],
        report: &mut ScrubReport,
        pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        for row in packs {
            let place = pack_path(self.packs.dir(), row.id).display().to_string();
            let is_there = || self.core.state().packs.iter().any(|other| other.id == row.id);
            let mut flow = ControlFlow::Continue(());
            let needed = self.core.state().needed(row.first..=row.last);
            let outcome = self.packs.get(row.id).and_then(|reader| {
                scrub_pack(&reader, &needed, &mut |lsn, read| {
                    match read {
                        Ok(bytes) => report.count(bytes),
                        Err(Broken::Head(what)) if self.is_needed(lsn) => report.note(Some(lsn), &place, what),
                        Err(Broken::Body(what)) if self.is_body_needed(lsn) => report.note(Some(lsn), &place, what),
                        Err(_) => {}
                    }
                    flow = pause(report);
                    flow
                })
            });
            match outcome {
                // The pack was removed meanwhile.
                Err(_) if !is_there() => {}
                Err(PackError::Damaged(what)) => report.note(None, &place, what),
                outcome => outcome?,
            }
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn scrub_store(
        &self,
        report: &mut ScrubReport,
        pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let from = self.core.state().packed_through + 1;
        let mut outcome = Ok(ControlFlow::Continue(()));
        let visited = self.store.visit(Lsn::new(from), &mut |record| {
            let lsn = record.lsn.get();
            match self.store.read_body(record.lsn, 0..0) {
                Ok(_) => report.count(record.head.len() as u64 + u64::from(record.body_len)),
                Err(RecordError::Io(_, error)) => {
                    outcome = Err(error);
                    return ControlFlow::Break(());
                }
                // The batch was released meanwhile.
                Err(RecordError::NotFound(_)) => {}
                Err(RecordError::BodyDamaged(_)) if !self.is_body_needed(lsn) => {}
                Err(RecordError::BodyDamaged(_)) if self.mended_in_store(record.lsn).is_some() => {
                    report.note(Some(lsn), self.store.name(), LOST_FRONT);
                }
                Err(error) if self.is_needed(lsn) => report.note(Some(lsn), self.store.name(), error.to_string()),
                Err(_) => {}
            }
            let flow = pause(report);
            if flow.is_break() {
                outcome = Ok(flow);
            }
            flow
        });
        match visited {
            Ok(()) => {}
            Err(VisitError::Damaged(found)) => {
                let is_needed = |damage: &Damage| damage.lsn.is_none_or(|lsn| self.is_needed(lsn.get()));
                report.damage.extend(found.into_iter().filter(is_needed));
            }
            Err(VisitError::Io(error)) => return Err(error),
        }
        outcome
    }

    fn scrub_large(
        &self,
        report: &mut ScrubReport,
        pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let all: Vec<_> = self.core.state().large.iter().map(|(lsn, body)| (*lsn, *body)).collect();
        for (lsn, body) in all {
            match self.bodies.verify(body) {
                Ok(()) => report.count(body.len),
                Err(error) => {
                    let what = error.what()?;
                    if self.is_body_needed(lsn) {
                        report.note(Some(lsn), self.bodies.name(body.upload), what);
                    }
                }
            }
            if pause(report).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Shared {
    /// Drops missing and damaged snapshots, so that their stream writes new ones. After a failed read the file may be
    /// intact: it stays.
    fn scrub_snapshots(
        &self,
        report: &mut ScrubReport,
        pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let rows: Vec<(u16, SnapshotName)> = {
            let state = self.core.state();
            let of = |(id, stream): (&u16, &Stream)| {
                stream.snapshots().into_iter().map(|row| (*id, row.name)).collect::<Vec<_>>()
            };
            state.streams.iter().flat_map(of).filter(|(_, name)| name.is_file()).collect()
        };
        for (stream, name) in rows {
            match self.snapshots.verify(&name) {
                Ok(bytes) => report.count(bytes),
                Err(error) => {
                    let mut state = self.core.state();
                    let is_needed = |stream: &Stream| stream.snapshots().into_iter().any(|row| row.name == name);
                    // The snapshot may have been removed meanwhile.
                    if state.streams.get(&stream).is_some_and(is_needed) {
                        report.damage.push(name.damage(&error));
                        match error {
                            SnapshotError::Missing | SnapshotError::Damaged => {
                                state.leave_out_snapshots(stream, &[name]);
                            }
                            SnapshotError::Io(_) => {}
                        }
                    }
                }
            }
            pause(report)?;
        }
        ControlFlow::Continue(())
    }
}

/// Damage of a record, by its part. A damaged head counts as long as anything of the batch is needed.
pub(crate) enum Broken {
    Head(&'static str),
    Body(&'static str),
}

/// Reads every record of a pack; returns its bytes, or the damage, including needed records that its index lacks.
pub(crate) fn scrub_pack(
    reader: &PackReader,
    needed: &[(u64, bool)],
    each: &mut dyn FnMut(u64, Result<u64, Broken>) -> ControlFlow<()>,
) -> Result<(), PackError> {
    let mut flow = ControlFlow::Continue(());
    let mut needed = needed.iter().map(|(lsn, _)| *lsn).peekable();
    let missing = |needed: u64, each: &mut dyn FnMut(u64, Result<u64, Broken>) -> ControlFlow<()>| {
        reader.find(needed).map(|found| match found {
            Some(_) => ControlFlow::Continue(()),
            None => each(needed, Err(Broken::Head("its pack does not have it"))),
        })
    };
    reader.each(|entry| {
        while let Some(lsn) = needed.next_if(|needed| *needed < entry.lsn).filter(|_| flow.is_continue()) {
            flow = missing(lsn, each)?;
        }
        if flow.is_break() {
            return Ok(());
        }
        needed.next_if_eq(&entry.lsn);
        let read = match (reader.head(&entry), reader.body(&entry)) {
            (Ok(_), Ok(_)) => Ok(u64::from(entry.head_len) + u64::from(entry.body_len)),
            (Err(PackError::Damaged(what)), _) => Err(Broken::Head(what)),
            (Ok(_), Err(PackError::Damaged(_))) if reader.mended(&entry).is_some() => Err(Broken::Body(LOST_FRONT)),
            (Ok(_), Err(PackError::Damaged(what))) => Err(Broken::Body(what)),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        flow = each(entry.lsn, read);
        Ok::<_, PackError>(())
    })?;
    while let Some(lsn) = needed.next().filter(|_| flow.is_continue()) {
        flow = missing(lsn, each)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_a_number_of_bytes_each_second() {
        assert_eq!(due(0, 8 << 20), Duration::ZERO);
        assert_eq!(due(80 << 20, 8 << 20), Duration::from_secs(10));
        assert_eq!(due(1, 1000), Duration::from_millis(1));
        assert!(due(u64::MAX, 0) > Duration::from_secs(1 << 40), "no pace is the slowest, and no overflow");
    }
}
