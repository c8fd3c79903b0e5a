//! One socket with its clocks.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use posthaste_net::{Certificate, CurrentPhase, Phase, Stream, after};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::ImapTimeouts;
use crate::session::ImapMachine;

/// Why a session cannot go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// The client is gone, or takes nothing, or what it waits for cannot be sent.
    Gone,
    TimedOut,
    ShuttingDown,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

pub(super) struct Line {
    pub machine: ImapMachine,
    pub stream: Stream,
    pub input: BytesMut,
    pub timeouts: ImapTimeouts,
    phase: Arc<CurrentPhase>,
    /// Before login: when there has to be one.
    login_deadline: Instant,
    /// The command that is being waited for, and when it has to be there. Before login that clock decides nothing.
    command: u64,
    command_deadline: Instant,
    still_here: Instant,
    look: Instant,
}

/// Octets of one read.
const READ_BYTES: usize = 8 << 10;
/// Output buffers larger than this are given back after they were written.
const OUTPUT_BYTES_KEPT: usize = 1 << 10;

impl Line {
    pub fn new(machine: ImapMachine, stream: Stream, phase: Arc<CurrentPhase>, timeouts: ImapTimeouts) -> Self {
        let now = Instant::now();
        Self {
            machine,
            stream,
            input: BytesMut::new(),
            timeouts,
            phase,
            login_deadline: after(now, timeouts.login),
            command: 0,
            command_deadline: now,
            still_here: now,
            look: now,
        }
    }

    pub fn has_ended(&self) -> bool {
        self.phase.reached(Phase::Ending)
    }

    /// Does the handshake within the time for a login.
    pub async fn start_tls(&mut self, certificate: &Certificate) -> Result<(), Stop> {
        let stream = std::mem::replace(&mut self.stream, Stream::Gone);
        let accepted = timeout_at(self.login_deadline, certificate.accept(stream)).await;
        (self.stream, _) = accepted.map_err(|_| Stop::Gone)??;
        Ok(())
    }

    /// Writes the machine's output.
    pub async fn flush(&mut self) -> Result<(), Stop> {
        let out = std::mem::take(self.machine.output_mut());
        self.write(&out).await?;
        // The buffer is used again unless it grew.
        if out.capacity() <= OUTPUT_BYTES_KEPT && self.machine.output().is_empty() {
            *self.machine.output_mut() = out;
            self.machine.output_mut().clear();
        }
        timeout(self.timeouts.write, self.stream.flush()).await.map_err(|_| Stop::Gone)??;
        Ok(())
    }

    /// Writes octets; each time that the client takes some, its time begins anew.
    pub async fn write(&mut self, mut octets: &[u8]) -> Result<(), Stop> {
        while !octets.is_empty() {
            let (stream, phase) = (&mut self.stream, &self.phase);
            let written = tokio::select! {
                biased;
                written = timeout(self.timeouts.write, stream.write(octets)) => written.map_err(|_| Stop::Gone)??,
                () = reached(phase, Phase::Ending) => return Err(Stop::Gone),
            };
            if written == 0 {
                return Err(Stop::Gone);
            }
            octets = &octets[written..];
        }
        Ok(())
    }

    /// Writes the output, then reads more or, in IDLE, hears of changes.
    pub async fn fill(&mut self, changed: impl Future<Output = ()>) -> Result<(), Stop> {
        self.flush().await?;
        if self.input.is_empty() {
            // An idle session has no buffer.
            self.input = BytesMut::new();
        }
        let now = Instant::now();
        let idling = self.machine.is_idling();
        let commands = self.machine.commands();
        if self.command != commands {
            self.command = commands;
            self.command_deadline = after(now, self.timeouts.idle);
            self.still_here = after(now, self.timeouts.still_here);
            self.look = after(now, self.timeouts.idle_look);
        }
        let deadline = match (self.machine.is_logged_in(), idling) {
            (false, _) => self.login_deadline,
            (true, true) => self.still_here.min(self.look),
            (true, false) => self.command_deadline,
        };
        let (stream, input) = (&mut self.stream, &mut self.input);
        let read = async {
            poll_fn(|cx| stream.poll_read_ready(cx)).await?;
            input.reserve(READ_BYTES);
            stream.read_buf(input).await
        };
        tokio::select! {
            biased;
            () = reached(&self.phase, Phase::Draining) => return Err(Stop::ShuttingDown),
            read = read => return if read? == 0 { Err(Stop::Gone) } else { Ok(()) },
            () = changed, if idling => {}
            () = sleep_until(deadline) => {
                if !idling {
                    return Err(Stop::TimedOut);
                }
                let now = Instant::now();
                if self.still_here <= now {
                    self.machine.still_here();
                    self.still_here = after(now, self.timeouts.still_here);
                }
                if self.look > now {
                    return Ok(());
                }
            }
        }
        self.look = after(Instant::now(), self.timeouts.idle_look);
        self.machine.poke();
        Ok(())
    }

    /// Says the last words and closes.
    pub async fn close(mut self) {
        let last = std::mem::take(self.machine.output_mut());
        if !self.stream.is_gone() {
            posthaste_net::close(self.stream, last, self.timeouts.linger).await;
        }
    }
}

/// Waits for a phase of the shutdown. A connection is polled when the phase changes.
async fn reached(phase: &CurrentPhase, wanted: Phase) {
    poll_fn(|_| if phase.reached(wanted) { Poll::Ready(()) } else { Poll::Pending }).await;
}
