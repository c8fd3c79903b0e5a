//! Any octets have a header of some kind: its fields lie within it, and a field in front of it is read back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::Header;

fuzz_target!(|message: &[u8]| {
    let header = Header::of(message);
    assert!(message.starts_with(header.as_bytes()));
    let octets: usize = header.fields().map(|field| field.name().len() + field.value().len()).sum();
    assert!(octets <= header.as_bytes().len());
    let summary = header.summary();
    assert_eq!(summary.hops, header.hops());
    let traced = [b"Received: from fuzz\r\n", message].concat();
    let with_trace = Header::of(&traced);
    assert_eq!(with_trace.get("received").expect("it stands in front").name(), b"Received");
    assert!(with_trace.hops() > 0);
});
