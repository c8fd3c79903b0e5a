//! The log of a shard: a stream with one subject. A position is a sequence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::check::check;
use super::connection::{Connection, NO_MESSAGE, NO_STREAM, Published};
use super::seen::{Highest, Missing};
use crate::{Appended, LogError, LogPosition, ShardLog};

/// A log in NATS JetStream.
#[derive(Clone)]
pub struct NatsLog {
    connection: Arc<Connection>,
    stream: String,
    seen: Arc<Mutex<Seen>>,
}

/// State of the log as reported by servers.
#[derive(Default)]
struct Seen {
    end: Highest,
    gap: Missing,
}

/// The state of a stream.
struct State {
    first: u64,
    end: u64,
}

impl State {
    /// A deleted stream has no records. Only a repeated answer shows that all records are lost: see [`Highest`].
    fn of(info: Option<&Value>) -> Self {
        let Some(info) = info else { return Self { first: 1, end: 0 } };
        let number = |name: &str| info["state"][name].as_u64().unwrap_or_default();
        let end = number("last_seq");
        let first = if number("messages") == 0 { end + 1 } else { number("first_seq") };
        Self { first, end }
    }
}

type Fetched = Result<Option<Bytes>, LogError>;

impl NatsLog {
    pub(super) fn new(connection: Arc<Connection>, stream: String) -> Self {
        NatsLog { connection, stream, seen: Arc::default() }
    }

    /// Removes the stream with all of its records.
    pub(super) fn delete(&self) -> Result<(), LogError> {
        let call = format!("STREAM.DELETE.{}", self.stream);
        let answer = self.connection.block_on(self.connection.api(&call, &Value::Null))?;
        answer.map(drop).map_err(|error| LogError::Unreachable(format!("{}: {}", self.stream, error.description)))
    }

    /// `None`: the stream was deleted.
    fn info(&self) -> Result<Option<Value>, LogError> {
        match self.connection.block_on(self.connection.api(&format!("STREAM.INFO.{}", self.stream), &Value::Null))? {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.code == NO_STREAM => Ok(None),
            Err(error) => Err(LogError::Unreachable(format!("{}: {}", self.stream, error.description))),
        }
    }

    fn state(&self) -> Result<State, LogError> {
        let state = State::of(self.info()?.as_ref());
        if !self.seen().end.takes(state.end, Instant::now()) {
            let why = format!("{}: the server that answers lacks records that were there", self.stream);
            return Err(LogError::Unreachable(why));
        }
        Ok(state)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("nothing panics while it is held")
    }

    /// Fetches a record; `None` if the stream lacks it.
    fn fetch(&self, position: u64) -> JoinHandle<Fetched> {
        let connection = self.connection.clone();
        let call = format!("STREAM.MSG.GET.{}", self.stream);
        self.connection.runtime.spawn(async move {
            match connection.api(&call, &json!({ "seq": position })).await? {
                Ok(answer) => {
                    let data = answer["message"]["data"].as_str().unwrap_or_default();
                    let bytes = STANDARD.decode(data).map_err(|error| LogError::Unreachable(error.to_string()))?;
                    Ok(Some(bytes.into()))
                }
                Err(error) if error.code == NO_MESSAGE => Ok(None),
                Err(error) => Err(LogError::Unreachable(error.description)),
            }
        })
    }

    fn fetched(&self, fetch: JoinHandle<Fetched>) -> Fetched {
        self.connection.block_on(fetch).unwrap_or_else(|error| Err(LogError::Unreachable(error.to_string())))
    }

    /// Passes stored records to the reader. False if it wants no more.
    fn show(&self, at: &mut u64, end: u64, each: &mut dyn FnMut(LogPosition, Bytes) -> bool) -> Result<bool, LogError> {
        let mut under_way = VecDeque::new();
        let mut asked = *at;
        while *at <= end {
            while asked <= end && under_way.len() < READ_AHEAD {
                under_way.push_back(self.fetch(asked));
                asked += 1;
            }
            let Some(fetch) = under_way.pop_front() else { break };
            let Some(bytes) = self.fetched(fetch)? else { return Err(self.missing(*at)?) };
            self.seen().gap.found(*at);
            if !each(LogPosition::new(*at), bytes) {
                return Ok(false);
            }
            *at += 1;
        }
        Ok(true)
    }

