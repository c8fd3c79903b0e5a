//! A client on tokio: connect, send messages, quit.

use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use posthaste_net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream};
use tokio::time::timeout;

use crate::client::{ClientError, Config, Event, Extensions, Machine, MessageBody, Outcome, Output, Step};
use crate::command::{MailFrom, RcptTo};
use crate::reply::Reply;
use crate::sasl::Credentials;

/// Timeouts of a client.
#[derive(Debug, Clone)]
pub struct ClientTimeouts {
    /// Time for the connection. Default 30 s.
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

/// Errors that prevent or end a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The connection could not be made, or was lost.
    #[error("{step}: {}", what_happened(.error))]
    Io {
        /// The step in progress.
        step: Step,
        /// The system's error.
        error: io::Error,
    },
    /// A time of [`ClientTimeouts`] ran out.
    #[error("{0}: timed out")]
    TimedOut(Step),
    /// The server refuses us, or does not speak SMTP; or [`Config::helo_name`] is invalid.
    #[error(transparent)]
    Protocol(#[from] ClientError),
    /// STARTTLS was required and is not offered; nothing was sent in the clear.
    #[error("the server does not offer STARTTLS")]
    NoStartTls,
    /// Credentials were given for a connection without TLS; see [`ClientBuilder::allow_plaintext_auth`].
    #[error("no password is sent without TLS")]
    PlaintextAuth,
    /// Credentials were given, but the server offers no mechanism of [`MECHANISMS`](crate::sasl::MECHANISMS).
    #[error("the server offers no AUTH mechanism that we know")]
    NoMechanism,
}

/// The reason why a message was not even begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The session is over: connect again.
    #[error("the session is over")]
    Closed,
    /// The message has no recipients.
    #[error("no recipients")]
    NoRecipients,
}

fn what_happened(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".into(),
        _ => error.to_string(),
    }
}

/// Encryption of a session.
#[derive(Debug, Clone)]
enum Encryption {
    Never,
    #[cfg(feature = "tls")]
    StartTls(Tls),
    #[cfg(feature = "tls")]
    Implicit(Tls),
}

#[cfg(feature = "tls")]
#[derive(Debug, Clone)]
struct Tls {
    config: std::sync::Arc<rustls::ClientConfig>,
    server_name: rustls::pki_types::ServerName<'static>,
}

/// Settings of a future session: [`Client::builder`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    config: Config,
    timeouts: ClientTimeouts,
    encryption: Encryption,
    credentials: Option<Credentials>,
    plaintext_auth: bool,
}

impl ClientBuilder {
    /// Protocol, transfer of bodies and name for EHLO. Default: [`Config::new`] with the builder's name.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Timeouts. Default: [`ClientTimeouts::default`].
    pub fn timeouts(mut self, timeouts: ClientTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Encrypts the session by STARTTLS (RFC 3207), as usual on ports 25 and 587. The server's certificate must have
    /// `server_name`. A server without STARTTLS is left: [`ConnectError::NoStartTls`]. See
    /// [`tls::client_config`](crate::tls::client_config).
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn starttls(
        mut self,
        config: std::sync::Arc<rustls::ClientConfig>,
        server_name: rustls::pki_types::ServerName<'static>,
    ) -> Self {
        self.encryption = Encryption::StartTls(Tls { config, server_name });
        self
    }

    /// Encrypts the session from the first octet on (RFC 8314), as usual on port 465.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn implicit_tls(
        mut self,
        config: std::sync::Arc<rustls::ClientConfig>,
        server_name: rustls::pki_types::ServerName<'static>,
    ) -> Self {
        self.encryption = Encryption::Implicit(Tls { config, server_name });
        self
    }

    /// Authenticates by the first offered of SCRAM-SHA-256 (feature `scram`), PLAIN and LOGIN.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Allows a password without TLS, readable by everybody on the path. Default: no.
    pub fn allow_plaintext_auth(mut self, allow: bool) -> Self {
        self.plaintext_auth = allow;
        self
    }

