//! The facts and the content of a file.

/// File attributes that an index compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileFacts {
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970 of the last change of content.
    pub mtime_ns: i64,
}

/// Maximum bytes read of one file; a larger one is truncated.
pub const BODY_BYTES_MAX: u64 = 256 << 20;

/// The content of a file.
#[derive(Debug)]
pub struct Contents<'a> {
    /// The first [`BODY_BYTES_MAX`] bytes.
    pub bytes: &'a [u8],
    /// Size and time at the moment of reading.
    pub facts: FileFacts,
}
