//! The octets of a message, read from its file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use super::file::MailFile;
use super::mailbox::MESSAGE_BYTES_MAX;
use crate::error::MailstoreError;
use crate::line_ends::FileForm;
use crate::store::{Asked, BODY_READ_MAX, HEADER_BYTES_MAX, MailBody};

/// Octets of a file that are read at once. Converted they are at most twice as many, which is what one read may give.
pub(super) const CHUNK: usize = BODY_READ_MAX / 2;

/// Where the chunks of a file begin in the octets that are sent.
#[derive(Debug)]
pub(super) struct Layout {
    /// Octets in all.
    len: u64,
    /// Of each chunk: the offset of its first octet, times two, plus one if the octet before it is a CR.
    chunks: Vec<u64>,
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

    /// The chunk that has this octet, with its first octet's offset and whether it stands after a CR.
    fn chunk(&self, offset: u64) -> (u64, u64, bool) {
        let at = self.chunks.partition_point(|start| start / 2 <= offset).max(1) - 1;
        (at as u64, self.chunks[at] / 2, self.chunks[at] % 2 == 1)
    }
}

/// One chunk of a file that had `size` octets when it was opened.
fn read_chunk<'a>(file: &File, size: u64, chunk: u64, buffer: &'a mut [u8]) -> Result<&'a [u8], MailstoreError> {
    let from = chunk * CHUNK as u64;
    let len = usize::try_from(size.saturating_sub(from)).unwrap_or(CHUNK).min(CHUNK);
    let piece = &mut buffer[..len];
    file.read_exact_at(piece, from).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => MailstoreError::Damaged("the file became shorter".to_owned()),
        _ => MailstoreError::Damaged(error.to_string()),
    })?;
    Ok(piece)
}

/// An open message.
pub(super) struct FileBody {
    file: Arc<File>,
    size: u64,
    form: FileForm,
    layout: Arc<Layout>,
}

impl FileBody {
    /// Blocks: reads the file once, if that was not done before.
    pub fn new(file: File, size: u64, message: &MailFile) -> Result<Self, MailstoreError> {
        let form = message.form(size);
        let layout = match message.layout.get() {
            Some(layout) => Arc::clone(layout),
            None => {
                let layout = Arc::new(Layout::of(&file, size, form)?);
                message.set_wire_size(layout.len());
                // That of a short file is made as fast as it is found.
                if layout.chunks.len() > 1 {
                    let _ = message.layout.set(Arc::clone(&layout));
                }
                layout
            }
        };
        Ok(Self { file: Arc::new(file), size, form, layout })
    }
}

impl MailBody for FileBody {
    fn len(&self) -> u64 {
        self.layout.len()
    }

    fn read(&self, from: u64, up_to: u64) -> Asked<'_, Bytes> {
        let up_to = up_to.min(self.len());
        if from >= up_to {
            return Box::pin(std::future::ready(Ok(Bytes::new())));
        }
        let (chunk, start, mut after_cr) = self.layout.chunk(from);
        let (file, size, form) = (Arc::clone(&self.file), self.size, self.form);
        let read = spawn_blocking(move || {
            let (mut buffer, mut out) = (vec![0; CHUNK], Vec::with_capacity(CHUNK + CHUNK / 16));
            let piece = read_chunk(&file, size, chunk, &mut buffer)?;
            form.convert(piece, &mut after_cr, &mut out);
            let end = usize::try_from(up_to - start).unwrap_or(usize::MAX).min(out.len());
            let begin = usize::try_from(from - start).unwrap_or(usize::MAX);
            if begin >= end {
                return Err(MailstoreError::Damaged("the file was changed".to_owned()));
            }
            Ok(Bytes::from(out).slice(begin..end))
        });
        Box::pin(async move { read.await.map_err(ended)? })
    }
}

/// The header in the octets that are sent. Blocks.
pub(super) fn header(file: &File, size: u64, message: &MailFile) -> Result<Bytes, MailstoreError> {
    let form = message.form(size);
    let (mut buffer, mut out, mut after_cr, mut chunk) = (vec![0; CHUNK], Vec::new(), false, 0);
    let mut searched = 0;
    while chunk * (CHUNK as u64) < size && out.len() < HEADER_BYTES_MAX {
        let piece = read_chunk(file, size, chunk, &mut buffer)?;
        form.convert(piece, &mut after_cr, &mut out);
        chunk += 1;
        if cut_header(&mut out, &mut searched) {
            break;
        }
    }
    out.truncate(HEADER_BYTES_MAX);
    Ok(out.into())
}

/// Cuts off the octets behind a header that is read in pieces; false while its end is not among them. `searched`: octets without it, for the next piece.
pub(super) fn cut_header(out: &mut Vec<u8>, searched: &mut usize) -> bool {
    let end = match out.starts_with(b"\r\n") {
        true => Some(2),
        false => memchr::memmem::find(&out[*searched..], b"\r\n\r\n").map(|end| *searched + end + 4),
    };
    match end {
        Some(end) => out.truncate(end),
        None => *searched = out.len().saturating_sub(3),
    }
    end.is_some()
}

/// A blocking call that did not come back: the runtime ends, or a bug.
pub(super) fn ended(error: tokio::task::JoinError) -> MailstoreError {
    MailstoreError::Unavailable(error.to_string())
}
