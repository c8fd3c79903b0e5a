//! Any octets from an engine are a record, and batches in it, or not: what was read is written as the same octets, and a reader takes whatever comes, in any order.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_cluster::{Content, LogPosition, LogReader, LogRecord, LoggedBatch};

fuzz_target!(|data: &[u8]| {
    let mut reader = LogReader::new(1);
    for piece in pieces(data) {
        let as_it_is = Bytes::copy_from_slice(piece);
        assert!(LogRecord::decode(&as_it_is).is_err() || piece.len() > 40);
        // With a checksum that fits, or no input would come past it.
        let sealed = Bytes::from([piece, &crc32c::crc32c(piece).to_le_bytes()].concat());
        let before = reader.position();
        let verdict = reader.read(before.next(), &sealed);
        assert_eq!(reader.position(), if verdict.is_ok() { before.next() } else { before });
        assert!(reader.read(LogPosition::new(before.get() + 2 + u64::from(verdict.is_ok())), &sealed).is_err());
        let Ok(record) = LogRecord::decode(&sealed) else { continue };
        assert_eq!(LogRecord::encode(&record.header, &record.content).0, sealed);
        let Content::Batches(batches) = record.content else { continue };
        for bytes in batches {
            if let Some((batch, body)) = LoggedBatch::decode(&bytes) {
                assert_eq!([&batch.encode_head()[..], &body].concat(), bytes);
            }
        }
    }
});

/// Each has its length in front.
fn pieces(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = data.split_first_chunk::<2>()?;
        let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
        data = rest;
        Some(piece)
    })
}
