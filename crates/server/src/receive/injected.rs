//! A message that comes without a session of SMTP: asked about and kept as any other.

use std::collections::VecDeque;
use std::io::{BufReader, Cursor};
use std::time::Duration;

use bytes::Bytes;
use posthaste_inject::InjectAnswer;
use posthaste_intake::Incoming;
use posthaste_pickup::Reading;
use posthaste_smtp::driver::{Handler, Peer};
use posthaste_smtp::{BodyError, Envelope, ForwardPath, MailFrom, MessageOutcome, Protocol, RcptTo};
use tokio::time::timeout;

use super::Receiver;
use crate::logins::Session;
use crate::transaction::Transaction;

impl Receiver {
    /// Receives one message for all of its recipients, in one batch, and notes in `answer` who gets it. Those that are counted as successes have it durably.
    pub async fn inject(
        &self,
        (id, peer): (u64, Peer),
        mail: MailFrom,
        recipients: Vec<ForwardPath>,
        mut body: InjectedBody,
        answer: &mut InjectAnswer,
    ) {
        let mut session = session(id, peer);
        let mut transaction = Transaction::default();
        let mut envelope = Envelope { mail, recipients: Vec::with_capacity(recipients.len()) };
        if let Err(reply) = Handler::mail(self, &mut session, &mut transaction, &envelope.mail).await {
            recipients.iter().for_each(|path| answer.failed(path, &reply));
            return;
        }
        for path in recipients {
            let rcpt = RcptTo::new(path);
            match self.rcpt(&mut session, &mut transaction, &envelope, &rcpt).await {
                Ok(()) => envelope.recipients.push(rcpt),
                Err(reply) => answer.failed(&rcpt.forward_path, &reply),
            }
        }
        if envelope.recipients.is_empty() {
            return;
        }
        let asked = envelope.recipients.clone();
        match self.take_message(&session, transaction, envelope, &mut body).await {
            MessageOutcome::All(reply) if reply.is_positive() => answer.accepted(asked.len()),
            MessageOutcome::All(reply) => asked.iter().for_each(|rcpt| answer.failed(&rcpt.forward_path, &reply)),
            MessageOutcome::Each(replies) => {
                for (rcpt, reply) in asked.iter().zip(&replies) {
                    if reply.is_positive() { answer.accepted(1) } else { answer.failed(&rcpt.forward_path, reply) }
                }
            }
        }
    }
}

fn session(id: u64, peer: Peer) -> Session {
    Session {
        id,
        // Of none of the listeners of mail: the peer decides what applies.
        listener: usize::MAX,
        peer,
        helo: None,
        protocol: Protocol::Smtp,
        extended: true,
        tls: None,
        identity: None,
        state: None,
    }
}

/// A message in memory.
pub(crate) struct InjectedBody {
    /// Pieces of the header.
    header: VecDeque<Bytes>,
    text: Reading<BufReader<Cursor<Vec<u8>>>>,
}

impl InjectedBody {
    /// Octets of text that are read at a time. Line ends make at most twice as much of it.
    pub const READ_BYTES: usize = 128 << 10;

    pub fn new(header: Vec<u8>, text: Reading<BufReader<Cursor<Vec<u8>>>>) -> Self {
        let mut rest = Bytes::from(header);
        let mut header = VecDeque::new();
        while !rest.is_empty() {
            header.push_back(rest.split_to(rest.len().min(Self::PIECE_BYTES_MAX)));
        }
        Self { header, text }
    }
}

impl Incoming for InjectedBody {
    type Error = BodyError;

    const PIECE_BYTES_MAX: usize = 2 * Self::READ_BYTES;

    async fn readable(&mut self) -> bool {
        true
    }

    async fn piece(&mut self) -> Option<Result<Bytes, BodyError>> {
        if let Some(piece) = self.header.pop_front() {
            return Some(Ok(piece));
        }
        // It is in memory, and reading it cannot fail.
        let read = self.text.piece().map_err(|_| BodyError::Disconnected);
        read.map(|piece| piece.map(Bytes::from)).transpose()
    }

    async fn within<F: Future<Output: Send> + Send>(&mut self, patience: Duration, work: F) -> Option<F::Output> {
        timeout(patience, work).await.ok()
    }
}
