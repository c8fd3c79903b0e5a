//! The octets of a message, read piece by piece.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Asked, MailstoreError};

/// Maximum octets of one [`read`](MailBody::read).
pub const BODY_READ_MAX: usize = 64 * 1024;

/// Maximum octets of a [`header`](MailBody::header).
pub const HEADER_BYTES_MAX: usize = 1024 * 1024;

/// Octets after which [`MailboxView::fields`](crate::MailboxView::fields) returns no more messages.
pub const FIELDS_BYTES_MAX: usize = 256 * 1024;

/// Octets after which [`MailboxView::bodies`](crate::MailboxView::bodies) returns no more messages.
pub const BODIES_BYTES_MAX: usize = 128 * 1024;

/// The octets of a message in wire form, with CRLF.
///
/// It holds no more than [`BODY_READ_MAX`] octets in memory. It remains readable if the message is expunged meanwhile.
#[allow(clippy::len_without_is_empty)]
pub trait MailBody: Send + Sync {
    /// The number of octets: RFC822.SIZE.
    fn len(&self) -> u64;

    /// Octets from `from` up to `up_to` (exclusive), at most [`BODY_READ_MAX`]. Empty only if `from` is not below both
    /// `up_to` and [`len`](Self::len).
    ///
    /// # Errors
    /// [`MailstoreError::Damaged`]: the file was replaced during the read; a started literal cannot be finished.
    fn read(&self, from: u64, up_to: u64) -> Asked<'_, Bytes>;

    /// The header with the empty line, if there is one; of a longer one the first [`HEADER_BYTES_MAX`] octets.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn header(&self) -> Asked<'_, Bytes> {
        Box::pin(header_of(self))
    }

    /// The same message with its octets in memory of the calling thread; `None` if it is read from a file.
    fn copied(&self) -> Option<Arc<dyn MailBody>> {
        None
    }
}

/// Copies octets that another thread has read into memory of this thread. Otherwise the allocator would retain half a
/// MiB for each size and thread.
pub(crate) fn copied(octets: &Bytes) -> Bytes {
    Bytes::copy_from_slice(octets)
}

async fn header_of<B: MailBody + ?Sized>(body: &B) -> Result<Bytes, MailstoreError> {
    let (mut out, mut searched) = (Vec::new(), 0);
    while out.len() < HEADER_BYTES_MAX {
        let piece = body.read(out.len() as u64, u64::MAX).await?;
        if piece.is_empty() {
            break;
        }
        out.extend_from_slice(&piece);
        if cut_header(&mut out, &mut searched) {
            break;
        }
    }
    out.truncate(HEADER_BYTES_MAX);
    Ok(out.into())
}

/// Cuts off the octets after a header that is read piece by piece; false until its end is found. `searched`: octets
/// known to lack it.
pub(crate) fn cut_header(out: &mut Vec<u8>, searched: &mut usize) -> bool {
    let end = if out.starts_with(b"\r\n") {
        Some(2)
    } else {
        memchr::memmem::find(&out[*searched..], b"\r\n\r\n").map(|end| *searched + end + 4)
    };
    match end {
        Some(end) => out.truncate(end),
        None => *searched = out.len().saturating_sub(3),
    }
    end.is_some()
}

/// The shortest prefix of messages with at least `octets_max` octets, or all of them.
fn first_within<T>(
    all: impl Iterator<Item = Result<T, MailstoreError>>,
    octets_max: usize,
    octets_of: impl Fn(&T) -> usize,
) -> Vec<Result<T, MailstoreError>> {
    let (mut first, mut octets) = (Vec::new(), 0_usize);
    for next in all {
        octets = octets.saturating_add(next.as_ref().map_or(0, &octets_of));
        first.push(next);
        if octets >= octets_max {
            break;
        }
    }
    first
}

/// The longest prefix that [`MailboxView::fields`](crate::MailboxView::fields) may return.
pub(crate) fn first_fields(
    all: impl Iterator<Item = Result<Bytes, MailstoreError>>,
) -> Vec<Result<Bytes, MailstoreError>> {
    first_within(all, FIELDS_BYTES_MAX, Bytes::len)
}

/// The longest prefix that [`MailboxView::kept`](crate::MailboxView::kept) may return.
pub(crate) fn first_kept(
    all: impl Iterator<Item = Result<Option<Bytes>, MailstoreError>>,
) -> Vec<Result<Option<Bytes>, MailstoreError>> {
    first_within(all, FIELDS_BYTES_MAX, |kept| kept.as_ref().map_or(0, Bytes::len))
}

/// The longest prefix that [`MailboxView::bodies`](crate::MailboxView::bodies) may return.
pub(crate) fn first_bodies(
    all: impl Iterator<Item = Result<Arc<dyn MailBody>, MailstoreError>>,
) -> Vec<Result<Arc<dyn MailBody>, MailstoreError>> {
    first_within(all, BODIES_BYTES_MAX, |body| usize::try_from(body.len()).unwrap_or(usize::MAX))
}
