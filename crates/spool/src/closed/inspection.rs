use std::collections::BTreeSet;
use std::io;

use super::file_spool::{ClosedFileSpool, Segment, Spare};
use crate::events::Damage;
use crate::store::RING;
use crate::{Lsn, StoreKind, StreamId, StreamStats};

/// Content of a closed spool, as `posthaste spool` reports it.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Inspection {
    /// Storage engine of the spool: ring, files, Fjall or RocksDB.
    pub kind: StoreKind,
    /// Counter of the last checkpoint.
    pub checkpoint: u64,
    /// LSN of the last batch that the checkpoint covers.
    pub through: Lsn,
    /// LSN of the last batch in the spool.
    pub last: Lsn,
    /// Position and needs of each stream.
    pub streams: Vec<StreamStats>,
    /// Segments of the ring in service, in order.
    pub segments: Vec<PlaceReport>,
    /// Packs, in order.
    pub packs: Vec<PlaceReport>,
    /// Large bodies: batch, file, bytes.
    pub large: Vec<(Lsn, String, u64)>,
    /// Body files to which no batch refers.
    pub unnamed_bodies: Vec<String>,
    /// Damage found so far; `ClosedSpool::verify` reads everything.
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
    /// LSN of the first batch; 0 if there is none.
    pub first: Lsn,
    /// LSN of the last batch; 0 if there is none.
    pub last: Lsn,
    /// Number of batches in the file.
    pub records: u64,
    /// Number of batches that some stream needs.
    pub needed: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl ClosedFileSpool {
    /// Lists segments, packs, large bodies, streams and damage.
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
