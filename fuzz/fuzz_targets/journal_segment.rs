//! A segment full of records is damaged wherever the input says: every record that the scan finds is one that was written,
//! whole, in its order; the undamaged ones are all found. And any octets can be scanned at all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_journal::layout::{BLOCK, Checkpoint, RecordHeader, SegmentHeader, record_span};
use posthaste_journal::{KIND_USER, Scan, scan};

const HEADER: SegmentHeader = SegmentHeader { number: 7, epoch: 3, salt: 0x0123_4567_89ab_cdef };

fuzz_target!(|data: &[u8]| {
    if let Some(header) = SegmentHeader::decode_block(data) {
        check_bounds(&scan(&header, data), data);
    }
    if let Some(checkpoint) = Checkpoint::decode(data) {
        let again = Checkpoint::decode(&checkpoint.encode()).expect("what was written reads");
        assert_eq!(again, checkpoint);
    }
    let [count, rest @ ..] = data else { return };
    let damages = usize::from(*count % 8);
    let Some((damages, payloads)) = rest.split_at_checked(damages * 4) else { return };
    damage_and_scan(damages, payloads);
});

struct Written {
    offset: usize,
    span: usize,
    header: RecordHeader,
}

/// Each damage is four octets: where (three), and what is put there.
fn damage_and_scan(damages: &[u8], payloads: &[u8]) {
    let (mut segment, written) = build(payloads);
    let whole = segment.clone();
    for damage in damages.chunks_exact(4) {
        let at = u32::from_le_bytes([damage[0], damage[1], damage[2], 0]) as usize;
        let room = segment.len() - BLOCK;
        if room > 0 {
            segment[BLOCK + at % room] ^= damage[3];
        }
    }
    let found = scan(&HEADER, &segment);
    check_bounds(&found, &segment);
    for record in &found.records {
        let start = record.payload_offset as usize;
        let original = written.iter().find(|written| written.header.seq == record.header.seq);
        let original = original.unwrap_or_else(|| panic!("{record:?} was never written"));
        assert_eq!(original.header, record.header);
        let len = record.header.len as usize;
        assert_eq!(whole[start..start + len], segment[start..start + len], "{record:?} is damaged and was taken");
    }
    // What lies on neither side of a damage must not be lost with it.
    for record in &written {
        let range = record.offset..record.offset + record.span;
        if segment[range.clone()] == whole[range] {
            let seq = record.header.seq;
            assert!(
                found.records.iter().any(|found| found.header.seq == seq),
                "record {seq} is whole and was not found"
            );
        }
    }
}

/// One record for each 16 octets of payload, or fewer; a zero in front begins a new commit, on a fresh block.
fn build(payloads: &[u8]) -> (Vec<u8>, Vec<Written>) {
    let (mut segment, mut written) = (HEADER.encode_block(), Vec::new());
    for (index, payload) in payloads.chunks(16).enumerate() {
        if index == 0 || payload[0] == 0 {
            segment.resize(segment.len().next_multiple_of(BLOCK), 0);
        }
        let seq = index as u64 + 1;
        let header = RecordHeader {
            seq,
            id: seq,
            durable: index as u64,
            len: payload.len() as u32,
            kind: KIND_USER,
            flags: 0,
            version: 0,
            payload_crc: crc32c::crc32c(payload),
        };
        let offset = segment.len();
        segment.extend_from_slice(&header.encode(&HEADER));
        segment.extend_from_slice(payload);
        let span = record_span(payload.len());
        segment.resize(offset + span, 0);
        written.push(Written { offset, span, header });
    }
    (segment, written)
}

fn check_bounds(found: &Scan, segment: &[u8]) {
    let len = segment.len() as u64;
    let mut end = 0;
    for record in &found.records {
        assert!(record.payload_offset >= end, "records overlap");
        end = record.payload_offset + u64::from(record.header.len);
        assert!(end <= len, "a record outside of the segment");
    }
    assert!(found.end <= len.max(BLOCK as u64), "{} of {len}", found.end);
    for gap in &found.gaps {
        assert!(gap.range.0 <= gap.range.1, "{gap:?}");
    }
}
