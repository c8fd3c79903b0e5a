//! One session: the state machine, its socket and its clock.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use posthaste_net::{Certificate, CurrentPhase, Phase, Stream, TlsFacts, after};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};

use super::setup::Door;
use super::{Session, SmtpSessionEnd};
use crate::body_error::BodyError;
use crate::limits::Timeouts;
use crate::reply::Reply;
use crate::server::{Config, Event, Machine, Waiting};
use crate::witness;

/// The reason why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Disconnected,
    TimedOut,
    ShuttingDown,
    Io(io::ErrorKind),
    /// The handshake failed.
    Tls,
    /// The handler panicked. Never within a body, which is first read to its end.
    Panicked,
}

impl Stop {
    pub fn body_error(self) -> BodyError {
        match self {
            Self::Disconnected => BodyError::Disconnected,
            Self::TimedOut => BodyError::TimedOut,
            Self::ShuttingDown => BodyError::ShuttingDown,
            Self::Io(kind) => BodyError::Io(kind),
            Self::Tls | Self::Panicked => unreachable!("{self:?} within a body"),
        }
    }

    pub fn session_end(self) -> SmtpSessionEnd {
        match self {
            Self::Disconnected => SmtpSessionEnd::Disconnected,
            Self::TimedOut => SmtpSessionEnd::TimedOut,
            Self::ShuttingDown => SmtpSessionEnd::ShutDown,
            Self::Io(kind) => SmtpSessionEnd::Failed(kind),
            Self::Tls => SmtpSessionEnd::Tls,
            Self::Panicked => SmtpSessionEnd::Panicked,
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // From TLS: the connection was closed without a notification.
            io::ErrorKind::UnexpectedEof => Self::Disconnected,
            kind => Self::Io(kind),
        }
    }
}

/// The reason for the lack of TLS.
#[derive(Debug)]
pub(super) struct NoTls {
    pub stop: Stop,
    pub error: io::Error,
}

/// A machine with its socket.
#[derive(Debug)]
pub(super) struct Connection {
    pub machine: Machine,
    pub stream: Stream,
    /// Has no memory while nothing comes, so that waiting sessions stay cheap.
    input: BytesMut,
    /// Size of the buffer that `input` is or was a part of.
    buffer_bytes: usize,
    /// Octets of it that the handler holds as slices.
    shared_bytes: usize,
    config: Arc<Config>,
    /// Only read here: the caller that polls the session must wake its task when the phase changes.
    phase: Arc<CurrentPhase>,
    alarm: Alarm,
    /// The awaited command line, and its deadline.
    line: u64,
    line_deadline: Instant,
    /// The body being received, and its deadline.
    body: u64,
    body_deadline: Instant,
    /// Deadline for the client to take the replies that it was slow to take.
    write_deadline: Option<Instant>,
}

/// One timer for all waits of a session. Most deadlines are moved before they are met. So a timer that is due earlier
/// stays set, and is set again after it fires: most waits need no timer operation.
#[derive(Debug, Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// Least room in the buffer for the next read; below it a new buffer is taken.
const READ_BYTES_MIN: usize = 1 << 10;
/// Like `READ_BYTES_MIN`, within a body.
const BODY_BYTES_MIN: usize = 4 << 10;
/// A rest of up to this part of its buffer moves to a smaller one, so that the buffer can be freed.
const REST_PART: usize = 4;
/// Larger reply buffers are freed after they were written.
const OUTPUT_BYTES_KEPT: usize = 256;

impl Connection {
    pub fn new(stream: Stream, config: Arc<Config>, phase: Arc<CurrentPhase>, door: Door) -> Self {
        let now = Instant::now();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let machine = Machine::new(Arc::clone(&config)).begun_at(wall.as_secs().cast_signed());
        Self {
            machine: if door.implicit_tls { machine.encrypted() } else { machine },
            stream,
            input: BytesMut::new(),
            buffer_bytes: 0,
            shared_bytes: 0,
            alarm: Alarm::default(),
            line: 0,
            line_deadline: after(now, config.limits.timeouts.command),
            body: 0,
            body_deadline: now,
            write_deadline: None,
            config,
            phase,
        }
    }

    pub fn is_draining(&self) -> bool {
        self.phase.reached(Phase::Draining)
    }

    /// True if the read octets hold the whole rest of the message.
    pub fn has_whole_body(&self) -> bool {
        self.machine.has_whole_body(&self.input)
    }

    pub fn timeouts(&self) -> &Timeouts {
        &self.config.limits.timeouts
    }

    pub fn step(&mut self) -> Event {
        self.machine.step(&mut self.input)
    }

