//! Heads and bodies of requests come out the same however they are cut, nothing behind a refused head does, and what came out is taken again as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_admin::Heads;

/// The octets that come out, taken as the connection takes them, and whether a head was refused.
fn sorted(octets: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let (mut heads, mut out) = (Heads::default(), Vec::new());
    let is_refused = octets.chunks(piece).any(|piece| {
        let (body, rest) = piece.split_at(heads.pass(piece));
        out.extend_from_slice(body);
        let pushed = heads.push(rest);
        out.extend_from_slice(&heads.ready().split());
        pushed.is_err()
    });
    (out, is_refused)
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
