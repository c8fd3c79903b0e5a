//! A session's stream with its timeouts, for protocols in which both sides wait for each other.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::{Certificate, CurrentPhase, Phase, Revocation, Stream, TlsFacts, close};

/// The stream of one session. It reads until the server drains, and writes as long as the client takes octets.
#[derive(Debug)]
pub struct SessionStream {
    stream: Stream,
    phase: Arc<CurrentPhase>,
    write_patience: Duration,
    until: Option<Revocation>,
}

/// The reason why a session cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client is gone or takes nothing, [`Phase::Ending`] has begun, or the login was revoked during an answer.
    /// Nothing more can be sent.
    Gone,
    /// The client was silent for too long.
    TimedOut,
    /// [`Phase::Draining`] has begun.
    ShuttingDown,
    /// The login was [revoked](SessionStream::end_with).
    Revoked,
}

impl From<io::Error> for SessionEnd {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// The event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The client has sent octets.
    Octets,
    /// The other event has occurred.
    Event,
    /// The deadline has passed.
    Deadline,
}

/// Octets of one read.
const READ_BYTES: usize = 8 << 10;

impl SessionStream {
    /// A client that takes no octet for `write_patience` while output waits is [gone](SessionEnd::Gone).
    pub fn new(stream: Stream, phase: Arc<CurrentPhase>, write_patience: Duration) -> Self {
        Self { stream, phase, write_patience, until: None }
    }

    /// Ends the session when its login is revoked: nothing more is read or written then.
    pub fn end_with(&mut self, until: Revocation) {
        self.until = Some(until);
    }

    /// True once [`Phase::Ending`] has come, for work that neither reads nor writes.
    pub fn has_ended(&self) -> bool {
        self.phase.reached(Phase::Ending)
    }

    /// Does the server's side of a handshake.
    ///
    /// # Errors
    /// [`SessionEnd::Gone`]: it failed, or was not done by `deadline`.
    pub async fn start_tls(&mut self, certificate: &Certificate, deadline: Instant) -> Result<TlsFacts, SessionEnd> {
        let stream = std::mem::replace(&mut self.stream, Stream::Gone);
        let accepted = timeout_at(deadline, certificate.accept(stream)).await;
        let (stream, facts) = accepted.map_err(|_| SessionEnd::Gone)??;
        self.stream = stream;
        Ok(facts)
    }

    /// Writes octets. The timeout restarts each time that the client takes some.
    ///
    /// # Errors
    /// [`SessionEnd::Gone`].
    pub async fn write(&mut self, mut octets: &[u8]) -> Result<(), SessionEnd> {
        while !octets.is_empty() {
            let stream = &mut self.stream;
            let phase = &self.phase;
            let until = &mut self.until;
            let written = tokio::select! {
                biased;
                () = revoked(until) => return Err(SessionEnd::Gone),
                written = timeout(self.write_patience, stream.write(octets)) => written.map_err(|_| SessionEnd::Gone)??,
                () = reached(phase, Phase::Ending) => return Err(SessionEnd::Gone),
            };
            if written == 0 {
                return Err(SessionEnd::Gone);
            }
            octets = &octets[written..];
        }
        Ok(())
    }

    /// Flushes TLS's buffers to the socket.
    ///
    /// # Errors
    /// [`SessionEnd::Gone`].
    pub async fn flush(&mut self) -> Result<(), SessionEnd> {
        timeout(self.write_patience, self.stream.flush()).await.map_err(|_| SessionEnd::Gone)??;
        Ok(())
    }

    /// Waits for more octets, for `event` or for `deadline`, whichever comes first. An empty `input` takes no memory
    /// during the wait.
    ///
    /// # Errors
    /// [`SessionEnd::Gone`], [`SessionEnd::ShuttingDown`], [`SessionEnd::Revoked`].
    pub async fn fill(
        &mut self,
        input: &mut BytesMut,
        event: impl Future<Output = ()>,
        deadline: Instant,
    ) -> Result<Woken, SessionEnd> {
        if input.is_empty() {
            *input = BytesMut::new();
        }
        let stream = &mut self.stream;
        let until = &mut self.until;
        let read = async {
            poll_fn(|cx| stream.poll_read_ready(cx)).await?;
            input.reserve(READ_BYTES);
            stream.read_buf(input).await
        };
        tokio::select! {
            biased;
            () = reached(&self.phase, Phase::Draining) => Err(SessionEnd::ShuttingDown),
            () = revoked(until) => Err(SessionEnd::Revoked),
            read = read => if read? == 0 { Err(SessionEnd::Gone) } else { Ok(Woken::Octets) },
            () = event => Ok(Woken::Event),
            () = sleep_until(deadline) => Ok(Woken::Deadline),
        }
    }

    /// Sends the last reply and closes; see [`close`].
    pub async fn close(self, last: Vec<u8>, linger: Duration) {
        if !self.stream.is_gone() {
            close(self.stream, last, linger).await;
        }
    }
}

/// Waits for the revocation of the login, if it has one. It occurs once: the caller must end the session then.
async fn revoked(until: &mut Option<Revocation>) {
    match until {
        Some(revocation) => revocation.comes().await,
        None => pending().await,
    }
}

/// Waits for a phase of the shutdown. A connection is polled when the phase changes.
async fn reached(phase: &CurrentPhase, wanted: Phase) {
    poll_fn(|_| if phase.reached(wanted) { Poll::Ready(()) } else { Poll::Pending }).await;
}
