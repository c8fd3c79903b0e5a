//! Any octets have a header of some kind: its fields lie within it, and a field in front of it is read back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::{Header, HeaderScan};

fuzz_target!(|message: &[u8]| {
    let header = Header::of(message);
    assert!(message.starts_with(header.as_bytes()));
    let octets: usize = header.fields().map(|field| field.name().len() + field.value().len()).sum();
    assert!(octets <= header.as_bytes().len());
    let scanned = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut scan = HeaderScan::default();
        pieces.for_each(|piece| scan.push(piece));
        scan.finish()
    };
    let whole = scanned(&mut std::iter::once(message));
    assert_eq!(whole.hops, header.hops());
    assert_eq!(scanned(&mut message.chunks(1 + message.len() % 7)), whole);
    let traced = [b"Received: from fuzz\r\n", message].concat();
    let with_trace = Header::of(&traced);
    assert_eq!(with_trace.get("received").expect("it stands in front").name(), b"Received");
    assert!(with_trace.hops() > 0);
});
