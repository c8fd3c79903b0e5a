//! The bytes of a message: in memory, or in a file of the spool.

use std::io;

use bytes::Bytes;
use posthaste_maildir::line_ends::LineEndScan;
use posthaste_spool::{FinishedUpload, FrontFields, Upload};

use crate::error::IntakeError;

/// Line ends of a body that was never completely in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeBody {
    /// CRLF pairs, if the body is lossless.
    pub crlfs: u64,
    /// True if all its CRs and LFs are in such pairs.
    pub is_lossless: bool,
    /// LFs of a body without any CR; otherwise 0. On the wire each becomes one octet longer.
    pub lone_lfs: u64,
}

impl LargeBody {
    /// The facts of the message with front fields before this body.
    fn behind(self, front: &FrontFields) -> Self {
        let LargeBody { crlfs, is_lossless, lone_lfs } = self;
        let lone_lfs = if front.is_empty() { lone_lfs } else { 0 };
        LargeBody { crlfs: crlfs + front.lines() as u64, is_lossless, lone_lfs }
    }
}

/// The bytes of a message, without front fields.
#[derive(Debug)]
pub enum GatheredBody {
    /// In memory, in the pieces received.
    Memory(Vec<Bytes>),
    /// In a file of their own, synced.
    Large(FinishedBody),
}

impl GatheredBody {
    /// Bytes of the body.
    pub fn len(&self) -> u64 {
        match self {
            GatheredBody::Memory(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            GatheredBody::Large(body) => body.upload.len(),
        }
    }

    /// The facts of the message with these front fields.
    pub fn facts(&self, front: &FrontFields) -> BodyFacts {
        let large = match self {
            GatheredBody::Memory(_) => None,
            GatheredBody::Large(body) => Some(body.facts.behind(front)),
        };
        BodyFacts { len: front.len() as u64 + self.len(), large }
    }

    /// True if the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Facts of a message, including front fields, for its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyFacts {
    /// Bytes of the message.
    pub len: u64,
    /// Set if the body is in a file.
    pub large: Option<LargeBody>,
}

/// A large body in the spool without an owner yet. Dropping it removes the file.
#[derive(Debug)]
pub struct FinishedBody {
    pub(crate) upload: FinishedUpload,
    pub(crate) facts: LargeBody,
}

impl FinishedBody {
    /// Its line ends.
    pub fn facts(&self) -> LargeBody {
        self.facts
    }

    /// Opens its octets, for an owner that copies them elsewhere. Reading blocks.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn reader(&self) -> io::Result<impl io::Read + use<>> {
        self.upload.reader()
    }
}

/// Writes a large body piece by piece. Dropping it unfinished removes the file.
#[derive(Debug)]
pub struct BodyWriter {
    /// `None` while a blocking thread uses it.
    upload: Option<Upload>,
    buffer: Vec<u8>,
    line_ends: LineEndScan,
}

impl BodyWriter {
    pub(crate) fn new(upload: Upload) -> Self {
        BodyWriter { upload: Some(upload), buffer: Vec::new(), line_ends: LineEndScan::default() }
    }

    /// Appends a piece. Memory held is bounded by one buffer of 256 KiB and the piece itself.
    ///
    /// # Errors
    /// [`IntakeError::Full`] when the file system has no space.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), IntakeError> {
        self.line_ends.push(piece, |_| ());
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() >= BUFFER_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Writes the buffer to the file and frees it, so that a pause holds no memory. Does not sync.
    ///
    /// # Errors
    /// Like [`write`](Self::write).
    pub async fn write_out(&mut self) -> Result<(), IntakeError> {
        if self.buffer.is_empty() { Ok(()) } else { self.flush().await.map(|()| self.buffer = Vec::new()) }
    }

    /// Releases the reserved space on the file system while the client pauses. The next piece reserves space again.
    /// Does not block.
    pub fn pause(&mut self) {
        if let Some(upload) = &mut self.upload {
            upload.pause();
        }
    }

    /// Makes the body and its name durable.
    ///
    /// # Errors
    /// [`IntakeError::Full`] or [`IntakeError::Sync`]; the file is then removed.
    pub async fn finish(mut self) -> Result<FinishedBody, IntakeError> {
        self.write_out().await?;
        let upload = self.upload.take().ok_or(IntakeError::Closed)?;
        let upload = blocking(move || upload.finish()).await?;
        let facts = LargeBody {
            crlfs: self.line_ends.crs(),
            is_lossless: self.line_ends.are_lossless(),
            lone_lfs: self.line_ends.lone_lfs(),
        };
        Ok(FinishedBody { upload, facts })
    }

    async fn flush(&mut self) -> Result<(), IntakeError> {
        let mut upload = self.upload.take().ok_or(IntakeError::Closed)?;
        let buffer = std::mem::take(&mut self.buffer);
        let work = move || upload.write(&buffer).map(|()| (upload, buffer));
        let (upload, buffer) = blocking(work).await?;
        (self.upload, self.buffer) = (Some(upload), buffer);
        self.buffer.clear();
        Ok(())
    }
}

/// Runs disk operations on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, IntakeError> {
    let outcome = tokio::task::spawn_blocking(work).await.map_err(|_| IntakeError::Closed)?;
    outcome.map_err(IntakeError::of_file)
}

const BUFFER_BYTES: usize = 256 << 10;
