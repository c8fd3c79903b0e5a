//! Gathering a body: in memory while it is small and there is room, otherwise into a file while it arrives.

use bytes::Bytes;
use posthaste_delivery::{Body as StoredBody, DeliveryError, Journaled};
use posthaste_message::{Header, Summary};
use posthaste_smtp::tokio::Body;
use posthaste_smtp::{BodyError, Envelope};

use crate::memory::{LARGE_BODY_BYTES, MemoryBudget, Reservation};
use crate::receive::Settings;

/// A whole body, the trace field in front.
pub(crate) struct Gathered {
    pub body: StoredBody,
    /// Octets as the client sent them.
    pub bytes: u64,
    pub summary: Summary,
}

/// Why a body was not gathered.
pub(crate) enum Refusal {
    /// The smtp crate will tell the client.
    Body(BodyError),
    /// Too many Received fields.
    Loop { hops: usize },
    /// No room to keep it.
    Delivery(DeliveryError),
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
    settings: &Settings,
    memory: &MemoryBudget,
    store: &Journaled,
) -> Result<Gathered, Refusal> {
    // What the client announced is only a guess; a body that outgrows it asks again.
    let announced =
        envelope.mail.size.map_or(FIRST_RESERVATION_BYTES, |size| size.min(LARGE_BODY_BYTES as u64) as usize);
    let mut reservation = memory.reserve(announced.max(FIRST_RESERVATION_BYTES)).await;
    let mut parts = vec![trace];
    let mut header = HeaderWatch::default();
    let mut bytes = 0;
    while let Some(chunk) = body.chunk().await {
        let chunk = chunk.map_err(Refusal::Body)?;
        bytes += chunk.len();
        header.push(&chunk);
        parts.push(chunk);
        if bytes > LARGE_BODY_BYTES || !memory.try_grow(&mut reservation, bytes) {
            return spool(body, envelope, parts, header, settings, store).await;
        }
    }
    let summary = header.finish(settings.hops)?;
    Ok(Gathered { body: StoredBody::Memory(held(parts, reservation)), bytes: bytes as u64, summary })
}

/// Writes what has come so far, and then each piece as it comes.
async fn spool(
    body: &mut Body<'_>,
    envelope: &Envelope,
    parts: Vec<Bytes>,
    mut header: HeaderWatch,
    settings: &Settings,
    store: &Journaled,
) -> Result<Gathered, Refusal> {
    // The room that has to be there before the first octet is written.
    let announced = envelope.mail.size.or(settings.message_bytes).unwrap_or(0);
    let mut writer = store.spool(announced).await?;
    let mut bytes = 0;
    for (index, part) in parts.iter().enumerate() {
        // The first part is our own.
        bytes += if index == 0 { 0 } else { part.len() as u64 };
        writer.write(part).await?;
    }
    drop(parts);
    while let Some(chunk) = body.chunk().await {
        let chunk = chunk.map_err(Refusal::Body)?;
        bytes += chunk.len() as u64;
        header.push(&chunk);
        writer.write(&chunk).await?;
    }
    let summary = header.finish(settings.hops)?;
    Ok(Gathered { body: StoredBody::Spooled(writer.finish().await?), bytes, summary })
}

/// Ties the reservation to the largest part, which lives as long as the message does.
fn held(mut parts: Vec<Bytes>, reservation: Reservation) -> Vec<Bytes> {
    if let Some(last) = parts.pop() {
        parts.push(reservation.hold(last));
    }
    parts
}

/// Collects the header section, which may come in many pieces, without looking at any octet more than a few times.
#[derive(Default)]
struct HeaderWatch {
    head: Vec<u8>,
    look_again_at: usize,
    found: Option<Summary>,
}

impl HeaderWatch {
    fn push(&mut self, chunk: &[u8]) {
        if self.found.is_some() {
            return;
        }
        if self.head.is_empty() {
            // The usual case: the header is in the first piece, and nothing is copied.
            let header = Header::of(chunk);
            if header.is_complete() {
                self.found = Some(header.summary());
                return;
            }
        }
        self.head.extend_from_slice(chunk);
        // Twice as much each time, so that a header in single octets costs no square of its size.
        if self.head.len() >= self.look_again_at {
            let header = Header::of(&self.head);
            if header.is_complete() {
                self.found = Some(header.summary());
                self.head = Vec::new();
            } else {
                self.look_again_at = self.head.len() * 2;
            }
        }
    }

    fn finish(self, hops_max: usize) -> Result<Summary, Refusal> {
        let summary = self.found.unwrap_or_else(|| Header::of(&self.head).summary());
        if summary.hops >= hops_max { Err(Refusal::Loop { hops: summary.hops }) } else { Ok(summary) }
    }
}

/// Covers most mail; less would only mean asking twice.
const FIRST_RESERVATION_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn summary_of(message: &[u8], piece: usize) -> Summary {
        let mut watch = HeaderWatch::default();
        message.chunks(piece).for_each(|chunk| watch.push(chunk));
        watch.finish(usize::MAX).unwrap_or_else(|_| panic!("no limit was set"))
    }

    #[test]
    fn a_header_in_pieces_is_the_same_header() {
        let message = b"Received: a\r\nMessage-ID: <x@y>\r\nReceived: b\r\n\tc\r\n\r\nReceived: in the body\r\n";
        for piece in 1..=message.len() {
            let found = summary_of(message, piece);
            assert_eq!((found.hops, found.message_id.as_deref()), (2, Some("<x@y>")), "pieces of {piece}");
        }
        assert_eq!(summary_of(b"Received: a\r\nReceived: b", 3).hops, 2);
    }

    #[test]
    fn a_message_of_50_hops_is_in_a_loop() {
        let refused = |hops: usize| {
            let mut watch = HeaderWatch::default();
            watch.push(&b"Received: x\r\n".repeat(hops));
            matches!(watch.finish(50), Err(Refusal::Loop { .. }))
        };
        assert!(!refused(49));
        assert!(refused(50));
    }
}
