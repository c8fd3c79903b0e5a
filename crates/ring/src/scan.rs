//! Finds the records of a segment, even a damaged one.

use std::io;
use std::ops::{ControlFlow, Range};

use crate::file::{SegmentFile, Source};
use crate::layout::{ALIGN, BLOCK, FIRST_RECORD, Lsn, RECORD_HEADER, RecordHeader, SegmentHeader, u64_at};
use crate::window::Window;

/// A record that was found with a whole header and head.
#[derive(Debug, Clone, Copy)]
pub struct Located<'a> {
    /// Offset of the record in the segment file.
    pub offset: u32,
    /// Header of the record.
    pub header: RecordHeader,
    /// Head of the record. The body after it was not checked.
    pub head: &'a [u8],
}

/// Bytes within a segment without an intact record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// First and one past the last byte.
    pub range: Range<u64>,
    /// The missing records, first and last; `None` if the neighbours do not tell.
    pub lsns: Option<(Lsn, Lsn)>,
    /// The defect.
    pub what: &'static str,
}

/// A starting point for searches: every 16th record, and the first after each gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// The record's number, counted from the first of the segment.
    pub nth: u32,
    pub offset: u32,
}

/// Records per anchor.
pub(crate) const ANCHOR_EACH: u32 = 16;

/// Facts about a segment found by [`scan`].
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The first record with a whole header.
    pub first: Lsn,
    /// The last record with a whole header.
    pub last: Lsn,
    /// The last intact record within the scanned part.
    pub whole: Lsn,
    /// The last durable record, according to records of the same epoch.
    pub mark: Lsn,
    /// The last record of the epoch before that the epoch found, according to its records from before its first sync.
    pub found: Lsn,
    pub anchors: Vec<Anchor>,
    /// Places that should contain a record and do not.
    pub gaps: Vec<Gap>,
    /// Records that are not whole in spite of a whole header and head: their bodies are torn.
    pub torn: Vec<Lsn>,
    /// Offset after the last record.
    pub end: u64,
    /// Records with a whole header and head.
    pub records: u64,
    pub bytes_read: u64,
}

impl Scan {
    /// True if the segment contains a record, or the remains of one.
    pub fn has_any(&self) -> bool {
        self.first > Lsn::ZERO || !self.gaps.is_empty()
    }

