use std::sync::Arc;

use posthaste_smtp::Reply;
use posthaste_spool::{Entry, Lsn};

use super::status::ReplyPlace;
use posthaste_queue::{Imported, QueueAction, QueueEntry, RecipientKey, Secs};

/// Receives events, for a log. Its methods must not block.
pub trait Observer: Send + Sync {
    /// Outcomes of recipients, just before they are recorded. The returned entry goes into the batch of the record.
    fn attempts(&self, attempts: Vec<RecipientAttempt>) -> Option<Entry>;

    /// An operator's change of recipients, just before it is recorded. The returned entry goes into the batch of the
    /// record.
    fn acted(&self, by: &Originator, action: QueueAction, recipients: Vec<ActedOn>) -> Option<Entry>;

    /// True if [`acted`](Self::acted) uses its recipients. If false, it is not called, and addresses are not read.
    fn wants_acted(&self) -> bool;

    /// An operator's suspension, or the end of one, as written to the queue. The returned entry goes into its batch.
    fn suspended(&self, by: &Originator, entry: &QueueEntry) -> Option<Entry>;

    /// An imported message, just before it is recorded. The returned entry goes into its batch.
    fn imported(&self, by: &Originator, message: &Imported, message_id: &str, bytes: u64) -> Option<Entry>;

