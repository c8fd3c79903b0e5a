//! Receives a body: in memory while it is small and there is room, otherwise into a file while it arrives.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::timeout;

use crate::body::GatheredBody;
use crate::error::IntakeError;
use crate::intake::Intake;
use crate::memory::{LARGE_BODY_BYTES, MemoryBudget, Reservation};
use crate::shares::{HeldSpace, ShareExceeded};

/// A body arriving from a client.
pub trait Incoming: Send {
    /// Error that ends the body early.
    type Error: Send;

    /// Maximum memory of a piece, in bytes.
    const PIECE_BYTES_MAX: usize;

    /// Waits until [`piece`](Self::piece) has data or can read some; meanwhile the body holds no memory. False if no
    /// more comes; then `piece` says why. The future may be dropped without a loss.
    fn readable(&mut self) -> impl Future<Output = bool> + Send;

    /// The next piece; `None` at the end.
    fn piece(&mut self) -> impl Future<Output = Option<Result<Bytes, Self::Error>>> + Send;

    /// Runs `work` with the timeout `patience`: `None` after that.
    fn within<F: Future<Output: Send> + Send>(
        &mut self,
        patience: Duration,
        work: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;

    /// True if its client has hung up after the whole body, as far as is known: nobody waits for an answer.
    fn has_hung_up(&mut self) -> bool {
        false
    }
}

/// Sees a whole message piece by piece, and may change it.
pub trait PieceFilter: Send {
    /// The reason of a refusal.
    type Refusal: Send;

    /// Returns the part of the piece to keep, with data held back from earlier ones.
    fn push(&mut self, piece: Bytes) -> Bytes;

    /// Returns the data held back, at the end of the message.
    ///
    /// # Errors
    /// The message is refused; nothing of it is made durable.
    fn end(&mut self) -> Result<Option<Bytes>, Self::Refusal>;
}

/// A completely received body.
#[derive(Debug)]
pub struct Gathered {
    /// Its bytes.
    pub body: GatheredBody,
    /// Length of the body in bytes.
    pub bytes: u64,
    /// Reservation for the body until the intake accounts for it.
    pub room: Reservation,
    /// Its share of the spool's space.
    pub space: HeldSpace,
}

/// The reason why a body was not received.
#[derive(Debug)]
pub enum NotGathered<E, R> {
    /// The client ended it early.
    Body(E),
    /// The filter refuses it.
    Refused(R),
    /// No room to keep it.
    Intake(IntakeError),
    /// Its file could not be written. After a disk error the spool accepts nothing more.
    File(std::io::Error),
    /// This client has too much in flight.
    Space(ShareExceeded),
    /// Too many large bodies are arriving, or the disk does not respond.
    Slow,
}

impl<E, R> From<ShareExceeded> for NotGathered<E, R> {
    fn from(error: ShareExceeded) -> Self {
        Self::Space(error)
    }
}

type Gathering<S, F> = Result<Gathered, NotGathered<<S as Incoming>::Error, <F as PieceFilter>::Refusal>>;

impl Intake {
    /// Receives a body to its end. `announced` is its size if the client has declared it, else 0.
    ///
    /// Keeps it in memory while it is small and `memory` has room, otherwise writes it into a file while it arrives.
    ///
    /// # Errors
    /// See [`NotGathered`].
    pub async fn gather<S: Incoming, F: PieceFilter>(
        &self,
        (body, announced): (&mut S, u64),
        filter: &mut F,
        memory: &MemoryBudget,
        space: HeldSpace,
    ) -> Gathering<S, F> {
        let mut room = Reservation::default();
        let mut parts = Parts::default();
        loop {
            // Room is taken for what comes, not for what was announced, and nobody waits for it: a client that says nothing more
            // holds no more than it sent, and what finds no room goes to a file.
            room.shrink(parts.held_bytes());
            let next = || parts.next_bytes_max(S::PIECE_BYTES_MAX);
            if body.readable().await && !memory.try_grow(&mut room, parts.held_bytes() + next()) {
                // In a box: the many small ones carry no room for it.
                return Box::pin(self.gather_in_file((body, announced), parts, filter, (room, space), memory)).await;
            }
            let Some(piece) = body.piece().await else { break };
            parts.push(filter.push(piece.map_err(NotGathered::Body)?));
            if parts.bytes > LARGE_BODY_BYTES as u64 || !memory.try_grow(&mut room, parts.held_bytes()) {
                return Box::pin(self.gather_in_file((body, announced), parts, filter, (room, space), memory)).await;
            }
        }
        filter.end().map_err(NotGathered::Refused)?.into_iter().for_each(|rest| parts.push(rest));
        Ok(Gathered { bytes: parts.bytes, body: GatheredBody::Memory(parts.finish()), room, space })
    }

