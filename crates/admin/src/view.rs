//! The state of a server, as served over HTTP.

use std::collections::BTreeMap;
use std::future::Future;

use posthaste_control::Request;
use posthaste_units::histogram::HistogramRead;
use serde::Serialize;
use serde_json::Value;

use crate::body::BodyShare;
use crate::{ClientAddress, Counters, Token, TokenHash};

/// The interface of a server to this crate.
pub trait ServerView: Send + Sync + 'static {
    /// True if the server accepts mail. Called for each health check; does not block.
    fn readiness(&self) -> Readiness;

    /// Counters since the start. Called each second; does not block.
    fn counters(&self) -> Counters;

    /// Histograms of the server's work. Does not block.
    fn distributions(&self) -> Vec<Distribution>;

    /// The server's state. May block.
    fn status(&self) -> ServerStatus;

    /// The queue of mail for other hosts, or a tenant's part of it. May block.
    fn queue(&self, tenant: Option<&str>) -> QueueStatus;

    /// True for a node of a cluster: then [`whole_queue`](Self::whole_queue) covers all nodes.
    fn is_node(&self) -> bool {
        false
    }

    /// Like [`queue`](Self::queue), for all nodes of a cluster. For people only: metrics of nodes are added up
    /// elsewhere. May block.
    fn whole_queue(&self, tenant: Option<&str>) -> QueueStatus {
        self.queue(tenant)
    }

    /// Answers a request of the control socket for a token: passes lines to `answer` until it returns false. For a
    /// tenant's token, `request` already selects the tenant's mail; nothing else may be shown. May block.
    ///
    /// # Errors
    /// See [`AskRefusal`].
    fn ask(&self, request: &Request, token: &Token, answer: &dyn Fn(Value) -> bool) -> Result<Value, AskRefusal>;

    /// Version, listeners and configuration. May block.
    fn system(&self) -> Value;

    /// Starts a drain, after which the server ends; the token's name is logged. Does not block.
    fn drain(&self, token: &Token);

    /// Last lines of the log, the newest last. Does not block.
    fn log_lines(&self) -> Vec<String>;

    /// Follows the event log from now on, or a tenant's part of it. `None` without an event log. May block.
    fn follow(&self, tenant: Option<&str>) -> Option<Box<dyn FollowEvents>>;

    /// Injects the mail of a request. A recipient with a success reply is durable.
    fn inject(&self, call: InjectCall<'_>) -> impl Future<Output = InjectReply> + Send;

    /// A public file under this host name (in lower case, without a port) and path. Does not block.
    fn public_file(&self, host: &str, path: &str) -> Option<PublicFile>;

    /// True if this is the first password, which opens the page while the configuration has no listeners. Called for
    /// clients on this machine that present no token. May block.
    fn is_first_password(&self, presented: &str) -> bool;

    /// The hash of the first password, if there is one. Does not block.
    fn first_password(&self) -> Option<TokenHash>;

    /// Counts a wrong token for the client, and waits as long as after a wrong password. Valid tokens are never passed
    /// here.
    fn wrong_token(&self, client: ClientAddress, presented: &str) -> impl Future<Output = Guess> + Send;
}

/// A public file without secrets, such as for mail clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicFile {
    /// Media type of the file.
    pub content_type: &'static str,
    /// Content of the file.
    pub text: String,
}

/// A histogram of one metric, perhaps with a label.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Name of the metric.
    pub name: &'static str,
    /// Name and value of the label.
    pub label: Option<(&'static str, String)>,
    /// Recorded counts.
    pub read: HistogramRead,
    /// Divisor from recorded values to the unit shown.
    pub parts: f64,
}

impl Distribution {
    /// A histogram whose values are in the unit shown.
    pub fn new(name: &'static str, read: HistogramRead) -> Self {
        Self { name, label: None, read, parts: 1.0 }
    }

    /// A histogram of microseconds, shown in seconds.
    pub fn in_millionths(self) -> Self {
        Self { parts: 1e6, ..self }
    }

    /// Adds a label, to distinguish histograms of the same name.
    pub fn labelled(self, label: &'static str, value: &str) -> Self {
        Self { label: Some((label, value.to_owned())), ..self }
    }
}

