//! A client on tokio: connect, send messages, quit.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream};
use tokio::time::timeout;

use super::stream::Stream;
use crate::client::{ClientError, Config, Event, Extensions, Machine, MessageBody, Outcome};
use crate::command::{MailFrom, RcptTo};
use crate::reply::Reply;

/// How long a client waits.
#[derive(Debug, Clone)]
pub struct ClientTimeouts {
    /// For the connection to be made. Default 30 s.
    pub connect: Duration,
    /// For each reply. Default 10 minutes, the longest that RFC 5321 section 4.5.3.2 asks for (the end of data).
    pub reply: Duration,
    /// For the server to take each block that is written (RFC 5321 section 4.5.3.2.5). Default 3 minutes.
    pub write: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(30), reply: Duration::from_secs(600), write: Duration::from_secs(180) }
    }
}

/// Why there is no session. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The connection could not be made, or was lost.
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    /// A time of [`ClientTimeouts`] ran out.
    #[error("timed out")]
    TimedOut,
    /// The server does not want us, or does not speak SMTP.
    #[error(transparent)]
    Protocol(#[from] ClientError),
}

/// An open session.
#[derive(Debug)]
pub struct Client {
    machine: Machine,
    stream: Stream,
    input: BytesMut,
    timeouts: ClientTimeouts,
    /// Why not all was written. What the server has said by then is still heard; then the session is over.
    broken: Option<ConnectError>,
}

impl Client {
    /// Connects over TCP and says hello.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        address: impl ToSocketAddrs,
        config: Config,
        timeouts: ClientTimeouts,
    ) -> Result<Self, ConnectError> {
        let connecting = timeout(timeouts.connect, TcpStream::connect(address)).await;
        let stream = connecting.map_err(|_| ConnectError::TimedOut)??;
        stream.set_nodelay(true)?;
        Self::open(Stream::Tcp(stream), config, timeouts).await
    }

    /// Connects over a UNIX socket and says hello.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect_unix(
        path: impl AsRef<Path>,
        config: Config,
        timeouts: ClientTimeouts,
    ) -> Result<Self, ConnectError> {
        let connecting = timeout(timeouts.connect, UnixStream::connect(path)).await;
        let stream = connecting.map_err(|_| ConnectError::TimedOut)??;
        Self::open(Stream::Unix(stream), config, timeouts).await
    }

    async fn open(stream: Stream, config: Config, timeouts: ClientTimeouts) -> Result<Self, ConnectError> {
        let machine = Machine::new(config);
        let mut client = Self { machine, stream, input: BytesMut::new(), timeouts, broken: None };
        loop {
            match client.machine.step(&mut client.input)? {
                Event::NeedInput => client.exchange().await?,
                Event::Ready => return Ok(client),
                event => unreachable!("{event:?} before the session is open"),
            }
        }
    }

    /// What the server offered.
    pub fn extensions(&self) -> &Extensions {
        self.machine.extensions()
    }

    /// Whether another message can be sent.
    pub fn is_open(&self) -> bool {
        !self.machine.is_closed()
    }

    /// Sends one message, given with CRLF line ends and without dot-stuffing, in any number of pieces. If the
    /// connection is lost on the way, recipients without a verdict get 451 4.4.2: the server may or may not have it.
    ///
    /// # Panics
    /// Without recipients, or when [`Client::is_open`] is false.
    pub async fn send(&mut self, mail: MailFrom, recipients: Vec<RcptTo>, body: Vec<Bytes>) -> Outcome {
        self.machine.send(mail, recipients, MessageBody::Whole(body));
        loop {
            let error = match self.machine.step(&mut self.input) {
                Ok(Event::Sent(outcome)) => {
                    if let Some(error) = self.broken.take() {
                        // Whatever is written next would be taken for more of the body.
                        self.machine.abort(&connection_lost(&error));
                    }
                    return outcome;
                }
                Ok(Event::NeedInput) => match self.exchange().await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Ok(event) => unreachable!("{event:?} within a transaction"),
                Err(error) => error.into(),
            };
            return self.machine.abort(&connection_lost(&error)).expect("a transaction is open");
        }
    }

    /// Says QUIT, waits for the reply and closes.
    ///
    /// # Errors
    /// See [`ConnectError`]; nothing is lost by it.
    pub async fn quit(mut self) -> Result<(), ConnectError> {
        if self.machine.is_closed() {
            return Ok(());
        }
        self.machine.quit();
        while !matches!(self.machine.step(&mut self.input)?, Event::Closed) {
            self.exchange().await?;
        }
        Ok(())
    }

    /// Writes what there is and reads at least one octet.
    async fn exchange(&mut self) -> Result<(), ConnectError> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let out = self.machine.take_output();
        let written = write_all(&mut self.stream, out.into(), self.timeouts.write).await;
        // A server that closes in the middle of a body, or takes no more of it, may have said why: what it wrote is read before
        // giving up. Who takes nothing is not waited for once more.
        let patience =
            if matches!(written, Err(ConnectError::TimedOut)) { Duration::ZERO } else { self.timeouts.reply };
        self.input.reserve(1 << 10);
        let reading = timeout(patience, self.stream.read_buf(&mut self.input)).await;
        match (reading, written) {
            (Ok(Ok(1..)), written) => {
                self.broken = written.err();
                Ok(())
            }
            (_, Err(error)) => Err(error),
            (Err(_), Ok(())) => Err(ConnectError::TimedOut),
            (Ok(Err(error)), Ok(())) => Err(error.into()),
            (Ok(Ok(0)), Ok(())) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

fn connection_lost(error: &ConnectError) -> Reply {
    Reply::new(451, "4.4.2", format!("Connection lost: {error}"))
}

/// Writes all pieces without joining them, and waits for `patience` at most for the server to take some of them.
async fn write_all(stream: &mut Stream, mut pieces: VecDeque<Bytes>, patience: Duration) -> Result<(), ConnectError> {
    const SLICES: usize = 64;
    pieces.retain(|piece| !piece.is_empty());
    while !pieces.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES];
        for (slice, piece) in slices.iter_mut().zip(&pieces) {
            *slice = IoSlice::new(piece);
        }
        let count = pieces.len().min(SLICES);
        let writing = timeout(patience, stream.write_vectored(&slices[..count])).await;
        let mut written = writing.map_err(|_| ConnectError::TimedOut)??;
        if written == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        while let Some(first) = pieces.front_mut().filter(|_| written > 0) {
            let taken = written.min(first.len());
            first.advance(taken);
            written -= taken;
            if first.is_empty() {
                pieces.pop_front();
            }
        }
    }
    Ok(())
}