    /// Connects over TCP and does all steps before the first message.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(self, address: impl ToSocketAddrs) -> Result<Client, ConnectError> {
        let stream = connecting(self.timeouts.connect, TcpStream::connect(address)).await?;
        stream.set_nodelay(true).map_err(lost(Step::Connect))?;
        self.open(Stream::Tcp(stream)).await
    }

    /// Connects over a UNIX socket and does all steps before the first message.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect_unix(self, path: impl AsRef<Path>) -> Result<Client, ConnectError> {
        let stream = connecting(self.timeouts.connect, UnixStream::connect(path)).await?;
        self.open(Stream::Unix(stream)).await
    }

    async fn open(self, stream: Stream) -> Result<Client, ConnectError> {
        let machine = Machine::new(self.config)?;
        let mut client = Client {
            machine,
            stream,
            input: BytesMut::new(),
            timeouts: self.timeouts,
            broken: None,
            is_sending: false,
        };
        match &self.encryption {
            Encryption::Never => client.until_ready().await?,
            #[cfg(feature = "tls")]
            Encryption::Implicit(tls) => {
                client.encrypt(tls).await?;
                client.until_ready().await?;
            }
            #[cfg(feature = "tls")]
            Encryption::StartTls(tls) => {
                client.until_ready().await?;
                if !client.extensions().starttls {
                    return Err(ConnectError::NoStartTls);
                }
                client.machine.start_tls();
                client.until_ready().await?;
                client.encrypt(tls).await?;
                client.machine.tls_started();
                client.until_ready().await?;
            }
        }
        if let Some(credentials) = &self.credentials {
            let encrypted = !matches!(self.encryption, Encryption::Never);
            if !encrypted && !self.plaintext_auth {
                return Err(ConnectError::PlaintextAuth);
            }
            if !client.machine.authenticate(credentials) {
                return Err(ConnectError::NoMechanism);
            }
            client.until_ready().await?;
        }
        Ok(client)
    }
}

async fn connecting<S>(patience: Duration, work: impl Future<Output = io::Result<S>>) -> Result<S, ConnectError> {
    let connecting = timeout(patience, work).await;
    connecting.map_err(|_| ConnectError::TimedOut(Step::Connect))?.map_err(lost(Step::Connect))
}

fn lost(step: Step) -> impl FnOnce(io::Error) -> ConnectError {
    move |error| ConnectError::Io { step, error }
}

/// An open session.
#[derive(Debug)]
pub struct Client {
    machine: Machine,
    stream: Stream,
    input: BytesMut,
    timeouts: ClientTimeouts,
    /// The write error, if one occurred. Replies sent before are still read; then the session is over.
    broken: Option<ConnectError>,
    /// Set from the first command of a message to its outcome. Stays if the future of [`Client::send`] is dropped: then
    /// the state of the dialogue is unknown.
    is_sending: bool,
}

