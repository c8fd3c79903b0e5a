//! Any octets as a signed message and as the records of its keys: results within the bound, the same however the body is cut, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_dkim::{SIGNATURES_MAX, Verification, Verifier};

/// Fields are ended by NUL; then comes a record, then the body.
fn verify(data: &[u8], piece: usize) -> Vec<Verification> {
    let mut verifier = Verifier::default();
    let mut parts = data.split(|octet| *octet == 0).peekable();
    let (mut record, mut body) = (&b""[..], &b""[..]);
    while let Some(part) = parts.next() {
        match (part.first(), parts.peek()) {
            (Some(b'!'), _) => record = &part[1..],
            (_, None) => body = part,
            _ => verifier.field(part),
        }
    }
    verifier.begin_body(Some("example.org"));
    body.chunks(piece).for_each(|part| verifier.body(part));
    let texts = [String::from_utf8_lossy(record).into_owned()];
    let claims = verifier.finish(1_795_000_000);
    claims.into_iter().map(|claim| claim.verify((!record.is_empty()).then_some(&texts[..]))).collect()
}

fuzz_target!(|data: &[u8]| {
    let found = verify(data, usize::MAX);
    assert!(found.len() <= SIGNATURES_MAX);
    assert_eq!(found, verify(data, 1));
});
