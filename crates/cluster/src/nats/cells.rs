//! Cells: a stream with a subject for each, and one message in each subject. A revision is a sequence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{Message, Subscriber};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::json;

use super::check::check;
use super::connection::{Connection, NO_MESSAGE, Published};
use super::seen::Highest;
use crate::{Cells, LogError};

/// Cells in NATS JetStream.
#[derive(Clone)]
pub struct NatsCells {
    connection: Arc<Connection>,
    stream: String,
    /// Highest revisions seen, by key.
    seen: Arc<Mutex<BTreeMap<String, Highest>>>,
}

impl NatsCells {
    pub(super) fn new(connection: Arc<Connection>, stream: String) -> Self {
        NatsCells { connection, stream, seen: Arc::default() }
    }

    /// Like [`ShardLog::check`](crate::ShardLog::check).
    ///
    /// # Errors
    /// As for [`ShardLog::check`](crate::ShardLog::check).
    pub fn check(&self) -> Result<Vec<String>, LogError> {
        check(&self.connection, &self.stream, 1)
    }

    fn subject(&self, key: &str) -> String {
        format!("{}.{key}", self.stream)
    }

    fn with_seen<T>(&self, key: &str, ask: impl FnOnce(&mut Highest) -> T) -> T {
        let mut seen = self.seen.lock().expect("nothing panics while it is held");
        ask(seen.entry(key.to_owned()).or_default())
    }

    async fn subscribe(&self) -> Result<Subscriber, LogError> {
        let unreachable = |why: String| LogError::Unreachable(why);
        let inbox = self.connection.client.new_inbox();
        let subscribed = self.connection.client.subscribe(inbox.clone()).await;
        let subscriber = subscribed.map_err(|error| unreachable(error.to_string()))?;
        let config = json!({
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "filter_subject": self.subject(">"),
            "ack_policy": "none",
            "replay_policy": "instant",
            "idle_heartbeat": nanos(HEARTBEAT),
            "inactive_threshold": nanos(HEARTBEAT * SILENT_BEATS),
            "mem_storage": true,
            "num_replicas": 1,
        });
        let body = json!({ "stream_name": self.stream, "config": config });
        match self.connection.api(&format!("CONSUMER.CREATE.{}", self.stream), &body).await? {
            Ok(_) => Ok(subscriber),
            Err(error) => Err(unreachable(error.description)),
        }
    }
}

impl Cells for NatsCells {
    fn get(&self, key: &str) -> Result<(Bytes, u64), LogError> {
        let body = json!({ "last_by_subj": self.subject(key) });
        let answer =
            self.connection.block_on(self.connection.api(&format!("STREAM.MSG.GET.{}", self.stream), &body))?;
        let (value, revision) = match answer {
            Ok(answer) => {
                let message = &answer["message"];
                let value = STANDARD.decode(message["data"].as_str().unwrap_or_default());
                let value = value.map_err(|error| LogError::Unreachable(error.to_string()))?;
                (value.into(), message["seq"].as_u64().unwrap_or_default())
            }
            Err(error) if error.code == NO_MESSAGE => (Bytes::new(), 0),
            Err(error) => return Err(LogError::Unreachable(error.description)),
        };
        if self.with_seen(key, |seen| seen.takes(revision, Instant::now())) {
            Ok((value, revision))
        } else {
            Err(LogError::Unreachable(format!("the server that answers has an older value of {key}")))
        }
    }

    fn swap(&self, key: &str, revision: u64, value: Bytes) -> Result<u64, LogError> {
        match self.connection.block_on(self.connection.publish(self.subject(key), EXPECTED_LAST, revision, value)) {
            Published::Stored(sequence) => {
                self.with_seen(key, |seen| seen.is_at(sequence));
                Ok(sequence)
            }
            Published::WrongSequence(_) => Err(LogError::Conflict),
            Published::Unknown(why) => Err(LogError::Unknown(why)),
        }
    }

    fn watch(&self, each: &mut dyn FnMut(&str, &[u8], u64) -> bool) -> Result<(), LogError> {
        let mut subscriber = self.connection.block_on(self.subscribe())?;
        let silence = HEARTBEAT * SILENT_BEATS;
        loop {
            let next = self.connection.block_on(async { tokio::time::timeout(silence, subscriber.next()).await });
            let Ok(Some(message)) = next else {
                return Err(LogError::Unreachable("the watch of the cells is silent".to_owned()));
            };
            // Others are heartbeats.
            let Some((key, revision)) = shown(&message, &self.stream) else { continue };
            self.with_seen(key, |seen| seen.is_at(revision));
            if !each(key, &message.payload, revision) {
                return Ok(());
            }
        }
    }
}

/// Key and revision of a message that a consumer delivers. Its reply subject is `$JS.ACK`, then stream, consumer,
/// deliveries and the sequence in the stream. With a domain and an account two more words come before the stream.
fn shown<'a>(message: &'a Message, stream: &str) -> Option<(&'a str, u64)> {
    let key = message.subject.strip_prefix(stream)?.strip_prefix('.')?;
    let words: Vec<&str> = message.reply.as_ref()?.split('.').collect();
    let at = if words.len() > SHORT_ACK_WORDS { 7 } else { 5 };
    Some((key, words.get(at)?.parse().ok()?))
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

const EXPECTED_LAST: &str = "Nats-Expected-Last-Subject-Sequence";
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A watch that misses this many heartbeats has failed.
const SILENT_BEATS: u32 = 3;
/// Words of a reply subject without a domain.
const SHORT_ACK_WORDS: usize = 9;
