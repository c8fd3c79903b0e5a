//! Gathering a body: in memory while it is small and there is room, otherwise into a file while it arrives.

use std::future::Future;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use posthaste_delivery::DeliveryError;
use posthaste_delivery::local::{Body as StoredBody, LocalDelivery};
use posthaste_message::{HeaderScan, Summary};
use posthaste_smtp::driver::Body;
use posthaste_smtp::{BodyError, Envelope};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::memory::{LARGE_BODY_BYTES, MemoryBudget, Reservation};
use crate::receive::{MessageLimits, STORE_PATIENCE};
use crate::shares::{Share, TooMuch};

/// A whole body, the trace field in front.
pub(crate) struct Gathered {
    pub body: StoredBody,
    /// Octets as the client sent them.
    pub bytes: u64,
    pub summary: Summary,
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
    /// No room to keep it.
    Delivery(DeliveryError),
    /// The file that it went to could not be written. If that was an error of the disk, the spool accepts nothing more.
    Spool(std::io::Error),
    /// This client has too much under way.
    Share(TooMuch),
    /// Too many large bodies arrive already, or the disk does not answer.
    Slow,
}

impl From<TooMuch> for Refusal {
    fn from(error: TooMuch) -> Self {
        Self::Share(error)
    }
}

impl From<DeliveryError> for Refusal {
    fn from(error: DeliveryError) -> Self {
        Self::Delivery(error)
    }
}

/// Reads `body` to its end. `trace` is put in front of it.
pub(crate) async fn gather(
    body: &mut Body<'_>,
    envelope: &Envelope,
    trace: Bytes,
    limits: MessageLimits,
    memory: &MemoryBudget,
    store: &LocalDelivery,
    share: Share,
) -> Result<Gathered, Refusal> {
    let mut room = Reservation::default();
    let mut parts = Parts::new(trace);
    let mut header = HeaderScan::default();
    loop {
        let Some(chunk) = body.at_hand().await else {
            // Room is taken for what comes, not for what was announced, and nobody waits for it: a client that says nothing more
            // holds no more than it sent, and what finds no room goes to a file.
            if !body.readable(|buffer| room.shrink(parts.held_bytes() + buffer)).await {
                continue;
            }
            let held = parts.held_bytes() + body.buffer_bytes() + body.growth_bytes();
            if !memory.try_grow(&mut room, held) {
                return spool(body, envelope, parts, header, (room, share), (limits, memory, store)).await;
            }
            body.read().await;
            continue;
        };
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(Refusal::Body)?;
        header.push(&chunk);
        parts.push(chunk);
        let held = parts.held_bytes() + body.buffer_bytes();
        if parts.bytes > LARGE_BODY_BYTES as u64 || !memory.try_grow(&mut room, held) {
            return spool(body, envelope, parts, header, (room, share), (limits, memory, store)).await;
        }
    }
    let summary = summary_of(header, limits.hops)?;
    Ok(Gathered {
        bytes: parts.bytes,
        body: StoredBody::Memory(parts.finish(body.buffer_bytes())),
        summary,
        room,
        share,
    })
}

/// Writes what has come so far, and then each piece as it comes.
async fn spool(
    body: &mut Body<'_>,
    envelope: &Envelope,
    parts: Parts,
    mut header: HeaderScan,
    (mut room, mut share): (Reservation, Share),
    (limits, memory, store): (MessageLimits, &MemoryBudget, &LocalDelivery),
) -> Result<Gathered, Refusal> {
    // Nobody holds memory that is not counted while he waits for a place: not even for a piece of a buffer.
    let (mut bytes, parts) = (parts.bytes, parts.finish(body.buffer_bytes()));
    body.give_buffer_back();
    let mut place = Some(memory.place_to_spool().await.ok_or(Refusal::Slow)?);
    let announced = envelope.mail.size.unwrap_or(0);
    let store = store.clone();
    let opening = spawn_blocking(move || Ok::<_, DeliveryError>((store.free_spool_bytes()?, store.upload(announced)?)));
    let opened = body.within(STORE_PATIENCE, opening).await.ok_or(Refusal::Slow)?;
    let (free, mut writer) = opened.map_err(|_| DeliveryError::Closed)??;
    share.found_free(free);
    share.grow(bytes)?;
    for part in parts {
        in_time(body, writer.write(&part)).await?;
    }
    room.release();
    loop {
        let Some(chunk) = body.at_hand().await else {
            // Otherwise clients that stall would hold all places, and everybody else would wait for them.
            if memory.places_are_scarce() {
                in_time(body, writer.write_out()).await?;
                body.give_buffer_back();
                place = None;
            }
            let readable = match timeout(STALLED_AFTER, body.readable(|_| ())).await {
                Ok(readable) => readable,
                Err(_) => {
                    // Space that nobody fills is not kept from others.
                    writer.pause();
                    body.readable(|_| ()).await
                }
            };
            if !readable {
                continue;
            }
            if place.is_none() {
                place = Some(memory.place_to_spool().await.ok_or(Refusal::Slow)?);
            }
            body.read().await;
            continue;
        };
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(Refusal::Body)?;
        bytes += chunk.len() as u64;
        share.grow(bytes)?;
        header.push(&chunk);
        in_time(body, writer.write(&chunk)).await?;
    }
    let summary = summary_of(header, limits.hops)?;
    let large = in_time(body, writer.finish()).await?;
    Ok(Gathered { body: StoredBody::Large(large), bytes, summary, room, share })
}

