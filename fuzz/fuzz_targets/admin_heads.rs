//! Heads and bodies of requests come out the same however they are cut, nothing behind a refused head does, and what came out is taken again as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_admin::Heads;

/// The octets that come out, and whether a head was refused.
fn sorted(octets: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut heads = Heads::default();
    let is_refused = octets.chunks(piece).any(|piece| heads.push(piece).is_err());
    (heads.ready().to_vec(), is_refused)
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, octets)) = data.split_first() else { return };
    let whole = sorted(octets, octets.len().max(1));
    assert_eq!(sorted(octets, usize::from(piece).max(1)), whole);
    assert_eq!(sorted(octets, 1), whole);
    let (out, is_refused) = whole;
    assert!(out.len() <= octets.len());
    if !is_refused {
        assert_eq!(sorted(&out, out.len().max(1)), (out.clone(), false));
    }
});
