//! Any octets are an entry of transports or not, and what was read is written as the same octets.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_transport::TransportEntry;

fuzz_target!(|data: &[u8]| {
    if let Some(entry) = TransportEntry::decode(Bytes::copy_from_slice(data)) {
        assert_eq!(entry.encode(), data);
        assert_eq!(TransportEntry::decode(entry.encode()), Some(entry));
    }
});
