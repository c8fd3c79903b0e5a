//! CRLF on the wire, LF on disk, and verbatim storage of bodies that a conversion would alter.
//!
//! A body is *lossless* when each CR is followed by LF and each LF preceded by CR. It is stored with LF alone, and
//! reading it back turns each LF into CRLF: the same bytes. Any other body is stored verbatim. The file's name shows
//! the form: LF-stored files have `W > S`, verbatim ones `W == S`. A body without any line end also has `W == S`, and
//! both readings agree.

use memchr::{memchr, memchr_iter};

/// Result of storing a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    /// Bytes written to the output: `S=` of the file name.
    pub disk_size: u64,
    /// Bytes with CRLF line ends: `W=` of the file name.
    pub wire_size: u64,
    /// False if the body has a bare CR or LF: then it was stored verbatim, and `wire_size == disk_size`.
    pub lossless: bool,
}

/// Appends a body to `out` with LF line ends, or verbatim if it has a bare CR or LF.
///
/// The body may be cut into parts anywhere, even between CR and LF. Allocates nothing but `out`.
pub fn crlf_to_lf<P: AsRef<[u8]>>(parts: &[P], out: &mut Vec<u8>) -> Conversion {
    let start = out.len();
    let wire_size: usize = parts.iter().map(|part| part.as_ref().len()).sum();
    out.reserve(wire_size);
    let lossless = strip(parts, out);
    if !lossless {
        out.truncate(start);
        for part in parts {
            out.extend_from_slice(part.as_ref());
        }
    }
    Conversion { disk_size: (out.len() - start) as u64, wire_size: wire_size as u64, lossless }
}

/// Copies all but the CRs. False if there is a bare CR or LF; returns early for a bare CR.
fn strip<P: AsRef<[u8]>>(parts: &[P], out: &mut Vec<u8>) -> bool {
    let mut ends = LineEndScan::default();
    parts.iter().all(|part| ends.push(part.as_ref(), |run| out.extend_from_slice(run))) && ends.are_lossless()
}

/// Scans the line ends of a body that comes in pieces, cut anywhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct LineEndScan {
    crs: u64,
    lfs: u64,
    bare_cr: bool,
    /// True if the last piece ended in a CR.
    after_cr: bool,
}

impl LineEndScan {
    /// Scans the next piece and passes the text between its CRs to `between`. False after a bare CR; then no more text
    /// is passed.
    pub fn push(&mut self, piece: &[u8], mut between: impl FnMut(&[u8])) -> bool {
        let Some(&first) = piece.first() else {
            return !self.bare_cr;
        };
        // Counting LFs is several times faster than stopping at each, so they are compared in number with the CRs that have one.
        self.lfs += memchr_iter(b'\n', piece).count() as u64;
        self.bare_cr |= self.after_cr && first != b'\n';
        self.after_cr = piece.last() == Some(&b'\r');
        let mut from = 0;
        for at in memchr_iter(b'\r', piece) {
            self.crs += 1;
            self.bare_cr |= piece.get(at + 1).is_some_and(|&next| next != b'\n');
            if self.bare_cr {
                return false;
            }
            between(&piece[from..at]);
            from = at + 1;
        }
        if !self.bare_cr {
            between(&piece[from..]);
        }
        !self.bare_cr
    }

    /// True if every CR so far is followed by LF and every LF follows a CR.
    pub fn are_lossless(&self) -> bool {
        !self.bare_cr && !self.after_cr && self.crs == self.lfs
    }

    /// Bytes of the CRs of a body that [is lossless](Self::are_lossless).
    pub fn crs(&self) -> u64 {
        self.crs
    }

    /// LFs of a body without any CR; stored as it is, each counts twice on the wire. Otherwise 0.
    pub fn lone_lfs(&self) -> u64 {
        if self.crs == 0 { self.lfs } else { 0 }
    }
}