    /// Writes the part received so far, and then each piece as it arrives.
    async fn gather_in_file<S: Incoming, F: PieceFilter>(
        &self,
        (body, announced): (&mut S, u64),
        parts: Parts,
        filter: &mut F,
        (mut room, mut space): (Reservation, HeldSpace),
        memory: &MemoryBudget,
    ) -> Gathering<S, F> {
        // All memory that is held while it waits for a place is counted.
        let mut bytes = parts.bytes;
        let parts = parts.finish();
        let mut place = Some(memory.place_to_spool().await.ok_or(NotGathered::Slow)?);
        let (mut writer, free) = in_time(body, self.upload_when_room(announced)).await?;
        space.found_free(free);
        space.grow(bytes)?;
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
                    place = Some(memory.place_to_spool().await.ok_or(NotGathered::Slow)?);
                }
            }
            let Some(piece) = body.piece().await else { break };
            let piece = filter.push(piece.map_err(NotGathered::Body)?);
            bytes += piece.len() as u64;
            space.grow(bytes)?;
            in_time(body, writer.write(&piece)).await?;
        }
        if let Some(rest) = filter.end().map_err(NotGathered::Refused)? {
            bytes += rest.len() as u64;
            in_time(body, writer.write(&rest)).await?;
        }
        let large = in_time(body, writer.finish()).await?;
        Ok(Gathered { body: GatheredBody::Large(large), bytes, room, space })
    }
}

/// True if `work`, which may be dropped, completes at once.
async fn is_ready_now(work: impl Future) -> bool {
    let mut work = pin!(work);
    poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await
}

/// Waits for the spool, with a timeout.
async fn in_time<S: Incoming, R, T: Send>(
    body: &mut S,
    work: impl Future<Output = Result<T, IntakeError>> + Send,
) -> Result<T, NotGathered<S::Error, R>> {
    body.within(STORE_PATIENCE, work).await.ok_or(NotGathered::Slow)?.map_err(|error| match error {
        IntakeError::Sync(error) => NotGathered::File(error),
        other => NotGathered::Intake(other),
    })
}

/// Pieces of a body. Small ones are joined, so that their number is bounded by the body's size, not by the client's
/// segmentation. A piece of one octet would cost a hundred, and keep the whole buffer alive that it was read into.
#[derive(Default)]
struct Parts {
    done: Vec<Bytes>,
    /// Small pieces after the last of `done`.
    tail: BytesMut,
    /// Octets that the client sent.
    bytes: u64,
    /// Octets of memory in `done`.
    done_bytes: usize,
}

impl Parts {
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

    /// Memory for the next piece, in octets: the faster pieces arrive, the more is read at a time.
    fn next_bytes_max(&self, piece_bytes_max: usize) -> usize {
        self.bytes.saturating_mul(4).max(FIRST_BYTES_MAX as u64).min(piece_bytes_max as u64) as usize
    }

    /// All pieces.
    fn finish(mut self) -> Vec<Bytes> {
        self.close_tail();
        self.done
    }
}

/// Maximum memory that a piece keeps alive: it may be a slice of a read buffer.
fn held_bytes(piece: &Bytes) -> usize {
    2 * piece.len()
}

/// A client silent for this long holds no space of the spool.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// Limit of a body's first read.
const FIRST_BYTES_MAX: usize = 64 << 10;
/// Smaller pieces are copied; larger ones are cheaper to keep in place.
const SMALL_PIECE_BYTES: usize = 4 << 10;

