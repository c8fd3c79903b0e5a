//! Lines of an answer.

use std::io;
use std::time::Duration;

use posthaste_control::Request;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::asker::Asker;
use crate::receive::handler::Receiver;

/// Takes a line of an answer; true while the client listens.
pub(super) type Answer<'a> = &'a dyn Fn(Value) -> bool;
/// The last line of an answer, or the error.
pub(super) type Outcome = Result<Value, String>;

/// A request that is being answered.
#[derive(Clone, Copy)]
pub(super) struct OpenRequest<'a> {
    pub request: &'a Request,
    pub asker: &'a Asker,
    pub receiver: &'a Receiver,
    pub answer: Answer<'a>,
}

/// Writes the lines of an answer while `perform` finds them, and the last.
pub(super) async fn answer(
    mut write: OwnedWriteHalf,
    perform: impl FnOnce(Answer<'_>) -> Outcome + Send + 'static,
) -> io::Result<()> {
    let (answer, mut answered) = mpsc::channel(LINES_MAX);
    let working = spawn_blocking(move || {
        let last = perform(&|line| answer.blocking_send(line).is_ok());
        let _ = answer.blocking_send(last.unwrap_or_else(|error| json!({ "error": error })));
    });
    while let Some(line) = answered.recv().await {
        timeout(PATIENCE, write.write_all(format!("{line}\n").as_bytes())).await??;
    }
    working.await?;
    write.shutdown().await
}

/// A line of an answer.
pub(super) fn as_json(line: &impl Serialize) -> Value {
    serde_json::to_value(line).expect("a line of texts and numbers")
}

/// Lines of an answer that wait to be written.
const LINES_MAX: usize = 256;
/// Longest request.
pub(super) const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Timeout of a client that sends or reads nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
