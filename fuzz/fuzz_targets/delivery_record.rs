//! Any octets are an entry of local delivery or not, and what was read is written and read as the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_delivery::local::LocalEntry;

fuzz_target!(|data: &[u8]| {
    let payload = Bytes::copy_from_slice(data);
    if let Some(entry) = LocalEntry::decode(payload) {
        assert_eq!(LocalEntry::decode(entry.encode()), Some(entry));
    }
});
