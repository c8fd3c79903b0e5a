//! Any octets have a header of some kind: it reads the same however it is cut, and a field in front of it is counted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::{HeaderScan, Summary};

fuzz_target!(|message: &[u8]| {
    let whole = scanned(std::iter::once(message));
    assert_eq!(scanned(message.chunks(1 + message.len() % 7)), whole);
    let traced = scanned([&b"Received: from fuzz\r\n"[..], message].into_iter());
    assert_eq!(traced, Summary { hops: whole.hops + 1, ..whole });
});

fn scanned<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Summary {
    let mut scan = HeaderScan::default();
    pieces.for_each(|piece| scan.push(piece));
    scan.finish()
}
