//! A message without an SMTP session: checked and stored like any other.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use posthaste_inject::Refusal;
use posthaste_inject::keys::Indexes;
use posthaste_intake::Incoming;
use posthaste_pickup::Reading;
use posthaste_smtp::driver::{Handler, Peer};
use posthaste_smtp::{BodyError, Envelope, ForwardPath, MailFrom, MessageOutcome, Protocol, RcptTo, Reply};
use posthaste_spool::Entry;
use tokio::time::timeout;

use super::receiver::Receiver;
use crate::receive::logins::Session;
use crate::receive::transaction::Transaction;

/// Outcomes of the recipients of a message, by their index in the request. `Ok`: it is durable for them.
pub(crate) type Outcomes = BTreeMap<u32, Result<(), Refusal>>;

/// A message of a request, for the recipients with these indexes.
pub(crate) struct InjectedMail {
    /// Session number; the session has no other message.
    pub id: u64,
    /// Id in `Received`, the log and events: the request's id, and the message's index.
    pub received_id: String,
    pub peer: Peer,
    pub mail: MailFrom,
    pub recipients: Vec<(u32, ForwardPath)>,
    pub body: InjectedBody,
    /// The client is named in `Received`.
    pub names_client: bool,
    /// The charged account, whatever its header says.
    pub tenant: Option<Arc<str>>,
}

/// Makes the entry of settled recipients, including those that failed for good.
pub(crate) type Settles<'a> = &'a (dyn Fn(Indexes, BTreeMap<u32, Refusal>) -> Entry + Send + Sync);

impl Receiver {
    /// Receives one message for all of its recipients, in one batch. With `settles`, the batch contains an entry for
    /// them and for those that failed for good; without a batch, the entry gets its own.
    pub async fn inject(&self, injected: InjectedMail, settles: Option<Settles<'_>>) -> Outcomes {
        let InjectedMail { id, received_id, peer, mail, recipients, mut body, names_client, tenant } = injected;
        let mut session = session(id, peer);
        let mut transaction = Transaction::default();
        if names_client {
            transaction.name_client();
        }
        transaction.bind(tenant);
        transaction.name_message(received_id);
        if settles.is_some() {
            transaction.keep_at_home();
        }
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
                    "cannot record the refused recipients of a request with a key: a repeated request tries them again"
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
    /// Pieces that are passed unchanged: the header, and a text with CRLF line ends.
    pieces: VecDeque<Bytes>,
    /// The text whose line ends are converted.
    text: Option<Reading<BodyOctets>>,
}

impl InjectedBody {
    /// `has_crlf`: each line of the text ends in CRLF, except perhaps the last, and there is no NUL.
    pub fn new(header: Vec<u8>, text: Reading<BodyOctets>, has_crlf: bool) -> Self {
        let mut body = Self { pieces: VecDeque::new(), text: None };
        body.add(Bytes::from(header));
        let rest = if has_crlf { text.into_rest() } else { Err(text) };
        match rest {
            Ok(BodyOctets(rest)) => {
                let is_cut = !rest.is_empty() && !rest.ends_with(b"\n");
                body.add(rest);
                body.add(Bytes::from_static(if is_cut { b"\r\n" } else { b"" }));
            }
            Err(text) => body.text = Some(text),
        }
        body
    }

    fn add(&mut self, mut octets: Bytes) {
        while !octets.is_empty() {
            self.pieces.push_back(octets.split_to(octets.len().min(Self::PIECE_BYTES_MAX)));
        }
    }
}

/// Octets in memory, to be read without a copy.
pub(crate) struct BodyOctets(pub Bytes);

impl Read for BodyOctets {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let taken = self.0.split_to(to.len().min(self.0.len()));
        to[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

impl BufRead for BodyOctets {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(&self.0[..self.0.len().min(READ_BYTES)])
    }

    fn consume(&mut self, octets: usize) {
        self.0.advance(octets);
    }
}

/// Octets of text converted at a time. Line ends at most double it.
const READ_BYTES: usize = 128 << 10;

impl Incoming for InjectedBody {
    type Error = BodyError;

    const PIECE_BYTES_MAX: usize = 2 * READ_BYTES;

    async fn readable(&mut self) -> bool {
        true
    }

    async fn piece(&mut self) -> Option<Result<Bytes, BodyError>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Some(Ok(piece));
        }
        // It is in memory, and reading it cannot fail.
        let read = self.text.as_mut()?.piece().map_err(|_| BodyError::Disconnected);
        read.map(|piece| piece.map(Bytes::from)).transpose()
    }

    async fn within<F: Future<Output: Send> + Send>(&mut self, patience: Duration, work: F) -> Option<F::Output> {
        timeout(patience, work).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of `content`, whose lines are made anew or not.
    async fn received(content: &[u8], has_crlf: bool) -> Vec<u8> {
        let (mut header, text) = Reading::begin(BodyOctets(Bytes::copy_from_slice(content)), false, 1 << 20).unwrap();
        header.extend_from_slice(b"\r\n");
        let mut body = InjectedBody::new(header, text, has_crlf);
        let mut all = Vec::new();
        while let Some(piece) = body.piece().await {
            let piece = piece.unwrap();
            assert!(!piece.is_empty() && piece.len() <= InjectedBody::PIECE_BYTES_MAX);
            all.extend_from_slice(&piece);
        }
        all
    }

    #[tokio::test]
    async fn a_text_with_crlf_goes_on_as_its_lines_would_be_made_anew() {
        let long = format!("A: b\r\n\r\n{}", "\u{e4} .\r\n..\r\n".repeat(100_000));
        let texts =
            ["", "A: b", "A: b\r\n", "A: b\r\n\r\n", "A: b\r\n\r\nx", "\r\n.\r\nx\r\n", "A: b\r\n\r\n\r\n", &long];
        for text in texts {
            let as_it_is = received(text.as_bytes(), true).await;
            assert!(as_it_is == received(text.as_bytes(), false).await, "{}", &text[..text.len().min(30)]);
            let with_lf = received(text.replace("\r\n", "\n").as_bytes(), false).await;
            assert!(as_it_is == with_lf, "{}", &text[..text.len().min(30)]);
        }
        assert_eq!(received(b"A: b\r\n\r\n.x", true).await, b"A: b\r\n\r\n.x\r\n");
    }
}
