//! Answers to [`Request::List`](crate::Request::List) and [`Request::Summary`](crate::Request::Summary).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::By;

/// A recipient that waits for another host or a transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingLine {
    /// The message's number and the recipient's number in it: `4711.0`. For a transport only the message's.
    pub id: String,
    /// The shard of a cluster that has the message; not set outside a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u16>,
    /// The sender's address; empty for a notification.
    pub sender: String,
    /// The rewritten sender, if it differs.
    pub leaves_from: Option<String>,
    /// Recipient address.
    pub recipient: String,
    /// Recipient domain.
    pub domain: Option<String>,
    /// Tenant of the mail.
    pub tenant: Option<String>,
    /// Campaign of the mail.
    pub campaign: Option<String>,
    /// Pool of sources that sends it.
    pub pool: Option<String>,
    /// The program, file or LMTP server that it waits for; not set: another host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Size of the message in bytes.
    pub bytes: u64,
    /// Time of reception, in seconds since 1970.
    pub received: i64,
    /// Time of expiry, in seconds since 1970.
    pub expires: Option<i64>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Status codes of the last attempt.
    pub status: Option<String>,
    /// Scheduled, due, in flight, suspended or held.
    pub state: WaitState,
    /// End of the wait, in seconds since 1970.
    pub until: Option<i64>,
    /// Who holds it, if it is held.
    pub held_by: Option<HeldBy>,
    /// Why it is held: an operator's words, or the engine's reason; not set if an operator gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_reason: Option<String>,
    /// The result of the last attempt.
    pub why: Option<String>,
    /// Class of the last attempt's reply.
    pub class: Option<String>,
    /// Why the result of the last attempt is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_unknown: Option<String>,
}

/// The kind of a recipient's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitState {
    /// Scheduled for its next attempt.
    Scheduled,
    /// The next attempt is now.
    Due,
    /// An attempt is in flight.
    #[serde(rename = "under way")]
    UnderWay,
    /// Mail of its kind is suspended.
    Suspended,
    /// It is held.
    Held,
}

impl fmt::Display for WaitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduled => "scheduled",
            Self::Due => "due",
            Self::UnderWay => "under way",
            Self::Suspended => "suspended",
            Self::Held => "held",
        })
    }
}

/// The holder of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeldBy {
    /// An operator.
    Operator,
    /// Held: it was in flight in several crashes.
    Quarantine,
    /// A rule.
    Policy,
    /// Held: its outcome is unknown, because the record is lost.
    Uncertain,
    /// The transport has refused it for good.
    Transport,
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operator => "operator",
            Self::Quarantine => "quarantine",
            Self::Policy => "policy",
            Self::Uncertain => "uncertain",
            Self::Transport => "transport",
        })
    }
}

impl HeldBy {
    /// Why the engine holds it. `None` for an operator, who gives a reason as text.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Operator => None,
            Self::Quarantine => Some("it was in flight in several crashes of the server"),
            Self::Policy => Some("a rule has held it"),
            Self::Uncertain => Some("it is unknown whether it was delivered"),
            Self::Transport => Some("its transport cannot deliver it, or has refused it"),
        }
    }
}

/// Counts of waiting recipients for one name. The JSON key of the name is its kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    campaign: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    /// Number of waiting recipients.
    pub recipients: u64,
    /// Reception time of the oldest, in seconds since 1970.
    pub oldest: i64,
    /// Recipients with a failed attempt.
    pub deferred: u64,
    /// Held recipients.
    pub held: u64,
    /// Suspended recipients.
    pub suspended: u64,
    /// Recipients with an attempt in flight.
    pub under_way: u64,
    /// The time of the next attempt, in seconds since 1970.
    pub next: Option<i64>,
    /// The last reply of a host; only for the busiest names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_reply: Option<String>,
    /// The limit in effect; only for the busiest names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl CountLine {
    /// Counts of this name, all zero.
    pub fn of(by: By, name: &str) -> Self {
        let mut line = Self::default();
        let name = Some(name.to_owned());
        match by {
            By::Domain => line.domain = name,
            By::Tenant => line.tenant = name,
            By::Campaign => line.campaign = name,
            By::Site => line.site = name,
        }
        line
    }

    /// The counted name.
    pub fn name(&self) -> &str {
        let names = [&self.domain, &self.tenant, &self.campaign, &self.site];
        names.into_iter().flatten().next().map_or("", String::as_str)
    }
}

/// The last line of a summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryEnd {
    /// Number of counted names.
    pub done: u64,
    /// Recipients of all names.
    #[serde(default)]
    pub recipients: u64,
    /// Reception time of the oldest recipient, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<i64>,
    /// Settled recipients whose senders must still be notified. They take room, too. 0 for a tenant.
    #[serde(default)]
    pub notices: u64,
    /// Room of the queue, then of each tenant with a limit.
    #[serde(default)]
    pub room: Vec<RoomLine>,
}

/// The room of the queue or of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomLine {
    /// The tenant; empty for the queue.
    pub tenant: String,
    /// Number of waiting recipients.
    pub recipients: u64,
    /// Maximum number of waiting recipients.
    pub max: u64,
    /// Recipients refused since the start for lack of room.
    pub refused: u64,
    /// True if further recipients are refused now.
    pub full: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_has_the_kind_of_its_name_as_key() {
        for (by, key) in
            [(By::Domain, "domain"), (By::Tenant, "tenant"), (By::Campaign, "campaign"), (By::Site, "site")]
        {
            let line = CountLine { recipients: 3, ..CountLine::of(by, "x") };
            let text = serde_json::to_string(&line).unwrap();
            assert!(text.starts_with(&format!("{{\"{key}\":\"x\",\"recipients\":3")), "{text}");
            assert_eq!((serde_json::from_str::<CountLine>(&text).unwrap(), line.name()), (line.clone(), "x"));
            assert_eq!(by.key(), key);
        }
    }

    #[test]
    fn a_line_of_a_transport_has_no_keys_of_the_relay() {
        let text = r#"{"id":"7","sender":"","recipient":"a@b","transport":"|x","bytes":1,"received":2,"attempts":3,"state":"under way"}"#;
        let line: WaitingLine = serde_json::from_str(text).unwrap();
        assert_eq!((line.state, line.tenant, line.expires), (WaitState::UnderWay, None, None));
        assert_eq!(line.transport.as_deref(), Some("|x"));
    }
}
