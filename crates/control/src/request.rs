//! Requests of a client.

use posthaste_notify::suppression::{Suppressed, SuppressionFilter};
use posthaste_spool::Lsn;
use posthaste_units::object::{object, objects};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterOrder;
use crate::which::{By, Doing, Named, Which};

/// Maximum messages in one [`Request::Subjects`].
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
    /// Local mailbox, named as in the event log; empty if the message is in the queue.
    #[serde(default)]
    pub mailbox: String,
    /// File name in the mailbox, in place of the number, as returned by [`Request::Search`].
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
    /// Counts waiting recipients by a kind of name, one name on each line.
    Summary {
        /// Recipients to count.
        #[serde(default, deserialize_with = "object")]
        of: Which,
        /// The kind of name to group by.
        #[serde(default)]
        by: By,
        /// Number of names: those with the most recipients, each with the limit in effect and the last reply. Not set:
        /// all names, without limits and replies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        top: Option<u32>,
    },
    /// The octets of a message, in pieces.
    Cat {
        /// Number of the message.
        message: Lsn,
        /// Leaves out the body.
        #[serde(default)]
        header: bool,
    },
    /// A message in readable form, in the last line: header, text, source of HTML, names of attachments, source.
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
    /// Subject, sender and recipients of messages in local mailboxes, one line for each message found.
    Subjects {
        /// Messages, at most [`SUBJECTS_MAX`].
        #[serde(deserialize_with = "objects")]
        of: Vec<DeliveredMail>,
    },
    /// Searches subjects, addresses and texts of mail in local mailboxes, with the search index: a line for each
    /// message, the newest first. Also answered without a relay.
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
        /// A message's number, id or Message-ID, or an address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        what: Option<String>,
        /// Name of a login, in place of `what`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Without `what` and `user`, the newest events are listed: of these kinds only; empty: all.
        #[serde(default)]
        events: Vec<String>,
        /// Maximum age in seconds; not set: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secs: Option<u64>,
        /// Maximum number of messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    /// Exports messages for another queue: several lines for each, between a first and a last line about all.
    Export {
        /// Recipients to export.
        #[serde(deserialize_with = "object")]
        of: Which,
        /// Holds the exported recipients in this queue from now on.
        #[serde(default)]
        hold: bool,
        /// Exports only this node's copy of a shard, whoever owns the shard. Nothing can be held then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shard: Option<u16>,
    },
    /// Imports messages of another queue: the answer to [`Export`](Self::Export) follows the request. Answers with a
    /// line about each message.
    Import {
        /// Releases messages that an operator holds in the exporting queue.
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
    /// Applies an action to recipients. The answer has the number of `changed` recipients, and of those in flight,
    /// which `follow`.
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
        /// The number from [`Count`](Self::Count). If the present number differs by more than a tenth, nothing is done.
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
        /// Number of recipients that was shown to the client. If the present number differs by more than a tenth,
        /// nothing is done. Not allowed with a site.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u64>,
    },
    /// Ends a suspension.
    Resume {
        /// The scope to resume.
        #[serde(deserialize_with = "object")]
        scope: Named,
    },
    /// Lists suspensions, one on each line.
    Suspensions {},
    /// Shows the dialogues of sessions that start after this request, a line each, until the client disconnects.
    Trace {
        /// Includes sessions of clients.
        inbound: bool,
        /// Includes sessions with other hosts.
        outbound: bool,
        /// Only sessions with this address or network.
        #[serde(default)]
        peer: Option<String>,
        /// Only sessions that name this recipient.
        #[serde(default)]
        recipient: Option<String>,
    },
    /// Diverts mail to another next hop.
    Divert {
        /// The scope to divert; a site is not allowed.
        #[serde(deserialize_with = "object")]
        scope: Named,
        /// Next hop: a host or an address in brackets, followed by a colon and the port if it is not 25.
        to: String,
        /// Duration in seconds; not set: unlimited.
        secs: Option<u32>,
        /// The reason, for the log.
        #[serde(default)]
        reason: String,
        /// Number of recipients that was shown to the client, as for [`Suspend`](Self::Suspend).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u64>,
    },
    /// Undoes a diversion.
    Undivert {
        /// Scope of the diversion to end.
        #[serde(deserialize_with = "object")]
        scope: Named,
    },
    /// Lists diversions, one on each line.
    Diversions {},
    /// Lists the limits of a destination, marking those that mail waits for; one line.
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
    /// Lists entries of the suppression list, one on each line.
    Suppressions {
        /// Entries to list.
        #[serde(default, deserialize_with = "object")]
        of: SuppressionFilter,
    },
    /// Cancels pending deliveries to a mailbox and those below it. Also answered without a relay.
    #[serde(rename = "forget-mailbox")]
    ForgetMailbox {
        /// Path of the Maildir, or of a directory above it, below the mail directory.
        mailbox: String,
    },
    /// Reads the configuration and its files again, like SIGHUP. The last line lists keys that need a `restart`, and
    /// unusable values for which the old one is `kept`. Also answered without a relay.
    Reload {},
    /// Begins a session about the mail of an account: [`MailCommand`](crate::MailCommand)s follow. Also answered
    /// without a relay.
    Account {
        /// The login, or the path of its Maildir below the mail directory.
        account: String,
    },
    /// Creates a one-time link that opens the page in a browser: `link`, in the last line. Also answered without a
    /// relay.
    Page {
        /// Lifetime of the browser's session, in seconds.
        secs: u64,
        /// Rights of the session, by scope name; empty: all but `mail:read`, which is included while the first password
        /// counts.
        #[serde(default)]
        scopes: Vec<String>,
    },
    /// Requests due certificates from the authority at once: a line for each name, with `new`, `error` and `ends`. Also
    /// answered without a relay.
    Acme {
        /// Includes names that are not due.
        all: bool,
    },
    /// Lists configured domains with their DKIM keys, one on each line. The last line has certificates, and results of
    /// checks and of TLS. Also answered without a relay.
    Domains {},
    /// Lists the DNS records that a configured domain needs, each with its published state, one on each line. The
    /// domain's own servers are asked at most once a minute, in the background: the last line says if a query is
    /// running. Also answered without a relay.
    Records {
        /// The domain.
        domain: String,
    },
    /// Lists logins, and clients with wrong guesses, one on each line. Also answered without a relay.
    Logins {},
    /// Clears wrong passwords, so that no client is blocked or slowed for them.
    #[serde(rename = "forget-guesses")]
    ForgetGuesses {
        /// Client addresses and login names.
        of: Vec<String>,
    },
    /// Returns this node's view of the cluster, a [`ClusterStatus`](crate::ClusterStatus) in one line; or runs a
    /// command about its shards. Also answered without a relay.
    Cluster {
        /// The check or command; not set: only the state is returned.
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
