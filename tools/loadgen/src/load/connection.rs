//! A non-blocking socket, with or without TLS.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustls::ClientConnection;

use super::failure::{Failure, Stage};
use super::output::Output;
use super::plan::{Plan, Server};
use crate::values::Address;

/// Maximum octets encrypted ahead of the socket, so that a large body is not held twice.
const TLS_AHEAD_OCTETS: usize = 64 << 10;

/// One connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    tls: Option<Box<ClientConnection>>,
    is_connected: bool,
    /// Input until the end of an incomplete reply; a longer reply is refused.
    input: Box<[u8; INPUT_OCTETS]>,
    filled: usize,
}

/// Maximum octets of a reply, all lines together, and of one read.
const INPUT_OCTETS: usize = 4096;

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    fn socket(&mut self) -> &mut dyn Socket {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

trait Socket: Read + Write {}
impl<T: Read + Write> Socket for T {}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// Octets, and there may be more.
    Octets,
    /// No more input for now.
    Nothing,
}

impl Connection {
    /// Starts to connect. Call [`Connection::finish_connect`] for the result once the socket is writable.
    pub fn open(server: &Server, plan: &Plan, registry: &Registry, token: Token) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::io(Stage::Connect, &error);
        let mut stream = match &server.address {
            Address::Tcp(address) => Stream::Tcp(TcpStream::connect(*address).map_err(failed)?),
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).map_err(failed)?),
        };
        registry.register(stream.source(), token, Interest::READABLE | Interest::WRITABLE).map_err(failed)?;
        let mut connection =
            Self { stream, tls: None, is_connected: false, input: Box::new([0; INPUT_OCTETS]), filled: 0 };
        if server.tls == crate::values::TlsStart::AtOnce {
            connection.start_tls(server, plan)?;
        }
        Ok(connection)
    }

    /// Finishes the connect and returns true if it succeeded. Called when the socket is first ready.
    pub fn finish_connect(&mut self) -> Result<bool, Failure> {
        if self.is_connected {
            return Ok(true);
        }
        let failed = |error: &io::Error| Failure::io(Stage::Connect, error);
        let (error, peer) = match &self.stream {
            Stream::Tcp(stream) => (stream.take_error(), stream.peer_addr().map(drop)),
            Stream::Unix(stream) => (stream.take_error(), stream.peer_addr().map(drop)),
        };
        if let Some(error) = error.map_err(|error| failed(&error))? {
            return Err(failed(&error));
        }
        match peer {
            Ok(()) => self.is_connected = true,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(failed(&error)),
        }
        if let Stream::Tcp(stream) = &self.stream {
            stream.set_nodelay(true).map_err(|error| failed(&error))?;
        }
        Ok(true)
    }

    /// True once the connection is established.
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Begins a TLS handshake.
    pub fn start_tls(&mut self, server: &Server, plan: &Plan) -> Result<(), Failure> {
        let config = Arc::clone(plan.tls.as_ref().expect("a plan with TLS has its configuration"));
        let name = server.tls_name.clone().expect("a server with TLS has a name");
        let tls = ClientConnection::new(config, name).map_err(|error| Failure::tls(&error))?;
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// True during a TLS handshake.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Reads input. With `to_end`, until there is no more; otherwise a short read counts as the end.
    pub fn read(&mut self, stage: Stage, to_end: bool) -> Result<ReadOutcome, Failure> {
        let room = &mut self.input[self.filled..];
        if room.is_empty() {
            return Err(Failure::new(stage, super::failure::Cause::Garbage, "a reply without an end"));
        }
        let all = room.len();
        let (result, to_end) = match &mut self.tls {
            None => (self.stream.socket().read(room), to_end),
            Some(tls) => (read_tls(tls, self.stream.socket(), room)?, true),
        };
        match result {
            Ok(0) => Err(Failure::io(stage, &io::ErrorKind::UnexpectedEof.into())),
            Ok(octets) => {
                self.filled += octets;
                Ok(if octets == all || to_end { ReadOutcome::Octets } else { ReadOutcome::Nothing })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(ReadOutcome::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(ReadOutcome::Octets),
            Err(error) => Err(Failure::io(stage, &error)),
        }
    }

    /// Input read but not consumed.
    pub fn input(&self) -> &[u8] {
        &self.input[..self.filled]
    }

    /// Forgets the first `octets` of the input.
    pub fn consume(&mut self, octets: usize) {
        self.input.copy_within(octets..self.filled, 0);
        self.filled -= octets;
    }

    /// Writes until all is out or the socket takes no more. Returns the octets of `output` that were written.
    pub fn write(&mut self, output: &mut Output, stage: Stage) -> Result<usize, Failure> {
        let mut written = 0;
        loop {
            let result = match &mut self.tls {
                None if output.is_empty() => return Ok(written),
                None => self.stream.socket().write_vectored(&output.slices()).inspect(|octets| {
                    output.advance(*octets);
                    written += octets;
                }),
                Some(tls) => {
                    if !tls.wants_write() && !tls.is_handshaking() {
                        written += encrypt(tls, output);
                    }
                    if !tls.wants_write() {
                        return Ok(written);
                    }
                    tls.write_tls(&mut self.stream.socket())
                }
            };
            match result {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::io(stage, &error)),
            }
        }
    }
}

/// Decrypts into `room`. The outer error is TLS's; the inner one is the socket's, or that there is no input.
fn read_tls(
    tls: &mut ClientConnection,
    mut socket: &mut dyn Socket,
    room: &mut [u8],
) -> Result<io::Result<usize>, Failure> {
    loop {
        match tls.reader().read(room) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Ok(result),
        }
        match tls.read_tls(&mut socket) {
            // The end of the stream is told by the next `reader().read()`.
            Ok(_) => tls.process_new_packets().map(drop).map_err(|error| Failure::tls(&error))?,
            Err(error) => return Ok(Err(error)),
        }
        if tls.is_handshaking() && tls.wants_write() {
            // The answer has to go out before more can come.
            return Ok(Err(io::ErrorKind::WouldBlock.into()));
        }
    }
}

fn encrypt(tls: &mut ClientConnection, output: &mut Output) -> usize {
    let mut encrypted = 0;
    while encrypted < TLS_AHEAD_OCTETS && !output.is_empty() {
        let slices = output.slices();
        let Some(slice) = slices.iter().find(|slice| !slice.is_empty()) else { break };
        let portion = &slice[..slice.len().min(TLS_AHEAD_OCTETS - encrypted)];
        let octets = tls.writer().write(portion).unwrap_or(0);
        if octets == 0 {
            break;
        }
        output.advance(octets);
        encrypted += octets;
    }
    encrypted
}
