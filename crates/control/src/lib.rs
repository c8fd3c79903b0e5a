//! Requests to a running server and its answers, as they cross the control socket.
//!
//! For every client: the command line, HTTP, an operator's program. A request is one line of JSON, the answer lines
//! of JSON; the last has `done` or `error`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cluster;
mod logins;
mod mail;
mod of_tenant;
mod route;
mod waiting;
mod which;

pub use cluster::{
    CheckedNode, ClusterCheck, ClusterOrder, ClusterStatus, MemberStatus, NodeAnswers, NodeState, NodeStatus,
    ShardOpening, ShardRole, ShardStatus, UnansweredNode,
};
pub use logins::{ClientLine, LoginLine, LoginPurpose, LoginsLine};
pub use mail::{AddedMail, MailAnswer, MailCommand, MailDone, MailPiece, MailRow, PIECE_BYTES_MAX};
pub use of_tenant::NotOfTenant;
pub use posthaste_notify::suppression::{Suppressed, SuppressionFilter, SuppressionSource};
pub use posthaste_shaping::explain::{Defaults, Explained};
use posthaste_spool::Lsn;
use posthaste_units::object::{object, objects};
pub use route::{MailSender, NotSent, OutboundRoute, RouteFinder};
use serde::{Deserialize, Serialize};
pub use waiting::{CountLine, HeldBy, RoomLine, SummaryEnd, WaitState, WaitingLine};
pub use which::{By, Doing, Named, Which};

/// The name of the socket in the data directory.
pub const SOCKET: &str = "control.sock";

/// Messages in one [`Request::Subjects`] at most.
pub const SUBJECTS_MAX: usize = 100;

/// A message in a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliveredMail {
    /// Number of the message.
    pub message: Lsn,
    /// The mailbox, as the event log has it.
    pub mailbox: String,
}

