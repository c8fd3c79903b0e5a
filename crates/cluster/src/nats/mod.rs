//! NATS JetStream as the engine: a stream for the log of each shard, and one for the cells.
//!
//! Requests are made by hand and not by the library's JetStream client: an append must never be repeated, and its
//! position is the only protection against doubles. One thread does all input and output of a node. Records of a log
//! are sent in the order of their appends.

mod cells;
mod check;
mod log;
mod peers;
mod seen;

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, HeaderMap, Request, RequestErrorKind};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Notify;

pub use self::cells::NatsCells;
pub use self::log::NatsLog;
pub use self::peers::NatsPeers;
use crate::LogError;

/// The engine's address and login.
#[derive(Debug, Clone)]
pub struct NatsConfig {
    /// `host:port` of each server.
    pub servers: Vec<String>,
    /// `host:port` of each server's HTTP monitoring: it has settings that clients cannot query.
    pub monitors: Vec<String>,
    /// Without it, servers must be on a loopback address.
    pub tls: Option<NatsTls>,
    /// Login at the servers. Without it, servers must be on a loopback address.
    pub login: Option<NatsLogin>,
    /// Begins the names of all streams: letters, digits and `-`.
    pub prefix: String,
    /// Replicas of each stream: 3, but for tests.
    pub replicas: u64,
    /// Limit of the log of a shard, in bytes.
    pub log_bytes_max: u64,
    /// Time after which a request without an answer counts as lost.
    pub timeout: Duration,
}

/// Certificates for the engine.
#[derive(Debug, Clone, Default)]
pub struct NatsTls {
    /// Authorities in PEM; default: those of the system.
    pub roots: Option<PathBuf>,
    /// Certificate and key of this node, in PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// User and password. Its debug output has no password.
#[derive(Clone)]
pub struct NatsLogin {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for NatsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

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

/// A connection to the engine. Clones are the same one.
#[derive(Clone)]
pub struct NatsEngine(Arc<Inner>);

struct Inner {
    config: NatsConfig,
    client: Client,
    runtime: Handle,
    ends: Arc<Notify>,
}

/// The answer to a publication.
enum Published {
    Stored(u64),
    WrongSequence(String),
    Unknown(String),
}

impl NatsEngine {
    /// Connects. Blocks until a server has answered.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub fn connect(config: NatsConfig) -> Result<Self, NatsError> {
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
            Ok(client) => Ok(NatsEngine(Arc::new(Inner { config, client, runtime: handle, ends }))),
            Err(error) => {
                ends.notify_one();
                Err(error.into())
            }
        }
    }

    /// The log of a shard. Its stream is created if missing.
    ///
    /// # Errors
    /// [`LogError::Unreachable`], [`LogError::Rejected`].
    pub fn log(&self, shard: u16) -> Result<NatsLog, LogError> {
        let name = format!("{}-log-{shard}", self.0.config.prefix);
        self.make(stream_config(
            &name,
            std::slice::from_ref(&name),
            self.0.config.log_bytes_max,
            self.0.config.replicas,
            -1,
        ))?;
        Ok(NatsLog::new(self.clone(), name))
    }

    /// The log of the control shard. Its stream is created if missing.
    ///
    /// # Errors
    /// As for [`log`](Self::log).
    pub fn control(&self) -> Result<NatsLog, LogError> {
        let name = format!("{}-control", self.0.config.prefix);
        self.make(stream_config(&name, std::slice::from_ref(&name), CONTROL_BYTES_MAX, self.0.config.replicas, -1))?;
        Ok(NatsLog::new(self.clone(), name))
    }

    /// The cells. Their stream is created if missing.
    ///
    /// # Errors
    /// As for [`log`](Self::log).
    pub fn cells(&self) -> Result<NatsCells, LogError> {
        let name = format!("{}-cells", self.0.config.prefix);
        let subjects = [format!("{name}.>")];
        self.make(stream_config(&name, &subjects, CELLS_BYTES_MAX, self.0.config.replicas, 1))?;
        Ok(NatsCells::new(self.clone(), name))
    }

    /// Creates a stream. An existing one with other settings is kept: [`ShardLog::check`](crate::ShardLog::check)
    /// reports them.
    fn make(&self, config: Value) -> Result<(), LogError> {
        let name = config["name"].as_str().expect("it was just made").to_owned();
        match self.block_on(self.api(&format!("STREAM.CREATE.{name}"), &config))? {
            Ok(_) => Ok(()),
            Err(error) if error.code == NAME_IN_USE => Ok(()),
            Err(error) if error.is_permanent() => Err(LogError::Rejected(format!("{name}: {}", error.description))),
            Err(error) => Err(LogError::Unreachable(format!("{name}: {}", error.description))),
        }
    }

    /// Waits for work on the engine's thread. Must not be called on that thread.
    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.runtime.block_on(work)
    }

    /// Sends a request to JetStream, and returns its answer or the error in it.
    async fn api(&self, call: &str, body: &Value) -> Result<Result<Value, ApiError>, LogError> {
        let unreachable = |why: String| LogError::Unreachable(why);
        let payload = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let answer = self.0.client.request(format!("$JS.API.{call}"), payload).await;
        let answer = answer.map_err(|error| unreachable(error.to_string()))?;
        let value: Value = serde_json::from_slice(&answer.payload).map_err(|error| unreachable(error.to_string()))?;
        match value.get("error") {
            Some(error) => Ok(Err(ApiError::of(error))),
            None => Ok(Ok(value)),
        }
    }

    async fn info(&self, stream: &str) -> Result<Value, LogError> {
        let info = self.api(&format!("STREAM.INFO.{stream}"), &Value::Null).await?;
        info.map_err(|error| LogError::Unreachable(format!("{stream}: {}", error.description)))
    }

    /// Stores a message if the expectation in its header holds. Never retries.
    async fn publish(&self, subject: String, header: &'static str, expected: u64, payload: Bytes) -> Published {
        let mut headers = HeaderMap::new();
        headers.insert(header, expected.to_string());
        let request = Request::new().headers(headers).payload(payload);
        let answer = match self.0.client.send_request(subject, request).await {
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

impl Drop for Inner {
    fn drop(&mut self) {
        self.ends.notify_one();
    }
}

/// An error answered by JetStream.
struct ApiError {
    /// Class of the error: 400 for invalid requests, 503 if servers are not ready.
    class: u64,
    code: u64,
    description: String,
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

/// Stream settings that keep the promise.
fn stream_config(name: &str, subjects: &[String], bytes_max: u64, replicas: u64, per_subject: i64) -> Value {
    json!({
        "name": name,
        "subjects": subjects,
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": replicas,
        "max_bytes": bytes_max,
        "max_msgs": -1,
        "max_msgs_per_subject": per_subject,
        "max_age": 0,
        "max_msg_size": -1,
        "max_consumers": -1,
        "allow_direct": false,
        "allow_rollup_hdrs": false,
    })
}

/// Limit of the cells' stream: they are small, with one value each.
const CELLS_BYTES_MAX: u64 = 256 << 20;
/// Limit of the control shard's log: values of some million keys, and changes since they were restated.
const CONTROL_BYTES_MAX: u64 = 1 << 30;
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
const NO_STREAM: u64 = 10059;
/// Error code: no such message.
const NO_MESSAGE: u64 = 10037;