/// Waits for the spool.
async fn in_time<T>(body: &mut Body<'_>, work: impl Future<Output = Result<T, DeliveryError>>) -> Result<T, Refusal> {
    body.within(STORE_PATIENCE, work).await.ok_or(Refusal::Slow)?.map_err(|error| match error {
        DeliveryError::Sync(error) => Refusal::Spool(error),
        other => other.into(),
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
        Self { done_bytes: trace.len(), done: vec![trace], tail: BytesMut::new(), bytes: 0 }
    }

    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len() as u64;
        if piece.len() < SMALL_PIECE_BYTES {
            self.tail.put_slice(&piece);
            return;
        }
        self.close_tail();
        self.done_bytes += piece.len();
        self.done.push(piece);
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.done_bytes += self.tail.capacity();
            self.done.push(std::mem::take(&mut self.tail).freeze());
        }
    }

    /// Octets of memory, but for the buffer that the last piece was read into.
    fn held_bytes(&self) -> usize {
        self.done_bytes + self.tail.capacity()
    }

    /// All pieces. `unused` octets were left of the buffer that the last was read into: who keeps a piece keeps these as well, so
    /// a body that is less than that is copied.
    fn finish(mut self, unused: usize) -> Vec<Bytes> {
        self.close_tail();
        if self.done.len() > 1 && self.bytes < unused as u64 {
            let body = self.done.split_off(1);
            self.done.push(body.concat().into());
        }
        self.done
    }
}

/// What the header told, unless it tells of a loop.
fn summary_of(header: HeaderScan, hops_max: usize) -> Result<Summary, Refusal> {
    let summary = header.finish();
    if summary.hops >= hops_max { Err(Refusal::Loop { hops: summary.hops }) } else { Ok(summary) }
}

/// A client that has sent nothing for so long holds no space of the spool.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// A piece below this is copied; above it costs less to keep it where it is.
const SMALL_PIECE_BYTES: usize = 4 << 10;

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
        let parts = parts.finish(0);
        assert_eq!((parts.len(), parts[1].len()), (2, 1_000_000));
    }

    #[test]
    fn a_body_that_leaves_most_of_its_buffer_unused_is_copied() {
        for (len, unused, copied) in [(5000, 16 << 10, true), (5000, 4999, false), (5000, 0, false)] {
            let buffer = Bytes::from(vec![b'x'; len]);
            let mut parts = Parts::new(Bytes::from_static(b"trace"));
            parts.push(buffer.clone());
            let parts = parts.finish(unused);
            assert_eq!((parts.len(), parts[1].len(), parts[1].as_ptr() != buffer.as_ptr()), (2, len, copied));
        }
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
        let parts = parts.finish(0);
        assert!(parts.len() <= 2 * LARGE_BODY_BYTES / SMALL_PIECE_BYTES + 3, "{}", parts.len());
        assert_eq!(parts.concat(), sent);
    }

    #[test]
    fn a_message_of_50_hops_is_in_a_loop() {
        let refused = |hops: usize| {
            let mut header = HeaderScan::default();
            header.push(&b"Received: x\r\n".repeat(hops));
            matches!(summary_of(header, 50), Err(Refusal::Loop { .. }))
        };
        assert!(!refused(49));
        assert!(refused(50));
    }
}
