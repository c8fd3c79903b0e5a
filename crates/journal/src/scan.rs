//! Finding the records of one segment, however damaged it may be.

use std::ops::Range;

use crate::layout::{ALIGN, BLOCK, RECORD_HEADER, RecordHeader, SegmentHeader, record_span};

/// One record that [`scan`] found whole.
#[derive(Debug, Clone, Copy)]
pub struct Located {
    /// The record's header.
    pub header: RecordHeader,
    /// Byte offset of the payload in the segment file.
    pub payload_offset: u64,
}

/// What one segment holds.
#[derive(Debug, Default)]
pub struct Scan {
    /// Whole records in the order of the log.
    pub records: Vec<Located>,
    /// Byte ranges that should hold a record and do not, each with the sequence numbers missing there if known.
    pub gaps: Vec<Gap>,
    /// Offset after the last whole record.
    pub end: u64,
}

impl Scan {
    /// Whether it holds a record, or the remains of one.
    pub(crate) fn has_any(&self) -> bool {
        !self.records.is_empty() || !self.gaps.is_empty()
    }

    /// The first and the last sequence number that it tells of, of whole records or missing ones.
    pub(crate) fn seqs(&self) -> Option<(u64, u64)> {
        let records = self.records.iter().map(|record| (record.header.seq, record.header.seq));
        let gaps = self.gaps.iter().filter_map(|gap| gap.seqs);
        records.chain(gaps).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Adds what the disk cannot read, and the scan took for free space.
    pub(crate) fn add_unreadable(&mut self, blocks: Vec<Range<u64>>) {
        let next = self.records.last().map(|record| record.header.seq + 1);
        for range in blocks.into_iter().filter(|range| range.end > self.end) {
            if self.gaps.iter().all(|gap| gap.range.1 <= range.start || range.end <= gap.range.0) {
                let seqs = next.map(|seq| (seq, seq));
                self.gaps.push(Gap { range: (range.start, range.end), seqs, what: "cannot be read" });
            }
        }
    }
}

/// Bytes in the midst of a segment that hold no whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// First and one past the last byte.
    pub range: (u64, u64),
    /// Sequence numbers missing, first and last; `None` when the records around do not tell.
    pub seqs: Option<(u64, u64)>,
    /// What is wrong there.
    pub what: &'static str,
}

/// Finds every whole record in a segment's bytes, however damaged the rest may be.
///
/// A damaged header hides the length of its record, so the next record is sought at every aligned offset; the random
/// tag of the segment's use makes a false find as good as impossible, even if a message was written to look like one.
pub fn scan(segment: &SegmentHeader, bytes: &[u8]) -> Scan {
    let mut found = Scan { end: BLOCK as u64, ..Scan::default() };
    let mut at = BLOCK;
    let mut previous: Option<u64> = None;
    while let Some(next) = next_header(segment, bytes, at) {
        let header = RecordHeader::decode(&bytes[next..], segment).expect("next_header decoded it");
        let gap = |seqs, what| Gap { range: (found.end, next as u64), seqs, what };
        match previous {
            Some(p) if header.seq > p + 1 => {
                found.gaps.push(gap(Some((p + 1, header.seq - 1)), "record header damaged or missing"));
            }
            // The first record of a segment starts its first commit. If it does not, what stood before it is lost.
            None if next != BLOCK => found.gaps.push(gap(None, "first record header damaged")),
            _ => {}
        }
        previous = Some(header.seq);
        let start = next + RECORD_HEADER;
        let end = start + header.len as usize;
        match bytes.get(start..end) {
            Some(payload) if crc32c::crc32c(payload) == header.payload_crc => {
                found.records.push(Located { header, payload_offset: start as u64 });
            }
            _ => found.gaps.push(Gap {
                range: (next as u64, end.min(bytes.len()) as u64),
                seqs: Some((header.seq, header.seq)),
                what: "payload checksum does not match",
            }),
        }
        at = (next + record_span(header.len as usize)).min(bytes.len());
        found.end = at as u64;
    }
    found.gaps.extend(unfinished(segment, bytes, at, previous));
    found
}

/// The remains of a record after the last whole one, if there are any: a header where one should be that has the
/// segment's tag or the next number, but not both or not the right checksum.
fn unfinished(segment: &SegmentHeader, bytes: &[u8], end: usize, previous: Option<u64>) -> Option<Gap> {
    let next = previous.map(|seq| seq + 1);
    let looks_like_one = |at: &usize| {
        let word =
            |at: usize| bytes.get(at..at + 8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        word(*at) == Some(segment.salt) || (next.is_some() && word(*at + 8) == next)
    };
    let at = [end, end.next_multiple_of(BLOCK)].into_iter().find(looks_like_one)?;
    let to = bytes.iter().rposition(|&byte| byte != 0).map_or(at, |last| last + 1).max(at);
    Some(Gap { range: (at as u64, to as u64), seqs: next.map(|seq| (seq, seq)), what: "record header damaged" })
}

fn next_header(segment: &SegmentHeader, bytes: &[u8], from: usize) -> Option<usize> {
    let tag = segment.salt.to_le_bytes();
    (from..bytes.len().saturating_sub(RECORD_HEADER - 1))
        .step_by(ALIGN)
        .find(|&at| bytes[at..at + 8] == tag && RecordHeader::decode(&bytes[at..], segment).is_some())
}
