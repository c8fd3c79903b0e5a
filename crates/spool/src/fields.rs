//! Fields of entries: little-endian numbers and short texts, written one after the other.
//!
//! [`Fields`] reads bytes that may be damaged or hostile: it stays within bounds, never panics, and copies a text only
//! if it is complete. Numbers are written with [`bytes::BufMut`] (`put_u32_le` and the like), texts with [`put_text`].

use bytes::BufMut;

use crate::Lsn;

/// Takes fields from the front of an entry's payload. If the bytes end too early, a method returns `None` and takes
/// nothing.
///
/// ```
/// use bytes::BufMut;
/// use posthaste_spool::{Fields, put_text};
///
/// let mut payload = Vec::new();
/// payload.put_u32_le(7);
/// put_text(&mut payload, "a/Maildir");
///
/// let mut fields = Fields::of(&payload);
/// assert_eq!((fields.u32(), fields.text()), (Some(7), Some("a/Maildir")));
/// assert!(fields.end().is_some() && fields.u8().is_none());
/// ```
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Starts at the first of `bytes`.
    pub fn of(bytes: &'a [u8]) -> Self {
        Fields(bytes)
    }

    /// Number of bytes left.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no byte is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    /// `N` bytes, copied.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    /// A number of one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// A number of two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The LSN of a batch: eight bytes.
    pub fn lsn(&mut self) -> Option<Lsn> {
        self.u64().map(Lsn::new)
    }

    /// A text written by [`put_text`], as `&str`, `String` or `Arc<str>`; also `None` if it is not UTF-8.
    pub fn text<T: From<&'a str>>(&mut self) -> Option<T> {
        let mut after = self.clone();
        let len = after.u16()?;
        let text = std::str::from_utf8(after.bytes(len.into())?).ok()?;
        *self = after;
        Some(text.into())
    }

    /// Checks the end of the payload; `None` if bytes remain.
    pub fn end(&self) -> Option<()> {
        self.is_empty().then_some(())
    }
}

/// Writes a text: its length in bytes (u16), and its bytes.
///
/// # Panics
/// If it has more than 65,535 bytes. Check lengths on input.
pub fn put_text(out: &mut impl BufMut, text: &str) {
    out.put_u16_le(u16::try_from(text.len()).expect("texts are checked when they come in"));
    out.put_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Sample = (u8, u16, u32, u64, String, [u8; 3]);

    fn written((one, two, four, eight, text, array): &Sample) -> Vec<u8> {
        let mut out = vec![*one];
        out.put_u16_le(*two);
        out.put_u32_le(*four);
        out.put_u64_le(*eight);
        put_text(&mut out, text);
        out.put_slice(array);
        out
    }

    fn read(bytes: &[u8]) -> Option<Sample> {
        let mut fields = Fields::of(bytes);
        let numbers = (fields.u8()?, fields.u16()?, fields.u32()?, fields.lsn()?.get());
        let (text, array) = (fields.text()?, fields.array()?);
        fields.end()?;
        Some((numbers.0, numbers.1, numbers.2, numbers.3, text, array))
    }

    #[test]
    fn numbers_are_little_endian_and_texts_follow_their_length() {
        let expected = [&[1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0][..], &[2, 0, b'h', b'i'], &[7, 8, 9]].concat();
        assert_eq!(written(&(1, 2, 3, 4, "hi".into(), [7, 8, 9])), expected);
    }

    #[test]
    fn what_cannot_be_read_takes_nothing() {
        let mut fields = Fields::of(&[5, 0, b'a']);
        assert_eq!((fields.u32(), fields.text::<&str>(), fields.bytes(usize::MAX)), (None, None, None));
        assert_eq!((fields.len(), fields.end()), (3, None));
        assert_eq!(fields.bytes(3), Some(&[5, 0, b'a'][..]));
        let mut not_utf8 = Fields::of(&[1, 0, 0xff]);
        assert_eq!((not_utf8.text::<&str>(), not_utf8.len()), (None, 3));
    }

    #[test]
    #[should_panic = "texts are checked"]
    fn a_text_that_is_too_long_is_not_cut_off() {
        put_text(&mut Vec::new(), &"x".repeat(65_536));
    }

    proptest! {
        #[test]
        fn fields_read_back_as_written_and_neither_cut_short_nor_longer(
            sample in (any::<u8>(), any::<u16>(), any::<u32>(), any::<u64>(), ".{0,9}", any::<[u8; 3]>())
        ) {
            let mut bytes = written(&sample);
            prop_assert_eq!(read(&bytes), Some(sample));
            for len in 0..bytes.len() {
                prop_assert_eq!(read(&bytes[..len]), None);
            }
            bytes.push(0);
            prop_assert_eq!(read(&bytes), None);
        }

        #[test]
        fn any_bytes_are_refused_or_those_of_what_was_read(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(sample) = read(&bytes) {
                prop_assert_eq!(written(&sample), bytes);
            }
        }
    }
}
