//! Receiving a message: reads and stores its body, and answers.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use posthaste_intake::{Gathered, GatheredBody as StoredBody, Incoming, Intake, Mail, NotGathered, SuccessHere};
use posthaste_message::{DateTime, Encryption, HeaderScan, LocalSource, Received, ReceivedLocally, Summary};
use posthaste_smtp::driver::{IncomingBody, Peer};
use posthaste_smtp::{BodyError, Envelope, MessageOutcome, Reply, ReversePath};
use posthaste_spool::{FrontFields, Lsn};

use super::receiver::{AtData, CHECKS_PATIENCE, Check, Checking, ReadMessage, Receiver, Stop};
use crate::config::certificates;
use crate::ids::unix_micros;
use crate::receive::events::Origin;
use crate::receive::head::{Head, HeaderFacts, HeaderRefusal, HeaderRules};
use crate::receive::logins::Session;
use crate::receive::message_log::LogLine;
use crate::receive::replies::share_is_full;
use crate::receive::returned::{self, ReturnedMail};
use crate::receive::sender_checks::SenderCheck;
use crate::receive::settings::Settings;
use crate::receive::shards::ShardQueue;
use crate::receive::success;
use crate::receive::transaction::Transaction;
use crate::repeats::Kind;

/// Results of the checks at a message's end.
struct Checked {
    /// Labels, times and front fields of the message, and the complaint that it is.
    verdict: Result<(Mail<'static>, Option<ReturnedMail>), Stop>,
    /// Results of a stranger's message, for the log.
    results: Option<String>,
    /// Why the checks put it into Junk.
    junk: Option<String>,
    /// The Message-ID that was added.
    new_message_id: Option<String>,
}

impl Receiver {
    /// Reads, stores and answers one message; the caller writes the log line.
    pub(super) async fn receive<B: Incoming<Error = BodyError>>(
        &self,
        session: &Session,
        mut transaction: Transaction,
        envelope: &mut Envelope,
        body: &mut B,
        log: &mut LogLine,
    ) -> MessageOutcome {
        let settings = self.settings();
        let sender_check = match self.begin_data(session, &settings, &mut envelope.mail.reverse_path) {
            Ok(sender_check) => sender_check,
            Err(stop) => return stopped(stop, log).into(),
        };
        let envelope = &*envelope;
        // Before the body is read: it waits with its client, and takes no memory here.
        let (intake, _) = self.0.destinations.under(transaction.shard().map(|shard| &**shard));
        let pause = intake.pause(transaction.has_remote());
        if !pause.is_zero() {
            elapsed(body, pause).await;
        }
        let (gathered, summary, said) =
            match self.gather(intake, session, sender_check.is_some(), &settings, envelope, body).await {
                Ok(gathered) => gathered,
                Err(why) => return refuse(why, log).into(),
            };
        (log.bytes, log.message_id) = (gathered.bytes, summary.message_id.clone());
        let message = ReadMessage {
            receiver: self,
            session,
            settings: &settings,
            envelope,
            summary: &summary,
            labels: said.labels,
            author: &said.author,
            has_date: said.has_date,
            draft: said.draft,
            sender_check: sender_check.zip(said.verifier),
            results: None,
            junk: None,
            body: &gathered.body,
            transaction: &mut transaction,
            mail: Mail::default(),
            complaint: None,
            received_id: &log.received_id,
            front: Vec::new(),
            new_message_id: None,
        };
        let Checked { verdict, results, junk, new_message_id } = self.check_message(message, body).await;
        (log.results, log.junk, log.message_id) = (results, junk, new_message_id.or(log.message_id.take()));
        let (said, complaint) = match verdict {
            Ok(checked) => checked,
            Err(stop) => return stopped(stop, log).into(),
        };
        let mut mail = self.mail(&transaction, envelope);
        // Many clients say SMTPUTF8 whenever it is offered. The header section is ASCII, so the message needs it only for addresses, which the client's side of a
        // session looks at.
        mail.smtputf8 &= !summary.is_ascii;
        (mail.tenant, mail.campaign, mail.pool, mail.front) = (said.tenant, said.campaign, said.pool, said.front);
        (mail.hold_secs, mail.expires_secs, mail.may_sign) = (said.hold_secs, said.expires_secs, said.may_sign);
        log.count(&mail, transaction.discarded());
        self.accept((session, envelope), (transaction, complaint), mail, (gathered, body), log).await
    }

