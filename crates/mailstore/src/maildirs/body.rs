//! The octets of a message, read from its file.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::file::MailFile;
use super::layout::{CHUNK, Layout, read_at, read_chunk};
use super::read_turns::ReadTurns;
use crate::error::{Asked, MailstoreError};
use crate::line_ends::FileForm;
use crate::mail_body::{HEADER_BYTES_MAX, MailBody, copied, cut_header};

/// Octets of a file that are read first for its header.
const HEADER_READ: usize = 8 << 10;

/// The wire size of a message. Blocks: a long file is read once, unless it was before.
pub(super) fn wire_len(file: &File, size: u64, message: &MailFile) -> Result<u64, MailstoreError> {
    Ok(layout_of(file, size, message.form(size), message)?.len())
}

fn layout_of(file: &File, size: u64, form: FileForm, message: &MailFile) -> Result<Arc<Layout>, MailstoreError> {
    if let Some(layout) = message.layout() {
        return Ok(Arc::clone(layout));
    }
    let layout = Arc::new(Layout::of(file, size, form)?);
    message.set_wire_size(layout.len());
    // That of a short file is made as fast as it is found.
    if layout.chunks.len() > 1 {
        message.keep_layout(&layout);
    }
    Ok(layout)
}

/// An open message.
pub(super) enum FileBody {
    /// All octets of a short message.
    Short(Bytes),
    /// A file that is read chunk by chunk.
    Long { file: Arc<File>, size: u64, form: FileForm, layout: Arc<Layout>, turns: ReadTurns },
}

impl FileBody {
    /// Blocks: reads a short file, and a long one once, if that was not done before.
    pub fn new(file: File, size: u64, message: &MailFile, turns: &ReadTurns) -> Result<Self, MailstoreError> {
        let form = message.form(size);
        if size <= CHUNK as u64 {
            let octets = read_short(&file, size, form)?;
            message.set_wire_size(octets.len() as u64);
            return Ok(Self::Short(octets));
        }
        let layout = layout_of(&file, size, form, message)?;
        Ok(Self::Long { file: Arc::new(file), size, form, layout, turns: turns.clone() })
    }
}

impl MailBody for FileBody {
    fn len(&self) -> u64 {
        match self {
            Self::Short(octets) => octets.len() as u64,
            Self::Long { layout, .. } => layout.len(),
        }
    }

    fn copied(&self) -> Option<Arc<dyn MailBody>> {
        match self {
            Self::Short(octets) => Some(Arc::new(Self::Short(copied(octets)))),
            Self::Long { .. } => None,
        }
    }

    fn read(&self, from: u64, up_to: u64) -> Asked<'_, Bytes> {
        let up_to = up_to.min(self.len());
        if from >= up_to {
            return Box::pin(std::future::ready(Ok(Bytes::new())));
        }
        match self {
            Self::Short(octets) => Box::pin(std::future::ready(Ok(octets.slice(from as usize..up_to as usize)))),
            Self::Long { file, size, form, layout, turns } => {
                let (file, size, form, at) = (Arc::clone(file), *size, *form, layout.chunk(from));
                // Not made by the thread: see `copied`.
                let buffer = || Vec::with_capacity(CHUNK + CHUNK / 16);
                let read = turns.read_with(buffer, move |out| read_long(&file, size, form, at, from..up_to, out));
                Box::pin(async move { read.await? })
            }
        }
    }
}

/// All octets of a file of one chunk.
fn read_short(file: &File, size: u64, form: FileForm) -> Result<Bytes, MailstoreError> {
    let mut buffer = vec![0; size as usize];
    read_chunk(file, size, 0, &mut buffer)?;
    if form == FileForm::Verbatim {
        return Ok(buffer.into());
    }
    let mut out = Vec::with_capacity(buffer.len() + buffer.len() / 16 + 64);
    form.convert(&buffer, &mut false, &mut out);
    Ok(out.into())
}

/// Octets of a range that are in one chunk.
fn read_long(
    file: &File,
    size: u64,
    form: FileForm,
    (chunk, start, mut after_cr): (u64, u64, bool),
    range: Range<u64>,
    mut out: Vec<u8>,
) -> Result<Bytes, MailstoreError> {
    let mut buffer = vec![0; CHUNK];
    let piece = read_chunk(file, size, chunk, &mut buffer)?;
    form.convert(piece, &mut after_cr, &mut out);
    let end = usize::try_from(range.end - start).unwrap_or(usize::MAX).min(out.len());
    let begin = usize::try_from(range.start - start).unwrap_or(usize::MAX);
    if begin >= end {
        return Err(MailstoreError::Damaged("the file was changed".to_owned()));
    }
    Ok(Bytes::from(out).slice(begin..end))
}

/// True if a file is sent with the same octets in both forms. Blocks: reads the file.
pub(super) fn sends_alike(file: &File, size: u64, forms: (FileForm, FileForm)) -> std::io::Result<bool> {
    let (mut buffer, mut after_cr, mut at) = (vec![0; CHUNK], (false, false), 0);
    while at < size {
        let len = usize::try_from(size - at).unwrap_or(usize::MAX).min(CHUNK);
        file.read_exact_at(&mut buffer[..len], at)?;
        let (mut one, mut other) = (Vec::new(), Vec::new());
        forms.0.convert(&buffer[..len], &mut after_cr.0, &mut one);
        forms.1.convert(&buffer[..len], &mut after_cr.1, &mut other);
        if one != other {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}

/// The header in the octets that are sent. Blocks.
pub(super) fn header(file: &File, size: u64, message: &MailFile) -> Result<Bytes, MailstoreError> {
    let form = message.form(size);
    let (mut buffer, mut out, mut after_cr, mut at) = (vec![0; HEADER_READ], Vec::new(), false, 0);
    let mut searched = 0;
    while at < size && out.len() < HEADER_BYTES_MAX {
        let len = usize::try_from(size - at).unwrap_or(usize::MAX).min(buffer.len());
        read_at(file, at, &mut buffer[..len])?;
        form.convert(&buffer[..len], &mut after_cr, &mut out);
        at += len as u64;
        if cut_header(&mut out, &mut searched) {
            break;
        }
        buffer.resize(CHUNK, 0);
    }
    out.truncate(HEADER_BYTES_MAX);
    // It had room for what was read after the header.
    out.shrink_to_fit();
    Ok(out.into())
}
