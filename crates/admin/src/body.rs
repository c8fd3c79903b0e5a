//! Bodies of requests, read within bounds, and bodies of answers.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// The body of an answer: complete in memory, or pieces until the sender is dropped.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    Octets(Option<Bytes>),
    Live(Receiver<Bytes>),
}

impl From<Bytes> for AnswerBody {
    fn from(octets: Bytes) -> Self {
        Self::Octets(Some(octets).filter(|octets| !octets.is_empty()))
    }
}

impl AnswerBody {
    /// A body that ends when the sender of the pieces is dropped.
    pub fn live(pieces: Receiver<Bytes>) -> Self {
        Self::Live(pieces)
    }

    /// All octets of a complete body. Pieces not yet received are left out.
    pub fn into_octets(self) -> Bytes {
        match self {
            Self::Octets(octets) => octets.unwrap_or_default(),
            Self::Live(_) => Bytes::new(),
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut *self {
            Self::Octets(octets) => Poll::Ready(octets.take()),
            Self::Live(pieces) => pieces.poll_recv(cx),
        };
        piece.map(|piece| piece.map(|octets| Ok(Frame::data(octets))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Octets(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Octets(octets) => SizeHint::with_exact(octets.as_ref().map_or(0, |octets| octets.len() as u64)),
            Self::Live(_) => SizeHint::default(),
        }
    }
}

/// Memory for the bodies of requests in progress.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    free: Arc<Semaphore>,
    kib_max: u32,
}

/// Memory reserved for a request's body, released on drop.
#[derive(Debug, Default)]
pub struct BodyShare(Option<OwnedSemaphorePermit>);

impl BodyRoom {
    /// Limits all bodies together to this many bytes.
    pub fn new(bytes: u64) -> Self {
        let kib_max = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(STEP_KIB, KIB_MAX);
        Self { free: Arc::new(Semaphore::new(kib_max as usize)), kib_max }
    }

    /// Extends `share` to `bytes` octets. The largest bodies use the whole budget, one at a time.
    pub async fn grow(&self, share: &mut BodyShare, bytes: usize) -> Result<(), BodyReadError> {
        let wanted = u32::try_from((bytes * COPIES) >> 10).unwrap_or(u32::MAX).min(self.kib_max);
        let held = share.0.as_ref().map_or(0, |held| held.num_permits() as u32);
        if held > 0 && wanted <= held {
            return Ok(());
        }
        let more = (wanted - held).max(STEP_KIB).min(self.kib_max - held);
        let taken = timeout(ROOM_PATIENCE, Arc::clone(&self.free).acquire_many_owned(more)).await;
        let taken = taken.map_err(|_| BodyReadError::NoRoom)?.expect("the semaphore is never closed");
        match &mut share.0 {
            Some(held) => held.merge(taken),
            none => *none = Some(taken),
        }
        Ok(())
    }
}

/// A complete body with its memory share.
#[derive(Debug)]
pub(crate) struct ReadBody {
    pub octets: Vec<u8>,
    /// Held until the request is answered.
    pub share: BodyShare,
}

/// Why a request's body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyReadError {
    /// The body is longer than the limit.
    #[error("the body is larger than {0} bytes")]
    TooLarge(u64),
    /// The body did not arrive in time.
    #[error("the body did not arrive in time")]
    TimedOut,
    /// The client disconnected or sent a malformed chunk.
    #[error("the body is incomplete or malformed")]
    Broken,
    /// Its compressed or decompressed size is over the limit.
    #[error("the body is larger than 128 MiB, or than 100 times its compressed size")]
    TooLargeUnpacked,
    /// Content-Encoding does not match the octets, or decoding needs too much memory.
    #[error(
        "the body is not what Content-Encoding says: one gzip member, or one zstd frame with a window of at most 8 MiB"
    )]
    NotPacked,
    /// Too many bodies are in progress.
    #[error("too many large requests at once: try again later")]
    NoRoom,
}

/// Reads a body of at most `bytes_max` octets: each piece comes within [`PIECE_PATIENCE`], and all of it within
/// [`BODY_PATIENCE`]. Memory is counted for received octets, not for the announced length.
///
/// # Errors
/// See [`BodyReadError`]. The rest is not read, and the connection ends with the answer.
pub(crate) async fn read<B>(mut body: B, bytes_max: u64, room: &BodyRoom) -> Result<ReadBody, BodyReadError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max {
        return Err(BodyReadError::TooLarge(bytes_max));
    }
    let deadline = Instant::now() + BODY_PATIENCE;
    let announced = body.size_hint().lower();
    let mut octets = Vec::new();
    let mut share = BodyShare::default();
    loop {
        let piece_by = deadline.min(Instant::now() + PIECE_PATIENCE);
        let frame = timeout_at(piece_by, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await;
        let frame = match frame.map_err(|_| BodyReadError::TimedOut)? {
            Some(frame) => frame.map_err(|_| BodyReadError::Broken)?,
            None => return Ok(ReadBody { octets, share }),
        };
        // Trailers say nothing here.
        let Ok(data) = frame.into_data() else { continue };
        if (octets.len() + data.len()) as u64 > bytes_max {
            return Err(BodyReadError::TooLarge(bytes_max));
        }
        room.grow(&mut share, octets.len() + data.len()).await?;
        if octets.is_empty() {
            // Nobody is believed that much more is to come.
            octets.reserve(announced.min(data.len() as u64 * 2) as usize);
        }
        octets.extend_from_slice(&data);
    }
}

/// Copies of a body in memory: the octets, the parsed text, and the parser's copy.
const COPIES: usize = 3;
/// Minimum step in which memory is reserved.
const STEP_KIB: u32 = 32;
/// Bound of the semaphore: more than concurrent requests can need.
const KIB_MAX: u32 = 1 << 24;
/// Maximum wait for memory for a body.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum wait for the next piece of a body.
const PIECE_PATIENCE: Duration = Duration::from_secs(30);
/// Timeout for the whole body.
const BODY_PATIENCE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Announces much, and sends these pieces.
    struct Announced(u64, VecDeque<&'static [u8]>);

    impl Body for Announced {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.1.pop_front().map(|piece| Ok(Frame::data(Bytes::from_static(piece)))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    #[tokio::test]
    async fn memory_is_taken_for_what_has_come() {
        let room = BodyRoom::new(1 << 20);
        let body = read(Announced(60 << 20, [&b"ab"[..], b"c"].into()), 64 << 20, &room).await.unwrap();
        assert!(body.octets == b"abc" && body.octets.capacity() < 1 << 10, "{}", body.octets.capacity());
        assert_eq!(room.free.available_permits() as u32, room.kib_max - STEP_KIB);
        drop(body);
        assert_eq!(room.free.available_permits() as u32, room.kib_max);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_room_is_refused() {
        let room = BodyRoom::new(1 << 20);
        let all = room.free.acquire_many(room.kib_max).await.unwrap();
        let refused = read(Announced(2, [&b"ab"[..]].into()), 64, &room).await;
        assert_eq!(refused.err(), Some(BodyReadError::NoRoom));
        drop(all);
        let long = read(Announced(0, [&b"ab"[..]; 40].into()), 64, &room).await;
        assert_eq!(long.err(), Some(BodyReadError::TooLarge(64)));
    }
}