    /// Decides if a missing record was cut or lost.
    fn missing(&self, position: u64) -> Result<LogError, LogError> {
        let first = self.state()?.first;
        if position < first {
            return Ok(LogError::Cut { first: LogPosition::new(first) });
        }
        if self.seen().gap.takes(position, Instant::now()) {
            Ok(LogError::Gap(LogPosition::new(position)))
        } else {
            Err(LogError::Unreachable(format!("{}: position {position} is not there now", self.stream)))
        }
    }
}

impl ShardLog for NatsLog {
    fn append(&self, after: LogPosition, record: Bytes, then: Appended) {
        let connection = self.connection.clone();
        let subject = self.stream.clone();
        let seen = self.seen.clone();
        // Tasks of this thread begin in the order in which they are put.
        self.connection.runtime.spawn(async move {
            then(match connection.publish(subject, EXPECTED_LAST, after.get(), record).await {
                Published::Stored(sequence) => {
                    seen.lock().expect("nothing panics while it is held").end.is_at(sequence);
                    Ok(LogPosition::new(sequence))
                }
                Published::WrongSequence(why) => Err(LogError::Refused(why)),
                Published::Unknown(why) => Err(LogError::Unknown(why)),
            });
        });
    }

    fn follow(&self, from: LogPosition, each: &mut dyn FnMut(LogPosition, Bytes) -> bool) -> Result<(), LogError> {
        let mut at = from.get().max(1);
        loop {
            let State { first, end } = self.state()?;
            if at < first {
                return Err(LogError::Cut { first: LogPosition::new(first) });
            }
            if at > end + 1 {
                return Err(LogError::Gap(LogPosition::new(end + 1)));
            }
            if !self.show(&mut at, end, each)? {
                return Ok(());
            }
            self.connection.block_on(async { tokio::time::sleep(LOOK_EVERY).await });
        }
    }

    fn first(&self) -> Result<LogPosition, LogError> {
        self.state().map(|state| LogPosition::new(state.first))
    }

    fn end(&self) -> Result<LogPosition, LogError> {
        self.state().map(|state| LogPosition::new(state.end))
    }

    fn cut(&self, below: LogPosition) -> Result<(), LogError> {
        let call = format!("STREAM.PURGE.{}", self.stream);
        let answer = self.connection.block_on(self.connection.api(&call, &json!({ "seq": below.get() })))?;
        answer.map(drop).map_err(|error| LogError::Unreachable(error.description))
    }

    fn room(&self) -> Result<(u64, u64), LogError> {
        let Some(info) = self.info()? else { return Ok((0, self.connection.config.log_bytes_max)) };
        let limit = info["config"]["max_bytes"].as_u64().unwrap_or(u64::MAX);
        Ok((info["state"]["bytes"].as_u64().unwrap_or_default(), limit))
    }

    fn is_current(&self) -> Result<bool, LogError> {
        let Some(info) = self.info()? else { return Ok(false) };
        let others = info["cluster"]["replicas"].as_array().map_or(&[][..], Vec::as_slice);
        let is_current = |peer: &Value| peer["current"] == true && peer["offline"] != true;
        Ok(others.iter().all(is_current) && others.len() as u64 + 1 >= self.connection.config.replicas)
    }

    fn check(&self) -> Result<Vec<String>, LogError> {
        check(&self.connection, &self.stream, -1)
    }
}

const EXPECTED_LAST: &str = "Nats-Expected-Last-Sequence";
/// Records requested at a time.
const READ_AHEAD: usize = 8;
/// Interval between checks for new records.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_gone_has_no_records() {
        let of = |info: Option<&Value>| {
            let state = State::of(info);
            (state.first, state.end)
        };
        let full = json!({ "state": { "messages": 3, "first_seq": 5, "last_seq": 7 } });
        let cut = json!({ "state": { "messages": 0, "first_seq": 8, "last_seq": 7 } });
        assert_eq!((of(Some(&full)), of(Some(&cut)), of(None)), ((5, 7), (8, 7), (1, 0)));
    }
}
