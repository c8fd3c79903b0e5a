//! One session from its greeting to its end: the machine asks, the handler answers.

use std::pin::pin;

use posthaste_net::{CurrentCertificate, TlsFacts, close};
use tokio::task::yield_now;

use super::body::{End, IncomingBody};
use super::connection::{Connection, NoTls, Stop};
use super::panics::{internal_end, internal_error, sheltered, sheltered_now};
use super::{Abort, AbortCause, Aborted, Handler, Session, SmtpSessionEnd, Stage};
use crate::reply::Reply;
#[cfg(feature = "scram")]
use crate::sasl::scram::PLUS_NAME;
use crate::sasl::{Exchange, Identity, MECHANISMS, Step};
use crate::server::{AuthStep, Envelope, Event};

/// A session whose end the handler must hear of.
struct Life<'h, H: Handler> {
    handler: &'h H,
    /// Set until it goes to [`Handler::ended`].
    session: Option<Session<H::State>>,
    /// Set from an accepted MAIL until it goes to [`Handler::message`] or [`Handler::aborted`].
    transaction: Option<H::Transaction>,
    stage: Stage,
    /// The initial value applies if the session is dropped midway: the server is gone.
    end: SmtpSessionEnd,
}

impl<H: Handler> Drop for Life<'_, H> {
    fn drop(&mut self) {
        let end = if std::thread::panicking() { SmtpSessionEnd::Panicked } else { self.end };
        let Some(mut session) = self.session.take() else { return };
        let id = session.id;
        let handler = self.handler;
        if let Some(transaction) = self.transaction.take() {
            let aborted = Aborted { stage: self.stage, cause: AbortCause::SessionEnd(end) };
            sheltered_now(id, "aborted", || handler.aborted(&mut session, transaction, aborted));
        }
        sheltered_now(id, "ended", || handler.ended(session, end));
    }
}

/// The reason why [`converse`] ended.
enum Over {
    /// The machine has closed.
    Closed,
    Stopped(Stop),
}

