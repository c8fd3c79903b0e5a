//! A message that comes without a session of SMTP: asked about and kept as any other.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufReader, Cursor};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_inject::Refusal;
use posthaste_inject::keys::Indexes;
use posthaste_intake::Incoming;
use posthaste_pickup::Reading;
use posthaste_smtp::driver::{Handler, Peer};
use posthaste_smtp::{BodyError, Envelope, ForwardPath, MailFrom, MessageOutcome, Protocol, RcptTo, Reply};
use posthaste_spool::Entry;
use tokio::time::timeout;

use super::Receiver;
use crate::logins::Session;
use crate::transaction::Transaction;

/// Outcomes of the recipients of a message, by their index in the request. `Ok`: it is durable for them.
pub(crate) type Outcomes = BTreeMap<u32, Result<(), Refusal>>;

/// A message of a request, for those of its recipients that have these indexes there.
pub(crate) struct InjectedMail {
    /// Of a session that has no other message.
    pub id: u64,
    /// In `Received`, the log and the events: that of the request, and the message's number there.
    pub received_id: String,
    pub peer: Peer,
    pub mail: MailFrom,
    pub recipients: Vec<(u32, ForwardPath)>,
    pub body: InjectedBody,
    /// The client is named in `Received`.
    pub names_client: bool,
    /// On whose account it is sent, whatever its header says.
    pub tenant: Option<Arc<str>>,
}

/// Makes the entry that settles recipients, with those of them that have failed for good.
pub(crate) type Settles<'a> = &'a (dyn Fn(Indexes, BTreeMap<u32, Refusal>) -> Entry + Send + Sync);

impl Receiver {
    /// Receives one message for all of its recipients, in one batch. With `settles`, the batch has an entry for them and for those that have failed for good; where there is no
    /// batch, the entry has its own.
    pub async fn inject(&self, injected: InjectedMail, settles: Option<Settles<'_>>) -> Outcomes {
        let InjectedMail { id, received_id, peer, mail, recipients, mut body, names_client, tenant } = injected;
        let mut session = session(id, peer);
        let mut transaction = Transaction::default();
        if names_client {
            transaction.name_client();
        }
        transaction.bind(tenant);
        transaction.name_message(received_id);
        let mut envelope = Envelope { mail, recipients: Vec::with_capacity(recipients.len()) };
        let mut outcomes = Outcomes::new();
        let mut asked = Vec::with_capacity(recipients.len());
        match Handler::mail(self, &mut session, &mut transaction, &envelope.mail).await {
            Err(reply) => outcomes.extend(recipients.iter().map(|(index, _)| (*index, Err(Refusal::of(&reply))))),
            Ok(_) => {
                for (index, path) in recipients {
                    let rcpt = RcptTo::new(path);
                    match self.rcpt(&mut session, &mut transaction, &envelope, &rcpt).await {
                        Ok(()) => {
                            envelope.recipients.push(rcpt);
                            asked.push(index);
                        }
                        Err(reply) => drop(outcomes.insert(index, Err(Refusal::of(&reply)))),
                    }
                }
            }
        }
        let mut is_settled = settles.is_none();
        if !asked.is_empty() {
            if let Some(entry) = settles {
                let failed = failed_for_good(&outcomes);
                let settled = asked.iter().chain(failed.keys()).copied().collect();
                transaction.add_entry(entry(settled, failed));
            }
            let outcome = self.take_message(&session, transaction, envelope, &mut body).await;
            let replies = match outcome {
                MessageOutcome::All(reply) => vec![reply; asked.len()],
                MessageOutcome::Each(replies) => replies,
            };
            is_settled |= replies.iter().any(Reply::is_positive);
            outcomes.extend(
                asked
                    .into_iter()
                    .zip(replies)
                    .map(|(index, reply)| (index, if reply.is_positive() { Ok(()) } else { Err(Refusal::of(&reply)) })),
            );
        }
        let failed = failed_for_good(&outcomes);
        if let Some(entry) = settles.filter(|_| !is_settled && !failed.is_empty()) {
            let noted =
                self.destinations().intake().note(vec![entry(failed.keys().copied().collect(), failed.clone())]);
            if let Err(error) = noted.await {
                // A repeated request asks again.
                tracing::warn!(
                    error = error.to_string(),
                    "refused recipients of a request with a key could not be noted"
                );
                let later = Refusal::of(&Reply::new(451, "4.3.0", "Refused, and that could not be noted"));
                outcomes.extend(failed.into_keys().map(|index| (index, Err(later.clone()))));
            }
        }
        outcomes
    }
}

fn failed_for_good(outcomes: &Outcomes) -> BTreeMap<u32, Refusal> {
    let failed = outcomes.iter().filter_map(|(index, outcome)| Some((*index, outcome.as_ref().err()?)));
    failed.filter(|(_, refusal)| refusal.is_permanent()).map(|(index, refusal)| (index, refusal.clone())).collect()
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
