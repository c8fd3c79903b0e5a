//! The field that identifies every generated message and lets its octets be checked.
//!
//! `X-Posthaste-Load: <run>.<number> <digest>` is the first field of the message as generated; servers put trace fields
//! in front of it. `run` is 16 lower-case hexadecimal digits, `number` decimal. `digest` is XXH3-64 in 16 such digits,
//! over all octets after the field's line end. Each line end counts as CRLF, so a message kept with LF line ends
//! compares equal.

use xxhash_rust::xxh3::Xxh3;

/// The field's name with its colon and space.
pub const FIELD: &str = "X-Posthaste-Load: ";

/// Name of a signature's field, with its colon (RFC 6376 section 3.5).
const SIGNATURE: &[u8] = b"DKIM-Signature:";

/// Identifies a message: its run and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    pub run: u64,
    pub number: u64,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}.{}", self.run, self.number)
    }
}

/// A message's stamp, and a verdict on its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: Id,
    /// True if the octets after the field are those that were sent.
    pub is_intact: bool,
    /// DKIM-Signature fields in front of it. What signs a message puts its field there: behind it the octets would change.
    pub signatures: u32,
}

/// The whole field, CRLF included, for a message whose octets after the field are `rest`.
pub fn field(id: Id, rest: &[u8]) -> String {
    field_with_digest(id, digest(rest))
}

/// Like [`field`], for a generator that keeps the digest of a body for repeated use.
pub fn field_with_digest(id: Id, digest: u64) -> String {
    format!("{FIELD}{id} {digest:016x}\r\n")
}

/// The digest of `octets`, each CRLF, and each LF without CR before it, counted as CRLF.
pub fn digest(octets: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    let mut line_start = 0;
    for lf in memchr::memchr_iter(b'\n', octets) {
        let line = &octets[line_start..lf];
        hasher.update(line.strip_suffix(b"\r").unwrap_or(line));
        hasher.update(b"\r\n");
        line_start = lf + 1;
    }
    hasher.update(&octets[line_start..]);
    hasher.digest()
}

/// Finds the stamp in the header of a received message and checks its octets; `None` if there is none.
pub fn find(message: &[u8]) -> Option<Found> {
    let mut rest = message;
    let mut signatures = 0;
    loop {
        let lf = memchr::memchr(b'\n', rest)?;
        let (line, behind) = (&rest[..lf], &rest[lf + 1..]);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return None; // end of the header
        }
        if let Some(value) = line.strip_prefix(FIELD.as_bytes()) {
            let (id, stamped) = parse(value)?;
            return Some(Found { id, is_intact: digest(behind) == stamped, signatures });
        }
        signatures += u32::from(line.get(..SIGNATURE.len()).is_some_and(|name| name.eq_ignore_ascii_case(SIGNATURE)));
        rest = behind;
    }
}

fn parse(value: &[u8]) -> Option<(Id, u64)> {
    let (id, digest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let (run, number) = id.split_once('.')?;
    let hex = |digits: &str| (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    Some((Id { run: hex(run)?, number: number.parse().ok()? }, hex(digest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = Id { run: 0xfeed, number: 42 };

    #[test]
    fn a_stamp_is_found_behind_trace_fields_and_with_lf_line_ends() {
        let rest = b"From: a@example.org\r\nSubject: s\r\n\r\nbody\r\n";
        let mut sent = field(ID, rest).into_bytes();
        sent.extend_from_slice(rest);
        let mut kept = b"Received: by x;\n\tdate\n".to_vec();
        kept.extend(sent.iter().filter(|octet| **octet != b'\r'));
        let found = |is_intact| Some(Found { id: ID, is_intact, signatures: 0 });
        assert_eq!((find(&sent), find(&kept)), (found(true), found(true)));
        *kept.last_mut().unwrap() = b'x';
        assert_eq!(find(&kept), found(false));
    }

    #[test]
    fn signatures_in_front_of_a_stamp_are_counted() {
        let rest = b"DKIM-Signature: v=1; of the sender\r\nFrom: a@example.org\r\n\r\nDKIM-Signature: body\r\n";
        for (front, signatures) in [
            ("", 0),
            ("Received: by x\r\n DKIM-Signature: folded\r\nDKIM-Signatures: v=1\r\n", 0),
            ("DKIM-Signature: v=1;\r\n\tb=x\r\nReceived: by x\r\ndkim-signature: v=1\r\n", 2),
        ] {
            let message = [front.as_bytes(), field(ID, rest).as_bytes(), rest].concat();
            assert_eq!(find(&message), Some(Found { id: ID, is_intact: true, signatures }), "{front}");
        }
    }

    #[test]
    fn what_carries_no_stamp_has_none() {
        for message in [
            &b""[..],
            b"From: a\n\nX-Posthaste-Load: 000000000000feed.1 0123456789abcdef\n",
            b"X-Posthaste-Load: 1.2 3\n\n",
        ] {
            assert_eq!(find(message), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_digest_does_not_see_line_ends(lines in proptest::collection::vec("[ -~]{0,40}", 0..20)) {
            proptest::prop_assert_eq!(digest(lines.join("\r\n").as_bytes()), digest(lines.join("\n").as_bytes()));
        }
    }
}
