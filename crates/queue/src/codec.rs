//! Field codecs of the queue's formats.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Free text of an entry, such as a reply or a reason, of at most [`EntryText::BYTES_MAX`] bytes. Longer text is cut
/// when made, so writing cannot fail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct EntryText(Arc<str>);

impl EntryText {
    /// Bytes of a text.
    pub const BYTES_MAX: usize = 1000;
}

impl From<&str> for EntryText {
    fn from(text: &str) -> Self {
        Self(text[..text.floor_char_boundary(Self::BYTES_MAX)].into())
    }
}

impl From<Arc<str>> for EntryText {
    fn from(text: Arc<str>) -> Self {
        if text.len() <= Self::BYTES_MAX { Self(text) } else { (&*text).into() }
    }
}

impl From<EntryText> for Arc<str> {
    fn from(text: EntryText) -> Self {
        text.0
    }
}

impl Deref for EntryText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntryText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Error in decoding an entry or snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueDecodeError {
    /// The bytes end within a field.
    #[error("it ends within a field")]
    Short,
    /// Bytes follow the last field.
    #[error("there are bytes after its end")]
    Long,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// Numbers are not ascending.
    #[error("its numbers do not ascend")]
    Order,
    /// Written by a later version, or garbage.
    #[error("unknown {0}")]
    Unknown(&'static str),
    /// A value exceeds its bound.
    #[error("too many {0}")]
    Bound(&'static str),
}

/// Takes fields from the front, with an error that names the fault.
pub(super) struct Fields<'a>(posthaste_spool::Fields<'a>);

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Fields(posthaste_spool::Fields::of(bytes))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> Result<u8, QueueDecodeError> {
        self.0.u8().ok_or(QueueDecodeError::Short)
    }

    pub fn u16(&mut self) -> Result<u16, QueueDecodeError> {
        self.0.u16().ok_or(QueueDecodeError::Short)
    }

    pub fn u32(&mut self) -> Result<u32, QueueDecodeError> {
        self.0.u32().ok_or(QueueDecodeError::Short)
    }

    pub fn u64(&mut self) -> Result<u64, QueueDecodeError> {
        self.0.u64().ok_or(QueueDecodeError::Short)
    }

    pub fn text(&mut self) -> Result<Arc<str>, QueueDecodeError> {
        let len = self.u16()?;
        let text = self.0.bytes(len.into()).ok_or(QueueDecodeError::Short)?;
        Ok(std::str::from_utf8(text).map_err(|_| QueueDecodeError::Text)?.into())
    }

    pub fn end(&self) -> Result<(), QueueDecodeError> {
        self.0.end().ok_or(QueueDecodeError::Long)
    }
}