/// Timeout of the store for a message, after which the client is told to come back. The client's own timeout is ten
/// minutes (RFC 5321 section 4.5.3.2.6).
pub const STORE_PATIENCE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use posthaste_spool::FileSpool;

    use super::*;
    use crate::shares::{Allowance, SpaceShare, SpoolShares};

    #[test]
    fn a_body_in_single_octets_is_one_part_and_one_buffer() {
        let mut parts = Parts::default();
        // Each is a slice of a read buffer that it would keep alive.
        let buffer = Bytes::from(vec![b'x'; 4096]);
        for at in 0..1_000_000 {
            parts.push(buffer.slice(at % 4096..at % 4096 + 1));
        }
        assert!(parts.held_bytes() < 3 << 20, "{}", parts.held_bytes());
        assert!(buffer.try_into_mut().is_ok(), "no piece keeps its read buffer");
        let parts = parts.finish();
        assert_eq!((parts.len(), parts[0].len()), (1, 1_000_000));
    }

    #[test]
    fn the_number_of_parts_is_bounded_by_the_size() {
        // The worst: a small piece between any two that are just not small.
        let mut parts = Parts::default();
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

    /// A body in pieces, then silence or the end.
    struct Pieces {
        pieces: std::collections::VecDeque<Bytes>,
        ends: bool,
    }

    impl Incoming for Pieces {
        type Error = &'static str;

        const PIECE_BYTES_MAX: usize = 512 << 10;

        async fn readable(&mut self) -> bool {
            !self.pieces.is_empty()
        }

        async fn piece(&mut self) -> Option<Result<Bytes, Self::Error>> {
            match self.pieces.pop_front() {
                None if !self.ends => Some(Err("the client is gone")),
                piece => piece.map(Ok),
            }
        }

        async fn within<F: Future<Output: Send> + Send>(&mut self, patience: Duration, work: F) -> Option<F::Output> {
            timeout(patience, work).await.ok()
        }
    }

    /// Holds the last octet back, and refuses a body with a "!".
    #[derive(Default)]
    struct Filter {
        held: Option<u8>,
        refuses: bool,
    }

    impl PieceFilter for Filter {
        type Refusal = ();

        fn push(&mut self, piece: Bytes) -> Bytes {
            self.refuses |= piece.contains(&b'!');
            let out: Vec<u8> = self.held.take().into_iter().chain(piece).collect();
            let (last, out) = out.split_last().map_or((None, &[][..]), |(last, out)| (Some(*last), out));
            self.held = last;
            Bytes::copy_from_slice(out)
        }

        fn end(&mut self) -> Result<Option<Bytes>, ()> {
            if self.refuses { Err(()) } else { Ok(self.held.take().map(|octet| vec![octet].into())) }
        }
    }

    struct Rig {
        intake: Intake,
        dir: tempfile::TempDir,
    }

    impl Rig {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let (spool, _) = FileSpool::open(dir.path(), posthaste_spool::Config::default()).expect("opens");
            Rig { intake: Intake::new(Arc::new(spool), crate::Config::default()), dir }
        }

        async fn gather(
            &self,
            text: &[u8],
            piece: usize,
            ends: bool,
            memory: &MemoryBudget,
        ) -> Gathering<Pieces, Filter> {
            let pieces = text.chunks(piece).map(Bytes::copy_from_slice).collect();
            let (mut pieces, mut filter) = (Pieces { pieces, ends }, Filter::default());
            let space = SpoolShares::default().begin(None, Allowance { share: SpaceShare::Percent(25), least: 0 });
            self.intake.gather((&mut pieces, 0), &mut filter, memory, space).await
        }

        fn files(&self) -> usize {
            std::fs::read_dir(self.dir.path().join("bodies")).map_or(0, Iterator::count)
        }
    }

    #[tokio::test]
    async fn a_small_body_stays_in_memory_and_a_large_one_goes_to_a_file() {
        let (rig, memory) = (Rig::new(), MemoryBudget::new(1 << 30));
        let gathered = rig.gather(b"hello", 2, true, &memory).await.expect("gathered");
        let GatheredBody::Memory(parts) = &gathered.body else { panic!("in memory") };
        assert_eq!((parts.concat(), gathered.bytes), (b"hello".to_vec(), 5));
        let large = vec![b'x'; LARGE_BODY_BYTES + 1000];
        let gathered = rig.gather(&large, 100_000, true, &memory).await.expect("gathered");
        assert!(matches!(gathered.body, GatheredBody::Large(_)));
        assert_eq!((gathered.body.len(), gathered.bytes), (large.len() as u64, large.len() as u64));
        assert_eq!(rig.files(), 1);
        drop(gathered);
        assert_eq!(rig.files(), 0, "no message has taken it over");
    }

    #[tokio::test]
    async fn without_memory_a_small_body_goes_to_a_file() {
        let (rig, memory) = (Rig::new(), MemoryBudget::new(0));
        let mut held = Reservation::default();
        assert!(memory.try_grow(&mut held, 2 * LARGE_BODY_BYTES));
        let gathered = rig.gather(b"hello", 2, true, &memory).await.expect("gathered");
        assert!(matches!(gathered.body, GatheredBody::Large(_)));
        assert_eq!((gathered.body.len(), gathered.bytes), (5, 5));
    }

    #[tokio::test]
    async fn a_body_that_is_refused_or_broken_off_leaves_nothing() {
        let (rig, memory) = (Rig::new(), MemoryBudget::new(1 << 30));
        let all = memory.available_bytes();
        let mut large = vec![b'x'; LARGE_BODY_BYTES + 1000];
        for text in [&b"hello"[..], &large] {
            let broken = rig.gather(text, 100_000, false, &memory).await;
            assert!(matches!(broken, Err(NotGathered::Body("the client is gone"))), "{broken:?}");
        }
        large.push(b'!');
        for text in [&b"hello!"[..], &large] {
            let refused = rig.gather(text, 100_000, true, &memory).await;
            assert!(matches!(refused, Err(NotGathered::Refused(()))), "{refused:?}");
        }
        assert_eq!((rig.files(), memory.available_bytes()), (0, all));
    }
}
