//! A message that is handed over, and a large body on its way into the spool.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_maildir::line_ends::LineEndScan;
use posthaste_spool::{FinishedUpload, Upload};

use crate::error::DeliveryError;

/// A message to be kept: one copy in the spool however many mailboxes it goes to.
#[derive(Debug)]
pub struct Message {
    /// Where it goes; none only if other streams are told of it.
    pub targets: Vec<Target>,
    /// Its bytes.
    pub body: Body,
    /// What to do with its line ends.
    pub line_ends: LineEnds,
    /// What other streams are told of it, in the same batch.
    pub also: Vec<posthaste_spool::Entry>,
}

/// One mailbox that gets the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Header fields that stand in front of the body in this mailbox alone.
    pub prefix: Bytes,
}

/// How a body is put into a Maildir file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnds {
    /// Byte by byte as it was given.
    AsGiven,
    /// CRLF becomes LF, unless the body has a bare CR or LF and would not come back the same.
    ToLf,
}

/// Facts of a body that was never in memory as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeBody {
    /// CRLF pairs in it, if it is lossless.
    pub crlfs: u64,
    /// Whether all its CRs and LFs are in such pairs.
    pub is_lossless: bool,
    /// LFs, if it has no CR at all; otherwise 0. What it has more on the wire when it is kept as it is.
    pub lone_lfs: u64,
}

/// The bytes of a message.
#[derive(Debug)]
pub enum Body {
    /// In memory, in the pieces in which they came.
    Memory(Vec<Bytes>),
    /// In a file of their own, synced.
    Large(FinishedBody),
}

impl Body {
    /// Bytes of the body.
    pub fn len(&self) -> u64 {
        match self {
            Body::Memory(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            Body::Large(body) => body.upload.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A large body in the spool that no message has taken over. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct FinishedBody {
    pub(super) upload: FinishedUpload,
    pub(super) facts: LargeBody,
}

/// Takes a large body piece by piece. Dropping it unfinished removes what was written.
#[derive(Debug)]
pub struct BodyWriter {
    /// Elsewhere while a thread that may block is at it.
    upload: Option<Upload>,
    buffer: Vec<u8>,
    line_ends: LineEndScan,
}

impl BodyWriter {
    pub(super) fn new(upload: Upload) -> Self {
        BodyWriter { upload: Some(upload), buffer: Vec::new(), line_ends: LineEndScan::default() }
    }

    /// Appends a piece. Memory held is bounded by one buffer of 256 KiB and the piece itself.
    ///
    /// # Errors
    /// [`DeliveryError::Full`] when the file system will not take it.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), DeliveryError> {
        self.line_ends.push(piece, |_| ());
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() >= BUFFER_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Writes the buffer to the file and frees it, so that a pause holds no memory. Does not sync.
    ///
    /// # Errors
    /// Like [`write`](Self::write).
    pub async fn write_out(&mut self) -> Result<(), DeliveryError> {
        if self.buffer.is_empty() { Ok(()) } else { self.flush().await.map(|()| self.buffer = Vec::new()) }
    }

    /// Gives back the reserved space on the file system while the client pauses. The next piece reserves space again. Does not block.
    pub fn pause(&mut self) {
        if let Some(upload) = &mut self.upload {
            upload.pause();
        }
    }

    /// Makes the body and its name durable.
    ///
    /// # Errors
    /// [`DeliveryError::Full`] or [`DeliveryError::Sync`]; the file is then removed.
    pub async fn finish(mut self) -> Result<FinishedBody, DeliveryError> {
        self.write_out().await?;
        let upload = self.upload.take().ok_or(DeliveryError::Closed)?;
        let upload = blocking(move || upload.finish()).await?;
        let facts = LargeBody {
            crlfs: self.line_ends.crs(),
            is_lossless: self.line_ends.are_lossless(),
            lone_lfs: self.line_ends.lone_lfs(),
        };
        Ok(FinishedBody { upload, facts })
    }

    async fn flush(&mut self) -> Result<(), DeliveryError> {
        let mut upload = self.upload.take().ok_or(DeliveryError::Closed)?;
        let buffer = std::mem::take(&mut self.buffer);
        let work = move || upload.write(&buffer).map(|()| (upload, buffer));
        let (upload, buffer) = blocking(work).await?;
        (self.upload, self.buffer) = (Some(upload), buffer);
        self.buffer.clear();
        Ok(())
    }
}

/// Runs what a disk may hold up on a thread for that.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, DeliveryError> {
    let outcome = tokio::task::spawn_blocking(work).await.map_err(|_| DeliveryError::Closed)?;
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DeliveryError::Full(error),
        _ => DeliveryError::Sync(error),
    })
}

const BUFFER_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use crate::DeliveryError;
    use crate::local::{LocalConfig, LocalDelivery};

    #[tokio::test]
    async fn stalled_bodies_hold_no_room_however_much_they_announced() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = LocalConfig::new(dir.path().join("spool"), dir.path().join("mail"));
        let (delivery, _) = LocalDelivery::open(config).expect("opens");
        let space = rustix::fs::statvfs(dir.path()).expect("statvfs");
        // What others write to this disk meanwhile is far less.
        let announced = space.f_bavail * space.f_frsize / 2;
        let mut stalled = Vec::new();
        for _ in 0..100 {
            let mut writer = delivery.upload(announced).expect("room for what has come");
            writer.write(&[b'x'; 300_000]).await.expect("written");
            writer.pause();
            stalled.push(writer);
        }
        delivery.wait_for_room(announced).await.expect("room for another");
        assert!(matches!(delivery.upload(3 * announced), Err(DeliveryError::Full(_))));
        for writer in &mut stalled {
            writer.write(&[b'x'; 300_000]).await.expect("goes on");
        }
        drop(stalled);
        let bodies = std::fs::read_dir(dir.path().join("spool/bodies")).expect("a spool");
        assert_eq!(bodies.count(), 0);
        delivery.shutdown().await;
    }
}
