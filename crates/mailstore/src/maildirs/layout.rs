//! Chunks of a message's file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::MailstoreError;
use crate::line_ends::FileForm;
use crate::mail_body::BODY_READ_MAX;

/// Octets of one read of a file. Conversion at most doubles them, up to the limit of one read.
pub(super) const CHUNK: usize = BODY_READ_MAX / 2;
/// RFC822.SIZE has 32 bits (RFC 3501 section 9, `number`). A longer file is no message.
pub(super) const MESSAGE_BYTES_MAX: u64 = u32::MAX as u64;

/// Start of each chunk of a file in the octets that are sent.
#[derive(Debug)]
pub(super) struct Layout {
    /// Octets of the whole message.
    len: u64,
    /// For each chunk: the offset of its first octet times two, plus one if the octet before it is a CR.
    pub chunks: Vec<u64>,
}

impl Layout {
    /// Reads the whole file once.
    pub fn of(file: &File, size: u64, form: FileForm) -> Result<Self, MailstoreError> {
        let count = size.div_ceil(CHUNK as u64);
        let mut layout = Self { len: 0, chunks: Vec::with_capacity(usize::try_from(count).unwrap_or(0)) };
        if form == FileForm::Verbatim {
            layout.len = size;
            layout.chunks.extend((0..count).map(|chunk| chunk * CHUNK as u64 * 2));
            return Ok(layout);
        }
        let (mut buffer, mut after_cr) = (vec![0; CHUNK], false);
        for chunk in 0..count {
            layout.chunks.push(layout.len * 2 + u64::from(after_cr));
            let piece = read_chunk(file, size, chunk, &mut buffer)?;
            layout.len += form.converted_len(piece, &mut after_cr);
        }
        if layout.len > MESSAGE_BYTES_MAX {
            return Err(MailstoreError::Damaged(format!("a message of {} octets", layout.len)));
        }
        Ok(layout)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// The chunk that contains this octet, with its first octet's offset and true if a CR precedes it.
    pub fn chunk(&self, offset: u64) -> (u64, u64, bool) {
        let at = self.chunks.partition_point(|start| start / 2 <= offset).max(1) - 1;
        (at as u64, self.chunks[at] / 2, self.chunks[at] % 2 == 1)
    }
}

/// One chunk of a file that had `size` octets when opened.
pub(super) fn read_chunk<'a>(
    file: &File,
    size: u64,
    chunk: u64,
    buffer: &'a mut [u8],
) -> Result<&'a [u8], MailstoreError> {
    let from = chunk * CHUNK as u64;
    let len = usize::try_from(size.saturating_sub(from)).unwrap_or(CHUNK).min(CHUNK);
    let piece = &mut buffer[..len];
    read_at(file, from, piece)?;
    Ok(piece)
}

pub(super) fn read_at(file: &File, from: u64, piece: &mut [u8]) -> Result<(), MailstoreError> {
    file.read_exact_at(piece, from).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => MailstoreError::Damaged("the file became shorter".to_owned()),
        _ => MailstoreError::Damaged(error.to_string()),
    })
}
