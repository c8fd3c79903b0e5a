//! The table of segments in service, and of the records in them.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Lsn;
use crate::damage::Read;
use crate::layout::FIRST_RECORD;
use crate::pool::Segment;
use crate::scan::{ANCHOR_EACH, Anchor, anchor};

/// A segment in service.
pub(crate) struct InService {
    pub segment: Segment,
    /// First and last record; zero without any.
    pub first: Lsn,
    pub last: Lsn,
    /// Offset after the last record.
    pub end: u64,
    pub len: u64,
    anchors: Vec<Anchor>,
    /// Records that a cut has torn, with whole headers: they do not exist. Sorted.
    torn: Vec<Lsn>,
    /// Damage that the opening reported.
    gaps: Vec<Range<u64>>,
}

/// A segment in service, as reported by [`Ring::segments`](crate::Ring::segments).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Number of the segment.
    pub number: u64,
    /// LSN of the first record; zero without any.
    pub first: Lsn,
    /// LSN of the last record; zero without any.
    pub last: Lsn,
    /// Offset after the last record.
    pub bytes_used: u64,
    /// Bytes of the file.
    pub segment_bytes: u64,
    /// True if no more records are written to the segment.
    pub is_sealed: bool,
}

/// The records of a segment from one on, at a moment.
pub(crate) struct Part {
    pub segment: Segment,
    pub range: Range<u64>,
    pub torn: Vec<Lsn>,
    pub gaps: Vec<Range<u64>>,
}

/// The segments in service, in the order of numbers and records.
#[derive(Default)]
pub(crate) struct Table {
    pub segments: BTreeMap<u64, InService>,
    /// Number of the segment being written.
    pub current: Option<u64>,
}

impl InService {
    /// A segment without records.
    pub fn new(segment: Segment, len: u64) -> Self {
        let first = Lsn::ZERO;
        let end = FIRST_RECORD as u64;
        InService { segment, first, last: first, end, len, anchors: Vec::new(), torn: Vec::new(), gaps: Vec::new() }
    }

    /// A segment that opening has found.
    pub fn found(read: Read) -> std::io::Result<Self> {
        let Read { segment, scan, .. } = read;
        let len = segment.file.len()?;
        let mut torn = scan.torn;
        torn.sort_unstable();
        let gaps = scan.gaps.into_iter().map(|gap| gap.range).collect();
        Ok(InService {
            segment,
            first: scan.first,
            last: scan.last,
            end: scan.end,
            len,
            anchors: scan.anchors,
            torn,
            gaps,
        })
    }

    /// Adds the next record, at this offset.
    pub fn enter(&mut self, lsn: Lsn, offset: u64) {
        if self.first == Lsn::ZERO {
            self.first = lsn;
        }
        self.last = lsn;
        let nth = (lsn.get() - self.first.get()) as u32;
        if nth.is_multiple_of(ANCHOR_EACH) {
            self.anchors.push(Anchor { nth, offset: offset as u32 });
        }
    }

    pub fn has(&self, lsn: Lsn) -> bool {
        self.first > Lsn::ZERO && (self.first..=self.last).contains(&lsn)
    }

    pub fn is_torn(&self, lsn: Lsn) -> bool {
        self.torn.binary_search(&lsn).is_ok()
    }

    /// Offset from which to search for the first record at or after `lsn`.
    pub fn anchor(&self, lsn: Lsn) -> Option<u32> {
        anchor(&self.anchors, self.first, lsn.max(self.first))
    }

    /// The part to read for the records from `from` on; `None` without any.
    pub fn part(&self, from: Lsn) -> Option<Part> {
        let offset = self.anchor(from).filter(|_| self.last >= from)?;
        let torn = self.torn.clone();
        let gaps = self.gaps.clone();
        Some(Part { segment: self.segment.clone(), range: offset.into()..self.end, torn, gaps })
    }
}

impl Table {
    /// The segment that would contain a record, and an offset at which to start searching.
    pub fn find(&self, lsn: Lsn) -> Option<(Segment, u32)> {
        let entry = self.segments.values().rev().find(|entry| entry.has(lsn))?;
        (!entry.is_torn(lsn)).then(|| Some((entry.segment.clone(), entry.anchor(lsn)?))).flatten()
    }

    pub fn info(&self) -> Vec<SegmentInfo> {
        let info = |(number, entry): (&u64, &InService)| SegmentInfo {
            number: *number,
            first: entry.first,
            last: entry.last,
            bytes_used: entry.end,
            segment_bytes: entry.len,
            is_sealed: self.current != Some(*number),
        };
        self.segments.iter().map(info).collect()
    }

    /// Bytes of the segments in service, without the free part of the current one.
    pub fn bytes_used(&self) -> u64 {
        let used =
            |(number, entry): (&u64, &InService)| if self.current == Some(*number) { entry.end } else { entry.len };
        self.segments.iter().map(used).sum()
    }

    /// Takes the segments below `number` out of service, except the current one.
    pub fn take_below(&mut self, number: u64) -> Vec<Segment> {
        let number = self.current.map_or(number, |current| number.min(current));
        let kept = self.segments.split_off(&number);
        std::mem::replace(&mut self.segments, kept).into_values().map(|entry| entry.segment).collect()
    }
}