    /// A piece of a message for the handler: a slice of the read buffer if such slices fill half of that, otherwise a
    /// copy. So a piece that the handler keeps never holds much more memory than its length.
    pub fn hand_out(&mut self, piece: Bytes) -> Bytes {
        let shared = self.shared_bytes + piece.len();
        if 2 * shared >= self.buffer_bytes {
            self.shared_bytes = shared;
            return piece;
        }
        let copy = Bytes::copy_from_slice(&piece);
        drop(piece);
        self.give_buffer_back();
        copy
    }

    pub fn poll_alarm(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(deadline, cx)
    }

    /// Writes all replies at once. The future may be dropped: the connection keeps track of what was written.
    pub async fn flush(&mut self) -> Result<(), Stop> {
        if self.machine.output().is_empty() && self.stream.is_flushed() {
            return Ok(());
        }
        // Input during an earlier, dropped flush was noted then.
        if self.write_deadline.is_none()
            && let Some(witness) = self.machine.witness()
        {
            witness::replies(&**witness, self.machine.output());
        }
        let written = poll_fn(|cx| self.poll_flush(cx)).await;
        self.write_deadline = None;
        // Otherwise the rest stays in front of the last reply.
        if written.is_ok() {
            let out = self.machine.output_mut();
            if out.capacity() > OUTPUT_BYTES_KEPT {
                *out = Vec::new();
            }
        }
        written
    }

