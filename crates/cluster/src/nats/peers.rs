//! Questions between nodes: a subject for each node, and one for each owner of a shard, without a stream. They share connection, account and TLS of the
//! logs.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message, Request, RequestErrorKind};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, spawn_blocking};

use super::connection::Connection;
use crate::LogError;
use crate::peers::{ANSWER_BYTES_MAX, PeerAnswerer, PeerName, Peers, QUESTION_BYTES_MAX, QUESTIONS_MAX};

/// The nodes that have the same engine and prefix.
#[derive(Clone)]
pub struct NatsPeers(Arc<Connection>);

/// A node that answers questions, until this is dropped.
struct NatsAnswers(AbortHandle);

impl Drop for NatsAnswers {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NatsPeers {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        NatsPeers(connection)
    }

    fn subject(&self, node: &PeerName) -> String {
        let prefix = &self.0.config.prefix;
        match node {
            PeerName::Node(node) => format!("{prefix}-ask.{node}"),
            PeerName::Limits(shard) => format!("{prefix}-limits.{shard}"),
        }
    }
}

async fn respond(client: &Client, question: Message, answer: PeerAnswerer) {
    let payload = question.payload.clone();
    // It panics by our own bug alone: the log has that, and the node that asks hears nothing.
    let Ok(answer) = spawn_blocking(move || answer(payload)).await else { return };
    publish(client, &question, ANSWERED, &answer[..answer.len().min(ANSWER_BYTES_MAX)]).await;
}

async fn publish(client: &Client, question: &Message, first: u8, answer: &[u8]) {
    let Some(to) = question.reply.clone() else { return };
    let payload: Vec<u8> = [&[first], answer].concat();
    // A node that hears nothing says so.
    let _ = client.publish(to, payload.into()).await;
}

impl Peers for NatsPeers {
    fn ask(&self, node: &PeerName, question: Bytes, patience: Duration) -> Result<Bytes, LogError> {
        let request = Request::new().payload(question).timeout(Some(patience));
        let failed = |why: &str| Err(LogError::Unreachable(why.to_owned()));
        match self.0.block_on(self.0.client.send_request(self.subject(node), request)) {
            Ok(answer) if answer.payload.first() == Some(&ANSWERED) => Ok(answer.payload.slice(1..)),
            Ok(_) => failed("it has too many questions"),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => failed("it is not connected to the engine"),
            Err(error) if error.kind() == RequestErrorKind::TimedOut => failed("it has not answered in time"),
            Err(error) => failed(&error.to_string()),
        }
    }

    fn answer(&self, node: &PeerName, answer: PeerAnswerer) -> Box<dyn Send + Sync> {
        let client = self.0.client.clone();
        let subject = self.subject(node);
        let working = self.0.runtime.spawn(async move {
            // It waits for the connection, and fails only at its end.
            let Ok(mut questions) = client.subscribe(subject).await else { return };
            let places = Arc::new(Semaphore::new(QUESTIONS_MAX));
            while let Some(question) = questions.next().await {
                match places.clone().try_acquire_owned() {
                    Ok(place) if question.payload.len() <= QUESTION_BYTES_MAX => {
                        let client = client.clone();
                        let answer = answer.clone();
                        tokio::spawn(async move {
                            respond(&client, question, answer).await;
                            drop(place);
                        });
                    }
                    _ => publish(&client, &question, REFUSED, &[]).await,
                }
            }
        });
        Box::new(NatsAnswers(working.abort_handle()))
    }
}

/// First byte of an answer.
const ANSWERED: u8 = 1;
/// First byte of an answer without content: the node has too many questions, or this one is too large.
const REFUSED: u8 = 0;