/// Reads an event log as it grows.
pub trait FollowEvents: Send {
    /// JSON lines since the last call: at most `most`, and none once they have reached `bytes`. May block.
    fn read(&mut self, most: usize, bytes: usize) -> Vec<String>;
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskRefusal {
    /// The number of selected recipients differs from the number that was shown. Nothing was done.
    Changed {
        /// The number that was shown to the client.
        expected: u64,
        /// The present number.
        now: u64,
    },
    /// No such message, or none that this token may see.
    Unknown(String),
    /// Refused, with the reason.
    Refused(String),
}

/// An injection request.
#[derive(Debug)]
pub struct InjectCall<'a> {
    /// The token of the request.
    pub token: &'a Token,
    /// The client's address.
    pub client: ClientAddress,
    /// Value of `Idempotency-Key`.
    pub key: Option<&'a str>,
    /// Octets of the body, decompressed.
    pub body: Vec<u8>,
    /// Memory share of the body, held until the request is done.
    pub share: BodyShare,
}

/// The answer to an injection request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectReply {
    /// HTTP status.
    pub status: u16,
    /// Body as JSON.
    pub body: String,
    /// Seconds until another attempt may help.
    pub retry_secs: Option<u16>,
    /// True if an earlier answer was repeated, and nothing was received now.
    pub is_replayed: bool,
}

impl InjectReply {
    /// An answer without a body.
    pub fn of(status: u16) -> Self {
        // 409: another request is at it.
        let retry_secs = match status {
            409 => Some(1),
            429 | 503 => Some(INJECT_RETRY_SECS),
            _ => None,
        };
        Self { status, body: String::new(), retry_secs, is_replayed: false }
    }
}

/// Time after which a full spool or a quota may have room again, in seconds.
const INJECT_RETRY_SECS: u16 = 10;

/// The result of a token check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guess {
    /// The token is wrong.
    Wrong,
    /// Not checked: too many wrong guesses from this client.
    TooMany,
    /// Not checked: too many checks are running.
    Busy,
}

/// The result of the health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Accepts mail.
    Ready,
    /// Not ready, with the reason in one word: `poisoned`, `full`, `standby`.
    NotReady(&'static str),
}

/// The server's state.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ServerStatus {
    /// Host name in the greeting.
    pub host_name: String,
    /// Version of the program.
    pub version: String,
    /// Why mail is refused, if it is.
    pub not_taking: Option<String>,
    /// Why mail is not delivered, if so.
    pub not_delivering: Option<String>,
    /// Problems that need an operator, most urgent first.
    pub attention: Vec<Attention>,
    /// Share of the spool's log that is in use: 0 to 1.
    pub spool_fill: f64,
    /// File systems that the server writes to.
    pub disks: Vec<DiskRoom>,
    /// State of each consumer of the spool.
    pub streams: Vec<StreamStatus>,
    /// Messages that wait for a mailbox on this machine, counted once for each mailbox.
    pub waiting_here: u64,
    /// Recipients in the queue for other hosts.
    pub queued: u64,
    /// Certificates of listeners, with their expiry.
    pub certificates: Vec<CertificateEnd>,
    /// HTTP servers that receive events.
    pub webhooks: Vec<WebhookStatus>,
    /// State of sessions with other hosts.
    pub relay: RelayStatus,
}

/// Expiry of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertificateEnd {
    /// Path of the certificate's file.
    pub file: String,
    /// Expiry, in seconds since 1970.
    pub ends: u64,
}

/// An HTTP server that receives events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WebhookStatus {
    /// Name of the webhook.
    pub name: String,
    /// Age of the oldest event that it has not received, in seconds.
    pub behind_secs: u64,
    /// Why it receives no events, if it receives none.
    pub trouble: Option<String>,
}

/// Counters of DNS queries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsStatus {
    /// Queries since the start, by type and outcome: words from a fixed list.
    pub questions: Vec<(&'static str, &'static str, u64)>,
    /// Look-ups since the start answered from the cache.
    pub hits: u64,
    /// Look-ups since the start that were not in the cache.
    pub misses: u64,
    /// Queries in flight.
    pub asked: u64,
    /// Queries that wait for a slot.
    pub waiting: u64,
}

