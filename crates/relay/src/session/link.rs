//! Drives the state machine over a socket: writes, reads and deadlines.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use posthaste_net::Stream;
use posthaste_smtp::client::{Event, Machine, Step};
use posthaste_watch::Pulse;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::{Halt, Loss, SessionSettings, SessionTimeouts, steps};

/// A connection with its state machine.
#[derive(Debug)]
pub(super) struct Link {
    pub machine: Machine,
    pub stream: Stream,
    pub timeouts: SessionTimeouts,
    input: BytesMut,
    /// Octets of one record that TLS has taken and the socket not yet in whole.
    in_tls: usize,
    /// The write error, if one occurred. Replies sent before are still read.
    broken: Option<io::Error>,
    deadline: Instant,
    /// Fires at the deadline, or before it if the deadline has moved.
    timer: Pin<Box<Sleep>>,
    progress: Option<Progress>,
    pub pulse: Option<Pulse>,
    halt: Option<Halt>,
}

/// Moves the deadline only when it changes, not with each octet from the server.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    replied: u64,
    written: u64,
    in_flight: usize,
    step: Step,
}

const READ_BYTES: usize = 4 << 10;
const SLICES: usize = 64;
/// Largest TLS record, in octets (RFC 8446 section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// Longest timeout, so that adding one to an instant cannot overflow.
const PATIENCE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

impl Link {
    pub fn new(machine: Machine, stream: Stream, settings: &SessionSettings) -> Self {
        let now = Instant::now();
        Self {
            machine,
            stream,
            timeouts: settings.timeouts.clone(),
            input: BytesMut::new(),
            in_tls: 0,
            broken: None,
            deadline: now,
            timer: Box::pin(tokio::time::sleep_until(now + PATIENCE_MAX)),
            progress: None,
            pulse: settings.pulse.clone(),
            halt: settings.halt.clone(),
        }
    }

    /// The machine's next request.
    pub fn step(&mut self) -> Result<Event, Loss> {
        Ok(self.machine.step(&mut self.input)?)
    }

    /// Starts the timeout of the current wait.
    pub fn begin_wait(&mut self) {
        self.progress = None;
    }

    /// Restarts the timeout of the current wait, without progress.
    pub fn wait_on(&mut self) {
        let patience = self.timeouts.of(self.machine.awaits());
        self.deadline = Instant::now() + patience.min(PATIENCE_MAX);
    }

    /// True if writing has failed.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Proceeds until a message can be sent, or TLS can begin.
    pub async fn until_ready(&mut self) -> Result<(), Loss> {
        loop {
            match self.step()? {
                Event::NeedInput => poll_fn(|cx| self.poll_progress(cx)).await?,
                Event::Ready | Event::TlsReady => return Ok(()),
                // A server that shuts down, as it says between two commands.
                Event::Closed => return Err(self.closed()),
                event => unreachable!("{event:?} before the session is open"),
            }
        }
    }

    /// The reason why the machine is closed.
    pub fn closed(&self) -> Loss {
        match self.machine.farewell() {
            Some((step, reply)) => Loss::Closed { step: *step, reply: reply.clone() },
            None => Loss::Over,
        }
    }

    /// Writes or reads something; fails once its timeout is over or the session is halted.
    pub fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Loss>> {
        if self.halt.as_ref().is_some_and(Halt::is_set) {
            return Poll::Ready(Err(Loss::Halted));
        }
        let progress = Progress {
            replied: self.machine.replied(),
            written: self.machine.output().written(),
            in_flight: self.machine.in_flight(),
            step: self.machine.awaits(),
        };
        let step = progress.step;
        let is_writing = self.machine.output().has_remaining();
        if self.progress.as_ref() != Some(&progress) {
            let patience = if is_writing { self.timeouts.block } else { self.timeouts.of(step) };
            self.deadline = Instant::now() + patience.min(PATIENCE_MAX);
            self.progress = Some(progress);
            if let Some(pulse) = &self.pulse {
                pulse.step(steps::of(step, is_writing));
            }
        }
        if self.poll_write(cx) {
            return Poll::Ready(Ok(()));
        }
        match self.poll_read(cx) {
            Poll::Ready(read) => Poll::Ready(read.map_err(|error| Loss::Io { step, error })),
            Poll::Pending => match self.broken.take() {
                Some(error) => Poll::Ready(Err(Loss::Io { step, error })),
                None => self.poll_deadline(cx).map(|()| Err(Loss::TimedOut(step))),
            },
        }
    }

    /// True if the socket has taken anything. Does not join pieces.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut has_written = false;
        while self.broken.is_none() && self.machine.output().has_remaining() {
            match self.poll_write_some(cx) {
                Poll::Ready(Ok(0)) => self.broken = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(octets)) => {
                    self.machine.output().advance(octets);
                    has_written = true;
                }
                Poll::Ready(Err(error)) => self.broken = Some(error),
                Poll::Pending => return has_written,
            }
        }
        // TLS may have data of its own to send.
        if self.broken.is_none()
            && !self.stream.is_flushed()
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.stream).poll_flush(cx)
        {
            self.broken = Some(error);
        }
        has_written
    }

    /// Number of octets that the socket has taken.
    ///
    /// TLS takes octets that the socket does not, and on an error hides how much it sent before. So it gets one record
    /// at a time, the next once the socket has taken the last: a server cannot read a record that is cut off.
    fn poll_write_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let output = self.machine.output();
        let mut slices = [IoSlice::new(&[]); SLICES];
        if !matches!(self.stream, Stream::Tls(_)) {
            let count = output.chunks_vectored(&mut slices);
            return Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..count]);
        }
        if self.in_tls == 0 {
            let record = output.take(RECORD_BYTES);
            let count = record.chunks_vectored(&mut slices);
            self.in_tls = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..count]))?;
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        Poll::Ready(Ok(std::mem::take(&mut self.in_tls)))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.reserve(READ_BYTES);
        let read = ready!(pin!(self.stream.read_buf(&mut self.input)).poll(cx));
        Poll::Ready(match (read, self.broken.take()) {
            (Ok(1..), broken) => {
                self.broken = broken;
                Ok(())
            }
            (Err(error), None) if error.kind() == io::ErrorKind::InvalidData => {
                // TLS has tried to send an alert after its held record: the server may have that.
                let held = std::mem::take(&mut self.in_tls);
                self.machine.output().advance(held);
                Err(error)
            }
            (_, Some(error)) | (Err(error), None) => Err(error),
            (Ok(0), None) => Err(io::ErrorKind::UnexpectedEof.into()),
        })
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.timer.deadline() > self.deadline {
            self.timer.as_mut().reset(self.deadline);
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if Instant::now() >= self.deadline {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.deadline);
        }
    }
}