    /// Calls the checks of DATA, one of which may start the checks of an incoming message.
    fn begin_data(
        &self,
        session: &Session,
        settings: &Settings,
        sender: &mut ReversePath,
    ) -> Result<Option<SenderCheck>, Stop> {
        let mut at = AtData { receiver: self, session, settings, sender, sender_check: None };
        self.0.checks.data(&mut at)?;
        Ok(at.sender_check)
    }

    /// Reads the body completely.
    async fn gather<B: Incoming<Error = BodyError>>(
        &self,
        intake: &Intake,
        session: &Session,
        is_checked: bool,
        settings: &Settings,
        envelope: &Envelope,
        body: &mut B,
    ) -> Result<(Gathered, Summary, HeaderFacts), NotGathered<BodyError, HeaderRefusal>> {
        let limits = settings.limits(session);
        let space = self.0.shares.begin(session.peer.network(), limits.allowance);
        let rules = HeaderRules { verifies: is_checked, ..settings.header_rules(session) };
        let mut head = Head::new(HeaderScan::watching(&settings.host_name), limits.hops, rules);
        let from = (body, envelope.mail.size.unwrap_or(0));
        let gathered = intake.gather(from, &mut head, &self.0.memory, space).await?;
        let (summary, said) = head.heard();
        Ok((gathered, summary, said))
    }

    /// Calls the checks of the message's end, which write its front fields. They share one deadline.
    async fn check_message<B: Incoming<Error = BodyError>>(
        &self,
        mut message: ReadMessage<'_>,
        client: &mut B,
    ) -> Checked {
        let checks = &self.0.checks;
        let (checked, has_waited) = {
            let mut work = pin!(checks.message(&mut message));
            let first = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
            match first {
                Poll::Ready(done) => (Some(done), false),
                Poll::Pending => (client.within(checks.patience, work).await, true),
            }
        };
        let ReadMessage { mut mail, complaint, front, new_message_id, results, junk, .. } = message;
        let verdict = match checked {
            // It sends the message again: it must not be here twice.
            Some(Ok(())) if has_waited && client.has_hung_up() => {
                let gone = BodyError::Disconnected;
                let why = "the client has hung up during the checks".to_owned();
                Err(Stop { kind: Some(Kind::Abandoned), ..Stop::because(gone.reply(), why) })
            }
            Some(Ok(())) => match FrontFields::new(front) {
                Ok(front) => {
                    mail.front = front;
                    Ok((mail, complaint))
                }
                Err(error) => {
                    let reply = Reply::new(451, "4.3.0", "The message could not be kept, try again later");
                    Err(Stop::because(reply, error.to_string()))
                }
            },
            Some(Err(stop)) => Err(stop),
            None => {
                let why = format!("the checks took longer than {} s", checks.patience.as_secs_f32());
                let reply = Reply::new(451, "4.3.0", "The message could not be checked in time, try again later");
                Err(Stop { kind: Some(Kind::Slow), ..Stop::because(reply, why) })
            }
        };
        Checked { verdict, results, junk, new_message_id }
    }