impl Client {
    /// A session that sends EHLO with `helo_name`; with TLS and AUTH if the builder says so.
    pub fn builder(helo_name: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            config: Config::new(helo_name),
            timeouts: ClientTimeouts::default(),
            encryption: Encryption::Never,
            credentials: None,
            plaintext_auth: false,
        }
    }

    /// Connects over TCP and says hello, without TLS and AUTH.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        address: impl ToSocketAddrs,
        config: Config,
        timeouts: ClientTimeouts,
    ) -> Result<Self, ConnectError> {
        Self::builder("").config(config).timeouts(timeouts).connect(address).await
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
        Self::builder("").config(config).timeouts(timeouts).connect_unix(path).await
    }

    /// Proceeds until a message can be sent, or TLS can begin.
    async fn until_ready(&mut self) -> Result<(), ConnectError> {
        loop {
            match self.machine.step(&mut self.input)? {
                Event::NeedInput => self.exchange().await?,
                Event::Ready | Event::TlsReady => return Ok(()),
                // A server that shuts down, as it says between two commands.
                Event::Closed => return Err(lost(self.machine.awaits())(io::ErrorKind::ConnectionAborted.into())),
                event => unreachable!("{event:?} before the session is open"),
            }
        }
    }

    /// Does the client's TLS handshake. The machine has dropped all cleartext input.
    #[cfg(feature = "tls")]
    async fn encrypt(&mut self, tls: &Tls) -> Result<(), ConnectError> {
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::clone(&tls.config));
        let stream = std::mem::replace(&mut self.stream, Stream::Gone);
        let handshake = timeout(self.timeouts.connect, connector.connect(tls.server_name.clone(), stream)).await;
        let stream = handshake.map_err(|_| ConnectError::TimedOut(Step::Handshake))?.map_err(lost(Step::Handshake))?;
        self.stream = Stream::Tls(Box::new(stream.into()));
        Ok(())
    }

    /// The extensions that the server offers.
    pub fn extensions(&self) -> &Extensions {
        self.machine.extensions()
    }

    /// True if another message can be sent. After the server's maximum (MAILMAX, RFC 9422) it is false: connect again.
    pub fn is_open(&self) -> bool {
        !self.is_over() && self.machine.messages_left() > 0
    }

    fn is_over(&self) -> bool {
        self.machine.is_closed() || self.is_sending
    }

    /// Sends one message, given with CRLF line ends and without dot-stuffing, in any number of pieces. If the
    /// connection is lost, undecided recipients get 451 4.4.2 with the place. Then the server may have the message only
    /// if [`RecipientOutcome::is_unknown`](crate::client::RecipientOutcome::is_unknown). Dropping the future early, as
    /// a timeout does, ends the session; the server may have the message. One poll sends at most one command, or one
    /// group of commands (RFC 2920), or the body.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was sent.
    pub async fn send(
        &mut self,
        mail: MailFrom,
        recipients: Vec<RcptTo>,
        body: Vec<Bytes>,
    ) -> Result<Outcome, SendError> {
        if recipients.is_empty() {
            return Err(SendError::NoRecipients);
        }
        if !self.is_open() {
            return Err(SendError::Closed);
        }
        self.is_sending = true;
        let outcome = self.transact(mail, recipients, body).await;
        self.is_sending = false;
        Ok(outcome)
    }

    async fn transact(&mut self, mail: MailFrom, recipients: Vec<RcptTo>, body: Vec<Bytes>) -> Outcome {
        self.machine.send(mail, recipients, MessageBody::Whole(body));
        loop {
            let error = match self.machine.step(&mut self.input) {
                Ok(Event::Sent(outcome)) => {
                    if let Some(error) = self.broken.take() {
                        // Further writes would be taken for more of the body.
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
            return self.machine.abort(&connection_lost(&error)).pop().expect("a transaction is open");
        }
    }

    /// Sends QUIT, waits for the reply and closes.
    ///
    /// # Errors
    /// See [`ConnectError`]; no message is lost by it.
    pub async fn quit(mut self) -> Result<(), ConnectError> {
        if self.is_over() {
            return Ok(());
        }
        self.machine.quit();
        while !matches!(self.machine.step(&mut self.input)?, Event::Closed) {
            self.exchange().await?;
        }
        // The dialogue is over; the result of the shutdown does not matter.
        let _ = timeout(self.timeouts.write, self.stream.shutdown()).await;
        Ok(())
    }

    /// Writes all output and reads at least one octet.
    async fn exchange(&mut self) -> Result<(), ConnectError> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let step = self.machine.awaits();
        next_poll().await;
        let written = write_all(&mut self.stream, self.machine.output(), self.timeouts.write, step).await;
        // A server that closes within a body, or takes no more of it, may have said why: its output is read before
        // giving up. A server that takes nothing gets no second wait.
        let patience =
            if matches!(written, Err(ConnectError::TimedOut(_))) { Duration::ZERO } else { self.timeouts.reply };
        self.input.reserve(1 << 10);
        let reading = timeout(patience, self.stream.read_buf(&mut self.input)).await;
        match (reading, written) {
            (Ok(Ok(1..)), written) => {
                self.broken = written.err();
                Ok(())
            }
            (_, Err(error)) => Err(error),
            (Err(_), Ok(())) => Err(ConnectError::TimedOut(step)),
            (Ok(Err(error)), Ok(())) => Err(lost(step)(error)),
            (Ok(Ok(0)), Ok(())) => Err(lost(step)(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Ends this poll, so that no poll sends two commands, even if the server answers at once. The caller can then end the
/// session before each command.
async fn next_poll() {
    let mut is_next = false;
    let turn = |cx: &mut Context<'_>| {
        if std::mem::replace(&mut is_next, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    };
    poll_fn(turn).await;
}

fn connection_lost(error: &ConnectError) -> Reply {
    Reply::new(451, "4.4.2", format!("Connection lost {error}"))
}

/// Writes all pieces without joining them; waits at most `patience` each time for the server to take some.
async fn write_all(
    stream: &mut Stream,
    output: &mut Output,
    patience: Duration,
    step: Step,
) -> Result<(), ConnectError> {
    while output.has_remaining() {
        let writing = timeout(patience, stream.write_buf(output)).await;
        if writing.map_err(|_| ConnectError::TimedOut(step))?.map_err(lost(step))? == 0 {
            return Err(lost(step)(io::ErrorKind::WriteZero.into()));
        }
    }
    // TLS keeps the octets that the socket did not take.
    timeout(patience, stream.flush()).await.map_err(|_| ConnectError::TimedOut(step))?.map_err(lost(step))
}