impl From<Stop> for Over {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

/// Serves a connection to its end.
pub(super) async fn serve<H: Handler>(
    mut connection: Connection,
    handler: &H,
    mut session: Session<H::State>,
    certificate: &CurrentCertificate,
) {
    if connection.machine.is_tls() {
        match Box::pin(async { connection.start_tls(&certificate.get()).await }).await {
            Ok(facts) => session.tls = Some(facts),
            Err(failed) => return tell_failed(handler, &session, &failed),
        }
    }
    let mut life =
        Life { handler, session: Some(session), transaction: None, stage: Stage::Mail, end: SmtpSessionEnd::ShutDown };
    if let Some(witness) = life.session.as_ref().and_then(|session| handler.witness(session)) {
        connection.machine.set_witness(witness);
    }
    let over = converse(&mut connection, &mut life, certificate).await;
    let machine = &mut connection.machine;
    life.end = match over {
        Over::Closed if machine.said_quit() => SmtpSessionEnd::Quit,
        Over::Closed => SmtpSessionEnd::Closed,
        Over::Stopped(stop) => {
            match stop {
                Stop::TimedOut => machine.time_out(),
                Stop::ShuttingDown => machine.shut_down(),
                Stop::Disconnected | Stop::Io(_) | Stop::Tls | Stop::Panicked => {}
            }
            stop.session_end()
        }
    };
    if matches!(life.end, SmtpSessionEnd::Disconnected | SmtpSessionEnd::Failed(_)) || connection.stream.is_gone() {
        return;
    }
    if let Some(witness) = connection.machine.witness() {
        crate::witness::replies(&**witness, connection.machine.output());
    }
    // Even after QUIT, as more input may have followed it.
    let linger = connection.timeouts().linger;
    Box::pin(close(connection.stream, std::mem::take(connection.machine.output_mut()), linger)).await;
}

/// Boxes the handler's futures while they run, so that an idle session does not carry their size.
async fn converse<H: Handler>(
    connection: &mut Connection,
    life: &mut Life<'_, H>,
    certificate: &CurrentCertificate,
) -> Over {
    let Life { handler, session, transaction, stage, .. } = life;
    let handler = *handler;
    let session = session.as_mut().expect("handed over at the end only");
    let id = session.id;
    let Some(greeting) = Box::pin(sheltered(id, "connect", greet(handler, session))).await else {
        connection.machine.greet(Err(internal_end()));
        return Stop::Panicked.into();
    };
    connection.machine.greet(greeting);
    let mut auth = Auth::over(connection, session.tls.as_deref());
    loop {
        let went = match connection.step() {
            Event::NeedInput => connection.fill().await,
            Event::Flush => {
                let flushed = connection.flush().await;
                // Hundreds of replies at once are much work between two waits: other tasks get their turn first.
                yield_now().await;
                flushed
            }
            Event::Mail if connection.is_draining() => {
                connection.machine.answer(Err(Reply::new(421, "4.3.2", "Service shutting down")));
                Ok(())
            }
            Event::Hello => {
                connection.describe(session);
                let verdict = Box::pin(sheltered(id, "hello", async { handler.hello(session).await })).await;
                connection.answer(verdict)
            }
            Event::Mail => begin(connection, handler, session, transaction, stage).await,
            Event::Rcpt => {
                let envelope = connection.machine.envelope().expect("RCPT has an envelope");
                let rcpt = connection.machine.recipient().expect("RCPT was asked about");
                let begun = transaction.as_mut().expect("MAIL came before RCPT");
                *stage = Stage::Rcpt;
                let work = async { handler.rcpt(session, begun, envelope, rcpt).await };
                let verdict = Box::pin(sheltered(id, "rcpt", work)).await;
                connection.answer(verdict)
            }
            Event::Data => {
                let envelope = connection.machine.envelope().expect("DATA has an envelope");
                let begun = transaction.as_mut().expect("MAIL came before DATA");
                *stage = Stage::Data;
                let work = async { handler.data(session, begun, envelope).await };
                let verdict = Box::pin(sheltered(id, "data", work)).await;
                if matches!(verdict, Some(Err(_))) {
                    *transaction = None;
                }
                connection.answer(verdict)
            }
            Event::BodyBegin(envelope) => {
                let begun = transaction.take().expect("MAIL came before the message");
                Box::pin(take_message(connection, handler, session, begun, envelope)).await
            }
            Event::StartTls => Box::pin(start_tls(connection, handler, session, &mut auth, certificate)).await,
            Event::Auth(step) => Box::pin(authenticate(connection, handler, session, &mut auth, step)).await,
            Event::TransactionAborted(cause) => match transaction.take_if(|_| cause != Abort::Closed) {
                Some(begun) => {
                    let aborted = Aborted { stage: *stage, cause: AbortCause::Command(cause) };
                    let told = sheltered_now(id, "aborted", || handler.aborted(session, begun, aborted));
                    if told { Ok(()) } else { Err(connection.panicked()) }
                }
                None => Ok(()),
            },
            // The rest of an aborted message is ignored.
            Event::Body(_) | Event::BodyAborted(_) => Ok(()),
            Event::Close => return Over::Closed,
            event @ Event::BodyEnd => unreachable!("{event:?} within a body"),
        };
        if let Err(stop) = went {
            return stop.into();
        }
    }
}

/// Asks about MAIL; a transaction begins if the handler accepts.
async fn begin<H: Handler>(
    connection: &mut Connection,
    handler: &H,
    session: &mut Session<H::State>,
    transaction: &mut Option<H::Transaction>,
    stage: &mut Stage,
) -> Result<(), Stop> {
    connection.describe(session);
    let id = session.id;
    let mail = connection.machine.mail().expect("MAIL was asked about");
    let mut begun = H::Transaction::default();
    let work = async { handler.mail(session, &mut begun, mail).await };
    let verdict = Box::pin(sheltered(id, "mail", work)).await;
    if matches!(verdict, Some(Ok(()))) {
        (*transaction, *stage) = (Some(begun), Stage::Mail);
    }
    connection.answer(verdict)
}

/// Passes the message of a transaction to the handler, and replies.
async fn take_message<H: Handler>(
    connection: &mut Connection,
    handler: &H,
    session: &mut Session<H::State>,
    transaction: H::Transaction,
    envelope: Envelope,
) -> Result<(), Stop> {
    // The handler may be slow, and the client waits for the earlier replies, unless it has sent the whole message and
    // waits only for its reply.
    if !connection.has_whole_body() {
        connection.flush().await?;
    }
    let id = session.id;
    let mut body = IncomingBody::new(connection);
    let outcome = {
        // Pinned here: a future passed as an argument exists twice, there and where it is polled.
        let work = pin!(async { handler.message(session, transaction, envelope, &mut body).await });
        sheltered(id, "message", work).await
    };
    let end = match body.ended() {
        Some(end) => end,
        None => {
            if let Some(outcome) = &outcome {
                body.refuse_rest(outcome);
            }
            body.end().await
        }
    };
    let panicked = outcome.is_none();
    match end {
        End::Complete => connection.machine.finish(&outcome.unwrap_or_else(|| internal_error().into())),
        End::Refused => {}
        End::Stopped(stop) => return Err(stop),
    }
    if panicked { Err(Stop::Panicked) } else { Ok(()) }
}

/// Switches to TLS. Facts about the client are forgotten: an attacker may have sent them in the clear (RFC 3207 section
/// 4.2).
async fn start_tls<H: Handler>(
    connection: &mut Connection,
    handler: &H,
    session: &mut Session<H::State>,
    auth: &mut Auth,
    certificate: &CurrentCertificate,
) -> Result<(), Stop> {
    connection.flush().await?;
    let facts = match connection.start_tls(&certificate.get()).await {
        Ok(facts) => facts,
        Err(failed) => {
            tell_failed(handler, session, &failed);
            return Err(failed.stop);
        }
    };
    connection.machine.tls_started();
    *auth = Auth::over(connection, Some(&*facts));
    (session.tls, session.identity) = (Some(facts), None);
    connection.describe(session);
    let id = session.id;
    let work = async { handler.tls_started(session).await };
    let Some(verdict) = sheltered(id, "tls_started", work).await else { return Err(connection.panicked()) };
    verdict.unwrap_or_else(|reply| connection.machine.close(&reply));
    Ok(())
}

/// Greets the client, if the handler allows it.
async fn greet<H: Handler>(handler: &H, session: &mut Session<H::State>) -> Result<(), Reply> {
    handler.connect(session).await?;
    if session.tls.is_some() { handler.tls_started(session).await } else { Ok(()) }
}

fn tell_failed<H: Handler>(handler: &H, session: &Session<H::State>, failed: &NoTls) {
    if failed.stop != Stop::ShuttingDown {
        sheltered_now(session.id, "tls_failed", || handler.tls_failed(session, &failed.error));
    }
}

/// State of the session's AUTH exchanges.
#[derive(Default)]
struct Auth {
    exchange: Exchange,
    mechanism: &'static str,
}

impl Auth {
    /// Uses the channel binding of this connection, if its mechanism is offered.
    #[cfg(feature = "scram")]
    fn over(connection: &Connection, tls: Option<&TlsFacts>) -> Self {
        let offered = connection.machine.offers_mechanism(PLUS_NAME);
        let exporter = tls.and_then(|tls| tls.exporter).filter(|_| offered);
        Self { exchange: exporter.map_or_else(Exchange::default, Exchange::bound_to), mechanism: "" }
    }

