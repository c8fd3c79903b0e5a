//! Requests.

use posthaste_notify::suppression::{Suppressed, SuppressionFilter};
use posthaste_spool::Lsn;
use posthaste_units::object::{object, objects};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterOrder;
use crate::which::{By, Doing, Named, Which};

/// Messages in one [`Request::Subjects`] at most.
pub const SUBJECTS_MAX: usize = 100;

/// A message in a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliveredMail {
    /// Number of the message.
    pub message: Lsn,
    /// Name of the mailbox, as in the event log.
    pub mailbox: String,
}

/// A message in the queue, by its number; or in a mailbox, by its number or its file name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessagePlace {
    /// Number of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Lsn>,
    /// Its mailbox here, as in the event log; empty if it is in the queue.
    #[serde(default)]
    pub mailbox: String,
    /// Instead of its number, its file name in the mailbox, as returned by [`Request::Search`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A request: one JSON object.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SentRequest(#[serde(deserialize_with = "object")] pub Request);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Lists waiting recipients, one on each line.
    List {
        /// Recipients to list.
        #[serde(default, deserialize_with = "object")]
        of: Which,
        /// Maximum number; not set: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
        /// Continues a list after this recipient, by its id such as `4711.0`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// Counts of waiting recipients, one name on each line.
    Summary {
        /// Recipients to count.
        #[serde(default, deserialize_with = "object")]
        of: Which,
        /// The kind of name that they are counted by.
        #[serde(default)]
        by: By,
        /// Number of names: the busiest, each with the limit that binds and the last reply. Not set: all names,
        /// without these.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        top: Option<u32>,
    },
    /// The octets of a message, in pieces.
    Cat {
        /// Number of the message.
        message: Lsn,
        /// Requests the header only.
        #[serde(default)]
        header: bool,
    },
    /// A message as a person reads it, in the last line: header, text, source of HTML, names of attachments, source.
    Mail {
        /// The message.
        #[serde(deserialize_with = "object")]
        of: MessagePlace,
    },
    /// The octets of an attached file, in pieces.
    File {
        /// The message.
        #[serde(deserialize_with = "object")]
        of: MessagePlace,
        /// Index of the file in the message, from 0.
        number: u32,
    },
    /// Subject, sender and recipients of messages in mailboxes here, one line for each found message.
    Subjects {
        /// Messages, at most [`SUBJECTS_MAX`].
        #[serde(deserialize_with = "objects")]
        of: Vec<DeliveredMail>,
    },
    /// Words in subjects, addresses and texts of mail in mailboxes here, found with the search index: a line for each message, the newest first. Answered also where nothing is
    /// relayed.
    Search {
        /// Query in the language of `posthaste find`.
        query: String,
        /// Maximum age of messages in seconds, by their date; not set: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secs: Option<u64>,
        /// Skips this many of the newest, to continue a list.
        #[serde(default)]
        skip: u32,
        /// Maximum number of messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    /// Finds messages in the event log: a line for each with its events, the newest first. Also answered without a
    /// relay.
    Find {
        /// A message's number, its id, its Message-ID, or an address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        what: Option<String>,
        /// Instead of it: the name of a login.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Without both, the newest lines: only these events; empty: all.
        #[serde(default)]
        events: Vec<String>,
        /// Maximum age in seconds; not set: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secs: Option<u64>,
        /// Maximum number of messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    /// Messages for another queue, each in several lines, and a first and a last line about all.
    Export {
        /// Recipients to export.
        #[serde(deserialize_with = "object")]
        of: Which,
        /// Exported recipients are held here from now on.
        #[serde(default)]
        hold: bool,
        /// Exports only this node's copy of a shard, whoever owns the shard. Nothing can be held then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shard: Option<u16>,
    },
    /// Takes messages of another queue: the answer to [`Export`](Self::Export) follows the request. A line about each message is the answer.
    Import {
        /// Messages held by an operator there are tried here.
        #[serde(default)]
        release: bool,
    },
    /// Counts the recipients of an action, those of transports included: `done`, and the number for `expect` of
    /// [`Act`](Self::Act).
    Count {
        /// Recipients to count.
        #[serde(default, deserialize_with = "object")]
        of: Which,
        /// The action.
        action: Doing,
    },
    /// Applies an action to recipients. The answer counts the `changed` ones, and those in flight, which `follow`.
    Act {
        /// Recipients to act on.
        #[serde(deserialize_with = "object")]
        of: Which,
        /// The action.
        action: Doing,
        /// Seconds until a hold ends by itself; not set: never. For holds only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secs: Option<u32>,
        /// The reason: for the log, and for notices about deleted mail.
        #[serde(default)]
        reason: String,
        /// The number from [`Count`](Self::Count): if the present one differs by more than a tenth, nothing is done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u64>,
    },
    /// Suspends all mail of a scope.
    Suspend {
        /// The mail to suspend.
        #[serde(deserialize_with = "object")]
        scope: Named,
        /// Duration in seconds; not set: unlimited.
        secs: Option<u32>,
        /// The reason, for the log.
        #[serde(default)]
        reason: String,
        /// Number of recipients that the client was shown. If it differs by more than a tenth now, nothing is done.
        /// Not with a site.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u64>,
    },
    /// Ends a suspension.
    Resume {
        /// The scope of a suspension.
        #[serde(deserialize_with = "object")]
        scope: Named,
    },
    /// Suspensions, one on each line.
    Suspensions {},
    /// Dialogues of sessions that begin from now on, a line each, until the client disconnects.
    Trace {
        /// Sessions of clients.
        inbound: bool,
        /// Sessions with other hosts.
        outbound: bool,
        /// Sessions with this address or network.
        #[serde(default)]
        peer: Option<String>,
        /// Sessions that name this recipient.
        #[serde(default)]
        recipient: Option<String>,
    },
    /// Diverts mail to another next hop.
    Divert {
        /// Scope to divert; no site.
        #[serde(deserialize_with = "object")]
        scope: Named,
        /// Next hop: a host or an address in brackets, followed by a colon and the port if it is not 25.
        to: String,
        /// Duration in seconds; not set: unlimited.
        secs: Option<u32>,
        /// The reason, for the log.
        #[serde(default)]
        reason: String,
        /// Number of recipients that the client was shown, as for [`Suspend`](Self::Suspend).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u64>,
    },
    /// Undoes a diversion.
    Undivert {
        /// Scope of the diversion to end.
        #[serde(deserialize_with = "object")]
        scope: Named,
    },
    /// Diversions, one on each line.
    Diversions {},
    /// Limits of a destination, with those that mail waits for; one line.
    Explain {
        /// The domain.
        domain: String,
        /// Tenant of the mail; empty for none.
        #[serde(default)]
        tenant: String,
        /// Pool of the mail; empty for the tenant's pool.
        #[serde(default)]
        pool: String,
        /// Only this source; empty for all.
        #[serde(default)]
        source: String,
    },
    /// Entries of the suppression list, one on each line.
    Suppressions {
        /// Entries to list.
        #[serde(default, deserialize_with = "object")]
        of: SuppressionFilter,
    },
    /// Cancels the delivery of mail accepted so far for a mailbox and those below it. Answered also where nothing is
    /// relayed.
    #[serde(rename = "forget-mailbox")]
    ForgetMailbox {
        /// Path of the Maildir, or of a directory above it, below the mail directory.
        mailbox: String,
    },
    /// Reads the configuration and its files again, like SIGHUP. The last line lists keys that need a `restart`, and
    /// unusable values for which the old one is `kept`. Answered also where nothing is relayed.
    Reload {},
    /// Begins a session about the mail of an account: [`MailCommand`](crate::MailCommand)s follow. Answered also where nothing is relayed.
    Account {
        /// The login, or the path of its Maildir below the mail directory.
        account: String,
    },
    /// A one-time link that opens the page in a browser: `link`, in the last line. Answered also where nothing is
    /// relayed.
    Page {
        /// Lifetime of the browser's session, in seconds.
        secs: u64,
        /// The rights, by names of scopes; empty: all but `mail:read`, which is included while the first password
        /// counts.
        #[serde(default)]
        scopes: Vec<String>,
    },
    /// Tries at once to get certificates from the authority: a line for each name, with `new`, `error` and `ends`. Answered also where nothing is relayed.
    Acme {
        /// Also names that are not due.
        all: bool,
    },
    /// Configured domains with their DKIM keys, one on each line. The last line has certificates, and results of checks
    /// and of TLS. Answered also where nothing is relayed.
    Domains {},
    /// The DNS records that a configured domain needs, each with its published state, one on each line. The domain's
    /// own servers are asked at most once a minute, in the background: the last line says if a query is running.
    /// Answered also where nothing is relayed.
    Records {
        /// The domain.
        domain: String,
    },
    /// Logins, and clients with wrong guesses, one on each line. Answered also where nothing is relayed.
    Logins {},
    /// Clears wrong passwords, so that no client is blocked or slowed for them.
    #[serde(rename = "forget-guesses")]
    ForgetGuesses {
        /// Addresses of clients and names of logins.
        of: Vec<String>,
    },
    /// The state of this node of a cluster, a [`ClusterStatus`](crate::ClusterStatus) in one line; or a command about its shards. Answered
    /// also where nothing is relayed.
    Cluster {
        /// Not set: only the state is returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        order: Option<ClusterOrder>,
    },
    /// Adds entries to the suppression list.
    Suppress {
        /// Entries to add; without `added` they are added now.
        #[serde(deserialize_with = "objects")]
        entries: Vec<Suppressed>,
    },
    /// Removes addresses from the suppression list.
    Unsuppress {
        /// Tenant; empty: entries for all tenants.
        #[serde(default)]
        tenant: String,
        /// Addresses to remove.
        addresses: Vec<String>,
    },
}
