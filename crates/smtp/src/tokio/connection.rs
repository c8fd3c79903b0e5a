//! One session: the state machine, its socket, its clock.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
use ::tokio::sync::watch;
use ::tokio::time::{Instant, sleep_until, timeout, timeout_at};
use bytes::BytesMut;

use super::body::{Body, End};
use super::stream::Stream;
use super::{Handler, Peer, Session};
use crate::limits::Timeouts;
use crate::scan::BodyError;
use crate::server::{Config, Event, Machine, Waiting};

/// What the whole server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Serving.
    Running,
    /// No new connections, no new transactions; open transactions go on.
    Draining,
    /// Nothing more is read.
    Ending,
    /// Whatever is left is dropped.
    Gone,
}

/// Why a session cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Disconnected,
    TimedOut,
    ShuttingDown,
    Io(io::ErrorKind),
}

impl Stop {
    pub fn body_error(self) -> BodyError {
        match self {
            Self::Disconnected => BodyError::Disconnected,
            Self::TimedOut => BodyError::TimedOut,
            Self::ShuttingDown => BodyError::ShuttingDown,
            Self::Io(kind) => BodyError::Io(kind),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

/// A machine with its socket.
#[derive(Debug)]
pub(super) struct Connection {
    machine: Machine,
    stream: Stream,
    /// Has no memory while it is empty and the client is silent, so that idle sessions stay cheap.
    input: BytesMut,
    config: Arc<Config>,
    phase: watch::Receiver<Phase>,
    /// The command line that is being waited for, and when it has to be there.
    line: u64,
    line_deadline: Instant,
    /// The body that is being received, and when all of it has to be there.
    body: u64,
    body_deadline: Instant,
}

/// Room below which a new buffer is taken for the next read.
const READ_BYTES_MIN: usize = 1 << 10;
/// Reply buffers larger than this are given back after they were written.
const OUTPUT_BYTES_KEPT: usize = 256;

impl Connection {
    pub fn new(stream: Stream, config: Arc<Config>, phase: watch::Receiver<Phase>) -> Self {
        let now = Instant::now();
        Self {
            machine: Machine::new(Arc::clone(&config)),
            stream,
            input: BytesMut::new(),
            line: 0,
            line_deadline: now + config.limits.timeouts.command,
            body: 0,
            body_deadline: now,
            config,
            phase,
        }
    }

    fn timeouts(&self) -> &Timeouts {
        &self.config.limits.timeouts
    }

    pub fn step(&mut self) -> Event {
        self.machine.step(&mut self.input)
    }

    /// Writes all replies at once.
    pub async fn flush(&mut self) -> Result<(), Stop> {
        if self.machine.output().is_empty() {
            return Ok(());
        }
        let limit = self.timeouts().write;
        let mut ending = self.phase.clone();
        let out = self.machine.output_mut();
        let written = ::tokio::select! {
            biased;
            written = timeout(limit, self.stream.write_all(out)) => written.map_err(|_| Stop::TimedOut),
            _ = ending.wait_for(|phase| *phase >= Phase::Ending) => Err(Stop::ShuttingDown),
        };
        if !matches!(written, Ok(Ok(()))) {
            // How much of it went out is not known; nothing may be written behind it.
            out.clear();
        }
        written??;
        if out.capacity() > OUTPUT_BYTES_KEPT {
            *out = Vec::new()
        } else {
            out.clear()
        }
        Ok(())
    }

    /// Writes all replies, then waits for more input and reads it.
    pub async fn fill(&mut self) -> Result<(), Stop> {
        self.flush().await?;
        let waiting = self.machine.waiting();
        let deadline = self.deadline(waiting);
        // An idle session ends as soon as the server drains; an open transaction has the server's grace.
        let last_phase = if waiting == Waiting::Idle { Phase::Draining } else { Phase::Ending };
        if self.input.is_empty() {
            self.input = BytesMut::new();
            ::tokio::select! {
                biased;
                _ = self.phase.wait_for(|phase| *phase >= last_phase) => return Err(Stop::ShuttingDown),
                ready = self.stream.readable() => ready?,
                () = sleep_until(deadline) => return Err(Stop::TimedOut),
            }
        }
        if self.input.capacity() - self.input.len() < READ_BYTES_MIN {
            self.input.reserve(self.machine.read_bytes_hint());
        }
        let read = ::tokio::select! {
            biased;
            _ = self.phase.wait_for(|phase| *phase >= last_phase) => return Err(Stop::ShuttingDown),
            read = self.stream.read_buf(&mut self.input) => read?,
            () = sleep_until(deadline) => return Err(Stop::TimedOut),
        };
        if read == 0 { Err(Stop::Disconnected) } else { Ok(()) }
    }

    fn deadline(&mut self, waiting: Waiting) -> Instant {
        let now = Instant::now();
        if waiting == Waiting::Body {
            self.line = u64::MAX;
            if self.body != self.machine.bodies() {
                self.body = self.machine.bodies();
                self.body_deadline = now + self.timeouts().body_total;
            }
            return self.body_deadline.min(now + self.timeouts().body_read);
        }
        if self.line != self.machine.lines() {
            self.line = self.machine.lines();
            self.line_deadline = now + self.timeouts().command;
        }
        self.line_deadline
    }

    /// Serves the session to its end.
    pub async fn serve<H: Handler>(mut self, handler: &H, id: u64, peer: Peer) {
        // Handlers' futures are boxed while they run, so that an idle session does not carry room for them.
        let greeting = Box::pin(handler.connect(&peer)).await;
        self.machine.greet(greeting);
        let protocol = self.config.protocol;
        let mut session = Session { id, peer, helo: None, protocol, extended: false, tls: false, authenticated: false };
        let stopped = loop {
            let went = match self.step() {
                Event::NeedInput => self.fill().await,
                Event::Flush => self.flush().await,
                Event::Mail => {
                    self.describe(&mut session);
                    let mail = self.machine.mail().expect("MAIL was asked about");
                    let verdict = Box::pin(handler.mail(&session, mail)).await;
                    self.machine.answer(verdict);
                    Ok(())
                }
                Event::Rcpt => {
                    let envelope = self.machine.envelope().expect("RCPT has an envelope");
                    let rcpt = self.machine.recipient().expect("RCPT was asked about");
                    let verdict = Box::pin(handler.rcpt(&session, envelope, rcpt)).await;
                    self.machine.answer(verdict);
                    Ok(())
                }
                Event::BodyBegin(envelope) => {
                    let mut body = Body::new(&mut self);
                    let outcome = Box::pin(handler.message(&session, envelope, &mut body)).await;
                    match Box::pin(body.end()).await {
                        End::Complete => {
                            self.machine.finish(&outcome);
                            Ok(())
                        }
                        End::Refused => Ok(()),
                        End::Stopped(stop) => Err(stop),
                    }
                }
                // Nobody reads the rest of a message that was aborted.
                Event::Body(_) | Event::BodyAborted(_) => Ok(()),
                Event::Close => break None,
                event @ (Event::BodyEnd | Event::StartTls | Event::Auth(_)) => {
                    unreachable!("{event:?}: not announced, or within a body")
                }
            };
            if let Err(stop) = went {
                break Some(stop);
            }
        };
        match stopped {
            None => {}
            Some(Stop::TimedOut) => self.machine.time_out(),
            Some(Stop::ShuttingDown) => self.machine.shut_down(),
            Some(Stop::Disconnected | Stop::Io(_)) => return,
        }
        let linger = self.timeouts().linger;
        let polite = self.machine.said_goodbye();
        Box::pin(close(self.stream, std::mem::take(self.machine.output_mut()), linger, !polite)).await;
    }

    fn describe(&self, session: &mut Session) {
        if session.helo.as_deref() != self.machine.helo() {
            session.helo = self.machine.helo().map(String::from);
        }
        session.extended = self.machine.is_extended();
        session.tls = self.machine.is_tls();
        session.authenticated = self.machine.is_authenticated();
    }
}

/// Writes the last replies and closes. With `drain` it keeps reading until the client has closed too, for at most
/// `linger`: closing with unread input would reset the connection, and the client might never see why.
pub(super) async fn close(mut stream: Stream, last: Vec<u8>, linger: Duration, drain: bool) {
    let deadline = Instant::now() + linger;
    let Ok(Ok(())) = timeout_at(deadline, stream.write_all(&last)).await else { return };
    if !drain || !matches!(timeout_at(deadline, stream.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    let mut scratch = Vec::with_capacity(READ_BYTES_MIN);
    while let Ok(Ok(1..)) = timeout_at(deadline, stream.read_buf(&mut scratch)).await {
        scratch.clear();
    }
}
