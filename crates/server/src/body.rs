//! Gathering a body: in memory while it is small and there is room, otherwise into a file while it arrives.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use posthaste_delivery::DeliveryError;
use posthaste_delivery::local::{Body as StoredBody, LocalDelivery};
use posthaste_intake::IntakeError;
use posthaste_message::Summary;
use posthaste_smtp::driver::Body;
use posthaste_smtp::{BodyError, Envelope};
use tokio::time::timeout;

use crate::head::{Head, HeaderLabels};
use crate::memory::{LARGE_BODY_BYTES, MemoryBudget, Reservation};
use crate::settings::MessageLimits;
use crate::shares::{Share, ShareExceeded};

/// A whole body, the trace field in front.
pub(crate) struct Gathered {
    pub body: StoredBody,
    /// Octets behind the trace field.
    pub bytes: u64,
    pub summary: Summary,
    pub said: HeaderLabels,
    /// Covers the body until the store has it in its own books.
    pub room: Reservation,
    /// The same of the spool.
    pub share: Share,
}

/// Why a body was not gathered.
pub(crate) enum Refusal {
    /// The smtp crate will tell the client.
    Body(BodyError),
    /// Too many Received fields.
    Loop { hops: usize },
    /// A field that should name a tenant or a campaign.
    NoName { field: Arc<str> },
    /// No room to keep it.
    Delivery(DeliveryError),
    /// The file that it went to could not be written. If that was an error of the disk, the spool accepts nothing more.
    Spool(std::io::Error),
    /// This client has too much under way.
    Share(ShareExceeded),
    /// Too many large bodies arrive already, or the disk does not answer.
    Slow,
}

impl From<ShareExceeded> for Refusal {
    fn from(error: ShareExceeded) -> Self {
        Self::Share(error)
    }
}

/// Reads `body` to its end. `trace` is put in front of it; `header` is shown what follows.
pub(crate) async fn gather(
    body: &mut Body<'_>,
    envelope: &Envelope,
    (trace, mut head): (Bytes, Head),
    limits: MessageLimits,
    memory: &MemoryBudget,
    store: &LocalDelivery,
    share: Share,
) -> Result<Gathered, Refusal> {
    let mut room = Reservation::default();
    let mut parts = Parts::new(trace);
    loop {
        // Room is taken for what comes, not for what was announced, and nobody waits for it: a client that says nothing more
        // holds no more than it sent, and what finds no room goes to a file.
        room.shrink(parts.held_bytes());
        if body.readable().await && !memory.try_grow(&mut room, parts.held_bytes() + parts.next_bytes_max()) {
            return spool(body, envelope, parts, head, (room, share), (limits, memory, store)).await;
        }
        let Some(chunk) = body.chunk().await else { break };
        let chunk = chunk.map_err(Refusal::Body)?;
        parts.push(head.push(chunk));
        if parts.bytes > LARGE_BODY_BYTES as u64 || !memory.try_grow(&mut room, parts.held_bytes()) {
            return spool(body, envelope, parts, head, (room, share), (limits, memory, store)).await;
        }
    }
    head.end().into_iter().for_each(|rest| parts.push(rest));
    let (summary, said) = heard(head, limits.hops)?;
    Ok(Gathered { bytes: parts.bytes, body: StoredBody::Memory(parts.finish()), summary, said, room, share })
}

/// Writes what has come so far, and then each piece as it comes.
async fn spool(
    body: &mut Body<'_>,
    envelope: &Envelope,
    parts: Parts,
    mut head: Head,
    (mut room, mut share): (Reservation, Share),
    (limits, memory, store): (MessageLimits, &MemoryBudget, &LocalDelivery),
) -> Result<Gathered, Refusal> {
    // All memory that is held while it waits for a place is counted.
    let (mut bytes, parts) = (parts.bytes, parts.finish());
    let mut place = Some(memory.place_to_spool().await.ok_or(Refusal::Slow)?);
    let announced = envelope.mail.size.unwrap_or(0);
    let (mut writer, free) = in_time(body, store.intake().upload_when_room(announced)).await?;
    share.found_free(free);
    share.grow(bytes)?;
    for part in parts {
        in_time(body, writer.write(&part)).await?;
    }
    room.release();
    loop {
        if !is_ready_now(body.readable()).await {
            // Otherwise clients that stall would hold all places, and everybody else would wait for them.
            if memory.places_are_scarce() {
                in_time(body, writer.write_out()).await?;
                place = None;
            }
            let readable = match timeout(STALLED_AFTER, body.readable()).await {
                Ok(readable) => readable,
                Err(_) => {
                    // Space that nobody fills is not kept from others.
                    writer.pause();
                    body.readable().await
                }
            };
            if readable && place.is_none() {
                place = Some(memory.place_to_spool().await.ok_or(Refusal::Slow)?);
            }
        }
        let Some(chunk) = body.chunk().await else { break };
        let chunk = head.push(chunk.map_err(Refusal::Body)?);
        bytes += chunk.len() as u64;
        share.grow(bytes)?;
        in_time(body, writer.write(&chunk)).await?;
    }
    if let Some(rest) = head.end() {
        bytes += rest.len() as u64;
        in_time(body, writer.write(&rest)).await?;
    }
    let (summary, said) = heard(head, limits.hops)?;
    let large = in_time(body, writer.finish()).await?;
    Ok(Gathered { body: StoredBody::Large(large), bytes, summary, said, room, share })
}

