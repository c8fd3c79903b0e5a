//! One session from its greeting to its end: what the machine asks, the handler answers.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use posthaste_net::{Certificate, close};
use tokio::task::yield_now;

use super::body::{Body, End};
use super::connection::{Connection, Stop};
use super::{Handler, Session, SessionEnd};
use crate::reply::Reply;
use crate::sasl::{Exchange, Step};
use crate::server::{Event, Waiting};

/// A session that the handler will be told the end of.
struct Life<'h, H: Handler> {
    handler: &'h H,
    /// There until it is handed to [`Handler::ended`].
    session: Option<Session<H::State>>,
    /// Dropped in the middle of something: the server is gone.
    end: SessionEnd,
}

impl<H: Handler> Life<'_, H> {
    fn session(&mut self) -> &mut Session<H::State> {
        self.session.as_mut().expect("handed over at the end only")
    }
}

impl<H: Handler> Drop for Life<'_, H> {
    fn drop(&mut self) {
        let end = if std::thread::panicking() { SessionEnd::Panicked } else { self.end };
        if let Some(session) = self.session.take() {
            let (id, handler) = (session.id, self.handler);
            let told = catch_unwind(AssertUnwindSafe(|| handler.ended(session, end)));
            told.unwrap_or_else(|payload| log_panic(id, "ended", &*payload));
        }
    }
}

/// Why [`converse`] came to an end.
enum Over {
    /// The machine says so.
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
    certificate: &Certificate,
) {
    if connection.machine.is_tls() {
        match Box::pin(connection.start_tls(certificate)).await {
            Ok(facts) => session.tls = Some(facts),
            Err(_) => return,
        }
    }
    let mut life = Life { handler, session: Some(session), end: SessionEnd::ShutDown };
    let over = converse(&mut connection, &mut life, certificate).await;
    let machine = &mut connection.machine;
    life.end = match over {
        Over::Closed if machine.said_quit() => SessionEnd::Quit,
        Over::Closed => SessionEnd::Closed,
        Over::Stopped(stop) => {
            match stop {
                Stop::TimedOut => machine.time_out(),
                Stop::ShuttingDown => machine.shut_down(),
                Stop::Disconnected | Stop::Io(_) | Stop::Tls | Stop::Panicked => {}
            }
            stop.session_end()
        }
    };
    if matches!(life.end, SessionEnd::Disconnected | SessionEnd::Failed(_)) || connection.stream.is_gone() {
        return;
    }
    // After QUIT too, as more may have come behind it.
    let linger = connection.timeouts().linger;
    Box::pin(close(connection.stream, std::mem::take(connection.machine.output_mut()), linger)).await;
}

