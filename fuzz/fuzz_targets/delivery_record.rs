//! Any octets are an entry of local delivery or not, and what was read is written and read as the same. So are records of the journal of earlier versions: what is
//! read of one takes no more memory than it brings.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_delivery::local::{LocalEntry, old_message_bytes};

fuzz_target!(|data: &[u8]| {
    let payload = Bytes::copy_from_slice(data);
    if let Some(entry) = LocalEntry::decode(payload.clone()) {
        assert_eq!(LocalEntry::decode(entry.encode()), Some(entry));
    }
    if let Some(bytes) = old_message_bytes(payload) {
        assert!(bytes <= data.len() as u64, "{} octets became {bytes}", data.len());
    }
});
