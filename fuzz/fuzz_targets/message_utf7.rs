//! A mailbox name has one encoding: what is decoded is encoded to the same octets, and any text comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::utf7::{decode, encode};

fuzz_target!(|data: &[u8]| {
    if let Ok(name) = decode(data) {
        assert_eq!(encode(&name).as_bytes(), data);
    }
    let name = String::from_utf8_lossy(data);
    assert_eq!(decode(encode(&name).as_bytes()).as_deref(), Ok(&*name));
});
