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
    /// True if it accepts mail. Called for each health check; does not block.
    fn readiness(&self) -> Readiness;

    /// Counters since the start. Called each second; does not block.
    fn counters(&self) -> Counters;

    /// Histograms of its work. Does not block.
    fn distributions(&self) -> Vec<Distribution>;

    /// Its state. May block.
    fn status(&self) -> ServerStatus;

    /// Its queue of mail for other hosts, or a tenant's part of it. May block.
    fn queue(&self, tenant: Option<&str>) -> QueueStatus;

    /// True of a node of a cluster: [`whole_queue`](Self::whole_queue) is of all nodes.
    fn is_node(&self) -> bool {
        false
    }

    /// Like [`queue`](Self::queue), of all nodes of a cluster. For people: metrics of nodes are added up elsewhere. May block.
    fn whole_queue(&self, tenant: Option<&str>) -> QueueStatus {
        self.queue(tenant)
    }

    /// Answers a request of the control socket for a token, with lines for `answer` until that says no. For the token of a tenant, `request` selects that tenant's mail already,
    /// and what else there is must not be shown. May block.
    ///
    /// # Errors
    /// See [`AskRefusal`].
    fn ask(&self, request: &Request, token: &Token, answer: &dyn Fn(Value) -> bool) -> Result<Value, AskRefusal>;

    /// Its version, listeners and configuration. May block.
    fn system(&self) -> Value;

    /// Starts a drain, after which the server ends; the token's name is logged. Does not block.
    fn drain(&self, token: &Token);

    /// The last lines of its log, the newest last. Does not block.
    fn log_lines(&self) -> Vec<String>;

    /// Follows its event log from now on, or a tenant's part of it. `None` without an event log. May block.
    fn follow(&self, tenant: Option<&str>) -> Option<Box<dyn FollowEvents>>;

    /// Injects the mail of a request. A recipient with a success reply is durable.
    fn inject(&self, call: InjectCall<'_>) -> impl Future<Output = InjectReply> + Send;

    /// A file for everybody, under this host name (in lower case, without a port) and path. Does not block.
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

/// A file without secrets, for programs of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicFile {
    /// Its media type.
    pub content_type: &'static str,
    /// Its octets.
    pub text: String,
}

/// A histogram of one metric, perhaps with a label.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Name of the metric.
    pub name: &'static str,
    /// Name and value of its label.
    pub label: Option<(&'static str, String)>,
    /// Its counts.
    pub read: HistogramRead,
    /// Divisor from recorded values to the unit shown.
    pub parts: f64,
}

impl Distribution {
    /// A histogram of values in their own unit.
    pub fn new(name: &'static str, read: HistogramRead) -> Self {
        Self { name, label: None, read, parts: 1.0 }
    }

    /// A histogram of microseconds, shown in seconds.
    pub fn in_millionths(self) -> Self {
        Self { parts: 1e6, ..self }
    }

    /// Adds a label to one of several histograms with its name.
    pub fn labelled(self, label: &'static str, value: &str) -> Self {
        Self { label: Some((label, value.to_owned())), ..self }
    }
}

/// Reads an event log as it grows.
pub trait FollowEvents: Send {
    /// JSON lines since the last call: at most `most`, and none after they have reached `bytes`. May block.
    fn read(&mut self, most: usize, bytes: usize) -> Vec<String>;
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskRefusal {
    /// The number of selected recipients differs from the number that was shown. Nothing was done.
    Changed {
        /// The number that was shown.
        expected: u64,
        /// The number now.
        now: u64,
    },
    /// No such message, or none that this token may see.
    Unknown(String),
    /// The reason.
    Refused(String),
}

/// A request that brings mail.
#[derive(Debug)]
pub struct InjectCall<'a> {
    /// The token of the request.
    pub token: &'a Token,
    /// The client's address.
    pub client: ClientAddress,
    /// Its `Idempotency-Key`.
    pub key: Option<&'a str>,
    /// Its body.
    pub body: Vec<u8>,
    /// Memory share of the body: kept until the work is done.
    pub share: BodyShare,
}

/// The answer to a request that brings mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectReply {
    /// The status of HTTP.
    pub status: u16,
    /// JSON.
    pub body: String,
    /// Seconds until another attempt may help.
    pub retry_secs: Option<u16>,
    /// True if this answer was given before, and nothing was received now.
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

/// The answer to a wrong token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guess {
    /// It is wrong.
    Wrong,
    /// Not checked: too many wrong guesses before.
    TooMany,
    /// Not checked: too many checks are running.
    Busy,
}

/// The answer of the health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It is.
    Ready,
    /// Not ready, with the reason in one word: `poisoned`, `full`, `standby`.
    NotReady(&'static str),
}

