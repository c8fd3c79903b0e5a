//! Passes a message from its file to the receiver: SMTP over a socket pair, so that it is received like any other.

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
    /// Permanently refused recipients, with the reasons.
    pub refused: Refused,
    /// The reply in place of the receiver's, if it was not asked.
    pub not_asked: Option<Reply>,
    /// Recipients to be retried at another attempt, with the reasons.
    pub later: Vec<(RcptTo, Reply)>,
    /// Recipients to be retried in another transaction.
    pub at_once: Vec<RcptTo>,
}

/// Permanently refused recipients, with the reasons.
pub(super) type Refused = Vec<(RcptTo, Reply)>;

/// The reason why no recipient got the message.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandoverError {
    /// The file is unreadable or malformed.
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

/// Passes the message to the receiver for some of its recipients. Dropping the future ends the session: the message is
/// received or not, as after a client's disconnect.
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

    /// Sends the end of the message only if it was complete.
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
