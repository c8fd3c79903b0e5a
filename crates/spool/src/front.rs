//! Front fields: header fields that acceptance writes in front of a message, such as `Received`. They are a region of
//! the record between its head and its body, with their own checksum; for a large body they are in the body's place.
//! They are released with the body.

use bytes::{BufMut, Bytes};

use crate::fields::Fields;

/// Header fields in front of a body, each line ended by CRLF.
///
/// For every reader the fields and the body are one message: [`Spool::read`](crate::Spool::read) and every length begin
/// at the first octet of the fields. If the fields are damaged, readers get a field `X-Lost` with the same number of
/// octets and lines, so that no length changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrontFields(Bytes);

/// Why octets cannot be front fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrontFieldsError {
    /// Longer than [`FrontFields::BYTES_MAX`]; the length in bytes.
    #[error("too many fields in front of a message: {0} octets")]
    TooLong(usize),
    /// A line without CRLF, an empty line, or a continuation as the first line.
    #[error("the fields in front of a message are not lines of a header")]
    NotLines,
}

impl FrontFields {
    /// Maximum length: 64 KiB.
    pub const BYTES_MAX: usize = 64 << 10;

    /// Checks the lines and the length, but not the content of the fields.
    ///
    /// # Errors
    /// See [`FrontFieldsError`].
    pub fn new(fields: impl Into<Bytes>) -> Result<Self, FrontFieldsError> {
        let fields = fields.into();
        if fields.len() > Self::BYTES_MAX {
            return Err(FrontFieldsError::TooLong(fields.len()));
        }
        let is_line = |line: &[u8]| match line.strip_suffix(b"\r\n") {
            Some(text) => !text.is_empty() && !text.contains(&b'\r'),
            None => false,
        };
        let first_is_field = fields.is_empty() || fields.len() >= SHORTEST && !b" \t".contains(&fields[0]);
        if first_is_field && fields.split_inclusive(|octet| *octet == b'\n').all(is_line) {
            Ok(FrontFields(fields))
        } else {
            Err(FrontFieldsError::NotLines)
        }
    }

    /// The octets of the fields.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Length of the fields in octets.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of lines.
    pub fn lines(&self) -> usize {
        self.0.iter().filter(|octet| **octet == b'\n').count()
    }
}

/// The front fields of a batch, as described in its head. All zero: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FrontRegion {
    pub len: u32,
    lines: u16,
    crc: u32,
}

impl FrontRegion {
    pub fn of(front: &FrontFields) -> Self {
        // Within `BYTES_MAX`, and a line has three octets.
        FrontRegion { len: front.len() as u32, lines: front.lines() as u16, crc: crc32c::crc32c(front.bytes()) }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32_le(self.len);
        out.put_u16_le(self.lines);
        out.put_u32_le(self.crc);
    }

    pub fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let region = FrontRegion { len: fields.u32()?, lines: fields.u16()?, crc: fields.u32()? };
        (region.len as usize <= FrontFields::BYTES_MAX).then_some(region)
    }

    /// Repairs a body region `raw` whose checksum is not `crc`: if only the front fields are damaged, `X-Lost`
    /// replaces them.
    pub fn mended(&self, raw: &[u8], crc: u32) -> Option<Bytes> {
        let (_, body) = raw.split_at_checked(self.len as usize).filter(|(front, _)| !front.is_empty())?;
        let whole = crc32c::crc32c_combine(self.crc, crc32c::crc32c(body), body.len());
        (whole == crc).then(|| [&self.substitute()[..], body].concat().into())
    }

    /// The description of these fields after [`substitute`](Self::substitute) has replaced them.
    pub fn replaced(&self) -> Self {
        FrontRegion { crc: crc32c::crc32c(&self.substitute()), ..*self }
    }

    /// A placeholder field with the same number of octets and lines.
    pub fn substitute(&self) -> Bytes {
        let len = self.len as usize;
        let mut out = Vec::with_capacity(self.len as usize);
        for left in (1..=usize::from(self.lines)).rev() {
            let there = len.saturating_sub(out.len());
            let behind = 3 * (left - 1);
            let begin: &[u8] = if !out.is_empty() {
                b" "
            } else if there >= NAME.len() + 2 + behind {
                NAME
            } else {
                b"X:"
            };
            let line = (there / left).max((begin.len() + 2).min(there.saturating_sub(behind)));
            let end = out.len() + line;
            out.extend_from_slice(&begin[..begin.len().min(line.saturating_sub(2))]);
            out.resize(end.saturating_sub(2).max(out.len()), b'.');
            out.extend_from_slice(b"\r\n");
        }
        // A wrong line count in a damaged head must not change the length.
        out.resize(len, b'.');
        out.into()
    }
}

/// Name of the placeholder field.
const NAME: &[u8] = b"X-Lost:";
/// The shortest field: one letter without a value.
const SHORTEST: usize = b"X:\r\n".len();

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn front_fields_are_whole_lines() {
        let check = |fields: &'static [u8], expected| assert_eq!(FrontFields::new(fields).err(), expected);
        check(b"", None);
        check(b"A: b\r\n", None);
        check(b"A: b\r\n c\r\nD:\r\n", None);
        for wrong in
            [&b"A: b"[..], b"A: b\n", b"A: b\r\n\r\n", b" b\r\n\r", b"A:\rb\r\n", b" A: b\r\n", b"\r\n", b"A: b\r\nc"]
        {
            check(wrong, Some(FrontFieldsError::NotLines));
        }
        let long = [b"A:".to_vec(), vec![b'x'; FrontFields::BYTES_MAX], b"\r\n".to_vec()].concat();
        assert_eq!(FrontFields::new(long.clone()), Err(FrontFieldsError::TooLong(long.len())));
    }

    proptest! {
        #[test]
        fn lost_fields_keep_their_length_and_their_lines(
            first in 2..90usize,
            lines in prop::collection::vec(1..90usize, 0..40),
        ) {
            let texts = [vec![b'A'; first]].into_iter().chain(lines.into_iter().map(|len| vec![b' '; len]));
            let fields: Vec<u8> = texts.flat_map(|text| [text, b"\r\n".to_vec()].concat()).collect();
            let front = FrontFields::new(fields).unwrap();
            let lost = FrontFields::new(FrontRegion::of(&front).substitute()).unwrap();
            prop_assert_eq!((lost.len(), lost.lines()), (front.len(), front.lines()));
            prop_assert!(lost.bytes().starts_with(b"X"));
            prop_assert!(lost.bytes().split(|octet| *octet == b'\n').skip(1).all(|line| line.is_empty() || line[0] == b' '));
        }

        #[test]
        fn only_damage_of_the_front_is_mended(at in 0..60usize, bit in 0..8u32) {
            let front = FrontFields::new(&b"Received: from here\r\n by there\r\n"[..]).unwrap();
            let region = FrontRegion::of(&front);
            let mut raw = [&front.bytes()[..], b"Subject: x\r\n\r\nthe text itself\r\n"].concat();
            let (whole, crc) = (raw.clone(), crc32c::crc32c(&raw));
            raw[at] ^= 1 << bit;
            match region.mended(&raw, crc) {
                Some(mended) => {
                    prop_assert!(at < front.len());
                    prop_assert_eq!(&mended[..front.len()], &region.substitute()[..]);
                    prop_assert_eq!(&mended[front.len()..], &whole[front.len()..]);
                }
                None => prop_assert!(at >= front.len()),
            }
        }
    }
}
