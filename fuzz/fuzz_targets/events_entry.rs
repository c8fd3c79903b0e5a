//! Any octets are an entry of the event log or not: each has whole lines of JSON, and one that cannot be read has one that says so.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_spool::Lsn;

fuzz_target!(|data: &[u8]| {
    let lines = posthaste_events::lines(Lsn::new(7), Bytes::copy_from_slice(data));
    let text = String::from_utf8(lines).expect("UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'));
    for line in text.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert!(event["event"].is_string(), "{line}");
    }
});
