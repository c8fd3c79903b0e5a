//! Any octets are an entry of the stream `mailstore` or not; one that is has these octets only.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_mailstore::entry::MailEntry;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Some(entry) = MailEntry::decode(&bytes) {
        assert_eq!(entry.encode(), bytes);
    }
});
