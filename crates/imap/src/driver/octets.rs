//! Octets of a message: read for its structure, or sent to the client.

use std::ops::Range;

use bytes::Bytes;
use posthaste_mailstore::{BODY_READ_MAX, MailBody, MailstoreError};
use posthaste_message::mime::Encoding;
use posthaste_net::SessionEnd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::block_in_place;

use super::binary::{DecodedReader, within};
use super::connection::Line;
use super::mail;

/// Reads a message, or its beginning, for its structure. Sessions that do so share a bound of memory.
pub(super) async fn read(
    line: &mut Line,
    body: &dyn MailBody,
    octets: u64,
    structures: &Semaphore,
) -> Result<(), SessionEnd> {
    let room = (octets >> 10) as u32 + 1;
    let _room = structures.acquire_many(room).await.map_err(|_| SessionEnd::Gone)?;
    let whole = whole(body, octets).await.map_err(|error| mail::refusal(&error));
    let machine = &mut line.machine;
    aside(whole.as_ref().map_or(0, Bytes::len), || machine.message(whole.as_deref().map_err(|why| *why)));
    Ok(())
}

/// The first `octets` of a message, or all. A short message is not copied.
async fn whole(body: &dyn MailBody, octets: u64) -> Result<Bytes, MailstoreError> {
    let first = body.read(0, octets).await?;
    if first.len() as u64 == octets {
        return Ok(first);
    }
    let mut whole = Vec::with_capacity(octets as usize);
    whole.extend_from_slice(&first);
    while (whole.len() as u64) < octets {
        match body.read(whole.len() as u64, octets).await? {
            piece if piece.is_empty() => break,
            piece => whole.extend_from_slice(&piece),
        }
    }
    Ok(whole.into())
}

/// Runs work on `octets` bytes. Above a limit it uses `block_in_place`, so that it does not delay other sessions.
fn aside<T>(octets: usize, work: impl FnOnce() -> T) -> T {
    let has_others = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if octets > OCTETS_ASIDE && has_others { block_in_place(work) } else { work() }
}

/// Work on fewer octets takes less than a millisecond.
const OCTETS_ASIDE: usize = 64 << 10;

/// Sends octets of a message, 64 KiB at a time. Their number was announced, so the connection ends if they are missing.
pub(super) async fn send(line: &mut Line, body: &dyn MailBody, range: Range<u64>) -> Result<(), SessionEnd> {
    let mut from = range.start;
    while from < range.end {
        let up_to = range.end.min(from + BODY_READ_MAX as u64);
        let piece = body.read(from, up_to).await.unwrap_or_default();
        if piece.is_empty() {
            line.flush().await?;
            return Err(SessionEnd::Gone);
        }
        line.put(&piece).await?;
        from += piece.len() as u64;
    }
    Ok(())
}

/// Sends the decoded octets of a part.
pub(super) async fn send_decoded(
    line: &mut Line,
    body: &dyn MailBody,
    range: Range<u64>,
    encoding: Encoding,
    octets: Range<u64>,
) -> Result<(), SessionEnd> {
    line.flush().await?;
    let mut reader = DecodedReader::new(body, range, encoding).map_err(|_| SessionEnd::Gone)?;
    let mut at = 0;
    while at < octets.end {
        let piece = reader.next().await.map_err(|_| SessionEnd::Gone)?.ok_or(SessionEnd::Gone)?;
        let wanted = within(piece, &octets, &mut at);
        if !wanted.is_empty() {
            line.write(wanted).await?;
        }
    }
    Ok(())
}
