//! Whatever a body is and however it was cut into parts: it is stored and comes back octet for octet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_maildir::line_ends::{crlf_to_lf, to_wire, wire_size_as_stored};

fuzz_target!(|input: (&[u8], u8)| {
    let (body, cut) = input;
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    let sizes = crlf_to_lf(&[body], &mut whole);
    let pieces: Vec<&[u8]> = body.chunks(usize::from(cut).max(1)).collect();
    assert_eq!(crlf_to_lf(&pieces, &mut parts), sizes);
    assert_eq!(parts, whole);
    assert_eq!(sizes.disk_size, whole.len() as u64);
    let mut wire = Vec::new();
    to_wire(&whole, sizes.disk_size, sizes.wire_size, &mut wire);
    assert_eq!(wire, body);
    let mut as_stored = Vec::new();
    to_wire(body, body.len() as u64, wire_size_as_stored(body), &mut as_stored);
    assert_eq!(as_stored.len() as u64, wire_size_as_stored(body));
});