    /// Checks clock and phase only if the socket takes no more.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            let out = self.machine.output_mut();
            if out.is_empty() && self.stream.is_flushed() {
                return Poll::Ready(Ok(()));
            }
            let written = if out.is_empty() {
                Pin::new(&mut self.stream).poll_flush(cx).map_ok(|()| usize::MAX)
            } else {
                Pin::new(&mut self.stream).poll_write(cx, out)
            };
            match written {
                Poll::Ready(Ok(usize::MAX)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(Stop::Io(io::ErrorKind::WriteZero))),
                Poll::Ready(Ok(written)) if written == out.len() => out.clear(),
                Poll::Ready(Ok(written)) => drop(out.drain(..written)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending if self.phase.reached(Phase::Ending) => return Poll::Ready(Err(Stop::ShuttingDown)),
                Poll::Pending => {
                    let write = self.timeouts().write;
                    let deadline = *self.write_deadline.get_or_insert_with(|| after(Instant::now(), write));
                    return self.alarm.poll(deadline, cx).map(|()| Err(Stop::TimedOut));
                }
            }
        }
    }

    /// Writes all replies, then waits for more input and reads it.
    pub async fn fill(&mut self) -> Result<(), Stop> {
        let (waiting, deadline) = self.before_wait().await?;
        poll_fn(|cx| self.poll_until(waiting, deadline, cx, Self::poll_read)).await
    }

    /// Writes all replies, then waits for something to read.
    pub async fn readable(&mut self) -> Result<(), Stop> {
        let (waiting, deadline) = self.before_wait().await?;
        poll_fn(|cx| self.poll_until(waiting, deadline, cx, Self::poll_ready)).await
    }

    async fn before_wait(&mut self) -> Result<(Waiting, Instant), Stop> {
        self.flush().await?;
        let now = Instant::now();
        let waiting = self.machine.waiting();
        let deadline = self.deadline(waiting, now);
        // A client that never pauses causes no wait.
        if deadline <= now { Err(Stop::TimedOut) } else { Ok((waiting, deadline)) }
    }

    fn poll_until(
        &mut self,
        waiting: Waiting,
        deadline: Instant,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Self, &mut Context<'_>) -> Poll<Result<(), Stop>>,
    ) -> Poll<Result<(), Stop>> {
        // An idle session ends as soon as the server drains; an open transaction has the server's grace.
        let last_phase = if waiting == Waiting::Idle { Phase::Draining } else { Phase::Ending };
        if self.phase.reached(last_phase) {
            return Poll::Ready(Err(Stop::ShuttingDown));
        }
        match work(self, cx) {
            Poll::Pending => self.alarm.poll(deadline, cx).map(|()| Err(Stop::TimedOut)),
            done => done,
        }
    }

    /// Checked before there is a buffer to read into: most sessions wait most of the time.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let ready = self.stream.poll_read_ready(cx)?;
        if ready.is_pending() {
            self.give_buffer_back();
        }
        ready.map(Ok)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        ready!(self.poll_ready(cx))?;
        if let Some(hint) = self.missing_room() {
            self.input.reserve(hint);
            (self.buffer_bytes, self.shared_bytes) = (self.input.capacity(), 0);
        }
        let read = pin!(self.stream.read_buf(&mut self.input)).poll(cx);
        if read.is_pending() {
            self.give_buffer_back();
        }
        Poll::Ready(match ready!(read) {
            Ok(0) => Err(Stop::Disconnected),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    /// True if the stream has ended, with nothing left to read.
    pub fn has_hung_up(&mut self) -> bool {
        // The next reader polls again.
        let read = self.poll_read(&mut Context::from_waker(Waker::noop()));
        self.input.is_empty() && matches!(read, Poll::Ready(Err(_)))
    }

    /// Octets of the read buffer that no piece of a message shares.
    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.input.capacity()
    }

    /// Size of the new buffer for the next read, if it takes one.
    pub fn missing_room(&self) -> Option<usize> {
        let room = self.input.capacity() - self.input.len();
        let hint = self.machine.read_bytes_hint();
        // The rest of a command buffer would cut a body into small pieces.
        let enough =
            if self.machine.waiting() == Waiting::Body { BODY_BYTES_MIN.min(hint / 4) } else { READ_BYTES_MIN };
        (room < enough).then_some(hint)
    }

    /// Frees the buffer while nothing comes. A buffer shared with the handler would stay anyway: within a body its rest
    /// is kept for the next read.
    fn give_buffer_back(&mut self) {
        let rest = self.input.len();
        if rest > self.buffer_bytes / REST_PART {
            return;
        }
        if !self.machine.is_in_body() || self.input.try_reclaim(self.buffer_bytes.saturating_sub(rest)) {
            self.input = BytesMut::from(&self.input[..]);
            (self.buffer_bytes, self.shared_bytes) = (self.input.capacity(), 0);
        }
    }

    fn deadline(&mut self, waiting: Waiting, now: Instant) -> Instant {
        if self.body != self.machine.bodies() {
            self.body = self.machine.bodies();
            self.body_deadline = after(now, self.timeouts().body_total);
        }
        if waiting == Waiting::Body {
            self.line = u64::MAX;
            return self.body_deadline.min(after(now, self.timeouts().body_read));
        }
        if self.line != self.machine.lines() {
            self.line = self.machine.lines();
            self.line_deadline = after(now, self.timeouts().command);
        }
        // Commands between the chunks of a message count towards its time.
        if self.machine.is_in_body() { self.line_deadline.min(self.body_deadline) } else { self.line_deadline }
    }

    /// Answers a machine's question with the result of [`sheltered`](super::panics::sheltered): `None` for a handler
    /// that panicked.
    pub fn answer(&mut self, verdict: Option<Result<(), Reply>>) -> Result<(), Stop> {
        let panicked = verdict.is_none();
        self.machine.answer(verdict.unwrap_or_else(|| Err(super::panics::internal_error())));
        if panicked { Err(Stop::Panicked) } else { Ok(()) }
    }

    /// Handles a panic of the handler outside a question.
    pub fn panicked(&mut self) -> Stop {
        self.machine.close(&super::panics::internal_end());
        Stop::Panicked
    }

    /// Copies the machine's facts to the handler's view of the session.
    pub fn describe<S>(&self, session: &mut Session<S>) {
        if session.helo.as_deref() != self.machine.helo() {
            session.helo = self.machine.helo().map(String::from);
        }
        session.extended = self.machine.is_extended();
    }

    /// Does the server's TLS handshake. Until it succeeds there is no stream.
    pub async fn start_tls(&mut self, certificate: &Certificate) -> Result<Box<TlsFacts>, NoTls> {
        let mut accepting = pin!(certificate.accept(std::mem::replace(&mut self.stream, Stream::Gone)));
        let deadline = after(Instant::now(), self.timeouts().command);
        let accepted = poll_fn(|cx| {
            if self.phase.reached(Phase::Draining) {
                return Poll::Ready(Err(NoTls {
                    stop: Stop::ShuttingDown,
                    error: io::ErrorKind::ConnectionAborted.into(),
                }));
            }
            match accepting.as_mut().poll(cx) {
                Poll::Ready(Ok(accepted)) => Poll::Ready(Ok(accepted)),
                Poll::Ready(Err(error)) => {
                    tracing::debug!(error = error.to_string(), "TLS handshake failed");
                    Poll::Ready(Err(NoTls { stop: Stop::Tls, error }))
                }
                Poll::Pending => {
                    let error = || NoTls { stop: Stop::TimedOut, error: io::ErrorKind::TimedOut.into() };
                    self.alarm.poll(deadline, cx).map(|()| Err(error()))
                }
            }
        });
        let (stream, facts) = accepted.await?;
        self.stream = stream;
        if facts.exporter.is_some() {
            self.machine.offer_channel_binding();
        }
        Ok(Box::new(facts))
    }
}
