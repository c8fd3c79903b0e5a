//! Any octets from a server: what the load generator takes for replies does not depend on how they came, and lies within them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_loadgen::load::replies_in;

fuzz_target!(|data: &[u8]| {
    let [cut, wire @ ..] = data else { return };
    let (whole, is_garbage) = replies_in(wire);
    assert!(whole.iter().map(|(_, octets)| octets).sum::<usize>() <= wire.len());
    assert!(whole.iter().all(|(code, _)| (200..600).contains(code)), "{whole:?}");
    // What has come so far is answered by what it is, whatever comes behind it.
    let (begun, was_garbage) = replies_in(&wire[..wire.len() * usize::from(*cut) / 256]);
    assert!(whole.starts_with(&begun), "{begun:?} became {whole:?}");
    assert!(is_garbage || !was_garbage, "garbage became replies");
});
