//! The connection to the engine, and the requests to JetStream.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, HeaderMap, Request, RequestErrorKind};
use bytes::Bytes;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::config::NatsConfig;
use crate::LogError;

/// Why the engine is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// Mail and cells would cross a network in the clear, or anybody could write them.
    #[error("{0} is not a loopback address: the engine needs TLS and a login")]
    Unprotected(String),
    /// A server address is invalid or cannot be resolved.
    #[error("{0}: {1}")]
    Address(String, std::io::Error),
    /// No server has answered.
    #[error("cannot connect to the engine: {0}")]
    Connect(#[from] async_nats::ConnectError),
    /// A stream could not be created.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The thread could not be started.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl NatsError {
    /// True if no server has answered yet, so that a retry may help.
    pub fn is_silence(&self) -> bool {
        match self {
            NatsError::Connect(error) => matches!(error.kind(), ConnectErrorKind::Io | ConnectErrorKind::TimedOut),
            NatsError::Log(error) => matches!(error, LogError::Unreachable(_)),
            NatsError::Unprotected(_) | NatsError::Address(..) | NatsError::Io(_) => false,
        }
    }
}

/// A connection to the engine, with a thread for its input and output.
pub(super) struct Connection {
    pub config: NatsConfig,
    pub client: Client,
    pub runtime: Handle,
    ends: Arc<Notify>,
}

/// The answer to a publication.
pub(super) enum Published {
    Stored(u64),
    WrongSequence(String),
    Unknown(String),
}

impl Connection {
    /// Connects. Blocks until a server has answered.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub fn open(config: NatsConfig) -> Result<Self, NatsError> {
        if config.tls.is_none() || config.login.is_none() {
            config.servers.iter().try_for_each(|server| check_loopback(server))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let ends = Arc::new(Notify::new());
        let ended = ends.clone();
        std::thread::Builder::new()
            .name("cluster-nats".to_owned())
            .spawn(move || runtime.block_on(ended.notified()))?;
        let connected = handle.block_on(options(&config).connect(config.servers.clone()));
        match connected {
            Ok(client) => Ok(Connection { config, client, runtime: handle, ends }),
            Err(error) => {
                ends.notify_one();
                Err(error.into())
            }
        }
    }

    /// Creates a stream. An existing one with other settings is kept: [`ShardLog::check`](crate::ShardLog::check)
    /// reports them.
    pub fn make(&self, config: Value) -> Result<(), LogError> {
        let name = config["name"].as_str().expect("it was just made").to_owned();
        match self.block_on(self.api(&format!("STREAM.CREATE.{name}"), &config))? {
            Ok(_) => Ok(()),
            Err(error) if error.code == NAME_IN_USE => Ok(()),
            Err(error) if error.is_permanent() => Err(LogError::Rejected(format!("{name}: {}", error.description))),
            Err(error) => Err(LogError::Unreachable(format!("{name}: {}", error.description))),
        }
    }

    /// Waits for work on the engine's thread. Must not be called on that thread.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Sends a request to JetStream, and returns its answer or the error in it.
    pub async fn api(&self, call: &str, body: &Value) -> Result<Result<Value, ApiError>, LogError> {
        let unreachable = |why: String| LogError::Unreachable(why);
        let payload = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let answer = self.client.request(format!("$JS.API.{call}"), payload).await;
        let answer = answer.map_err(|error| unreachable(error.to_string()))?;
        let value: Value = serde_json::from_slice(&answer.payload).map_err(|error| unreachable(error.to_string()))?;
        match value.get("error") {
            Some(error) => Ok(Err(ApiError::of(error))),
            None => Ok(Ok(value)),
        }
    }

    pub async fn info(&self, stream: &str) -> Result<Value, LogError> {
        let info = self.api(&format!("STREAM.INFO.{stream}"), &Value::Null).await?;
        info.map_err(|error| LogError::Unreachable(format!("{stream}: {}", error.description)))
    }

