//! Delivers messages to an LMTP server, several over one connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_directory::TransportKind;
use posthaste_smtp::client::{ClientError, Config, RecipientOutcome, Stage};
use posthaste_smtp::driver::{Client, ClientTimeouts, ConnectError};
use posthaste_smtp::{BodyType, ForwardPath, MailFrom, Protocol, RcptTo, ReversePath};
use posthaste_spool::MessageReader;
use tokio::sync::Semaphore;

use crate::blocking::blocking;
use crate::body::failed;
use crate::reason::FailureReason;
use crate::work::{Outcome, Work};

/// One worker's session with a server.
pub(crate) struct Session {
    client: Option<Client>,
    host_name: String,
    patience: Duration,
    /// Memory for bodies, in KiB.
    memory: Arc<Semaphore>,
    memory_kib: u32,
}

impl Session {
    pub fn new(host_name: &str, patience: Duration, memory: Arc<Semaphore>, memory_kib: u32) -> Self {
        Session { client: None, host_name: host_name.to_owned(), patience, memory, memory_kib }
    }

    /// Delivers one message for all its recipients.
    pub async fn deliver(&mut self, work: &Work, reader: MessageReader) -> Vec<Outcome> {
        let all = |outcome: Outcome| vec![outcome; work.targets.len()];
        // A body larger than all memory there is comes alone.
        let kib = u32::try_from(reader.len().div_ceil(1024)).unwrap_or(u32::MAX).clamp(1, self.memory_kib);
        let Ok(_share) = self.memory.clone().acquire_many_owned(kib).await else {
            return all(Outcome::Failed("the server is shutting down".into()));
        };
        let read = move || reader.pieces(u64::MAX).map_err(|error| failed(&reader, error.into(), ""));
        let body = match blocking(read).await {
            Ok(body) => body,
            Err(outcome) => return all(outcome),
        };
        let Ok(reverse_path) = ReversePath::parse(&format!("<{}>", work.deliver.sender)) else {
            return all(Outcome::Refused(format!("`{}` is not a sender", work.deliver.sender).into()));
        };
        let mail = MailFrom {
            body: if work.deliver.is_8bit { BodyType::EightBitMime } else { BodyType::SevenBit },
            smtputf8: work.deliver.smtputf8,
            ..MailFrom::new(reverse_path)
        };
        let recipients = work.targets.iter().map(|part| ForwardPath::parse(&format!("<{}>", part.target.recipient)));
        let Ok(recipients) = recipients.map(|path| path.map(RcptTo::new)).collect::<Result<Vec<_>, _>>() else {
            return all(Outcome::Refused("an address cannot be said in LMTP".into()));
        };
        let is_fresh = !self.is_open();
        let outcomes = self.send(work, mail.clone(), recipients.clone(), body.clone()).await;
        // A server may end a session between two messages, which says nothing of the next one.
        if !is_fresh && outcomes.iter().all(|(outcome, stage)| is_lost_before(outcome, *stage)) {
            let outcomes = self.send(work, mail, recipients, body).await;
            return outcomes.into_iter().map(|(outcome, _)| outcome).collect();
        }
        outcomes.into_iter().map(|(outcome, _)| outcome).collect()
    }

    async fn send(
        &mut self,
        work: &Work,
        mail: MailFrom,
        recipients: Vec<RcptTo>,
        body: Vec<Bytes>,
    ) -> Vec<(Outcome, Stage)> {
        let all = |error: FailureReason| vec![(Outcome::Unavailable(error), Stage::Mail); recipients.len()];
        if !self.is_open() {
            match self.connect(work.transport.kind()).await {
                Ok(client) => self.client = Some(client),
                Err(error) => return all(not_connected(&error)),
            }
        }
        let Some(client) = &mut self.client else { return all("no session".into()) };
        let outcome = match client.send(mail, recipients.clone(), body).await {
            Ok(outcome) => outcome,
            Err(error) => return all(error.to_string().into()),
        };
        let is_open = client.is_open();
        let of_recipient = |recipient: RecipientOutcome| {
            let said = FailureReason::at(recipient.stage.name(), &recipient.reply);
            let outcome = if recipient.is_delivered() {
                Outcome::Delivered
            } else if recipient.reply.is_permanent() {
                Outcome::Refused(said)
            } else if is_open {
                Outcome::Failed(said)
            } else {
                Outcome::Unavailable(said)
            };
            (outcome, recipient.stage)
        };
        outcome.recipients.into_iter().map(of_recipient).collect()
    }

    fn is_open(&self) -> bool {
        self.client.as_ref().is_some_and(Client::is_open)
    }

    async fn connect(&self, kind: &TransportKind) -> Result<Client, ConnectError> {
        let mut config = Config::new(self.host_name.as_str());
        config.protocol = Protocol::Lmtp;
        let timeouts =
            ClientTimeouts { connect: self.patience.min(CONNECT_MAX), reply: self.patience, write: self.patience };
        match kind {
            TransportKind::LmtpTcp(host, port) => Client::connect((host.as_str(), *port), config, timeouts).await,
            TransportKind::LmtpUnix(path) => Client::connect_unix(path, config, timeouts).await,
            // The others have no server.
            _ => Client::connect_unix("", config, timeouts).await,
        }
    }

    /// Ends sending, within a message or after it.
    pub fn cut(&mut self) {
        self.client = None;
    }

    /// Ends in order.
    pub async fn end(self) {
        if let Some(client) = self.client {
            let _ = tokio::time::timeout(QUIT_PATIENCE, client.quit()).await;
        }
    }
}

fn not_connected(error: &ConnectError) -> FailureReason {
    match error {
        ConnectError::Protocol(ClientError::Greeting(reply)) => FailureReason::at("greeting", reply),
        ConnectError::Protocol(ClientError::Hello(reply)) => FailureReason::at("LHLO", reply),
        error => error.to_string().into(),
    }
}

fn is_lost_before(outcome: &Outcome, stage: Stage) -> bool {
    stage == Stage::Mail && matches!(outcome, Outcome::Unavailable(_))
}

const CONNECT_MAX: Duration = Duration::from_secs(30);
/// Timeout of the reply to QUIT, which may be missing.
const QUIT_PATIENCE: Duration = Duration::from_secs(5);
