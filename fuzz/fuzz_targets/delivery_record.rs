//! Any octets are a record of the delivery journal or not; what was read is written and read as the same, and no record asks for more
//! than it brings.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_delivery::rewritten_record;
use posthaste_journal::KIND_USER;

fuzz_target!(|data: &[u8]| {
    let [kind, payload @ ..] = data else { return };
    let kind = KIND_USER + kind % 4;
    let Some(written) = rewritten_record(kind, Bytes::copy_from_slice(payload)) else { return };
    assert!(written.len() <= payload.len(), "{} octets became {}", payload.len(), written.len());
    let again = rewritten_record(kind, Bytes::from(written.clone())).expect("what was written reads");
    assert_eq!(again, written);
});