/// The state of the server.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ServerStatus {
    /// The name in its greeting.
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
    /// Consumers of the spool.
    pub streams: Vec<StreamStatus>,
    /// Messages that wait for a mailbox on this machine, counted once for each mailbox.
    pub waiting_here: u64,
    /// Recipients in the queue for other hosts.
    pub queued: u64,
    /// Certificates of listeners.
    pub certificates: Vec<CertificateEnd>,
    /// HTTP servers that receive events.
    pub webhooks: Vec<WebhookStatus>,
    /// Sessions with other hosts.
    pub relay: RelayStatus,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertificateEnd {
    /// Its file.
    pub file: String,
    /// Expiry, in seconds since 1970.
    pub ends: u64,
}

/// An HTTP server that receives events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WebhookStatus {
    /// Its name.
    pub name: String,
    /// Age of the oldest event that it has not received, in seconds.
    pub behind_secs: u64,
    /// Why it receives no events, if so.
    pub trouble: Option<String>,
}

/// Questions to DNS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsStatus {
    /// Since the start, by type and outcome: words from a fixed list.
    pub questions: Vec<(&'static str, &'static str, u64)>,
    /// Look-ups since the start that the cache knew.
    pub hits: u64,
    /// Look-ups since the start that missed the cache.
    pub misses: u64,
    /// Questions that are asked now.
    pub asked: u64,
    /// Questions that wait for a slot.
    pub waiting: u64,
}

/// Sessions with other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RelayStatus {
    /// Connections open now.
    pub connections: u64,
    /// Connections among them that wait for messages.
    pub idle: u64,
    /// Sites that cannot be reached now: their mail waits.
    pub unreachable: u64,
    /// Times since the start that a site became unreachable.
    pub back_offs: u64,
    /// Times since the start that TLS with a host was given up for a while, because it failed.
    pub tls_avoided: u64,
    /// Tokens of limits since the start that shards of a cluster have lent, that were used of them, and of own shares. For metrics only.
    #[serde(skip)]
    pub lent_tokens: [u64; 3],
    /// Sessions since the start, and failures for lack of TLS: by demand on TLS and result. For metrics only.
    #[serde(skip)]
    pub tls: Vec<(&'static str, &'static str, u64)>,
    /// MTA-STS policies fetched since the start, and failed fetches. For metrics only.
    #[serde(skip)]
    pub policy_fetches: (u64, u64),
    /// For metrics only.
    #[serde(skip)]
    pub dns: DnsStatus,
}

/// The room on a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskRoom {
    /// The use of the disk, such as `spool`.
    pub holds: String,
    /// Free bytes for the server.
    pub free_bytes: u64,
    /// Bytes of the file system.
    pub total_bytes: u64,
}

/// A consumer of the spool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamStatus {
    /// Its name.
    pub name: String,
    /// Batches that it has not passed.
    pub behind: u64,
    /// Why it is stuck, if it is.
    pub trouble: Option<String>,
}

/// A problem that needs an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attention {
    /// Severity.
    pub urgency: Urgency,
    /// Identity of the problem, stable while it lasts.
    pub about: String,
    /// The problem, in one line.
    pub what: String,
    /// The remedy, as a command or a hint.
    pub help: String,
    /// Place on the page that shows it, if any.
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
    /// Seen now for the first time.
    pub fn new(urgency: Urgency, about: &str, what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { urgency, about: about.to_owned(), what: what.into(), help: help.into(), link: None, since: None }
    }

    /// Shown on the page Queue, with this selection.
    pub fn in_queue<const N: usize>(self, query: [(&'static str, &str); N]) -> Self {
        let query = query.into_iter().map(|(key, value)| (key, value.to_owned())).collect();
        Self { link: Some(PageSelection { page: "queue", query }), ..self }
    }
}

/// Severity. The worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// Mail is refused or stuck.
    Broken,
    /// Some mail waits for an operator, or something is about to fail.
    Warning,
    /// An operator has done it, and may have forgotten.
    Note,
}

/// Mail that waits for other hosts.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct QueueStatus {
    /// Recipients.
    pub recipients: u64,
    /// Arrival of the oldest one, in seconds since 1970.
    pub oldest: Option<i64>,
    /// The destinations with the most of them.
    pub destinations: Vec<DestinationCount>,
    /// Number of further destinations.
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
    /// The domain.
    pub domain: String,
    /// Recipients.
    pub recipients: u64,
    /// Of these, recipients with failed attempts.
    pub deferred: u64,
    /// Of these, recipients held by an operator.
    pub held: u64,
    /// Of these, suspended recipients.
    pub suspended: u64,
    /// When the oldest was received, in seconds since 1970.
    pub oldest: i64,
}