/// Handlers' futures are boxed while they run, so that an idle session does not carry room for them.
async fn converse<H: Handler>(connection: &mut Connection, life: &mut Life<'_, H>, certificate: &Certificate) -> Over {
    let handler = life.handler;
    let session = life.session();
    let id = session.id;
    let Some(greeting) = Box::pin(sheltered(id, "connect", async { handler.connect(session).await })).await else {
        connection.machine.greet(Err(Reply::new(421, "4.3.0", "Internal error, closing")));
        return Stop::Panicked.into();
    };
    connection.machine.greet(greeting);
    let mut transaction: Option<H::Transaction> = None;
    let mut exchange = Exchange::default();
    loop {
        let went = match connection.step() {
            Event::NeedInput => {
                if connection.machine.waiting() == Waiting::Idle {
                    transaction = None;
                }
                connection.fill().await
            }
            Event::Flush => {
                let flushed = connection.flush().await;
                // Replies by the hundred at once are much work between two waits: the others' turn comes first.
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
            Event::Mail => {
                connection.describe(session);
                let mail = connection.machine.mail().expect("MAIL was asked about");
                let begun = transaction.insert(H::Transaction::default());
                let work = async { handler.mail(session, begun, mail).await };
                let verdict = Box::pin(sheltered(id, "mail", work)).await;
                connection.answer(verdict)
            }
            Event::Rcpt => {
                let envelope = connection.machine.envelope().expect("RCPT has an envelope");
                let rcpt = connection.machine.recipient().expect("RCPT was asked about");
                let begun = transaction.as_mut().expect("MAIL came before RCPT");
                let work = async { handler.rcpt(session, begun, envelope, rcpt).await };
                let verdict = Box::pin(sheltered(id, "rcpt", work)).await;
                connection.answer(verdict)
            }
            Event::Data => {
                let envelope = connection.machine.envelope().expect("DATA has an envelope");
                let begun = transaction.as_mut().expect("MAIL came before DATA");
                let work = async { handler.data(session, begun, envelope).await };
                let verdict = Box::pin(sheltered(id, "data", work)).await;
                connection.answer(verdict)
            }
            Event::BodyBegin(envelope) => {
                // The handler may take its time, and the client waits for the replies to what came before, unless it has
                // sent the whole message already and waits for the one reply to that.
                if !connection.has_whole_body()
                    && let Err(stop) = connection.flush().await
                {
                    return stop.into();
                }
                let begun = transaction.take().expect("MAIL came before the message");
                let mut body = Body::new(connection);
                let work = async { handler.message(session, begun, envelope, &mut body).await };
                let outcome = Box::pin(sheltered(id, "message", work)).await;
                let end = match body.ended() {
                    Some(end) => end,
                    None => {
                        if let Some(outcome) = &outcome {
                            body.refuse_rest(outcome);
                        }
                        Box::pin(body.end()).await
                    }
                };
                let panicked = outcome.is_none();
                match end {
                    End::Complete => connection.machine.finish(&outcome.unwrap_or_else(|| internal_error().into())),
                    End::Refused => {}
                    End::Stopped(stop) => return stop.into(),
                }
                if panicked { Err(Stop::Panicked) } else { Ok(()) }
            }
            Event::StartTls => {
                if let Err(stop) = connection.flush().await {
                    return stop.into();
                }
                match Box::pin(connection.start_tls(certificate)).await {
                    Ok(facts) => {
                        connection.machine.tls_started();
                        // What was said in the clear may have been anybody's (RFC 3207 section 4.2).
                        (session.tls, session.identity, exchange) = (Some(facts), None, Exchange::default());
                        connection.describe(session);
                        Ok(())
                    }
                    Err(stop) => Err(stop),
                }
            }
            Event::Auth(step) => {
                let step = exchange.step(step);
                Box::pin(authenticate(connection, handler, session, &mut exchange, step)).await
            }
            // Nobody reads the rest of a message that was aborted.
            Event::Body(_) | Event::BodyAborted(_) => Ok(()),
            Event::Close => return Over::Closed,
            event @ Event::BodyEnd => unreachable!("{event:?} within a body"),
        };
        if let Err(stop) = went {
            return stop.into();
        }
    }
}

/// Answers one step of AUTH.
async fn authenticate<H: Handler>(
    connection: &mut Connection,
    handler: &H,
    session: &mut Session<H::State>,
    exchange: &mut Exchange,
    step: Step,
) -> Result<(), Stop> {
    connection.describe(session);
    let id = session.id;
    let verdict = match step {
        Step::Challenge(challenge) => {
            connection.machine.auth_challenge(&challenge);
            return Ok(());
        }
        Step::Refuse(reply) => Some(Err(reply)),
        Step::Check(credentials) => {
            let work = async { handler.authenticate(session, credentials).await };
            sheltered(id, "authenticate", work).await
        }
        #[cfg(feature = "scram")]
        Step::Lookup(user) => {
            let work = async { handler.scram_keys(session, &user).await };
            match sheltered(id, "scram_keys", work).await {
                Some(Ok(keys)) => match exchange.keys(keys) {
                    Step::Challenge(challenge) => {
                        connection.machine.auth_challenge(&challenge);
                        return Ok(());
                    }
                    Step::Refuse(reply) => Some(Err(reply)),
                    other => unreachable!("{other:?} for keys"),
                },
                Some(Err(reply)) => Some(Err(reply)),
                None => None,
            }
        }
        #[cfg(feature = "scram")]
        Step::Proven(user) => Some(Ok(user)),
    };
    #[cfg(not(feature = "scram"))]
    let _ = exchange;
    let Some(verdict) = verdict else {
        connection.machine.auth_done(Err(internal_error()));
        return Err(Stop::Panicked);
    };
    connection.machine.auth_done(verdict.map(|identity| session.identity = Some(identity)));
    Ok(())
}

pub(super) fn internal_error() -> Reply {
    Reply::new(451, "4.3.0", "Internal error, closing")
}

/// Does the handler's `work`. `None`: it panicked, which is logged.
async fn sheltered<T>(id: u64, method: &'static str, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let worked = std::future::poll_fn(|cx| {
        // Whatever the handler has left half done is its own; the session ends.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    });
    worked.await.map_err(|payload| log_panic(id, method, &*payload)).ok()
}

/// Does the handler's `work` that has no session yet.
pub(super) fn sheltered_now(method: &'static str, work: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| log_panic(0, method, &*payload));
}

fn log_panic(id: u64, method: &'static str, payload: &(dyn std::any::Any + Send)) {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    tracing::error!(session = id, method, panic = text, "the mail handler panicked");
}