    /// Makes a message durable, then sends success notices and notes returned mail.
    async fn accept<B: Incoming<Error = BodyError>>(
        &self,
        (session, envelope): (&Session, &Envelope),
        (transaction, complaint): (Transaction, Option<ReturnedMail>),
        mail: Mail<'static>,
        (gathered, client): (Gathered, &mut B),
        log: &mut LogLine,
    ) -> MessageOutcome {
        let Gathered { body: stored, room, space, .. } = gathered;
        let report = if transaction.returned().is_empty() { None } else { returned::read(&stored) };
        let origin = Origin { session, envelope, line: &*log };
        let shard = transaction.shard().cloned();
        let (intake, destinations) = self.0.destinations.under(shard.as_deref());
        let mut mail = mail;
        mail.arrival = Some(&origin);
        if mail.recipients.is_empty() {
            if !mail.also.is_empty()
                && let Err(error) = Box::pin(intake.note(std::mem::take(&mut mail.also))).await
            {
                return log.refused(&error).into();
            }
            intake.discard(destinations, &mail);
            self.note_received(shard.as_deref(), &mail, None);
            let returned = ReturnedMail { returned: transaction.into_returned(), report };
            self.note_returned(returned, complaint, Lsn::ZERO);
            return MessageOutcome::accepted(format!("Accepted as {}", log.received_id));
        }
        let mut successes =
            if envelope.mail.reverse_path == ReversePath::Null { Vec::new() } else { transaction.successes() };
        if self.remote().is_open() {
            // The batch of the message says that they are owed, so neither a full disk nor a restart loses them.
            mail.successes = std::mem::take(&mut successes);
        }
        let header = match &stored {
            StoredBody::Memory(pieces) if !successes.is_empty() => success::header(&mail.front, pieces),
            // A large one is in a file: its notification is without a header.
            _ => Vec::new(),
        };
        let patience = elapsed(client, self.0.store_patience);
        let kept = intake.accept_unless(destinations, &mail, stored, patience).await;
        drop((room, space));
        match kept {
            Ok(receipt) => {
                self.note_received(shard.as_deref(), &mail, Some(receipt.lsn));
                log.id = Some(receipt.lsn);
                let returned = ReturnedMail { returned: transaction.into_returned(), report };
                self.note_returned(returned, complaint, receipt.lsn);
                if !successes.is_empty() {
                    let telling = Box::pin(self.tell_success(envelope, &successes, &header));
                    let told = client.within(CHECKS_PATIENCE, telling).await;
                    if told.is_none() {
                        // The message is durable: its client must not wait for a disk that hangs now, and send it again.
                        let sender = envelope.mail.reverse_path.bare();
                        tracing::warn!(
                            sender,
                            "the notice to the sender that its message is delivered waits for the spool"
                        );
                    }
                }
                MessageOutcome::accepted(format!("Kept as {}", receipt.lsn))
            }
            Err(error) => log.refused(&error).into(),
        }
    }

    /// In a cluster, records the origin of a message separately: its batch is in the shard's spool, but the event log
    /// is not.
    fn note_received(&self, shard: Option<&ShardQueue>, mail: &Mail<'_>, message: Option<Lsn>) {
        if let (Some(_), Some(recorder)) = (shard, self.events()) {
            recorder.note_received(mail, message);
        }
    }

    /// Notes bounces to signed return paths, and a complaint, in the message `lsn`.
    fn note_returned(&self, returned: ReturnedMail, complaint: Option<ReturnedMail>, lsn: Lsn) {
        for mail in [Some(returned), complaint].into_iter().flatten() {
            self.remote().note_returned(self.events(), &mail, lsn);
        }
    }

    /// Notifies the sender, on a server without a queue for other hosts. Durable before the reply: a client without a
    /// reply sends the message again, and gets another notice.
    async fn tell_success(&self, envelope: &Envelope, successes: &[SuccessHere], header: &[u8]) {
        let wording = self.remote().wording();
        let written = success::write(&self.settings().host_name, &wording, envelope, successes, header);
        let sender = envelope.mail.reverse_path.bare();
        let told = self.notify(&sender, written, None, None).await;
        if let Err(error) = told {
            tracing::warn!(sender, error, "cannot notify the sender that its message is delivered");
        }
    }

    /// The message for its destinations, with the sender of forwarded copies.
    pub fn mail(&self, transaction: &Transaction, envelope: &Envelope) -> Mail<'static> {
        let settings = self.settings();
        let directory = &settings.directory;
        let detail = |address: &str| directory.detail(address).unwrap_or_default().into();
        let sender = &envelope.mail.reverse_path;
        let forwarding = self.remote().forwarding().filter(|_| transaction.is_forwarded());
        let forwards_from =
            forwarding.map_or_else(|| sender.clone(), |forwarding| forwarding.sender(sender, directory));
        transaction.mail(envelope, &forwards_from, detail)
    }
}

/// Waits, on the timer of the client's connection.
async fn elapsed<B: Incoming>(client: &mut B, patience: Duration) {
    let _ = client.within(patience, pending::<()>()).await;
}

/// A body received by SMTP or LMTP.
pub(super) struct SmtpBody<'b, 'c>(pub &'b mut IncomingBody<'c>);

impl Incoming for SmtpBody<'_, '_> {
    type Error = BodyError;

    const PIECE_BYTES_MAX: usize = IncomingBody::CHUNK_BYTES_MAX;

    async fn readable(&mut self) -> bool {
        self.0.readable().await
    }