    /// A site became unreachable, or reachable again.
    fn site(&self, state: &SiteState<'_>);

    /// A session was not opened because TLS was missing or invalid. Must not block.
    fn tls_failed(&self, failure: &TlsFailure<'_>);

    /// TLS with a host has failed several times: under an opportunistic policy its mail goes in the clear for `secs`
    /// seconds.
    fn tls_avoided(&self, host: &str, error: &str, secs: u64);

    /// A source became unusable (`error` is the reason), or usable again.
    fn source(&self, source: &str, error: Option<&str>);

    /// The queue, or a tenant's part of it, has become full, or has room again.
    fn queue_limit(&self, state: &QueueLimitState<'_>);

    /// Sending has stopped because outcomes could not be recorded, or has resumed.
    fn recording(&self, state: &RecordingState<'_>);

    /// A warning about the queue, or about the message of `batch`, which cannot be read, or whose sender cannot be
    /// notified.
    fn warn(&self, batch: Lsn, what: &str);
}

/// Missing or invalid TLS with a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsFailure<'a> {
    /// Name of the host.
    pub host: &'a str,
    /// Name of the site.
    pub site: &'a str,
    /// The required TLS, as in [`Relay::tls_counts`](super::Relay::tls_counts).
    pub demand: &'a str,
    /// The result, as in [`Relay::tls_counts`](super::Relay::tls_counts).
    pub result: &'a str,
    /// Text of the error.
    pub error: &'a str,
}

/// The outcome of one attempt for a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientAttempt {
    /// Key of the recipient. The message is [`Lsn::ZERO`] if a session was [interrupted](AttemptResult::Interrupted)
    /// while no mail waited for it.
    pub key: RecipientKey,
    /// Address of the sender; empty for none.
    pub sender: Arc<str>,
    /// Address of the recipient.
    pub recipient: Arc<str>,
    /// Name of the tenant; empty for none.
    pub tenant: Arc<str>,
    /// Name of the campaign; empty for none.
    pub campaign: Arc<str>,
    /// When the message was received, in Unix seconds of the queue's clock.
    pub received: Secs,
    /// When the attempt ended, on the same clock.
    pub at: Secs,
    /// Number of attempts so far.
    pub attempts: u8,
    /// How the attempt ended.
    pub result: AttemptResult,
    /// True if the recipient was given up, and nobody can be notified: there is no sender, or it does not exist.
    pub is_double_bounce: bool,
    /// Host that replied; empty for none.
    pub host: Arc<str>,
    /// Stage that the reply answers: `MAIL`, `RCPT`, `DATA` or `message`; `greeting`, `EHLO` and so on if the reply
    /// ended the session; empty if no host has replied.
    pub stage: &'static str,
    /// Name of the source from which it was sent; empty for none.
    pub source: Arc<str>,
    /// Class of the reply; empty if the recipient was delivered, expired or suppressed.
    pub class: Arc<str>,
    /// The host's reply, or our own if there was none.
    pub reply: Reply,
}

impl RecipientAttempt {
    /// The record of an interruption while no mail waited.
    pub(super) fn of_no_message(at: Secs, place: ReplyPlace<'_>, class: Arc<str>, reply: Reply) -> Self {
        RecipientAttempt {
            key: RecipientKey { message: Lsn::ZERO, number: 0 },
            sender: Arc::default(),
            recipient: Arc::default(),
            tenant: Arc::default(),
            campaign: Arc::default(),
            received: at,
            at,
            attempts: 0,
            result: AttemptResult::Interrupted,
            is_double_bounce: false,
            host: place.host.clone(),
            stage: place.stage,
            source: Arc::default(),
            class,
            reply,
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// The next hop has accepted it.
    Delivered,
    /// The recipient is retried.
    Deferred {
        /// Time of the retry, on the queue's clock.
        next: Secs,
    },
    /// The connection broke after everything was written: the next hop may have accepted the message. It is retried.
    Unknown {
        /// Time of the retry.
        next: Secs,
    },
    /// A host ended its session with a reply before it decided on the message: the message is retried at once, without
    /// counting this attempt.
    Interrupted,
    /// Given up: refused permanently.
    Failed,
    /// Given up: too old.
    Expired,
    /// Given up: the address is on a suppression list.
    Suppressed,
}

/// The author of a change, and the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Originator {
    /// User id of the system user.
    pub uid: u32,
    /// Name of the token used over HTTP; empty without HTTP.
    pub token: String,
    /// Reason given with the command; empty for none.
    pub reason: String,
}

/// A recipient changed by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActedOn {
    /// Key of the recipient.
    pub key: RecipientKey,
    /// Address of the recipient; empty if it cannot be read.
    pub recipient: Arc<str>,
}

/// Reachability of a site.
#[derive(Debug, Clone)]
pub enum SiteState<'a> {
    /// The site pauses: its sessions have failed too often in a row.
    Unreachable {
        /// Source from which the site was tried.
        source: &'a str,
        /// Name of the site.
        site: &'a str,
        /// Reply or failure of the last host.
        error: &'a str,
        /// Consecutive tries of all hosts in which every session failed.
        failures: u32,
        /// Consecutive pauses without accepted mail in between.
        pauses: u32,
        /// Seconds until the next try.
        pause_secs: u32,
    },
    /// The site accepts mail again.
    Reached {
        /// Source from which it was reached.
        source: &'a str,
        /// Name of the site.
        site: &'a str,
    },
}

/// Progress of recording outcomes. Without it no mail is sent.
#[derive(Debug, Clone)]
pub enum RecordingState<'a> {
    /// The spool is poisoned: nothing is sent until it is reopened.
    Poisoned {
        /// Number of unrecorded outcomes; recipients among them that were delivered will be sent again.
        unrecorded: u64,
        /// Cause of the poisoning.
        why: &'a str,
    },
    /// New mail is not sent for now.
    Stopped {
        /// Number of unrecorded outcomes.
        unrecorded: u64,
        /// The spool's refusal; `None`: no answer.
        why: Option<&'a str>,
    },
    /// Mail is sent again.
    GoesOn,
}

/// Fill state of the queue.
#[derive(Debug, Clone)]
pub enum QueueLimitState<'a> {
    /// The limit is reached: the first recipient was refused.
    Full {
        /// The tenant whose part is full; empty for the whole queue.
        tenant: &'a str,
        /// Number of waiting recipients.
        recipients: u64,
        /// Maximum number of waiting recipients.
        max: u64,
    },
    /// There is room again.
    Again {
        /// The tenant; empty for the whole queue.
        tenant: &'a str,
        /// Number of recipients refused meanwhile.
        refused: u64,
    },
}

/// Counts since opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Delivered recipients.
    pub delivered: u64,
    /// Attempts that ended with a temporary refusal, or with an unknown result.
    pub deferred: u64,
    /// Recipients given up, for any reason.
    pub failed: u64,
    /// Recipients in the queue.
    pub recipients: u64,
    /// Settled recipients whose sender is still owed a notice.
    pub owed_notices: u64,
    /// Open connections.
    pub connections: usize,
    /// Idle connections among them.
    pub idle: usize,
    /// Sites unreachable now.
    pub unreachable: usize,
    /// Recipients scanned for counts and lists.
    pub looked_at: u64,
    /// Time on the queue's clock.
    pub now: Secs,
}