    /// Stores a message if the expectation in its header holds. Never retries.
    pub async fn publish(&self, subject: String, header: &'static str, expected: u64, payload: Bytes) -> Published {
        let mut headers = HeaderMap::new();
        headers.insert(header, expected.to_string());
        let request = Request::new().headers(headers).payload(payload);
        let answer = match self.client.send_request(subject, request).await {
            Ok(answer) => answer,
            Err(error) => {
                // One that failed at once would be sent again at once.
                if error.kind() != RequestErrorKind::TimedOut {
                    tokio::time::sleep(PAUSE).await;
                }
                return Published::Unknown(error.to_string());
            }
        };
        let value: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
        if let Some(error) = value.get("error").map(ApiError::of) {
            if error.code == WRONG_LAST_SEQUENCE {
                return Published::WrongSequence(error.description);
            }
            tokio::time::sleep(PAUSE).await;
            return Published::Unknown(error.description);
        }
        match value["seq"].as_u64() {
            Some(sequence) if sequence > 0 => Published::Stored(sequence),
            _ => Published::Unknown("the answer has no sequence".to_owned()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.ends.notify_one();
    }
}

/// An error answered by JetStream.
pub(super) struct ApiError {
    /// Class of the error: 400 for invalid requests, 503 if servers are not ready.
    class: u64,
    pub code: u64,
    pub description: String,
}

impl ApiError {
    fn of(error: &Value) -> Self {
        let number = |name: &str| error[name].as_u64().unwrap_or_default();
        let description = error["description"].as_str().unwrap_or("an error without a text").to_owned();
        ApiError { class: number("code"), code: number("err_code"), description }
    }

    /// True if the same request would fail again until an operator changes the engine's settings.
    fn is_permanent(&self) -> bool {
        let is_wrong = self.class == WRONG_REQUEST && self.code != NO_PEERS;
        is_wrong || matches!(self.code, NO_STORAGE | WRONG_STREAM_CONFIG | NO_REPLICAS)
    }
}

fn options(config: &NatsConfig) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .name("posthaste")
        .request_timeout(Some(config.timeout))
        .connection_timeout(config.timeout)
        // Others may lie beyond the loopback addresses that were checked.
        .ignore_discovered_servers()
        .max_reconnects(None)
        .require_tls(config.tls.is_some());
    if let Some(login) = &config.login {
        options = options.user_and_password(login.user.clone(), login.password.clone());
    }
    if let Some(roots) = config.tls.as_ref().and_then(|tls| tls.roots.clone()) {
        options = options.add_root_certificates(roots);
    }
    if let Some((certificate, key)) = config.tls.as_ref().and_then(|tls| tls.client.clone()) {
        options = options.add_client_certificate(certificate, key);
    }
    options
}

fn check_loopback(server: &str) -> Result<(), NatsError> {
    let failed = |error| NatsError::Address(server.to_owned(), error);
    let addresses: Vec<IpAddr> = server.to_socket_addrs().map_err(failed)?.map(|address| address.ip()).collect();
    if !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback) {
        Ok(())
    } else {
        Err(NatsError::Unprotected(server.to_owned()))
    }
}

/// Pause before the answer to a request that failed at once.
const PAUSE: Duration = Duration::from_millis(200);
/// Error code: the last sequence is not the expected one.
const WRONG_LAST_SEQUENCE: u64 = 10071;
/// A stream of that name has other settings.
const NAME_IN_USE: u64 = 10058;
/// Class of errors.
const WRONG_REQUEST: u64 = 400;
/// Error code: too few servers are there for the replicas, perhaps because some start just now.
const NO_PEERS: u64 = 10005;
/// Error code: the limits of the stream exceed the server's storage.
const NO_STORAGE: u64 = 10047;
/// Error code: wrong settings of a stream, in a class of others.
const WRONG_STREAM_CONFIG: u64 = 10052;
/// Error code: replicas need servers in a cluster.
const NO_REPLICAS: u64 = 10074;
/// Error code: no such stream.
pub(super) const NO_STREAM: u64 = 10059;
/// Error code: no such message.
pub(super) const NO_MESSAGE: u64 = 10037;
