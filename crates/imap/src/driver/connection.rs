//! One session's stream with the timeouts of IMAP.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use posthaste_net::{Certificate, CurrentPhase, SessionEnd, SessionStream, Stream, Woken, after};
use tokio::time::{Instant, timeout};

use super::ImapTimeouts;
use super::deflate::{Deflated, NotDeflated};
use crate::session::ImapMachine;

pub(super) struct Line {
    pub machine: ImapMachine,
    pub stream: SessionStream,
    pub input: BytesMut,
    /// State of COMPRESS, once it is active.
    deflated: Option<Box<Deflated>>,
    pub timeouts: ImapTimeouts,
    /// Deadline for the login.
    login_deadline: Instant,
    /// The awaited command and its deadline, which is ignored before login.
    command: u64,
    command_deadline: Instant,
    still_here: Instant,
    look: Instant,
}

/// Larger output buffers are freed while waiting for the client.
const OUTPUT_BYTES_KEPT: usize = 1 << 10;

/// Messages up to this many octets are copied, to be written together with others. The machine asks for a flush when
/// its output is long.
const PUT_BYTES_MAX: usize = 16 << 10;

/// Octets of a message compressed at a time.
const PACKED_AT_ONCE: usize = 16 << 10;

/// A client that does not take a write within this time is slow: nothing is prefetched for it.
pub(super) const STALL: Duration = Duration::from_secs(1);

impl Line {
    pub fn new(machine: ImapMachine, stream: Stream, phase: Arc<CurrentPhase>, timeouts: ImapTimeouts) -> Self {
        let now = Instant::now();
        Self {
            machine,
            stream: SessionStream::new(stream, phase, timeouts.write),
            input: BytesMut::new(),
            deflated: None,
            timeouts,
            login_deadline: after(now, timeouts.login),
            command: 0,
            command_deadline: now,
            still_here: now,
            look: now,
        }
    }

    /// Does the TLS handshake, within the time limit for a login.
    pub async fn start_tls(&mut self, certificate: &Certificate) -> Result<(), SessionEnd> {
        let facts = self.stream.start_tls(certificate, self.login_deadline).await?;
        self.machine.bind_channel(facts.exporter);
        Ok(())
    }

    /// Compresses both directions from now on. All output must have been written.
    pub fn compress(&mut self) {
        self.deflated = Some(Box::new(Deflated::new()));
    }

    /// Adds octets of a message to the output: several short messages are written together.
    pub async fn put(&mut self, octets: &[u8]) -> Result<(), SessionEnd> {
        if octets.len() < PUT_BYTES_MAX {
            self.machine.output_mut().extend_from_slice(octets);
            return Ok(());
        }
        self.flush().await?;
        self.write(octets).await
    }

    /// Writes octets of a message.
    pub async fn write(&mut self, octets: &[u8]) -> Result<(), SessionEnd> {
        match &mut self.deflated {
            None => self.stream.write(octets).await,
            Some(deflated) => {
                let mut packed = Vec::new();
                for some in octets.chunks(PACKED_AT_ONCE) {
                    deflated.pack(some, &mut packed);
                    let mut end = Vec::new();
                    let write = self.stream.write(&packed);
                    unless_stalled(write, || deflated.break_off(&mut end)).await?;
                    packed.clear();
                    packed.append(&mut end);
                }
                self.stream.write(&packed).await
            }
        }
    }

    /// Writes and flushes the machine's output.
    pub async fn flush(&mut self) -> Result<(), SessionEnd> {
        let out = std::mem::take(self.machine.output_mut());
        self.write(&out).await?;
        if let Some(deflated) = &mut self.deflated {
            let mut packed = Vec::new();
            deflated.flush(&mut packed);
            unless_stalled(self.stream.write(&packed), || deflated.rest()).await?;
        }
        if self.machine.output().is_empty() {
            *self.machine.output_mut() = out;
            self.machine.output_mut().clear();
        }
        self.stream.flush().await
    }

    /// Writes the output, then reads more. In IDLE it also returns when `changed` does.
    pub async fn fill(&mut self, changed: impl Future<Output = ()>) -> Result<(), SessionEnd> {
        self.flush().await?;
        let out = self.machine.output_mut();
        if out.capacity() > OUTPUT_BYTES_KEPT {
            *out = Vec::new();
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
            // A message has a time limit as a whole, and one for each pause in it.
            (true, false) if self.machine.is_appending() => self.command_deadline.min(after(now, self.timeouts.write)),
            (true, false) => self.command_deadline,
        };
        if self.unpack()? {
            return Ok(());
        }
        let changed = async { if idling { changed.await } else { pending().await } };
        let input = match &mut self.deflated {
            None => &mut self.input,
            Some(deflated) => {
                if self.input.is_empty() {
                    self.input = BytesMut::new();
                }
                deflated.rest();
                &mut deflated.packed
            }
        };
        match self.stream.fill(input, changed, deadline).await? {
            Woken::Octets => return self.unpack().map(drop),
            Woken::Event => {}
            Woken::Deadline if !idling => return Err(SessionEnd::TimedOut),
            Woken::Deadline => {
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

    /// Decompresses some input. False if there is none.
    fn unpack(&mut self) -> Result<bool, SessionEnd> {
        let Some(deflated) = self.deflated.as_mut().filter(|deflated| deflated.has_input()) else { return Ok(false) };
        deflated.unpack(&mut self.input).map_err(|NotDeflated| SessionEnd::Gone)?;
        Ok(true)
    }

    /// Flushes the output and closes the connection.
    pub async fn close(mut self) {
        let mut last = std::mem::take(self.machine.output_mut());
        if let Some(deflated) = &mut self.deflated {
            let mut packed = Vec::new();
            deflated.pack(&last, &mut packed);
            deflated.flush(&mut packed);
            last = packed;
        }
        self.stream.close(last, self.timeouts.linger).await;
    }
}

/// Waits for a write; calls `stalled` if it takes longer than [`STALL`].
pub(super) async fn unless_stalled<T>(write: impl Future<Output = T>, stalled: impl FnOnce()) -> T {
    let mut write = pin!(write);
    match timeout(STALL, &mut write).await {
        Ok(written) => written,
        Err(_) => {
            stalled();
            write.await
        }
    }
}
