//! Little-endian fields, written one behind the other and read back with bounds checked.

use bytes::{Buf, Bytes};

/// Appends fields to a buffer.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    /// A length (u16) and the text; texts that come here are short.
    fn put_text(&mut self, text: &str);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_text(&mut self, text: &str) {
        self.put_u16(u16::try_from(text.len()).expect("names are checked when they come in"));
        self.extend_from_slice(text.as_bytes());
    }
}

/// Takes fields from the front; `None` where the bytes end too early.
pub(crate) struct Fields(Bytes);

impl Fields {
    pub fn of(bytes: impl Into<Bytes>) -> Self {
        Fields(bytes.into())
    }

    pub fn bytes(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.0.len()).then(|| self.0.split_to(len))
    }

    /// Without a share in the buffer, as [`bytes`](Self::bytes) hands out: those are counted.
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let field = *self.0.first_chunk()?;
        self.0.advance(N);
        Some(field)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self) -> Option<String> {
        let len = self.u16()?;
        String::from_utf8(self.bytes(len.into())?.into()).ok()
    }

    /// The end, and nothing behind it.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends the CRC-32C of all that is there.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&bytes);
    bytes.put_u32(crc);
    bytes
}

/// The bytes that [`seal`] was given, if they are whole.
pub(crate) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(content) == u32::from_le_bytes(*crc)).then_some(content)
}
