use std::collections::BTreeSet;
use std::io;

use super::file_spool::{ClosedFileSpool, Segment, Spare};
use crate::events::Damage;
use crate::store::RING;
use crate::{Lsn, StoreKind, StreamId, StreamStats};

/// The content of a spool.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Inspection {
    /// Kind of the store.
    pub kind: StoreKind,
    /// Number of the last checkpoint.
    pub checkpoint: u64,
    /// The last batch that the checkpoint covers.
    pub through: Lsn,
    /// The last batch.
    pub last: Lsn,
    /// The streams and their needs.
    pub streams: Vec<StreamStats>,
    /// Segments of the ring that are in service, in order.
    pub segments: Vec<PlaceReport>,
    /// Packs, in order.
    pub packs: Vec<PlaceReport>,
    /// Large bodies: batch, file, bytes.
    pub large: Vec<(Lsn, String, u64)>,
    /// Body files that no batch names.
    pub unnamed_bodies: Vec<String>,
    /// Damage found so far; [`ClosedFileSpool::verify`] reads everything.
    pub damage: Vec<Damage>,
    /// Damage without loss, because a second copy is intact. A power cut may leave such damage.
    pub spare: Vec<Damage>,
}

/// A segment or a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlaceReport {
    /// File name.
    pub name: String,
    /// First and last batch; zero without any.
    pub first: Lsn,
    /// See `first`.
    pub last: Lsn,
    /// Batches in it.
    pub records: u64,
    /// Needed batches.
    pub needed: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl ClosedFileSpool {
    /// Lists the content.
    ///
    /// # Errors
    /// An error of reading.
    pub fn inspect(&self) -> io::Result<Inspection> {
        let state = &self.state;
        let stats = |(id, stream): (&u16, &crate::state::Stream)| stream.stats(StreamId(*id));
        let named: BTreeSet<u64> = state.large.values().map(|body| body.upload).collect();
        let mut segments: Vec<&Segment> = self.ring.iter().collect();
        segments.sort_by_key(|segment| segment.number);
        let segment = |segment: &Segment| -> io::Result<PlaceReport> {
            let of_it = self.places.iter().filter(|(_, (at, ..))| self.ring[*at].number == segment.number);
            let lsns: Vec<u64> = of_it.map(|(lsn, _)| *lsn).collect();
            let ends = lsns.first().zip(lsns.last()).map_or((0, 0), |(first, last)| (*first, *last));
            Ok(PlaceReport {
                name: segment.name.clone(),
                first: Lsn::new(ends.0),
                last: Lsn::new(ends.1),
                records: lsns.len() as u64,
                needed: lsns.iter().filter(|lsn| state.is_any_needed(**lsn..=**lsn)).count() as u64,
                bytes: std::fs::metadata(self.dir.join(RING).join(&segment.name))?.len(),
            })
        };
        let pack = |row: &crate::checkpoint::PackRow| PlaceReport {
            name: format!("{:016x}.pack", row.id),
            first: Lsn::new(row.first),
            last: Lsn::new(row.last),
            records: row.records,
            needed: state.needed_count(row.first..=row.last),
            bytes: row.bytes,
        };
        let unnamed = self.bodies.list()?.into_iter().filter(|upload| !named.contains(upload));
        Ok(Inspection {
            kind: StoreKind::of(&self.dir).unwrap_or_default(),
            checkpoint: self.checkpoint.counter,
            through: Lsn::new(self.checkpoint.through),
            last: Lsn::new(state.published),
            streams: state.streams.iter().map(stats).collect(),
            segments: segments.into_iter().map(segment).collect::<io::Result<_>>()?,
            packs: state.packs.iter().map(pack).collect(),
            large: state.large.iter().map(|(lsn, b)| (Lsn::new(*lsn), self.bodies.name(b.upload), b.len)).collect(),
            unnamed_bodies: unnamed.map(|upload| self.bodies.name(upload)).collect(),
            damage: self.damage.clone(),
            spare: self.spare.iter().map(Spare::told).collect(),
        })
    }
}
