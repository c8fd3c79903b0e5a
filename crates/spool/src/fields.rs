//! Fields of a consumer's entries: little-endian numbers and short texts, written one after the other and read back with bounds checked.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use crate::Lsn;

/// Takes fields from the front of an entry's payload. Each method gives `None` where the bytes end too early, and then has taken nothing.
#[derive(Debug, Clone)]
pub struct Fields(Bytes);

impl Fields {
    /// All of these bytes.
    pub fn of(bytes: impl Into<Bytes>) -> Self {
        Fields(bytes.into())
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many bytes, shared with the payload.
    pub fn bytes(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.0.len()).then(|| self.0.split_to(len))
    }

    /// Bytes of a fixed number, copied.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let field = *self.0.first_chunk()?;
        self.0.advance(N);
        Some(field)
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The number of a batch, eight bytes.
    pub fn lsn(&mut self) -> Option<Lsn> {
        self.u64().map(Lsn::new)
    }

    /// A text as [`put_text`] writes it; also `None` if it is not UTF-8.
    pub fn text(&mut self) -> Option<Arc<str>> {
        let len = usize::from(u16::from_le_bytes(*self.0.first_chunk()?));
        let text: Arc<str> = std::str::from_utf8(self.0.get(2..2 + len)?).ok()?.into();
        self.0.advance(2 + len);
        Some(text)
    }

    /// The end, and nothing after it.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Writes a text: its length in bytes (u16), and its bytes.
///
/// # Panics
/// It has more than 65,535 bytes: texts are checked when they come in.
pub fn put_text(out: &mut impl BufMut, text: &str) {
    out.put_u16_le(u16::try_from(text.len()).expect("texts are checked when they come in"));
    out.put_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_as_written_and_nothing_is_taken_from_bytes_that_end_too_early() {
        let mut out = Vec::new();
        out.put_u8(1);
        out.put_u16_le(0x0302);
        out.put_u32_le(0x0706_0504);
        out.put_u64_le(8);
        put_text(&mut out, "tëxt");
        out.put_slice(b"rest");
        let mut fields = Fields::of(out.clone());
        assert_eq!((fields.u8(), fields.u16(), fields.u32()), (Some(1), Some(0x0302), Some(0x0706_0504)));
        assert_eq!((fields.lsn(), fields.text().as_deref()), (Some(Lsn::new(8)), Some("tëxt")));
        assert_eq!((fields.len(), fields.end(), fields.u64(), fields.text()), (4, None, None, None));
        assert_eq!(fields.bytes(5), None);
        assert_eq!(fields.bytes(4).as_deref(), Some(&b"rest"[..]));
        assert!(fields.is_empty() && fields.end().is_some());
        // A length that is too large, and bytes that are no text.
        assert_eq!(Fields::of(&[5, 0, b'a'][..]).text(), None);
        assert_eq!(Fields::of(&[1, 0, 0xff][..]).text(), None);
    }
}
