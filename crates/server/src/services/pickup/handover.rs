//! Hand-over of a message from its file to the receiver: SMTP over a pair of sockets, so that it is received like any other.

use bytes::BytesMut;
use posthaste_pickup::{PickupMessage, PickupReadError};
use posthaste_smtp::client::{self, ClientError, Event, Machine, MessageBody, Outcome, Stage};
use posthaste_smtp::driver::serve_local;
use posthaste_smtp::server::Config as SmtpConfig;
use posthaste_smtp::{RcptTo, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::{JoinError, spawn_blocking};

use crate::receive::handler::Receiver;

/// The outcomes of the recipients of one message.
#[derive(Debug, Default)]
pub(super) struct Fates {
    /// Number of recipients that will get it.
    pub accepted: usize,
    /// Recipients that will never get it, and why.
    pub refused: Refused,
    /// Why the receiver was not even asked: what its reply would have been.
    pub not_asked: Option<Reply>,
    /// Recipients that may get it at another attempt, and why not now.
    pub later: Vec<(RcptTo, Reply)>,
    /// Recipients that may get it in another transaction.
    pub at_once: Vec<RcptTo>,
}

/// Recipients that will never get it, and why.
pub(super) type Refused = Vec<(RcptTo, Reply)>;

/// The reason why no recipient got the message.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandoverError {
    /// The file cannot be read, or is not what it should be.
    #[error(transparent)]
    Read(#[from] PickupReadError),
    /// The receiver has ended the session: it shuts down.
    #[error("the session has ended: {0}")]
    Session(#[from] std::io::Error),
    /// An error of the session.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl From<JoinError> for HandoverError {
    fn from(error: JoinError) -> Self {
        Self::Session(error.into())
    }
}

/// Passes the message to the receiver for some of its recipients. Dropping the future ends the session: the message
/// is received or not, as when a client is cut off.
///
/// # Errors
/// See [`HandoverError`]; nothing was accepted, unless the session ended after the last octet.
pub(super) async fn hand_over(
    receiver: &Receiver,
    config: SmtpConfig,
    session: u64,
    message: PickupMessage,
    recipients: Vec<RcptTo>,
) -> Result<Fates, HandoverError> {
    let (ours, theirs) = UnixStream::pair()?;
    let helo = config.host_name.clone();
    let uid = message.uid();
    let asking = Talk::begin(ours, helo)?.send(message, recipients);
    let (fates, ()) = tokio::join!(asking, serve_local(receiver, theirs, config, session, uid));
    fates
}

/// The client's side.
struct Talk {
    stream: UnixStream,
    machine: Machine,
    input: BytesMut,
}

impl Talk {
    fn begin(stream: UnixStream, helo: String) -> Result<Self, HandoverError> {
        Ok(Self { stream, machine: Machine::new(client::Config::new(helo))?, input: BytesMut::new() })
    }

    async fn send(mut self, message: PickupMessage, recipients: Vec<RcptTo>) -> Result<Fates, HandoverError> {
        let mut message = Some(message);
        loop {
            match self.machine.step(&mut self.input)? {
                Event::NeedInput => self.exchange().await?,
                Event::Ready => {
                    let Some(message) = &message else { return Err(ended()) };
                    let mut mail = message.head().mail.clone();
                    mail.size = Some(message.bytes());
                    self.machine.send(mail, recipients.clone(), MessageBody::Streamed);
                }
                Event::SendBody => {
                    let Some(message) = message.take() else { return Err(ended()) };
                    self.send_body(message).await?;
                }
                Event::Sent(outcome) => return Ok(Fates::of(recipients, outcome)),
                Event::TlsReady | Event::Closed => return Err(ended()),
            }
        }
    }

    /// The end of the message is sent only if all of it was there.
    async fn send_body(&mut self, mut message: PickupMessage) -> Result<(), HandoverError> {
        loop {
            let (back, piece) = spawn_blocking(move || {
                let piece = message.read();
                (message, piece)
            })
            .await?;
            message = back;
            match piece? {
                Some(piece) => self.machine.body(piece),
                None => {
                    self.machine.body_end();
                    return Ok(());
                }
            }
            self.write().await?;
        }
    }

    async fn write(&mut self) -> Result<(), HandoverError> {
        for piece in self.machine.take_output() {
            self.stream.write_all(&piece).await?;
        }
        Ok(())
    }

    async fn exchange(&mut self) -> Result<(), HandoverError> {
        self.write().await?;
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(ended()),
            _ => Ok(()),
        }
    }
}

fn ended() -> HandoverError {
    HandoverError::Session(std::io::ErrorKind::ConnectionAborted.into())
}

impl Fates {
    fn of(recipients: Vec<RcptTo>, outcome: Outcome) -> Self {
        let not_asked = outcome.recipients.iter().find(|outcome| outcome.stage == Stage::Local);
        let mut fates = Self { not_asked: not_asked.map(|outcome| outcome.reply.clone().into()), ..Self::default() };
        for (rcpt, outcome) in recipients.into_iter().zip(outcome.recipients) {
            match outcome.stage {
                _ if outcome.is_delivered() => fates.accepted += 1,
                Stage::TooMany => fates.at_once.push(rcpt),
                _ if outcome.reply.is_permanent() && !outcome.lost => fates.refused.push((rcpt, outcome.reply.into())),
                _ => fates.later.push((rcpt, outcome.reply.into())),
            }
        }
        fates
    }
}