    async fn piece(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.0.chunk().await
    }

    async fn within<F: Future<Output: Send> + Send>(&mut self, patience: Duration, work: F) -> Option<F::Output> {
        self.0.within(patience, work).await
    }

    fn has_hung_up(&mut self) -> bool {
        self.0.has_hung_up()
    }
}

/// The answer to a message that a check has stopped, and its reason for the log.
fn stopped(stop: Stop, log: &mut LogLine) -> Reply {
    log.abandoned = stop.kind == Some(Kind::Abandoned);
    (log.why, log.trouble) = (stop.why, stop.kind);
    stop.reply
}

/// The reply to a message whose body was not accepted, and the reason for the log.
fn refuse(why: NotGathered<BodyError, HeaderRefusal>, log: &mut LogLine) -> Reply {
    match why {
        NotGathered::Body(error) => {
            log.abandoned = is_abandoned(&error);
            log.why = Some(error.to_string());
            error.reply()
        }
        NotGathered::Refused(HeaderRefusal::Loop { hops }) => {
            log.why = Some(format!("{hops} hops"));
            Reply::new(554, "5.4.6", "Too many hops, the message is in a loop")
        }
        NotGathered::Refused(HeaderRefusal::Folded) => {
            Reply::new(550, "5.6.0", "The message begins with a continuation line, not with a field")
        }
        NotGathered::Refused(HeaderRefusal::NoName { field }) => {
            log.why = Some(format!("{field} has no name"));
            Reply::new(554, "5.6.0", format!("The field {field} needs a name of one word"))
        }
        NotGathered::Intake(error) => log.refused(&error),
        NotGathered::File(error) => log.unspoolable(&error),
        NotGathered::Space(too_much) => {
            log.why = Some(too_much.to_string());
            share_is_full()
        }
        NotGathered::Slow => log.too_slow(),
    }
}

/// Adds `Received` (RFC 5321 section 4.4).
pub(super) struct TraceField;

impl Check for TraceField {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        write_received(message);
        Checking::Done(Ok(()))
    }
}

fn write_received(message: &mut ReadMessage<'_>) {
    let ReadMessage { settings, session, envelope, received_id: id, .. } = *message;
    let field = &mut message.front;
    let only = match envelope.recipients.as_slice() {
        [one] => one.forward_path.address().map(ToString::to_string),
        _ => None,
    };
    let recipient = only.as_deref();
    let date = DateTime::from_unix(unix_micros() / 1_000_000);
    let source = match session.peer {
        Peer::Local { uid } => Some(LocalSource::User(uid)),
        Peer::Token { client, .. } => Some(LocalSource::Http(client.filter(|_| message.transaction.names_client()))),
        Peer::Tcp { .. } | Peer::Unix => None,
    };
    if let Some(source) = source {
        let by = &*settings.host_name;
        let utf8 = envelope.mail.smtputf8;
        return ReceivedLocally { by, source, id, recipient, utf8, date }.write_to(field);
    }
    let cipher = session.tls.as_deref().map(certificates::cipher);
    let tls = session.tls.as_deref().zip(cipher.as_deref());
    Received {
        helo: session.helo.as_deref().unwrap_or_default(),
        peer: session.peer.ip(),
        by: &settings.host_name,
        with: session.with_keyword(envelope.mail.smtputf8),
        id,
        recipient,
        tls: tls.map(|(tls, cipher)| Encryption { cipher, version: certificates::version(tls) }),
        date,
    }
    .write_to(field);
}

/// Adds fields missing in a submission (RFC 6409 section 8).
pub(super) struct MissingFields;

impl Check for MissingFields {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        if message.settings.is_submission(message.session) {
            if !message.has_date {
                let date = DateTime::from_unix(unix_micros() / 1_000_000);
                message.add_front(&format!("Date: {date}\r\n"));
            }
            if message.summary.message_id.is_none() {
                let id = format!("<{}@{}>", message.received_id, message.settings.authserv_id);
                message.add_front(&format!("Message-ID: {id}\r\n"));
                message.new_message_id = Some(id);
            }
        }
        Checking::Done(Ok(()))
    }
}

/// True if the message ended because its client disconnected or gave up.
fn is_abandoned(error: &BodyError) -> bool {
    matches!(error, BodyError::Reset | BodyError::Disconnected | BodyError::TimedOut | BodyError::Io(_))
}