    /// First and last LSN in the segment, of whole or missing records.
    pub fn lsns(&self) -> Option<(Lsn, Lsn)> {
        let records = (self.first > Lsn::ZERO).then_some((self.first, self.last));
        let gaps = self.gaps.iter().filter_map(|gap| gap.lsns);
        records.into_iter().chain(gaps).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Offset from which to search for a record.
    pub fn anchor(&self, lsn: Lsn) -> Option<u32> {
        anchor(&self.anchors, self.first, lsn)
    }

    fn enter(&mut self, offset: u64, header: &RecordHeader) {
        if self.first == Lsn::ZERO {
            self.first = header.lsn;
        }
        let nth = (header.lsn.get() - self.first.get()) as u32;
        let is_behind_a_gap = self.last.get() + 1 != header.lsn.get();
        if is_behind_a_gap || self.anchors.last().is_none_or(|last| nth - last.nth >= ANCHOR_EACH) {
            self.anchors.push(Anchor { nth, offset: offset as u32 });
        }
        self.last = header.lsn;
        let lsn = header.lsn.get();
        let durable = header.durable;
        // Before its first sync an epoch tells what it found.
        let known = if lsn.saturating_sub(durable.get()) > LSN_GAP { &mut self.found } else { &mut self.mark };
        *known = (*known).max(durable);
    }

    /// Adds unreadable blocks, which the scan took for free space.
    fn add_unreadable(&mut self, blocks: Vec<Range<u64>>) {
        let next = (self.last > Lsn::ZERO).then(|| Lsn::new(self.last.get() + 1));
        for range in blocks.into_iter().filter(|range| range.end > self.end) {
            if self.gaps.iter().all(|gap| gap.range.end <= range.start || range.end <= gap.range.start) {
                self.gaps.push(Gap { range, lsns: next.map(|lsn| (lsn, lsn)), what: "cannot be read" });
            }
        }
    }
}

/// The last anchor at or before `lsn`, in a segment that begins with `first`.
pub(crate) fn anchor(anchors: &[Anchor], first: Lsn, lsn: Lsn) -> Option<u32> {
    let nth = lsn.get().checked_sub(first.get())?;
    let behind = anchors.partition_point(|anchor| u64::from(anchor.nth) <= nth);
    anchors[..behind].last().map(|anchor| anchor.offset)
}

/// LSNs skipped at each opening: more than a crash can have torn away, so that none is ever reused.
pub const LSN_GAP: u64 = 1 << 20;
/// Upper limit of records in a segment of 4 GiB, whatever the size of present ones.
pub(crate) const SEGMENT_RECORDS_MAX: u64 = u32::MAX as u64 / RECORD_HEADER as u64;

/// Finds every record with an intact header and head from offset `range.start` to `range.end`, whatever damage lies
/// between.
///
/// Bodies are skipped. A damaged header hides the length of its record, so the next record is searched at every aligned
/// offset. The random tag of the segment's use practically excludes false matches, even for a message that imitates a
/// record.
///
/// # Errors
/// An error of reading, except for bad sectors, which read as zeros.
pub(crate) fn scan(
    (file, source): (&SegmentFile, Source),
    segment: &SegmentHeader,
    range: Range<u64>,
    visit: &mut dyn FnMut(Located<'_>) -> ControlFlow<()>,
) -> io::Result<Scan> {
    let mut window = Window::new(file, source, READ_AHEAD)?;
    // Nothing is read ahead into blocks that are being written.
    window.end_at(range.end);
    let to = window.file_len();
    let mut found = Scan { end: range.start, ..Scan::default() };
    let mut at = range.start;
    let mut previous: Option<Lsn> = None;
    while let Some((next, header)) = next_header(segment, &mut window, at..to, previous)? {
        let gap = |lsns, what| Gap { range: found.end..next, lsns, what };
        match previous.map(|previous| previous.get() + 1) {
            Some(expected) if header.lsn.get() > expected => {
                let missing = (Lsn::new(expected), Lsn::new(header.lsn.get() - 1));
                found.gaps.push(gap(Some(missing), "record header damaged or missing"));
            }
            // The first record of a segment starts its first commit. If it does not, what stood before it is lost.
            None if next != range.start => found.gaps.push(gap(None, "first record header damaged")),
            _ => {}
        }
        previous = Some(header.lsn);
        found.enter(next, &header);
        let end = next + header.span();
        found.end = end.min(to);
        at = found.end;
        let one = Some((header.lsn, header.lsn));
        if end > to {
            found.gaps.push(Gap { range: next..to, lsns: one, what: "the record ends beyond its segment" });
            break;
        }
        window.set_ahead(if header.body_len >= LARGE_BODY { READ_AHEAD_SMALL } else { READ_AHEAD });
        let head = window.get(next + RECORD_HEADER as u64, header.head_len as usize)?;
        if crc32c::crc32c(head) == header.head_crc {
            found.records += 1;
            found.whole = header.lsn;
            if visit(Located { offset: next as u32, header, head }).is_break() {
                return Ok(found);
            }
        } else {
            found.gaps.push(Gap { range: next..end, lsns: one, what: "head checksum does not match" });
        }
    }
    found.gaps.extend(unfinished(segment, &mut window, at, to, previous)?);
    let unreadable = std::mem::take(&mut window.unreadable);
    found.add_unreadable(unreadable);
    found.bytes_read = window.bytes_read;
    Ok(found)
}

/// The next record at or after `range.start`.
fn next_header(
    segment: &SegmentHeader,
    window: &mut Window<'_>,
    range: Range<u64>,
    previous: Option<Lsn>,
) -> io::Result<Option<(u64, RecordHeader)>> {
    // It follows at once, or begins the next commit.
    for at in [range.start, range.start.next_multiple_of(BLOCK as u64)] {
        if at + RECORD_HEADER as u64 <= range.end
            && let Some(header) = RecordHeader::decode(window.get(at, RECORD_HEADER)?, segment)
            && (at == range.start || previous.is_some_and(|previous| previous.get() + 1 == header.lsn.get()))
        {
            return Ok(Some((at, header)));
        }
    }
    let tag = segment.salt.to_le_bytes();
    let mut at = range.start;
    while at + RECORD_HEADER as u64 <= range.end {
        let piece = window.get(at, READ_AHEAD.min((range.end - at) as usize))?;
        let words = piece.len() / ALIGN * ALIGN;
        let Some(nth) = piece.chunks_exact(ALIGN).position(|word| word == tag) else {
            at += words.max(ALIGN) as u64;
            continue;
        };
        at += (nth * ALIGN) as u64;
        if let Some(header) = RecordHeader::decode(window.get(at, RECORD_HEADER)?, segment) {
            return Ok((at + RECORD_HEADER as u64 <= range.end).then_some((at, header)));
        }
        at += ALIGN as u64;
    }
    Ok(None)
}

/// Remains of a record after the last intact one, if any. A header counts if it has one of three marks: the segment's
/// tag, the right checksum, or the next number.
fn unfinished(
    segment: &SegmentHeader,
    window: &mut Window<'_>,
    end: u64,
    to: u64,
    previous: Option<Lsn>,
) -> io::Result<Option<Gap>> {
    let next = previous.map(|lsn| Lsn::new(lsn.get() + 1));
    for at in [end, end.next_multiple_of(BLOCK as u64)] {
        let bytes = window.get(at, RECORD_HEADER)?;
        if at + RECORD_HEADER as u64 > to || bytes.len() < RECORD_HEADER {
            continue;
        }
        let looks_like_one = u64_at(bytes, 0) == segment.salt
            || next.is_some_and(|next| u64_at(bytes, 8) == next.get())
            || RecordHeader::decode_untagged(bytes, segment).is_some();
        if looks_like_one {
            let range = at..last_byte(window, at, to)?;
            return Ok(Some(Gap { range, lsns: next.map(|lsn| (lsn, lsn)), what: "record header damaged" }));
        }
    }
    Ok(None)
}

/// One past the last non-zero byte.
fn last_byte(window: &mut Window<'_>, from: u64, to: u64) -> io::Result<u64> {
    let mut at = from;
    let mut last = from;
    while at < to {
        let piece = window.get(at, READ_AHEAD.min((to - at) as usize))?;
        if let Some(nth) = piece.iter().rposition(|&byte| byte != 0) {
            last = at + nth as u64 + 1;
        }
        at += piece.len() as u64;
    }
    Ok(last)
}

/// Bytes of one read: most bodies are skipped within it, which is cheaper than a read for each record.
const READ_AHEAD: usize = 1 << 20;
/// Bodies from this size on are worth a read for each header.
const LARGE_BODY: u32 = 64 << 10;
const READ_AHEAD_SMALL: usize = 16 << 10;

const _: () = assert!(FIRST_RECORD.is_multiple_of(ALIGN));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SegmentReader;

    const SEGMENT: SegmentHeader = SegmentHeader { number: 7, epoch: 3, salt: 0x5a17, bytes: 0 };

    /// Commits of records with these lengths of head and body, from LSN 100 on, in a file of 16 blocks.
    fn segment(commits: &[&[(usize, usize)]]) -> (Vec<u8>, Vec<(usize, RecordHeader)>) {
        let (mut bytes, mut records) = (SEGMENT.encode_blocks(), Vec::new());
        for commit in commits {
            for (head, body) in *commit {
                let (head, body) = (vec![b'h'; *head], vec![b'b'; *body]);
                let header = RecordHeader {
                    lsn: Lsn::new(100 + records.len() as u64),
                    durable: Lsn::new(99),
                    head_len: head.len() as u32,
                    body_len: body.len() as u32,
                    head_crc: crc32c::crc32c(&head),
                    body_crc: crc32c::crc32c(&body),
                };
                records.push((bytes.len(), header));
                bytes.extend([&header.encode(&SEGMENT)[..], &head, &body].concat());
                bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            }
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        }
        bytes.resize(16 * BLOCK, 0);
        (bytes, records)
    }

    /// Result of a scan, with the records shown.
    fn scanned(bytes: &[u8]) -> (Scan, Vec<(usize, Lsn)>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let (file, mut shown) = (SegmentFile::open_to_read(file.path()).unwrap(), Vec::new());
        let range = FIRST_RECORD as u64..u64::MAX;
        let scan = scan((&file, Source::Disk), &SEGMENT, range, &mut |located| {
            assert!(located.head.iter().all(|byte| *byte == b'h'));
            shown.push((located.offset as usize, located.header.lsn));
            ControlFlow::Continue(())
        });
        (scan.unwrap(), shown)
    }

    fn lsns(first: u64, last: u64) -> Option<(Lsn, Lsn)> {
        Some((Lsn::new(first), Lsn::new(last)))
    }

    #[test]
    fn records_are_found_in_and_across_commits_without_bodies() {
        let (bytes, records) = segment(&[&[(3, 0), (10, 5000)], &[(0, 1)], &[(4000, 4096), (1, 1), (8, 8)]]);
        let (scan, shown) = scanned(&bytes);
        let expected: Vec<_> = records.iter().map(|(offset, header)| (*offset, header.lsn)).collect();
        assert_eq!((shown, scan.gaps), (expected, Vec::new()));
        assert_eq!((scan.first, scan.last, scan.whole), (Lsn::new(100), Lsn::new(105), Lsn::new(105)));
        assert_eq!(scan.end, records[5].0 as u64 + records[5].1.span());
        // A body that looks like a record, even one of this segment, is one only where the record before it is damaged.
        let mut forged = bytes;
        let inside = records[1].0 + RECORD_HEADER + 10 + 6;
        let other = RecordHeader { lsn: Lsn::new(900), head_len: 0, head_crc: 0, ..records[0].1 };
        forged[inside..inside + RECORD_HEADER].copy_from_slice(&other.encode(&SEGMENT));
        assert_eq!(scanned(&forged).1.len(), 6);
    }

    #[test]
    fn a_damaged_header_or_head_hides_its_record_and_no_other() {
        let commits: [&[(usize, usize)]; 2] = [&[(3, 100), (10, 50), (7, 20)], &[(5, 5), (6, 6)]];
        let (bytes, records) = segment(&commits);
        for (nth, (offset, header)) in records.iter().enumerate() {
            for at in [0, 9, 30, 47, RECORD_HEADER] {
                let mut damaged = bytes.clone();
                damaged[offset + at] ^= 8;
                let (scan, shown) = scanned(&damaged);
                let left: Vec<Lsn> = shown.iter().map(|(_, lsn)| *lsn).collect();
                let expected: Vec<Lsn> =
                    records.iter().map(|(_, header)| header.lsn).filter(|lsn| *lsn != header.lsn).collect();
                assert_eq!(left, expected, "record {nth}, byte {at}");
                let [gap] = &scan.gaps[..] else { panic!("{:?}", scan.gaps) };
                // Nothing in a segment tells the name of its first record but its own header.
                let is_named = nth > 0 || at == RECORD_HEADER;
                assert_eq!(gap.lsns, is_named.then_some((header.lsn, header.lsn)), "record {nth}, byte {at}");
                assert!(gap.range.contains(&(*offset as u64)), "{gap:?}");
            }
        }
    }

    #[test]
    fn a_cut_within_a_commit_leaves_a_gap_and_no_free_space() {
        let (bytes, records) = segment(&[&[(3, 100)], &[(10, 50)]]);
        let mut torn = bytes.clone();
        torn[records[1].0 + 16..records[1].0 + 512].fill(0);
        let gaps = scanned(&torn).0.gaps;
        assert_eq!(gaps.iter().map(|gap| gap.lsns).collect::<Vec<_>>(), [lsns(101, 101)]);
        // From an earlier use of the file.
        let mut stale = bytes.clone();
        let older = SegmentHeader { number: 2, salt: 99, ..SEGMENT };
        stale[records[1].0..][..RECORD_HEADER].copy_from_slice(&records[1].1.encode(&older)[..]);
        stale[records[1].0 + 8] ^= 1;
        assert_eq!(scanned(&stale).0.gaps, []);
        assert!(!scanned(&segment(&[]).0).0.has_any());
    }

    #[test]
    fn every_record_is_found_by_way_of_its_anchor() {
        let commit: Vec<(usize, usize)> = (0..40).map(|n| (n, 3 * n)).collect();
        let (mut bytes, records) = segment(&[&commit, &commit[..20], &commit]);
        let gone = records[50].0;
        bytes[gone] ^= 1;
        let (scan, shown) = scanned(&bytes);
        assert_eq!(shown.len(), records.len() - 1);
        assert!(scan.anchors.len() <= records.len() / ANCHOR_EACH as usize + 3, "{:?}", scan.anchors);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let reader = SegmentReader::open(file.path()).unwrap();
        for (offset, header) in &records {
            let from = scan.anchor(header.lsn).unwrap();
            let expected = (*offset != gone).then_some((*offset as u32, *header));
            assert_eq!(reader.find(from, header.lsn).unwrap(), expected, "{}", header.lsn);
        }
        assert_eq!(scan.anchor(Lsn::new(99)), None);
    }
}
