//! The ring as a store: segments are recycled when a checkpoint needs none of their batches, or adopted as packs.

use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_ring::{OnRecord, Ring, RingReadError};

use super::commit::Commit;
use super::kind::RING;
use super::records::{Extent, RecordError, Reopened, Store, Unneeded, VisitError, Visited};
use crate::checkpoint::Checkpoint;
use crate::config::usable_bytes;
use crate::core::{Core, Wanted};
use crate::events::{Damage, SpoolEvent};
use crate::place::ROSTER;
use crate::room::Room;
use crate::{AppendError, Config, Lsn, OpenError, Stats, Ticket};

/// Opens the ring with facts from outside: the checkpoint, and LSNs recorded elsewhere.
pub(crate) fn open(
    dir: &Path,
    config: &Config,
    core: &Arc<Core>,
    room: &Arc<Room>,
    checkpoint: &Checkpoint,
) -> Result<(Arc<dyn Store>, Reopened), OpenError> {
    let room = room.clone();
    let ring_config = posthaste_ring::Config {
        events: events(core, config),
        room: Arc::new(move || room.free()),
        roster: Some(dir.join(ROSTER)),
        ..config.ring.clone()
    };
    let on_record = OnRecord { seen: config.lsns_above.into(), ..checkpoint.on_record() };
    let opened = Ring::open(&dir.join(RING), ring_config, on_record);
    let (ring, recovery) = opened.map_err(|error| match error {
        posthaste_ring::RingOpenError::Locked { .. } => OpenError::Locked,
        missing @ posthaste_ring::RingOpenError::Missing { .. } => OpenError::Missing(missing.into()),
        other => OpenError::Log(other.into()),
    })?;
    let (damage, cut_off) = recovery.damage.iter().partition::<Vec<_>, _>(|found| found.promised);
    let first = ring.segments().iter().map(|segment| segment.first.get()).find(|first| *first > 0);
    let reopened = Reopened {
        damage: damage.into_iter().map(damage_of).collect(),
        cut_off: cut_off.into_iter().map(damage_of).collect(),
        last: recovery.last.into(),
        lost_through: recovery.lost_through.into(),
        packed_through: first.map(|first| first - 1),
        bytes_used: ring.bytes_used(),
        usable_bytes: usable_bytes(config.ring.max_segments, config.ring.segment_bytes),
    };
    let store: Arc<dyn Store> = Arc::new(ring);
    Ok((store, reopened))
}

/// Converts damage of the ring.
pub(crate) fn damage_of(found: &posthaste_ring::RingDamage) -> Damage {
    let what = match found.lsns {
        Some((first, last)) if first == last => found.what.to_owned(),
        // LSNs that a lost end may have had, many more than it had.
        Some((first, last)) if last.get() - first.get() >= posthaste_ring::LSN_GAP => {
            format!("{} (batches from {first} on)", found.what)
        }
        Some((first, last)) => format!("{} (batches {first} to {last})", found.what),
        None => found.what.to_owned(),
    };
    let place = format!("{RING}/{} at {}", found.segment, found.offset);
    Damage { lsn: found.lsns.map(|(first, _)| first.into()), place, what }
}

/// Events of the ring, reported on its own thread.
fn events(core: &Arc<Core>, config: &Config) -> posthaste_ring::RingEvents {
    let core = core.clone();
    let events = config.events.clone();
    Arc::new(move |event| match event {
        posthaste_ring::RingEvent::Cancelled(lsn) => core.cancelled(lsn.into()),
        posthaste_ring::RingEvent::RoomWanted => core.bell.ring(Wanted::Room),
        posthaste_ring::RingEvent::SegmentFailed(error) => {
            events.tell(SpoolEvent::SegmentFailed { error: error.to_string() })
        }
        posthaste_ring::RingEvent::Poisoned(why) => events.tell(SpoolEvent::Poisoned { why: why.to_string() }),
        _ => {}
    })
}

fn told(then: Commit) -> impl FnOnce(Result<posthaste_ring::Lsn, posthaste_ring::RingAppendError>) + Send + 'static {
    move |outcome| then.tell(outcome.map(Lsn::from).map_err(AppendError::from))
}

/// Delegates to the ring's methods of the same names.
impl Store for Ring {
    fn name(&self) -> &'static str {
        RING
    }

    fn append(&self, head: Bytes, body: Vec<Bytes>, then: Commit) -> Ticket {
        Ticket::of_ring(Ring::append(self, vec![head], body, told(then)))
    }

    fn append_first(&self, head: Bytes, then: Commit) {
        Ring::append_first(self, head, told(then));
    }

    fn flush(&self) {
        // Each batch has already got this error.
        let _ = Ring::flush(self);
    }

    fn visit(&self, from: Lsn, each: &mut dyn FnMut(Visited) -> ControlFlow<()>) -> Result<(), VisitError> {
        let visited = Ring::visit(self, from.into(), &mut |record| {
            each(Visited { lsn: record.lsn.into(), head: record.head, body_len: record.body_len })
        });
        visited.map_err(|error| match error.kind() {
            // At the opening: the batches are unknown.
            io::ErrorKind::InvalidData => {
                VisitError::Damaged(vec![Damage { lsn: None, place: RING.to_owned(), what: error.to_string() }])
            }
            _ => VisitError::Io(error),
        })
    }

    fn read_head(&self, lsn: Lsn) -> Result<Bytes, RecordError> {
        Ok(Ring::read_head(self, lsn.into())?)
    }

    fn read_body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError> {
        Ok(Ring::read_body(self, lsn.into(), range)?)
    }

    fn read_body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError> {
        Ok(Ring::read_body_again(self, lsn.into())?)
    }

    fn body_crc(&self, lsn: Lsn) -> Result<u32, RecordError> {
        Ok(self.record(lsn.into())?.body_crc)
    }

    fn extent(&self) -> Extent {
        Extent { proof: self.proof(), segments: self.segments(), held: None }
    }

    fn forget(&self, unneeded: &Unneeded) {
        self.free_below(unneeded.segments_below);
    }

    fn poison(&self, why: String) {
        Ring::poison(self, why);
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        Ring::poisoned(self)
    }

    fn stats(&self) -> Stats {
        let stats = Ring::stats(self);
        Stats {
            cancelled: stats.cancelled,
            bytes_written: stats.bytes_used,
            syncs: stats.syncs,
            sync_ns: stats.sync_ns,
            sync_ns_max: stats.sync_ns_max,
            sync_us: stats.sync_us,
            commit_records: stats.commit_records,
            space_used: stats.segments_in_service as u64,
            space_max: stats.max_segments as u64,
            ..Stats::default()
        }
    }

    fn ring(&self) -> Option<&Ring> {
        Some(self)
    }
}

impl From<RingReadError> for RecordError {
    fn from(error: RingReadError) -> Self {
        match error {
            RingReadError::NotFound(lsn) => RecordError::NotFound(lsn.into()),
            RingReadError::HeadDamaged(lsn) => RecordError::HeadDamaged(lsn.into()),
            RingReadError::BodyDamaged(lsn) => RecordError::BodyDamaged(lsn.into()),
            RingReadError::Io(lsn, error) => RecordError::Io(lsn.into(), error),
            other => RecordError::Io(Lsn::ZERO, io::Error::other(other)),
        }
    }
}