/// A request as it comes: an object, and nothing else.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SentRequest(#[serde(deserialize_with = "object")] pub Request);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The recipients that wait, one on each line.
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
    /// Numbers of recipients that wait, one name on each line.
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
        /// Number of the message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Lsn>,
        /// Its mailbox here, as the event log has it; empty: it is in the queue.
        #[serde(default)]
        mailbox: String,
        /// In place of its number, the name of its file in the mailbox, as [`Search`](Self::Search) gives it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
    },
    /// The octets of a file that a message has, in pieces.
    File {
        /// The message's number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Lsn>,
        /// Same as in [`Mail`](Self::Mail).
        #[serde(default)]
        mailbox: String,
        /// Same as in [`Mail`](Self::Mail).
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// Its place among the message's files, from 0.
        number: u32,
    },
    /// Subject, sender and recipients of messages in mailboxes here, a line for each that is there.
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
        /// In its place: the name of a login.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Without both, the newest lines: only with these events; empty: all.
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
        /// Exported recipients are held here from then on.
        #[serde(default)]
        hold: bool,
        /// Of this node's copy of a shard alone, whoever owns that; then nothing can be held.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shard: Option<u16>,
    },
    /// Takes messages of another queue: the answer to [`Export`](Self::Export) follows the request. A line about each message is the answer.
    Import {
        /// Messages that an operator has held there are tried here.
        #[serde(default)]
        release: bool,
    },
    /// Number of recipients that an action would concern, those of transports with them: `done`, and what [`Act`](Self::Act) compares with its `expect`.
    Count {
        /// Recipients to count.
        #[serde(default, deserialize_with = "object")]
        of: Which,
        /// The action.
        action: Doing,
    },
    /// Does something with recipients; the answer has how many are `changed`, and how many are under way and `follow`.
    Act {
        /// Recipients to act on.
        #[serde(deserialize_with = "object")]
        of: Which,
        /// The action.
        action: Doing,
        /// Seconds until a hold ends by itself; not set: never. For holds alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secs: Option<u32>,
        /// Why: for the log, and for those who are told that their mail is given up.
        #[serde(default)]
        reason: String,
        /// The number that [`Count`](Self::Count) gave: if it differs by more than a tenth now, nothing is done.
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
        /// Why.
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
    /// Dialogues of sessions that begin from now on, a line each, until the client goes.
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
        /// Why.
        #[serde(default)]
        reason: String,
        /// Reason, as for a suspension.
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
        /// Of mail that was received for this pool; empty for the tenant's.
        #[serde(default)]
        pool: String,
        /// From this source alone; empty for all.
        #[serde(default)]
        source: String,
    },
    /// Entries of the suppression list, one on each line.
    Suppressions {
        /// Entries to list.
        #[serde(default, deserialize_with = "object")]
        of: SuppressionFilter,
    },
    /// Mail accepted for a mailbox until now, and for those below it, is not delivered any more. Answered also where nothing is relayed.
    #[serde(rename = "forget-mailbox")]
    ForgetMailbox {
        /// Path of the Maildir, or of a directory above it, below the mail directory.
        mailbox: String,
    },
    /// Reads the configuration and its files again, as SIGHUP does. The last line has what needs a `restart`, and what was `kept` because it cannot be used.
    /// Answered also where nothing is relayed.
    Reload {},
    /// Begins a session about the mail of an account: [`MailCommand`]s follow. Answered also where nothing is relayed.
    Account {
        /// The login, or the path of its Maildir below the mail directory.
        account: String,
    },
    /// A link that opens the page in a browser, once: `link`, in the last line. Answered also where nothing is relayed.
    Page {
        /// Lifetime of the browser's session, in seconds.
        secs: u64,
        /// The rights, by the names of scopes; empty: all but `mail:read`, and that too while the first password counts.
        #[serde(default)]
        scopes: Vec<String>,
    },
    /// Tries at once to get certificates from the authority: a line for each name, with `new`, `error` and `ends`. Answered also where nothing is relayed.
    Acme {
        /// Also names that are not due.
        all: bool,
    },
    /// Domains of the configuration with their DKIM keys, one on each line; certificates, and results of checks and of TLS, in the last. Answered also where nothing is relayed.
    Domains {},
    /// The DNS records that a domain of the configuration needs, each with what is there, one on each line. The domain's own servers are asked, once a minute at most.
    /// Nobody waits for that: the last line says that a question is under way. Answered also where nothing is relayed.
    Records {
        /// The domain.
        domain: String,
    },
    /// Logins, and clients that have guessed wrong, one on each line. Answered also where nothing is relayed.
    Logins {},
    /// Forgets wrong passwords, so that nobody is turned away or slowed for them.
    #[serde(rename = "forget-guesses")]
    ForgetGuesses {
        /// Addresses of clients and names of logins.
        of: Vec<String>,
    },
    /// The state of this node of a cluster, a [`ClusterStatus`] in one line; or an order about its shards. Answered also where nothing is relayed.
    Cluster {
        /// Not set: the state is told, and nothing else is done.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_the_manual_says() {
        let read = |text: &str| serde_json::from_str::<Request>(text);
        let of = Which { domain: Some("there.example".into()), ..Which::default() };
        let list = Request::List { of, limit: None, after: None };
        assert_eq!(read(r#"{"ask":"list","of":{"domain":"there.example"}}"#).unwrap(), list);
        assert_eq!(serde_json::to_string(&list).unwrap(), r#"{"ask":"list","of":{"domain":"there.example"}}"#);
        let forget = Request::ForgetGuesses { of: vec!["192.0.2.1".into()] };
        assert_eq!(read(r#"{"ask":"forget-guesses","of":["192.0.2.1"]}"#).unwrap(), forget);
        assert!(read(r#"{"ask":"list","off":{}}"#).is_err() && read(r#"{"ask":"nothing"}"#).is_err());
        for wrong in [
            r#"{"ask":"suspensions","of":{}}"#,
            r#"{"ask":"logins","x":1}"#,
            r#"{"ask":"list","of":[]}"#,
            r#"{"ask":"resume","scope":[null,null,"a.example"]}"#,
            r#"{"ask":"suppress","entries":[["a@b.example"]]}"#,
            r#"{"ask":"subjects","of":[["1","x"]]}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let sent = |text: &str| serde_json::from_str::<SentRequest>(text);
        assert!(sent(r#"["suspensions"]"#).is_err() && sent(r#"{"ask":"suspensions"}"#).is_ok());
    }

    #[test]
    fn a_number_of_a_message_is_a_string_of_all_its_digits() {
        for number in [0, 7, u64::MAX] {
            let text = format!(r#"{{"ask":"cat","message":"{number}","header":true}}"#);
            let request = Request::Cat { message: Lsn::new(number), header: true };
            assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
        }
        for wrong in ["7", "\"\"", "\"-1\"", "\"18446744073709551616\"", "null"] {
            let text = format!(r#"{{"ask":"cat","message":{wrong}}}"#);
            assert!(serde_json::from_str::<Request>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn commands_about_mail_are_short_lines() {
        fn text(line: &impl Serialize) -> String {
            serde_json::to_string(line).unwrap()
        }
        let open = MailCommand::Open { mailbox: "a/b".into(), make: true };
        assert_eq!(text(&open), r#"{"open":{"mailbox":"a/b","make":true}}"#);
        assert_eq!(text(&MailCommand::Mailboxes), r#""mailboxes""#);
        assert_eq!(text(&MailPiece::Data(3)), r#"{"data":3}"#);
        assert_eq!(text(&MailPiece::End), r#""end""#);
        assert_eq!(text(&MailAnswer::Done(MailDone { uid: 7, ..MailDone::default() })), r#"{"done":{"uid":7}}"#);
        assert_eq!(text(&MailAnswer::Refused("no".into())), r#"{"refused":"no"}"#);
    }

    #[test]
    fn lines_about_logins_are_told_apart() {
        let client = ClientLine { client: "192.0.2.1".into(), wrong: 3, turned_away: false, secs: 600 };
        let login = LoginLine {
            login: "ann@example.org".into(),
            tenant: None,
            scram: true,
            last_use: Some(1),
            last_to: Some(LoginPurpose::Send),
            last_from: None,
            remembered: false,
            wrong: 0,
            slow: false,
        };
        for line in [LoginsLine::Client(client), LoginsLine::Login(login)] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<LoginsLine>(&text).unwrap(), line, "{text}");
        }
    }
}