/// Appends `stored` to `out` with each LF as CRLF. Keeps no state between calls, so it works piece by piece.
pub fn lf_to_crlf(stored: &[u8], out: &mut Vec<u8>) {
    let mut rest = stored;
    while let Some(at) = memchr(b'\n', rest) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(b"\r\n");
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Appends a stored message in its wire form, chosen by the sizes in its name: verbatim if `wire_size == disk_size`, LF
/// to CRLF otherwise.
pub fn to_wire(stored: &[u8], disk_size: u64, wire_size: u64, out: &mut Vec<u8>) {
    if wire_size == disk_size {
        out.extend_from_slice(stored);
    } else {
        out.reserve(usize::try_from(wire_size).unwrap_or(0).min(2 * stored.len()));
        lf_to_crlf(stored, out);
    }
}

/// Wire size of a body stored as it is. Each LF counts as two bytes. A body with a CR anywhere is served verbatim, so
/// its wire size is its length.
pub fn wire_size_as_stored(body: &[u8]) -> u64 {
    let line_ends = match memchr(b'\r', body) {
        Some(_) => 0,
        None => memchr_iter(b'\n', body).count(),
    };
    (body.len() + line_ends) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parts: &[&str], expected: &str, lossless: bool) {
        let mut out = b"before".to_vec();
        let conversion = crlf_to_lf(parts, &mut out);
        assert_eq!(String::from_utf8_lossy(&out[6..]), expected, "{parts:?}");
        let wire: usize = parts.iter().map(|part| part.len()).sum();
        let sizes = (conversion.disk_size, conversion.wire_size);
        assert_eq!(sizes, (expected.len() as u64, wire as u64), "{parts:?}");
        assert_eq!(conversion.lossless, lossless, "{parts:?}");
    }

    #[test]
    fn crlf_becomes_lf_wherever_it_is_cut() {
        check(&["a\r\nb\r\n"], "a\nb\n", true);
        check(&["a\r", "\nb"], "a\nb", true);
        check(&["a", "\r", "", "\n", "\r\n"], "a\n\n", true);
        check(&[], "", true);
        check(&["no line end"], "no line end", true);
    }

    #[test]
    fn a_bare_cr_or_lf_keeps_the_body_verbatim() {
        for bare in ["a\nb\r\n", "\n", "a\r", "\r", "\r\r\n", "a\rb", "\r\n\n", "a\r\n\r"] {
            check(&[bare], bare, false);
        }
        check(&["a\r\n", "\n"], "a\r\n\n", false);
        check(&["a\r", "b\n"], "a\rb\n", false);
        check(&["a\r", "\r\n"], "a\r\r\n", false);
        check(&["a\r", "\n\n"], "a\r\n\n", false);
    }

    #[test]
    fn line_ends_are_counted_however_a_body_is_cut() {
        for (body, lossless, crs, lone_lfs) in [
            ("", true, 0, 0),
            ("a\r\n\r\nb", true, 2, 0),
            ("a\nb\n", false, 0, 2),
            ("a\r\nb\n", false, 1, 0),
            ("a\r\n\r", false, 2, 0),
        ] {
            for cut in 0..=body.len() {
                let mut scan = LineEndScan::default();
                let mut kept = String::new();
                for piece in [&body[..cut], &body[cut..]] {
                    scan.push(piece.as_bytes(), |run| kept += str::from_utf8(run).unwrap());
                }
                assert_eq!(
                    (scan.are_lossless(), scan.crs(), scan.lone_lfs()),
                    (lossless, crs, lone_lfs),
                    "{body:?} at {cut}"
                );
                assert_eq!(kept, body.replace('\r', ""), "{body:?} at {cut}");
            }
        }
        let mut bare = LineEndScan::default();
        assert!(bare.push(b"a\r", |_| ()) && !bare.push(b"b\r\n", |run| panic!("{run:?} after a bare CR")));
        assert!(!bare.are_lossless() && bare.lone_lfs() == 0);
    }

    #[test]
    fn the_wire_size_of_a_stored_body_follows_the_mark() {
        assert_eq!(wire_size_as_stored(b"a\nb\n"), 6);
        assert_eq!(wire_size_as_stored(b"a\r\nb\n"), 5);
        assert_eq!(wire_size_as_stored(b""), 0);
    }
}