/// Whether `work`, which may be dropped, is done at once.
async fn is_ready_now(work: impl Future) -> bool {
    let mut work = pin!(work);
    poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await
}

/// Waits for the spool.
async fn in_time<T>(body: &mut Body<'_>, work: impl Future<Output = Result<T, IntakeError>>) -> Result<T, Refusal> {
    body.within(STORE_PATIENCE, work).await.ok_or(Refusal::Slow)?.map_err(|error| match error {
        IntakeError::Sync(error) => Refusal::Spool(error),
        other => Refusal::Delivery(other.into()),
    })
}

/// The pieces of a body. Small ones are joined, so that their number is bounded by the body's size and not by how it was cut: a
/// piece of one octet would cost a hundred, and keep the whole buffer alive that it was read into.
struct Parts {
    done: Vec<Bytes>,
    /// Small pieces behind the last of `done`.
    tail: BytesMut,
    /// Octets that the client sent.
    bytes: u64,
    /// Octets of memory in `done`.
    done_bytes: usize,
}

impl Parts {
    fn new(trace: Bytes) -> Self {
        Self { done_bytes: held_bytes(&trace), done: vec![trace], tail: BytesMut::new(), bytes: 0 }
    }

    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len() as u64;
        if piece.len() < SMALL_PIECE_BYTES {
            self.tail.put_slice(&piece);
            return;
        }
        self.close_tail();
        self.done_bytes += held_bytes(&piece);
        self.done.push(piece);
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.done_bytes += self.tail.capacity();
            self.done.push(std::mem::take(&mut self.tail).freeze());
        }
    }

    /// Octets of memory.
    fn held_bytes(&self) -> usize {
        self.done_bytes + self.tail.capacity()
    }

    /// Octets of memory that the next piece takes: the faster they come, the more are read at a time.
    fn next_bytes_max(&self) -> usize {
        self.bytes.saturating_mul(4).clamp(FIRST_BYTES_MAX as u64, Body::CHUNK_BYTES_MAX as u64) as usize
    }

    /// All pieces.
    fn finish(mut self) -> Vec<Bytes> {
        self.close_tail();
        self.done
    }
}

/// Octets of memory that a piece keeps at most: it may be a slice of a read buffer.
fn held_bytes(piece: &Bytes) -> usize {
    2 * piece.len()
}

/// What the header told, unless it tells of a loop, or its fields have no names.
fn heard(head: Head, hops_max: usize) -> Result<(Summary, HeaderLabels), Refusal> {
    let (summary, said) = head.finish();
    match said.invalid {
        _ if summary.hops >= hops_max => Err(Refusal::Loop { hops: summary.hops }),
        Some(field) => Err(Refusal::NoName { field }),
        None => Ok((summary, said)),
    }
}

/// A client that has sent nothing for so long holds no space of the spool.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// The first read of a body takes less.
const FIRST_BYTES_MAX: usize = 64 << 10;
/// A piece below this is copied; above it costs less to keep it where it is.
const SMALL_PIECE_BYTES: usize = 4 << 10;

/// How long the store may take over a message before the client is told to come back. The client's own patience is ten minutes
/// (RFC 5321 section 4.5.3.2.6).
pub(crate) const STORE_PATIENCE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_single_octets_is_one_part_and_one_buffer() {
        let mut parts = Parts::new(Bytes::from_static(b"trace"));
        // Each is a slice of a read buffer that it would keep alive.
        let buffer = Bytes::from(vec![b'x'; 4096]);
        for at in 0..1_000_000 {
            parts.push(buffer.slice(at % 4096..at % 4096 + 1));
        }
        assert!(parts.held_bytes() < 3 << 20, "{}", parts.held_bytes());
        assert!(buffer.try_into_mut().is_ok(), "no piece keeps its read buffer");
        let parts = parts.finish();
        assert_eq!((parts.len(), parts[1].len()), (2, 1_000_000));
    }

    #[test]
    fn the_number_of_parts_is_bounded_by_the_size() {
        // The worst: a small piece between any two that are just not small.
        let mut parts = Parts::new(Bytes::new());
        let mut sent = Vec::new();
        while parts.bytes <= LARGE_BODY_BYTES as u64 {
            for len in [1, SMALL_PIECE_BYTES] {
                let piece = vec![sent.len() as u8; len];
                sent.extend_from_slice(&piece);
                parts.push(piece.into());
            }
        }
        let parts = parts.finish();
        assert!(parts.len() <= 2 * LARGE_BODY_BYTES / SMALL_PIECE_BYTES + 3, "{}", parts.len());
        assert_eq!(parts.concat(), sent);
    }

    #[test]
    fn a_message_of_50_hops_is_in_a_loop() {
        let refused = |hops: usize| {
            let mut head = Head::new(posthaste_message::HeaderScan::default(), None, None);
            head.push(b"Received: x\r\n".repeat(hops).into());
            matches!(heard(head, 50), Err(Refusal::Loop { .. }))
        };
        assert!(!refused(49));
        assert!(refused(50));
    }
}