/// Sessions with other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RelayStatus {
    /// Connections open now.
    pub connections: u64,
    /// Open connections that wait for messages.
    pub idle: u64,
    /// Sites that cannot be reached now: their mail waits.
    pub unreachable: u64,
    /// Times since the start that a site became unreachable.
    pub back_offs: u64,
    /// Times since the start that TLS with a host was avoided for a while after a failure.
    pub tls_avoided: u64,
    /// Since the start: tokens of limits lent by other shards of the cluster, lent tokens that were used, and own
    /// tokens that were used. For metrics only.
    #[serde(skip)]
    pub lent_tokens: [u64; 3],
    /// Sessions since the start, and failures for lack of TLS: by demand on TLS and result. For metrics only.
    #[serde(skip)]
    pub tls: Vec<(&'static str, &'static str, u64)>,
    /// MTA-STS policies fetched since the start, and failed fetches. For metrics only.
    #[serde(skip)]
    pub policy_fetches: (u64, u64),
    /// DNS counters. For metrics only.
    #[serde(skip)]
    pub dns: DnsStatus,
}

/// The room on a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskRoom {
    /// The use of the disk, such as `spool`.
    pub holds: String,
    /// Bytes that the server may still write.
    pub free_bytes: u64,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
}

/// A consumer of the spool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamStatus {
    /// Name of the stream.
    pub name: String,
    /// Batches that it has not yet processed.
    pub behind: u64,
    /// Why it is stuck, if it is.
    pub trouble: Option<String>,
}

/// A problem that needs an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attention {
    /// Severity, the worst first.
    pub urgency: Urgency,
    /// Identity of the problem, stable while it lasts.
    pub about: String,
    /// The problem, in one line.
    pub what: String,
    /// The remedy, as a command or a hint.
    pub help: String,
    /// Selection on the page that shows it, if any.
    pub link: Option<PageSelection>,
    /// When it was first seen, in seconds since 1970. The API fills it in.
    pub since: Option<u64>,
}

/// A page and its selection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageSelection {
    /// The page's name in the address, such as `queue`.
    pub page: &'static str,
    /// Keys and values of the address.
    pub query: BTreeMap<&'static str, String>,
}

impl Attention {
    /// A problem seen now for the first time.
    pub fn new(urgency: Urgency, about: &str, what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { urgency, about: about.to_owned(), what: what.into(), help: help.into(), link: None, since: None }
    }

    /// Links the problem to a selection on the page Queue.
    pub fn in_queue<const N: usize>(self, query: [(&'static str, &str); N]) -> Self {
        let query = query.into_iter().map(|(key, value)| (key, value.to_owned())).collect();
        Self { link: Some(PageSelection { page: "queue", query }), ..self }
    }
}

/// Severity of a problem. The worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// Mail is refused or stuck.
    Broken,
    /// Some mail waits for an operator, or something is about to fail.
    Warning,
    /// A state that an operator has set, and may have forgotten.
    Note,
}

/// Mail that waits for other hosts.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct QueueStatus {
    /// Number of waiting recipients.
    pub recipients: u64,
    /// Arrival of the oldest message, in seconds since 1970.
    pub oldest: Option<i64>,
    /// Destinations with the most recipients.
    pub destinations: Vec<DestinationCount>,
    /// Number of destinations not listed.
    pub others: u64,
    /// Recipients of each configured tenant. For metrics only.
    #[serde(skip)]
    pub tenants: Vec<(String, u64)>,
    /// Problems that need an operator.
    pub attention: Vec<Attention>,
}

/// Mail that waits for one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DestinationCount {
    /// Domain of the destination.
    pub domain: String,
    /// Number of waiting recipients.
    pub recipients: u64,
    /// Of these, recipients with failed attempts.
    pub deferred: u64,
    /// Of these, recipients held by an operator.
    pub held: u64,
    /// Of these, suspended recipients.
    pub suspended: u64,
    /// When the oldest message was received, in seconds since 1970.
    pub oldest: i64,
}