    #[cfg(not(feature = "scram"))]
    fn over(_: &Connection, _: Option<&TlsFacts>) -> Self {
        Self::default()
    }
}

/// Asks the handler for the input of the next SCRAM step; `None`: it has panicked.
#[cfg(feature = "scram")]
async fn scram_step<H: Handler>(
    handler: &H,
    session: &mut Session<H::State>,
    exchange: &mut Exchange,
    step: Step,
) -> Option<Step> {
    let id = session.id;
    let next = match step {
        Step::Lookup(user) => {
            let work = async { handler.scram_keys(session, &user).await };
            sheltered(id, "scram_keys", work).await?.map(|keys| exchange.keys(keys))
        }
        Step::Prove(proof) => {
            let work = async { handler.scram_proof(session, &proof).await };
            sheltered(id, "scram_proof", work).await?.map(|name| exchange.proven(&proof, name))
        }
        step => Ok(step),
    };
    Some(next.unwrap_or_else(Step::Refuse))
}

/// Answers one step of AUTH.
async fn authenticate<H: Handler>(
    connection: &mut Connection,
    handler: &H,
    session: &mut Session<H::State>,
    auth: &mut Auth,
    step: AuthStep,
) -> Result<(), Stop> {
    connection.describe(session);
    let id = session.id;
    if let AuthStep::Begin { mechanism, .. } = &step {
        auth.mechanism = MECHANISMS.iter().find(|known| **known == mechanism).copied().unwrap_or_default();
    }
    let mechanism = auth.mechanism;
    let identity = |authentication_id: String, authorization_id: String| {
        Box::new(Identity { mechanism, authentication_id, authorization_id })
    };
    let next = auth.exchange.step(step);
    #[cfg(feature = "scram")]
    let next = scram_step(handler, session, &mut auth.exchange, next).await;
    #[cfg(not(feature = "scram"))]
    let next = Some(next);
    let verdict = match next {
        Some(Step::Challenge(challenge)) => {
            connection.machine.auth_challenge(&challenge);
            return Ok(());
        }
        Some(Step::Refuse(reply)) => Some(Err(reply)),
        Some(Step::Check(credentials)) => {
            let user = credentials.user.clone();
            let work = async { handler.authenticate(session, mechanism, credentials).await };
            let verdict = sheltered(id, "authenticate", work).await;
            verdict.map(|verdict| verdict.map(|name| identity(user, name)))
        }
        #[cfg(feature = "scram")]
        Some(Step::Proven { user, name }) => Some(Ok(identity(user, name))),
        #[cfg(feature = "scram")]
        Some(step @ (Step::Lookup(_) | Step::Prove(_))) => unreachable!("answered: {step:?}"),
        None => None,
    };
    let Some(verdict) = verdict else {
        connection.machine.auth_done(Err(internal_error()));
        return Err(Stop::Panicked);
    };
    let refusal = match verdict {
        Ok(identity) => {
            session.identity = Some(identity);
            None
        }
        Err(reply) => Some(reply),
    };
    let told = sheltered_now(id, "auth_ended", || handler.auth_ended(session, mechanism, refusal.as_ref()));
    if !told {
        connection.machine.auth_done(Err(internal_error()));
        return Err(Stop::Panicked);
    }
    connection.machine.auth_done(refusal.map_or(Ok(()), Err));
    Ok(())
}
