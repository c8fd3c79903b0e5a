//! Encoding of our own files, with a checksum at their end.

/// Appends the CRC-32C of `bytes`.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The bytes given to [`seal`], if they are intact.
pub(crate) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(content) == u32::from_le_bytes(*crc)).then_some(content)
}
