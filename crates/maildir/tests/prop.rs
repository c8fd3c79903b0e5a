//! Laws of names and line ends over generated input.

use posthaste_maildir::line_ends::{crlf_to_lf, to_wire};
use posthaste_maildir::{Host, UniqueName};
use proptest::prelude::*;

/// Bytes in which line ends, whole and torn, are frequent.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::collection::vec(any::<u8>().prop_filter("no line end", |b| !b"\r\n".contains(b)), 0..20),
        4 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b"\n".to_vec()),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

/// The definition of a bare CR or LF, applied byte by byte.
fn has_bare(body: &[u8]) -> bool {
    let cr = |at: usize| body.get(at) == Some(&b'\r');
    let lf = |at: usize| body.get(at) == Some(&b'\n');
    (0..body.len()).any(|at| (cr(at) && !lf(at + 1)) || (lf(at) && (at == 0 || !cr(at - 1))))
}

proptest! {
    #[test]
    fn any_body_comes_back_however_it_is_cut(
        body in body(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        at.extend([0, body.len()]);
        at.sort_unstable();
        let parts: Vec<&[u8]> = at.windows(2).map(|w| &body[w[0]..w[1]]).collect();
        let mut stored = Vec::new();
        let sizes = crlf_to_lf(&parts, &mut stored);
        let mut whole = Vec::new();
        prop_assert_eq!(sizes, crlf_to_lf(&[&body], &mut whole));
        prop_assert_eq!(&stored, &whole);
        prop_assert_eq!(sizes.lossless, !has_bare(&body));
        prop_assert_eq!(sizes.disk_size, stored.len() as u64);
        prop_assert_eq!(sizes.wire_size, body.len() as u64);
        prop_assert!(!sizes.lossless || !stored.contains(&b'\r'));
        let mut wire = Vec::new();
        to_wire(&stored, sizes.disk_size, sizes.wire_size, &mut wire);
        prop_assert_eq!(wire, body);
    }

    #[test]
    fn any_name_parses_to_its_parts(
        secs in any::<u64>(),
        unique in "[A-Za-z0-9_-]{1,100}",
        host in ".{0,80}",
        disk_size in any::<u64>(),
        wire_size in any::<u64>(),
        flags in "[A-Za-z]{0,6}",
    ) {
        let host = Host::new(&host);
        let name = UniqueName::new(secs, &unique, &host, disk_size, wire_size);
        let seen = UniqueName::parse(&format!("{name}:2,{flags}")).expect("fits");
        prop_assert_eq!(seen.secs(), Some(secs));
        prop_assert_eq!(seen.unique(), Some(unique.as_str()));
        prop_assert_eq!(seen.host(), Some(host.as_str()));
        prop_assert_eq!(seen.disk_size(), Some(disk_size));
        prop_assert_eq!(seen.wire_size(), Some(wire_size));
        prop_assert_eq!(seen.flag_letters(), flags.as_str());
        prop_assert_eq!(seen.key(), name.key());
    }
}
