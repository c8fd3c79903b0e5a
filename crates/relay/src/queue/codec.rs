//! Fields of the queue's formats.

use std::sync::Arc;

/// Why bytes are no entry and no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They end within a field.
    #[error("it ends within a field")]
    Short,
    /// They go on behind the last field.
    #[error("there are bytes behind its end")]
    Long,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// Numbers do not ascend.
    #[error("its numbers do not ascend")]
    Order,
    /// A later version has written it, or nobody.
    #[error("unknown {0}")]
    Unknown(&'static str),
    /// More than there may be.
    #[error("too many {0}")]
    Bound(&'static str),
}

/// Takes fields from the front.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Fields(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self) -> Result<Arc<str>, DecodeError> {
        let len = usize::from(self.u16()?);
        let (text, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(std::str::from_utf8(text).map_err(|_| DecodeError::Text)?.into())
    }

    pub fn end(&self) -> Result<(), DecodeError> {
        if self.is_empty() { Ok(()) } else { Err(DecodeError::Long) }
    }
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).expect("its length is checked when it comes in").to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
